#include "kernel_bench.hpp"

#include "changing_weights.hpp"
#include "measure.hpp"

#include "kernels/diff.hpp"
#include "kernels/digest.hpp"
#include "kernels/mask.hpp"
#include "kernels/values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

namespace deltawire::bench {
namespace {

constexpr std::size_t rounds = 7;
constexpr std::size_t array_bytes = std::size_t{256} << 20;
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

void bench_diff(Report& report, std::size_t size, double density, std::span<const std::size_t> thread_counts) {
  ChangingWeights weights(array_bytes, size, density);
  const PlainLoop plain(weights);
  const auto out = std::make_unique<std::array<Output, 2>>();
  const auto bytes = static_cast<double>(weights.bytes());
  for (const std::size_t threads : thread_counts) {
    const auto share = [&](std::size_t thread) { return share_of(weights.elements(), threads, thread); };
    const auto change = [&] { weights.change(); };
    const std::array contenders{
      Contender{change, [&](std::size_t thread) { keep(diff_and_refresh(weights, share(thread), (*out)[thread])); }},
      Contender{{}, [&](std::size_t thread) { compare_all(weights, share(thread)); }},
      Contender{change, [&](std::size_t thread) { plain.run(share(thread), (*out)[thread]); }},
    };
    const Turns turns = take_turns(contenders, threads, rounds);
    report.rows.push_back({"diff and refresh",
                           describe(size, density),
                           threads,
                           bytes / median(turns[0]),
                           {{"memcmp", bytes / median(turns[1]), median_ratio(turns[0], turns[1])},
                            {"a plain loop", bytes / median(turns[2]), median_ratio(turns[0], turns[2])}}});
  }
}

} // namespace

Report kernel_bench() {
  Report report{"kernel", {}};
  for (const double density : {0.0, 0.001, 0.01, 0.1, 1.0})
    bench_diff(report, 2, density, std::array<std::size_t, 2>{1, 2});
  for (const std::size_t size : {1u, 4u, 8u})
    bench_diff(report, size, 0.01, std::array<std::size_t, 1>{1});
  return report;
}

} // namespace deltawire::bench
