// Prints how fast each codec and lane encodes and decodes, as source weights a second (bf16) and next to memcmp and
// memcpy of the same weights in the same rounds:
//
//     codec_speed [MiB of weights]
//
// "encode" starts from the positions and values that a diff found, "check" is read_piece(), "decode" stages pieces as a
// worker does: positions, absolute values, and what the digest will change by.
#include "delta/piece.hpp"
#include "delta/stage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <time.h>

namespace {

using namespace deltawire;
using delta::PositionCodec;
using Bytes = std::vector<std::byte>;

constexpr std::size_t size = 2;
constexpr std::size_t rounds = 5;

/// Processor time: the machine may have others on it.
double seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Changes {
  std::vector<std::uint16_t> positions;
  Bytes before;
  Bytes after;
  std::vector<std::size_t> ends; ///< by tile: index into positions
};

struct Weights {
  Bytes before;
  Bytes after;
  Changes changes;
};

/// Nine changes of ten go to a neighbour, most others are small.
Weights make_weights(std::size_t elements, double density) {
  std::mt19937_64 random(7);
  Weights weights{Bytes(elements * size), {}, {}};
  for (std::size_t i = 0; i < elements * size; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(weights.before.data() + i, &word, 8);
  }
  weights.after = weights.before;
  Changes& changes = weights.changes;
  const auto threshold = static_cast<std::uint64_t>(density * 4294967296.0);
  for (std::size_t e = 0; e < elements; ++e) {
    const std::uint64_t draw = random();
    if ((draw & 0xFFFFFFFF) < threshold) {
      const std::uint64_t kind = draw >> 32 & 127;
      const auto step = static_cast<std::uint16_t>(kind < 115   ? 1
                                                   : kind < 126 ? 2 + (draw >> 40 & 7)
                                                   : kind < 127 ? 17 + (draw >> 40 & 127)
                                                                : 5000);
      std::uint16_t bits;
      std::memcpy(&bits, weights.before.data() + e * size, size);
      bits = static_cast<std::uint16_t>(draw >> 63 ? bits + step : bits - step);
      std::memcpy(weights.after.data() + e * size, &bits, size);
      changes.positions.push_back(static_cast<std::uint16_t>(e % 4096));
      for (const auto& [from, to] : {std::pair{&weights.before, &changes.before}, {&weights.after, &changes.after}})
        to->insert(to->end(), from->begin() + static_cast<std::ptrdiff_t>(e * size),
                   from->begin() + static_cast<std::ptrdiff_t>((e + 1) * size));
    }
    if (e % 4096 == 4095)
      changes.ends.push_back(changes.positions.size());
  }
  return weights;
}

void encode(delta::PieceEncoder& encoder, const layout::Block& block, const Weights& weights) {
  const Changes& changes = weights.changes;
  encoder.start_range(block, 0, changes.ends.size() * 4096, weights.after.data());
  std::size_t begin = 0;
  for (std::size_t tile = 0; tile < changes.ends.size(); ++tile) {
    const std::size_t end = changes.ends[tile];
    encoder.add_changes(tile * 4096, std::span(changes.positions).subspan(begin, end - begin),
                        changes.after.data() + begin * size, changes.before.data() + begin * size);
    begin = end;
  }
  encoder.finish_range();
}

struct Column {
  const char* name;
  delta::Encoding encoding;
};

const Column columns[] = {
  {"auto", {}},
  {"raw", {{}, false}},
  {"u8+raw", {PositionCodec::gaps_u8, false}},
  {"u16+raw", {PositionCodec::gaps_u16, false}},
  {"rice+raw", {PositionCodec::rice, false}},
  {"bitmap+raw", {PositionCodec::bitmap, false}},
  {"run+raw", {PositionCodec::run, false}},
  {"dense+raw", {PositionCodec::dense, false}},
  {"u8+ulp", {PositionCodec::gaps_u8, true}},
  {"bitmap+ulp", {PositionCodec::bitmap, true}},
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

} // namespace

int main(int count, char** arguments) {
  const std::size_t mib = count > 1 ? std::strtoul(arguments[1], nullptr, 10) : 64;
  const std::size_t elements = (mib << 20) / size;
  layout::Block block;
  block.dtype = DType::bf16;
  block.extents = {static_cast<layout::Index>(elements)};
  block.local_strides = {1};
  block.slot_strides = {1};
  fmt::print("GB/s of {} MiB of bf16 weights (share of memcmp for encode, of memcpy for check and decode)\n", mib);
  fmt::print("{:>8} {:<11} {:>9} {:>14} {:>14} {:>14}\n", "density", "encoding", "B/change", "encode", "check",
             "decode");
  for (const double density : {0.001, 0.01, 0.07, 0.1, 0.5, 1.0}) {
    Weights weights = make_weights(elements, density);
    Bytes copy(weights.before.size());
    std::vector<std::function<void()>> work = {
      [&] {
        if (std::memcmp(weights.before.data(), copy.data(), copy.size()) != 0)
          std::abort();
      },
      [&] { std::memcpy(copy.data(), weights.before.data(), copy.size()); },
    };
    std::memcpy(copy.data(), weights.before.data(), copy.size());
    std::vector<delta::EncodedPieces> encoded(std::size(columns));
    const delta::BoundBlock bound{&block, weights.before.data()};
    std::vector<delta::Stage> stages;
    for (std::size_t c = 0; c < std::size(columns); ++c) {
      delta::PieceEncoder encoder(std::size_t{64} << 20, columns[c].encoding);
      encode(encoder, block, weights);
      encoded[c] = encoder.take();
      stages.emplace_back(std::span(&bound, 1), ~std::uint64_t{0});
      const auto for_each_piece = [&, c](auto&& visit) {
        for (std::size_t at = 0; at < encoded[c].bytes.size();) {
          const auto piece = delta::read_piece(std::span(encoded[c].bytes).subspan(at), block);
          if (!piece)
            std::abort();
          visit(*piece);
          at += piece->bytes;
        }
      };
      std::vector<delta::PieceView> views;
      for_each_piece([&](const delta::PieceView& piece) { views.push_back(piece); });
      work.push_back([&, c] {
        delta::PieceEncoder again(std::size_t{64} << 20, columns[c].encoding);
        encode(again, block, weights);
        if (again.take().changed != encoded[c].changed)
          std::abort();
      });
      work.push_back([for_each_piece] { for_each_piece([](const delta::PieceView&) {}); });
      work.push_back([&, c, views] {
        stages[c].clear();
        for (const delta::PieceView& piece : views)
          if (!stages[c].add(0, piece))
            std::abort();
      });
    }
    std::vector<std::vector<double>> times(work.size());
    for (std::size_t round = 0; round <= rounds; ++round)
      for (std::size_t w = 0; w < work.size(); ++w) {
        const double begin = seconds();
        work[w]();
        if (round > 0)
          times[w].push_back(seconds() - begin);
      }
    const auto bytes = static_cast<double>(weights.before.size());
    const double compare = median(times[0]);
    const double move = median(times[1]);
    fmt::print("{:>7g}% {:<11} memcmp {:.1f}, memcpy {:.1f}\n", density * 100, "", bytes / compare / 1e9,
               bytes / move / 1e9);
    for (std::size_t c = 0; c < std::size(columns); ++c) {
      const auto cell = [&](std::size_t w, double reference) {
        const double time = median(times[w]);
        return fmt::format("{:.2f} ({:.2f})", bytes / time / 1e9, reference / time);
      };
      fmt::print("{:>7g}% {:<11} {:>9.3f} {:>14} {:>14} {:>14}\n", density * 100, columns[c].name,
                 static_cast<double>(encoded[c].bytes.size()) / static_cast<double>(weights.changes.positions.size()),
                 cell(2 + 3 * c, compare), cell(3 + 3 * c, move), cell(4 + 3 * c, move));
    }
  }
}
