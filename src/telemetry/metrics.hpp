// The metrics of one trainer rank or worker: counters, gauges and histograms by family and labels. Updating a metric is
// a few relaxed atomic operations: no lock, no allocation. The registry locks only to make a metric or to list them.
// Families are in catalogue.hpp; what lists them over HTTP is endpoint.hpp.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
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

/// The last value that was set. Thread-safe.
class Gauge {
public:
  void set(std::uint64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  /// Only upwards.
  void raise(std::uint64_t value) noexcept {
    std::uint64_t most = value_.load(std::memory_order_relaxed);
    while (most < value && !value_.compare_exchange_weak(most, value, std::memory_order_relaxed)) {
    }
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
  std::atomic<std::uint64_t> value_{0};
};

/// Nanoseconds that add up while it runs; a reader sees the running stretch too. What is read never gets less, though
/// the clock of a reader may be ahead of what stop() is told. start() and stop() by one thread at a time; value() by
/// any.
class Stopwatch {
public:
  using Point = std::chrono::steady_clock::time_point;

  /// Requires that it does not run.
  void start(Point at) noexcept { change(nanoseconds(at), total_.load(std::memory_order_relaxed)); }
  /// Requires that it runs.
  void stop(Point at) noexcept {
    const std::int64_t stretch = nanoseconds(at) - since_.load(std::memory_order_relaxed);
    change(stopped, total_.load(std::memory_order_relaxed) + natural(stretch));
  }
  [[nodiscard]] bool runs() const noexcept { return since_.load(std::memory_order_relaxed) != stopped; }

  [[nodiscard]] std::uint64_t value(Point now = std::chrono::steady_clock::now()) const noexcept {
    std::uint64_t value = 0;
    for (std::uint32_t before = 1, after = 0; before != after || before % 2 == 1;) { // a change is under way, or was
      before = changes_.load(std::memory_order_acquire);
      const std::int64_t since = since_.load(std::memory_order_acquire);
      value = total_.load(std::memory_order_acquire) + (since == stopped ? 0 : natural(nanoseconds(now) - since));
      after = changes_.load(std::memory_order_acquire);
    }
    std::uint64_t shown = shown_.load(std::memory_order_relaxed);
    while (shown < value && !shown_.compare_exchange_weak(shown, value, std::memory_order_relaxed)) {
    }
    return shown < value ? value : shown;
  }

private:
  static constexpr std::int64_t stopped = -1;

  static std::int64_t nanoseconds(Point at) noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
  }
  static std::uint64_t natural(std::int64_t ns) noexcept { return ns < 0 ? 0 : static_cast<std::uint64_t>(ns); }

  /// Both at once, for readers: the number of changes is odd meanwhile.
  void change(std::int64_t since, std::uint64_t total) noexcept {
    const std::uint32_t changes = changes_.load(std::memory_order_relaxed);
    changes_.store(changes + 1, std::memory_order_relaxed);
    since_.store(since, std::memory_order_release);
    total_.store(total, std::memory_order_release);
    changes_.store(changes + 2, std::memory_order_release);
  }

  std::atomic<std::uint32_t> changes_{0};
  std::atomic<std::int64_t> since_{stopped};
  std::atomic<std::uint64_t> total_{0};
  mutable std::atomic<std::uint64_t> shown_{0}; ///< the most that was read
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

/// How long things took, in nanoseconds, by powers of two: bucket b counts those of at most 2^(first_power + b) that no
/// lower bucket has, and the last one what is longer than any bound (1 us to 8.6 s). Thread-safe.
class Histogram {
public:
  static constexpr unsigned first_power = 10;
  static constexpr unsigned last_power = 33;
  static constexpr std::size_t bounds = last_power - first_power + 1;

  void record(std::uint64_t ns) noexcept {
    const unsigned power = ns <= 1 ? 0 : static_cast<unsigned>(std::bit_width(ns - 1)); // least with ns <= 2^power
    const unsigned bucket = power <= first_power ? 0 : power - first_power;
    counts_[bucket < bounds ? bucket : bounds].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(ns, std::memory_order_relaxed);
  }

  /// The largest value of a bucket, in nanoseconds; b < bounds.
  [[nodiscard]] static constexpr std::uint64_t bound(std::size_t b) noexcept { return 1ull << (first_power + b); }
  /// Not cumulative; b <= bounds.
  [[nodiscard]] std::uint64_t count(std::size_t b) const noexcept { return counts_[b].load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t sum() const noexcept { return sum_.load(std::memory_order_relaxed); }

private:
  std::array<std::atomic<std::uint64_t>, bounds + 1> counts_{};
  std::atomic<std::uint64_t> sum_{0};
};

enum class Kind : std::uint8_t { counter, gauge, histogram };

/// One kind of metric: its name is Prometheus's, with unit, and what tells its series apart are labels. Static:
/// borrowed for ever.
struct Family {
  std::string_view name;
  Kind kind = Kind::counter;
  std::string_view labels; ///< "actor, message"; rank or worker come on top
  std::string_view help;
  double scale = 1; ///< what a stored number is in the family's unit: 1e-9 for seconds stored as nanoseconds
};

/// (name, value), in the order of exposition. Few and bounded: never a tensor, never a version.
using Labels = std::vector<std::pair<std::string, std::string>>;

struct Sample {
  Labels labels;
  double value = 0; ///< counter, gauge
  // histogram
  std::vector<std::uint64_t> counts; ///< cumulative, one a bound; empty: none
  std::uint64_t count = 0;           ///< with what is past the last bound
  double sum = 0;
};

/// A family with its series, sorted by labels.
struct Listing {
  const Family* family = nullptr;
  std::vector<Sample> samples;
};

/// Owns the metrics of one rank or worker. Thread-safe; the references that it gives stay valid for its life. Not
/// copied, not moved.
class Registry {
public:
  /// `own` labels every series: rank or worker.
  explicit Registry(Labels own) : own_(std::move(own)) {}
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  /// The metric of the family with these labels, made on first use, which must be of the family's kind.
  [[nodiscard]] Counter& counter(const Family& family, const Labels& labels = {});
  /// A counter of time, by nanoseconds.
  [[nodiscard]] Stopwatch& stopwatch(const Family& family, const Labels& labels = {});
  [[nodiscard]] Gauge& gauge(const Family& family, const Labels& labels = {});
  [[nodiscard]] Histogram& histogram(const Family& family, const Labels& labels = {});

  /// All families that have series, by name; counters and histograms that never counted are left out. Values are read
  /// one by one while others may write: each is right, not all at one moment.
  [[nodiscard]] std::vector<Listing> list() const;

private:
  /// Deques: what is in them stays where it is.
  enum class Storage : std::uint8_t { counter, stopwatch, gauge, histogram };
  struct Series {
    Storage storage = Storage::counter;
    std::size_t index = 0;
  };
  using Key = std::pair<std::string_view, Labels>;

  template <class Metric>
  [[nodiscard]] Metric& find_or_make(const Family& family, const Labels& labels, Storage storage,
                                     std::deque<Metric>& metrics);

  const Labels own_;
  mutable std::mutex mutex_;
  std::map<std::string_view, const Family*> families_;
  std::map<Key, Series> series_;
  std::deque<Counter> counters_;
  std::deque<Stopwatch> stopwatches_;
  std::deque<Gauge> gauges_;
  std::deque<Histogram> histograms_;
};

/// The lists of several ranks and workers as one: a family once, with everybody's series.
[[nodiscard]] std::vector<Listing> merge(std::vector<std::vector<Listing>> lists);

} // namespace deltawire::telemetry
