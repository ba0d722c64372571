// Updates in parts and patches: every rank sends what it likes in the order it likes, leaves out what it likes, and may
// leave at any point; workers hold whole versions all the same, those of a plain full copy that is kept beside. Field
// failure 32.

#include "calls.hpp"
#include "catch.hpp"
#include "random.hpp"
#include "session.hpp"
#include "unit/text_matchers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <set>
#include <thread>

using namespace deltawire;
using namespace deltawire::test;

namespace {

std::span<const std::byte> bytes_of(const std::vector<std::uint16_t>& values) {
  return std::as_bytes(std::span(values));
}

void check_committed(const Outcome& outcome, Version version) {
  CHECK(outcome.error_message == "");
  CHECK(outcome.committed);
  CHECK(outcome.version == version);
  for (const WorkerOutcome& worker : outcome.workers) {
    CHECK(worker.state == "serving");
    CHECK(worker.version == version);
    CHECK(worker.digest_ok);
  }
}

/// Parameters "p.0", "p.1", ... of one dim, cut over the ranks; each worker, a replica, holds all of them.
Scenario cut_parameters(const std::vector<std::size_t>& lengths, std::size_t ranks, std::size_t replicas) {
  Scenario scenario;
  scenario.topology =
    fmt::format("[trainer]\nmesh = [[\"fsdp\", {}]]\n[[trainer.placement]]\nparameter = \"*\"\nshard = [\"fsdp:0\"]\n"
                "[worker]\nmesh = [[\"dp\", {}]]\n",
                ranks, replicas);
  scenario.ranks.resize(ranks);
  scenario.workers.resize(replicas);
  for (std::uint32_t p = 0; p < lengths.size(); ++p) {
    const std::string name = fmt::format("p.{}", p);
    const auto length = static_cast<std::int64_t>(lengths[p]);
    Values values{name, DType::bf16, std::vector<std::uint64_t>(lengths[p])};
    scenario.tensors.push_back(values);
    const auto held = [&](std::size_t begin, std::size_t end) {
      Held one{name, DType::bf16, {length}, {static_cast<std::int64_t>(end - begin)}, {}, 0, {}};
      for (std::size_t i = begin; i < end; ++i)
        one.elements.push_back({p, i});
      return one;
    };
    const std::size_t piece = (lengths[p] + ranks - 1) / ranks;
    for (std::size_t r = 0; r < ranks; ++r)
      scenario.ranks[r].push_back(held(std::min(r * piece, lengths[p]), std::min((r + 1) * piece, lengths[p])));
    for (auto& worker : scenario.workers)
      worker.push_back(held(0, lengths[p]));
  }
  return scenario;
}

/// A session whose ranks update in parts at random, with the full copy that it must amount to.
class RandomJob {
public:
  RandomJob(std::mt19937_64& random, const std::vector<std::string>& caps)
    : random_(random), lengths_(1 + below(5)), ranks_(1 + below(3)) {
    for (std::size_t& length : lengths_)
      length = 1 + below(below(3) == 0 ? 3000 : 40);
    scenario_ = cut_parameters(lengths_, ranks_, 1 + below(2));
    std::vector<std::string> overrides = caps;
    overrides.push_back(fmt::format("actors.differ.count={}", 1 + below(2)));
    if (below(3) == 0)
      overrides.push_back("actors.snapshotter.log=100B");
    session_ = std::make_unique<Session>(scenario_, overrides);
    memory_ = captured_ = committed_ = scenario_.tensors;
    must_send_.assign(ranks_, all());
    connect(*session_);
  }

  /// One update on all ranks. Waits for its end, and for those before it, or not.
  void update(bool may_abort, bool waits) {
    train();
    const std::uint64_t step = ++version_ * 10;
    std::vector<Rank> ranks(ranks_);
    std::set<std::size_t> aborting;
    for (std::size_t r = 0; r < ranks_; ++r) {
      plan(r, ranks[r]);
      if (may_abort && below(6) == 0 && !ranks[r].whole) {
        aborting.insert(r);
        ranks[r].calls.resize(below(ranks[r].calls.size() + 1));
      }
    }
    // Calls of different ranks in any order.
    std::vector<std::size_t> order;
    for (std::size_t r = 0; r < ranks_; ++r)
      order.insert(order.end(), ranks[r].calls.size() + 2, r);
    std::shuffle(order.begin(), order.end(), random_);
    for (const std::size_t r : order)
      call(r, ranks[r], step, aborting.contains(r));
    for (std::size_t r = 0; r < ranks_; ++r) {
      if (!ranks[r].ticket)
        continue;
      ranks[r].ticket->captured();
      for (std::size_t p = 0; p < lengths_.size(); ++p)
        session_->memory(r, p).scribble();
    }
    aborts_ += aborting.empty() ? 0 : 1;
    if (aborting.empty()) {
      committed_ = captured_;
      any_committed_ = true;
    }
    waiting_.push_back({version_, {}, aborting});
    for (Rank& rank : ranks)
      if (rank.ticket)
        waiting_.back().tickets.push_back(*rank.ticket);
    if (waits)
      wait();
  }

  void wait() {
    for (Waiting& waiting : waiting_)
      for (Ticket& ticket : waiting.tickets) {
        const Outcome outcome = ticket.wait();
        if (waiting.aborting.empty()) {
          check_committed(outcome, waiting.version);
          continue;
        }
        CHECK_FALSE(outcome.committed);
        CHECK(outcome.version == waiting.version);
        CHECK(outcome.error == Code::superseded);
        const bool named = std::any_of(waiting.aborting.begin(), waiting.aborting.end(), [&](std::size_t rank) {
          return outcome.error_message.starts_with(fmt::format("rank {} aborted the update", rank));
        });
        CHECK(named);
        INFO(outcome.error_message);
      }
    // Where every rank has aborted the last one, nobody tells when it is over; what was committed stays.
    waiting_.clear();
    if (any_committed_) // a first update that was left may have been written in part: nobody is served from that
      CHECK(session_->compare(committed_) == "");
  }

  [[nodiscard]] std::uint64_t aborts() const { return aborts_; }
  [[nodiscard]] std::uint64_t patched() const { return patched_; }
  [[nodiscard]] std::uint64_t left_out() const { return left_out_; }

private:
  struct Call {
    std::vector<std::string> send;
    std::string slot;
    std::vector<std::uint64_t> indices;
    std::vector<std::uint16_t> values;
  };
  struct Rank {
    bool whole = false; ///< publish()
    std::set<std::size_t> sends;
    std::vector<Call> calls;
    std::size_t next = 0; ///< 0: begin(), then the calls, then finish()
    std::optional<Update> update;
    std::optional<Ticket> ticket;
  };
  struct Waiting {
    Version version = 0;
    std::vector<Ticket> tickets;
    std::set<std::size_t> aborting;
  };

  std::size_t below(std::size_t end) { return random_() % end; }

  [[nodiscard]] std::set<std::size_t> all() const {
    std::set<std::size_t> parameters;
    for (std::size_t p = 0; p < lengths_.size(); ++p)
      parameters.insert(p);
    return parameters;
  }

  std::pair<std::size_t, std::size_t> part_of(std::size_t rank, std::size_t p) const {
    const std::size_t piece = (lengths_[p] + ranks_ - 1) / ranks_;
    return {std::min(rank * piece, lengths_[p]), std::min((rank + 1) * piece, lengths_[p])};
  }

  void train() {
    for (Values& tensor : memory_)
      for (std::uint64_t& bits : tensor.bits)
        if (below(5) == 0)
          bits = below(4) == 0 ? random_() & 0xFFFF : (bits + 1) & 0xFFFF;
  }

  void plan(std::size_t r, Rank& rank) {
    rank.whole = below(5) == 0;
    for (std::size_t p = 0; p < lengths_.size(); ++p)
      if (rank.whole || must_send_[r].contains(p) || below(2) == 0)
        rank.sends.insert(p);
    if (rank.whole)
      return;
    std::vector<std::size_t> order(rank.sends.begin(), rank.sends.end());
    std::shuffle(order.begin(), order.end(), random_);
    for (std::size_t at = 0; at < order.size();) {
      Call call;
      for (std::size_t count = 1 + below(order.size() - at); count > 0; --count)
        call.send.push_back(fmt::format("p.{}", order[at++]));
      rank.calls.push_back(std::move(call));
    }
    for (std::size_t p = 0; p < lengths_.size(); ++p) {
      left_out_ += rank.sends.contains(p) ? 0 : 1;
      const auto [begin, end] = part_of(r, p);
      if (rank.sends.contains(p) || begin == end || below(2) == 0)
        continue;
      Call call;
      call.slot = fmt::format("p.{}", p);
      for (std::size_t i = begin; i < end; ++i)
        if (below(3) == 0) {
          call.indices.push_back(i);
          call.values.push_back(static_cast<std::uint16_t>(random_()));
        }
      rank.calls.push_back(std::move(call));
    }
    std::shuffle(rank.calls.begin(), rank.calls.end(), random_);
  }

  void call(std::size_t r, Rank& rank, std::uint64_t step, bool aborts) {
    Publisher& publisher = session_->rank(r);
    if (rank.next == 0) {
      for (std::size_t p = 0; p < lengths_.size(); ++p) {
        if (rank.sends.contains(p))
          session_->memory(r, p).store(memory_);
        else
          session_->memory(r, p).scribble(); // not to be read
      }
      if (rank.whole)
        rank.ticket = publisher.publish(step);
      else
        rank.update = publisher.begin(step);
      if (rank.whole)
        for (const std::size_t p : rank.sends)
          take(r, p);
    } else if (rank.next <= rank.calls.size()) {
      const Call& next = rank.calls[rank.next - 1];
      if (next.slot.empty())
        rank.update->send(next.send);
      else
        rank.update->patch({next.slot, next.indices, DType::bf16, bytes_of(next.values)});
    } else if (rank.update && aborts) {
      rank.update.reset();
      for (std::size_t p = 0; p < lengths_.size(); ++p)
        session_->memory(r, p).scribble();
      // Of what it sent, some was captured and some not, so that only the next capture tells what the bits are.
      must_send_[r].insert(rank.sends.begin(), rank.sends.end());
    } else if (rank.update) {
      rank.ticket = rank.update->finish();
      for (const std::size_t p : rank.sends)
        take(r, p);
      for (const Call& one : rank.calls)
        for (std::size_t i = 0; i < one.indices.size(); ++i) {
          captured_[std::stoul(one.slot.substr(2))].bits[one.indices[i]] = one.values[i];
          ++patched_;
        }
      must_send_[r].clear();
    }
    if (rank.whole)
      must_send_[r].clear();
    ++rank.next;
  }

  void take(std::size_t r, std::size_t p) {
    const auto [begin, end] = part_of(r, p);
    std::copy(memory_[p].bits.begin() + static_cast<std::ptrdiff_t>(begin),
              memory_[p].bits.begin() + static_cast<std::ptrdiff_t>(end),
              captured_[p].bits.begin() + static_cast<std::ptrdiff_t>(begin));
  }

  std::mt19937_64& random_;
  std::vector<std::size_t> lengths_;
  std::size_t ranks_;
  Scenario scenario_;
  std::unique_ptr<Session> session_;
  std::vector<Values> memory_;                   ///< the trainer's, of now
  std::vector<Values> captured_;                 ///< what a version of now would hold
  std::vector<Values> committed_;                ///< what workers hold
  std::vector<std::set<std::size_t>> must_send_; ///< by rank
  std::deque<Waiting> waiting_;
  Version version_ = 0;
  bool any_committed_ = false;
  std::uint64_t aborts_ = 0, patched_ = 0, left_out_ = 0;
};

const std::vector<std::string> small_caps{"actors.differ.inflight=2KiB", "actors.differ.chunk=512B",
                                          "actors.gather_queue.max_round=2KiB", "actors.flush_bucket.cap=2KiB"};

/// Four experts of 4 x 6 in a stack, two on each of two ranks, and a replicated norm; workers EP2 x TP2 hold two rows
/// of two experts each.
Scenario experts() {
  Scenario scenario;
  scenario.topology = R"(
[trainer]
mesh = [["ep", 2]]
[[trainer.placement]]
parameter = "experts"
shard = ["ep:0"]
[[trainer.map]]
parameter = "experts"
slot = "experts.{e}.w"
slice = "[e, :, :]"
[worker]
mesh = [["ep", 2], ["tp", 2]]
[[worker.placement]]
parameter = "stack"
shard = ["ep:0", "tp:1"]
[[worker.map]]
parameter = "stack"
slot = "experts.{e}.w"
slice = "[e, :, :]"
)";
  scenario.tensors = {{"experts", DType::bf16, {}}, {"norm", DType::bf16, {}}};
  for (std::uint64_t i = 0; i < 96; ++i)
    scenario.tensors[0].bits.push_back(i);
  scenario.tensors[1].bits = {1, 2, 3};
  const auto norm = [](std::vector<std::int64_t> full) {
    return Held{"norm", DType::bf16, std::move(full), {3}, {}, 0, {{1, 0}, {1, 1}, {1, 2}}};
  };
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    Held held{"experts", DType::bf16, {4, 4, 6}, {2, 4, 6}, {}, 0, {}};
    for (std::uint64_t i = 0; i < 48; ++i)
      held.elements.push_back({0, 48 * rank + i});
    scenario.ranks.push_back({held, norm({3})});
  }
  for (std::uint64_t ep = 0; ep < 2; ++ep)
    for (std::uint64_t tp = 0; tp < 2; ++tp) {
      Held held{"stack", DType::bf16, {}, {2, 2, 6}, {}, 0, {}};
      for (std::uint64_t expert = 2 * ep; expert < 2 * ep + 2; ++expert)
        for (std::uint64_t i = 0; i < 12; ++i)
          held.elements.push_back({0, 24 * expert + 12 * tp + i});
      scenario.workers.push_back({held, norm({})});
    }
  return scenario;
}

} // namespace

TEST_CASE("random parts, patches and aborts: workers hold whole versions, those of a plain full copy") {
  const bool capped = GENERATE(false, true);
  constexpr int cases = 12;
  std::uint64_t aborts = 0, patched = 0, left_out = 0;
  for (int number = 0; number < cases; ++number) {
    auto random = generator((capped ? 9600 : 9500) + static_cast<std::uint64_t>(number));
    INFO("case " << number << " of seed " << seed() << (capped ? ", small caps" : ""));
    RandomJob job(random, capped ? small_caps : std::vector<std::string>{});
    job.update(random() % 3 == 0, true);
    for (int u = 0; u < 8; ++u)
      job.update(true, random() % 2 == 0);
    job.update(false, true);
    aborts += job.aborts();
    patched += job.patched();
    left_out += job.left_out();
  }
  std::cout << fmt::format("updates in parts: seed {}, {} cases{}: {} updates aborted, {} elements patched, {} times a "
                           "rank left a parameter out\n",
                           seed(), cases, capped ? " with small caps" : "", aborts, patched, left_out);
  CHECK(aborts > 10);
  CHECK(patched > 500);
  CHECK(left_out > 50);
}

TEST_CASE("two patched experts, two chunks in one life cycle: each worker gets its own rows only") {
  const std::vector<std::string> caps =
    GENERATE(std::vector<std::string>{}, std::vector<std::string>{"actors.differ.chunk=48B"});
  const Scenario scenario = experts();
  Session session(scenario, caps);
  connect(session);
  std::vector<Values> values = scenario.tensors;
  session.publish(values, 1);
  check_committed(session.wait()[0], 1);

  // Expert 1, rows 0 and 3, on its owner, rank 0; expert 2, row 1, on rank 1; and the norm from memory.
  std::vector<std::uint64_t> first{23, 0, 1, 2, 3, 4, 5, 18, 19, 20, 21, 22}, second{6, 7, 8, 9, 10, 11};
  std::vector<std::uint16_t> first_values, second_values;
  for (const std::uint64_t index : first) {
    first_values.push_back(static_cast<std::uint16_t>(0x1000 + index));
    values[0].bits[24 + index] = 0x1000 + index;
  }
  for (const std::uint64_t index : second) {
    second_values.push_back(static_cast<std::uint16_t>(0x2000 + index));
    values[0].bits[48 + index] = 0x2000 + index;
  }
  values[1].bits[2] = 0x7FC0;
  for (std::size_t r = 0; r < 2; ++r)
    session.memory(r, 1).store(values);
  std::vector<Ticket> tickets;
  {
    Update zero = session.rank(0).begin(2);
    Update one = session.rank(1).begin(2);
    CHECK_THAT(error_of(Code::invalid_argument,
                        [&] {
                          zero.patch({"experts.2.w", second, DType::bf16, bytes_of(second_values)});
                        }),
               contains("belongs to rank 1: patch it there"));
    CHECK_THAT(error_of(Code::invalid_argument,
                        [&] {
                          one.patch({"experts.1.w", first, DType::bf16, bytes_of(first_values)});
                        }),
               contains("rank 1 does not own 12 of the 12 elements; the first of them, index 0, belongs to rank 0"));
    zero.patch({"experts.1.w", first, DType::bf16, bytes_of(first_values)});
    one.patch({"experts.2.w", second, DType::bf16, bytes_of(second_values)});
    std::fill(first_values.begin(), first_values.end(), std::uint16_t{0xDEAD}); // it was copied
    zero.send({"norm"});
    CHECK_THAT(error_of(Code::call_order, [&] { zero.send({"experts"}); }), contains("'experts' was patched"));
    tickets.push_back(one.finish());
    tickets.push_back(zero.finish());
  }
  for (Ticket& ticket : tickets) {
    const Outcome outcome = ticket.wait();
    check_committed(outcome, 2);
    CHECK(outcome.changed == 19);
  }
  CHECK(session.compare(values) == "");
  const auto changed = [&](std::size_t worker, const std::string& name) {
    std::uint64_t elements = 0;
    const auto committed = session.committed(worker);
    for (const Change& change : committed.back().changes)
      elements += change.name == name ? change.elements : 0;
    return elements;
  };
  CHECK(changed(0, "stack") == 6); // expert 1, row 0
  CHECK(changed(1, "stack") == 6); // expert 1, row 3
  CHECK(changed(2, "stack") == 6); // expert 2, row 1
  CHECK(changed(3, "stack") == 0);
  for (std::size_t worker = 0; worker < 4; ++worker)
    CHECK(changed(worker, "norm") == 1);

  // Later diffs stay right: expert 1 was changed in memory too, and is not sent again; expert 2 was not: it goes back.
  for (const std::uint64_t index : second)
    values[0].bits[48 + index] = 48 + index;
  session.publish(values, 3);
  const Outcome outcome = session.wait()[0];
  check_committed(outcome, 3);
  CHECK(outcome.changed == 6);
  CHECK(session.compare(values) == "");
}

TEST_CASE("calls of an update in parts out of order name the call and change nothing") {
  const Scenario scenario = cut_parameters({10, 6, 8}, 2, 1);
  Session session(scenario);
  Publisher& root = session.rank(0);
  CHECK_THAT(error_of(Code::call_order, [&] { (void)root.begin(1); }), contains("begin() before connect()"));
  connect(session);
  std::vector<Values> values = scenario.tensors;
  for (std::uint64_t i = 0; i < 10; ++i)
    values[0].bits[i] = 100 + i;
  for (std::size_t r = 0; r < 2; ++r)
    for (std::size_t p = 0; p < 3; ++p)
      session.memory(r, p).store(values);
  std::optional<Update> update = root.begin(1);
  CHECK(update->version() == 1);
  CHECK_THAT(error_of(Code::call_order, [&] { (void)root.begin(1); }),
             contains("begin() while the update to version 1 is open"));
  CHECK_THAT(error_of(Code::call_order, [&] { (void)root.publish(1); }),
             contains("publish() while the update to version 1 is open"));
  update->send({"p.0", "p.1"});
  CHECK_THAT(error_of(Code::call_order, [&] { update->send({"p.2", "p.1"}); }), contains("'p.1' was sent already"));
  CHECK_THAT(error_of(Code::invalid_argument, [&] { update->send({"p.2", "q.*"}); }), contains("send(\"q.*\")"));
  const std::vector<std::uint64_t> index{0};
  const std::vector<std::uint16_t> value{7};
  CHECK_THAT(error_of(Code::call_order,
                      [&] {
                        update->patch({"p.2", index, DType::bf16, bytes_of(value)});
                      }),
             contains("'p.2' has never been sent"));
  CHECK_THAT(error_of(Code::call_order, [&] { (void)update->finish(); }), contains("'p.2' was never sent"));
  CHECK_THAT(error_of(Code::call_order, [&] { root.rebind("p.1", session.memory(0, 1).data()); }),
             contains("rebind('p.1') after send()"));
  root.rebind("p.2", session.memory(0, 2).data());
  update->send({"*2"});
  Ticket first = update->finish();
  CHECK_THAT(error_of(Code::call_order, [&] { update->send({"p.0"}); }), contains("send() after the end"));
  CHECK_THAT(error_of(Code::call_order,
                      [&] {
                        update->patch({"p.0", index, DType::bf16, bytes_of(value)});
                      }),
             contains("patch() after the end"));
  CHECK_THAT(error_of(Code::call_order, [&] { (void)update->finish(); }), contains("finish() after the end"));
  update.reset(); // finished: nothing to abort
  Ticket second = session.rank(1).publish(1);
  check_committed(first.wait(), 1);
  check_committed(second.wait(), 1);
  CHECK(session.compare(values) == "");

  // Close ends what is open; afterwards every call says so.
  std::optional<Update> open = root.begin(2), other = session.rank(1).begin(2);
  open->send({"p.0"});
  session.close();
  CHECK_THAT(error_of(Code::call_order, [&] { open->send({"p.1"}); }), contains("its publisher closed"));
  CHECK_THAT(error_of(Code::call_order, [&] { (void)other->finish(); }), contains("its publisher closed"));
  CHECK(session.compare(values) == "");
}

TEST_CASE("an update that is left fails on all ranks by the name of who left, and the next one brings its changes") {
  const bool everything = GENERATE(false, true);
  const Scenario scenario = cut_parameters({10, 6}, 2, 2);
  Session session(scenario);
  connect(session);
  std::vector<Values> values = scenario.tensors;
  session.publish(values, 1);
  check_committed(session.wait()[0], 1);
  const std::vector<Values> first = values;
  values[0].bits[0] = 0x1111; // rank 0's
  values[0].bits[9] = 0x9999; // rank 1's
  for (std::size_t r = 0; r < 2; ++r)
    for (std::size_t p = 0; p < 2; ++p)
      session.memory(r, p).store(values);
  Ticket ticket = session.rank(0).publish(2);
  {
    Update left = session.rank(1).begin(2);
    left.send({"p.0"});
    if (everything) { // nothing is missing but the word: time for all of it to be gathered
      left.send({"p.1"});
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  const Outcome failed = ticket.wait();
  CHECK_FALSE(failed.committed);
  CHECK(failed.error == Code::superseded);
  CHECK_THAT(failed.error_message, contains("rank 1 aborted the update to version 2"));
  for (const WorkerOutcome& worker : failed.workers) {
    CHECK(worker.version == 1);
    CHECK(worker.state == "serving");
  }
  CHECK(session.compare(first) == "");

  // Nothing but p.1 is sent; what version 2 captured of p.0 on rank 0 comes too.
  std::vector<Ticket> tickets;
  for (std::size_t r = 0; r < 2; ++r) {
    Update update = session.rank(r).begin(3);
    update.send(r == 0 ? std::vector<std::string>{"p.1"} : std::vector<std::string>{"p.0", "p.1"});
    tickets.push_back(update.finish());
  }
  for (Ticket& each : tickets)
    check_committed(each.wait(), 3);
  CHECK(session.compare(values) == "");
}

TEST_CASE("a session that fails while an update is open holds nobody up") {
  const bool finishes = GENERATE(false, true);
  const Scenario scenario = cut_parameters({10, 6}, 2, 1);
  Session session(scenario);
  connect(session);
  session.publish(scenario.tensors, 1);
  check_committed(session.wait()[0], 1);
  Update update = session.rank(0).begin(2);
  update.send({"p.0"});
  session.rank(1).close(); // it will never join in
  if (finishes) {
    try {
      const Outcome outcome = update.finish().wait();
      CHECK_FALSE(outcome.committed);
      CHECK_THAT(outcome.error_message, contains("rank 1"));
    } catch (const Error& error) {
      CHECK_THAT(std::string(error.what()), contains("rank 1"));
    }
  }
}
