// The same across processes: heap and resident memory of the root's process, which all changes pass through.

#include "bounds.hpp"
#include "catch.hpp"
#include "process/command.hpp"

#include <nlohmann/json.hpp>

#include <memory>

using namespace deltawire;
using namespace deltawire::test;
using nlohmann::json;

namespace {

constexpr std::uint64_t kib = 1024, mib = 1024 * kib;
constexpr std::uint64_t unlimited = ~0ull;

/// Pages of code and stacks that the first update touches, and what malloc rounds up to.
constexpr std::uint64_t pages = 4 * mib;

/// What the root's process measured while it updated the workers, all processes of their own.
json measure(const DenseModel& model, std::uint64_t cap) {
  const Scratch scratch;
  const std::string topology = scratch.write("topology.toml", DenseModel::topology());
  const std::string master = "transport.master=127.0.0.1:" + std::to_string(reserve_port());
  std::vector<std::unique_ptr<Running>> peers;
  for (const std::string side : {"trainer", "worker"})
    for (std::uint32_t member = 0; member < DenseModel::members; ++member) {
      std::vector<std::string> arguments{side,  std::to_string(member), topology, std::to_string(model.bytes()), "2",
                                         master};
      for (const std::string& key : caps_of(cap))
        arguments.push_back(key);
      peers.push_back(std::make_unique<Running>(arguments));
    }
  std::vector<Ended> ended;
  for (const auto& peer : peers)
    ended.push_back(peer->wait());
  for (const Ended& each : ended) {
    INFO(each.err);
    REQUIRE(each.status == 0); // a worker's: its bits are the trainer's
  }
  return json::parse(ended[0].out);
}

} // namespace

TEST_CASE("the root's heap and resident memory stay under its caps and logs, and pass them without caps") {
  constexpr std::uint64_t cap = 64 * kib;
  const DenseModel model = DenseModel::of_bytes(64 * mib);
  const json without = measure(model, unlimited);
  const json root = measure(model, cap);
  CAPTURE(root.dump(), without.dump());
  CHECK(root.at("high_water").at("differ") <= cap);
  CHECK(root.at("high_water").at("gather_queue") <= cap);
  CHECK(root.at("high_water").at("flush_bucket") <= 2 * cap);

  const std::uint64_t shard = model.bytes() / DenseModel::members;
  const std::uint64_t changed = root.at("changed");
  const std::uint64_t holds = rank_holds(cap) + root_holds(cap) + small_things;
  const std::uint64_t logs = logs_hold(model.elements() / DenseModel::members, changed / DenseModel::members, cap);
  const auto check = [&](const char* update, const char* what, std::uint64_t most) {
    CAPTURE(update, what);
    if (root.at(update).at(what).is_null()) {
      WARN("this kernel does not let a process restart its peak of resident memory");
      return;
    }
    CHECK(root.at(update).at(what) <= most);
    CHECK(without.at(update).at(what) > most);
  };
  check("seed", "heap", holds);
  check("delta", "heap", holds + logs);
  check("seed", "resident", holds + shard + pages); // the first capture touches the snapshot
  check("delta", "resident", holds + logs + pages);
}
