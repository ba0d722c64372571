// Hundreds of updates of one session while workers are killed, leave and join, at random: all that time every engine
// checks every bit before it generates, nobody meets a digest that is wrong, and nothing grows. By default a few dozen;
// DELTAWIRE_FAULTS=all makes it 500.

#include "catch.hpp"
#include "random.hpp"
#include "sessions/job.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <stdexcept>
#include <thread>

using namespace deltawire::test;

namespace {

constexpr int replicas = 2, per_replica = 2;
constexpr int nobody = -1;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool counts_memory = false; // sanitizers hold memory of their own
#else
constexpr bool counts_memory = true;
#endif

std::uint64_t resident_kib(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string word; status >> word;)
    if (word == "VmRSS:") {
      std::uint64_t kib = 0;
      status >> kib;
      return kib;
    }
  throw std::runtime_error(fmt::format("/proc/{}/status has no VmRSS", pid));
}

/// Workers come and go; worker 0 stays, and so does one replica at least.
class Churn {
public:
  explicit Churn(std::mt19937_64 random)
    : random_(random),
      job_({.replicas = replicas,
            .workers_per_replica = per_replica,
            .overrides = {"update.reconnect=5min", "actors.flush_bucket.cap=8KiB", "actors.differ.chunk=16KiB"}}) {
    job_.start_trainer();
  }

  void update(bool calm) {
    for (auto at = away_.begin(); at != away_.end();)
      if (calm || at->second-- == 0) {
        job_.start_worker(at->first);
        // What the last outcome says of it may be of the process before, which went when that update was over.
        fared_.at(static_cast<std::size_t>(at->first)) = {};
        ++joins_;
        at = away_.erase(at);
      } else {
        ++at;
      }
    const int goes = calm || random_() % 2 != 0 ? nobody : one_that_may_go();
    const bool leaves = random_() % 3 == 0, before = random_() % 2 == 0;
    if (goes != nobody && before)
      go(goes, leaves);
    job_.publish();
    if (goes != nobody && !before) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 10000));
      go(goes, leaves);
    }
    const std::string outcome = job_.outcome();
    REQUIRE(outcome == "committed");
    fared_ = job_.fared();
    for (const FaredWorker& worker : fared_) {
      const bool took_it_in = worker.version == job_.version();
      if (worker.error.find("digest") != std::string::npos ||
          (took_it_in && !worker.digest_right && worker.error.empty()))
        FAIL("version " << job_.version() << ": " << worker.state << ", " << worker.error);
    }
  }

  /// Until everybody is there and has the newest version.
  void until_whole() {
    for (int i = 0; i < 1000; ++i) {
      update(true);
      if (all_serve())
        return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    FAIL("not everybody comes back");
  }

  void check_memories() {
    for (int index = 0; index < replicas * per_replica; ++index)
      CHECK(job_.memory(index) == fmt::format("1 {}", job_.version()));
  }

  void end() {
    job_.close();
    job_.check_engines();
    for (const auto& [index, version] : away_)
      FAIL("worker " << index << " is away");
  }

  [[nodiscard]] std::uint64_t root_kib() { return resident_kib(job_.rank(0).pid()); }
  [[nodiscard]] std::uint64_t worker_kib() { return resident_kib(job_.worker(0).pid()); }
  [[nodiscard]] unsigned version() const { return job_.version(); }
  [[nodiscard]] std::string counts() const {
    return fmt::format("{} updates, {} kills, {} leaves, {} joins", job_.version(), kills_, leaves_, joins_);
  }

private:
  [[nodiscard]] bool all_serve() const {
    for (const FaredWorker& worker : fared_)
      if (worker.version != job_.version() || worker.state != "serving")
        return false;
    return away_.empty();
  }

  /// Of a replica whose going leaves another one that is whole.
  int one_that_may_go() {
    const int index = 1 + static_cast<int>(random_() % (replicas * per_replica - 1));
    if (fared_.empty() || away_.contains(index) || fared_.at(static_cast<std::size_t>(index)).state != "serving")
      return nobody;
    for (int other = 0; other < replicas * per_replica; ++other) {
      const FaredWorker& fared = fared_.at(static_cast<std::size_t>(other));
      if (other / per_replica != index / per_replica &&
          (away_.contains(other) || fared.state != "serving" || fared.version != job_.version()))
        return nobody;
    }
    return index;
  }

  void go(int index, bool leaves) {
    if (leaves)
      job_.let_worker_leave(index);
    else
      job_.kill_worker(index);
    ++(leaves ? leaves_ : kills_);
    away_[index] = static_cast<int>(random_() % 4);
  }

  std::mt19937_64 random_;
  Job job_;
  std::map<int, int> away_; ///< workers, and for how many updates more
  std::vector<FaredWorker> fared_;
  int kills_ = 0, leaves_ = 0, joins_ = 0;
};

} // namespace

TEST_CASE("updates among workers that come and go leave no bit wrong, and memory flat") {
  const char* asked = std::getenv("DELTAWIRE_FAULTS");
  const unsigned updates = asked != nullptr && std::string(asked) == "all" ? 500 : 30;
  constexpr unsigned warm = 50; // updates until everything has its size
  constexpr std::uint64_t bound_kib = 4096;
  INFO("seed " << seed());
  Churn churn(generator(41));
  std::uint64_t root = 0, worker = 0;
  while (churn.version() < updates) {
    if (churn.version() % 10 == 0) {
      churn.until_whole();
      churn.check_memories();
    }
    if (root == 0 && churn.version() >= warm) {
      churn.until_whole();
      root = churn.root_kib();
      worker = churn.worker_kib();
    }
    churn.update(false);
  }
  churn.until_whole();
  churn.check_memories();
  std::cout << fmt::format("seed {}: {}", seed(), churn.counts());
  if (root != 0 && counts_memory) {
    const std::uint64_t root_now = churn.root_kib(), worker_now = churn.worker_kib();
    std::cout << fmt::format("; resident after {} and after all: root {} and {} KiB, worker 0 {} and {} KiB", warm,
                             root, root_now, worker, worker_now);
    CHECK(root_now <= root + bound_kib);
    CHECK(worker_now <= worker + bound_kib);
  }
  std::cout << std::endl;
  churn.end();
}
