// Elements in memory, one by one and 16 bytes at a time, at any alignment that elements have. A vector that cannot be
// loaded at once is put together from the two aligned ones that it lies in. Both hold bytes of it, so that no page is
// touched that the stretch is not on; past the end of the stretch nothing is read at all, as memory may end with it.
#pragma once

#include "kernels/cpu/cast.hpp"
#include "kernels/cpu/plain_compare.hpp"
#include "kernels/cuda/lanes.hpp"
#include "kernels/diff.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace deltawire::kernels::cuda {

struct alignas(16) Vector {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

inline constexpr unsigned vector_bytes = sizeof(Vector);

template <class Element>
inline constexpr unsigned vector_elements = vector_bytes / sizeof(Element);

#if defined(__CUDACC__)

// Pointers come out of tables: only we know that none is to memory of a thread or a block.

template <class T>
DELTAWIRE_STEP T load_at(const std::byte* at) {
  __builtin_assume(__isGlobal(at));
  return *reinterpret_cast<const T*>(at);
}

template <class T>
DELTAWIRE_STEP void store_at(std::byte* at, T value) {
  __builtin_assume(__isGlobal(at));
  *reinterpret_cast<T*>(at) = value;
}

DELTAWIRE_STEP Vector load_vector(const std::byte* at) {
  __builtin_assume(__isGlobal(at));
  const ulonglong2 bits = *reinterpret_cast<const ulonglong2*>(at);
  return {bits.x, bits.y};
}

DELTAWIRE_STEP void store_vector(std::byte* at, Vector value) {
  __builtin_assume(__isGlobal(at));
  *reinterpret_cast<ulonglong2*>(at) = make_ulonglong2(value.low, value.high);
}

#else

// A device faults on an access that is not aligned, and so do these.

template <class T>
DELTAWIRE_STEP void fault_unless_aligned(const std::byte* at) {
  if (reinterpret_cast<std::uintptr_t>(at) % alignof(T) != 0)
    std::abort();
}

template <class T>
DELTAWIRE_STEP T load_at(const std::byte* at) {
  fault_unless_aligned<T>(at);
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <class T>
DELTAWIRE_STEP void store_at(std::byte* at, T value) {
  fault_unless_aligned<T>(at);
  std::memcpy(at, &value, sizeof(T));
}

DELTAWIRE_STEP Vector load_vector(const std::byte* at) {
  return load_at<Vector>(at);
}

DELTAWIRE_STEP void store_vector(std::byte* at, Vector value) {
  store_at(at, value);
}

#endif

DELTAWIRE_STEP unsigned bytes_past_vector(const std::byte* at) {
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(at) % vector_bytes);
}

/// 16 of 32 bytes, from byte `shift` (1 to 15) on.
DELTAWIRE_STEP Vector straddling(Vector first, Vector second, unsigned shift) {
  const bool far = shift >= 8;
  const std::uint64_t a = far ? first.high : first.low;
  const std::uint64_t b = far ? second.low : first.high;
  const std::uint64_t c = far ? second.high : second.low;
  const unsigned bits = shift % 8 * 8;
  if (bits == 0)
    return {a, b};
  return {a >> bits | b << (64 - bits), b >> bits | c << (64 - bits)};
}

/// Element i, a constant in unrolled loops.
template <class Element>
DELTAWIRE_STEP Element element_of(const Vector& vector, unsigned i) {
  constexpr unsigned half = vector_elements<Element> / 2;
  constexpr unsigned element_bits = 8 * sizeof(Element);
  const std::uint64_t word = i < half ? vector.low : vector.high;
  return static_cast<Element>(word >> (i % half * element_bits));
}

/// Sets element i of a vector where it is zero.
template <class Element>
DELTAWIRE_STEP void put_element(Vector& vector, unsigned i, Element element) {
  constexpr unsigned half = vector_elements<Element> / 2;
  constexpr unsigned element_bits = 8 * sizeof(Element);
  const std::uint64_t bits = std::uint64_t{element} << (i % half * element_bits);
  (i < half ? vector.low : vector.high) |= bits;
}

/// One bit an element.
template <class Element>
DELTAWIRE_STEP std::uint32_t differing_elements(const Vector& a, const Vector& b) {
  constexpr unsigned half = vector_elements<Element> / 2;
  return static_cast<std::uint32_t>(differing<Element>(a.low ^ b.low)) |
         static_cast<std::uint32_t>(differing<Element>(a.high ^ b.high)) << half;
}

/// Elements at a stride.
template <class T>
class Reader {
public:
  DELTAWIRE_STEP Reader(const std::byte* first, std::int64_t stride, std::uint32_t count)
    : first_(first), stride_(stride), count_(count), shift_(bytes_past_vector(first)) {}

  [[nodiscard]] DELTAWIRE_STEP T element(std::uint32_t i) const {
    return load_at<T>(first_ + static_cast<std::int64_t>(i) * stride_ * static_cast<std::int64_t>(sizeof(T)));
  }

  /// Elements [v * E, (v + 1) * E) for E = vector_elements<T>. All of them must be there. `at_once`: they are known to
  /// be dense and to begin at a multiple of 16.
  template <bool at_once>
  [[nodiscard]] DELTAWIRE_STEP Vector vector(std::uint32_t v) const {
    const std::byte* at = first_ + std::size_t{v} * vector_bytes;
    if constexpr (at_once)
      return load_vector(at);
    if (stride_ == 1) {
      if (shift_ == 0)
        return load_vector(at);
      if ((std::size_t{v} + 2) * vector_bytes - shift_ <= std::size_t{count_} * sizeof(T))
        return straddling(load_vector(at - shift_), load_vector(at - shift_ + vector_bytes), shift_);
    }
    Vector built;
    DELTAWIRE_UNROLL
    for (unsigned i = 0; i < vector_elements<T>; ++i)
      put_element<T>(built, i, element(v * vector_elements<T> + i));
    return built;
  }

private:
  const std::byte* first_;
  std::int64_t stride_;
  std::uint32_t count_;
  unsigned shift_;
};

// ------------------------------------------------------------------------ what memory holds, as the snapshot's bits

/// Elements as they lie.
template <class T>
struct AsIs {
  using Now = T;
  using Element = T;

  static DELTAWIRE_STEP Element element(const Reader<Now>& now, std::uint32_t i) { return now.element(i); }
  template <bool at_once>
  static DELTAWIRE_STEP Vector vector(const Reader<Now>& now, std::uint32_t v) {
    return now.template vector<at_once>(v);
  }
};

/// fp32, rounded as kernels/diff.hpp says.
template <Cast cast>
struct Rounded {
  using Now = std::uint32_t;
  using Element = std::uint16_t;

  static DELTAWIRE_STEP Element round(std::uint32_t bits) {
    if constexpr (cast == Cast::fp32_to_bf16)
      return bf16_of(bits);
    else
      return fp16_of(bits);
  }
  static DELTAWIRE_STEP Element element(const Reader<Now>& now, std::uint32_t i) { return round(now.element(i)); }
  template <bool at_once>
  static DELTAWIRE_STEP Vector vector(const Reader<Now>& now, std::uint32_t v) {
    const Vector first = now.template vector<at_once>(2 * v);
    const Vector second = now.template vector<at_once>(2 * v + 1);
    Vector rounded;
    DELTAWIRE_UNROLL
    for (unsigned i = 0; i < vector_elements<Now>; ++i) {
      put_element<Element>(rounded, i, round(element_of<Now>(first, i)));
      put_element<Element>(rounded, i + vector_elements<Now>, round(element_of<Now>(second, i)));
    }
    return rounded;
  }
};

} // namespace deltawire::kernels::cuda
