// A warp, as the steps of the kernels see it: 32 lanes that do the same, each with values of its own, and what lanes
// tell each other. On the device DeviceWarp is one lane of the real thing. Elsewhere EmulatedWarp runs the lanes one
// after the other, in an order that changes from step to step, so that a CPU test runs the very code of the kernels.
//
// A step is written as calls of each(): between two of them all lanes have done the first. What one lane writes to
// memory no other lane reads within a launch.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define DELTAWIRE_STEP __device__ __forceinline__
#define DELTAWIRE_UNROLL _Pragma("unroll")
#else
#include <algorithm>
#include <array>
#include <bit>
#define DELTAWIRE_STEP inline
#define DELTAWIRE_UNROLL
#endif

namespace deltawire::kernels::cuda {

inline constexpr unsigned lanes = 32;

#if defined(__CUDACC__)

class DeviceWarp {
public:
  /// One value a lane; a lane reaches only its own.
  template <class T>
  struct PerLane {
    T value{};
    __device__ __forceinline__ T& operator[](unsigned) { return value; }
    __device__ __forceinline__ const T& operator[](unsigned) const { return value; }
  };

  __device__ __forceinline__ DeviceWarp() : lane_(threadIdx.x % lanes) {}

  template <class Body>
  __device__ __forceinline__ void each(Body&& body) {
    body(lane_);
  }

  /// The value of lane from[lane], for each lane.
  template <class T>
  __device__ __forceinline__ PerLane<T> shuffle(const PerLane<T>& values, const PerLane<unsigned>& from) {
    return {__shfl_sync(all, values.value, static_cast<int>(from.value))};
  }

  template <class T>
  __device__ __forceinline__ T sum(const PerLane<T>& values) {
    T total = values.value;
    DELTAWIRE_UNROLL
    for (unsigned step = lanes / 2; step > 0; step /= 2)
      total += __shfl_xor_sync(all, total, static_cast<int>(step));
    return total;
  }

  /// The sum of the lanes before.
  template <class T>
  __device__ __forceinline__ PerLane<T> sum_before(const PerLane<T>& values) {
    T total = values.value;
    DELTAWIRE_UNROLL
    for (unsigned step = 1; step < lanes; step *= 2) {
      const T before = __shfl_up_sync(all, total, step);
      if (lane_ >= step)
        total += before;
    }
    return {static_cast<T>(total - values.value)};
  }

  /// Ors the values of each `count` (a power of 2) neighbours.
  template <unsigned count>
  __device__ __forceinline__ void or_neighbours(PerLane<std::uint32_t>& values) {
    DELTAWIRE_UNROLL
    for (unsigned step = 1; step < count; step *= 2)
      values.value |= __shfl_xor_sync(all, values.value, static_cast<int>(step));
  }

  // Memory that warps share.
  static __device__ __forceinline__ void add(std::uint32_t* to, std::uint32_t value) { atomicAdd(to, value); }
  static __device__ __forceinline__ void add(std::uint64_t* to, std::uint64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
  }
  static __device__ __forceinline__ void lower(std::uint64_t* to, std::uint64_t value) {
    atomicMin(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
  }

private:
  static constexpr unsigned all = 0xFFFFFFFFu;
  unsigned lane_;
};

DELTAWIRE_STEP unsigned ones_in(std::uint64_t word) {
  return static_cast<unsigned>(__popcll(word));
}

#else

class EmulatedWarp {
public:
  template <class T>
  using PerLane = std::array<T, lanes>;

  explicit EmulatedWarp(unsigned order = 0) : order_(order) {}

  template <class Body>
  void each(Body&& body) {
    order_ = order_ * 1664525 + 1013904223;
    const unsigned first = order_ >> 20;
    const unsigned step = (order_ >> 10) | 1; // odd: all lanes have their turn
    for (unsigned i = 0; i < lanes; ++i)
      body((first + i * step) % lanes);
  }

  template <class T>
  PerLane<T> shuffle(const PerLane<T>& values, const PerLane<unsigned>& from) {
    PerLane<T> taken{};
    for (unsigned lane = 0; lane < lanes; ++lane)
      taken[lane] = values.at(from[lane]);
    return taken;
  }

  template <class T>
  T sum(const PerLane<T>& values) {
    T total{};
    for (const T value : values)
      total = static_cast<T>(total + value);
    return total;
  }

  template <class T>
  PerLane<T> sum_before(const PerLane<T>& values) {
    PerLane<T> before{};
    for (unsigned lane = 1; lane < lanes; ++lane)
      before[lane] = static_cast<T>(before[lane - 1] + values[lane - 1]);
    return before;
  }

  template <unsigned count>
  void or_neighbours(PerLane<std::uint32_t>& values) {
    for (unsigned first = 0; first < lanes; first += count) {
      std::uint32_t together = 0;
      for (unsigned i = 0; i < count; ++i)
        together |= values[first + i];
      for (unsigned i = 0; i < count; ++i)
        values[first + i] = together;
    }
  }

  static void add(std::uint32_t* to, std::uint32_t value) { *to += value; }
  static void add(std::uint64_t* to, std::uint64_t value) { *to += value; }
  static void lower(std::uint64_t* to, std::uint64_t value) { *to = std::min(*to, value); }

private:
  unsigned order_;
};

DELTAWIRE_STEP unsigned ones_in(std::uint64_t word) {
  return static_cast<unsigned>(std::popcount(word));
}

#endif

} // namespace deltawire::kernels::cuda
