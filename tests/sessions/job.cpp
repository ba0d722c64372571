#include "job.hpp"

#include "weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace deltawire::test {
namespace {

/// One span of time in which an engine generated.
struct Generated {
  std::int64_t begin = 0, end = INT64_MAX;
  std::string session;
  unsigned run = 0, version = 0;
};

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
    .count();
}

std::vector<Generated> read_events(const std::string& path, int worker) {
  std::vector<Generated> all;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::int64_t time = 0;
    std::string what;
    words >> time >> what;
    if (what == "stands")
      continue;
    if (what == "wrong")
      throw std::runtime_error(fmt::format("worker {} would generate with wrong bits: {}", worker, line));
    if (!all.empty())
      all.back().end = std::min(all.back().end, time);
    if (what == "serve") {
      Generated next;
      next.begin = time;
      words >> next.session >> next.run >> next.version;
      all.push_back(next);
    }
  }
  return all;
}

/// Returns the peer's own words, with what has ended it.
std::string ended_text(const std::string& name, Running& running) {
  return fmt::format("; {} has ended: {}", name, running.wait(1).err);
}

} // namespace

bool somebody_listens(int port) {
  std::ifstream table("/proc/net/tcp");
  const std::string wanted = fmt::format("0100007F:{:04X} 00000000:0000 0A", port);
  for (std::string line; std::getline(table, line);)
    if (line.find(wanted) != std::string::npos)
      return true;
  return false;
}

Job::Job(JobOptions options, int port) : options_(std::move(options)), port_(port) {
  topology_ = scratch_.write("topology.toml", run_topology(options_.replicas, options_.workers_per_replica));
  workers_.resize(static_cast<std::size_t>(options_.replicas * options_.workers_per_replica));
  for (int index = 0; index < static_cast<int>(workers_.size()); ++index)
    start_worker(index);
}

std::unique_ptr<Running> Job::start(const std::string& side, int index) {
  const std::string own = fmt::format("127.0.0.1:{}", port_);
  const std::string peer = fmt::format("{} {}", side == "trainer" ? "rank" : "worker", index);
  const std::string address = options_.address && peer != "rank 0" ? options_.address(peer) : own;
  std::vector<std::string> arguments{
    side, std::to_string(index), topology_, scratch_.path(""), std::to_string(run_), "transport.master=" + address};
  arguments.insert(arguments.end(), options_.overrides.begin(), options_.overrides.end());
  return std::make_unique<Running>(arguments);
}

// The trainer
// -----------------------------------------------------------------------------------------------------------------

void Job::start_root() {
  ++run_;
  version_ = 0;
  ranks_.clear();
  ranks_[0] = start("trainer", 0);
  until(fmt::format("the root of run {} listens", run_), [&] { return somebody_listens(port_); });
}

void Job::start_rank() {
  ranks_[1] = start("trainer", 1);
}

void Job::start_trainer() {
  start_root();
  start_rank();
  until_connected();
}

void Job::until_connected() const {
  for (const int rank : {0, 1})
    until(fmt::format("rank {} of run {} is connected", rank, run_),
          [&] { return has(fmt::format("connected-{}-{}", run_, rank)); });
}

void Job::kill_trainer() {
  for (const auto& [number, running] : ranks_) {
    running->signal(SIGKILL);
    (void)running->wait(10);
  }
  ranks_.clear();
}

// Workers
// -----------------------------------------------------------------------------------------------------------------

void Job::start_worker(int index) {
  workers_[static_cast<std::size_t>(index)] = start("worker", index);
}

void Job::kill_worker(int index) {
  auto& running = workers_[static_cast<std::size_t>(index)];
  running->signal(SIGKILL);
  (void)running->wait(10);
  running.reset();
  std::ofstream(path(fmt::format("events-{}", index)), std::ios::app) << now_ns() << " killed\n";
  remove(fmt::format("status-{}", index));
}

void Job::let_worker_leave(int index) {
  put(fmt::format("leave-{}", index));
  auto& running = workers_[static_cast<std::size_t>(index)];
  const Ended ended = running->wait(60);
  if (ended.status != 0)
    throw std::runtime_error(fmt::format("worker {} leaves with status {}: {}", index, ended.status, ended.err));
  running.reset();
  remove(fmt::format("status-{}", index));
}

std::string Job::status(int index) const {
  const std::string name = fmt::format("status-{}", index);
  return has(name) ? read_file(path(name)) : "";
}

void Job::until_stands(int index, const std::string& facts) const {
  until(fmt::format("worker {} {}", index, facts), [&] { return status(index).starts_with(facts); });
}

void Job::until_all_stand(const std::string& facts) const {
  for (int index = 0; index < static_cast<int>(workers_.size()); ++index)
    until_stands(index, facts);
}

std::string Job::events() const {
  std::string text;
  for (std::size_t index = 0; index < workers_.size(); ++index) {
    const std::string name = fmt::format("events-{}", index);
    text += fmt::format("\nworker {}:\n{}", index, has(name) ? read_file(path(name)) : "");
  }
  return text;
}

std::string Job::commits(int index) const {
  return read_file(path(fmt::format("commits-{}", index)));
}

std::string Job::memory(int index) const {
  const std::string name = fmt::format("memory-{}", index);
  remove(name);
  put(fmt::format("look-{}", index));
  until(name, [&] { return has(name); });
  return read_file(path(name));
}

// Updates
// -----------------------------------------------------------------------------------------------------------------

void Job::publish() {
  put(fmt::format("publish-{}-{}", run_, ++version_));
}

std::string Job::outcome_name(int rank) const {
  return fmt::format("outcome-{}-{}-{}", run_, rank, version_);
}

bool Job::has_outcome(int rank) const {
  return has(outcome_name(rank));
}

std::string Job::outcome(int rank) const {
  const std::string name = outcome_name(rank);
  until(name, [&] { return has(name); });
  const std::string text = read_file(path(name));
  return text.substr(0, text.find('\n'));
}

std::vector<FaredWorker> Job::fared(int rank) const {
  std::istringstream text(read_file(path(outcome_name(rank))));
  std::string line;
  std::getline(text, line);
  std::vector<FaredWorker> all;
  while (std::getline(text, line)) {
    std::istringstream words(line);
    FaredWorker worker;
    std::string index, digest;
    words >> index >> worker.version >> worker.state >> digest >> std::ws;
    std::getline(words, worker.error);
    worker.digest_right = digest == "right";
    all.push_back(worker);
  }
  return all;
}

void Job::update() {
  publish();
  if (const std::string came_to = outcome(); came_to != "committed")
    throw std::runtime_error(fmt::format("the update to version {} of run {}: {}", version_, run_, came_to));
}

void Job::close() {
  put(fmt::format("close-{}", run_));
  std::string failures;
  const auto end = [&](const std::string& name, Running& running) {
    if (const Ended ended = running.wait(60); ended.status != 0)
      failures += fmt::format("{} ends with status {}: {}; ", name, ended.status, ended.err);
  };
  for (const auto& [number, running] : ranks_)
    end(fmt::format("rank {}", number), *running);
  for (std::size_t index = 0; index < workers_.size(); ++index)
    if (workers_[index])
      end(fmt::format("worker {}", index), *workers_[index]);
  if (!failures.empty())
    throw std::runtime_error(failures);
}

// Both
// -----------------------------------------------------------------------------------------------------------------

void Job::stop(const Running& running) const {
  running.signal(SIGSTOP);
  until("a process stops", [&] {
    for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", running.pid()))) {
      const std::string facts = read_file((task.path() / "stat").string());
      if (facts.find(") T ") == std::string::npos)
        return false;
    }
    return true;
  });
}

void Job::until(const std::string& what, const std::function<bool()>& holds) const {
  for (int i = 0; i < 20000; ++i) {
    if (holds())
      return;
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  std::string facts;
  for (std::size_t index = 0; index < workers_.size(); ++index) {
    facts += fmt::format("; worker {} stands at '{}'", index, status(static_cast<int>(index)));
    if (workers_[index] && !is_alive(workers_[index]->pid()))
      facts += ended_text(fmt::format("worker {}", index), *workers_[index]);
  }
  for (const auto& [number, running] : ranks_)
    if (!is_alive(running->pid()))
      facts += ended_text(fmt::format("rank {}", number), *running);
  throw std::runtime_error(fmt::format("it does not come to: {}{}", what, facts));
}

void Job::put(const std::string& name) const {
  std::ofstream(path(name)) << "";
}

void Job::remove(const std::string& name) const {
  std::filesystem::remove(path(name));
}

bool Job::has(const std::string& name) const {
  return std::filesystem::exists(path(name));
}

void Job::check_engines() const {
  std::vector<std::vector<Generated>> all;
  std::map<std::string, unsigned> runs;
  for (int index = 0; index < static_cast<int>(workers_.size()); ++index) {
    all.push_back(read_events(path(fmt::format("events-{}", index)), index));
    const auto& own = all.back();
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (runs.try_emplace(own[i].session, own[i].run).first->second != own[i].run)
        throw std::runtime_error(fmt::format("worker {} says it has version {} of session {}, and has run {}'s", index,
                                             own[i].version, own[i].session, own[i].run));
      if (i > 0 && own[i].session == own[i - 1].session && own[i].version < own[i - 1].version)
        throw std::runtime_error(
          fmt::format("worker {} went back from version {} to {}", index, own[i - 1].version, own[i].version));
    }
  }
  const auto per_replica = static_cast<std::size_t>(options_.workers_per_replica);
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = a + 1; b < all.size() && b / per_replica == a / per_replica; ++b)
      for (const Generated& one : all[a])
        for (const Generated& other : all[b])
          if (std::max(one.begin, other.begin) < std::min(one.end, other.end) &&
              (one.run != other.run || one.version != other.version))
            throw std::runtime_error(fmt::format(
              "workers {} and {} of one replica generated with version {} of run {} and version {} of run {} at once",
              a, b, one.version, one.run, other.version, other.run));
}

} // namespace deltawire::test
