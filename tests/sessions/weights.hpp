// What a run of a trainer publishes, in closed form, so that peers and tests know every bit of every version:
//
//     "w" [256, 128] and "v" [128, 128] bf16   about an eighth of the elements changes with each version; some of them
//                                              come back to what they were, and any 16 bits may come up
//     "stamp" [2] u32                          the run and the version
#pragma once

#include "deltawire/dtype.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace deltawire::test {

struct RunWeight {
  const char* name;
  DType dtype;
  std::vector<std::int64_t> shape;
};

inline const std::array<RunWeight, 3>& run_weights() {
  static const std::array<RunWeight, 3> all{
    RunWeight{"w", DType::bf16, {256, 128}},
    RunWeight{"v", DType::bf16, {128, 128}},
    RunWeight{"stamp", DType::u32, {2}},
  };
  return all;
}

/// The topology's `[trainer]` and `[worker]` for them: two ranks that cut rows; workers that cut rows of "w" and
/// columns of "v", in replicas.
inline std::string run_topology(int replicas, int workers_per_replica) {
  return R"([trainer]
mesh = [["fsdp", 2]]
[[trainer.placement]]
parameter = "stamp"
shard = []
[[trainer.placement]]
parameter = "*"
shard = ["fsdp:0"]
[worker]
mesh = [["dp", )" +
         std::to_string(replicas) + R"(], ["tp", )" + std::to_string(workers_per_replica) + R"(]]
[[worker.placement]]
parameter = "stamp"
shard = []
[[worker.placement]]
parameter = "v"
shard = ["tp:1"]
[[worker.placement]]
parameter = "w"
shard = ["tp:0"]
)";
}

/// Of element `index`, row-major, of weight number `weight`, of 16 bits.
inline std::uint16_t run_value(std::uint32_t run, std::uint64_t version, std::size_t weight, std::uint64_t index) {
  const auto mix = [](std::uint64_t x) {
    x = (x ^ (x >> 31)) * 0x7FB5D329728EA185;
    x = (x ^ (x >> 27)) * 0x81DADEF4BC2DD44D;
    return x ^ (x >> 33);
  };
  const std::uint64_t element = mix(weight << 40 | index);
  std::uint64_t epoch = (version + element % 8) / 8; // each changes every eighth version, in turns
  if (element >> 8 & 1)
    epoch %= 2;
  return static_cast<std::uint16_t>(mix(element + epoch * 0x9E3779B97F4A7C15 + run));
}

/// What a process has of a weight: a box of two dims, or all of the stamp.
struct HeldWeight {
  std::size_t weight = 0;
  std::vector<std::int64_t> begin, shape;
  std::vector<std::byte> bytes;

  void fill(std::uint32_t run, std::uint64_t version) {
    for (std::size_t i = 0; i < elements(); ++i)
      put(i, run, version);
  }
  /// Elements, of this process's, that are not the version's.
  [[nodiscard]] std::size_t differences(std::uint32_t run, std::uint64_t version) const {
    HeldWeight right = *this;
    right.fill(run, version);
    const std::size_t size = size_of(run_weights()[weight].dtype);
    std::size_t count = 0;
    for (std::size_t i = 0; i < elements(); ++i)
      count += std::memcmp(&bytes[i * size], &right.bytes[i * size], size) != 0 ? 1 : 0;
    return count;
  }
  [[nodiscard]] std::size_t elements() const {
    std::size_t count = 1;
    for (const std::int64_t extent : shape)
      count *= static_cast<std::size_t>(extent);
    return count;
  }

private:
  void put(std::size_t i, std::uint32_t run, std::uint64_t version) {
    const RunWeight& whole = run_weights()[weight];
    if (whole.shape.size() == 1) {
      const auto value = i == 0 ? run : static_cast<std::uint32_t>(version);
      std::memcpy(&bytes[i * sizeof value], &value, sizeof value);
      return;
    }
    const auto columns = static_cast<std::size_t>(shape[1]);
    const auto row = static_cast<std::uint64_t>(begin[0]) + i / columns;
    const auto column = static_cast<std::uint64_t>(begin[1]) + i % columns;
    const std::uint16_t value =
      run_value(run, version, weight, row * static_cast<std::uint64_t>(whole.shape[1]) + column);
    std::memcpy(&bytes[i * sizeof value], &value, sizeof value);
  }
};

/// The part of a cut along the one dim that `shape` does not have whole: part number `part`.
inline HeldWeight held_weight(std::size_t weight, std::vector<std::int64_t> shape, std::uint32_t part) {
  const RunWeight& whole = run_weights()[weight];
  HeldWeight held;
  held.weight = weight;
  for (std::size_t dim = 0; dim < shape.size(); ++dim)
    held.begin.push_back(shape[dim] == whole.shape[dim] ? 0 : part * shape[dim]);
  held.shape = std::move(shape);
  held.bytes.assign(held.elements() * size_of(whole.dtype), std::byte{0xFF});
  return held;
}

/// The run and version that memory says it is.
struct Stamp {
  std::uint32_t run = 0, version = 0;
};

} // namespace deltawire::test
