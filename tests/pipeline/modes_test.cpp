// update.verify and update.seed: workers whose memory somebody else writes to between updates, audits that find them,
// and workers that hold the trainer's values before they are sent any.

#include "catch.hpp"
#include "random.hpp"
#include "session.hpp"
#include "unit/text_matchers.hpp"

#include <fmt/format.h>

#include <functional>
#include <thread>

using namespace deltawire;
using namespace deltawire::test;

namespace {

/// Two ranks with half of `w` (and of `b`) each; replicas of `per_replica` workers with their part of the rows, padded.
struct Job {
  Scenario scenario;
  std::unique_ptr<Session> session;
  std::vector<Values> values;
  std::uint64_t step = 0;

  static constexpr std::size_t rows = 6, columns = 5, padded = 8;

  static Scenario two_tensors(std::size_t replicas) {
    Scenario scenario;
    scenario.topology = fmt::format(R"([trainer]
mesh = [["fsdp", 2]]
[[trainer.placement]]
parameter = "*"
shard = ["fsdp:0"]
[worker]
mesh = [["dp", {}]]
[[worker.map]]
parameter = "w"
slot = "w"
slice = "[0:{}, :]"
[[worker.parameter]]
name = "w"
shape = [{}, {}]
padding = true
)",
                                    replicas, rows, padded, columns);
    Values w{"w", DType::bf16, {}}, b{"b", DType::f32, {}};
    for (std::size_t i = 0; i < rows * columns; ++i)
      w.bits.push_back(0x3F80 + i);
    for (std::size_t i = 0; i < 4; ++i)
      b.bits.push_back(0x3F800000 + i);
    scenario.tensors = {w, b};
    const auto part = [](const char* name, DType dtype, std::vector<std::int64_t> shape, std::size_t tensor,
                         std::size_t first, std::size_t count, std::size_t padding) {
      Held held{name, dtype, std::move(shape), {}, {}, 0, {}};
      for (std::size_t i = 0; i < count; ++i)
        held.elements.push_back({static_cast<std::uint32_t>(tensor), first + i});
      for (std::size_t i = 0; i < padding; ++i)
        held.elements.push_back({Place::padding, 0});
      return held;
    };
    for (const std::size_t rank : {0u, 1u}) {
      const std::size_t half = rows / 2 * columns;
      Held w_half = part("w", DType::bf16, {rows, columns}, 0, rank * half, half, 0);
      w_half.local_shape = {rows / 2, columns};
      Held b_half = part("b", DType::f32, {4}, 1, rank * 2, 2, 0);
      b_half.local_shape = {2};
      scenario.ranks.push_back({w_half, b_half});
    }
    for (std::size_t w_index = 0; w_index < replicas; ++w_index) {
      Held whole = part("w", DType::bf16, {padded, columns}, 0, 0, rows * columns, (padded - rows) * columns);
      whole.local_shape = {padded, columns};
      scenario.workers.push_back({whole, part("b", DType::f32, {4}, 1, 0, 4, 0)});
    }
    return scenario;
  }

  explicit Job(const std::vector<std::string>& overrides, std::size_t replicas = 2)
    : scenario(two_tensors(replicas)), session(std::make_unique<Session>(scenario, overrides)),
      values(scenario.tensors) {}

  void connect() {
    for (const std::string& thrown : session->connect())
      REQUIRE(thrown == "");
  }
  Outcome update() {
    session->publish(values, ++step);
    const std::vector<Outcome> outcomes = session->wait();
    for (const Outcome& outcome : outcomes) {
      CHECK(outcome.committed == outcomes[0].committed);
      CHECK(outcome.version == step);
    }
    return outcomes[0];
  }
  Outcome change_and_update() {
    values[0].bits[step % 30] ^= 0x40;
    return update();
  }
  /// Both ranks call at the same time.
  std::vector<Outcome> audit() {
    std::vector<Outcome> outcomes(2);
    std::thread other([&] { outcomes[1] = session->rank(1).audit(); });
    outcomes[0] = session->rank(0).audit();
    other.join();
    return outcomes;
  }
  std::byte* memory(std::size_t worker, std::size_t held) { return session->worker_memory(worker, held).data(); }
  /// The worker binds memory that holds these values.
  void load(std::size_t worker, const std::vector<Values>& checkpoint) {
    for (const std::size_t held : {0u, 1u})
      session->worker_memory(worker, held).store(checkpoint);
  }
};

std::vector<bool> audited(const Outcome& outcome) {
  std::vector<bool> all;
  for (const WorkerOutcome& worker : outcome.workers)
    all.push_back(worker.audited);
  return all;
}
using All = std::vector<bool>;

void check_found(Job& job, const Outcome& outcome, const char* slot) {
  CHECK(outcome.workers[0].state == "serving");
  CHECK(outcome.workers[0].error == "");
  CHECK(outcome.workers[1].state == "dirty");
  CHECK(outcome.workers[1].version == 0);
  CHECK_THAT(outcome.workers[1].error, contains("worker 1") && contains(fmt::format("slot '{}'", slot)) &&
                                         contains("cell ") &&
                                         contains(fmt::format("audit of version {}", outcome.version)));
  CHECK(audited(outcome) == All{true, false});
  CHECK(job.session->worker(1).version() == 0);
  CHECK(job.session->worker(1).status().state == "dirty");
  CHECK(job.session->worker(0).version() == outcome.version);
  // The next update heals it, and finds nothing more.
  const Outcome healed = job.change_and_update();
  CHECK(healed.committed);
  CHECK(healed.workers[0].delivery == "delta");
  CHECK(healed.workers[1].delivery == "seed");
  CHECK(healed.workers[1].state == "serving");
  CHECK(healed.workers[1].error == "");
}

} // namespace

TEST_CASE("with audit:1 a stray write is found by the next update, named, and healed by the one after it") {
  Job job({"update.verify=audit:1"});
  job.connect();
  CHECK(audited(job.update()) == All{true, true});
  CHECK(audited(job.change_and_update()) == All{true, true});
  SECTION("an element that does not change") {
    job.memory(1, 1)[1] ^= std::byte{1};
    const Outcome outcome = job.change_and_update();
    CHECK(outcome.committed); // the version is what it is
    check_found(job, outcome, "b");
  }
  SECTION("a neighbour of the element that changes") {
    job.memory(1, 0)[2 * 29] ^= std::byte{0x80};
    check_found(job, job.change_and_update(), "w");
  }
  SECTION("an empty update reads everything too") {
    job.memory(1, 0)[0] ^= std::byte{4};
    check_found(job, job.update(), "w");
  }
  SECTION("padding is nobody's") {
    job.memory(1, 0)[2 * Job::rows * Job::columns] = std::byte{0x11};
    for (int i = 0; i < 2; ++i)
      CHECK(audited(job.change_and_update()) == All{true, true});
    job.memory(1, 0)[2 * Job::rows * Job::columns] = poison;
  }
  CHECK(job.session->compare(job.values) == "");
}

TEST_CASE("a stray write to an element that changes is found before the commit, audits or not, and healed by a seed") {
  Job job({fmt::format("update.verify={}", GENERATE("digest", "audit:1"))});
  job.connect();
  (void)job.update();
  const std::size_t changes = job.step % 30; // the next update's element
  job.memory(1, 0)[2 * changes] ^= std::byte{1};
  const Outcome outcome = job.change_and_update();
  CHECK(outcome.committed);
  CHECK(outcome.workers[0].state == "serving");
  CHECK(outcome.workers[1].state == "dirty");
  CHECK(outcome.workers[1].version == 0);
  CHECK_THAT(outcome.workers[1].error, contains("worker 1: parameter 'w', slot 'w', cell ") && contains("digest"));
  CHECK(job.session->worker(1).version() == 0);
  const Outcome healed = job.change_and_update();
  CHECK(healed.workers[1].delivery == "seed");
  CHECK(healed.workers[1].state == "serving");
  CHECK(job.session->compare(job.values) == "");
}

TEST_CASE("with audit:3 every third update reads everything, and a stray write is found there at the latest") {
  Job job({"update.verify=audit:3"});
  job.connect();
  CHECK(audited(job.update()) == All{false, false});
  CHECK(audited(job.change_and_update()) == All{false, false});
  CHECK(audited(job.change_and_update()) == All{true, true});
  job.memory(1, 1)[0] ^= std::byte{1};
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = job.change_and_update();
    CHECK(outcome.workers[1].state == "serving");
    CHECK(audited(outcome) == All{false, false});
  }
  check_found(job, job.change_and_update(), "b");
  CHECK(job.session->compare(job.values) == "");
}

TEST_CASE("an audit that the ranks call for finds what updates do not look at, and the next update heals") {
  Job job({});
  job.connect();
  REQUIRE_THROWS_AS(job.session->rank(0).audit(), Error); // nothing was published
  (void)job.update();
  (void)job.change_and_update();
  for (int i = 0; i < 2; ++i)
    for (const Outcome& outcome : job.audit()) {
      CHECK(outcome.committed);
      CHECK(outcome.error_message == "");
      CHECK(outcome.version == 2);
      CHECK(audited(outcome) == All{true, true});
    }
  job.memory(1, 0)[40] ^= std::byte{2}; // of an element that no update here changes
  const Outcome unnoticed = job.change_and_update();
  CHECK(unnoticed.workers[1].state == "serving");
  const std::vector<Outcome> outcomes = job.audit();
  for (const Outcome& outcome : outcomes) {
    CHECK_FALSE(outcome.committed);
    CHECK(outcome.error == Code::verification_failed);
    CHECK_THAT(outcome.error_message, contains("worker 1: parameter 'w', slot 'w'") && contains("cell "));
  }
  check_found(job, outcomes[0], "w");
  CHECK(job.session->compare(job.values) == "");
  CHECK(audited(job.audit()[1]) == All{true, true});
}

TEST_CASE("an audit in every update, in parts or folded, finds nothing where nothing is wrong") {
  Job job({"update.verify=audit:1", "update.busy=fold", "actors.differ.chunk=16", "actors.gather_queue.window=16"});
  job.connect();
  auto random = generator(311);
  CAPTURE(seed());
  for (int i = 0; i < 30; ++i) {
    for (auto n = random() % 5; n > 0; --n)
      job.values[0].bits[random() % 30] = random() & 0xFFFF;
    if (random() % 3 == 0)
      job.values[1].bits[random() % 4] = random() & 0xFFFFFFFF;
    job.session->publish(job.values, ++job.step);
  }
  for (int i = 0; i < 30; ++i)
    for (const Outcome& outcome : job.session->wait())
      for (const WorkerOutcome& worker : outcome.workers)
        CHECK(worker.error.find("digest") == std::string::npos);
  const Outcome last = job.update();
  CHECK(last.committed);
  CHECK(audited(last) == All{true, true});
  CHECK(job.session->compare(job.values) == "");
}

TEST_CASE("with verify off nothing is looked at: a stray write stays, updates go on, and an audit still finds it") {
  Job job({"update.verify=off"});
  job.connect();
  const Outcome seeded = job.update();
  CHECK(seeded.committed);
  CHECK_FALSE(seeded.workers[0].digest_ok); // nobody knows
  CHECK(job.session->compare(job.values) == "");
  const std::size_t changes = job.step % 30; // the next update's element
  job.memory(1, 0)[2 * changes] ^= std::byte{1};
  job.memory(1, 1)[0] ^= std::byte{1};
  for (int i = 0; i < 3; ++i) {
    const Outcome outcome = job.change_and_update();
    CHECK(outcome.committed);
    CHECK(outcome.workers[1].state == "serving");
    CHECK(outcome.workers[1].error == "");
  }
  CHECK(job.session->compare(job.values, 0) == "");
  CHECK_THAT(job.session->compare(job.values, 1), contains("'b' element 0"));
  const std::vector<Outcome> outcomes = job.audit();
  check_found(job, outcomes[0], "b");
  CHECK(job.session->compare(job.values) == "");
}

TEST_CASE("workers that start with the trainer's checkpoint are sent no values and serve it") {
  Job job({"update.seed=if-different"});
  for (const std::size_t w : {0u, 1u})
    job.load(w, job.values);
  job.connect();
  const Outcome first = job.update();
  CHECK(first.committed);
  CHECK(first.error_message == "");
  CHECK(first.step == 1);
  CHECK(first.elements == 34);
  CHECK(first.flushes == 0);
  CHECK(first.rounds == 0);
  for (const WorkerOutcome& worker : first.workers) {
    CHECK(worker.state == "serving");
    CHECK(worker.version == 1);
    CHECK(worker.matched);
    CHECK(worker.digest_ok);
    CHECK(worker.delivery == "");
    CHECK(worker.flushes == 0);
    CHECK(worker.bytes < 400); // headers and digests
  }
  CHECK(job.session->worker(1).version() == 1);
  CHECK(job.session->committed(1).size() == 1);
  CHECK(job.session->compare(job.values) == "");
  for (int i = 0; i < 2; ++i) {
    const Outcome next = job.change_and_update();
    CHECK(next.committed);
    CHECK(next.workers[0].delivery == "delta");
    CHECK_FALSE(next.workers[0].matched);
  }
  CHECK(job.session->compare(job.values) == "");
}

TEST_CASE("one flipped bit in any cell, or another checkpoint, is seeded; the other worker is not") {
  const auto first_update = [](const std::function<void(Job&)>& spoil) {
    Job job({"update.seed=if-different"});
    for (const std::size_t w : {0u, 1u})
      job.load(w, job.values);
    spoil(job);
    job.connect();
    const Outcome outcome = job.update();
    CHECK(outcome.committed);
    CHECK(outcome.workers[0].matched);
    CHECK(outcome.workers[0].flushes == 0);
    CHECK_FALSE(outcome.workers[1].matched);
    CHECK(outcome.workers[1].delivery == "seed");
    CHECK(outcome.workers[1].flushes > 0);
    CHECK(outcome.workers[1].state == "serving");
    CHECK(job.change_and_update().committed);
    CHECK(job.session->compare(job.values) == "");
  };
  first_update([](Job& job) { job.memory(1, 0)[1] ^= std::byte{0x80}; });
  first_update([](Job& job) { job.memory(1, 0)[2 * 29] ^= std::byte{1}; });
  first_update([](Job& job) { job.memory(1, 1)[15] ^= std::byte{0x10}; });
  first_update([](Job& job) {
    std::vector<Values> other = job.values;
    std::swap(other[0].bits[0], other[0].bits[1]); // sums alone would not tell
    job.load(1, other);
  });
}

TEST_CASE("a worker that restarts with the current weights serves them, and takes the next delta with the others") {
  Job job({"update.seed=if-different"});
  job.connect();
  CHECK(job.update().workers[0].delivery == "seed"); // memory was poison
  (void)job.change_and_update();
  const bool current = GENERATE(true, false);
  std::vector<Values> checkpoint = job.values;
  if (!current)
    checkpoint[1].bits[3] ^= 1;
  REQUIRE(job.session->restart(1, true, [&](std::vector<HeldMemory>& memories) {
    for (HeldMemory& memory : memories)
      memory.store(checkpoint);
  }) == "");
  const Outcome next = job.change_and_update();
  CHECK(next.committed);
  CHECK(next.workers[0].delivery == "delta");
  CHECK(next.workers[1].matched == current);
  if (current) {
    CHECK(next.workers[1].delivery == "delta");
    CHECK(next.workers[1].state == "serving");
    CHECK(next.workers[1].flushes == next.workers[0].flushes);
  } else {
    CHECK(next.workers[1].state != "serving"); // it joined after this update was planned
    const Outcome healed = job.change_and_update();
    CHECK(healed.workers[1].delivery == "seed");
    CHECK(healed.workers[1].state == "serving");
  }
  CHECK(job.session->compare(job.values) == "");
}
