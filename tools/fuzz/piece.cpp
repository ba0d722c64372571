// A piece from the network, against its block: read, staged, exchanged with memory and back, encoded again. Input: a
// block (block.hpp), the piece, whatever follows it.
#include "delta/piece.hpp"

#include "block.hpp"
#include "delta/stage.hpp"
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

/// A stage without a cap that holds the piece.
delta::Stage staged(const delta::BoundBlock& bound, const delta::PieceView& piece, delta::Digest& change) {
  delta::Stage stage({&bound, 1}, UINT64_MAX);
  const auto added = stage.add(0, piece);
  require(added.has_value(), "what is read is staged");
  change = *added;
  return stage;
}

/// What the piece makes of memory at its places; memory is left as it was.
std::vector<std::byte> values_of(const delta::PieceView& piece, std::span<const std::uint64_t> positions,
                                 BlockMemory& memory, std::size_t size) {
  delta::Digest change = 0;
  delta::Stage stage = staged(memory.bound(), piece, change);
  stage.exchange({});
  std::vector<std::byte> values(positions.size() * size);
  for (std::size_t i = 0; i < positions.size(); ++i)
    std::memcpy(values.data() + i * size, memory.at(positions[i]), size);
  stage.exchange({});
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

/// Values that stand in the piece come to their places, nothing else changes, the digest follows, what is read back is
/// what was foretold, and a second exchange undoes it all.
void check_memory(BlockMemory& memory, const delta::PieceView& piece, std::span<const std::uint64_t> positions,
                  std::size_t size) {
  const std::vector<std::byte> before = memory.bytes();
  const delta::BoundBlock bound = memory.bound();
  const delta::Digest digest = delta::digest_of(bound);
  delta::Digest change = 0;
  delta::Stage stage = staged(bound, piece, change);
  require(memory.bytes() == before, "staging changes no memory");
  delta::Digest taken = 0, found = 0;
  stage.exchange({&taken, 1});
  const std::vector<std::byte> after = memory.bytes();
  if (piece.kind != delta::PieceKind::ulp_delta)
    for (std::size_t i = 0; i < positions.size(); ++i)
      require(std::memcmp(memory.at(positions[i]), piece.values.data() + i * size, size) == 0,
              "values come to their places");
  require(delta::digest_of(bound) == digest + change, "a digest changes by what was foretold");
  stage.read_back({&found, 1});
  require(found - taken == change, "what is read back is what was foretold");
  stage.exchange({});
  require(memory.bytes() == before, "a second exchange undoes the first");
  for (const std::uint64_t position : positions) // what no position names is as it was
    std::memcpy(memory.at(position), after.data() + (memory.at(position) - memory.bytes().data()), size);
  require(memory.bytes() == after, "nothing changes but what positions name");
  for (const std::uint64_t position : positions)
    std::memcpy(memory.at(position), before.data() + (memory.at(position) - memory.bytes().data()), size);
}

/// The same changes through our own encoder.
void check_encoder(const layout::Block& block, const delta::PieceView& piece, std::span<const std::uint64_t> positions,
                   std::span<const std::byte> values, std::size_t size, BlockMemory& memory) {
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
    for (auto& value : told(positions_of(*one), values_of(*one, positions_of(*one), memory, size), size))
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
  check_memory(memory, *piece, positions, size);
  check_encoder(block, *piece, positions, values_of(*piece, positions, memory, size), size, memory);
  return true;
}

} // namespace deltawire::fuzz
