// Contract: src/telemetry/metrics.hpp.
#include "telemetry/metrics.hpp"

#include "catch.hpp"
#include "random.hpp"

#include <thread>

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

TEST_CASE("a registry gives the same metric for the same name and lists all by name") {
  Registry registry;
  CHECK(registry.snapshot().empty());
  HighWater& differ = registry.high_water("deltawire_differ_bytes", "encoded changes waiting to leave");
  Counter& flushes = registry.counter("deltawire_flushes_total", "sealed flushes");
  CHECK(&registry.counter("deltawire_flushes_total", "another description") == &flushes);
  CHECK(&registry.high_water("deltawire_differ_bytes") == &differ);
  differ.add(9);
  differ.remove(2);
  flushes.add(3);
  registry.counter("deltawire_aborts_total").add();

  using Kind = Sample::Kind;
  CHECK(registry.snapshot() ==
        std::vector<Sample>{
          {"deltawire_aborts_total", Kind::counter, "", 1},
          {"deltawire_differ_bytes", Kind::gauge, "encoded changes waiting to leave", 7},
          {"deltawire_differ_bytes_high_water", Kind::gauge, "encoded changes waiting to leave (the most so far)", 9},
          {"deltawire_flushes_total", Kind::counter, "sealed flushes", 3},
        });
}

TEST_CASE("threads may ask for metrics and list them at once") {
  Registry registry;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) {
          registry.counter("deltawire_steps" + std::to_string(i % 50) + "_total").add();
          static_cast<void>(registry.snapshot());
        }
      });
  }
  std::uint64_t sum = 0;
  for (const Sample& sample : registry.snapshot())
    sum += sample.value;
  CHECK(sum == 2000);
}

} // namespace deltawire::telemetry
