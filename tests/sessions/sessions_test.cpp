// A trainer that is killed at each phase of a session, and started again: the workers are the same processes all along,
// serve what they had, pause what is in doubt, settle it with the next trainer, and end with its bits.

#include "catch.hpp"
#include "job.hpp"
#include "scrape.hpp"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <thread>

using namespace deltawire::test;
using Catch::Matchers::Contains;

namespace {

void check_memory(const Job& job, int worker, unsigned run, unsigned version) {
  CHECK(job.memory(worker) == fmt::format("{} {}", run, version));
}

void check_both_hold(const Job& job, unsigned version) {
  check_memory(job, 0, job.run(), version);
  check_memory(job, 1, job.run(), version);
}

/// The trainer's seed and a delta: everybody serves the newest bits, the same processes as ever.
void until_both_heal(Job& job) {
  job.update();
  job.update();
  job.until_all_stand("2 serving yes");
  check_both_hold(job, 2);
  CHECK(is_alive(job.worker(0).pid()));
  CHECK(is_alive(job.worker(1).pid()));
}

void start_and_update(Job& job) {
  job.start_trainer();
  until_both_heal(job);
}

} // namespace

TEST_CASE("workers outlive a trainer that is killed at any phase, and end with the next one's bits") {
  Job job;
  start_and_update(job);

  { // between two updates: they go on serving
    job.kill_trainer();
    job.until_all_stand("2 serving no");
    CHECK_THAT(job.status(0), Contains("rank 0"));
    check_both_hold(job, 2);
  }
  { // in the handshake: the root waits for its other rank
    job.start_root();
    std::this_thread::sleep_for(std::chrono::milliseconds(300)); // workers call; whether they got through is no matter
    job.kill_trainer();
    job.until_all_stand("2 serving no");
    job.start_trainer();
    job.until_all_stand("2 serving yes"); // of the session before last, until the seed
    check_memory(job, 0, job.run() - 2, 2);
    until_both_heal(job);
  }
  { // in the seed
    job.kill_trainer();
    job.start_trainer();
    job.put("hold-pause-1");
    job.publish();
    job.until("worker 1 pauses", [&] { return job.has("paused-1"); });
    job.until_stands(0, "0 seeding yes");
    job.kill_trainer();
    job.until_stands(0, "0 dirty no");
    job.remove("hold-pause-1");
    job.until_stands(1, "0 dirty no");
    start_and_update(job);
  }
  { // staged by one, not by the other: nobody was told to commit
    job.stop(job.worker(1));
    job.publish();
    job.until_stands(0, "2 staging yes");
    job.kill_trainer();
    ::kill(job.worker(1).pid(), SIGCONT);
    job.until_all_stand("2 serving no");
    check_both_hold(job, 2);
    start_and_update(job);
  }
  { // mid-commit: one has applied, the other's engine has not stopped
    job.put("hold-pause-1");
    job.publish();
    job.until_stands(0, "2 in_doubt yes");
    job.until("worker 1 pauses", [&] { return job.has("paused-1"); });
    job.kill_trainer();
    job.until_stands(0, "0 in_doubt no"); // neither of the two versions is served
    job.put("throw-1");
    job.remove("hold-pause-1");
    job.until_stands(1, "2 serving no");
    job.remove("throw-1");
    job.start_trainer();
    job.until_all_stand("2 serving yes"); // undone, before any update
    check_memory(job, 0, job.run() - 1, 2);
    check_memory(job, 1, job.run() - 1, 2);
    until_both_heal(job);
  }
  { // applied by both, and the root could not say so any more
    const std::string before = job.commits(0);
    job.put("hold-pause-1");
    job.publish();
    job.until_stands(0, "2 in_doubt yes");
    job.until("worker 1 pauses", [&] { return job.has("paused-1"); });
    job.stop(job.rank(0));
    job.remove("hold-pause-1");
    job.until("worker 1 applies", [&] { return job.status(1).find("in_doubt") != std::string::npos; });
    job.kill_trainer();
    job.until_all_stand("0 in_doubt no");
    job.start_trainer();
    job.until_all_stand("3 serving yes"); // released, before any update
    check_memory(job, 0, job.run() - 1, 3);
    check_memory(job, 1, job.run() - 1, 3);
    CHECK(job.commits(0) == before + "3\n"); // and the engine was told
    until_both_heal(job);
  }
  { // after the commit, while one engine still takes it in
    job.put("hold-commit-1");
    job.publish();
    job.until("worker 1 commits", [&] { return job.has("committing-1"); });
    job.until_stands(0, "3 serving yes");
    job.kill_trainer();
    job.until_stands(0, "3 serving no");
    job.remove("hold-commit-1");
    job.until_all_stand("3 serving no");
    check_both_hold(job, 3);
    start_and_update(job);
  }
  job.close();
  job.check_engines();
}

TEST_CASE("a trainer rank that is killed is named by root and workers, and the next job heals") {
  Job job;
  start_and_update(job);
  ::kill(job.rank(1).pid(), SIGKILL);
  job.until_all_stand("2 serving no");
  for (const int worker : {0, 1})
    CHECK_THAT(job.status(worker), Contains("rank 1"));
  check_both_hold(job, 2);
  job.publish();
  const Ended root = job.rank(0).wait(30);
  CHECK(root.status == 3);
  CHECK_THAT(root.err, Contains("rank 1"));
  start_and_update(job);
  job.close();
}

TEST_CASE("a worker that waits in vain says what it waited for") {
  Job job({.overrides = {"update.reconnect=500ms"}});
  start_and_update(job);
  job.kill_trainer();
  for (const int worker : {0, 1}) {
    const Ended ended = job.worker(worker).wait(30);
    CHECK(ended.status == 3);
    CHECK_THAT(ended.err, Contains("rank 0") && Contains("update.reconnect"));
  }
}

TEST_CASE("restarts are counted: a worker that comes back by the root, a trainer that comes back by the workers") {
  const int port = likely_free_port(4);
  JobOptions options;
  options.replicas = 2;
  options.workers_per_replica = 1;
  options.overrides.push_back(fmt::format("telemetry.prometheus=\"127.0.0.1:{}\"", port));
  Job job(options);
  start_and_update(job);
  if (scrape(port).empty())
    return; // this build has no metrics endpoint
  const auto count = [](int at, const std::string& series) {
    const auto all = series_of(scrape(at));
    REQUIRE_FALSE(all.empty());
    const auto found = all.find(series);
    return found == all.end() ? 0.0 : found->second;
  };
  const std::string joins = "deltawire_worker_joins_total{rank=\"0\",worker=\"1\"}";
  const std::string reconnects = "deltawire_reconnects_total{worker=\"0\"}";
  CHECK(count(port, joins) == 0); // that it came at all is no restart
  job.kill_worker(1);
  job.start_worker(1);
  job.until_stands(1, "0 empty yes");
  job.update();
  job.update();
  CHECK(count(port, joins) == 1);
  CHECK(count(port, "deltawire_worker_joins_total{rank=\"0\",worker=\"0\"}") == 0);
  CHECK(count(port + 2, reconnects) == 0); // two ranks, then the workers

  job.kill_trainer();
  job.until_all_stand("4 serving no");
  start_and_update(job);
  CHECK(count(port + 2, reconnects) == 1);
  CHECK(count(port, joins) == 0); // another root, another session
}
