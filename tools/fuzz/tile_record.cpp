// One tile part's record. Input: u8 dtype (modulo), of which bit 7 says that the piece is an ulp delta; u16 span - 1
// (modulo 4096); u32 head; record.
#include "delta/tile_record.hpp"

#include "target.hpp"

#include <algorithm>
#include <cstring>

namespace deltawire::fuzz {
namespace {

/// A base that is the same for every input.
std::vector<std::byte> base_values(std::size_t bytes) {
  std::vector<std::byte> values(bytes);
  std::uint64_t state = 1;
  for (std::byte& byte : values) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(state >> 56);
  }
  return values;
}

/// The same positions and values through our encoder, in the codec of `head` where it can be.
void check_encoder(const delta::TileHead& head, std::span<const std::uint16_t> positions, std::size_t span, DType dtype,
                   const std::vector<std::byte>& values, const std::vector<std::byte>* base) {
  const std::size_t size = size_of(dtype);
  delta::TileEncoder encoder({head.codec, base != nullptr});
  const auto plan = encoder.plan(positions, span, dtype, values.data(), base == nullptr ? nullptr : base->data());
  require(plan.head.changes == positions.size(), "a plan is of all the changes");
  std::vector<std::byte> record;
  encoder.write(record);
  require(record.size() == plan.record_bytes, "a record has the bytes that were planned");
  for (const bool ulp_piece : {false, true}) {
    delta::TileHead packed;
    require(delta::unpack_head(delta::pack_head(plan.head, ulp_piece), ulp_piece, packed) &&
              packed.changes == plan.head.changes && packed.codec == plan.head.codec && packed.ulp == plan.head.ulp,
            "a head comes back");
  }
  kernels::BitReader in(record);
  delta::TilePositions again;
  require(delta::read_positions(plan.head, in, span, again.data()), "our own positions are read");
  require(std::ranges::equal(positions, std::span(again).first(positions.size())), "positions come back");
  if (!plan.head.ulp) {
    require(in.align() && in.left() == 0, "a record of positions holds nothing else");
    return;
  }
  delta::UlpValues ulp;
  require(delta::read_ulp(plan.head, in, size, ulp) && in.left() == 0, "our own differences are read");
  std::vector<std::byte> back = *base;
  delta::add_ulp(ulp, positions.size(), dtype, back.data());
  require(back == values, "values come back from differences");
}

} // namespace

bool accepts(std::span<const std::byte> bytes) {
  Input input(bytes);
  const std::uint8_t first = input.u8();
  const auto dtype = static_cast<DType>((first & 127) % dtype_count);
  const bool ulp_piece = first >> 7 != 0;
  const std::size_t size = size_of(dtype);
  const std::size_t span = 1 + input.u16() % delta::tile_elements;
  const std::uint64_t number = input.number(4);
  delta::TileHead head;
  if (!delta::unpack_head(number, ulp_piece, head))
    return false;
  require(delta::pack_head(head, ulp_piece) == number, "a head has one number");
  if (head.changes == 0)
    return input.empty();
  kernels::BitReader record(input.rest());
  delta::TilePositions positions;
  if (!delta::read_positions(head, record, span, positions.data()))
    return false;
  require(record.position() <= 8 * input.rest().size(), "no code passes its record");
  const auto read = std::span<const std::uint16_t>(positions).first(head.changes);
  require(std::ranges::is_sorted(read, std::less_equal<>{}) && read.back() < span,
          "positions increase inside the part");
  const std::vector<std::byte> base = base_values(head.changes * size);
  check_encoder(head, read, span, dtype, base, nullptr);
  if (!head.ulp)
    return record.align() && record.left() == 0;

  delta::UlpValues ulp;
  if (!delta::read_ulp(head, record, size, ulp))
    return false;
  require(record.position() <= 8 * input.rest().size(), "no lane passes its record");
  std::vector<std::byte> values = base;
  delta::add_ulp(ulp, head.changes, dtype, values.data());
  bool differ = true; // a value in full may be the base's; encoders are given changes
  for (std::size_t i = 0; i < head.changes; ++i)
    differ = differ && std::memcmp(values.data() + i * size, base.data() + i * size, size) != 0;
  if (differ)
    check_encoder(head, read, span, dtype, values, &base);
  return record.left() == 0;
}

} // namespace deltawire::fuzz
