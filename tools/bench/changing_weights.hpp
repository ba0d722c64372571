// Weights that change as those of a real run do, and a snapshot of them: random positions, nine of ten changes to a
// neighbouring value (tests/data/README.md has the traces' figures).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace deltawire::bench {

/// Memory on huge pages where the system gives them, so that the translation of addresses is no part of the figures.
class HugeArray {
public:
  explicit HugeArray(std::size_t bytes);
  HugeArray(HugeArray&& other) noexcept;
  HugeArray& operator=(HugeArray&& other) noexcept;
  ~HugeArray();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// `now` and `snapshot` are equal until change() is called.
class ChangingWeights {
public:
  /// `bytes` of elements of `size` bytes; each changes with probability `density`.
  ChangingWeights(std::size_t bytes, std::size_t size, double density);

  /// Changes `now` at the positions. Requires that `now` and `snapshot` are equal there.
  void change();

  [[nodiscard]] std::byte* now() const noexcept { return now_.data(); }
  [[nodiscard]] std::byte* snapshot() const noexcept { return snapshot_.data(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return now_.size(); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t elements() const noexcept { return now_.size() / size_; }
  /// Ascending.
  [[nodiscard]] std::span<const std::uint32_t> positions() const noexcept { return positions_; }

private:
  HugeArray now_;
  HugeArray snapshot_;
  std::size_t size_;
  std::vector<std::uint32_t> positions_;
  std::uint64_t round_ = 0;
};

} // namespace deltawire::bench
