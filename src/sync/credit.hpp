// Byte credit: what may be under way between two stages. A pure ledger; it belongs to the stage that hands work out.
#pragma once

#include <algorithm>
#include <cstdint>

namespace deltawire::sync {

class CreditLedger {
public:
  explicit CreditLedger(std::uint64_t cap) noexcept : cap_(cap) {}

  /// Takes `bytes` when they fit under the cap; otherwise changes nothing and returns false.
  [[nodiscard]] bool reserve(std::uint64_t bytes) noexcept {
    if (!fits(bytes))
      return false;
    reserved_ += bytes;
    return true;
  }

  [[nodiscard]] bool fits(std::uint64_t bytes) const noexcept { return bytes <= cap_ - reserved_; }

  /// Gives back; never more than is reserved (more would be a defect: it is cut, so that the cap holds).
  void refund(std::uint64_t bytes) noexcept { reserved_ -= std::min(bytes, reserved_); }

  [[nodiscard]] std::uint64_t cap() const noexcept { return cap_; }
  [[nodiscard]] std::uint64_t reserved() const noexcept { return reserved_; }

private:
  std::uint64_t cap_;
  std::uint64_t reserved_ = 0;
};

} // namespace deltawire::sync
