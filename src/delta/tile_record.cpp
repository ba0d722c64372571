// Sizes first, exactly, then bytes: nothing is written that is not kept.
#include "delta/tile_record.hpp"

#include "kernels/gaps.hpp"
#include "kernels/mask.hpp"
#include "kernels/positions.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

namespace deltawire::delta {
namespace {

/// After the bit that says that a Rice parameter is not the expected one.
constexpr unsigned parameter_bits = 4;
constexpr unsigned which_bitmap = 15;
constexpr unsigned small_bits = 4;
constexpr std::uint16_t least_exception = 2;
constexpr std::uint16_t least_large = least_exception + 15;
constexpr std::uint16_t least_full = least_large + 255;
/// Where every element of a tile part changed, raw values are copied at the speed of memory: the ulp lane must save
/// more than this share of them.
constexpr std::size_t least_saving = 32;

constexpr auto every_position = [] {
  TilePositions positions{};
  for (std::size_t i = 0; i < positions.size(); ++i)
    positions[i] = static_cast<std::uint16_t>(i);
  return positions;
}();

using Mask = std::array<std::uint64_t, tile_elements / 64>;

/// Of a Rice code of `count` places among `span`.
unsigned expected_parameter(std::size_t count, std::size_t span) noexcept {
  // ln((1 + sqrt(5)) / 2) = 0.48 of the mean distance is a power of two where the next parameter becomes the best. The
  // highest bit of the quotient, without a division.
  const std::size_t above = 31 * (2 * span - count);
  const std::size_t below = 64 * count;
  const int bit = static_cast<int>(std::bit_width(above)) - static_cast<int>(std::bit_width(below));
  return bit <= 0 ? 0 : static_cast<unsigned>(bit) - (below << bit > above ? 1 : 0);
}

/// Takes the parameter of a Rice code, or which_bitmap. Past both where the bits do not hold it.
unsigned read_parameter(kernels::BitReader& in, std::size_t count, std::size_t span) noexcept {
  constexpr unsigned none = which_bitmap + 1;
  if (in.left() == 0)
    return none;
  if (in.take(1) == 0)
    return expected_parameter(count, span);
  return in.left() < parameter_bits ? none : static_cast<unsigned>(in.take(parameter_bits));
}

/// Bits of the number of exceptions.
unsigned exception_count_bits(std::size_t changes) noexcept {
  return static_cast<unsigned>(std::bit_width(changes));
}

/// Reads `span` bits as a mask and lists the set ones: exactly `count`.
bool read_mask(kernels::BitReader& in, std::size_t count, std::size_t span, std::uint16_t* positions) noexcept {
  if (span > in.left())
    return false;
  Mask mask;
  const std::size_t words = kernels::mask_words(span);
  std::size_t set = 0;
  for (std::size_t word = 0; word < words; ++word) {
    mask[word] = in.peek_word(64 * word);
    if (span - 64 * word < 64)
      mask[word] &= (std::uint64_t{1} << (span - 64 * word)) - 1;
    set += static_cast<std::size_t>(std::popcount(mask[word]));
  }
  if (set != count)
    return false;
  in.skip(span);
  kernels::mask_to_positions(std::span(mask).first(words), positions);
  return true;
}

} // namespace

kernels::UlpOrder ulp_order(DType dtype) noexcept {
  switch (dtype) {
  case DType::f16:
  case DType::bf16:
  case DType::f32:
  case DType::f64:
  case DType::f8_e4m3:
  case DType::f8_e5m2:
    return kernels::UlpOrder::sign_magnitude;
  default:
    return kernels::UlpOrder::plain;
  }
}

bool read_positions(const TileHead& head, kernels::BitReader& record, std::size_t span,
                    std::uint16_t* positions) noexcept {
  const std::size_t count = head.changes;
  if (count > span)
    return false;
  switch (head.codec) {
  case PositionCodec::gaps_u8: {
    const std::size_t bytes = kernels::decode_gaps(record.rest(), count, span, positions);
    record.skip(8 * bytes);
    return bytes != 0;
  }
  case PositionCodec::gaps_u16:
    if (16 * count > record.left() || !kernels::decode_wide_gaps(record.rest().data(), count, span, positions))
      return false;
    record.skip(16 * count);
    return true;
  case PositionCodec::rice: {
    const unsigned parameter = read_parameter(record, count, span);
    return parameter <= kernels::most_rice_parameter && kernels::decode_rice(record, parameter, count, span, positions);
  }
  case PositionCodec::bitmap:
    return read_mask(record, count, span, positions) && record.align();
  case PositionCodec::run: {
    const std::size_t bytes = kernels::decode_runs(record.rest(), count, span, positions);
    record.skip(8 * bytes);
    return bytes != 0;
  }
  case PositionCodec::dense:
    if (count != span)
      return false;
    std::memcpy(positions, every_position.data(), span * sizeof(every_position[0]));
    return true;
  }
  return false;
}

bool read_ulp(const TileHead& head, kernels::BitReader& record, std::size_t size, UlpValues& ulp) noexcept {
  const std::size_t count = head.changes;
  const unsigned count_bits = exception_count_bits(count);
  if (count + count_bits > record.left())
    return false;
  for (std::size_t i = 0; i < count; i += 64) {
    ulp.signs[i / 64] = record.peek_word(i);
    if (count - i < 64)
      ulp.signs[i / 64] &= (std::uint64_t{1} << (count - i)) - 1;
  }
  record.skip(count);
  const auto exceptions = static_cast<std::size_t>(record.take(count_bits));
  ulp.exception_count = exceptions;
  if (exceptions > count)
    return false;
  if (exceptions == count) {
    for (std::size_t i = 0; i < count; ++i)
      ulp.exceptions[i] = static_cast<std::uint16_t>(i);
  } else if (exceptions > 0) {
    const unsigned which = read_parameter(record, exceptions, count);
    if (which == which_bitmap) {
      if (!read_mask(record, exceptions, count, ulp.exceptions.data()))
        return false;
    } else if (which > kernels::most_rice_parameter ||
               !kernels::decode_rice(record, which, exceptions, count, ulp.exceptions.data())) {
      return false;
    }
  }
  if (small_bits * exceptions > record.left())
    return false;
  std::size_t large = 0;
  TilePositions large_ones; // found without branches, which could not be foretold
  for (std::size_t i = 0; i < exceptions; i += 14) {
    std::uint64_t bits = record.peek(small_bits * i, 56);
    const std::size_t end = std::min(exceptions, i + 14);
    for (std::size_t j = i; j < end; ++j) {
      const auto small = static_cast<std::uint16_t>(bits & 15);
      ulp.magnitudes[j] = static_cast<std::uint16_t>(small + least_exception);
      large_ones[large] = static_cast<std::uint16_t>(j);
      large += small == 15;
      bits >>= small_bits;
    }
  }
  record.skip(small_bits * exceptions);
  if (!record.align() || 8 * large > record.left())
    return false;
  ulp.full = {};
  if (large == 0)
    return true;
  const std::byte* bytes = record.rest().data();
  std::size_t full = 0;
  for (std::size_t i = 0; i < large; ++i) {
    const auto byte = std::to_integer<std::uint16_t>(bytes[i]);
    ulp.magnitudes[large_ones[i]] = byte == 255 ? UlpValues::too_large : static_cast<std::uint16_t>(byte + least_large);
    full += byte == 255;
  }
  record.skip(8 * large);
  if (8 * size * full > record.left())
    return false;
  ulp.full = record.rest().first(size * full);
  record.skip(8 * size * full);
  return true;
}

void add_ulp(const UlpValues& ulp, std::size_t count, DType dtype, std::byte* values) noexcept {
  const std::size_t size = size_of(dtype);
  const auto exceptions = std::span(ulp.exceptions).first(ulp.exception_count);
  kernels::add_differences(values, count, size, ulp_order(dtype), ulp.signs.data(), exceptions, ulp.magnitudes.data());
  if (ulp.full.empty())
    return;
  const std::byte* next = ulp.full.data();
  for (std::size_t i = 0; i < exceptions.size(); ++i)
    if (ulp.magnitudes[i] == UlpValues::too_large) {
      std::memcpy(values + exceptions[i] * size, next, size);
      next += size;
    }
}

/// The best parameter of a Rice code among `span` places; returns the bits of the whole code.
std::size_t TileEncoder::size_rice(std::span<const std::uint16_t> gaps, std::size_t span,
                                   RiceParameter& parameter) noexcept {
  const unsigned expected = expected_parameter(gaps.size(), span);
  const kernels::RiceSize rice = kernels::best_rice(gaps, expected, parameter_bits);
  parameter = {rice.parameter, rice.parameter == expected};
  return 1 + rice.bits;
}

void TileEncoder::write_parameter(RiceParameter parameter, kernels::BitWriter& out) noexcept {
  if (parameter.expected)
    out.put(0, 1);
  else
    out.put(parameter.value << 1 | 1, 1 + parameter_bits);
}

/// Of a head in a piece of its lane's kind, as far as they count: a byte of some hundred for a code that is slower to
/// read is no gain.
std::size_t TileEncoder::head_bytes(PositionCodec codec) const noexcept {
  return codec == PositionCodec::rice && positions_.size() < 128 ? 1 : 2;
}

void TileEncoder::size_positions(std::size_t span) {
  const std::size_t count = positions_.size();
  candidate_count_ = 1;
  PositionSize& best = candidates_[0];
  const bool any = !encoding_.positions || *encoding_.positions == PositionCodec::dense;
  if (count == span && (any || span == 1)) {
    best = {PositionCodec::dense, 0};
    return;
  }
  kernels::to_gaps(positions_, 0, gaps_.data());
  const auto gaps = std::span<const std::uint16_t>(gaps_).first(count);
  const PositionSize bitmap{PositionCodec::bitmap, 8 * ((span + 7) / 8)};
  const auto rice_size = [&] { return PositionSize{PositionCodec::rice, size_rice(gaps, span, rice_)}; };
  if (!any) {
    switch (*encoding_.positions) {
    case PositionCodec::gaps_u8:
      best = {PositionCodec::gaps_u8, 8 * kernels::gap_sizes(gaps).u8};
      break;
    case PositionCodec::gaps_u16:
      best = {PositionCodec::gaps_u16, 16 * count};
      break;
    case PositionCodec::rice:
      best = rice_size();
      break;
    case PositionCodec::run:
      best = {PositionCodec::run, 8 * kernels::run_bytes(gaps)};
      break;
    default:
      best = bitmap;
    }
    if (best.bytes() > span)
      best = bitmap;
    return;
  }
  // Of equal ones the first, which is the faster one to read.
  const kernels::GapSizes sizes = kernels::gap_sizes(gaps);
  best = bitmap;
  const auto consider = [&](PositionSize other) {
    if (other.bytes() < best.bytes())
      best = other;
  };
  consider({PositionCodec::gaps_u16, 16 * count});
  consider({PositionCodec::gaps_u8, 8 * sizes.u8});
  if (2 * sizes.runs < best.bytes())
    consider({PositionCodec::run, 8 * kernels::run_bytes(gaps)});
  const PositionSize rice = rice_size();
  if (head_bytes(rice.codec) + rice.bytes() < head_bytes(best.codec) + best.bytes())
    best = rice;
  else
    candidates_[candidate_count_++] = rice;
}

void TileEncoder::size_ulp(DType dtype, const std::byte* values, const std::byte* before) {
  const std::size_t count = positions_.size();
  const std::size_t exceptions = kernels::split_differences(
    before, values, count, size_, ulp_order(dtype), ulp_.signs.data(), ulp_.exceptions.data(), ulp_.magnitudes.data());
  ulp_.exception_count = exceptions;
  ulp_bits_ = count + exception_count_bits(count) + small_bits * exceptions;
  large_count_ = 0;
  std::size_t full = 0;
  for (std::size_t i = 0; i < exceptions; ++i) { // without branches, which could not be foretold
    const std::uint16_t magnitude = ulp_.magnitudes[i];
    large_[large_count_] = static_cast<std::uint16_t>(i);
    large_count_ += magnitude >= least_large;
    full += magnitude >= least_full;
    ulp_.magnitudes[i] = magnitude >= least_full ? UlpValues::too_large : magnitude;
  }
  ulp_bytes_ = large_count_ + full * size_;
  if (exceptions == 0 || exceptions == count)
    return;
  const auto indices = std::span<const std::uint16_t>(ulp_.exceptions).first(exceptions);
  kernels::to_gaps(indices, 0, exception_gaps_.data());
  const std::size_t rice = size_rice(std::span<const std::uint16_t>(exception_gaps_).first(exceptions), count, which_);
  const std::size_t bitmap = 1 + parameter_bits + count;
  if (rice >= bitmap)
    which_ = {which_bitmap, false};
  ulp_bits_ += std::min(rice, bitmap);
}

TileEncoder::Plan TileEncoder::plan(std::span<const std::uint16_t> positions, std::size_t span, DType dtype,
                                    const std::byte* values, const std::byte* before) {
  assert(!positions.empty() && positions.back() < span);
  positions_ = positions;
  span_ = span;
  size_ = size_of(dtype);
  values_ = values;
  size_positions(span);
  plan_ = {{positions.size(), candidates_[0].codec, false}, candidates_[0].bytes(), positions.size() * size_};
  if (encoding_.ulp && before != nullptr) {
    size_ulp(dtype, values, before);
    std::size_t least = head_bytes(plan_.head.codec) + plan_.bytes();
    for (std::size_t i = 0; i < candidate_count_; ++i) {
      const PositionSize& positions_size = candidates_[i];
      const std::size_t bytes = (positions_size.bits + ulp_bits_ + 7) / 8 + ulp_bytes_;
      const std::size_t saving = positions.size() == span ? plan_.value_bytes / least_saving : 0;
      const std::size_t head = head_bytes(positions_size.codec);
      if (head + bytes + saving < least) {
        least = head + bytes;
        plan_ = {{positions.size(), positions_size.codec, true}, bytes, 0};
      }
    }
  }
  return plan_;
}

void TileEncoder::write_ulp(kernels::BitWriter& bits) {
  const std::size_t count = positions_.size();
  const auto exceptions = std::span<const std::uint16_t>(ulp_.exceptions).first(ulp_.exception_count);
  // A value that is written in full has no sign.
  const auto large = std::span<const std::uint16_t>(large_).first(large_count_);
  for (const std::uint16_t i : large)
    if (ulp_.magnitudes[i] == UlpValues::too_large)
      ulp_.signs[exceptions[i] / 64] &= ~(std::uint64_t{1} << (exceptions[i] % 64));
  bits.put_words(std::span(ulp_.signs).first(kernels::mask_words(count)), count);
  bits.put(exceptions.size(), exception_count_bits(count));
  if (!exceptions.empty() && exceptions.size() < count) {
    write_parameter(which_, bits);
    if (which_.value == which_bitmap) {
      Mask mask{};
      kernels::set_positions(exceptions, mask);
      bits.put_words(std::span(mask).first(kernels::mask_words(count)), count);
    } else {
      kernels::encode_rice(std::span<const std::uint16_t>(exception_gaps_).first(exceptions.size()), which_.value,
                           bits);
    }
  }
  for (std::size_t i = 0; i < exceptions.size(); i += 14) { // as many a word as there is room for
    const std::size_t end = std::min(exceptions.size(), i + 14);
    std::uint64_t small = 0;
    for (std::size_t j = end; j-- > i;)
      small =
        small << small_bits | static_cast<std::uint64_t>(std::min(ulp_.magnitudes[j], least_large) - least_exception);
    bits.put(small, static_cast<unsigned>(end - i) * small_bits);
  }
  std::byte* next = bits.align();
  for (const std::uint16_t i : large)
    *next++ = static_cast<std::byte>(std::min(ulp_.magnitudes[i], least_full) - least_large);
  for (const std::uint16_t i : large)
    if (ulp_.magnitudes[i] == UlpValues::too_large) {
      std::memcpy(next, values_ + exceptions[i] * size_, size_);
      next += size_;
    }
}

void TileEncoder::write(std::vector<std::byte>& out) {
  scratch_.resize(plan_.record_bytes + sizeof(std::uint64_t)); // a BitWriter writes whole words
  std::byte* next = scratch_.data();
  const std::size_t count = positions_.size();
  const auto gaps = std::span<const std::uint16_t>(gaps_).first(count);
  kernels::BitWriter rice(next);
  switch (plan_.head.codec) {
  case PositionCodec::gaps_u8:
    next += kernels::encode_gaps(positions_, 0, next);
    break;
  case PositionCodec::gaps_u16:
    std::memcpy(next, gaps.data(), 2 * count);
    next += 2 * count;
    break;
  case PositionCodec::rice:
    write_parameter(rice_, rice);
    kernels::encode_rice(gaps, rice_.value, rice);
    break;
  case PositionCodec::bitmap: {
    Mask mask{};
    kernels::set_positions(positions_, mask);
    std::memcpy(next, mask.data(), (span_ + 7) / 8);
    next += (span_ + 7) / 8;
    break;
  }
  case PositionCodec::run:
    next += kernels::encode_runs(gaps, next);
    break;
  case PositionCodec::dense:
    break;
  }
  if (plan_.head.ulp) {
    if (plan_.head.codec == PositionCodec::rice) {
      write_ulp(rice);
    } else {
      kernels::BitWriter bits(next);
      write_ulp(bits);
    }
  } else {
    rice.align();
  }
  out.insert(out.end(), scratch_.begin(), scratch_.begin() + static_cast<std::ptrdiff_t>(plan_.record_bytes));
}

} // namespace deltawire::delta
