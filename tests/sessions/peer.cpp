// A trainer rank or a worker as a process that a test drives by files in a folder that both know:
//
//     session_peer trainer RANK  TOPOLOGY FOLDER RUN [KEY=VALUE ...]
//     session_peer worker  INDEX TOPOLOGY FOLDER RUN [KEY=VALUE ...]
//
// The weights are those of weights.hpp. A rank publishes version N once "publish-RUN-N" exists, ends on "close-RUN",
// and answers with "connected-RUN-RANK" and "outcome-RUN-RANK-N": a line "committed", or why not, and one for each
// worker, "INDEX VERSION STATE right|- WHY". A worker ends on "leave-INDEX", shows how it stands in "status-INDEX"
// ("VERSION STATE yes|no WHY"), what its memory turns out to be in "memory-INDEX" as often as "look-INDEX" appears
// ("RUN VERSION", or how it is neither), and its commits in "commits-INDEX". It stands still in on_pause as long as
// "hold-pause-INDEX" exists, and shows "paused-INDEX"; it throws there where "throw-INDEX" exists then; and the same
// for "hold-commit-INDEX" in on_commit.
//
// A worker is also the engine that generates: "events-INDEX" has a line, with the time in nanoseconds that all
// processes share, whenever it begins to ("TIME serve SESSION RUN VERSION") and ends ("TIME pause"). Before it begins
// it compares its memory, bit for bit, with the version that it was told: "TIME wrong WHAT" must never be there.

#include "weights.hpp"

#include "deltawire/deltawire.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

using namespace deltawire;
using namespace deltawire::test;

namespace {

class Folder {
public:
  explicit Folder(std::filesystem::path path) : path_(std::move(path)) {}

  [[nodiscard]] bool has(const std::string& name) const { return std::filesystem::exists(path_ / name); }
  void until(const std::function<bool()>& holds) const {
    while (!holds())
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  /// Whole or not at all for who reads it.
  void put(const std::string& name, const std::string& text) const {
    const std::filesystem::path draft = path_ / (name + ".draft");
    std::ofstream(draft) << text;
    std::filesystem::rename(draft, path_ / name);
  }
  void remove(const std::string& name) const { std::filesystem::remove(path_ / name); }
  void append(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::app) << text;
  }

private:
  std::filesystem::path path_;
};

std::string text_of(const Outcome& outcome) {
  std::string text = outcome.committed ? "committed\n" : outcome.error_message + "\n";
  for (const WorkerOutcome& worker : outcome.workers)
    text += fmt::format("{} {} {} {} {}\n", worker.index, worker.version, worker.state,
                        worker.digest_ok ? "right" : "-", worker.error);
  return text;
}

int train(std::uint32_t rank, const std::string& topology, const Folder& folder, std::uint32_t run,
          const std::vector<std::string>& overrides) {
  Publisher publisher = Publisher::open(topology, {rank, 2, overrides});
  std::vector<HeldWeight> weights;
  for (std::size_t w = 0; w < run_weights().size(); ++w) {
    const RunWeight& whole = run_weights()[w];
    weights.push_back(held_weight(w, publisher.local_shape(whole.name, whole.shape), rank));
    publisher.add(
      {.name = whole.name, .dtype = whole.dtype, .full_shape = whole.shape, .data = weights.back().bytes.data()});
  }
  publisher.connect();
  folder.put(fmt::format("connected-{}-{}", run, rank), "");
  for (Version version = 1;; ++version) {
    const std::string order = fmt::format("publish-{}-{}", run, version);
    folder.until([&] { return folder.has(order) || folder.has(fmt::format("close-{}", run)); });
    if (!folder.has(order))
      break;
    for (HeldWeight& weight : weights)
      weight.fill(run, version);
    const Outcome outcome = publisher.publish(version).wait();
    folder.put(fmt::format("outcome-{}-{}-{}", run, rank, version), text_of(outcome));
  }
  publisher.close();
  return 0;
}

/// Generates with a worker's memory, as far as the test can tell. Reading it and pausing exclude each other.
class Engine {
public:
  Engine(const Folder& folder, std::uint32_t index, std::vector<HeldWeight> weights)
    : folder_(folder), events_(fmt::format("events-{}", index)), weights_(std::move(weights)) {}

  void bind_to(Subscriber& subscriber) {
    subscriber_ = &subscriber;
    for (HeldWeight& weight : weights_)
      subscriber.bind({.name = run_weights()[weight.weight].name,
                       .dtype = run_weights()[weight.weight].dtype,
                       .shape = weight.shape,
                       .data = weight.bytes.data()});
  }

  void pause() {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(paused_, true))
      log("pause");
  }
  /// In on_commit and on_resume: what there is to see of the version, before it is served.
  void take(Version version) {
    const std::lock_guard lock(mutex_);
    check(version);
  }
  void serve_taken() {
    const std::lock_guard lock(mutex_);
    paused_ = false;
    log(serving_);
  }
  /// "RUN VERSION", or how memory is neither whole.
  std::string memory() {
    const std::lock_guard lock(mutex_);
    const Stamp stamp = this->stamp();
    const std::size_t wrong = differences(stamp.run, stamp.version);
    return wrong == 0 ? fmt::format("{} {}", stamp.run, stamp.version)
                      : fmt::format("{} elements are not of version {} of run {}", wrong, stamp.version, stamp.run);
  }

  void log(const std::string& what) const {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    folder_.append(events_,
                   fmt::format("{} {}\n", std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(), what));
  }

private:
  [[nodiscard]] Stamp stamp() const {
    Stamp stamp;
    static_assert(sizeof stamp == 8);
    for (const HeldWeight& weight : weights_)
      if (weight.bytes.size() == sizeof stamp)
        std::memcpy(&stamp, weight.bytes.data(), sizeof stamp);
    return stamp;
  }
  [[nodiscard]] std::size_t differences(std::uint32_t run, Version version) const {
    std::size_t count = 0;
    for (const HeldWeight& weight : weights_)
      count += weight.differences(run, version);
    return count;
  }
  void check(Version version) {
    const Stamp stamp = this->stamp();
    if (const std::size_t wrong = differences(stamp.run, version); wrong != 0)
      log(fmt::format("wrong {} elements are not of version {} (memory says {} of run {})", wrong, version,
                      stamp.version, stamp.run));
    serving_ = fmt::format("serve {:x} {} {}", subscriber_->status().session, stamp.run, version);
  }
  const Folder& folder_;
  std::string events_, serving_;
  std::vector<HeldWeight> weights_;
  Subscriber* subscriber_ = nullptr;
  std::mutex mutex_;
  bool paused_ = true; ///< nothing is there to generate with
};

int serve(std::uint32_t index, const std::string& topology, const Folder& folder,
          const std::vector<std::string>& overrides) {
  const auto name = [index](const char* kind) { return fmt::format("{}-{}", kind, index); };
  const auto hold = [&](const char* held, const char* shown) {
    if (!folder.has(name(held)))
      return;
    folder.put(name(shown), "");
    folder.until([&] { return !folder.has(name(held)); });
    folder.remove(name(shown));
  };
  Subscriber subscriber = Subscriber::open(topology, {index, overrides});
  std::vector<HeldWeight> weights;
  for (std::size_t w = 0; w < run_weights().size(); ++w)
    for (const ParameterInfo& parameter : subscriber.parameters())
      if (parameter.name == run_weights()[w].name) {
        std::int64_t parts = 1;
        for (std::size_t dim = 0; dim < parameter.shape.size(); ++dim)
          parts *= parameter.full_shape[dim] / parameter.shape[dim];
        weights.push_back(held_weight(w, parameter.shape, index % static_cast<std::uint32_t>(parts)));
      }
  Engine engine(folder, index, std::move(weights));
  engine.bind_to(subscriber);
  subscriber.on_pause([&] {
    engine.pause();
    hold("hold-pause", "paused");
    if (folder.has(name("throw")))
      throw std::runtime_error("the engine does not stop");
  });
  subscriber.on_commit([&](Version version, std::span<const Change>) {
    engine.take(version);
    hold("hold-commit", "committing");
    folder.append(name("commits"), fmt::format("{}\n", version));
    engine.serve_taken();
  });
  subscriber.on_resume([&](Version version) {
    engine.take(version);
    engine.serve_taken();
  });
  subscriber.start();
  std::atomic<bool> over = false;
  const auto report = [&] {
    std::string last;
    while (!over) {
      const WorkerStatus status = subscriber.status();
      const std::string text = fmt::format("{} {} {} {}", status.version, status.state, status.connected ? "yes" : "no",
                                           status.disconnected_why);
      if (text != last) {
        folder.put(name("status"), text);
        engine.log("stands " + text);
      }
      last = text;
      if (folder.has(name("look"))) { // the test asks only while nothing is written
        folder.remove(name("look"));
        folder.put(name("memory"), engine.memory());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  };
  std::thread reporter(report);
  std::string failure;
  std::atomic<bool> ended = false;
  std::thread waiter([&] {
    try {
      subscriber.wait();
    } catch (const Error& error) {
      failure = error.what();
    }
    ended = true;
  });
  folder.until([&] { return ended || folder.has(name("leave")); });
  over = true;
  reporter.join();
  engine.pause();
  subscriber.close(); // of one that leaves, it ends the wait too
  waiter.join();
  folder.remove(name("leave"));
  if (failure.empty())
    return 0;
  std::cerr << failure << '\n';
  return 3;
}

} // namespace

int main(int count, char** words) {
  try {
    const std::vector<std::string> arguments(words + 1, words + count);
    if (arguments.size() < 5)
      throw std::runtime_error("usage: session_peer trainer|worker INDEX TOPOLOGY FOLDER RUN [KEY=VALUE ...]");
    const auto index = static_cast<std::uint32_t>(std::stoul(arguments[1]));
    const Folder folder(arguments[3]);
    const std::vector<std::string> overrides(arguments.begin() + 5, arguments.end());
    if (arguments[0] == "trainer")
      return train(index, arguments[2], folder, static_cast<std::uint32_t>(std::stoul(arguments[4])), overrides);
    return serve(index, arguments[2], folder, overrides);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
}
