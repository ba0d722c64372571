// Encoding and reading pieces, byte for byte as FORMAT.md ("Pieces") says.
#include "delta/piece.hpp"

#include "delta/tiles.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>
#include <numeric>
#include <utility>

namespace deltawire::delta {
namespace {

enum class Range : std::uint8_t { whole = 0, tiles = 1, elements = 2 };

// Block ids are 32 bits and carry range and kind in four more; elements of a block are fewer than 2^63.
constexpr std::size_t most_tag_bytes = 6;
constexpr std::size_t most_first_bytes = 9;
constexpr std::size_t most_header_bytes = most_tag_bytes + 2 * most_first_bytes + most_varint_bytes;
/// Head and length: a tile of the widest elements has fewer than 2^21 bytes, and no head is larger.
constexpr std::size_t most_tile_bytes = 6;

/// Returns the end of what it wrote.
std::byte* write_varint(std::byte* out, std::uint64_t value) noexcept {
  for (; value >= 0x80; value >>= 7)
    *out++ = static_cast<std::byte>(value | 0x80);
  *out++ = static_cast<std::byte>(value);
  return out;
}

void append_varint(std::vector<std::byte>& out, std::uint64_t value) {
  std::array<std::byte, most_varint_bytes> bytes;
  out.insert(out.end(), bytes.data(), write_varint(bytes.data(), value));
}

constexpr std::uint64_t tag(std::uint32_t block, Range range, PieceKind kind) noexcept {
  return std::uint64_t{block} << 4 | static_cast<std::uint64_t>(range) << 2 | static_cast<std::uint64_t>(kind);
}

constexpr std::uint64_t tiles_of(std::uint64_t first, std::uint64_t end) noexcept {
  return (end - 1) / tile_elements - first / tile_elements + 1;
}

std::uint64_t saturating_multiply(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::uint64_t>::max() : product;
}

std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::uint64_t>::max() : sum;
}

/// Extent product; nothing where it is no valid count.
bool count_elements(const layout::Block& block, std::uint64_t& elements) noexcept {
  elements = 1;
  for (const layout::Index extent : block.extents)
    if (extent < 0 || __builtin_mul_overflow(elements, static_cast<std::uint64_t>(extent), &elements))
      return false;
  return true;
}

/// Checks the heads of a delta piece and splits its body.
Result<void> split_body(PieceView& piece, std::size_t size) {
  const std::uint64_t end = piece.first + piece.elements;
  const std::uint64_t tiles = tiles_of(piece.first, end);
  std::span<const std::byte> rest = piece.body;
  std::uint64_t non_empty = 0;
  for (std::uint64_t tile = 0; tile < tiles; ++tile) {
    std::uint64_t number = 0;
    if (tiles - tile > rest.size() || !take_varint(rest, number))
      return fail(Code::invalid_input, "piece of block {}: a body of {} bytes cannot hold the heads of {} tiles",
                  piece.block, piece.body.size(), tiles);
    TileHead head;
    if (!unpack_head(number, piece.kind == PieceKind::ulp_delta, head))
      return fail(Code::invalid_input, "piece of block {}, tile {}: no head is {}", piece.block,
                  piece.first / tile_elements + tile, number);
    if (head.ulp && piece.kind != PieceKind::ulp_delta)
      return fail(Code::invalid_input, "piece of block {}, tile {}: differences in a piece that says it has none",
                  piece.block, piece.first / tile_elements + tile);
    piece.changed += head.changes;
    non_empty += head.changes != 0;
  }
  if (piece.changed == 0)
    return fail(Code::invalid_input, "piece of block {}: no changes", piece.block);
  piece.heads = piece.body.first(piece.body.size() - rest.size());
  for (std::uint64_t i = 1; i < non_empty; ++i) {
    std::uint64_t length = 0;
    if (!take_varint(rest, length))
      return fail(Code::invalid_input,
                  "piece of block {}: a body of {} bytes cannot hold the record lengths of {} tiles", piece.block,
                  piece.body.size(), non_empty);
  }
  piece.lengths = piece.body.subspan(piece.heads.size(), piece.body.size() - rest.size() - piece.heads.size());
  if (piece.kind == PieceKind::delta) {
    if (piece.changed > rest.size() / size)
      return fail(Code::invalid_input, "piece of block {}: {} bytes do not hold the values of {} changes of {} bytes",
                  piece.block, rest.size(), piece.changed, size);
    const std::size_t value_bytes = static_cast<std::size_t>(piece.changed) * size;
    piece.values = rest.last(value_bytes);
    rest = rest.first(rest.size() - value_bytes);
  }
  piece.records = rest;
  return {};
}

/// Looks into every record of a delta piece.
Result<void> check_records(const PieceView& piece, std::size_t size) {
  TilePositions positions;
  UlpValues ulp;
  std::uint64_t bad = piece.first + piece.elements;
  const bool valid = for_each_record(piece, [&](std::uint64_t first, std::size_t span, const TileHead& head,
                                                std::span<const std::byte> record, std::uint64_t) {
    bad = first;
    return read_record(piece.kind, head, record, span, size, positions, ulp);
  });
  if (!valid)
    return tl::make_unexpected(bad_record(piece, bad));
  return {};
}

/// Header and bounds; first and elements are set but for a whole block's.
Result<PieceView> read_header(std::span<const std::byte> bytes, Range& range) {
  PieceView piece;
  std::span<const std::byte> rest = bytes;
  std::uint64_t packed = 0;
  std::uint64_t body = 0;
  const auto cut_short = [&] {
    return fail(Code::invalid_input, "piece header is cut short or holds a number past 64 bits ({} bytes left)",
                bytes.size());
  };
  if (!take_varint(rest, packed))
    return cut_short();
  range = static_cast<Range>(packed >> 2 & 3);
  piece.kind = static_cast<PieceKind>(packed & 3);
  if (packed >> 4 > std::numeric_limits<std::uint32_t>::max())
    return fail(Code::invalid_input, "piece header names block {}, past 32 bits", packed >> 4);
  piece.block = static_cast<std::uint32_t>(packed >> 4);
  if (range > Range::elements)
    return fail(Code::invalid_input, "piece of block {}: unknown range {}", piece.block, packed >> 2 & 3);
  if (range != Range::whole) {
    if (!take_varint(rest, piece.first) || !take_varint(rest, piece.elements))
      return cut_short();
    if (range == Range::tiles && (piece.first > std::numeric_limits<std::uint64_t>::max() / tile_elements ||
                                  piece.elements > std::numeric_limits<std::uint64_t>::max() / tile_elements))
      return fail(Code::invalid_input, "piece of block {}: no valid range, {} tiles from {}", piece.block,
                  piece.elements, piece.first);
    if (range == Range::tiles) {
      piece.first *= tile_elements;
      piece.elements *= tile_elements;
    }
    if (piece.elements == 0 || piece.first > std::numeric_limits<std::uint64_t>::max() - piece.elements)
      return fail(Code::invalid_input, "piece of block {}: no valid range, {} elements from {}", piece.block,
                  piece.elements, piece.first);
  }
  if (!take_varint(rest, body))
    return cut_short();
  if (body > rest.size())
    return fail(Code::invalid_input, "piece of block {}: a body of {} bytes where {} are left", piece.block, body,
                rest.size());
  piece.body = rest.first(static_cast<std::size_t>(body));
  piece.bytes = bytes.size() - rest.size() + piece.body.size();
  return piece;
}

} // namespace

Result<PieceView> peek_piece(std::span<const std::byte> bytes) {
  Range range;
  return read_header(bytes, range);
}

namespace {

/// Makes a compressed piece the one that was compressed.
Result<void> expand_body(PieceView& piece, std::size_t size, Expander* expander) {
  std::span<const std::byte> rest = piece.body;
  std::uint64_t kind = 0;
  std::uint64_t values = 0;
  if (!take_varint(rest, kind) || kind > static_cast<std::uint64_t>(PieceKind::ulp_delta) || !take_varint(rest, values))
    return fail(Code::invalid_input, "piece of block {}: {} compressed bytes do not say what they hold", piece.block,
                piece.body.size());
  if (expander == nullptr)
    return fail(Code::invalid_input, "piece of block {}: compressed, where no piece may be", piece.block);
  const auto body = expander->expand(rest, {static_cast<std::size_t>(values), size});
  if (!body)
    return fail(body.error().code, "piece of block {}: {}", piece.block, body.error().message);
  piece.kind = static_cast<PieceKind>(kind);
  piece.body = *body;
  return {};
}

} // namespace

Result<PieceView> open_piece(std::span<const std::byte> bytes, const layout::Block& block, Expander* expander) {
  Range range;
  auto piece = read_header(bytes, range);
  if (!piece)
    return piece;
  if (piece->block != block.id)
    return fail(Code::invalid_input, "piece of block {} where block {} is expected", piece->block, block.id);
  std::uint64_t elements = 0;
  if (!count_elements(block, elements))
    return fail(Code::internal, "block {}: its extents have no 64-bit product", block.id);
  if (range == Range::whole)
    piece->elements = elements;
  // The last tile goes as far as the block does.
  if (range == Range::tiles && piece->first < elements && piece->elements > elements - piece->first &&
      piece->elements - (elements - piece->first) < tile_elements)
    piece->elements = elements - piece->first;
  if (piece->first >= elements || piece->elements > elements - piece->first)
    return fail(Code::invalid_input, "piece of block {}: {} elements from {} leave the block of {}", block.id,
                piece->elements, piece->first, elements);
  const std::size_t size = size_of(block.dtype);
  if (piece->kind == PieceKind::compressed)
    if (auto expanded = expand_body(*piece, size, expander); !expanded)
      return pass_on(std::move(expanded));
  if (piece->kind == PieceKind::values) {
    piece->changed = piece->elements;
    if (piece->body.size() % size != 0 || piece->body.size() / size != piece->changed)
      return fail(Code::invalid_input, "piece of block {}: {} bytes of values for {} elements of {} bytes", block.id,
                  piece->body.size(), piece->changed, size);
    piece->values = piece->body;
    return piece;
  }
  if (auto split = split_body(*piece, size); !split)
    return pass_on(std::move(split));
  return piece;
}

Result<PieceView> read_piece(std::span<const std::byte> bytes, const layout::Block& block, Expander* expander) {
  auto piece = open_piece(bytes, block, expander);
  if (piece && piece->kind != PieceKind::values)
    if (auto checked = check_records(*piece, size_of(block.dtype)); !checked)
      return pass_on(std::move(checked));
  return piece;
}

Failure bad_record(const PieceView& piece, std::uint64_t first) {
  return {Code::invalid_input, fmt::format("piece of block {}, tile {}: its record does not hold what its head says",
                                           piece.block, first / tile_elements)};
}

std::size_t least_piece_limit(std::size_t size) noexcept {
  // Tag, first, and a byte each for elements and body; the head; the value. One element alone is dense: no code.
  return most_tag_bytes + most_first_bytes + 2 + 2 + size;
}

namespace {

/// The most that headers of a range's pieces take, each.
std::uint64_t most_header_of(std::uint64_t elements, std::size_t size, std::size_t piece_limit) noexcept {
  return most_tag_bytes + most_first_bytes + varint_bytes(elements) +
         varint_bytes(std::min<std::uint64_t>(piece_limit, saturating_multiply(elements, size + 7))); // of body_bytes
}

} // namespace

std::uint64_t most_cuts(std::uint64_t elements, std::size_t size, std::size_t piece_limit) noexcept {
  // A piece that is cut covers `p` elements up to the change that no longer fits. With c <= p changes in it, one more
  // would need: a header; heads and lengths of at most p / 4096 + 2 tiles, 6 bytes each; a position code of at most a
  // byte an element, which every codec keeps to; c + 1 values, which the ulp lane only makes smaller. That is more than
  // the limit, which bounds p from below and so the number of cuts. Values pieces have no positions and hold more
  // elements each; a delta that becomes one does so to be smaller.
  const std::uint64_t element = size + 1;
  const std::uint64_t fixed = most_header_of(elements, size, piece_limit) + 2 * most_tile_bytes + element;
  std::uint64_t least_cut = 1;
  if (piece_limit > fixed) {
    const std::uint64_t room = piece_limit - fixed;
    // room / (element + 1 / 512), rounded down; a room beyond any range is only as good as the range.
    least_cut = room >= saturating_multiply(elements, element + 1) ? elements : room * 512 / (element * 512 + 1);
    least_cut = std::max<std::uint64_t>(least_cut, 1);
  }
  return (elements - 1) / least_cut;
}

std::uint64_t worst_case_bytes(std::uint64_t elements, std::size_t size, std::size_t piece_limit) noexcept {
  if (elements == 0)
    return 0;
  const std::uint64_t cuts = most_cuts(elements, size, piece_limit);
  // Every cut repeats a header and the head and length of the tile that it divides. A piece that ends at a stretch of
  // empty tiles is paid for by the codes and values that those tiles do not have.
  const std::uint64_t tiles = saturating_add(elements / tile_elements + 2, cuts);
  const std::uint64_t bound =
    saturating_add(saturating_add(saturating_multiply(elements, size + 1), saturating_multiply(most_tile_bytes, tiles)),
                   saturating_multiply(most_header_of(elements, size, piece_limit), cuts + 1));
  return std::min(bound, saturating_multiply(elements, piece_limit)); // a piece has at least one element
}

/// How a piece says its range.
struct PieceEncoder::Framing {
  Range range = Range::elements;
  std::uint64_t fields[2] = {}; ///< after the tag, but for whole
  std::uint64_t lead = 0;       ///< tiles without changes that whole adds before the piece's own
  std::uint64_t trail = 0;      ///< and after them
  std::uint64_t bytes = 0;      ///< header and body, with what whole adds to it
};

/// The smallest. A delta may say that it is of the whole block at the price of heads of tiles without changes, a byte
/// each.
PieceEncoder::Framing PieceEncoder::frame(std::uint64_t first, std::uint64_t end, std::uint64_t body,
                                          PieceKind kind) const noexcept {
  const auto total = [&](const Framing& framing) {
    const std::uint64_t with_heads = body + framing.lead + framing.trail;
    std::uint64_t bytes = varint_bytes(tag(block_, framing.range, kind)) + varint_bytes(with_heads) + with_heads;
    if (framing.range != Range::whole)
      bytes += varint_bytes(framing.fields[0]) + varint_bytes(framing.fields[1]);
    return bytes;
  };
  Framing best;
  best.fields[0] = first;
  best.fields[1] = end - first;
  best.bytes = total(best);
  if (first % tile_elements != 0 || (end % tile_elements != 0 && end != block_elements_))
    return best;
  const std::uint64_t first_tile = first / tile_elements;
  const std::uint64_t tiles = tiles_of(first, end);
  const auto consider = [&](Framing framing) {
    framing.bytes = total(framing);
    if (framing.bytes < best.bytes)
      best = framing;
  };
  consider({Range::tiles, {first_tile, tiles}, 0, 0, 0});
  const std::uint64_t trail = tiles_of(0, block_elements_) - first_tile - tiles;
  if (kind != PieceKind::values)
    consider({Range::whole, {}, first_tile, trail, 0});
  else if (first_tile == 0 && trail == 0)
    consider({Range::whole, {}, 0, 0, 0});
  return best;
}

PieceEncoder::PieceEncoder(std::size_t piece_limit, Encoding encoding)
  : piece_limit_(piece_limit), encoding_(encoding), tile_encoder_(encoding) {
  assert(piece_limit >= least_piece_limit(1));
  if (encoding.compress) {
    assert(can_compress() && piece_limit <= most_plain_bytes);
    compressor_.emplace();
  }
}

void PieceEncoder::start_range(const layout::Block& block, std::uint64_t first, std::uint64_t elements,
                               const std::byte* dense) {
  assert(changed_ == 0);
  block_ = block.id;
  dtype_ = block.dtype;
  size_ = size_of(block.dtype);
  assert(piece_limit_ >= least_piece_limit(size_));
  [[maybe_unused]] const bool counted = count_elements(block, block_elements_);
  assert(counted && first + elements <= block_elements_);
  range_first_ = first;
  range_end_ = first + elements;
  done_ = first;
  dense_ = dense;
  fetch_dense_ = nullptr;
}

void PieceEncoder::start_range(const layout::Block& block, std::uint64_t first, std::uint64_t elements,
                               std::function<const std::byte*()> dense) {
  start_range(block, first, elements);
  fetch_dense_ = std::move(dense);
}

const std::byte* PieceEncoder::dense() {
  if (dense_ == nullptr)
    dense_ = fetch_dense_();
  return dense_;
}

/// Heads, lengths, records and values of the open piece, as either kind of delta.
std::uint64_t PieceEncoder::body_bytes(bool ulp) const noexcept {
  return (ulp ? ulp_index_ : delta_index_) + records_.size() + values_.size();
}

TileEncoder::Plan PieceEncoder::plan(const Rest& rest, std::uint64_t end) {
  return tile_encoder_.plan(rest.positions, static_cast<std::size_t>(end - rest.part), dtype_, rest.values,
                            rest.before);
}

bool PieceEncoder::fits(const TileEncoder::Plan& plan, std::uint64_t skipped, std::uint64_t end) const noexcept {
  const bool ulp = ulp_ || plan.head.ulp;
  std::uint64_t body = body_bytes(ulp) + skipped + plan.bytes();
  if (body + most_tile_bytes + most_header_bytes <= piece_limit_)
    return true;
  body += varint_bytes(pack_head(plan.head, ulp));
  if (!tiles_.empty()) // the tile before is no longer the last
    body += varint_bytes(std::uint64_t{tiles_.back().record} + (ulp ? tiles_.back().values : 0));
  return frame(first_, end, body, ulp ? PieceKind::ulp_delta : PieceKind::delta).bytes <= piece_limit_;
}

void PieceEncoder::append_tile(const TileEncoder::Plan& plan, std::uint64_t skipped, std::uint64_t end,
                               const std::byte* values) {
  if (skipped != 0)
    heads_.resize(heads_.size() + static_cast<std::size_t>(skipped));
  heads_.push_back(plan.head);
  delta_index_ += skipped + varint_bytes(pack_head(plan.head, false));
  ulp_index_ += skipped + varint_bytes(pack_head(plan.head, true));
  if (!tiles_.empty()) {
    delta_index_ += varint_bytes(tiles_.back().record);
    ulp_index_ += varint_bytes(std::uint64_t{tiles_.back().record} + tiles_.back().values);
  }
  tiles_.push_back({static_cast<std::uint32_t>(plan.record_bytes), static_cast<std::uint32_t>(plan.value_bytes)});
  tile_encoder_.write(records_);
  values_.insert(values_.end(), values, values + plan.value_bytes);
  ulp_ = ulp_ || plan.head.ulp;
  changed_ += plan.head.changes;
  end_ = end;
}

/// Plans the most changes that fit, and where the piece's part then ends: all of them up to the end of the tile part,
/// or
/// (`cut`) some and one more would not. `count` 0: not even one.
PieceEncoder::Fit PieceEncoder::fit(const Rest& rest, std::uint64_t skipped) {
  Fit fit{rest.positions.size(), rest.end, false, {}};
  // A change takes a bit at least, so that far more of them than the limit has need no look.
  if (fit.count / 8 <= piece_limit_) {
    fit.plan = plan(rest, rest.end);
    if (fits(fit.plan, skipped, fit.end))
      return fit;
  }
  fit.cut = true;
  Rest some = rest;
  const auto first_fit = [&](std::size_t changes) {
    some.positions = rest.positions.first(changes);
    fit.end = rest.part + some.positions.back() + 1;
    fit.plan = plan(some, fit.end);
    return fits(fit.plan, skipped, fit.end);
  };
  // By doubling, so that a small piece costs little of a full tile.
  std::size_t above = 1;
  while (above <= rest.positions.size() && first_fit(above))
    above *= 2;
  fit.count = above / 2;
  above = std::min(above, rest.positions.size() + 1);
  while (above - fit.count > 1) {
    const std::size_t middle = fit.count + (above - fit.count) / 2;
    (first_fit(middle) ? fit.count : above) = middle;
  }
  if (fit.count > 0)
    first_fit(fit.count);
  return fit;
}

void PieceEncoder::add_changes(std::uint64_t first, std::span<const std::uint16_t> positions, const std::byte* values,
                               const std::byte* before) {
  TilePositions moved;
  TilePositions all;
  Rest rest{first, 0, positions, values, before};
  const auto count_from = [&](std::uint64_t part) {                 // positions, from now on
    if (const std::uint64_t shift = rest.part - part; shift != 0) { // modulo 2^64
      for (std::size_t i = 0; i < rest.positions.size(); ++i)
        moved[i] = static_cast<std::uint16_t>(rest.positions[i] + shift);
      rest.positions = std::span(moved).first(rest.positions.size());
    }
    rest.part = part;
  };
  while (!rest.positions.empty()) {
    const std::uint64_t change = rest.part + rest.positions.front();
    assert(change >= done_ && rest.part + rest.positions.back() < range_end_);
    assert(change / tile_elements == (rest.part + rest.positions.back()) / tile_elements);
    const std::uint64_t tile = change / tile_elements;
    std::uint64_t skipped = 0; // tiles without changes since the piece's last
    if (changed_ != 0) {
      const std::uint64_t last_tile = (end_ - 1) / tile_elements;
      // A tile has one head a piece; and a stretch of empty tiles may cost more than a header.
      if (last_tile == tile ||
          (tile - last_tile > 1 &&
           tile - last_tile - 1 > frame(tile * tile_elements, block_elements_, 0, PieceKind::delta).bytes))
        close_piece();
      else
        skipped = tile - last_tile - 1;
    }
    // The part is the tile but at the ends of the range and after a cut.
    rest.end = std::min(range_end_, (tile + 1) * tile_elements);
    count_from(std::max(done_, tile * tile_elements));
    if (changed_ == 0)
      first_ = rest.part;
    Fit fit = this->fit(rest, skipped);
    if (const auto span = static_cast<std::size_t>(rest.end - rest.part);
        has_dense() && rest.positions.size() < span &&
        (encoding_.positions ? *encoding_.positions == PositionCodec::dense
                             : !fit.cut && fit.plan.bytes() >= span * size_)) {
      // All the values of the part are no more than its changes, or asked for.
      std::iota(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(span), std::uint16_t{0});
      rest.positions = std::span(all).first(span);
      rest.values = dense() + rest.part * size_;
      rest.before = nullptr;
      fit = this->fit(rest, skipped);
    }
    if (fit.cut && changed_ == 0 && rest.positions.front() != 0) {
      // A piece that is cut anyway begins at its first change, so that one change always fits.
      count_from(rest.part + rest.positions.front());
      first_ = rest.part;
      fit = this->fit(rest, skipped);
    }
    if (fit.count == 0) {
      assert(changed_ != 0); // piece_limit >= least_piece_limit
      close_piece();
      continue;
    }
    append_tile(fit.plan, skipped, fit.end, rest.values);
    done_ = rest.part + rest.positions[fit.count - 1] + 1;
    rest.positions = rest.positions.subspan(fit.count);
    rest.values += fit.count * size_;
    if (rest.before != nullptr)
      rest.before += fit.count * size_;
    if (fit.cut)
      close_piece();
  }
}

void PieceEncoder::finish_range() {
  if (changed_ != 0)
    close_piece();
  fetch_dense_ = nullptr; // with what it refers to
}

void PieceEncoder::append_tag(PieceKind kind, const Framing& framing) {
  append_varint(out_.bytes, tag(block_, framing.range, kind));
  if (framing.range != Range::whole) {
    append_varint(out_.bytes, framing.fields[0]);
    append_varint(out_.bytes, framing.fields[1]);
  }
}

/// Appends a piece of `body` bytes but for the heads that `framing` adds, which `write_body` appends too. It ends with
/// as many values as they are.
template <class WriteBody>
void PieceEncoder::append_piece(PieceKind kind, const Framing& framing, std::uint64_t body, std::size_t values,
                                WriteBody&& write_body) {
  const std::size_t begin = out_.bytes.size();
  append_tag(kind, framing);
  append_varint(out_.bytes, body + framing.lead + framing.trail);
  const std::size_t body_begin = out_.bytes.size();
  write_body();
  assert(out_.bytes.size() - begin == framing.bytes && framing.bytes <= piece_limit_);
  if (compressor_)
    compress_piece(begin, kind, framing, out_.bytes.size() - body_begin, values);
  out_.ends.push_back(out_.bytes.size());
}

/// Compresses the piece that begins at `begin` and ends with its `body` bytes, where that makes it smaller.
void PieceEncoder::compress_piece(std::size_t begin, PieceKind kind, const Framing& framing, std::size_t body,
                                  std::size_t values) {
  // Kind and number of values stand before the frame. The length of a smaller body has no more bytes.
  const std::size_t fields = 1 + varint_bytes(values);
  if (body <= fields)
    return;
  const auto frame = compressor_->compress(std::span(out_.bytes).last(body), {values, size_}, body - fields);
  if (frame.empty())
    return;
  out_.bytes.resize(begin);
  append_tag(PieceKind::compressed, framing);
  append_varint(out_.bytes, fields + frame.size());
  append_varint(out_.bytes, static_cast<std::uint64_t>(kind));
  append_varint(out_.bytes, values);
  append_bytes(frame);
}

void PieceEncoder::append_bytes(std::span<const std::byte> bytes) {
  out_.bytes.insert(out_.bytes.end(), bytes.begin(), bytes.end());
}

void PieceEncoder::close_piece() {
  const PieceKind kind = ulp_ ? PieceKind::ulp_delta : PieceKind::delta;
  const std::uint64_t body = body_bytes(ulp_);
  const Framing framing = frame(first_, end_, body, kind);
  const std::uint64_t value_bytes = (end_ - first_) * size_;
  const Framing all = frame(first_, end_, value_bytes, PieceKind::values);
  if (has_dense() && !encoding_.positions && all.bytes <= framing.bytes) {
    append_piece(PieceKind::values, all, value_bytes, static_cast<std::size_t>(end_ - first_), [&] {
      append_bytes({dense() + first_ * size_, static_cast<std::size_t>(value_bytes)});
    });
    out_.changed += end_ - first_;
  } else {
    append_piece(kind, framing, body, ulp_ ? 0 : values_.size() / size_,
                 [&] { append_delta(framing.lead, framing.trail); });
    out_.changed += changed_;
  }
  changed_ = 0;
  ulp_ = false;
  delta_index_ = ulp_index_ = 0;
  heads_.clear();
  tiles_.clear();
  records_.clear();
  values_.clear();
}

/// The body of the open piece.
void PieceEncoder::append_delta(std::uint64_t lead, std::uint64_t trail) {
  const std::size_t begin = out_.bytes.size();
  const std::uint64_t index = ulp_ ? ulp_index_ : delta_index_;
  static_assert(empty_head == 0 && varint_bytes(empty_head) == 1);
  out_.bytes.resize(begin + static_cast<std::size_t>(lead + index + trail));
  std::byte* next = out_.bytes.data() + begin + lead;
  for (const TileHead& head : heads_)
    next = write_varint(next, pack_head(head, ulp_));
  next += trail;
  for (std::size_t i = 0; i + 1 < tiles_.size(); ++i)
    next = write_varint(next, std::uint64_t{tiles_[i].record} + (ulp_ ? tiles_[i].values : 0));
  assert(next == out_.bytes.data() + out_.bytes.size());
  if (!ulp_) {
    append_bytes(records_);
    append_bytes(values_);
    return;
  }
  std::span<const std::byte> records = records_;
  std::span<const std::byte> values = values_;
  for (const Tile& tile : tiles_) {
    append_bytes(records.first(tile.record));
    append_bytes(values.first(tile.values));
    records = records.subspan(tile.record);
    values = values.subspan(tile.values);
  }
}

void PieceEncoder::add_values(const layout::Block& block, std::uint64_t first, std::uint64_t elements,
                              const std::byte* values) {
  start_range(block, first, elements);
  while (first < range_end_) {
    // The header shrinks with the count that it states: begin one that surely does not fit and come down.
    std::uint64_t count = std::min<std::uint64_t>(range_end_ - first, piece_limit_ / size_);
    Framing framing;
    for (;; --count) {
      framing = frame(first, first + count, count * size_, PieceKind::values);
      if (count == 1 || framing.bytes <= piece_limit_)
        break;
    }
    const std::uint64_t bytes = count * size_;
    append_piece(PieceKind::values, framing, bytes, static_cast<std::size_t>(count), [&] {
      append_bytes({values, static_cast<std::size_t>(bytes)});
    });
    out_.changed += count;
    first += count;
    values += bytes;
  }
}

EncodedPieces PieceEncoder::take() {
  assert(changed_ == 0);
  return std::exchange(out_, {});
}

} // namespace deltawire::delta
