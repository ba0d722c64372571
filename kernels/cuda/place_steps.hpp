// What one warp does of a swap with memory, and of reading back what was written. Values that are swapped are the undo:
// the same table swaps them back.
#pragma once

#include "kernels/cuda/parts.hpp"
#include "kernels/cuda/vectors.hpp"
#include "kernels/digest.hpp"

namespace deltawire::kernels::cuda {

/// Where an element lies.
struct Place {
  std::byte* memory;
  std::uint64_t slot;
};

template <class Element>
DELTAWIRE_STEP Place place_of(const Places& places, std::uint32_t i) {
  std::int64_t inside = i;
  if (places.addresses != nullptr)
    return {places.start + std::size_t{places.addresses[i]} * sizeof(Element), places.slot + places.slots[i]};
  if (places.positions != nullptr)
    inside = places.positions[i] - places.origin;
  return {places.start + inside * places.stride * static_cast<std::int64_t>(sizeof(Element)),
          places.slot + static_cast<std::uint64_t>(inside * places.slot_stride)};
}

/// Elements of a lane that are loaded before the first is stored.
inline constexpr unsigned places_ahead = 4;

/// Swaps an entry's values with memory (`swap`), and adds the digest of what memory held.
template <class Element, bool swap, class Warp>
DELTAWIRE_STEP void visit_places(Warp& warp, const Places& places, std::uint64_t* digests) {
  struct Loaded {
    Place place[places_ahead];
    Element held[places_ahead];
    Element value[places_ahead];
  };
  typename Warp::template PerLane<std::uint64_t> digest{};
  for (std::uint32_t first = 0; first < places.count; first += lanes * places_ahead)
    warp.each([&](unsigned lane) {
      Loaded loaded;
      DELTAWIRE_UNROLL
      for (unsigned ahead = 0; ahead < places_ahead; ++ahead)
        if (const std::uint32_t i = first + ahead * lanes + lane; i < places.count) {
          loaded.place[ahead] = place_of<Element>(places, i);
          loaded.held[ahead] = load_at<Element>(loaded.place[ahead].memory);
          if constexpr (swap)
            loaded.value[ahead] = load_at<Element>(places.values + std::size_t{i} * sizeof(Element));
        }
      DELTAWIRE_UNROLL
      for (unsigned ahead = 0; ahead < places_ahead; ++ahead)
        if (const std::uint32_t i = first + ahead * lanes + lane; i < places.count) {
          if constexpr (swap) {
            store_at(loaded.place[ahead].memory, loaded.value[ahead]);
            store_at(places.values + std::size_t{i} * sizeof(Element), loaded.held[ahead]);
          }
          if (digests != nullptr)
            digest[lane] += mix(loaded.place[ahead].slot, loaded.held[ahead]);
        }
    });
  if (digests == nullptr)
    return;
  const std::uint64_t sum = warp.sum(digest);
  warp.each([&](unsigned lane) {
    if (lane == 0)
      Warp::add(digests + places.cell, sum);
  });
}

} // namespace deltawire::kernels::cuda
