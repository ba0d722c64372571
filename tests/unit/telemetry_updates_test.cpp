// Contract: src/telemetry/updates.hpp.
#include "telemetry/updates.hpp"

#include "catch.hpp"
#include "telemetry/catalogue.hpp"
#include "text_matchers.hpp"

namespace deltawire::telemetry {

namespace {

using Facts = UpdateFacts;

/// A committed update of 1000 elements that two workers got.
Facts update(std::uint64_t version, std::uint64_t changed, Facts::Kind kind = Facts::Kind::delta) {
  Facts facts;
  facts.version = version;
  facts.step = version;
  facts.kind = kind;
  facts.committed = true;
  facts.elements = 1000;
  facts.changed = changed;
  facts.wire_bytes = 4 * changed;
  facts.flushes = facts.rounds = 1;
  facts.workers = {{0, version, "serving", true, 10}, {1, version, "serving", true, 20}};
  return facts;
}

Caps roomy() {
  Caps caps;
  caps.own_elements = 500;
  caps.chunks = 4;
  caps.differs = 2;
  caps.largest_chunk = 100;
  caps.largest_piece = 50;
  caps.inflight = 1000;
  caps.max_round = 1000;
  caps.flush_cap = 1072;
  caps.flush_payload = 1000;
  return caps;
}

std::vector<std::string> kinds(const std::vector<Warning>& warnings) {
  std::vector<std::string> out;
  for (const Warning& warning : warnings)
    out.push_back(warning.kind);
  return out;
}

using Kinds = std::vector<std::string>;

} // namespace

TEST_CASE("an update's end becomes metrics, lag and state by worker") {
  const auto registry = std::make_shared<Registry>(Labels{{"rank", "0"}});
  UpdateMeter meter(registry);
  meter.update_over(update(1, 1000, Facts::Kind::seed));
  Facts second = update(2, 25);
  second.phases[static_cast<std::size_t>(Phase::send)] = {1000, 4000};
  second.workers[1] = {1, 1, "lagging", false, 0};
  meter.update_over(second);
  Facts third = update(3, 5);
  third.committed = false;
  meter.update_over(third);

  CHECK(registry->counter(family::updates, {{"kind", "seed"}, {"result", "committed"}}).value() == 1);
  CHECK(registry->counter(family::updates, {{"kind", "delta"}, {"result", "committed"}}).value() == 1);
  CHECK(registry->counter(family::updates, {{"kind", "delta"}, {"result", "failed"}}).value() == 1);
  CHECK(registry->gauge(family::version).value() == 2);
  CHECK(registry->gauge(family::update_density).value() == 5000); // millionths
  CHECK(registry->counter(family::wire_bytes).value() == 4 * 1030);
  CHECK(registry->gauge(family::worker_lag, {{"worker", "0"}}).value() == 0);
  CHECK(registry->gauge(family::worker_version, {{"worker", "1"}}).value() == 3);
  CHECK(registry->gauge(family::worker_state, {{"worker", "1"}, {"state", "lagging"}}).value() == 0);
  CHECK(registry->gauge(family::worker_state, {{"worker", "1"}, {"state", "serving"}}).value() == 1);

  Registry lagging(Labels{});
  UpdateMeter other(std::shared_ptr<Registry>(&lagging, [](Registry*) {}));
  other.update_over(second);
  CHECK(lagging.gauge(family::worker_lag, {{"worker", "1"}}).value() == 1);
  CHECK(lagging.gauge(family::worker_digest_ok, {{"worker", "1"}}).value() == 0);
  CHECK(lagging.gauge(family::update_phase_seconds, {{"phase", "send"}}).value() == 3000);
}

TEST_CASE("a run with nothing unusual has no warnings") {
  WarningWatch watch(roomy());
  CHECK(watch.update_over(update(1, 1000, Facts::Kind::seed), 500).empty());
  for (std::uint64_t v = 2; v < 100; ++v)
    CHECK(watch.update_over(update(v, 10), 500 + v).empty());
}

TEST_CASE("empty deltas of ten different steps are said once, until something changes") {
  WarningWatch watch(roomy());
  std::uint64_t version = 1, own = 500;
  CHECK(watch.update_over(update(version, 1000, Facts::Kind::seed), own).empty());
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 1; i < WarningWatch::patience; ++i)
      CHECK(watch.update_over(update(++version, 0), own).empty());
    const auto warned = watch.update_over(update(++version, 0), own);
    REQUIRE(kinds(warned) == Kinds{"empty_delta"});
    CHECK_THAT(warned[0].text,
               test::contains("no element has changed in 10 updates up to version " + std::to_string(version)));
    CHECK(watch.update_over(update(++version, 0), own).empty());
    CHECK(watch.update_over(update(++version, 3), ++own).empty());
  }
  // The same step published again and again says nothing about the optimizer.
  for (int i = 0; i < 30; ++i) {
    Facts facts = update(++version, 0);
    facts.step = 7;
    CHECK(watch.update_over(facts, own).empty());
  }
}

TEST_CASE("a shard that never changes while others do is named by its own rank") {
  Caps caps = roomy();
  caps.rank = 3;
  WarningWatch watch(caps);
  static_cast<void>(watch.update_over(update(1, 1000, Facts::Kind::seed), 500));
  std::vector<Warning> warned;
  for (std::uint64_t v = 2; v < 2 + 2 * WarningWatch::patience; ++v)
    for (Warning& warning : watch.update_over(update(v, 10), 500))
      warned.push_back(std::move(warning));
  REQUIRE(kinds(warned) == Kinds{"idle_shard"});
  CHECK_THAT(warned[0].text, test::contains("rank 3: none of its 500 elements has changed in 10 updates"));

  caps.own_elements = 0; // a replica that contributes nothing
  WarningWatch replica(caps);
  for (std::uint64_t v = 1; v < 30; ++v)
    CHECK(replica.update_over(update(v, 10), 0).empty());
}

TEST_CASE("a delta that takes what a seed takes is said once") {
  WarningWatch watch(roomy());
  std::uint64_t own = 500;
  static_cast<void>(watch.update_over(update(1, 1000, Facts::Kind::seed), own)); // 4000 bytes
  CHECK(watch.update_over(update(2, 999), ++own).empty());
  Facts behind = update(3, 1100); // bytes that caught a worker up prove nothing
  behind.workers[0].version = 2;
  CHECK(watch.update_over(behind, ++own).empty());
  CHECK(watch.update_over(update(4, 1100), ++own).empty());
  CHECK(kinds(watch.update_over(update(5, 1000), ++own)) == Kinds{"dense"});
  CHECK(watch.update_over(update(6, 1000), ++own).empty());
}

TEST_CASE("a first update whose values were not sent to all is no measure of what all values take") {
  WarningWatch watch(roomy());
  Facts first = update(1, 10, Facts::Kind::seed);
  first.workers[1].matched = true;
  CHECK(watch.update_over(first, 1).empty());
  for (std::uint64_t v = 2; v < 5; ++v)
    CHECK(watch.update_over(update(v, 1000), v).empty());
}

TEST_CASE("a worker that misses three updates in a row is said once, until it has caught up") {
  WarningWatch watch(roomy());
  std::uint64_t own = 0, version = 0;
  const auto behind = [&] {
    Facts facts = update(++version, 10);
    facts.workers[1].version = 1;
    facts.workers[1].state = "lost";
    return watch.update_over(facts, ++own);
  };
  static_cast<void>(watch.update_over(update(++version, 1000, Facts::Kind::seed), ++own));
  for (int round = 0; round < 2; ++round) {
    CHECK(behind().empty());
    CHECK(behind().empty());
    const auto warned = behind();
    REQUIRE(kinds(warned) == Kinds{"lagging_worker"});
    CHECK_THAT(warned[0].text, test::contains("worker 1 (lost)"));
    CHECK(behind().empty());
    const auto over = watch.update_over(update(++version, 10), ++own);
    REQUIRE(kinds(over) == Kinds{"caught_up_worker"});
    CHECK_THAT(over[0].text, test::contains("worker 1 (serving) has caught up: it holds version " +
                                            std::to_string(version) + ", after 4 updates in a row"));
    CHECK(watch.update_over(update(++version, 10), ++own).empty());
  }
}

TEST_CASE("a cap that serialises is named with what would do, once") {
  std::uint64_t own = 0;
  SECTION("credit for one Differ of two") {
    Caps caps = roomy();
    caps.inflight = 150;
    WarningWatch watch(caps);
    const auto warned = watch.update_over(update(1, 10), ++own);
    REQUIRE(kinds(warned) == Kinds{"cap_differ_inflight"});
    CHECK_THAT(warned[0].text, test::contains("actors.differ.inflight = 150 B serialises the Differs: 1 of 2"));
    CHECK_THAT(warned[0].text, test::contains("200 B would let all"));
    CHECK(watch.update_over(update(2, 10), ++own).empty());
  }
  SECTION("a round of one piece") {
    Caps caps = roomy();
    caps.max_round = 60;
    WarningWatch watch(caps);
    Facts facts = update(1, 10);
    facts.rounds = 5;
    facts.gather_queue_peak = 20; // small pieces: they did overlap
    CHECK(watch.update_over(facts, ++own).empty());
    facts.gather_queue_peak = 50;
    const auto warned = watch.update_over(facts, ++own);
    REQUIRE(kinds(warned) == Kinds{"cap_max_round"});
    CHECK_THAT(warned[0].text, test::contains("100 B would let them overlap"));
  }
  SECTION("flushes that hold less than a round") {
    Caps caps = roomy();
    caps.flush_cap = 172;
    caps.flush_payload = 100;
    WarningWatch watch(caps);
    Facts facts = update(1, 10);
    facts.flushes = 9;
    facts.flush_bucket_peak = 200;
    facts.gather_queue_peak = 180; // both flushes hold it
    CHECK(watch.update_over(facts, ++own).empty());
    facts.gather_queue_peak = 700;
    const auto warned = watch.update_over(facts, ++own);
    REQUIRE(kinds(warned) == Kinds{"cap_flush_bucket"});
    // In bytes of the key, as it was written and as it should be: with the header that each flush has.
    CHECK_THAT(warned[0].text, test::starts_with("actors.flush_bucket.cap = 172 B serialises"));
    CHECK_THAT(warned[0].text, test::contains("573 B would hold a round"));
    CHECK(watch.update_over(facts, ++own).empty());
  }
}

} // namespace deltawire::telemetry
