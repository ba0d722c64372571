// One number that tells contents apart: FNV-1a, byte by byte. Not meant to withstand an adversary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace trainer {

class Digest {
public:
  void add(std::span<const std::byte> bytes) noexcept {
    for (const std::byte b : bytes)
      sum_ = (sum_ ^ static_cast<std::uint64_t>(b)) * 0x100000001B3;
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return sum_; }

private:
  std::uint64_t sum_ = 0xCBF29CE484222325;
};

} // namespace trainer
