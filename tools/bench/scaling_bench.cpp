#include "scaling_bench.hpp"

#include "update_bench.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace deltawire::bench {
namespace {

/// A row of a series.
struct Variation {
  UpdateSettings settings; ///< of one density
  std::string input;
  double size = 0; ///< of what grows
};

/// One thing grows from row to row.
struct Series {
  std::string what;
  std::vector<Variation> rows{};
};

std::string gib_of(const ModelShape& shape) {
  return fmt::format("{:.3g} GiB", static_cast<double>(shape.bytes) / 0x1p30);
}

/// As many changes in ever more weights, or the same share of them.
Series grow_weights(const UpdateSettings& base, bool equal_changes) {
  Series series{equal_changes ? "weights, equal changes" : "weights"};
  for (const std::uint32_t times : {1u, 2u, 4u}) {
    UpdateSettings settings = base;
    settings.shape.bytes *= times;
    if (equal_changes)
      settings.densities.front() /= times;
    const std::string input = fmt::format("{}, {:g} % changed", gib_of(settings.shape), settings.densities.front());
    series.rows.push_back({std::move(settings), input, static_cast<double>(times)});
  }
  return series;
}

Series grow_ranks(const UpdateSettings& base) {
  Series series{"ranks"};
  for (const std::uint32_t ranks : {1u, 2u, 4u, 8u}) {
    UpdateSettings settings = base;
    settings.shape.ranks = ranks;
    series.rows.push_back({std::move(settings), fmt::format("{} ranks", ranks), static_cast<double>(ranks)});
  }
  return series;
}

Series grow_workers(const UpdateSettings& base) {
  Series series{"workers"};
  for (const std::uint32_t workers : {1u, 2u, 4u, 8u, 16u}) {
    UpdateSettings settings = base;
    settings.shape.workers = workers;
    series.rows.push_back({std::move(settings), fmt::format("{} workers", workers), static_cast<double>(workers)});
  }
  return series;
}

Series grow_changes(const UpdateSettings& base, const std::vector<double>& densities) {
  Series series{"changes"};
  for (const double density : densities) {
    UpdateSettings settings = base;
    settings.densities = {density};
    series.rows.push_back({std::move(settings), fmt::format("{:g} % changed", density), density});
  }
  return series;
}

/// Where the time went, one part after the other: until the last rank had captured, until the workers stood still, and
/// while they did.
std::string parts_of(const Rounds& rounds) {
  const auto percent = [&](auto&& seconds) {
    return 100 * rounds.median_of([&](const Round& round) { return seconds(round) / round.update.seconds; });
  };
  const double capture = percent([](const Round& round) { return round.update.outcome.captured_s; });
  const double pause = percent([](const Round& round) { return round.update.outcome.pause_s; });
  return fmt::format("capture {:.0f} %, delivery {:.0f} %, pause {:.0f} %", capture,
                     std::max(0.0, 100 - capture - pause), pause);
}

Result<void> run_series(const Series& series, Report& report) {
  double first_seconds = 0;
  double first_bound = 0;
  for (const Variation& variation : series.rows) {
    const auto measured = measure_updates(variation.settings);
    if (!measured)
      return tl::make_unexpected(measured.error());
    const Rounds& rounds = measured->front();
    const double seconds = rounds.median_of([](const Round& round) { return round.update.seconds; });
    const double bound = rounds.median_of([&](const Round& round) { return rounds.hardware(round); });
    first_seconds = first_seconds == 0 ? seconds : first_seconds;
    first_bound = first_bound == 0 ? bound : first_bound;
    Row row = row_of(variation.settings, rounds);
    row.work = series.what;
    row.input = variation.input;
    const double size = variation.size / series.rows.front().size;
    row.figures.push_back({"growth", "size", "x", size, true});
    row.figures.push_back({"growth", "time", "x", seconds / first_seconds, true});
    row.figures.push_back({"growth", "memory's time", "x", bound / first_bound, true});
    row.figures.push_back({"growth", "time of linear", "x", seconds / first_seconds / size});
    row.remark = parts_of(rounds);
    report.rows.push_back(std::move(row));
  }
  return {};
}

} // namespace

Result<Report> scaling_bench(const BenchOptions& options) {
  UpdateSettings base = settings_of(options);
  base.densities = {options.densities.empty() ? 1 : options.densities.front()};
  base.own_kernels = false; // those are bench update's; here their memory would double what the largest rows take
  const std::vector<double> densities =
    options.densities.empty() ? std::vector<double>{0.01, 0.1, 1, 10, 50} : options.densities;
  Report report{"scaling", {}};
  for (const Series& series : {grow_weights(base, false), grow_weights(base, true), grow_ranks(base),
                               grow_workers(base), grow_changes(base, densities)})
    if (auto ran = run_series(series, report); !ran)
      return pass_on(std::move(ran));
  return report;
}

} // namespace deltawire::bench
