#include "dense_session.hpp"

#include "unit/scratch_folder.hpp"

#include <atomic>
#include <stdexcept>
#include <thread>

namespace deltawire::test {

DenseSession::DenseSession(const DenseModel& model, const std::vector<std::string>& overrides) {
  static std::atomic<unsigned> sessions{0};
  const ScratchFolder folder;
  const std::string topology = folder.write("topology.toml", DenseModel::topology());
  std::vector<std::string> all = {fmt::format("transport.master=\"127.0.0.1:{}\"", 1 + sessions++),
                                  "actors.gather_queue.transport=inproc", "actors.sender.transport=inproc"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  for (std::uint32_t member = 0; member < DenseModel::members; ++member) {
    trained_.emplace_back(model, member).change_to(1);
    served_.emplace_back(model, member);
    publishers_.push_back(Publisher::open(topology, {member, DenseModel::members, all}));
    trained_.back().add_to(publishers_.back());
    subscribers_.push_back(Subscriber::open(topology, {member, all}));
    served_.back().bind_to(subscribers_.back());
  }
  std::vector<std::string> thrown(std::size_t{2} * DenseModel::members);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < thrown.size(); ++i)
    threads.emplace_back([&, i] {
      try {
        if (i < DenseModel::members)
          publishers_[i].connect();
        else
          subscribers_[i - DenseModel::members].start();
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

DenseSession::~DenseSession() {
  std::vector<std::thread> threads; // close() waits for the others
  for (Publisher& publisher : publishers_)
    threads.emplace_back([&publisher] { publisher.close(); });
  for (Subscriber& subscriber : subscribers_)
    threads.emplace_back([&subscriber] { subscriber.close(); });
  for (std::thread& thread : threads)
    thread.join();
}

void DenseSession::train() {
  ++version_;
  for (DenseShards& shards : trained_)
    shards.change_to(version_);
}

Outcome DenseSession::update() {
  std::vector<Ticket> tickets;
  for (Publisher& publisher : publishers_)
    tickets.push_back(publisher.publish(version_));
  std::vector<Outcome> outcomes;
  for (Ticket& ticket : tickets)
    outcomes.push_back(ticket.wait());
  if (!outcomes[0].committed)
    throw std::runtime_error(outcomes[0].error_message);
  return std::move(outcomes[0]);
}

std::uint64_t DenseSession::differences() const {
  std::uint64_t wrong = 0;
  for (const DenseShards& shards : served_)
    wrong += shards.differences(version_);
  for (std::size_t member = 0; member < trained_.size(); ++member)
    wrong += trained_[member].bits() == served_[member].bits() ? 0 : 1;
  return wrong;
}

} // namespace deltawire::test
