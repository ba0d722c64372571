// Encoding and reading pieces, byte for byte as FORMAT.md ("Pieces") says.
#include "delta/piece.hpp"

#include "delta/tiles.hpp"
#include "kernels/gaps.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <limits>

namespace deltawire::delta {
namespace {

constexpr std::uint16_t count_bits = 13; // of a tile head; the codec id is above
constexpr std::uint16_t count_mask = (1u << count_bits) - 1;
constexpr std::uint16_t codec_gaps_u8 = 0;

constexpr std::size_t most_varint_bytes = 10;
// Block ids are 32 bits and carry the kind in one more; elements of a block are fewer than 2^63.
constexpr std::size_t most_block_bytes = 5;
constexpr std::size_t most_first_bytes = 9;

constexpr std::size_t varint_bytes(std::uint64_t value) noexcept {
  std::size_t bytes = 1;
  while (value >= 0x80) {
    value >>= 7;
    ++bytes;
  }
  return bytes;
}

constexpr std::uint64_t tag(std::uint32_t block, PieceKind kind) noexcept {
  return std::uint64_t{block} << 1 | static_cast<std::uint64_t>(kind);
}

constexpr std::size_t header_bytes(std::uint32_t block, std::uint64_t first, std::uint64_t elements,
                                   std::uint64_t changed, std::uint64_t body) noexcept {
  return varint_bytes(tag(block, PieceKind::delta)) + varint_bytes(first) + varint_bytes(elements) +
         varint_bytes(changed) + varint_bytes(body);
}

/// Takes a varint from the front of `bytes`; nothing when it is cut short or does not fit 64 bits.
bool take_varint(std::span<const std::byte>& bytes, std::uint64_t& value) noexcept {
  value = 0;
  for (std::size_t i = 0; i < most_varint_bytes && i < bytes.size(); ++i) {
    const auto byte = std::to_integer<std::uint64_t>(bytes[i]);
    if (i == most_varint_bytes - 1 && byte > 1)
      return false;
    value |= (byte & 0x7F) << (7 * i);
    if (byte < 0x80) {
      bytes = bytes.subspan(i + 1);
      return true;
    }
  }
  return false;
}

std::uint64_t saturating_multiply(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::uint64_t>::max() : product;
}

std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::uint64_t>::max() : sum;
}

std::uint16_t word_at(std::span<const std::byte> bytes, std::uint64_t at) noexcept {
  std::uint16_t word;
  std::memcpy(&word, bytes.data() + at, sizeof(word));
  return word;
}

/// Extent product; nothing where it is no valid count.
bool count_elements(const layout::Block& block, std::uint64_t& elements) noexcept {
  elements = 1;
  for (const layout::Index extent : block.extents)
    if (extent < 0 || __builtin_mul_overflow(elements, static_cast<std::uint64_t>(extent), &elements))
      return false;
  return true;
}

/// Checks heads and codes of a delta piece and splits its body.
Result<void> split_body(PieceView& piece, std::size_t size) {
  const std::uint64_t end = piece.first + piece.elements;
  const std::uint64_t tiles = (end - 1) / tile_elements - piece.first / tile_elements + 1;
  if (tiles > piece.body.size() / 2)
    return fail(Code::invalid_input, "piece of block {}: a body of {} bytes cannot hold the heads of {} tiles",
                piece.block, piece.body.size(), tiles);
  std::uint64_t declared = 0;
  std::uint64_t non_empty = 0;
  for (std::uint64_t tile = 0; tile < tiles; ++tile) {
    const std::uint16_t head = word_at(piece.body, 2 * tile);
    if (head >> count_bits != codec_gaps_u8)
      return fail(Code::invalid_input, "piece of block {}, tile {}: unknown position codec {}", piece.block,
                  piece.first / tile_elements + tile, head >> count_bits);
    declared += head & count_mask;
    non_empty += (head & count_mask) != 0;
  }
  if (declared != piece.changed)
    return fail(Code::invalid_input, "piece of block {}: its tiles hold {} changes, its header says {}", piece.block,
                declared, piece.changed);
  const std::uint64_t lengths = 2 * tiles; // offset of the code lengths
  std::uint64_t codes = lengths + 2 * non_empty;
  if (codes > piece.body.size())
    return fail(Code::invalid_input, "piece of block {}: a body of {} bytes cannot hold the code lengths of {} tiles",
                piece.block, piece.body.size(), non_empty);

  TilePositions positions;
  std::uint64_t next_length = lengths;
  std::uint64_t part = piece.first;
  for (std::uint64_t tile = 0; tile < tiles; ++tile) {
    const std::uint64_t part_end = std::min(end, (part / tile_elements + 1) * tile_elements);
    if (const std::size_t changed = word_at(piece.body, 2 * tile); changed != 0) {
      const std::size_t length = word_at(piece.body, next_length);
      next_length += 2;
      if (length > piece.body.size() - codes)
        return fail(Code::invalid_input, "piece of block {}, tile {}: its codes reach past the body", piece.block,
                    part / tile_elements);
      const auto span = static_cast<std::size_t>(part_end - part);
      if (changed > span || !kernels::decode_gaps(piece.body.subspan(codes, length), changed, span, positions.data()))
        return fail(Code::invalid_input, "piece of block {}, tile {}: its codes are not {} positions below {}",
                    piece.block, part / tile_elements, changed, span);
      codes += length;
    }
    part = part_end;
  }
  const std::uint64_t rest = piece.body.size() - codes;
  if (rest % size != 0 || rest / size != piece.changed)
    return fail(Code::invalid_input, "piece of block {}: {} bytes of values for {} changes of {} bytes", piece.block,
                rest, piece.changed, size);
  piece.positions = piece.body.first(codes);
  piece.values = piece.body.subspan(codes);
  return {};
}

} // namespace

Result<PieceView> peek_piece(std::span<const std::byte> bytes) {
  PieceView piece;
  std::span<const std::byte> rest = bytes;
  std::uint64_t block = 0;
  std::uint64_t body = 0;
  if (!take_varint(rest, block) || !take_varint(rest, piece.first) || !take_varint(rest, piece.elements) ||
      !take_varint(rest, piece.changed) || !take_varint(rest, body))
    return fail(Code::invalid_input, "piece header is cut short or holds a number past 64 bits ({} bytes left)",
                bytes.size());
  if (block >> 1 > std::numeric_limits<std::uint32_t>::max())
    return fail(Code::invalid_input, "piece header names block {}, past 32 bits", block >> 1);
  piece.block = static_cast<std::uint32_t>(block >> 1);
  piece.kind = static_cast<PieceKind>(block & 1);
  if (piece.elements == 0 || piece.first > std::numeric_limits<std::uint64_t>::max() - piece.elements)
    return fail(Code::invalid_input, "piece of block {}: no valid range, {} elements from {}", piece.block,
                piece.elements, piece.first);
  if (piece.changed == 0 || piece.changed > piece.elements ||
      (piece.kind == PieceKind::values && piece.changed != piece.elements))
    return fail(Code::invalid_input, "piece of block {}: {} values for a range of {} elements", piece.block,
                piece.changed, piece.elements);
  if (body > rest.size())
    return fail(Code::invalid_input, "piece of block {}: a body of {} bytes where {} are left", piece.block, body,
                rest.size());
  piece.body = rest.first(static_cast<std::size_t>(body));
  piece.bytes = bytes.size() - rest.size() + piece.body.size();
  return piece;
}

Result<PieceView> read_piece(std::span<const std::byte> bytes, const layout::Block& block) {
  auto piece = peek_piece(bytes);
  if (!piece)
    return piece;
  if (piece->block != block.id)
    return fail(Code::invalid_input, "piece of block {} where block {} is expected", piece->block, block.id);
  std::uint64_t elements = 0;
  if (!count_elements(block, elements))
    return fail(Code::internal, "block {}: its extents have no 64-bit product", block.id);
  if (piece->first >= elements || piece->elements > elements - piece->first)
    return fail(Code::invalid_input, "piece of block {}: {} elements from {} leave the block of {}", block.id,
                piece->elements, piece->first, elements);
  const std::size_t size = size_of(block.dtype);
  if (piece->kind == PieceKind::values) {
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

std::size_t least_piece_limit(std::size_t size) noexcept {
  // Block, first, and a byte each for elements, changed and body; head, code length, code; the value.
  return most_block_bytes + most_first_bytes + 3 + 2 + 2 + 1 + size;
}

std::uint64_t worst_case_bytes(std::uint64_t elements, std::size_t size, std::size_t piece_limit) noexcept {
  if (elements == 0)
    return 0;
  // A piece that is cut covers `p` elements up to the change that no longer fits. With c <= p changes in it, one more
  // would need: a header; heads and code lengths of at most p / 4096 + 2 tiles, 4 bytes each; c + 1 codes and values;
  // an escape for every 255 elements without a change. That is more than the limit, which bounds p from below and so
  // the number of cuts. Values pieces have no positions and hold more elements each.
  const std::uint64_t header =
    most_block_bytes + most_first_bytes + 2 * varint_bytes(elements) +
    varint_bytes(std::min<std::uint64_t>(piece_limit, saturating_multiply(elements, size + 6))); // of body_bytes
  const std::uint64_t element = size + 1;
  const std::uint64_t fixed = header + 8 + element;
  std::uint64_t least_cut = 1;
  if (piece_limit > fixed) {
    const std::uint64_t room = piece_limit - fixed;
    // room / (element + 1 / 1024), rounded down; a room beyond any range is only as good as the range.
    least_cut = room >= saturating_multiply(elements, element + 1) ? elements : room * 1024 / (element * 1024 + 1);
    least_cut = std::max<std::uint64_t>(least_cut, 1);
  }
  const std::uint64_t cuts = (elements - 1) / least_cut;
  // Every cut repeats a header and the head and length of the tile that it divides. A piece that ends at a stretch of
  // empty tiles is paid for by the codes and values that those tiles do not have.
  const std::uint64_t tiles = saturating_add(elements / tile_elements + 2, cuts);
  const std::uint64_t bound =
    saturating_add(saturating_add(saturating_multiply(elements, element), saturating_multiply(4, tiles)),
                   saturating_multiply(header, cuts + 1));
  return std::min(bound, saturating_multiply(elements, piece_limit)); // a piece has at least one element
}

PieceEncoder::PieceEncoder(std::size_t piece_limit) : piece_limit_(piece_limit) {
  assert(piece_limit >= least_piece_limit(1));
}

void PieceEncoder::start_range(const layout::Block& block, std::uint64_t first, std::uint64_t elements) {
  assert(changed_ == 0);
  block_ = block.id;
  size_ = size_of(block.dtype);
  assert(piece_limit_ >= least_piece_limit(size_));
  range_first_ = first;
  range_end_ = first + elements;
}

std::uint64_t PieceEncoder::body_bytes() const noexcept {
  return 2 * heads_.size() + 2 * code_bytes_.size() + codes_.size() + values_.size();
}

bool PieceEncoder::fits(std::uint64_t last, std::uint64_t changed, std::uint64_t body) const noexcept {
  return header_bytes(block_, first_, last - first_ + 1, changed, body) + body <= piece_limit_;
}

/// How many of a tile part's positions (relative to `first`, codes relative to `origin`) the open piece has room for;
/// `body` is its body with the tile's head and code length already counted.
std::size_t PieceEncoder::count_that_fit(std::uint64_t first, std::span<const std::uint16_t> positions,
                                         std::uint16_t origin, std::uint64_t body) const noexcept {
  std::size_t expected = origin;
  for (std::size_t count = 0; count < positions.size(); ++count) {
    body += kernels::gap_escapes(positions[count] - expected) + 1 + size_;
    expected = std::size_t{positions[count]} + 1;
    if (!fits(first + positions[count], changed_ + count + 1, body))
      return count;
  }
  return positions.size();
}

void PieceEncoder::add_changes(std::uint64_t first, std::span<const std::uint16_t> positions, const std::byte* values) {
  std::array<std::byte, tile_elements> codes; // codes are never more than the elements they span
  while (!positions.empty()) {
    const std::uint64_t change = first + positions.front();
    assert(change >= range_first_ && first + positions.back() < range_end_);
    assert(change / tile_elements == (first + positions.back()) / tile_elements);
    const std::uint64_t tile = change / tile_elements;
    std::uint64_t skipped = 0; // tiles without changes since the piece's last
    if (changed_ != 0) {
      assert(change > last_);
      const std::uint64_t last_tile = last_ / tile_elements;
      // A tile has one head a piece; and a stretch of empty tiles may cost more than a header.
      if (last_tile == tile || 2 * (tile - last_tile - 1) > header_bytes(block_, change, 1, 1, 1))
        close_piece();
      else
        skipped = tile - last_tile - 1;
    }
    const bool opens = changed_ == 0;
    if (opens)
      first_ = change;
    // Codes count from the first element of the piece's part of this tile.
    const std::uint64_t part = opens ? change : tile * tile_elements;
    std::array<std::uint16_t, tile_elements> moved;
    std::span<const std::uint16_t> relative = positions;
    std::uint16_t origin = 0;
    if (part >= first) {
      origin = static_cast<std::uint16_t>(part - first);
    } else { // the caller's part begins inside the tile, the piece's at its start
      const std::uint64_t shift = first - part;
      for (std::size_t i = 0; i < positions.size(); ++i)
        moved[i] = static_cast<std::uint16_t>(positions[i] + shift);
      relative = std::span(moved).first(positions.size());
    }
    const std::uint64_t relative_first = part >= first ? first : part;

    const std::uint64_t body = body_bytes() + 2 * (skipped + 1) + 2;
    std::size_t count = positions.size();
    std::size_t length = 0;
    bool whole = fits(relative_first + relative.back(), changed_ + count, body + count * (1 + size_));
    if (whole) {
      length = kernels::encode_gaps(relative, origin, codes.data());
      whole = fits(relative_first + relative.back(), changed_ + count, body + length + count * size_);
    }
    if (!whole) {
      count = count_that_fit(relative_first, relative, origin, body);
      if (count == 0) {
        assert(!opens); // piece_limit >= least_piece_limit
        close_piece();
        continue;
      }
      length = kernels::encode_gaps(relative.first(count), origin, codes.data());
    }
    heads_.insert(heads_.end(), static_cast<std::size_t>(skipped), 0);
    heads_.push_back(static_cast<std::uint16_t>(count | codec_gaps_u8 << count_bits));
    code_bytes_.push_back(static_cast<std::uint16_t>(length));
    codes_.insert(codes_.end(), codes.begin(), codes.begin() + static_cast<std::ptrdiff_t>(length));
    values_.insert(values_.end(), values, values + count * size_);
    changed_ += count;
    last_ = first + positions[count - 1];
    values += count * size_;
    positions = positions.subspan(count);
    if (!whole)
      close_piece();
  }
}

void PieceEncoder::finish_range() {
  if (changed_ != 0)
    close_piece();
}

void PieceEncoder::append_header(PieceKind kind, std::uint64_t first, std::uint64_t elements, std::uint64_t changed,
                                 std::uint64_t body) {
  std::array<std::byte, 5 * most_varint_bytes> header;
  std::size_t bytes = 0;
  for (std::uint64_t value : {tag(block_, kind), first, elements, changed, body}) {
    for (; value >= 0x80; value >>= 7)
      header[bytes++] = static_cast<std::byte>(value | 0x80);
    header[bytes++] = static_cast<std::byte>(value);
  }
  out_.bytes.insert(out_.bytes.end(), header.begin(), header.begin() + static_cast<std::ptrdiff_t>(bytes));
}

void PieceEncoder::close_piece() {
  append_header(PieceKind::delta, first_, last_ - first_ + 1, changed_, body_bytes());
  const auto append_bytes = [this](std::span<const std::byte> bytes) {
    out_.bytes.insert(out_.bytes.end(), bytes.begin(), bytes.end());
  };
  append_bytes(std::as_bytes(std::span(heads_)));
  append_bytes(std::as_bytes(std::span(code_bytes_)));
  append_bytes(codes_);
  append_bytes(values_);
  out_.ends.push_back(out_.bytes.size());
  out_.changed += changed_;
  changed_ = 0;
  heads_.clear();
  code_bytes_.clear();
  codes_.clear();
  values_.clear();
}

void PieceEncoder::add_values(const layout::Block& block, std::uint64_t first, std::uint64_t elements,
                              const std::byte* values) {
  start_range(block, first, elements);
  while (first < range_end_) {
    // The header shrinks with the count that it states: begin one that surely does not fit and come down.
    std::uint64_t count = std::min<std::uint64_t>(range_end_ - first, piece_limit_ / size_);
    while (count > 1 && header_bytes(block_, first, count, count, count * size_) + count * size_ > piece_limit_)
      --count;
    const auto bytes = static_cast<std::size_t>(count) * size_;
    append_header(PieceKind::values, first, count, count, bytes);
    out_.bytes.insert(out_.bytes.end(), values, values + bytes);
    out_.ends.push_back(out_.bytes.size());
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
