// A job of session_peer processes: two trainer ranks, run after run, and workers that may outlive them. What it waits
// for, it waits for a minute, and then throws what it waited for, how everybody stands and who has ended.
#pragma once

#include "process/command.hpp"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::test {

struct JobOptions {
  int replicas = 1;
  int workers_per_replica = 2;
  std::vector<std::string> overrides{"update.reconnect=5min"};
  /// The root's address as a peer ("rank 1", "worker 0") is to call it, where that is not the root's own.
  std::function<std::string(const std::string& peer)> address{};
};

/// A line of an outcome: how a worker fared.
struct FaredWorker {
  unsigned version = 0;
  std::string state;
  bool digest_right = false;
  std::string error;
};

class Job {
public:
  /// The workers' processes; they call until a trainer is there.
  explicit Job(JobOptions options = {}, int port = reserve_port());

  [[nodiscard]] int port() const noexcept { return port_; }
  [[nodiscard]] std::size_t workers() const noexcept { return workers_.size(); }

  // The trainer
  /// The next run. Returns when it is connected.
  void start_trainer();
  /// Only its root, which then waits for the others; returns when it listens.
  void start_root();
  void start_rank();
  void until_connected() const;
  /// kill -9 of the ranks that there are.
  void kill_trainer();
  [[nodiscard]] bool has_rank(int number) const { return ranks_.contains(number); }
  [[nodiscard]] Running& rank(int number) { return *ranks_.at(number); }
  [[nodiscard]] unsigned run() const noexcept { return run_; }
  [[nodiscard]] unsigned version() const noexcept { return version_; }

  // Workers
  void start_worker(int index);
  /// kill -9; its engine generates no more.
  void kill_worker(int index);
  /// It closes, and ends well.
  void let_worker_leave(int index);
  [[nodiscard]] bool has_worker(int index) const { return workers_.at(static_cast<std::size_t>(index)) != nullptr; }
  [[nodiscard]] Running& worker(int index) { return *workers_.at(static_cast<std::size_t>(index)); }
  /// "VERSION STATE yes|no WHY"; empty before it has begun.
  [[nodiscard]] std::string status(int index) const;
  void until_stands(int index, const std::string& facts) const;
  void until_all_stand(const std::string& facts) const;
  [[nodiscard]] std::string commits(int index) const;
  /// What all workers noted so far (peer.cpp).
  [[nodiscard]] std::string events() const;
  /// What its memory turns out to be: "RUN VERSION", or how it is neither. Only while nothing is under way.
  [[nodiscard]] std::string memory(int index) const;

  // Updates
  void publish();
  /// The first line: "committed", or why not.
  [[nodiscard]] std::string outcome(int rank = 0) const;
  [[nodiscard]] bool has_outcome(int rank = 0) const;
  [[nodiscard]] std::vector<FaredWorker> fared(int rank = 0) const;
  /// Publishes and waits; throws unless it was committed.
  void update();
  /// The trainer closes; all must end well.
  void close();

  // Both
  /// Returns when each of its threads stands still.
  void stop(const Running& running) const;
  void until(const std::string& what, const std::function<bool()>& holds) const;
  void put(const std::string& name) const;
  void remove(const std::string& name) const;
  [[nodiscard]] bool has(const std::string& name) const;

  /// Reads what all engines noted so far; throws where one generated with bits that are no version, with an older
  /// version than before in the same session, or where two of a replica generated with two versions at once.
  void check_engines() const;

private:
  [[nodiscard]] std::string path(const std::string& name) const { return scratch_.path(name); }
  [[nodiscard]] std::string outcome_name(int rank) const;
  std::unique_ptr<Running> start(const std::string& side, int index);

  Scratch scratch_;
  JobOptions options_;
  int port_ = 0;
  std::string topology_;
  unsigned run_ = 0, version_ = 0;
  std::vector<std::unique_ptr<Running>> workers_;
  std::map<int, std::unique_ptr<Running>> ranks_;
};

/// Whether a socket of this machine listens on a port of 127.0.0.1.
[[nodiscard]] bool somebody_listens(int port);

} // namespace deltawire::test
