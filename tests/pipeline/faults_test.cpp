// Workers that fail, stand still or leave: the replicas that are left are served, nobody serves a mix or a wrong
// version, and the next update heals. Field failures 29, 30 and 33, and busy = "fold".

#include "catch.hpp"
#include "random.hpp"
#include "session.hpp"
#include "unit/text_matchers.hpp"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <iostream>
#include <thread>

using namespace deltawire;
using namespace deltawire::test;

namespace {

/// What a worker's on_pause does: nothing, throw, or stand still until it is let go.
class Engine {
public:
  enum class Mood : std::uint8_t { well, throws, stands_still };

  void set(Mood mood) {
    const std::lock_guard lock(mutex_);
    mood_ = mood;
    changed_.notify_all();
  }

  void pause() {
    std::unique_lock lock(mutex_);
    ++pauses_;
    changed_.notify_all();
    if (mood_ == Mood::throws)
      throw std::runtime_error("the engine does not stop");
    changed_.wait(lock, [this] { return mood_ != Mood::stands_still; });
  }

  void until_paused(std::size_t times) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(20), [&] { return pauses_ >= times; }));
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Mood mood_ = Mood::well;
  std::size_t pauses_ = 0;
};
using Mood = Engine::Mood;

struct Job {
  Scenario scenario;
  std::vector<std::unique_ptr<Engine>> engines;
  std::unique_ptr<Session> session;
  std::vector<Values> values;
  std::uint64_t step = 0;

  explicit Job(Scenario of, const std::vector<std::string>& overrides = {}) : scenario(std::move(of)) {
    session = std::make_unique<Session>(scenario, overrides);
    for (std::size_t w = 0; w < scenario.workers.size(); ++w) {
      engines.push_back(std::make_unique<Engine>());
      session->worker(w).on_pause([engine = engines.back().get()] { engine->pause(); });
    }
    values = scenario.tensors;
    for (const std::string& thrown : session->connect())
      REQUIRE(thrown == "");
  }
  ~Job() {
    for (const auto& engine : engines)
      engine->set(Mood::well);
    session.reset();
  }

  void publish() { session->publish(values, ++step); }
  Outcome wait() {
    const std::vector<Outcome> outcomes = session->wait();
    for (const Outcome& outcome : outcomes) {
      CHECK(outcome.committed == outcomes[0].committed); // every rank hears the same
      CHECK(outcome.error_message == outcomes[0].error_message);
      CHECK(outcome.version == step);
    }
    return outcomes[0];
  }
  Outcome update() {
    publish();
    return wait();
  }
  void seed() {
    const Outcome outcome = update();
    REQUIRE(outcome.error_message == "");
    REQUIRE(outcome.committed);
    REQUIRE(session->compare(values) == "");
  }
  void change(std::size_t at, std::uint64_t bits) { values[0].bits.at(at) = bits; }
};

void check_all_serve(const Job& job, const Outcome& outcome) {
  CHECK(outcome.committed);
  for (const WorkerOutcome& worker : outcome.workers) {
    CHECK(worker.state == "serving");
    CHECK(worker.version == outcome.version);
    CHECK(worker.digest_ok);
    CHECK(worker.error == "");
  }
  CHECK(job.session->compare(job.values) == "");
}

} // namespace

TEST_CASE("an update that one worker cannot take is the other's all the same, and the next one brings both") {
  Job job(two_ranks());
  job.seed();
  job.engines[1]->set(Mood::throws);
  const std::vector<Values> first = job.values;
  job.change(5, 0x5555);
  const Outcome failed = job.update();
  CHECK(failed.committed);
  CHECK(failed.workers[0].version == 2);
  CHECK(failed.workers[1].version == 1);
  CHECK(failed.workers[1].state == "lagging");
  CHECK_THAT(failed.workers[1].error, contains("worker 1") && contains("the engine does not stop"));
  CHECK(job.session->compare(job.values, 0) == "");
  CHECK(job.session->compare(first, 1) == "");
  CHECK(job.session->worker(1).version() == 1);

  job.engines[1]->set(Mood::well);
  job.change(6, 0x6666);
  check_all_serve(job, job.update());
  CHECK(job.session->committed(0).size() == 3);
  CHECK(job.session->committed(1).size() == 2);
}

TEST_CASE("weights that go back after an update that only one worker took go back there too") {
  Job job(two_ranks());
  job.seed();
  const std::uint64_t before = job.values[0].bits[3];
  job.engines[1]->set(Mood::throws);
  job.change(3, 0xBBBB);
  CHECK(job.update().workers[1].version == 1);
  job.engines[1]->set(Mood::well);
  job.change(3, before);
  check_all_serve(job, job.update());
}

TEST_CASE("an update that no worker can take fails, loses nothing, and the next one brings its changes") {
  Job job(two_ranks());
  job.seed();
  const std::vector<Values> first = job.values;
  for (const auto& engine : job.engines)
    engine->set(Mood::throws);
  for (const std::size_t at : {0u, 7u}) {
    job.change(at, 0x4000 + at);
    const Outcome failed = job.update();
    CHECK_FALSE(failed.committed);
    CHECK_THAT(failed.error_message, contains("the engine does not stop"));
    CHECK(failed.workers[0].version == 1);
    CHECK(job.session->compare(first) == "");
  }
  for (const auto& engine : job.engines)
    engine->set(Mood::well);
  check_all_serve(job, job.update());
}

TEST_CASE("a seed that fails leaves the worker dirty until the next update seeds it") {
  Job job(two_ranks());
  job.engines[1]->set(Mood::throws);
  const Outcome first = job.update();
  CHECK(first.committed);
  CHECK(first.workers[0].version == 1);
  CHECK(first.workers[1].state == "dirty");
  CHECK(first.workers[1].version == 0);
  CHECK(job.session->worker(1).version() == 0);
  job.engines[1]->set(Mood::well);
  job.change(2, 0x2222);
  check_all_serve(job, job.update());
  job.change(4, 0x4444);
  check_all_serve(job, job.update());
}

TEST_CASE("a worker that stands still is left out within the stall deadline, and comes back") {
  Job job(two_ranks(), {"update.stall=100ms", "update.engine=300ms"});
  job.seed();
  const std::vector<Values> first = job.values;
  job.engines[1]->set(Mood::stands_still);
  job.change(1, 0x1111);
  const auto begin = std::chrono::steady_clock::now();
  job.publish(); // captured: nobody waits for the worker
  const Outcome second = job.wait();
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(300));
  CHECK(second.committed);
  CHECK(second.workers[0].version == 2);
  CHECK(second.workers[1].version == 1);
  CHECK_THAT(second.workers[1].error, contains("worker 1 made no progress") && contains("update.engine"));
  CHECK(job.session->compare(job.values, 0) == "");
  CHECK(job.session->compare(first, 1) == "");

  // While it does not answer, updates do not wait for it.
  job.change(2, 0x2222);
  const Outcome third = job.update();
  CHECK(third.committed);
  CHECK(third.workers[0].version == 3);
  CHECK(third.workers[1].version == 1);

  job.engines[1]->set(Mood::well);
  Outcome later;
  for (int updates = 0; updates < 200; ++updates) {
    job.change(3, 0x3000u + static_cast<unsigned>(updates));
    later = job.update();
    if (later.workers[1].version == later.version)
      break;
    CHECK(later.workers[0].version == later.version);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  check_all_serve(job, later);
}

TEST_CASE(
  "a worker that stands still after its replica applied holds up neither the other replica nor the next update") {
  Scenario scenario = two_ranks(8, 4);
  scenario.topology.replace(scenario.topology.find("[[\"dp\", 4]]"), 11, "[[\"dp\", 2], [\"tp\", 2]]");
  Job job(scenario, {"update.stall=100ms", "update.engine=300ms"});
  job.seed();
  job.engines[3]->set(Mood::stands_still); // its companion, worker 2, waits with the new version applied
  const std::vector<Values> first = job.values;
  job.change(1, 0x1111);
  const Outcome second = job.update();
  CHECK(second.committed);
  for (const std::size_t w : {0u, 1u}) {
    CHECK(second.workers[w].version == 2);
    CHECK(job.session->compare(job.values, w) == "");
  }
  for (const std::size_t w : {2u, 3u}) { // whole or not at all a replica
    CHECK(second.workers[w].version == 1);
    CHECK_THAT(second.workers[w].error, contains("worker 3"));
  }
  CHECK(job.session->compare(first, 3) == "");
  job.engines[3]->set(Mood::well);
  Outcome later;
  for (int updates = 0; updates < 200; ++updates) {
    later = job.update();
    if (later.workers[3].version == later.version)
      break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  check_all_serve(job, later);
}

TEST_CASE("updates go on without a worker that left, and fail by name when none is left") {
  Job job(two_ranks(), {"update.stall=2s", "update.engine=2s"});
  job.seed();
  job.session->worker(1).close();
  job.change(2, 0x2222);
  const Outcome without = job.update();
  CHECK(without.committed);
  CHECK(without.workers[0].version == 2);
  CHECK(without.workers[1].state == "lost");
  CHECK_THAT(without.workers[1].error, contains("worker 1"));
  CHECK(job.session->compare(job.values, 0) == "");
  job.session->worker(0).close();
  for (int i = 0; i < 2; ++i) {
    const Outcome none = job.update();
    CHECK_FALSE(none.committed);
    CHECK_THAT(none.error_message, contains("worker 0"));
  }
}

TEST_CASE("a worker that comes back with nothing serves nothing until the next update has seeded it") {
  const bool closed = GENERATE(true, false); // false: its connections are still open, nobody is behind them
  Scenario scenario = two_ranks(8, 4);
  scenario.topology.replace(scenario.topology.find("[[\"dp\", 4]]"), 11, "[[\"dp\", 2], [\"tp\", 2]]");
  Job job(scenario, {"update.stall=5s"});
  job.seed();
  job.change(1, 0x1111);
  check_all_serve(job, job.update());
  CHECK(job.session->restart(3, closed) == "");
  CHECK(job.session->worker(3).version() == 0);
  job.change(2, 0x2222);
  const Outcome third = job.update(); // in time for its catch-up, or one update later
  CHECK(third.committed);
  CHECK(third.workers[0].version == 3);
  CHECK(job.session->compare(job.values, 0) == "");
  job.change(3, 0x3333);
  check_all_serve(job, job.update());
  job.change(0, 0x4444);
  check_all_serve(job, job.update());
  // Again, both of a replica, while updates go on.
  CHECK(job.session->restart(2, closed) == "");
  CHECK(job.session->restart(3, closed) == "");
  job.change(7, 0x7777);
  CHECK(job.update().workers[1].version == 6);
  check_all_serve(job, job.update());
}

TEST_CASE("a session without workers waits for one to come back") {
  Job job(two_ranks(8, 1));
  job.seed();
  job.session->worker(0).close();
  job.change(1, 0x1111);
  CHECK_FALSE(job.update().committed);
  CHECK(job.session->restart(0) == "");
  job.change(2, 0x2222);
  (void)job.update();
  check_all_serve(job, job.update());
}

TEST_CASE("a quorum that is not reached undoes the update everywhere") {
  Job job(two_ranks(8, 3), {"update.quorum=2", "actors.applier.stage=1B"});
  job.seed(); // in place: no stage
  const std::vector<Values> first = job.values;
  job.change(2, 0x2222);
  const Outcome failed = job.update();
  CHECK_FALSE(failed.committed);
  CHECK_THAT(failed.error_message, contains("actors.applier.stage"));
  CHECK(job.session->compare(first) == "");
  job.change(2, first[0].bits[2]); // still logged: the fold writes it again, and does not fit either
  CHECK_FALSE(job.update().committed);
  CHECK(job.session->compare(first) == "");
}

TEST_CASE("logs that were cut short make a catch-up bring all values") {
  Job job(two_ranks(64), {"actors.snapshotter.log=1B"});
  job.seed();
  job.engines[1]->set(Mood::throws);
  for (const std::size_t at : {0u, 40u, 63u}) {
    job.change(at, 0x4000 + at);
    CHECK(job.update().workers[1].version == 1);
  }
  job.engines[1]->set(Mood::well);
  check_all_serve(job, job.update());
}

TEST_CASE("with busy = fold a publish does not wait for an update that stands still: the next one brings both") {
  Job job(two_ranks(), {"update.busy=fold", "update.stall=20s"});
  job.seed();
  for (const auto& engine : job.engines)
    engine->set(Mood::stands_still);
  job.change(1, 0x1111);
  job.publish(); // 2: all workers stand still within it, after its commit
  job.engines[0]->until_paused(2);
  const auto begin = std::chrono::steady_clock::now();
  job.change(2, 0x2222);
  job.publish(); // 3: captured while 2 is under way
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  for (const auto& engine : job.engines)
    engine->set(Mood::well);
  job.step = 2;
  CHECK(job.wait().committed);
  job.step = 3;
  check_all_serve(job, job.wait());
}

TEST_CASE("with busy = fold an update that is not committed yet is given up for the next one") {
  // Credit for one element at a time: an update cannot be read out of the snapshot before workers take it.
  Job job(two_ranks(512),
          {"update.busy=fold", "actors.differ.count=1", "actors.differ.chunk=2B", "actors.differ.inflight=64B",
           "actors.gather_queue.max_round=64B", "actors.flush_bucket.cap=128B", "actors.snapshotter.log=1MiB"});
  job.seed();
  std::uint64_t superseded = 0;
  std::vector<std::vector<Values>> published{job.values};
  constexpr int updates = 60;
  for (int u = 0; u < updates; ++u) {
    for (std::size_t at = static_cast<std::size_t>(u) % 3; at < 512; at += 3)
      job.change(at, static_cast<std::uint64_t>(u) * 512 + at);
    job.publish();
  }
  bool last_given_up = false;
  for (int u = 0; u < updates; ++u) {
    job.step = static_cast<std::uint64_t>(u) + 2;
    const Outcome outcome = job.wait();
    if (!outcome.committed) {
      CHECK(outcome.error == Code::superseded);
      CHECK_FALSE(last_given_up); // never two in a row
      ++superseded;
    }
    last_given_up = !outcome.committed;
  }
  INFO(superseded << " of " << updates << " were folded into the next one");
  CHECK(superseded > 0);
  if (last_given_up) {
    job.step = updates + 1;
    check_all_serve(job, job.update());
  } else {
    CHECK(job.session->compare(job.values) == "");
  }
}

TEST_CASE("random faults: whoever is well serves the newest version, everybody else a whole older one") {
  constexpr int cases = 40;
  std::cout << "random faults: seed " << seed() << ", " << cases << " cases\n";
  std::uint64_t failures = 0, heals = 0, none = 0;
  for (int number = 0; number < cases; ++number) {
    auto random = generator(9000 + static_cast<std::uint64_t>(number));
    const auto below = [&](std::uint64_t end) { return random() % end; };
    INFO("case " << number << " of seed " << seed());
    const std::size_t elements = 1 + below(3000), replicas = 1 + below(3);
    std::vector<std::string> overrides{fmt::format("actors.differ.count={}", 1 + below(3))};
    if (below(2) == 0)
      overrides.insert(overrides.end(), {"actors.differ.chunk=600B", "actors.differ.inflight=700B",
                                         "actors.gather_queue.max_round=300B", "actors.flush_bucket.cap=300B"});
    if (below(3) == 0)
      overrides.push_back("actors.snapshotter.log=200B");
    Job job(two_ranks(elements, replicas), overrides);
    std::vector<std::vector<Values>> versions{{}};
    for (int u = 0; u < 8; ++u) {
      for (std::uint64_t& bits : job.values[0].bits)
        if (below(20) == 0)
          bits = below(65536);
      versions.push_back(job.values);
      std::vector<Mood> moods;
      for (const auto& engine : job.engines) {
        moods.push_back(below(4) == 0 ? Mood::throws : Mood::well);
        engine->set(moods.back());
      }
      const Outcome outcome = job.update();
      CHECK(outcome.committed == (std::count(moods.begin(), moods.end(), Mood::well) > 0));
      none += outcome.committed ? 0 : 1;
      for (std::size_t w = 0; w < replicas; ++w) {
        const Version version = outcome.workers[w].version;
        if (moods[w] == Mood::well) {
          REQUIRE(version == outcome.version);
          heals += outcome.base + 1 < outcome.version ? 1 : 0;
        } else {
          REQUIRE(version < outcome.version);
          ++failures;
        }
        REQUIRE(job.session->worker(w).version() == version);
        if (version != 0)
          REQUIRE(job.session->compare(versions[version], w) == "");
      }
    }
  }
  std::cout << failures << " failures, " << none << " updates that nobody took\n";
  CHECK(failures > 50);
  CHECK(none > 5);
}
