#include "pause_bench.hpp"

#include "machine.hpp"
#include "measure.hpp"
#include "parallel.hpp"
#include "replay/numbers.hpp"
#include "scratch_folder.hpp"
#include "update_bench.hpp"
#include "update_session.hpp"

#include "kernels/digest.hpp"
#include "kernels/values.hpp"

#include <chrono>
#include <semaphore>
#include <thread>

namespace deltawire::bench {
namespace {

using Steady = std::chrono::steady_clock;

double seconds_since(Steady::time_point begin) {
  return std::chrono::duration<double>(Steady::now() - begin).count();
}

constexpr std::size_t tile_elements = 4096; // elements
constexpr std::size_t element_bytes = 2;

/// The elements of one worker that an update changed, by address: all that the bound's two passes need.
class ChangedElements {
public:
  /// `places` as change_weights() lists them; `memory` is the worker's.
  ChangedElements(const ModelPlan& plan, std::uint32_t worker, const std::vector<Places>& places, std::byte* memory) {
    for (std::size_t m = 0; m < places.size(); ++m) {
      const Matrix& matrix = plan.matrices()[m];
      const HeldBox& box = matrix.held[worker];
      std::size_t open = ~std::size_t{0}; // the tile that is being filled
      for (const std::uint32_t place : places[m]) {
        const std::size_t row = place / matrix.columns, column = place % matrix.columns;
        if (row < box.rows.first || row >= box.rows.end || column < box.columns.first || column >= box.columns.end)
          continue;
        const std::size_t at = (row - box.rows.first) * box.columns.length() + column - box.columns.first;
        if (at / tile_elements != open) {
          open = at / tile_elements;
          tiles_.push_back({memory + box.offset + open * tile_elements * element_bytes, positions_.size(), 0});
        }
        positions_.push_back(static_cast<std::uint16_t>(at % tile_elements));
        ++tiles_.back().count;
      }
    }
    values_.resize(positions_.size() * element_bytes);
  }

  /// Swaps all of them with what exchange() took last; the second call undoes the first.
  void exchange() {
    for (std::size_t t = 0; t < tiles_.size(); ++t) {
      if (t + 1 < tiles_.size())
        kernels::prefetch(tiles_[t + 1].start, {}, positions(tiles_[t + 1]), element_bytes);
      kernels::exchange(tiles_[t].start, {}, positions(tiles_[t]), element_bytes,
                        values_.data() + tiles_[t].first * element_bytes);
    }
  }

  [[nodiscard]] std::uint64_t read_back() const {
    std::uint64_t digest = 0;
    for (std::size_t t = 0; t < tiles_.size(); ++t) {
      if (t + 1 < tiles_.size())
        kernels::prefetch(tiles_[t + 1].start, {}, positions(tiles_[t + 1]), element_bytes);
      digest += kernels::digest_at(tiles_[t].start, {}, t * tile_elements, {}, positions(tiles_[t]), element_bytes);
    }
    return digest;
  }

private:
  struct Tile {
    std::byte* start = nullptr;
    std::size_t first = 0; ///< of its positions
    std::size_t count = 0;
  };
  [[nodiscard]] std::span<const std::uint16_t> positions(const Tile& tile) const {
    return std::span(positions_).subspan(tile.first, tile.count);
  }

  std::vector<Tile> tiles_;
  std::vector<std::uint16_t> positions_; ///< in their tile, ascending
  std::vector<std::byte> values_;
};

/// Exchange and read-back of all workers' changed elements, in the memory that they serve from, which is left as it
/// was; as in a session each worker's is one thread's. Seconds by the clock.
double exchange_and_read_back(const ModelPlan& plan, const std::vector<Places>& places, UpdateSession& session) {
  std::vector<ChangedElements> workers;
  for (std::uint32_t worker = 0; worker < plan.shape().workers; ++worker)
    workers.emplace_back(plan, worker, places, session.memory_of(worker));
  const auto begin = Steady::now();
  in_parallel(workers.size(), usable_cores(), [&](std::size_t worker, std::size_t) {
    workers[worker].exchange();
    keep(static_cast<std::size_t>(workers[worker].read_back()));
  });
  const double seconds = seconds_since(begin);
  for (ChangedElements& worker : workers)
    worker.exchange();
  return seconds;
}

/// A word from one thread to another that sleeps, and its answer: seconds, the mean of some.
double round_trip() {
  constexpr int trips = 200;
  std::binary_semaphore there{0}, back{0};
  const std::jthread other([&] {
    for (int i = 0; i < trips; ++i) {
      there.acquire();
      back.release();
    }
  });
  const auto begin = Steady::now();
  for (int i = 0; i < trips; ++i) {
    there.release();
    back.acquire();
  }
  return seconds_since(begin) / trips;
}

struct PauseRound {
  double pause = 0;  ///< of the worker that stood still longest
  double memory = 0; ///< exchange and read-back
  double round_trip = 0;
  double changed = 0;

  [[nodiscard]] double limit() const noexcept { return memory + round_trip; }
};

Result<std::vector<PauseRound>> measure_pauses(const UpdateSettings& settings) {
  const ModelPlan plan(settings.shape);
  // Weights, snapshots and workers; and what changed, on its way and listed.
  const double needed = static_cast<double>(plan.bytes()) * (3 + 8 * settings.densities.front() / 100);
  if (const auto available = available_memory(); available && needed > static_cast<double>(*available))
    return fail(Code::limit_exceeded,
                "{} of weights need about {} of memory, and {} are available: choose a smaller "
                "--gib, of which four times as much is measured too",
                replay::short_bytes(plan.bytes()), replay::short_bytes(static_cast<std::uint64_t>(needed)),
                replay::short_bytes(*available));
  HugeArray weights(plan.bytes());
  fill_with_weights(plan, weights.data());
  const auto folder = ScratchFolder::make();
  if (!folder)
    return tl::make_unexpected(folder.error());
  const auto topology = folder->write("bench.toml", plan.topology());
  if (!topology)
    return tl::make_unexpected(topology.error());
  auto session = UpdateSession::open(plan, weights.data(), *topology, settings.overrides);
  if (!session)
    return pass_on(std::move(session));
  std::vector<PauseRound> rounds;
  std::vector<Places> places;
  for (std::size_t update = 0; update < settings.runs + 2; ++update) { // the seed, and one that warms up
    if (update > 0)
      (void)change_weights(plan, weights.data(), settings.densities.front() / 100, settings.spread, update, &places);
    auto timed = (*session)->update();
    if (!timed)
      return pass_on(std::move(timed));
    for (std::uint32_t worker = 0; worker < settings.shape.workers; ++worker)
      if (auto equal = compare_worker(plan, weights.data(), worker, (*session)->memory_of(worker)); !equal)
        return pass_on(std::move(equal));
    if (update > 0) {
      const double memory = exchange_and_read_back(plan, places, **session);
      if (update > 1)
        rounds.push_back({timed->outcome.pause_s, memory, round_trip(), static_cast<double>(timed->outcome.changed)});
    }
  }
  if (auto closed = (*session)->close(); !closed)
    return pass_on(std::move(closed));
  return rounds;
}

template <class Value>
double median_of(const std::vector<PauseRound>& rounds, Value&& value) {
  std::vector<double> values;
  for (const PauseRound& round : rounds)
    values.push_back(value(round));
  return median(std::move(values));
}

} // namespace

Result<Report> pause_bench(const BenchOptions& options) {
  UpdateSettings settings = settings_of(options);
  settings.densities = {options.densities.empty() ? 1 : options.densities.front()};
  Report report{"pause", {}};
  double smaller = 0;
  for (const unsigned times : {1u, 4u}) {
    UpdateSettings each = settings;
    each.shape.bytes *= times;
    each.densities.front() /= times;
    const auto rounds = measure_pauses(each);
    if (!rounds)
      return tl::make_unexpected(rounds.error());
    const double pause = median_of(*rounds, [](const PauseRound& round) { return round.pause; });
    smaller = times == 1 ? pause : smaller;
    const double changed_bytes =
      median_of(*rounds, [](const PauseRound& round) { return round.changed; }) * element_bytes;
    Row row{
      fmt::format("{} ranks to {} workers", each.shape.ranks, each.shape.workers),
      fmt::format("{:.3g} GiB, {:g} % changed", static_cast<double>(each.shape.bytes) / 0x1p30, each.densities.front()),
      usable_cores(),
      changed_bytes / pause,
      {}};
    const auto figure = [&](const char* name, const char* unit, double scale, auto&& value, bool in_table = true) {
      row.figures.push_back({"pause", name, unit, scale * median_of(*rounds, value), in_table});
    };
    figure("changed", "M", 1e-6, [](const PauseRound& round) { return round.changed; });
    figure("pause", "ms", 1e3, [](const PauseRound& round) { return round.pause; });
    figure("exchange and read back", "ms", 1e3, [](const PauseRound& round) { return round.memory; });
    figure("round trip", "us", 1e6, [](const PauseRound& round) { return round.round_trip; });
    row.figures.push_back({"pause", "against the smaller model's", "x", pause / smaller, true});
    row.limits.push_back({"exchange, read back and a round trip",
                          changed_bytes / median_of(*rounds, [](const PauseRound& round) { return round.limit(); }),
                          median_of(*rounds, [](const PauseRound& round) { return round.limit() / round.pause; })});
    report.rows.push_back(std::move(row));
  }
  return report;
}

} // namespace deltawire::bench
