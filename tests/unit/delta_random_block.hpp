// Random blocks and their brute-force index arithmetic: the oracle of the delta tests. It shares nothing with the code
// under test: an element's digits come from divisions, its address from one sum of products.
#pragma once

#include "layout/plan.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace deltawire::test {

inline std::uint64_t uniform(std::mt19937_64& random, std::uint64_t low, std::uint64_t high) {
  return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
}

struct Strides {
  layout::Index offset = 0;
  std::vector<layout::Index> strides;
  layout::Index reach = 0; ///< addresses are below this
};

/// Strides that give every element an address of its own: the dims nest in a random order (transposed memory), each
/// extent possibly padded (a slice of something larger).
inline Strides random_strides(std::mt19937_64& random, const std::vector<layout::Index>& extents, bool shuffled,
                              bool padded) {
  std::vector<std::size_t> order(extents.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (shuffled)
    std::shuffle(order.begin(), order.end(), random);
  Strides result;
  result.strides.resize(extents.size());
  result.offset = padded ? static_cast<layout::Index>(uniform(random, 0, 9)) : 0;
  layout::Index stride = padded && uniform(random, 0, 3) == 0 ? 2 : 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    result.strides[*dim] = stride;
    stride *= extents[*dim] + (padded ? static_cast<layout::Index>(uniform(random, 0, 2)) : 0);
  }
  result.reach = result.offset + stride;
  return result;
}

inline std::vector<layout::Index> random_extents(std::mt19937_64& random, std::uint64_t most) {
  std::vector<layout::Index> extents(uniform(random, 1, 4));
  std::uint64_t left = uniform(random, 1, most);
  for (layout::Index& extent : extents) {
    extent = static_cast<layout::Index>(
      uniform(random, 1, std::min<std::uint64_t>(left, &extent == &extents.back() ? left : 60)));
    left /= static_cast<std::uint64_t>(extent);
  }
  std::shuffle(extents.begin(), extents.end(), random);
  return extents;
}

inline layout::Index address(const layout::Block& block, std::uint64_t element, layout::Index offset,
                             const std::vector<layout::Index>& strides) {
  for (std::size_t d = block.extents.size(); d-- > 0;) {
    const auto extent = static_cast<std::uint64_t>(block.extents[d]);
    offset += static_cast<layout::Index>(element % extent) * strides[d];
    element /= extent;
  }
  return offset;
}

inline std::uint64_t count_of(const layout::Block& block) {
  std::uint64_t count = 1;
  for (const layout::Index extent : block.extents)
    count *= static_cast<std::uint64_t>(extent);
  return count;
}

/// A block as two processes see it, and memory for both. Memory has exactly the bytes that the strides reach.
struct Sides {
  layout::Block owner;
  layout::Block worker;
  std::size_t size = 1;
  std::uint64_t elements = 0;
  std::vector<std::byte> owner_memory;
  std::vector<std::byte> worker_memory;
  std::vector<std::byte> snapshot;

  Sides(std::mt19937_64& random, DType dtype, std::uint64_t most_elements) {
    owner.id = static_cast<std::uint32_t>(uniform(random, 0, 1) ? random() : random() % 100);
    owner.dtype = dtype;
    owner.extents = random_extents(random, most_elements);
    const Strides slot = random_strides(random, owner.extents, true, true);
    owner.slot_offset = slot.offset + static_cast<layout::Index>(uniform(random, 0, 1) ? 0 : random() >> 24);
    owner.slot_strides = slot.strides;
    worker = owner;
    const Strides at_owner =
      random_strides(random, owner.extents, uniform(random, 0, 1) != 0, uniform(random, 0, 2) == 0);
    owner.local_offset = at_owner.offset;
    owner.local_strides = at_owner.strides;
    const Strides at_worker = random_strides(random, owner.extents, true, uniform(random, 0, 1) != 0);
    worker.local_offset = at_worker.offset;
    worker.local_strides = at_worker.strides;
    worker.parameter = owner.parameter + 1;
    size = size_of(dtype);
    elements = count_of(owner);
    owner_memory.resize(static_cast<std::size_t>(at_owner.reach) * size);
    worker_memory.resize(static_cast<std::size_t>(at_worker.reach) * size);
    snapshot.resize(elements * size);
    for (auto* memory : {&owner_memory, &worker_memory, &snapshot})
      for (std::byte& byte : *memory)
        byte = static_cast<std::byte>(random());
  }

  std::byte* at_owner(std::uint64_t element) {
    return owner_memory.data() +
           static_cast<std::size_t>(address(owner, element, owner.local_offset, owner.local_strides)) * size;
  }
  std::byte* at_worker(std::uint64_t element) {
    return worker_memory.data() +
           static_cast<std::size_t>(address(worker, element, worker.local_offset, worker.local_strides)) * size;
  }
  std::uint64_t slot_position(std::uint64_t element) const {
    return static_cast<std::uint64_t>(address(owner, element, owner.slot_offset, owner.slot_strides));
  }

  /// Copies every element from the owner to the worker: what a delivery must amount to.
  void copy_all() {
    for (std::uint64_t e = 0; e < elements; ++e)
      std::memcpy(at_worker(e), at_owner(e), size);
  }
};

} // namespace deltawire::test
