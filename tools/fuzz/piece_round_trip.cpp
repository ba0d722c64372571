// Any changes, through the encoder and back. Input: a block (block.hpp); u8 encoding: bits 0..2 a forced position codec
// (6: none; 7: none, and pieces are compressed), bit 3 no ulp lane, bit 4 the encoder has all values at hand, bit 5 it
// may not see the base, bit 6 all values are sent, bit 7 the piece limit is the least; u16 more bytes of piece limit;
// u16 first element and u16 elements of the range (modulo); then changes, each a u8 gap, a u8 run and a u8 how: below
// 128 a step in bits, else other bits.
#include "delta/piece.hpp"

#include "block.hpp"
#include "delta/stage.hpp"
#include "delta/tiles.hpp"
#include "target.hpp"

#include <algorithm>
#include <cstring>

namespace deltawire::fuzz {
namespace {

/// What the encoder is given, and what must come of it.
struct Changes {
  std::vector<std::uint64_t> positions; ///< block elements
  std::vector<std::byte> after;         ///< the whole block, densely
};

Changes take_changes(Input& input, std::uint64_t first, std::uint64_t elements, const std::vector<std::byte>& before,
                     std::size_t size) {
  Changes changes{{}, before};
  std::uint64_t at = first;
  while (!input.empty() && at < first + elements) {
    at += input.u8();
    const unsigned run = input.u8();
    const unsigned how = input.u8();
    for (unsigned i = 0; i <= run && at < first + elements; ++i, ++at) {
      std::byte* value = changes.after.data() + at * size;
      std::uint64_t bits = 0;
      std::memcpy(&bits, value, size);
      const std::uint64_t other = how < 128 ? bits + how / 2 * (how % 2 == 0 ? 1 : ~std::uint64_t{0})
                                            : bits ^ (bits >> 3 | how) * 0x9E3779B97F4A7C15;
      if (std::memcmp(&other, value, size) == 0)
        continue;
      std::memcpy(value, &other, size);
      changes.positions.push_back(at);
    }
  }
  return changes;
}

void encode_changes(delta::PieceEncoder& encoder, const layout::Block& block, std::uint64_t first,
                    std::uint64_t elements, const Changes& changes, const std::vector<std::byte>& before, bool dense,
                    bool base, std::size_t size) {
  encoder.start_range(block, first, elements, dense ? changes.after.data() : nullptr);
  for (std::size_t i = 0; i < changes.positions.size();) {
    const std::uint64_t tile = changes.positions[i] / delta::tile_elements;
    const std::uint64_t part = std::max(first, tile * delta::tile_elements);
    std::vector<std::uint16_t> positions;
    std::vector<std::byte> values;
    std::vector<std::byte> bases;
    for (; i < changes.positions.size() && changes.positions[i] / delta::tile_elements == tile; ++i) {
      const std::uint64_t position = changes.positions[i];
      positions.push_back(static_cast<std::uint16_t>(position - part));
      const auto element = std::span(changes.after).subspan(position * size, size);
      values.insert(values.end(), element.begin(), element.end());
      const auto old = std::span(before).subspan(position * size, size);
      bases.insert(bases.end(), old.begin(), old.end());
    }
    encoder.add_changes(part, positions, values.data(), base ? bases.data() : nullptr);
  }
  encoder.finish_range();
}

} // namespace

bool accepts(std::span<const std::byte> bytes) {
  Input input(bytes);
  const layout::Block block = take_block(input);
  const std::uint64_t elements = elements_of(block);
  if (elements > most_elements)
    return false;
  const std::size_t size = size_of(block.dtype);
  const unsigned how = input.u8();
  delta::Encoding encoding;
  if ((how & 7) < delta::position_codecs)
    encoding.positions = static_cast<delta::PositionCodec>(how & 7);
  encoding.ulp = (how & 8) == 0;
  encoding.compress = (how & 7) == 7 && delta::can_compress();
  const std::size_t more = input.u16();
  const std::size_t limit = delta::least_piece_limit(size) + ((how & 128) != 0 ? 0 : more);
  const std::uint64_t first = input.u16() % elements;
  const std::uint64_t count = 1 + input.u16() % (elements - first);

  BlockMemory memory(block);
  std::vector<std::byte> before(elements * size);
  for (std::uint64_t e = 0; e < elements; ++e)
    std::memcpy(before.data() + e * size, memory.at(e), size);
  const Changes changes = take_changes(input, first, count, before, size);

  delta::PieceEncoder encoder(limit, encoding);
  if ((how & 64) != 0)
    encoder.add_values(block, first, count, changes.after.data() + first * size);
  else
    encode_changes(encoder, block, first, count, changes, before, (how & 16) != 0, (how & 32) == 0, size);
  const delta::EncodedPieces pieces = encoder.take();
  require(pieces.bytes.size() <= delta::worst_case_bytes(count, size, limit), "no more bytes than the worst case");
  require(pieces.ends.empty() ? pieces.bytes.empty() : pieces.ends.back() == pieces.bytes.size(), "pieces fill bytes");

  delta::Expander expander;
  std::size_t at = 0;
  std::uint64_t changed = 0;
  for (const std::uint64_t end : pieces.ends) {
    require(end - at <= limit, "no piece passes the limit");
    const auto piece = delta::read_piece(std::span(pieces.bytes).subspan(at), block, &expander);
    require(piece.has_value(), "our own pieces are read");
    require(piece->bytes == end - at, "a piece ends where the encoder says");
    require(piece->first >= first || piece->kind != delta::PieceKind::values, "values are of the range");
    changed += piece->changed;
    const delta::BoundBlock bound = memory.bound();
    delta::Stage stage({&bound, 1}, UINT64_MAX);
    require(stage.add(0, *piece).has_value(), "our own pieces are staged");
    stage.exchange({});
    at = end;
  }
  require(changed == pieces.changed, "the encoder counts its values");
  require((how & 64) != 0 || changed >= changes.positions.size(), "every change has a value");
  for (std::uint64_t e = 0; e < elements; ++e)
    require(std::memcmp(memory.at(e), changes.after.data() + e * size, size) == 0, "every element has its new bits");
  return !pieces.ends.empty();
}

} // namespace deltawire::fuzz
