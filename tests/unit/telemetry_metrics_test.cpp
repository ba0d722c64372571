// Contract: src/telemetry/metrics.hpp.
#include "telemetry/metrics.hpp"

#include "catch.hpp"
#include "random.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace deltawire::telemetry {

TEST_CASE("a high-water gauge keeps the most that was ever held") {
  HighWater gauge;
  CHECK(gauge.now() == 0);
  CHECK(gauge.peak() == 0);
  gauge.add(5);
  gauge.add(7);
  gauge.remove(10);
  gauge.add(3);
  CHECK(gauge.now() == 5);
  CHECK(gauge.peak() == 12);
}

TEST_CASE("removing more than is held stops at 0") {
  HighWater gauge;
  gauge.add(5);
  gauge.remove(6);
  CHECK(gauge.now() == 0);
  gauge.add(2);
  CHECK(gauge.now() == 2);
  CHECK(gauge.peak() == 5);
}

TEST_CASE("a high-water gauge agrees with a plain account of random steps") {
  CAPTURE(test::seed());
  auto random = test::generator(1);
  HighWater gauge;
  std::uint64_t now = 0;
  std::uint64_t peak = 0;
  for (int i = 0; i < 100'000; ++i) {
    if (random() % 2 == 0) {
      const std::uint64_t amount = random() % 1000;
      gauge.add(amount);
      now += amount;
      peak = now > peak ? now : peak;
    } else {
      const std::uint64_t amount = random() % (now + 1);
      gauge.remove(amount);
      now -= amount;
    }
    REQUIRE(gauge.now() == now);
    REQUIRE(gauge.peak() == peak);
  }
}

TEST_CASE("concurrent writers lose nothing, and the peak is neither below nor above what can have been held") {
  HighWater gauge;
  Counter counter;
  constexpr int threads = 4;
  constexpr int steps = 20'000;
  {
    std::vector<std::jthread> writers;
    for (int t = 0; t < threads; ++t)
      writers.emplace_back([&] {
        for (int i = 0; i < steps; ++i) {
          gauge.add(3);
          counter.add();
          gauge.remove(2);
        }
      });
  }
  CHECK(counter.value() == std::uint64_t{threads} * steps);
  CHECK(gauge.now() == std::uint64_t{threads} * steps);
  CHECK(gauge.peak() >= gauge.now());
  CHECK(gauge.peak() <= gauge.now() + 2 * threads);
}

TEST_CASE("durations fall into the bucket of the least power of two that holds them") {
  CHECK(Histogram::bound(0) == 1024);
  CHECK(Histogram::bound(Histogram::bounds - 1) == 8'589'934'592);
  CAPTURE(test::seed());
  auto random = test::generator(2);
  std::vector<std::uint64_t> durations{0, 1, 1023, 1024, 1025, 2048, 2049, 8'589'934'592, 8'589'934'593, ~0ull >> 8};
  for (int i = 0; i < 10'000; ++i)
    durations.push_back(random() >> (random() % 60 + 4));
  Histogram histogram;
  std::array<std::uint64_t, Histogram::bounds + 1> expected{};
  std::uint64_t sum = 0;
  for (const std::uint64_t duration : durations) {
    histogram.record(duration);
    sum += duration;
    std::size_t b = 0;
    while (b < Histogram::bounds && duration > Histogram::bound(b))
      ++b;
    ++expected[b];
  }
  for (std::size_t b = 0; b < expected.size(); ++b) {
    CAPTURE(b);
    CHECK(histogram.count(b) == expected[b]);
  }
  CHECK(histogram.sum() == sum);
}

namespace {

const Family bytes{"test_bytes", Kind::gauge, "actor", "Bytes"};
const Family flushes{"test_flushes_total", Kind::counter, "kind", "Flushes"};
const Family seconds{"test_seconds", Kind::histogram, "", "Seconds", 1e-9};

} // namespace

TEST_CASE("a registry gives the same metric for the same labels, and lists families by name and series by label") {
  Registry registry(Labels{{"rank", "0"}});
  CHECK(registry.list().empty());
  Counter& small = registry.counter(flushes, {{"kind", "small"}});
  Counter& large = registry.counter(flushes, {{"kind", "large"}});
  CHECK(&registry.counter(flushes, {{"kind", "small"}}) == &small);
  CHECK(&small != &large);
  small.add(3);
  large.add();
  registry.gauge(bytes, {{"actor", "differ"}}).set(7);

  const auto list = registry.list();
  REQUIRE(list.size() == 2);
  CHECK(list[0].family == &bytes);
  CHECK(list[0].samples.at(0).labels == Labels{{"rank", "0"}, {"actor", "differ"}});
  CHECK(list[0].samples.at(0).value == 7);
  REQUIRE(list[1].samples.size() == 2);
  CHECK(list[1].samples[0].labels == Labels{{"rank", "0"}, {"kind", "large"}});
  CHECK(list[1].samples[1].value == 3);
}

TEST_CASE("counters and gauges are listed from 0 on, histograms and what counts a kind of message once they counted") {
  Registry registry(Labels{});
  static_cast<void>(registry.counter(flushes));
  static_cast<void>(registry.histogram(seconds));
  static_cast<void>(registry.gauge(bytes));
  Counter& of_a_message = registry.counter(flushes, {{"message", "Chunk"}});
  const auto listed = [&] {
    std::vector<std::pair<const Family*, std::size_t>> families;
    for (const Listing& each : registry.list())
      families.emplace_back(each.family, each.samples.size());
    return families;
  };
  using Listed = std::vector<std::pair<const Family*, std::size_t>>;
  CHECK(listed() == Listed{{&bytes, 1}, {&flushes, 1}});
  of_a_message.add();
  CHECK(listed() == Listed{{&bytes, 1}, {&flushes, 2}});
}

TEST_CASE("seconds are stored as nanoseconds and listed in their unit, buckets cumulative") {
  Registry registry(Labels{});
  Histogram& histogram = registry.histogram(seconds);
  histogram.record(500);
  histogram.record(1500);
  histogram.record(1ull << 40);
  const Sample sample = registry.list().at(0).samples.at(0);
  CHECK(sample.count == 3);
  CHECK(sample.counts.at(0) == 1);
  CHECK(sample.counts.at(1) == 2);
  CHECK(sample.counts.back() == 2);
  CHECK(sample.sum == Approx(2e-6 + 1099.511627776));
}

TEST_CASE("a stopwatch adds up its stretches, and shows the one that runs") {
  const auto at = [](std::int64_t ns) { return Stopwatch::Point{std::chrono::nanoseconds{ns}}; };
  Stopwatch watch;
  CHECK(watch.value(at(50)) == 0);
  watch.start(at(100));
  CHECK(watch.runs());
  CHECK(watch.value(at(130)) == 30);
  CHECK(watch.value(at(90)) == 30); // another reader's clock: never less than what was read
  watch.stop(at(160));
  CHECK_FALSE(watch.runs());
  CHECK(watch.value(at(500)) == 60);
  watch.start(at(600));
  watch.stop(at(599)); // set back
  watch.start(at(700));
  CHECK(watch.value(at(705)) == 65);
  watch.stop(at(702)); // the reader was ahead of what the writer knew
  CHECK(watch.value(at(900)) == 65);
  watch.start(at(1000));
  CHECK(watch.value(at(1010)) == 72);
}

TEST_CASE("who reads a stopwatch while it starts and stops sees every stretch once, and never less than before") {
  static const Family busy{"test_busy_seconds_total", Kind::counter, "", "Busy", 1e-9};
  Registry registry(Labels{});
  Stopwatch& watch = registry.stopwatch(busy);
  const auto begin = std::chrono::steady_clock::now();
  watch.start(begin);
  std::atomic<bool> ended{false};
  // It stands still for no moment: a stretch that is seen twice is more time than there was.
  std::jthread writer([&] {
    for (auto last = begin; !ended;) {
      const auto now = std::chrono::steady_clock::now();
      if (now - last < std::chrono::microseconds(1))
        continue;
      last = now;
      watch.stop(now);
      watch.start(now);
    }
  });
  std::uint64_t last = 0;
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t now = watch.value();
    const auto passed = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
    if (now < last || now > static_cast<std::uint64_t>(passed))
      FAIL("read " << now << " after " << last << ", and " << passed << " have passed");
    last = now;
  }
  ended = true;
  writer.join();
  watch.stop(std::chrono::steady_clock::now());
  CHECK(registry.list().at(0).samples.at(0).value == Approx(static_cast<double>(watch.value()) * 1e-9));
}

TEST_CASE("lists of several ranks merge into one family each") {
  Registry first(Labels{{"rank", "0"}}), second(Labels{{"worker", "1"}});
  first.gauge(bytes).set(1);
  second.gauge(bytes).set(2);
  second.counter(flushes).add();
  const auto merged = merge({second.list(), first.list()});
  REQUIRE(merged.size() == 2);
  REQUIRE(merged[0].samples.size() == 2);
  CHECK(merged[0].samples[0].labels == Labels{{"rank", "0"}});
  CHECK(merged[0].samples[1].value == 2);
}

TEST_CASE("threads may ask for metrics and list them at once") {
  Registry registry(Labels{});
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) {
          registry.counter(flushes, {{"kind", std::to_string(i % 50)}}).add();
          static_cast<void>(registry.list());
        }
      });
  }
  double sum = 0;
  const auto list = registry.list();
  for (const Sample& sample : list.at(0).samples)
    sum += sample.value;
  CHECK(sum == 2000);
}

} // namespace deltawire::telemetry
