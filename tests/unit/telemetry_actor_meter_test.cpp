// Contract: src/telemetry/actor_meter.hpp.
#include "telemetry/actor_meter.hpp"

#include "catch.hpp"
#include "telemetry/catalogue.hpp"

#include <nlohmann/json.hpp>

namespace deltawire::telemetry {

TEST_CASE("messages of an actor are counted by kind, with time, bytes, and what waits") {
  const auto registry = std::make_shared<Registry>(Labels{{"rank", "2"}});
  const Labels tick{{"actor", "sender"}, {"message", "Tick"}}, frame{{"actor", "sender"}, {"message", "Frame"}};
  {
    ActorMeter meter(registry, nullptr, "rank 2", "sender");
    const auto ticks = meter.message("Tick"), frames = meter.message("Frame");
    CHECK(registry->gauge(family::actor_running, {{"actor", "sender"}}).value() == 1);
    meter.end(ticks, meter.begin(3), 0);
    meter.end(frames, meter.begin(1), 100);
    meter.failed(frames, meter.begin(0), 28);
  }
  CHECK(registry->counter(family::messages, tick).value() == 1);
  CHECK(registry->counter(family::messages, frame).value() == 2);
  CHECK(registry->counter(family::message_bytes, frame).value() == 128);
  CHECK(registry->counter(family::actor_errors, {{"actor", "sender"}}).value() == 1);
  CHECK(registry->gauge(family::mailbox_length, {{"actor", "sender"}}).value() == 0);
  CHECK(registry->gauge(family::mailbox_length_high_water, {{"actor", "sender"}}).value() == 3);
  CHECK(registry->gauge(family::actor_running, {{"actor", "sender"}}).value() == 0);
  // What was busy is what the histograms hold.
  CHECK(registry->stopwatch(family::actor_busy, {{"actor", "sender"}}).value() ==
        registry->histogram(family::message_seconds, tick).sum() +
          registry->histogram(family::message_seconds, frame).sum());
}

TEST_CASE("an actor that has work and no credit is blocked between messages, and one stretch of the trace") {
  const auto registry = std::make_shared<Registry>(Labels{});
  const auto recorder = std::make_shared<Recorder>("rank 0", 1);
  const Labels labels{{"actor", "flush bucket"}};
  bool blocked = false;
  {
    ActorMeter meter(registry, recorder, "rank 0", "flush bucket");
    meter.block_when([&] { return blocked; });
    const auto message = meter.message("Round");
    meter.end(message, meter.begin(0), 0);
    const Stopwatch& time = registry->stopwatch(family::actor_blocked, labels);
    CHECK_FALSE(time.runs());
    CHECK(time.value() == 0);
    blocked = true;
    meter.end(message, meter.begin(0), 0);
    CHECK(time.runs());
    const auto begin = meter.begin(0);
    CHECK_FALSE(time.runs()); // a message is handled: that is busy
    CHECK(registry->stopwatch(family::actor_busy, labels).runs());
    meter.end(message, begin, 0);
    CHECK(time.runs());
    CHECK_FALSE(registry->stopwatch(family::actor_busy, labels).runs());
    blocked = false;
    meter.end(message, meter.begin(0), 0);
    CHECK_FALSE(time.runs());
    const std::uint64_t so_far = time.value();
    CHECK(so_far > 0);
    CHECK(time.value() == so_far);
    blocked = true;
    meter.end(message, meter.begin(0), 0);
    CHECK(time.runs());
    meter.unfollow(); // what is asked about is about to go
    meter.end(message, meter.begin(0), 0);
    CHECK_FALSE(time.runs());
  }
  std::size_t stretches = 0;
  const auto trace = nlohmann::json::parse(recorder->json());
  for (const auto& event : trace.at("traceEvents"))
    stretches += event.at("ph") == "X" && event.at("name") == "blocked" ? 1 : 0;
  CHECK(stretches == 2);
}

TEST_CASE("a followed count is sampled after each message, as metrics and in the trace, until unfollowed") {
  const auto registry = std::make_shared<Registry>(Labels{});
  const auto recorder = std::make_shared<Recorder>("rank 0", 1);
  HighWater held;
  ActorMeter meter(registry, recorder, "rank 0", "applier", true);
  meter.follow(held, "applier", 4096);
  const auto message = meter.message("Frame");
  held.add(1000);
  held.remove(900);
  meter.end(message, meter.begin(0), 0);
  meter.end(message, meter.begin(0), 0); // nothing new
  CHECK(registry->gauge(family::held_bytes, {{"actor", "applier"}}).value() == 100);
  CHECK(registry->gauge(family::held_bytes_high_water, {{"actor", "applier"}}).value() == 1000);
  CHECK(registry->gauge(family::cap_bytes, {{"actor", "applier"}}).value() == 4096);
  meter.unfollow();
  held.add(1);
  meter.end(message, meter.begin(0), 0);
  CHECK(registry->gauge(family::held_bytes, {{"actor", "applier"}}).value() == 100);

  std::size_t counts = 0, spans = 0;
  const auto trace = nlohmann::json::parse(recorder->json());
  for (const auto& event : trace.at("traceEvents")) {
    counts += event.at("ph") == "C" ? 1 : 0;
    spans += event.at("ph") == "X" && event.at("name") == "Frame" ? 1 : 0;
  }
  CHECK(counts == 1);
  CHECK(spans == 3);
}

} // namespace deltawire::telemetry
