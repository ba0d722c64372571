#include "slot_session.hpp"

#include "unit/scratch_folder.hpp"

#include <atomic>
#include <stdexcept>
#include <thread>

namespace deltawire::test {
namespace {

/// Calls each member's call on a thread of its own: they wait for each other.
template <class Call>
void all_at_once(std::size_t count, Call&& call) {
  std::vector<std::string> thrown(count);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      try {
        call(i);
      } catch (const Error& error) {
        thrown[i] = error.what();
      }
    });
  for (std::thread& thread : threads)
    thread.join();
  for (const std::string& what : thrown)
    if (!what.empty())
      throw std::runtime_error(what);
}

} // namespace

std::string SlotModel::topology() const {
  const std::size_t shard_bytes = 2 * slots * shard_elements();
  return "[trainer]\nmesh = [[\"fsdp\", 2]]\n[[trainer.placement]]\nparameter = \"*\"\nshard = [\"fsdp:0\"]\n"
         "[worker]\nmesh = [[\"tp\", 2]]\n[[worker.placement]]\nparameter = \"*\"\nshard = [\"tp:0\"]\n"
         "[actors.gather_queue]\ntransport = \"inproc\"\n[actors.sender]\ntransport = \"inproc\"\n"
         "[actors.flush_bucket]\nvalues = \"raw\"\n[actors.differ]\ncount = 1\nchunk = \"" +
         std::to_string(shard_bytes / chunks) + "B\"\n";
}

SlotSession::SlotSession(const SlotModel& model) : model_(model) {
  static std::atomic<unsigned> sessions{0};
  const ScratchFolder folder;
  const std::string topology = folder.write("topology.toml", model.topology());
  const std::vector<std::string> master = {"transport.master=\"127.0.0.1:" + std::to_string(20000 + sessions++) + "\""};
  const auto count = static_cast<std::size_t>(model.members);
  trained_.assign(count, std::vector<std::uint16_t>(model.slots * model.shard_elements()));
  served_ = trained_;
  tickets_.reserve(count);
  for (std::uint32_t member = 0; member < model.members; ++member) {
    for (std::size_t i = 0; i < trained_[member].size(); ++i)
      trained_[member][i] = static_cast<std::uint16_t>(i * 40503 + member);
    publishers_.push_back(Publisher::open(topology, {member, SlotModel::members, master}));
    subscribers_.push_back(Subscriber::open(topology, {member, master}));
    for (std::size_t slot = 0; slot < model.slots; ++slot) {
      const std::string name = "layers." + std::to_string(slot) + ".weight";
      const std::size_t first = slot * model.shard_elements();
      publishers_.back().add({name, DType::bf16, {model.rows, SlotModel::columns}, trained_[member].data() + first});
      subscribers_.back().bind(
        {name, DType::bf16, {model.rows / SlotModel::members, SlotModel::columns}, served_[member].data() + first});
    }
  }
  all_at_once(2 * count, [&](std::size_t i) {
    if (i < count)
      publishers_[i].connect();
    else
      subscribers_[i - count].start();
  });
}

SlotSession::~SlotSession() {
  const std::size_t count = publishers_.size();
  all_at_once(2 * count, [&](std::size_t i) {
    if (i < count)
      publishers_[i].close();
    else
      subscribers_[i - count].close();
  });
}

void SlotSession::train() {
  ++step_;
  const std::size_t every = model_.slots / model_.touched;
  for (std::vector<std::uint16_t>& bits : trained_)
    for (std::size_t i = 0; i < model_.touched; ++i)
      bits[i * every * model_.shard_elements() + (step_ * 7 + i) % 64] ^= static_cast<std::uint16_t>(1u << step_ % 16);
}

Outcome SlotSession::update() {
  tickets_.clear();
  for (Publisher& publisher : publishers_)
    tickets_.push_back(publisher.publish(step_));
  Outcome outcome = tickets_[0].wait();
  for (Ticket& ticket : tickets_)
    (void)ticket.wait();
  if (!outcome.committed)
    throw std::runtime_error(outcome.error_message);
  return outcome;
}

} // namespace deltawire::test
