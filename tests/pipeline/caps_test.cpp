// Caps: what is too small is refused with the least that works, what works is never passed, and memory stays flat.

#include "catch.hpp"
#include "random.hpp"
#include "session.hpp"
#include "unit/text_matchers.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <malloc.h>

using namespace deltawire;
using namespace deltawire::test;

namespace {

/// `dtypes`: one parameter each of `elements` elements, cut over two ranks and two workers.
Scenario flat_parameters(const std::vector<DType>& dtypes, std::size_t elements) {
  Scenario scenario;
  scenario.topology = "[trainer]\nmesh = [[\"fsdp\", 2]]\n[[trainer.placement]]\nparameter = \"*\"\nshard = "
                      "[\"fsdp:0\"]\n[worker]\nmesh = [[\"tp\", 2]]\n[[worker.placement]]\nparameter = \"*\"\nshard = "
                      "[\"tp:0\"]\n";
  scenario.ranks.resize(2);
  scenario.workers.resize(2);
  auto random = generator(5);
  for (std::uint32_t t = 0; t < dtypes.size(); ++t) {
    Values values{fmt::format("p{}", t), dtypes[t], {}};
    const std::size_t bits = 8 * size_of(dtypes[t]);
    for (std::size_t i = 0; i < elements; ++i)
      values.bits.push_back(bits == 64 ? random() : random() & ((1ull << bits) - 1));
    const std::size_t half = (elements + 1) / 2;
    for (std::size_t m = 0; m < 2; ++m) {
      Held held{values.name, dtypes[t], {static_cast<std::int64_t>(elements)}, {}, {}, 0, {}};
      for (std::size_t i = m * half; i < std::min(elements, (m + 1) * half); ++i)
        held.elements.push_back({t, i});
      held.local_shape = {static_cast<std::int64_t>(held.elements.size())};
      scenario.ranks[m].push_back(held);
      scenario.workers[m].push_back(held);
    }
    scenario.tensors.push_back(std::move(values));
  }
  return scenario;
}

std::size_t heap_in_use() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

/// Runs with `key` at `bytes`: "" when it works, else the refusal.
std::string with_cap(const Scenario& scenario, const std::string& key, std::size_t bytes) {
  return run(scenario, {fmt::format("{}={}B", key, bytes), "update.connect=20s"});
}

} // namespace

TEST_CASE("a cap below one header and one element is refused with the least that works, which works") {
  Scenario scenario = flat_parameters({DType::bf16, DType::f32}, 3);
  scenario.updates.resize(2);
  scenario.updates[1].edits = {{0, {2}, {0x7777}}, {1, {0, 2}, {1, 2}}};
  for (const std::string key : {"actors.differ.inflight", "actors.gather_queue.max_round", "actors.flush_bucket.cap"}) {
    INFO(key);
    const std::string refusal = with_cap(scenario, key, 1);
    CHECK_THAT(refusal, contains(key));
    const std::string at_least = "at least ";
    const auto found = refusal.find(at_least);
    REQUIRE(found != std::string::npos);
    const std::size_t least = std::stoul(refusal.substr(found + at_least.size()));
    CAPTURE(least);
    CHECK_THAT(with_cap(scenario, key, 7), contains(fmt::format("at least {} are needed", least)));
    CHECK_THAT(with_cap(scenario, key, least - 1), contains(fmt::format("at least {} are needed", least)));
    for (std::size_t odd = least; odd < least + 12; ++odd)
      CHECK(with_cap(scenario, key, odd) == "");
  }
}

TEST_CASE("bits depend neither on caps nor on how many Differs work") {
  Scenario scenario = flat_parameters({DType::bf16, DType::f32, DType::f8_e5m2, DType::i64}, 30000);
  auto random = generator(8);
  std::vector<Values> values = scenario.tensors;
  for (const std::uint64_t one_in : {1000, 3, 50}) {
    ScenarioUpdate& update = scenario.updates.emplace_back();
    for (std::uint32_t t = 0; scenario.updates.size() > 1 && t < values.size(); ++t) {
      Edit& edit = update.edits.emplace_back(Edit{t, {}, {}});
      for (std::uint64_t i = 0; i < values[t].bits.size(); ++i)
        if (random() % one_in == 0) {
          values[t].bits[i] ^= 1 + random() % 127;
          edit.at.push_back(i);
          edit.bits.push_back(values[t].bits[i]);
        }
    }
  }
  for (const std::string cap : {"1KiB", "64KiB", "unlimited"})
    for (const int differs : {1, 3}) {
      INFO(cap << ", " << differs << " Differs");
      CHECK(run(scenario, {fmt::format("actors.differ.count={}", differs), "actors.differ.chunk=20KiB",
                           "actors.differ.inflight=" + cap, "actors.gather_queue.max_round=" + cap,
                           "actors.flush_bucket.cap=" + cap}) == "");
    }
}

TEST_CASE("a delivery larger than the stage is refused with the bytes it needs, and nothing changes") {
  const Scenario scenario = flat_parameters({DType::f32}, 4000);
  Session session(scenario, {"actors.applier.stage=2KiB"});
  for (const std::string& thrown : session.connect())
    REQUIRE(thrown == "");
  session.publish(scenario.tensors, 1);
  REQUIRE(session.wait()[0].error_message == ""); // a seed is written in place
  std::vector<Values> values = scenario.tensors;
  for (std::uint64_t& bits : values[0].bits)
    bits ^= 1;
  session.publish(values, 2);
  const Outcome outcome = session.wait()[0];
  CHECK_FALSE(outcome.committed);
  CHECK(static_cast<int>(outcome.error) == static_cast<int>(Code::limit_exceeded));
  CHECK_THAT(outcome.error_message, contains("actors.applier.stage"));
  CHECK(session.compare(scenario.tensors) == "");
}

TEST_CASE("no stage holds more than its cap") {
  Scenario scenario = flat_parameters({DType::bf16, DType::f64, DType::u8}, 5000);
  constexpr std::uint64_t kib = 1024;
  Session session(scenario, {"actors.differ.inflight=4KiB", "actors.differ.chunk=2KiB",
                             "actors.gather_queue.window=8KiB", "actors.gather_queue.max_round=2KiB",
                             "actors.flush_bucket.cap=3KiB", "actors.applier.stage=128KiB"});
  for (const std::string& thrown : session.connect())
    REQUIRE(thrown == "");
  auto random = generator(6);
  std::vector<Values> values = scenario.tensors;
  for (Version v = 1; v <= 6; ++v) {
    session.publish(values, v);
    const Outcome outcome = session.wait()[0];
    REQUIRE(outcome.error_message == "");
    CHECK(outcome.high_water.differ > 0);
    CHECK(outcome.high_water.differ <= 4 * kib);
    CHECK(outcome.high_water.gather_queue > 0);
    CHECK(outcome.high_water.gather_queue <= 2 * kib);
    CHECK(outcome.high_water.flush_bucket > 0);
    CHECK(outcome.high_water.flush_bucket <= 2 * 3 * kib); // one assembled, one on the wire
    CHECK(outcome.high_water.applier <= 128 * kib);
    CHECK(session.compare(values) == "");
    for (Values& each : values)
      for (std::uint64_t& bits : each.bits)
        if (random() % v == 0)
          bits ^= 1 + random() % 255;
  }
}

TEST_CASE("memory is flat after the second of many updates of varying size") {
  Scenario scenario = flat_parameters({DType::bf16, DType::f32}, 20000);
  Session session(scenario, {"actors.differ.inflight=16KiB", "actors.differ.chunk=8KiB",
                             "actors.gather_queue.max_round=8KiB", "actors.flush_bucket.cap=8KiB"});
  for (std::size_t w = 0; w < session.workers(); ++w)
    session.worker(w).on_commit({}); // the session's own hook keeps a record of every commit
  for (const std::string& thrown : session.connect())
    REQUIRE(thrown == "");
  auto random = generator(7);
  std::vector<Values> values = scenario.tensors;
  std::size_t after_second = 0;
  HighWaterBytes peaks;
  for (Version v = 1; v <= 100; ++v) {
    const std::uint64_t one_in = v == 2 ? 1 : 1ull << (random() % 12);
    if (v > 1)
      for (Values& each : values)
        for (std::uint64_t& bits : each.bits)
          if (random() % one_in == 0)
            bits ^= 1;
    session.publish(values, v);
    const Outcome outcome = session.wait()[0];
    REQUIRE(outcome.error_message == "");
    if (v == 2) {
      after_second = heap_in_use();
      peaks = outcome.high_water;
    }
  }
  CHECK(session.compare(values) == "");
  // The second update changed everything: no later one may hold more for good. glibc counts what threads cache as in
  // use, unless the suite turns those caches off.
  const std::size_t slack = std::getenv("GLIBC_TUNABLES") != nullptr ? 64 * 1024 : 512 * 1024;
  CHECK(heap_in_use() < after_second + slack);
  CHECK(peaks.applier > 0);
  CHECK(peaks.flush_bucket <= 2 * 8 * 1024);
}
