// Counters and high-water gauges by name, so that one exposition can list them all. Updating a metric takes no lock;
// the registry locks only to find or list. Names are Prometheus's: "deltawire_flushes_total", "deltawire_differ_bytes".
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::telemetry {

/// Only grows. Thread-safe.
class Counter {
public:
  void add(std::uint64_t amount = 1) noexcept { value_.fetch_add(amount, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
  std::atomic<std::uint64_t> value_{0};
};

/// What is held now, and the most that ever was. Thread-safe; the peak is exact: every value that now() ever had is at
/// or below it.
class HighWater {
public:
  void add(std::uint64_t amount) noexcept {
    const std::uint64_t level = now_.fetch_add(amount, std::memory_order_relaxed) + amount;
    std::uint64_t peak = peak_.load(std::memory_order_relaxed);
    while (peak < level && !peak_.compare_exchange_weak(peak, level, std::memory_order_relaxed)) {
    }
  }

  /// Stops at 0: a defect in someone's accounts must not turn the gauge into 2^64.
  void remove(std::uint64_t amount) noexcept {
    std::uint64_t level = now_.load(std::memory_order_relaxed);
    while (!now_.compare_exchange_weak(level, level < amount ? 0 : level - amount, std::memory_order_relaxed)) {
    }
  }

  [[nodiscard]] std::uint64_t now() const noexcept { return now_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t peak() const noexcept { return peak_.load(std::memory_order_relaxed); }

private:
  std::atomic<std::uint64_t> now_{0};
  std::atomic<std::uint64_t> peak_{0};
};

struct Sample {
  enum class Kind { counter, gauge };

  std::string name;
  Kind kind = Kind::counter;
  std::string description;
  std::uint64_t value = 0;

  friend bool operator==(const Sample&, const Sample&) = default;
};

/// Owns the metrics of one process (or of one rank or worker, where several live in a process). Thread-safe; the
/// references it gives stay valid for its life. Not copied, not moved.
class Registry {
public:
  Registry() = default;
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  /// The counter of this name, made on first use; the first description stays. The name ends in "_total", which is also
  /// what keeps it apart from the gauges.
  [[nodiscard]] Counter& counter(std::string_view name, std::string_view description = "");

  /// The gauge of this name, made on first use. snapshot() lists it twice: `name` is what is held now and
  /// `name`_high_water the peak. The name ends in neither "_total" nor "_high_water".
  [[nodiscard]] HighWater& high_water(std::string_view name, std::string_view description = "");

  /// All metrics, sorted by name. Values are read one by one while others may write: each is right, not all at one
  /// moment.
  [[nodiscard]] std::vector<Sample> snapshot() const;

private:
  template <class Metric>
  struct Entry {
    std::string description;
    Metric metric;
  };

  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Entry<Counter>>, std::less<>> counters_;
  std::map<std::string, std::unique_ptr<Entry<HighWater>>, std::less<>> high_waters_;
};

} // namespace deltawire::telemetry
