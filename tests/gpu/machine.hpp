// What the tests of device kernels run on: a device (suite gpu), or its threads one after the other on this processor
// (suite unit). The tests are the same, and so is the code of the kernels.
#pragma once

#include "kernels/cuda/parts.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

namespace deltawire::test {

/// Memory that a machine works on, tables apart: all that entries and outputs point to. Begins at a multiple of 256.
class Arena {
public:
  explicit Arena(std::size_t room);

  /// Room for `count` elements of `size` bytes, `shift` elements past a multiple of 16; not next to what is before it.
  [[nodiscard]] std::byte* take(std::size_t count, std::size_t size, std::size_t shift);
  template <class T>
  [[nodiscard]] T* take(std::size_t count) {
    return reinterpret_cast<T*>(take(count, sizeof(T), 0));
  }

  [[nodiscard]] std::span<std::byte> used() noexcept { return {begin_, used_}; }

private:
  std::unique_ptr<std::byte[]> memory_;
  std::byte* begin_;
  std::size_t room_;
  std::size_t used_ = 0;
};

/// Runs kernels over tables whose pointers lie in the arena, and leaves what they wrote there.
class Machine {
public:
  virtual ~Machine() = default;

  /// `cast`: `now` holds fp32, whatever `size` is.
  virtual void diff(Arena& arena, std::span<const kernels::cuda::Part> parts, std::size_t size,
                    std::optional<kernels::Cast> cast, const kernels::cuda::Changes& out) = 0;
  virtual void take(Arena& arena, std::span<const kernels::cuda::Part> parts, std::size_t size,
                    std::optional<kernels::Cast> cast, std::uint64_t* digests) = 0;
  virtual void exchange(Arena& arena, std::span<const kernels::cuda::Places> places, std::size_t size,
                        std::uint64_t* digests) = 0;
  virtual void read_back(Arena& arena, std::span<const kernels::cuda::Places> places, std::size_t size,
                         std::uint64_t* digests) = 0;
};

/// The one of this executable.
[[nodiscard]] Machine& machine();

} // namespace deltawire::test
