// What every fuzz target is made of. A target is one file that defines accepts(); entry.cpp makes it a libFuzzer
// target, tests/fuzz/driver.cpp an ordinary test over its corpus. Neither knows what the bytes mean.
//
// A target hands untrusted bytes to the product and checks more than that nothing crashes: what is read is written and
// read again to the same meaning, memory is taken in proportion to the bytes, and no exception gets out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace deltawire::fuzz {

/// The target: whether the product accepts the input. Aborts by require() where the product does wrong. Deterministic,
/// and keeps nothing from one call to the next.
[[nodiscard]] bool accepts(std::span<const std::byte> input);

/// Says on standard error what does not hold, and aborts.
void require(bool holds, std::string_view what);

/// Bytes that this thread asked operator new for so far.
[[nodiscard]] std::size_t allocated_bytes() noexcept;

/// From here to its end this thread may allocate `most` bytes in all; aborts where it took more.
class AllocationBound {
public:
  explicit AllocationBound(std::size_t most) noexcept : most_(most), before_(allocated_bytes()) {}
  AllocationBound(const AllocationBound&) = delete;
  AllocationBound& operator=(const AllocationBound&) = delete;
  ~AllocationBound();

private:
  std::size_t most_;
  std::size_t before_;
};

/// Takes little-endian numbers off the front of an input; zeros once it is used up.
class Input {
public:
  explicit Input(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  [[nodiscard]] bool empty() const noexcept { return bytes_.empty(); }
  /// `size` bytes, at most 8.
  std::uint64_t number(std::size_t size) noexcept;
  std::uint8_t u8() noexcept { return static_cast<std::uint8_t>(number(1)); }
  std::uint16_t u16() noexcept { return static_cast<std::uint16_t>(number(2)); }
  [[nodiscard]] std::span<const std::byte> rest() const noexcept { return bytes_; }

private:
  std::span<const std::byte> bytes_;
};

[[nodiscard]] inline std::string_view as_text(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A key and what follows it on its line.
struct Line {
  std::string_view key;
  std::string_view value;
};

/// "key value" a line: how targets of rules, which have several strings, are written. Borrows `text`.
[[nodiscard]] std::vector<Line> lines_of(std::string_view text);

/// The whole numbers of a line, of at most 18 digits, whatever is between them.
[[nodiscard]] std::vector<std::int64_t> numbers_of(std::string_view text);

} // namespace deltawire::fuzz
