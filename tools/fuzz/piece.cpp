// A piece from the network, against its block: read, staged, exchanged with memory and back, encoded again. Input: a
// block (block.hpp), the piece, whatever follows it.
#include "delta/piece.hpp"

#include "block.hpp"
#include "delta/tiles.hpp"
#include "target.hpp"

#include <algorithm>
#include <cstring>
#include <map>

namespace deltawire::fuzz {
namespace {

using Values = std::map<std::uint64_t, std::vector<std::byte>>; ///< by block element

/// Where the piece's values belong.
std::vector<std::uint64_t> positions_of(const delta::PieceView& piece) {
  std::vector<std::uint64_t> positions;
  if (piece.kind == delta::PieceKind::values) {
    for (std::uint64_t i = 0; i < piece.elements; ++i)
      positions.push_back(piece.first + i);
    return positions;
  }
  delta::for_each_tile(piece, [&](std::uint64_t first, std::span<const std::uint16_t> part, std::uint64_t index) {
    require(index == positions.size(), "values are counted without gaps");
    for (const std::uint16_t position : part)
      positions.push_back(first + position);
  });
  return positions;
}

std::vector<std::byte> staged(const delta::PieceView& piece, const delta::BoundBlock& bound) {
  std::vector<std::byte> values(piece.changed * size_of(bound.block->dtype));
  if (piece.kind == delta::PieceKind::ulp_delta)
    delta::stage_values(bound, piece, values);
  else
    std::ranges::copy(piece.values, values.begin());
  return values;
}

Values told(std::span<const std::uint64_t> positions, std::span<const std::byte> values, std::size_t size) {
  Values result;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto value = values.subspan(i * size, size);
    result[positions[i]] = {value.begin(), value.end()};
  }
  return result;
}

void check_positions(std::span<const std::uint64_t> positions, const delta::PieceView& piece, std::uint64_t elements) {
  require(positions.size() == piece.changed, "as many positions as declared");
  require(std::ranges::is_sorted(positions, std::less_equal<>{}), "positions increase strictly");
  require(!positions.empty() && positions.front() >= piece.first && positions.back() - piece.first < piece.elements &&
            positions.back() < elements,
          "positions lie in the range, and that in the block");
}

/// Memory takes the values at their places and nowhere else, the digest follows, and a second exchange undoes it all.
void check_memory(BlockMemory& memory, const delta::PieceView& piece, std::span<const std::uint64_t> positions,
                  std::vector<std::byte> values, std::size_t size) {
  const std::vector<std::byte> before = memory.bytes();
  const std::vector<std::byte> wanted = values;
  const delta::BoundBlock bound = memory.bound();
  const delta::Digest digest = delta::digest_of(bound);
  const delta::Digest change = delta::digest_change(bound, piece, values);
  require(memory.bytes() == before, "staging changes no memory");
  delta::exchange(bound, piece, values);
  for (std::size_t i = 0; i < positions.size(); ++i)
    require(std::memcmp(memory.at(positions[i]), wanted.data() + i * size, size) == 0, "values come to their places");
  require(delta::digest_of(bound) == digest + change, "a digest changes by what was foretold");
  delta::exchange(bound, piece, values);
  require(values == wanted && memory.bytes() == before, "a second exchange undoes the first");
}

/// The same changes through our own encoder.
void check_encoder(const layout::Block& block, const delta::PieceView& piece, std::span<const std::uint64_t> positions,
                   std::span<const std::byte> values, std::size_t size, const delta::BoundBlock& bound) {
  delta::PieceEncoder encoder(std::max<std::size_t>(delta::least_piece_limit(size), 256));
  encoder.start_range(block, piece.first, piece.elements);
  for (std::size_t i = 0; i < positions.size();) {
    const std::uint64_t tile = positions[i] / delta::tile_elements;
    const std::uint64_t first = std::max(piece.first, tile * delta::tile_elements);
    std::vector<std::uint16_t> part;
    const std::size_t from = i;
    for (; i < positions.size() && positions[i] / delta::tile_elements == tile; ++i)
      part.push_back(static_cast<std::uint16_t>(positions[i] - first));
    encoder.add_changes(first, part, values.data() + from * size);
  }
  encoder.finish_range();
  const delta::EncodedPieces pieces = encoder.take();
  Values result;
  std::size_t at = 0;
  for (const std::uint64_t end : pieces.ends) {
    const auto one = delta::read_piece(std::span(pieces.bytes).subspan(at, end - at), block);
    require(one && one->bytes == end - at, "our own pieces are read");
    for (auto& value : told(positions_of(*one), staged(*one, bound), size))
      require(result.insert(std::move(value)).second, "no position is encoded twice");
    at = end;
  }
  require(result == told(positions, values, size), "changes come back from our own encoder");
}

} // namespace

bool accepts(std::span<const std::byte> bytes) {
  Input input(bytes);
  const layout::Block block = take_block(input);
  const std::size_t size = size_of(block.dtype);
  Result<delta::PieceView> piece;
  {
    const AllocationBound bound(2048); // messages, and nothing else
    piece = delta::read_piece(input.rest(), block);
  }
  const auto peeked = delta::peek_piece(input.rest());
  if (!piece) {
    require(piece.error().code == Code::invalid_input ||
              (piece.error().code == Code::internal && elements_of(block) == UINT64_MAX),
            "a bad piece has the code of bad input");
    return false;
  }
  require(peeked && peeked->bytes == piece->bytes && peeked->block == block.id && peeked->kind == piece->kind,
          "who only copies a piece sees the same one");
  require(piece->bytes <= input.rest().size(), "a piece ends where the bytes do, or before");
  const std::uint64_t elements = elements_of(block);
  if (piece->changed > most_elements)
    return true;
  const std::vector<std::uint64_t> positions = positions_of(*piece);
  check_positions(positions, *piece, elements);
  if (elements > most_elements)
    return true;
  BlockMemory memory(block);
  const std::vector<std::byte> values = staged(*piece, memory.bound());
  check_memory(memory, *piece, positions, values, size);
  check_encoder(block, *piece, positions, values, size, memory.bound());
  return true;
}

} // namespace deltawire::fuzz
