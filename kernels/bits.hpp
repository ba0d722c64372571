// Bit strings, low bits first: bit i is bit i % 8 of byte i / 8.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace deltawire::kernels {

static_assert(std::endian::native == std::endian::little, "bits are stored by the word and travel little-endian");

/// Appends to caller's memory. Writes up to 8 bytes past what it has counted: give it that much more room.
class BitWriter {
public:
  explicit BitWriter(std::byte* out) noexcept : next_(out) {}

  static constexpr unsigned most_bits = 56;

  /// Appends the low `count` <= 56 bits; the others MUST be 0.
  void put(std::uint64_t bits, unsigned count) noexcept {
    pending_ |= bits << fill_;
    fill_ += count;
    std::memcpy(next_, &pending_, sizeof(pending_));
    const unsigned whole = fill_ / 8;
    next_ += whole;
    pending_ >>= 8 * whole; // whole < 8
    fill_ %= 8;
  }

  /// Appends `count` bits, those past them in the last word MUST be 0.
  void put_words(std::span<const std::uint64_t> words, std::size_t count) noexcept {
    for (const std::uint64_t word : words) {
      const auto low = static_cast<unsigned>(count < 32 ? count : 32);
      put(word & 0xFFFFFFFF, low);
      count -= low;
      const auto high = static_cast<unsigned>(count < 32 ? count : 32);
      put(word >> 32, high);
      count -= high;
    }
  }

  /// Fills the last byte up with zeros and returns the end. The writer goes on from there.
  std::byte* align() noexcept {
    if (fill_ != 0) {
      ++next_; // written by the last put()
      fill_ = 0;
      pending_ = 0;
    }
    return next_;
  }

private:
  std::byte* next_;
  std::uint64_t pending_ = 0; ///< bits of a byte that is not full
  unsigned fill_ = 0;         ///< how many, below 8
};

/// Reads from untrusted bytes. Past the end there are zeros; whoever takes bits looks at left() first.
class BitReader {
public:
  explicit BitReader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  [[nodiscard]] std::size_t position() const noexcept { return position_; }
  [[nodiscard]] std::size_t left() const noexcept { return 8 * bytes_.size() - position_; }

  /// Requires count <= left().
  void skip(std::size_t count) noexcept { position_ += count; }

  /// The next 64 bits from `ahead` bits on, not taken.
  [[nodiscard]] std::uint64_t peek_word(std::size_t ahead = 0) const noexcept {
    const std::size_t at = position_ + ahead;
    const std::size_t byte = at / 8;
    const unsigned shift = at % 8;
    const std::uint64_t low = load(byte) >> shift;
    if (shift == 0 || byte + 8 >= bytes_.size())
      return low;
    return low | std::to_integer<std::uint64_t>(bytes_[byte + 8]) << (64 - shift);
  }

  /// `count` <= 57 bits from `ahead` bits on, not taken.
  [[nodiscard]] std::uint64_t peek(std::size_t ahead, unsigned count) const noexcept {
    const std::size_t at = position_ + ahead;
    return load(at / 8) >> (at % 8) & ((std::uint64_t{1} << count) - 1);
  }

  /// Takes `count` <= 57 bits. Requires count <= left().
  std::uint64_t take(unsigned count) noexcept {
    const std::uint64_t bits = peek(0, count);
    position_ += count;
    return bits;
  }

  /// Goes to the next byte; false where a bit that is skipped is set.
  bool align() noexcept {
    const auto rest = static_cast<unsigned>((8 - position_ % 8) % 8);
    return take(rest) == 0;
  }

  /// The bytes from the position on. Requires an aligned position.
  [[nodiscard]] std::span<const std::byte> rest() const noexcept { return bytes_.subspan(position_ / 8); }

private:
  [[nodiscard]] std::uint64_t load(std::size_t byte) const noexcept {
    std::uint64_t word = 0;
    if (byte + sizeof(word) <= bytes_.size()) [[likely]]
      std::memcpy(&word, bytes_.data() + byte, sizeof(word));
    else if (byte < bytes_.size())
      std::memcpy(&word, bytes_.data() + byte, bytes_.size() - byte);
    return word;
  }

  std::span<const std::byte> bytes_;
  std::size_t position_ = 0; ///< at most 8 * bytes_.size()
};

} // namespace deltawire::kernels
