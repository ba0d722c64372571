#include "kernel_bench.hpp"

#include "changing_weights.hpp"
#include "measure.hpp"

#include "delta/capture.hpp"
#include "kernels/diff.hpp"
#include "kernels/digest.hpp"
#include "kernels/mask.hpp"
#include "kernels/values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>

namespace deltawire::bench {
namespace {

/// How much is measured.
struct Amount {
  std::size_t bytes = std::size_t{256} << 20; ///< of an array; whole parts of all sizes of elements
  std::size_t rounds = 7;
};

constexpr std::size_t tile = 4096; // elements
constexpr std::size_t mask_words = tile / 64;
constexpr std::size_t line = 64; // bytes

struct Part {
  std::size_t first = 0; ///< element
  std::size_t end = 0;
};

/// The share of a thread: whole tiles.
Part share_of(std::size_t elements, std::size_t threads, std::size_t thread) {
  const std::size_t tiles = elements / tile;
  return {tiles * thread / threads * tile, tiles * (thread + 1) / threads * tile};
}

/// What a kernel writes, reused call after call.
struct Output {
  static constexpr std::size_t parts = 8;
  std::array<std::uint64_t, parts * mask_words> masks;
  std::array<std::uint32_t, parts> changed;
  std::array<std::byte, parts * tile * 8> before;
  std::array<std::byte, parts * tile * 8> after;
  std::array<std::uint16_t, tile> positions;
};

std::string describe(std::size_t size, double density) {
  return fmt::format("{} bytes an element, {:g} % changed", size, density * 100);
}

std::size_t diff_and_refresh(const ChangingWeights& weights, Part part, Output& out) {
  const std::size_t size = weights.size();
  std::size_t changed = 0;
  for (std::size_t first = part.first; first < part.end;) {
    std::array<kernels::DiffPart, Output::parts> parts;
    std::size_t count = 0;
    for (; count < parts.size() && first < part.end; first += tile)
      parts[count++] = {weights.now() + first * size, weights.snapshot() + first * size, tile};
    changed += kernels::diff_and_refresh(std::span(parts).first(count), size,
                                         {out.masks.data(), out.changed.data(), out.before.data(), out.after.data()});
  }
  return changed;
}

std::uint64_t read_all(const std::byte* data, std::size_t bytes) {
  std::array<std::uint64_t, 8> any{};
  for (std::size_t i = 0; i < bytes; i += sizeof(any))
    for (std::size_t word = 0; word < any.size(); ++word) {
      std::uint64_t x;
      std::memcpy(&x, data + i + 8 * word, 8);
      any[word] |= x;
    }
  std::uint64_t all = 0;
  for (const std::uint64_t word : any)
    all |= word;
  return all;
}

/// Reads both arrays, writes the lines that changed and as many bytes of output as the kernel does, and knows all of
/// them beforehand: what memory allows.
class PlainLoop {
public:
  explicit PlainLoop(const ChangingWeights& weights) : weights_(&weights) {
    const std::size_t tiles = weights.elements() / tile;
    lines_of_.reserve(tiles + 1);
    changed_.resize(tiles);
    std::size_t next = 0;
    const auto positions = weights.positions();
    for (std::size_t t = 0; t < tiles; ++t) {
      lines_of_.push_back(lines_.size());
      for (; next < positions.size() && positions[next] < (t + 1) * tile; ++next) {
        const auto at = static_cast<std::uint32_t>(positions[next] * weights.size() / line);
        if (lines_.empty() || lines_.back() != at)
          lines_.push_back(at);
        ++changed_[t];
      }
    }
    lines_of_.push_back(lines_.size());
  }

  void run(Part part, Output& out) const {
    const std::size_t tile_bytes = tile * weights_->size();
    std::size_t any = 0;
    for (std::size_t t = part.first / tile; t < part.end / tile; ++t) {
      any |= read_both(weights_->now() + t * tile_bytes, weights_->snapshot() + t * tile_bytes, tile_bytes);
      for (std::size_t i = lines_of_[t]; i < lines_of_[t + 1]; ++i)
        std::memcpy(weights_->snapshot() + std::size_t{lines_[i]} * line,
                    weights_->now() + std::size_t{lines_[i]} * line, line);
      std::memset(out.masks.data(), 1, mask_words * 8);
      std::memcpy(out.before.data(), weights_->snapshot() + t * tile_bytes, changed_[t] * weights_->size());
      std::memcpy(out.after.data(), weights_->snapshot() + t * tile_bytes, changed_[t] * weights_->size());
      keep(std::to_integer<std::size_t>(out.before[0]) + out.masks[0] + std::to_integer<std::size_t>(out.after[0]));
    }
    keep(any);
  }

private:
  static std::uint64_t read_both(const std::byte* a, const std::byte* b, std::size_t bytes) {
    std::array<std::uint64_t, 8> any{};
    for (std::size_t i = 0; i < bytes; i += sizeof(any))
      for (std::size_t word = 0; word < any.size(); ++word) {
        std::uint64_t x;
        std::uint64_t y;
        std::memcpy(&x, a + i + 8 * word, 8);
        std::memcpy(&y, b + i + 8 * word, 8);
        any[word] |= x ^ y;
      }
    std::uint64_t all = 0;
    for (const std::uint64_t word : any)
      all |= word;
    return all;
  }

  const ChangingWeights* weights_;
  std::vector<std::uint32_t> lines_; ///< of the whole array, ascending
  std::vector<std::size_t> lines_of_;
  std::vector<std::uint32_t> changed_;
};

void compare_all(const ChangingWeights& weights, Part part) {
  const std::size_t size = weights.size();
  keep(static_cast<std::size_t>(std::memcmp(weights.now() + part.first * size, weights.snapshot() + part.first * size,
                                            (part.end - part.first) * size)));
}

/// Adds a row: the first contender is the work, the others limit it.
void add_rows(Report& report, const std::string& work, const std::string& input, Amount amount,
              std::span<const Contender> contenders, std::span<const std::string> limits, std::size_t threads) {
  const std::size_t bytes = amount.bytes;
  const Turns turns = take_turns(contenders, threads, amount.rounds);
  Row row{work, input, threads, static_cast<double>(bytes) / median(turns[0]), {}};
  for (std::size_t i = 0; i < limits.size(); ++i)
    row.limits.push_back(
      {limits[i], static_cast<double>(bytes) / median(turns[i + 1]), median_ratio(turns[0], turns[i + 1])});
  report.rows.push_back(std::move(row));
}

void bench_diff(Report& report, Amount amount, std::size_t size, double density,
                std::span<const std::size_t> thread_counts) {
  ChangingWeights weights(amount.bytes, size, density);
  const PlainLoop plain(weights);
  const auto out = std::make_unique<std::array<Output, 2>>();
  for (const std::size_t threads : thread_counts) {
    const auto share = [&](std::size_t thread) { return share_of(weights.elements(), threads, thread); };
    const auto change = [&] { weights.change(); };
    const std::array contenders{
      Contender{change, [&](std::size_t thread) { keep(diff_and_refresh(weights, share(thread), (*out)[thread])); }},
      Contender{{}, [&](std::size_t thread) { compare_all(weights, share(thread)); }},
      Contender{change, [&](std::size_t thread) { plain.run(share(thread), (*out)[thread]); }},
    };
    add_rows(report, "diff and refresh", describe(size, density), amount, contenders,
             std::array<std::string, 2>{"memcmp", "a plain loop"}, threads);
  }
}

/// fp32 masters against the 16 bits that they were cast to.
void bench_cast(Report& report, Amount amount, kernels::Cast cast, const std::string& name, double density) {
  ChangingWeights masters(amount.bytes, 4, density);
  const std::size_t elements = masters.elements();
  HugeArray narrow(elements * 2);
  const auto out = std::make_unique<Output>();
  const auto run = [&] {
    std::size_t changed = 0;
    for (std::size_t first = 0; first < elements; first += tile * Output::parts) {
      std::array<kernels::DiffPart, Output::parts> parts;
      for (std::size_t i = 0; i < parts.size(); ++i)
        parts[i] = {masters.now() + (first + i * tile) * 4, narrow.data() + (first + i * tile) * 2, tile};
      changed += kernels::cast_diff_and_refresh(
        parts, cast, {out->masks.data(), out->changed.data(), out->before.data(), out->after.data()});
    }
    keep(changed);
  };
  run();
  // A step of the master's last place rarely reaches the narrow type: change the place that is kept.
  const auto change = [&] {
    for (const std::uint32_t position : masters.positions()) {
      std::uint32_t bits;
      std::memcpy(&bits, masters.now() + std::size_t{position} * 4, 4);
      bits ^= 0x10000;
      std::memcpy(masters.now() + std::size_t{position} * 4, &bits, 4);
    }
  };
  const auto read = [&](std::size_t) {
    keep(read_all(masters.now(), amount.bytes) ^ read_all(narrow.data(), elements * 2));
  };
  const std::array contenders{Contender{change, [&](std::size_t) { run(); }}, Contender{{}, read}};
  add_rows(report, "cast, diff and refresh", fmt::format("fp32 -> {}, {:g} % changed", name, density * 100), amount,
           contenders, std::array<std::string, 1>{"reading both"}, 1);
}

void bench_digest(Report& report, Amount amount, std::size_t size) {
  const ChangingWeights weights(amount.bytes, size, 0);
  for (const std::size_t threads : {1u, 2u}) {
    const auto share = [&](std::size_t thread) { return share_of(weights.elements(), threads, thread); };
    const std::array contenders{
      Contender{{},
                [&](std::size_t thread) {
                  const Part part = share(thread);
                  keep(kernels::digest_run(weights.now() + part.first * size, 1, part.end - part.first, size,
                                           part.first, 1));
                }},
      Contender{{},
                [&](std::size_t thread) {
                  const Part part = share(thread);
                  keep(read_all(weights.now() + part.first * size, (part.end - part.first) * size));
                }},
    };
    add_rows(report, "digest of a range", fmt::format("{} bytes an element", size), amount, contenders,
             std::array<std::string, 1>{"reading it"}, threads);
  }
}

/// The kernels that only touch what changed: positions of a tile are known, or its mask is.
void bench_changes(Report& report, Amount amount, double density) {
  constexpr std::size_t size = 2;
  ChangingWeights weights(amount.bytes, size, density);
  const std::size_t tiles = weights.elements() / tile;
  std::vector<std::uint16_t> positions;
  std::vector<std::uint64_t> masks(tiles * mask_words);
  std::vector<std::size_t> of_tile(tiles + 1);
  for (const std::uint32_t position : weights.positions()) {
    positions.push_back(static_cast<std::uint16_t>(position % tile));
    masks[position / 64] |= std::uint64_t{1} << (position % 64);
    ++of_tile[position / tile + 1];
  }
  for (std::size_t t = 0; t < tiles; ++t)
    of_tile[t + 1] += of_tile[t];
  std::vector<std::byte> values(positions.size() * size, std::byte{3});
  std::vector<std::byte> others(positions.size() * size, std::byte{5});
  const auto out = std::make_unique<Output>();
  const auto at = [&](std::size_t t) {
    return std::span<const std::uint16_t>(positions).subspan(of_tile[t], of_tile[t + 1] - of_tile[t]);
  };
  const auto each_tile = [&](auto body) {
    return [&, body](std::size_t) {
      for (std::size_t t = 0; t < tiles; ++t)
        body(t);
    };
  };
  const Contender compare{{}, [&](std::size_t) { compare_all(weights, {0, weights.elements()}); }};
  const Contender touch{{}, each_tile([&](std::size_t t) {
                          std::size_t last = ~std::size_t{0};
                          for (const std::uint16_t position : at(t)) {
                            const std::size_t here = (t * tile + position) * size / line * line;
                            if (here == last)
                              continue;
                            last = here;
                            std::uint64_t word;
                            std::memcpy(&word, weights.snapshot() + here, 8);
                            ++word;
                            std::memcpy(weights.snapshot() + here, &word, 8);
                          }
                        })};
  const std::string input = describe(size, density);
  const auto row = [&](const std::string& work, auto body, const Contender& limit, const std::string& name) {
    const std::array contenders{Contender{{}, each_tile(body)}, limit};
    add_rows(report, work, input, amount, contenders, std::span(&name, 1), 1);
  };
  row(
    "mask to positions",
    [&](std::size_t t) {
      keep(kernels::mask_to_positions(std::span(masks).subspan(t * mask_words, mask_words), out->positions.data()));
    },
    compare, "memcmp");
  row(
    "digest of changes",
    [&](std::size_t t) {
      keep(kernels::digest_change_at(t * tile, {}, at(t), size, values.data() + of_tile[t] * size,
                                     others.data() + of_tile[t] * size));
    },
    compare, "memcmp");
  row(
    "gather",
    [&](std::size_t t) { kernels::gather(weights.snapshot() + t * tile * size, {}, at(t), size, out->after.data()); },
    touch, "touching the lines");
  row(
    "scatter",
    [&](std::size_t t) {
      kernels::scatter(weights.snapshot() + t * tile * size, {}, at(t), size, values.data() + of_tile[t] * size);
    },
    touch, "touching the lines");
  row(
    "exchange",
    [&](std::size_t t) {
      kernels::exchange(weights.snapshot() + t * tile * size, {}, at(t), size, values.data() + of_tile[t] * size);
    },
    touch, "touching the lines");
  row(
    "exchange and digest",
    [&](std::size_t t) {
      keep(kernels::exchange_and_digest(weights.snapshot() + t * tile * size, {}, t * tile, {}, at(t), size,
                                        values.data() + of_tile[t] * size));
    },
    touch, "touching the lines");
  row(
    "digest read back",
    [&](std::size_t t) {
      keep(kernels::digest_at(weights.snapshot() + t * tile * size, {}, t * tile, {}, at(t), size));
    },
    touch, "touching the lines");
  // What a map that does not keep the order is staged as. One list for all: no tile matters here.
  const std::span<const std::uint32_t> sorted = weights.positions();
  std::vector<std::uint32_t> shuffled(sorted.begin(), sorted.end());
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(1));
  const auto listed = [&](std::span<const std::uint32_t> addresses) {
    return [&, addresses](std::size_t t) {
      const auto here = addresses.subspan(of_tile[t], of_tile[t + 1] - of_tile[t]);
      keep(kernels::exchange_and_digest(weights.snapshot(), {here, here, 0}, size, values.data() + of_tile[t] * size));
    };
  };
  row("exchange and digest, listed", listed(sorted), touch, "touching the lines");
  row("exchange and digest, listed and unsorted", listed(shuffled), touch, "touching the lines");
}

/// All that a capture does before encoding: compare, refresh, digest, log.
void bench_capture(Report& report, Amount amount, double density) {
  constexpr std::size_t size = 2;
  ChangingWeights weights(amount.bytes, size, density);
  const PlainLoop plain(weights);
  const auto out = std::make_unique<std::array<Output, 2>>();
  layout::Block block;
  block.dtype = DType::bf16;
  block.extents = {static_cast<layout::Index>(weights.elements())};
  block.local_strides = {1};
  block.slot_strides = {1};
  for (const std::size_t threads : {1u, 2u}) {
    const auto share = [&](std::size_t thread) { return share_of(weights.elements(), threads, thread); };
    const auto change = [&] { weights.change(); };
    const auto capture = [&](std::size_t thread) {
      delta::PositionLog log;
      const delta::OwnedBlock owned{&block, weights.now(), weights.snapshot()};
      const Part part = share(thread);
      keep(delta::capture_changes(owned, part.first, part.end - part.first, nullptr, log).digest_change +
           log.changed());
    };
    const std::array contenders{
      Contender{change, capture},
      Contender{{}, [&](std::size_t thread) { compare_all(weights, share(thread)); }},
      Contender{change, [&](std::size_t thread) { plain.run(share(thread), (*out)[thread]); }},
    };
    add_rows(report, "capture, log only", describe(size, density), amount, contenders,
             std::array<std::string, 2>{"memcmp", "a plain loop"}, threads);
  }
}

} // namespace

Report kernel_bench(const BenchOptions& options) {
  Amount amount;
  constexpr std::size_t mib = std::size_t{1} << 20;
  if (options.gib) // at least a MiB: positions are 32-bit, elements of a byte or more
    amount.bytes = std::clamp(static_cast<std::size_t>(*options.gib * 1024) * mib, mib, 4096 * mib - mib);
  if (options.runs)
    amount.rounds = static_cast<std::size_t>(*options.runs);
  Report report{"kernel", {}};
  constexpr std::array<std::size_t, 2> one_and_two{1, 2};
  for (const double density : {0.0, 0.001, 0.01, 0.1, 1.0})
    bench_diff(report, amount, 2, density, one_and_two);
  for (const std::size_t size : {1u, 4u, 8u})
    bench_diff(report, amount, size, 0.01, std::span(one_and_two).first(1));
  bench_cast(report, amount, kernels::Cast::fp32_to_bf16, "bf16", 0.01);
  bench_cast(report, amount, kernels::Cast::fp32_to_fp16, "fp16", 0.01);
  for (const std::size_t size : {2u, 4u})
    bench_digest(report, amount, size);
  for (const double density : {0.001, 0.01, 0.1})
    bench_changes(report, amount, density);
  for (const double density : {0.0, 0.001, 0.01, 0.1})
    bench_capture(report, amount, density);
  return report;
}

} // namespace deltawire::bench
