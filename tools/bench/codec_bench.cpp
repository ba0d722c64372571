#include "codec_bench.hpp"

#include "changing_weights.hpp"
#include "measure.hpp"

#include "delta/piece.hpp"
#include "delta/stage.hpp"
#include "delta/tiles.hpp"
#include "kernels/values.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <optional>

namespace deltawire::bench {
namespace {

using delta::PositionCodec;

constexpr std::size_t size = 2; // bytes of an element
constexpr std::size_t tile = delta::tile_elements;
constexpr std::size_t piece_limit = std::size_t{64} << 20;

struct Way {
  const char* name;
  delta::Encoding encoding;
};

const std::array ways{
  Way{"auto", {}},
  Way{"auto, raw values", {std::nullopt, false}},
  Way{"u8 gaps, raw", {PositionCodec::gaps_u8, false}},
  Way{"u16 gaps, raw", {PositionCodec::gaps_u16, false}},
  Way{"Rice, raw", {PositionCodec::rice, false}},
  Way{"bitmap, raw", {PositionCodec::bitmap, false}},
  Way{"runs, raw", {PositionCodec::run, false}},
  Way{"dense, raw", {PositionCodec::dense, false}},
  Way{"u8 gaps, ulp", {PositionCodec::gaps_u8, true}},
  Way{"u16 gaps, ulp", {PositionCodec::gaps_u16, true}},
  Way{"Rice, ulp", {PositionCodec::rice, true}},
  Way{"bitmap, ulp", {PositionCodec::bitmap, true}},
  Way{"runs, ulp", {PositionCodec::run, true}},
  Way{"auto, zstd", {std::nullopt, true, true}},
  Way{"auto, raw values, zstd", {std::nullopt, false, true}},
};

/// Those that this build has.
std::span<const Way> possible_ways() {
  const std::span<const Way> all(ways);
  return delta::can_compress() ? all : all.first(ways.size() - 2);
}

/// Weights that have changed, and the changes as a diff hands them on: tile by tile.
struct Found {
  ChangingWeights weights; ///< the snapshot holds what was there before
  layout::Block block;
  std::vector<std::uint16_t> positions; ///< within their tiles
  std::vector<std::size_t> first_of;    ///< by tile: index into positions, and one more at the end
  std::vector<std::byte> before;
  std::vector<std::byte> after;

  Found(std::size_t bytes, double density) : weights(bytes, size, density) {
    weights.change();
    block.dtype = DType::bf16;
    block.extents = {static_cast<layout::Index>(weights.elements())};
    block.local_strides = {1};
    block.slot_strides = {1};
    const std::size_t tiles = weights.elements() / tile;
    first_of.resize(tiles + 1);
    for (const std::uint32_t position : weights.positions()) {
      positions.push_back(static_cast<std::uint16_t>(position % tile));
      ++first_of[position / tile + 1];
    }
    before.resize(positions.size() * size);
    after.resize(positions.size() * size);
    for (std::size_t t = 0; t < tiles; ++t) {
      first_of[t + 1] += first_of[t];
      kernels::gather(weights.snapshot() + t * tile * size, {}, of_tile(t), size, before.data() + first_of[t] * size);
      kernels::gather(weights.now() + t * tile * size, {}, of_tile(t), size, after.data() + first_of[t] * size);
    }
  }

  [[nodiscard]] std::size_t tiles() const noexcept { return first_of.size() - 1; }
  [[nodiscard]] std::span<const std::uint16_t> of_tile(std::size_t t) const noexcept {
    return std::span(positions).subspan(first_of[t], first_of[t + 1] - first_of[t]);
  }
};

delta::EncodedPieces encode(delta::PieceEncoder& encoder, const Found& found) {
  encoder.start_range(found.block, 0, found.weights.elements(), found.weights.now());
  for (std::size_t t = 0; t < found.tiles(); ++t)
    if (!found.of_tile(t).empty())
      encoder.add_changes(t * tile, found.of_tile(t), found.after.data() + found.first_of[t] * size,
                          found.before.data() + found.first_of[t] * size);
  encoder.finish_range();
  return encoder.take();
}

/// Calls visit(piece) for each, as open() opens it.
template <class Open, class Visit>
Result<void> for_each_piece(std::span<const std::byte> bytes, Open&& open, Visit&& visit) {
  while (!bytes.empty()) {
    const auto piece = open(bytes);
    if (!piece)
      return tl::make_unexpected(piece.error());
    bytes = bytes.subspan(piece->bytes);
    if (Result<void> visited = visit(*piece); !visited)
      return visited;
  }
  return {};
}

Result<void> read_all(std::span<const std::byte> bytes, const layout::Block& block, delta::Expander& expander) {
  return for_each_piece(
    bytes, [&](auto rest) { return delta::read_piece(rest, block, &expander); },
    [](const delta::PieceView&) { return Result<void>{}; });
}

/// As a worker stages them: positions and absolute values, laid out for the exchange, and the change of the digest.
Result<void> decode(std::span<const std::byte> bytes, const layout::Block& block, delta::Expander& expander,
                    delta::Stage& stage) {
  stage.clear();
  delta::Digest sum = 0;
  auto decoded = for_each_piece(
    bytes, [&](auto rest) { return delta::open_piece(rest, block, &expander); },
    [&](const delta::PieceView& piece) -> Result<void> {
      const auto added = stage.add(0, piece);
      if (!added)
        return tl::make_unexpected(added.error());
      sum += *added;
      return {};
    });
  keep(static_cast<std::size_t>(sum));
  return decoded;
}

/// Exchanges what was decoded over a copy of the snapshot, which must be the weights then.
Result<void> check(std::span<const std::byte> bytes, const Found& found, const std::string& what) {
  HugeArray memory(found.weights.bytes());
  std::memcpy(memory.data(), found.weights.snapshot(), memory.size());
  const delta::BoundBlock bound{&found.block, memory.data()};
  delta::Stage stage({&bound, 1}, ~std::uint64_t{0});
  delta::Expander expander;
  if (auto read = read_all(bytes, found.block, expander); !read)
    return read;
  if (auto decoded = decode(bytes, found.block, expander, stage); !decoded)
    return decoded;
  stage.exchange({});
  if (std::memcmp(memory.data(), found.weights.now(), memory.size()) != 0)
    return fail(Code::verification_failed, "verification failed: {}: decoded weights are not the encoded ones", what);
  return {};
}

/// In relation to memcmp and memcpy of all weights, the first two contenders.
Row row_of(const std::string& work, const std::string& input, double bytes, const std::vector<double>& own,
           const Turns& turns) {
  const auto limit = [&](const char* name, const std::vector<double>& reference) {
    return Limit{name, bytes / median(reference), median_ratio(own, reference)};
  };
  return {work, input, 1, bytes / median(own), {limit("memcmp", turns[0]), limit("memcpy", turns[1])}};
}

Result<void> bench_density(Report& report, std::size_t bytes, double percent, std::size_t runs) {
  const Found found(bytes, percent / 100);
  HugeArray copy(bytes);
  std::memcpy(copy.data(), found.weights.now(), bytes);
  std::vector<Contender> contenders{
    {{}, [&](std::size_t) { keep(static_cast<std::size_t>(std::memcmp(found.weights.now(), copy.data(), bytes))); }},
    {{}, [&](std::size_t) { std::memcpy(copy.data(), found.weights.now(), bytes); }},
  };
  struct Encoded {
    std::unique_ptr<delta::PieceEncoder> encoder;
    delta::EncodedPieces pieces;
    delta::Expander expander;
    std::optional<delta::Stage> stage; ///< over the snapshot, which it only reads
  };
  const auto possible = possible_ways();
  std::vector<Encoded> all(possible.size());
  for (std::size_t w = 0; w < possible.size(); ++w) {
    Encoded& encoded = all[w];
    const delta::Encoding& encoding = possible[w].encoding;
    encoded.encoder =
      std::make_unique<delta::PieceEncoder>(encoding.compress ? delta::most_plain_bytes : piece_limit, encoding);
    encoded.pieces = encode(*encoded.encoder, found);
    if (auto right = check(encoded.pieces.bytes, found, fmt::format("{}, {:g} %", possible[w].name, percent)); !right)
      return right;
    const delta::BoundBlock bound{&found.block, found.weights.snapshot()};
    encoded.stage.emplace(std::span(&bound, 1), ~std::uint64_t{0});
    contenders.push_back({{}, [&](std::size_t) { keep(encode(*encoded.encoder, found).bytes.size()); }});
    contenders.push_back(
      {{}, [&](std::size_t) { (void)read_all(encoded.pieces.bytes, found.block, encoded.expander); }});
    contenders.push_back(
      {{}, [&](std::size_t) { (void)decode(encoded.pieces.bytes, found.block, encoded.expander, *encoded.stage); }});
  }
  const Turns turns = take_turns(contenders, 1, runs);
  for (std::size_t w = 0; w < possible.size(); ++w) {
    const std::string input = fmt::format("{:g} % changed, {}", percent, possible[w].name);
    const auto weights = static_cast<double>(bytes);
    report.rows.push_back(row_of("encode", input, weights, turns[2 + 3 * w], turns));
    report.rows.back().figures.push_back({"size", "a change", "B",
                                          static_cast<double>(all[w].pieces.bytes.size()) /
                                            static_cast<double>(std::max<std::size_t>(1, found.positions.size())),
                                          true});
    report.rows.push_back(row_of("check", input, weights, turns[3 + 3 * w], turns));
    report.rows.push_back(row_of("decode", input, weights, turns[4 + 3 * w], turns));
  }
  return {};
}

} // namespace

Result<Report> codec_bench(const BenchOptions& options) {
  // Whole tiles, and positions that 32 bits count.
  const auto wanted = static_cast<std::size_t>(options.gib.value_or(0.0625) * 0x1p30);
  const std::size_t bytes = std::clamp(wanted / (tile * size) * (tile * size), tile * size, std::size_t{4} << 30);
  Report report{"codec", {}};
  std::vector<double> densities = options.densities;
  if (densities.empty())
    densities = {0.1, 1, 7, 10, 50, 100};
  for (const double density : densities)
    if (auto done = bench_density(report, bytes, density, static_cast<std::size_t>(options.runs.value_or(5))); !done)
      return pass_on(std::move(done));
  return report;
}

} // namespace deltawire::bench
