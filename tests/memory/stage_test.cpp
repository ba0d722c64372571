// A worker's stage allocates nothing once its largest delivery has been: whatever the map, the density and the number
// of pieces.

#include "allocations.hpp"
#include "catch.hpp"
#include "random.hpp"

#include "delta/capture.hpp"
#include "delta/stage.hpp"

using namespace deltawire;
using namespace deltawire::test;

namespace {

layout::Block block_of(std::uint32_t id, std::vector<layout::Index> extents, std::vector<layout::Index> local) {
  layout::Block block;
  block.id = id;
  block.dtype = id % 2 == 0 ? DType::bf16 : DType::f32;
  block.slot_strides = {extents[1], 1};
  block.extents = std::move(extents);
  block.local_strides = std::move(local);
  return block;
}

} // namespace

TEST_CASE("500 updates of varying size are staged, committed and undone in what the second one left") {
  auto random = generator(70);
  constexpr layout::Index rows = 200;
  constexpr layout::Index columns = 300;
  constexpr std::size_t elements = std::size_t{rows} * columns;
  // In order; transposed; rows of 8 elements among others.
  const std::vector<layout::Block> blocks = {block_of(0, {rows, columns}, {columns, 1}),
                                             block_of(1, {rows, columns}, {1, rows}),
                                             block_of(2, {rows * columns / 8, 8}, {24, 1})};
  std::vector<std::vector<std::byte>> now;
  std::vector<std::vector<std::byte>> snapshots;
  std::vector<std::vector<std::byte>> memory;
  std::vector<delta::BoundBlock> bound;
  for (const layout::Block& block : blocks) {
    now.emplace_back(elements * size_of(block.dtype));
    snapshots.push_back(now.back());
    memory.emplace_back(3 * elements * size_of(block.dtype));
  }
  for (std::size_t b = 0; b < blocks.size(); ++b)
    bound.push_back({&blocks[b], memory[b].data()});
  std::vector<delta::Digest> taken(blocks.size());
  std::vector<delta::Digest> found(blocks.size());
  delta::Stage stage(bound, std::uint64_t{64} << 20);
  std::uint64_t held = 0;
  for (int update = 1; update <= 500; ++update) {
    const std::uint64_t one_in = update == 2 ? 1 : 3 + random() % 400;
    std::vector<delta::EncodedPieces> encoded;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      layout::Block owner = blocks[b];
      owner.local_strides = {owner.extents[1], 1};
      const std::size_t size = size_of(owner.dtype);
      for (std::size_t e = 0; e < elements; ++e)
        if (random() % one_in == 0)
          now[b][e * size] ^= static_cast<std::byte>(1 + random() % 2);
      delta::Encoding encoding;
      if (update == 2) // so that positions are staged: all values would be smaller
        encoding.positions = delta::PositionCodec::gaps_u8;
      delta::PieceEncoder encoder(update == 2 ? std::size_t{1} << 24 : 200 + random() % 100000, encoding);
      delta::PositionLog log;
      (void)delta::capture_changes({&owner, now[b].data(), snapshots[b].data()}, 0, elements, &encoder, log);
      encoded.push_back(encoder.take());
    }
    CAPTURE(seed(), update, one_in);
    const std::uint64_t before = live_bytes();
    restart_peak();
    bool staged = true;
    for (std::uint32_t b = 0; b < blocks.size(); ++b)
      for (std::size_t at = 0; at < encoded[b].bytes.size();) {
        const auto piece = delta::open_piece(std::span(encoded[b].bytes).subspan(at), blocks[b]);
        staged = staged && piece && stage.add(b, *piece);
        at += piece->bytes;
      }
    stage.exchange(taken);
    stage.read_back(found);
    stage.exchange({}); // an undo
    stage.exchange({}); // and what it undid, again
    stage.clear();
    const std::uint64_t rise = peak_bytes() - before;
    REQUIRE(staged);
    if (update > 2) {
      REQUIRE(rise == 0);
      REQUIRE(stage.held() == held);
    }
    held = stage.held();
  }
}
