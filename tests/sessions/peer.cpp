// A trainer rank or a worker as a process that a test drives by files in a folder that both know:
//
//     session_peer trainer RANK  TOPOLOGY FOLDER RUN [KEY=VALUE ...]
//     session_peer worker  INDEX TOPOLOGY FOLDER RUN [KEY=VALUE ...]
//
// The parameter "w" has 64 elements of 16 bits, (RUN << 12 | version << 8) ^ its index: half of it lies with each rank
// and with each worker. A rank publishes version N once "publish-RUN-N" exists, ends on "close-RUN", and answers with
// "connected-RUN-RANK" and "outcome-RUN-RANK-N" ("committed", or why not). A worker shows how it stands in
// "status-INDEX" ("VERSION STATE yes|no WHY"), its memory in hex in "memory-INDEX" as often as "look-INDEX" appears,
// and its commits in "commits-INDEX". It stands still in on_pause as long as "hold-pause-INDEX" exists, and shows
// "paused-INDEX"; it throws there where "throw-INDEX" exists then; and the same for "hold-commit-INDEX" in on_commit.

#include "deltawire/deltawire.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <thread>

using namespace deltawire;

namespace {

constexpr std::size_t elements = 64, half = elements / 2;

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

int train(std::uint32_t rank, const std::string& topology, const Folder& folder, unsigned run,
          const std::vector<std::string>& overrides) {
  std::vector<std::uint16_t> values(half);
  Publisher publisher = Publisher::open(topology, {rank, 2, overrides});
  publisher.add({.name = "w", .dtype = DType::bf16, .full_shape = {elements}, .data = values.data()});
  publisher.connect();
  folder.put(fmt::format("connected-{}-{}", run, rank), "");
  for (Version version = 1;; ++version) {
    const std::string order = fmt::format("publish-{}-{}", run, version);
    folder.until([&] { return folder.has(order) || folder.has(fmt::format("close-{}", run)); });
    if (!folder.has(order))
      break;
    for (std::size_t i = 0; i < half; ++i)
      values[i] = static_cast<std::uint16_t>((run << 12 | version << 8) ^ (rank * half + i));
    const Outcome outcome = publisher.publish(version).wait();
    folder.put(fmt::format("outcome-{}-{}-{}", run, rank, version),
               outcome.committed ? "committed" : outcome.error_message);
  }
  publisher.close();
  return 0;
}

int serve(std::uint32_t index, const std::string& topology, const Folder& folder,
          const std::vector<std::string>& overrides) {
  std::vector<std::uint16_t> values(half, 0xFFFF);
  const auto name = [index](const char* kind) { return fmt::format("{}-{}", kind, index); };
  const auto hold = [&](const char* held, const char* shown) {
    if (!folder.has(name(held)))
      return;
    folder.put(name(shown), "");
    folder.until([&] { return !folder.has(name(held)); });
    folder.remove(name(shown));
  };
  Subscriber subscriber = Subscriber::open(topology, {index, overrides});
  subscriber.bind({.name = "w", .dtype = DType::bf16, .shape = {half}, .data = values.data()});
  subscriber.on_pause([&] {
    hold("hold-pause", "paused");
    if (folder.has(name("throw")))
      throw std::runtime_error("the engine does not stop");
  });
  subscriber.on_commit([&](Version version, std::span<const Change>) {
    hold("hold-commit", "committing");
    folder.append(name("commits"), fmt::format("{}\n", version));
  });
  subscriber.start();
  std::atomic<bool> over = false;
  std::thread reporter([&] {
    std::string last;
    while (!over) {
      const WorkerStatus status = subscriber.status();
      const std::string text = fmt::format("{} {} {} {}", status.version, status.state, status.connected ? "yes" : "no",
                                           status.disconnected_why);
      if (text != last)
        folder.put(name("status"), text);
      last = text;
      if (folder.has(name("look"))) { // the test asks only while nothing is written
        std::string hex;
        for (const std::uint16_t value : values)
          hex += fmt::format("{:04x}", value);
        folder.put(name("memory"), hex);
        folder.remove(name("look"));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  std::string failure;
  try {
    subscriber.wait();
  } catch (const Error& error) {
    failure = error.what();
  }
  over = true;
  reporter.join();
  subscriber.close();
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
      return train(index, arguments[2], folder, static_cast<unsigned>(std::stoul(arguments[4])), overrides);
    return serve(index, arguments[2], folder, overrides);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
}
