#include "update_session.hpp"

#include "peers.hpp"
#include "replay/exit_status.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstring>

namespace deltawire::bench {
void bind_all(const ModelPlan& plan, std::uint32_t worker, std::byte* memory, Subscriber& subscriber) {
  for (const HeldParameter& parameter : plan.held_by(worker).parameters)
    subscriber.bind({parameter.name, DType::bf16, parameter.shape, memory + parameter.offset});
}

Result<std::unique_ptr<UpdateSession>> UpdateSession::open(const ModelPlan& plan, const std::byte* weights,
                                                           const std::string& topology,
                                                           const std::vector<std::string>& overrides) {
  std::vector<std::string> inproc = overrides;
  for (const char* text : {"actors.gather_queue.transport=\"inproc\"", "actors.sender.transport=\"inproc\""})
    inproc.emplace_back(text);
  // Where they meet; nobody opens it. Another session in this process meets elsewhere.
  static std::atomic<std::uint32_t> sessions{0};
  inproc.push_back(fmt::format("transport.master=\"127.0.0.1:{}\"", 1 + sessions++ % 65535));
  std::unique_ptr<UpdateSession> session(new UpdateSession(plan));
  if (auto connected = replay::catching([&] { return session->connect(weights, topology, inproc); }); !connected)
    return pass_on(std::move(connected));
  return session;
}

Result<void> UpdateSession::connect(const std::byte* weights, const std::string& topology,
                                    const std::vector<std::string>& overrides) {
  const ModelShape& shape = plan_.shape();
  for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
    publishers_.push_back(Publisher::open(topology, {.rank = rank, .world = shape.ranks, .overrides = overrides}));
    add_rows(plan_, publishers_.back(), [&](const Matrix& matrix) {
      return weights + matrix.offset + plan_.rows_of(matrix, rank).first * matrix.columns * 2;
    });
  }
  for (std::uint32_t worker = 0; worker < shape.workers; ++worker) {
    HugeArray& memory = memories_.emplace_back(plan_.held_by(worker).bytes);
    std::memset(memory.data(), 0, memory.size());
    subscribers_.push_back(Subscriber::open(topology, {.worker = worker, .overrides = overrides}));
    bind_all(plan_, worker, memory.data(), subscribers_.back());
  }
  return all_at_once(shape.ranks + shape.workers, [&](std::size_t peer) {
    if (peer < publishers_.size())
      publishers_[peer].connect();
    else
      subscribers_[peer - publishers_.size()].start();
  });
}

Result<TimedUpdate> UpdateSession::update() {
  TimedUpdate timed;
  auto ran = replay::catching([&]() -> Result<void> {
    ++step_;
    std::vector<Ticket> tickets;
    const auto begin = std::chrono::steady_clock::now();
    for (Publisher& publisher : publishers_)
      tickets.push_back(publisher.publish(step_));
    timed.outcome = tickets.front().wait();
    timed.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (Ticket& ticket : tickets)
      (void)ticket.wait();
    return {};
  });
  if (!ran)
    return pass_on(std::move(ran));
  const Outcome& outcome = timed.outcome;
  if (!outcome.committed)
    return fail(outcome.error_message.empty() ? Code::internal : outcome.error, "version {} was not committed: {}",
                outcome.version, outcome.error_message);
  for (const WorkerOutcome& worker : outcome.workers)
    if (worker.version != outcome.version || !worker.error.empty())
      return fail(Code::peer_failed, "version {} did not reach worker {}, which is {} at version {}: {}",
                  outcome.version, worker.index, worker.state, worker.version, worker.error);
  return timed;
}

Result<void> UpdateSession::close() {
  if (closed_)
    return {};
  closed_ = true;
  // Ranks part together, and the workers learn it from the root.
  auto closed = all_at_once(publishers_.size(), [&](std::size_t rank) { publishers_[rank].close(); });
  auto ended = all_at_once(subscribers_.size(), [&](std::size_t worker) { subscribers_[worker].close(); });
  return closed ? ended : closed;
}

UpdateSession::~UpdateSession() {
  (void)close();
}

} // namespace deltawire::bench
