#include "gpu_bench.hpp"

#include "measure.hpp"
#include "replay/numbers.hpp"

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/launch.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <vector>

namespace deltawire::bench {
namespace {

using namespace kernels::cuda;

constexpr std::size_t tile = kernels::part_elements;
constexpr std::size_t sector = 32; ///< bytes that device memory moves at least
constexpr std::size_t chunk_bytes = std::size_t{32} << 20;

/// A stream, and the first fault of all that was asked of it or for it.
class Queue {
public:
  void must(const Outcome& outcome) {
    if (fault_.empty())
      fault_ = outcome.fault;
  }
  void open() {
    must(stream_.open());
    must(begin_.open());
    must(end_.open());
  }
  [[nodiscard]] Stream& stream() noexcept { return stream_; }
  [[nodiscard]] const std::string& fault() const noexcept { return fault_; }

  /// Seconds that the device takes for what `work` queues.
  double time(const std::function<void()>& work) {
    must(begin_.record(stream_));
    work();
    must(end_.record(stream_));
    must(end_.wait());
    double seconds = 0;
    if (fault_.empty())
      must(end_.seconds_since(begin_, seconds));
    return seconds;
  }

  template <class T>
  T read(const T* from) {
    T value{};
    must(stream_.copy(&value, from, sizeof(T)));
    must(stream_.wait());
    return value;
  }

private:
  Stream stream_;
  Event begin_;
  Event end_;
  std::string fault_;
};

/// Something to time against a copy.
struct Work {
  std::string name;
  std::string input;
  double weights = 0;               ///< bytes of weights covered
  double moved = 0;                 ///< bytes that device memory must move for it
  std::function<void()> prepare;    ///< queued before each turn, not timed; may be empty
  std::function<void()> work;       ///< queues
  std::vector<double> seconds = {}; ///< by round
};

/// Weights on the device, a snapshot of them, and tables over both.
class GpuBench {
public:
  GpuBench(std::size_t bytes, std::size_t rounds) : bytes_(bytes), rounds_(rounds), tiles_(bytes / (2 * tile)) {}

  Result<Report> run(const std::vector<double>& percents) {
    Report report{"gpu", {}};
    prepare();
    if (queue_.fault().empty()) {
      first_capture(report);
      for (const double percent : percents)
        changes(report, percent);
      cast(report);
      streaming(report);
    }
    if (!queue_.fault().empty())
      return fail(Code::internal, "bench gpu: {}", queue_.fault());
    return report;
  }

private:
  template <class T>
  Memory on_device(std::size_t count) {
    Memory memory;
    queue_.must(memory.allocate(Home::device, std::max<std::size_t>(count, 1) * sizeof(T)));
    return memory;
  }

  template <class T>
  Memory on_device(const std::vector<T>& values) {
    Memory memory = on_device<T>(values.size());
    if (queue_.fault().empty() && !values.empty()) {
      queue_.must(queue_.stream().copy(memory.data(), values.data(), values.size() * sizeof(T)));
      queue_.must(queue_.stream().wait());
    }
    return memory;
  }

  void prepare() {
    queue_.open();
    now_ = on_device<std::byte>(bytes_);
    snapshot_ = on_device<std::byte>(bytes_);
    copy_ = on_device<std::byte>(bytes_);
    digests_ = on_device<std::uint64_t>(1);
    found_ = on_device<Found>(1);
    counts_ = on_device<std::uint32_t>(tiles_);
    workspace_ = on_device<std::byte>(workspace_bytes(tiles_));
    if (!queue_.fault().empty())
      return;
    std::vector<std::uint64_t> noise((std::size_t{8} << 20) / 8);
    std::mt19937_64 random(1);
    std::generate(noise.begin(), noise.end(), random);
    for (std::size_t at = 0; at < bytes_; at += noise.size() * 8)
      queue_.must(queue_.stream().copy(now_.data() + at, noise.data(), std::min(noise.size() * 8, bytes_ - at)));
    queue_.must(queue_.stream().fill(digests_.data(), 0, digests_.bytes()));
    std::vector<Part> parts(tiles_);
    for (std::size_t t = 0; t < tiles_; ++t) {
      parts[t].now = now_.data() + t * tile * 2;
      parts[t].snapshot = snapshot_.data() + t * tile * 2;
      parts[t].slot = t * tile;
      parts[t].elements = tile;
    }
    parts_ = on_device(parts);
    queue_.must(queue_.stream().wait());
  }

  /// A device copy of the weights: each byte read once and written once.
  void copy_weights() { queue_.must(queue_.stream().copy(copy_.data(), now_.data(), bytes_)); }

  /// Takes turns of the copy and each work, and adds a row for each.
  void measure(Report& report, std::vector<Work> works) {
    std::vector<double> copies;
    for (std::size_t round = 0; round <= rounds_; ++round) {
      const double copied = queue_.time([&] { copy_weights(); });
      if (round > 0)
        copies.push_back(copied);
      for (Work& work : works) {
        if (work.prepare)
          work.prepare();
        const double seconds = queue_.time(work.work);
        if (round > 0) // the first one warms up
          work.seconds.push_back(seconds);
      }
    }
    if (!queue_.fault().empty())
      return;
    const double copied_bytes = 2 * static_cast<double>(bytes_);
    for (const Work& work : works) {
      std::vector<double> ratios;
      for (std::size_t round = 0; round < rounds_; ++round)
        ratios.push_back(work.moved / work.seconds[round] / (copied_bytes / copies[round]));
      Row row{work.name, work.input, 1, work.weights / median(work.seconds), {}};
      // The speed that the work would have if it moved its bytes as fast as a copy does.
      row.limits.push_back(
        {"a device copy", copied_bytes / median(copies) * work.weights / work.moved, median(std::move(ratios))});
      report.rows.push_back(std::move(row));
    }
  }

  void first_capture(Report& report) {
    const auto bytes = static_cast<double>(bytes_);
    measure(report, {{"first capture and digest", "2 bytes an element", bytes, 2 * bytes, {}, [&] {
                        queue_.must(take(queue_.stream(), parts_.as<Part>(), tiles_, 2, digests_.as<std::uint64_t>()));
                      }}});
  }

  void changes(Report& report, double percent) {
    // Positions and other values of each tile; how many sectors they touch.
    std::mt19937_64 random(2);
    std::vector<std::uint16_t> positions;
    std::vector<std::size_t> first_of(tiles_ + 1);
    std::size_t sectors = 0;
    const bool all = percent >= 100;
    std::geometric_distribution<std::uint64_t> gaps(all ? 0.5 : percent / 100);
    std::size_t next = all ? 0 : gaps(random);
    for (std::size_t t = 0; t < tiles_; ++t) {
      std::size_t last = ~std::size_t{0};
      for (; next < (t + 1) * tile; next += 1 + (all ? 0 : gaps(random))) {
        positions.push_back(static_cast<std::uint16_t>(next - t * tile));
        sectors += next * 2 / sector != last;
        last = next * 2 / sector;
      }
      first_of[t + 1] = positions.size();
    }
    const std::size_t changed = positions.size();
    std::vector<std::uint16_t> values(changed);
    for (std::uint16_t& value : values)
      value = static_cast<std::uint16_t>(random());
    const Memory device_positions = on_device(positions);
    const Memory device_values = on_device(values);
    const Memory out_positions = on_device<std::uint16_t>(changed);
    const Memory before = on_device<std::uint16_t>(changed);
    const Memory after = on_device<std::uint16_t>(changed);
    if (!queue_.fault().empty())
      return;
    std::vector<Places> places(tiles_);
    for (std::size_t t = 0; t < tiles_; ++t) {
      places[t].start = now_.data() + t * tile * 2;
      places[t].values = device_values.data() + first_of[t] * 2;
      places[t].positions = device_positions.as<std::uint16_t>() + first_of[t];
      places[t].slot = t * tile;
      places[t].count = static_cast<std::uint32_t>(first_of[t + 1] - first_of[t]);
    }
    const Memory device_places = on_device(places);
    Changes out;
    out.counts = counts_.as<std::uint32_t>();
    out.positions = out_positions.as<std::uint16_t>();
    out.before = before.data();
    out.after = after.data();
    out.room = changed;
    out.digests = digests_.as<std::uint64_t>();
    out.found = found_.as<Found>();
    const auto swap = [&](std::uint64_t* digests) {
      queue_.must(exchange(queue_.stream(), device_places.as<Places>(), tiles_, 2, digests));
    };
    const auto diff = [&] {
      queue_.must(diff_and_refresh(queue_.stream(), parts_.as<Part>(), tiles_, 2, out, workspace_.data()));
    };
    const auto weights = static_cast<double>(bytes_);
    const auto sector_bytes = static_cast<double>(sectors * sector);
    const auto count = static_cast<double>(changed);
    const std::string input = fmt::format("2 bytes an element, {:g} % changed", percent);
    diff();
    measure(report, {{"diff, refresh, digest and save", input, weights, 2 * weights + sector_bytes + count * 6,
                      [&] { swap(nullptr); }, diff},
                     {"exchange and digest", input, weights, 2 * sector_bytes + count * 6,
                      [&] { swap(nullptr); }, // an even number of swaps a round: the next diff finds changes again
                      [&] { swap(digests_.as<std::uint64_t>()); }},
                     {"read back", input, weights, sector_bytes + count * 2, {}, [&] {
                        queue_.must(read_back(queue_.stream(), device_places.as<Places>(), tiles_, 2,
                                              digests_.as<std::uint64_t>()));
                      }}});
    // A figure of a kernel that does nothing would be a good one: the changes were found, and then there are none.
    diff();
    swap(nullptr);
    diff();
    const Found found = queue_.read(found_.as<Found>());
    diff();
    const Found none = queue_.read(found_.as<Found>());
    if (found.changed == 0 || found.changed > changed || found.saved != found.changed || none.changed != 0)
      queue_.must({fmt::format("a diff of {} changes found {}, saved {}, and then found {} more", changed,
                               found.changed, found.saved, none.changed)});
  }

  /// The weights as fp32, half as many of them, against a snapshot of bf16.
  void cast(Report& report) {
    const std::size_t tiles = tiles_ / 2;
    std::vector<Part> parts(tiles);
    for (std::size_t t = 0; t < tiles; ++t) {
      parts[t].now = now_.data() + t * tile * 4;
      parts[t].snapshot = snapshot_.data() + t * tile * 2;
      parts[t].elements = tile;
    }
    const Memory table = on_device(parts);
    const Memory positions = on_device<std::uint16_t>(1);
    const Memory after = on_device<std::uint16_t>(1);
    Changes out;
    out.counts = counts_.as<std::uint32_t>();
    out.positions = positions.as<std::uint16_t>();
    out.after = after.data();
    out.room = 0;
    out.found = found_.as<Found>();
    queue_.must(cast_take(queue_.stream(), table.as<Part>(), tiles, kernels::Cast::fp32_to_bf16, nullptr));
    const auto masters = static_cast<double>(tiles * tile * 4);
    measure(report, {{"cast and diff", "fp32 -> bf16, nothing changed", masters, 1.5 * masters, {}, [&] {
                        queue_.must(cast_diff_and_refresh(queue_.stream(), table.as<Part>(), tiles,
                                                          kernels::Cast::fp32_to_bf16, out, workspace_.data()));
                      }}});
  }

  /// Chunks from pinned memory into two buffers in turn, each exchanged with the weights while the next one comes.
  void streaming(Report& report) {
    const std::size_t chunk = std::min(chunk_bytes, bytes_);
    const std::size_t chunks = std::max<std::size_t>(1, std::min(bytes_ / chunk, std::size_t{16}));
    const std::size_t entries = chunk / (2 * tile);
    Memory pinned;
    queue_.must(pinned.allocate(Home::pinned, chunk));
    Queue beside;
    beside.open();
    std::array<Event, 2> arrived;
    std::array<Event, 2> used;
    std::array<Memory, 2> buffers;
    for (std::size_t b = 0; b < 2; ++b) {
      queue_.must(arrived[b].open());
      queue_.must(used[b].open());
      buffers[b] = on_device<std::byte>(chunk);
    }
    if (!queue_.fault().empty())
      return;
    for (std::size_t i = 0; i < chunk; ++i)
      pinned.data()[i] = static_cast<std::byte>(i * 131 >> 3);
    std::array<Memory, 2> tables;
    for (std::size_t b = 0; b < 2; ++b) {
      std::vector<Places> places(entries);
      for (std::size_t t = 0; t < entries; ++t) {
        places[t].start = now_.data() + t * tile * 2;
        places[t].values = buffers[b].data() + t * tile * 2;
        places[t].count = tile;
      }
      tables[b] = on_device(places);
    }
    std::vector<double> plain;
    std::vector<double> streamed;
    for (std::size_t round = 0; round <= rounds_; ++round) {
      const double copied = queue_.time([&] {
        for (std::size_t i = 0; i < chunks; ++i)
          queue_.must(queue_.stream().copy(buffers[i % 2].data(), pinned.data(), chunk));
      });
      const double both = queue_.time([&] {
        for (std::size_t i = 0; i < chunks; ++i) {
          const std::size_t b = i % 2;
          if (i >= 2)
            queue_.must(queue_.stream().wait_for(used[b]));
          queue_.must(queue_.stream().copy(buffers[b].data(), pinned.data(), chunk));
          queue_.must(arrived[b].record(queue_.stream()));
          queue_.must(beside.stream().wait_for(arrived[b]));
          queue_.must(exchange(beside.stream(), tables[b].as<Places>(), entries, 2, nullptr));
          queue_.must(used[b].record(beside.stream()));
        }
        queue_.must(queue_.stream().wait_for(used[(chunks - 1) % 2]));
      });
      if (round > 0) {
        plain.push_back(copied);
        streamed.push_back(both);
      }
    }
    if (!beside.fault().empty())
      queue_.must({beside.fault()});
    if (!queue_.fault().empty())
      return;
    const auto bytes = static_cast<double>(chunk * chunks);
    report.rows.push_back({"stream from pinned memory and exchange",
                           "2 bytes an element, 100 % changed",
                           1,
                           bytes / median(streamed),
                           {{"a copy from pinned memory", bytes / median(plain), median_ratio(streamed, plain)}}});
  }

  std::size_t bytes_;
  std::size_t rounds_;
  std::size_t tiles_;
  Queue queue_;
  Memory now_, snapshot_, copy_;
  Memory digests_, found_, counts_, workspace_;
  Memory parts_;
};

} // namespace

Result<Report> gpu_bench(const BenchOptions& options) {
  const Devices devices = find_devices();
  if (devices.found.empty())
    return fail(Code::invalid_argument, "bench gpu: no device: {}", devices.why_none);
  if (const Outcome chosen = use_device(devices.found.front().index); !chosen)
    return fail(Code::internal, "bench gpu: {}", chosen.fault);
  constexpr std::size_t least = 2 * tile * 2; // two tiles of 2 bytes an element, one of 4
  const auto wanted = static_cast<std::size_t>(options.gib.value_or(1) * 1024 * 1024 * 1024);
  const std::size_t bytes = std::max(wanted / least, std::size_t{1}) * least;
  // Weights, snapshot and a copy of them, and where all change positions and values twice over.
  if (const std::uint64_t needed = 9 * bytes; needed > devices.found.front().memory)
    return fail(
      Code::invalid_argument, "bench gpu: weights of {} take {} on the device, which has {}; choose a smaller --gib",
      replay::short_bytes(bytes), replay::short_bytes(needed), replay::short_bytes(devices.found.front().memory));
  GpuBench bench(bytes, static_cast<std::size_t>(options.runs.value_or(9)));
  auto report = bench.run(options.densities.empty() ? std::vector<double>{0.1, 1, 10, 100} : options.densities);
  if (report)
    for (Row& row : report->rows)
      row.work += ", " + devices.found.front().name;
  return report;
}

} // namespace deltawire::bench
