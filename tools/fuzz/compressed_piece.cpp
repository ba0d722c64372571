// A compressed piece of a whole block. Input: a block (block.hpp); u8 how: bits 0..1 the kind that was compressed, bit
// 2 what follows is the zstd frame, else the plain body, which is compressed here; u16 values in planes.
#include "delta/piece.hpp"

#include "block.hpp"
#include "delta/tiles.hpp"
#include "target.hpp"

#include <algorithm>

namespace deltawire::fuzz {
namespace {

using Bytes = std::vector<std::byte>;

void put_varint(Bytes& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7)
    out.push_back(static_cast<std::byte>(value | 0x80));
  out.push_back(static_cast<std::byte>(value));
}

/// A piece of the whole block.
Bytes piece_of(const layout::Block& block, unsigned kind, std::span<const std::byte> body) {
  Bytes piece;
  put_varint(piece, std::uint64_t{block.id} << 4 | kind);
  put_varint(piece, body.size());
  piece.insert(piece.end(), body.begin(), body.end());
  return piece;
}

Bytes compressed(const layout::Block& block, unsigned kind, std::uint64_t values, std::span<const std::byte> frame) {
  Bytes body;
  put_varint(body, kind);
  put_varint(body, values);
  body.insert(body.end(), frame.begin(), frame.end());
  return piece_of(block, 3, body);
}

Result<delta::PieceView> read(const Bytes& bytes, const layout::Block& block, delta::Expander& expander) {
  // Messages, and twice what a frame may say that it holds.
  const AllocationBound bound(4096 + 2 * delta::most_plain_bytes);
  return delta::read_piece(bytes, block, &expander);
}

} // namespace

bool accepts(std::span<const std::byte> bytes) {
  Input input(bytes);
  const layout::Block block = take_block(input);
  const std::size_t size = size_of(block.dtype);
  const unsigned how = input.u8();
  const unsigned kind = how & 3;
  const std::size_t values = input.u16();
  delta::Expander expander;
  if ((how & 4) != 0) {
    const auto piece = read(compressed(block, kind, values, input.rest()), block, expander);
    require(piece || piece.error().code == Code::invalid_input || elements_of(block) == UINT64_MAX,
            "a bad piece has the code of bad input");
    return piece.has_value();
  }

  // What is compressed is read as if it were not.
  const std::span<const std::byte> body = input.rest();
  if (body.empty() || kind > 2 || values > body.size() / size)
    return false;
  delta::Compressor compressor;
  const auto frame = compressor.compress(body, {values, size}, SIZE_MAX);
  require(!frame.empty(), "any body is compressed where there is room");
  const Bytes plain = piece_of(block, kind, body);
  const auto expected = delta::read_piece(plain, block);
  const Bytes packed = compressed(block, kind, values, frame);
  const auto piece = read(packed, block, expander);
  require(piece.has_value() == expected.has_value(), "a compressed piece is accepted where the plain one is");
  if (!piece)
    return false;
  require(piece->kind == expected->kind && piece->first == expected->first && piece->elements == expected->elements &&
            piece->changed == expected->changed && piece->bytes == packed.size(),
          "it is the same piece");
  require(std::ranges::equal(piece->body, body), "and has the same body");
  require(piece->values.size() == expected->values.size(), "with its values at its end");
  return true;
}

} // namespace deltawire::fuzz
