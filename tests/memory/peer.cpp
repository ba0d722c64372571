// One rank or worker of a DenseModel as a process of its own:
//
//     memory_peer trainer RANK   TOPOLOGY BYTES UPDATES [KEY=VALUE ...]
//     memory_peer worker  INDEX  TOPOLOGY BYTES UPDATES [KEY=VALUE ...]
//
// A rank seeds, then publishes UPDATES deltas, and prints as JSON how far its heap (by operator new) and its resident
// memory (by the kernel) rose above their level before the seed, and before the deltas; resident is null where the
// kernel does not let a process restart its peak. A worker ends with status 1 when its memory is not the trainer's.

#include "allocations.hpp"
#include "dense_model.hpp"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>

using namespace deltawire;
using namespace deltawire::test;

namespace {

/// A line of /proc/self/status, in bytes.
std::uint64_t kernel_says(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == key + ":") {
      std::uint64_t kib = 0;
      status >> kib;
      return kib * 1024;
    }
  throw std::runtime_error("/proc/self/status has no " + key);
}

/// The rise of heap and resident memory above their level at construction.
class Rise {
public:
  Rise() : heap_(bytes_at_rest()) {
    restart_peak();
    std::ofstream clear("/proc/self/clear_refs");
    clear << "5" << std::flush; // proc(5): the peak resident set becomes the present one
    if (clear)
      resident_ = kernel_says("VmRSS");
  }

  [[nodiscard]] nlohmann::json peak() const {
    nlohmann::json out;
    out["heap"] = peak_bytes() - heap_;
    out["resident"] = nullptr;
    if (resident_)
      out["resident"] = kernel_says("VmHWM") - std::min(kernel_says("VmHWM"), *resident_);
    return out;
  }

private:
  std::uint64_t heap_;
  std::optional<std::uint64_t> resident_;
};

Outcome publish(Publisher& publisher, Version version) {
  const Outcome outcome = publisher.publish(version).wait();
  if (!outcome.committed)
    throw std::runtime_error(outcome.error_message);
  return outcome;
}

int train(std::uint32_t rank, const std::string& topology, const DenseModel& model, Version updates,
          const std::vector<std::string>& overrides) {
  DenseShards shards(model, rank);
  shards.change_to(1);
  Publisher publisher = Publisher::open(topology, {rank, DenseModel::members, overrides});
  shards.add_to(publisher);
  publisher.connect();
  nlohmann::json report;
  {
    const Rise rise;
    publish(publisher, 1);
    report["seed"] = rise.peak();
  }
  const Rise rise;
  std::uint64_t changed = 0;
  for (Version version = 2; version <= updates + 1; ++version) {
    shards.change_to(version);
    const Outcome outcome = publish(publisher, version);
    changed = std::max(changed, outcome.changed);
    report["high_water"] = {{"differ", outcome.high_water.differ},
                            {"gather_queue", outcome.high_water.gather_queue},
                            {"flush_bucket", outcome.high_water.flush_bucket}};
  }
  report["delta"] = rise.peak();
  report["changed"] = changed;
  publisher.close();
  std::cout << report.dump() << '\n';
  return 0;
}

int serve(std::uint32_t index, const std::string& topology, const DenseModel& model, Version updates,
          const std::vector<std::string>& overrides) {
  DenseShards shards(model, index);
  Subscriber subscriber = Subscriber::open(topology, {index, overrides});
  shards.bind_to(subscriber);
  subscriber.start();
  subscriber.wait();
  subscriber.close();
  return shards.differences(updates + 1) == 0 ? 0 : 1;
}

} // namespace

int main(int count, char** words) {
  try {
    const std::vector<std::string> arguments(words + 1, words + count);
    if (arguments.size() < 5)
      throw std::runtime_error("usage: memory_peer trainer|worker INDEX TOPOLOGY BYTES UPDATES [KEY=VALUE ...]");
    const auto index = static_cast<std::uint32_t>(std::stoul(arguments[1]));
    const DenseModel model = DenseModel::of_bytes(std::stoull(arguments[3]));
    const Version updates = std::stoull(arguments[4]);
    const std::vector<std::string> overrides(arguments.begin() + 5, arguments.end());
    return (arguments[0] == "trainer" ? train : serve)(index, arguments[2], model, updates, overrides);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
}
