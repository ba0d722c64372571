// Engines that commit in their own loop, beside one that has hooks: memory changes between a commit()'s call and its
// return and at no other time, and an engine that lets a version wait is left out by that name.

#include "calls.hpp"
#include "catch.hpp"
#include "session.hpp"
#include "unit/text_matchers.hpp"

#include <atomic>
#include <chrono>
#include <thread>

using namespace deltawire;
using namespace deltawire::test;

namespace {

/// Polls until a version waits.
Version polled(Subscriber& worker) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < end) {
    if (const auto version = worker.poll())
      return *version;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  FAIL("no version came to be committed");
  return 0;
}

/// The first version, which the only polled worker commits.
void seed_polled(Session& session, const Scenario& scenario, Subscriber& worker) {
  session.publish(scenario.tensors, 1);
  CHECK(polled(worker) == 1);
  CHECK(worker.commit(1).size() == 1);
  CHECK(session.wait()[0].committed);
}

/// Waits until the worker is in this state.
void until(Subscriber& worker, const char* state) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (worker.status().state != state && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(worker.status().state == state);
}

/// Updates with these values until the worker has the newest: the root may not have heard yet that it is well again.
bool updated(Session& session, std::vector<Values>& values, std::size_t worker) {
  for (std::uint64_t step = 100; step < 300; ++step) {
    values[0].bits[4] = static_cast<std::uint64_t>(step);
    session.publish(values, step);
    if (const Outcome outcome = session.wait()[0]; outcome.workers[worker].version == outcome.version)
      return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

/// A loop that commits whatever comes, on a thread of its own.
class EngineThread {
public:
  explicit EngineThread(Subscriber& worker) : worker_(worker), thread_([this] { run(); }) {}
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;
  ~EngineThread() { (void)stop(); }

  /// What the last commit() threw; empty: nothing.
  std::string stop() {
    stopped_ = true;
    if (thread_.joinable())
      thread_.join();
    return thrown_;
  }
  [[nodiscard]] std::vector<Session::Committed> committed() { return committed_; } // once stopped

private:
  void run() {
    while (!stopped_) {
      try {
        if (const auto version = worker_.poll()) {
          committed_.push_back({*version, worker_.commit(*version)});
          thrown_.clear();
        }
      } catch (const Error& error) {
        thrown_ = error.what();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  Subscriber& worker_;
  std::atomic<bool> stopped_{false};
  std::string thrown_;
  std::vector<Session::Committed> committed_;
  std::thread thread_;
};

/// One replica of two workers.
Scenario one_replica() {
  Scenario scenario = two_ranks();
  scenario.topology.replace(scenario.topology.find("[[\"dp\", 2]]"), 11, "[[\"dp\", 1], [\"tp\", 2]]");
  return scenario;
}

} // namespace

TEST_CASE("one replica polls and the other has hooks: both serve every version, with what changed") {
  const Scenario scenario = two_ranks(1000);
  Session session(scenario, {"actors.flush_bucket.cap=1KiB"}, {1});
  connect(session);
  EngineThread engine(session.worker(1));
  std::vector<Values> values = scenario.tensors;
  for (Version v = 1; v <= 5; ++v) {
    values[0].bits[10 * v] = 0x7000 + v;
    session.publish(values, v);
    for (const Outcome& outcome : session.wait()) {
      CHECK(outcome.error_message == "");
      CHECK(outcome.committed);
      for (const WorkerOutcome& worker : outcome.workers) {
        CHECK(worker.version == v);
        CHECK(worker.digest_ok);
        CHECK(worker.pause_s >= 0);
      }
    }
    CHECK(session.compare(values) == "");
  }
  CHECK(engine.stop() == "");
  const auto committed = engine.committed();
  REQUIRE(committed.size() == 5);
  for (Version v = 1; v <= 5; ++v) {
    CHECK(committed[v - 1].version == v);
    REQUIRE(committed[v - 1].changes.size() == 1);
    CHECK(committed[v - 1].changes[0].name == "w");
    CHECK(committed[v - 1].changes[0].elements == (v == 1 ? 1000u : 1u));
  }
  CHECK(session.committed(0).size() == 5);
  CHECK(session.worker(1).version() == 5);
}

TEST_CASE("memory is written between the call of commit and its return, a seed's too") {
  const Scenario scenario = two_ranks();
  Session session(scenario, {}, {0, 1});
  connect(session);
  Subscriber& first = session.worker(0);
  Subscriber& second = session.worker(1);
  CHECK_FALSE(first.poll());
  session.publish(scenario.tensors, 1);
  CHECK(polled(first) == 1);
  CHECK(polled(second) == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(session.untouched());
  std::size_t changed = 0;
  std::thread other([&] { changed = second.commit(1).size(); });
  CHECK(first.commit(1).at(0).elements == 8);
  other.join();
  CHECK(changed == 1);
  CHECK(session.wait()[0].committed);
  CHECK(session.compare(scenario.tensors) == "");

  std::vector<Values> values = scenario.tensors;
  values[0].bits[3] = 0x3333;
  session.publish(values, 2);
  CHECK(polled(first) == 2);
  CHECK(session.compare(scenario.tensors) == ""); // staged and verified, and not in memory
  CHECK(first.version() == 1);
  CHECK(first.commit(2).at(0).elements == 1); // its replica is whole: it waits for no other one
  CHECK(first.version() == 2);
  CHECK(session.compare(values, 0) == "");
  CHECK(session.compare(scenario.tensors, 1) == "");
  CHECK(polled(second) == 2);
  CHECK(second.commit(2).at(0).elements == 1);
  CHECK(session.wait()[0].committed);
  CHECK(session.compare(values) == "");
  session.publish(values, 3); // nothing changed: a version all the same
  CHECK(polled(first) == 3);
  CHECK(first.commit(3).empty());
  CHECK(polled(second) == 3);
  CHECK(second.commit(3).empty());
  CHECK(session.wait()[0].committed);
}

TEST_CASE("an engine that stops polling is left out by that name, and brought up when it polls again") {
  const Scenario scenario = two_ranks();
  Session session(scenario, {"update.stall=200ms", "update.engine=400ms"}, {1});
  connect(session);
  Subscriber& worker = session.worker(1);
  seed_polled(session, scenario, worker);

  std::vector<Values> values = scenario.tensors;
  const bool seen = GENERATE(false, true); // the engine polled in time, and came back too late
  values[0].bits[2] = 0x2222;
  session.publish(values, 2);
  if (seen)
    CHECK(polled(worker) == 2);
  const Outcome second = session.wait()[0];
  CHECK(second.committed);
  CHECK(second.workers[0].version == 2);
  CHECK(second.workers[1].version == 1);
  CHECK_THAT(second.workers[1].error, contains("worker 1 made no progress") && contains("update.engine") &&
                                        contains("not called poll() and commit()"));
  CHECK(session.compare(values, 0) == "");
  until(worker, "serving"); // nobody waits for its undo
  CHECK(session.compare(scenario.tensors, 1) == "");
  if (seen)
    CHECK_THAT(error_of(Code::peer_failed, [&] { (void)worker.commit(2); }), contains("version 2 was not committed") &&
                                                                               contains("update.engine") &&
                                                                               contains("memory holds version 1"));
  else
    CHECK_THAT(error_of(Code::call_order, [&] { (void)worker.commit(2); }), contains("before a poll()"));
  CHECK_FALSE(worker.poll());
  CHECK(worker.version() == 1);

  EngineThread engine(worker);
  CHECK(updated(session, values, 1));
  CHECK(engine.stop() == "");
  CHECK(session.compare(values) == "");
}

TEST_CASE("a commit whose replica fails throws why, and memory is what it was") {
  const Scenario scenario = one_replica();
  Session session(scenario, {"update.stall=200ms", "update.engine=400ms"}, {0, 1});
  connect(session);
  std::vector<Values> values = scenario.tensors;
  {
    EngineThread first(session.worker(0));
    EngineThread second(session.worker(1));
    session.publish(values, 1);
    CHECK(session.wait()[0].committed);
  }
  values[0].bits[1] = 0x1111;
  session.publish(values, 2);
  CHECK(polled(session.worker(0)) == 2);
  CHECK_THAT(error_of(Code::peer_failed, [&] { (void)session.worker(0).commit(2); }), // worker 1 lets it wait
             contains("version 2 was not committed") && contains("worker 1 made no progress") &&
               contains("memory holds version 1"));
  CHECK_FALSE(session.wait()[0].committed);
  CHECK(session.compare(scenario.tensors) == "");
  for (const std::size_t w : {0u, 1u}) {
    until(session.worker(w), "serving");
    CHECK(session.worker(w).version() == 1);
  }
  EngineThread first(session.worker(0));
  EngineThread second(session.worker(1));
  CHECK(updated(session, values, 1));
  CHECK(session.worker(0).version() == session.worker(1).version());
  CHECK(session.compare(values) == "");
}

TEST_CASE("a seed that its engine lets wait fails, and the next one is offered again") {
  const Scenario scenario = two_ranks();
  Session session(scenario, {"update.stall=200ms", "update.engine=400ms"}, {1});
  connect(session);
  session.publish(scenario.tensors, 1);
  const Outcome first = session.wait()[0];
  CHECK(first.workers[0].version == 1);
  CHECK(first.workers[1].version == 0);
  CHECK(session.worker(1).version() == 0);
  until(session.worker(1), "dirty");
  CHECK_FALSE(session.worker(1).poll());
  EngineThread engine(session.worker(1));
  std::vector<Values> values = scenario.tensors;
  CHECK(updated(session, values, 1));
  CHECK(engine.stop() == "");
  CHECK(session.compare(values) == "");
}

TEST_CASE("a subscriber closes while a version waits for its commit, and holds up nobody") {
  const Scenario scenario = two_ranks();
  Session session(scenario, {"update.stall=2s", "update.engine=10s"}, {1});
  connect(session);
  Subscriber& worker = session.worker(1);
  seed_polled(session, scenario, worker);
  std::vector<Values> values = scenario.tensors;
  values[0].bits[2] = 0x2222;
  session.publish(values, 2);
  CHECK(polled(worker) == 2);
  worker.close();
  const Outcome second = session.wait()[0];
  CHECK(second.committed);
  CHECK(second.workers[0].version == 2);
  CHECK(second.workers[1].state == "lost");
  CHECK(session.compare(scenario.tensors, 1) == "");
  CHECK_THAT(error_of(Code::call_order, [&] { (void)worker.commit(2); }), contains("after close()"));
  CHECK_THAT(error_of(Code::call_order, [&] { (void)worker.poll(); }), contains("after close()"));
}

TEST_CASE("a session that ends leaves nothing to poll, and one that fails says so") {
  const Scenario scenario = two_ranks();
  Session session(scenario, {}, {0, 1});
  connect(session);
  {
    EngineThread first(session.worker(0));
    EngineThread second(session.worker(1));
    session.publish(scenario.tensors, 1);
    CHECK(session.wait()[0].committed);
  }
  std::thread closing([&] {
    session.rank(0).close();
    session.rank(1).close();
  });
  session.worker(0).wait();
  closing.join();
  CHECK_FALSE(session.worker(0).poll());
  CHECK_FALSE(session.worker(0).status().connected);
  CHECK(session.worker(0).version() == 1);
}
