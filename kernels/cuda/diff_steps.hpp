// What one warp does of a diff. There are three launches over the whole table, none of which waits for the host.
// Comparing reads memory and snapshot once, and leaves a mask and a count for each part and a sum for each group of
// parts. Placing is done by a single warp: the sums before each group. Saving finds each part's place from the two, and
// reads and writes only what changed.
//
// So positions and values come out in the order of the table without a word between thread blocks, and where there is
// no room for all of them, what is taken is a number of parts from the first on.
//
// As on the CPU, what changed is read twice: where someone writes to memory meanwhile, positions, `after` and the
// snapshot still agree with each other.
#pragma once

#include "kernels/cuda/parts.hpp"
#include "kernels/cuda/vectors.hpp"
#include "kernels/digest.hpp"
#include "kernels/mask.hpp"

namespace deltawire::kernels::cuda {

/// Compares the vectors of a part, `ahead` a lane loaded before the first is looked at. Writes the mask; returns what
/// each lane found. `at_once`: memory and snapshot are dense and begin at a multiple of 16. `tail` are the bits of the
/// elements past the last whole vector.
template <class Source, bool at_once, unsigned ahead, class Warp>
DELTAWIRE_STEP auto compare_vectors(Warp& warp, const Part& part, std::byte* mask, std::uint32_t tail) {
  using Element = typename Source::Element;
  constexpr unsigned in_vector = vector_elements<Element>;
  struct Loaded {
    Vector now[ahead];
    Vector held[ahead];
  };
  const Reader<typename Source::Now> now(part.now, part.now_stride, part.elements);
  const Reader<Element> held(part.snapshot, 1, part.elements);
  const auto mask_vectors = static_cast<std::uint32_t>(mask_words(part.elements) * 64 / in_vector);
  const std::uint32_t whole = part.elements / in_vector;
  typename Warp::template PerLane<std::uint32_t> changed{};
  for (std::uint32_t first = 0; first < mask_vectors; first += lanes * ahead) {
    typename Warp::template PerLane<Loaded> loaded;
    warp.each([&](unsigned lane) {
      DELTAWIRE_UNROLL
      for (unsigned i = 0; i < ahead; ++i)
        if (const std::uint32_t v = first + i * lanes + lane; v < whole) {
          loaded[lane].now[i] = Source::template vector<at_once>(now, v);
          loaded[lane].held[i] = held.template vector<at_once>(v);
        }
    });
    DELTAWIRE_UNROLL
    for (unsigned i = 0; i < ahead; ++i) {
      typename Warp::template PerLane<std::uint32_t> bits{};
      warp.each([&](unsigned lane) {
        const std::uint32_t v = first + i * lanes + lane;
        std::uint32_t found = v == whole ? tail : 0;
        if (v < whole)
          found = differing_elements<Element>(loaded[lane].now[i], loaded[lane].held[i]);
        changed[lane] += ones_in(found);
        if constexpr (in_vector < 8)
          found <<= v * in_vector % 8;
        bits[lane] = found;
      });
      // A byte of the mask takes several lanes where elements are wide.
      if constexpr (in_vector < 8)
        warp.template or_neighbours<8 / in_vector>(bits);
      warp.each([&](unsigned lane) {
        const std::uint32_t v = first + i * lanes + lane;
        if (v >= mask_vectors)
          return;
        if constexpr (in_vector == 16)
          store_at(mask + std::size_t{v} * 2, static_cast<std::uint16_t>(bits[lane]));
        else if (v * in_vector % 8 == 0)
          store_at(mask + v * in_vector / 8, static_cast<std::uint8_t>(bits[lane]));
      });
    }
  }
  return changed;
}

/// Compares part `index`: its mask up to mask_words(elements), its count, and its share of the group's sum.
template <class Source, class Warp>
DELTAWIRE_STEP void compare_part(Warp& warp, const Part& part, std::size_t index, std::uint32_t* counts,
                                 const Workspace& workspace) {
  using Element = typename Source::Element;
  constexpr unsigned in_vector = vector_elements<Element>;
  // The last elements, which are no whole vector: one a lane.
  typename Warp::template PerLane<std::uint32_t> tail{};
  {
    const Reader<typename Source::Now> now(part.now, part.now_stride, part.elements);
    const Reader<Element> held(part.snapshot, 1, part.elements);
    warp.each([&](unsigned lane) {
      const std::uint32_t i = part.elements / in_vector * in_vector + lane;
      if (i < part.elements)
        tail[lane] = std::uint32_t{Source::element(now, i) != held.element(i)} << lane;
    });
    warp.template or_neighbours<lanes>(tail);
  }
  std::uint32_t tail_bits = 0;
  warp.each([&](unsigned lane) { tail_bits = tail[lane]; }); // the same in all

  auto* mask = reinterpret_cast<std::byte*>(workspace.masks + index * part_mask_words);
  const bool at_once =
    part.now_stride == 1 && bytes_past_vector(part.now) == 0 && bytes_past_vector(part.snapshot) == 0;
  constexpr unsigned ahead = sizeof(typename Source::Now) == sizeof(Element) ? 4 : 2; // as registers allow
  const auto changed = at_once ? compare_vectors<Source, true, ahead>(warp, part, mask, tail_bits)
                               : compare_vectors<Source, false, 1>(warp, part, mask, tail_bits);
  const std::uint32_t total = warp.sum(changed);
  warp.each([&](unsigned lane) {
    if (lane != 0)
      return;
    counts[index] = total;
    if (total != 0)
      Warp::add(workspace.group_sums + index / group_parts, total);
  });
}

/// Sums before each group, and what is found if all of it has room.
template <class Warp>
DELTAWIRE_STEP void place_groups(Warp& warp, std::size_t parts, const Workspace& workspace, Found* found) {
  constexpr std::size_t in_lane = 16;
  const std::size_t groups = groups_of(parts);
  std::uint64_t before = 0;
  for (std::size_t first = 0; first < groups; first += lanes * in_lane) {
    typename Warp::template PerLane<std::uint64_t> sums{};
    warp.each([&](unsigned lane) {
      DELTAWIRE_UNROLL
      for (std::size_t i = 0; i < in_lane; ++i)
        if (const std::size_t group = first + lane * in_lane + i; group < groups)
          sums[lane] += workspace.group_sums[group];
    });
    const auto lane_before = warp.sum_before(sums);
    warp.each([&](unsigned lane) {
      std::uint64_t here = before + lane_before[lane];
      for (std::size_t i = 0; i < in_lane; ++i)
        if (const std::size_t group = first + lane * in_lane + i; group < groups) {
          workspace.offsets[group] = here;
          here += workspace.group_sums[group];
        }
    });
    before += warp.sum(sums);
  }
  warp.each([&](unsigned lane) {
    if (lane == 0)
      *found = {before, parts, before};
  });
}

/// The place of the bit that has `rank` set ones below it. Requires that there is one.
DELTAWIRE_STEP unsigned place_of_one(std::uint64_t word, unsigned rank) {
  unsigned place = 0;
  DELTAWIRE_UNROLL
  for (unsigned width = 32; width > 0; width /= 2) {
    const unsigned below = ones_in(word & ((std::uint64_t{1} << width) - 1));
    if (rank >= below) {
      rank -= below;
      word >>= width;
      place += width;
    }
  }
  return place;
}

/// Saves and refreshes what compare_part() marked in part `index`, if it has room.
template <class Source, class Warp>
DELTAWIRE_STEP void save_part(Warp& warp, const Part& part, std::size_t index, const Workspace& workspace,
                              const Changes& out) {
  using Element = typename Source::Element;
  const std::uint32_t count = out.counts[index];
  const bool has_room_for_all = out.found->changed <= out.room;
  if (count == 0 && has_room_for_all)
    return;

  // Where its changes go: past those of the groups before, and of the parts before in its own.
  constexpr std::size_t in_lane = group_parts / lanes;
  const std::size_t group = index / group_parts;
  typename Warp::template PerLane<std::uint32_t> earlier{};
  warp.each([&](unsigned lane) {
    DELTAWIRE_UNROLL
    for (std::size_t i = 0; i < in_lane; ++i)
      if (const std::size_t other = group * group_parts + lane * in_lane + i; other < index)
        earlier[lane] += out.counts[other];
  });
  const std::uint64_t place = workspace.offsets[group] + warp.sum(earlier);
  if (place + count > out.room) {
    warp.each([&](unsigned lane) {
      if (lane != 0)
        return;
      Warp::lower(&out.found->taken, index);
      Warp::lower(&out.found->saved, place);
    });
    return;
  }

  // Each lane holds 128 bits of the mask, and each takes the next change of all: few or many, none of them is idle.
  const std::uint64_t* mask = workspace.masks + index * part_mask_words;
  const std::size_t words = mask_words(part.elements);
  typename Warp::template PerLane<std::uint64_t> low{};
  typename Warp::template PerLane<std::uint64_t> high{};
  typename Warp::template PerLane<std::uint32_t> ones{};
  warp.each([&](unsigned lane) {
    const std::size_t word = 2 * std::size_t{lane};
    if (word < words)
      low[lane] = mask[word];
    if (word + 1 < words)
      high[lane] = mask[word + 1];
    ones[lane] = ones_in(low[lane]) + ones_in(high[lane]);
  });
  const auto ones_before = warp.sum_before(ones);
  const Reader<typename Source::Now> now(part.now, part.now_stride, part.elements);
  typename Warp::template PerLane<std::uint64_t> digest{};
  for (std::uint32_t first = 0; first < count; first += lanes) {
    // The last lane with no more ones before it than there are changes before this one.
    typename Warp::template PerLane<unsigned> holder{};
    DELTAWIRE_UNROLL
    for (unsigned step = lanes / 2; step > 0; step /= 2) {
      typename Warp::template PerLane<unsigned> probed{};
      warp.each([&](unsigned lane) { probed[lane] = holder[lane] + step; });
      const auto start = warp.shuffle(ones_before, probed);
      warp.each([&](unsigned lane) {
        if (start[lane] <= first + lane)
          holder[lane] = probed[lane];
      });
    }
    const auto start = warp.shuffle(ones_before, holder);
    const auto held_low = warp.shuffle(low, holder);
    const auto held_high = warp.shuffle(high, holder);
    warp.each([&](unsigned lane) {
      const std::uint32_t change = first + lane;
      if (change >= count)
        return;
      const unsigned rank = change - start[lane];
      const unsigned in_low = ones_in(held_low[lane]);
      const unsigned bit =
        rank < in_low ? place_of_one(held_low[lane], rank) : 64 + place_of_one(held_high[lane], rank - in_low);
      const std::uint32_t position = holder[lane] * 128 + bit;
      std::byte* memory = part.snapshot + std::size_t{position} * sizeof(Element);
      const Element after = Source::element(now, position);
      const auto before = load_at<Element>(memory);
      const std::uint64_t to = place + change;
      store_at(memory, after);
      store_at(out.after + to * sizeof(Element), after);
      if (out.before != nullptr)
        store_at(out.before + to * sizeof(Element), before);
      out.positions[to] = static_cast<std::uint16_t>(position);
      if (out.digests != nullptr) {
        const std::uint64_t slot = part.slot + static_cast<std::uint64_t>(position * part.slot_stride);
        digest[lane] += mix(slot, after) - mix(slot, before);
      }
    });
  }
  if (out.digests == nullptr)
    return;
  const std::uint64_t sum = warp.sum(digest);
  warp.each([&](unsigned lane) {
    if (lane == 0)
      Warp::add(out.digests + part.cell, sum);
  });
}

/// Copies a part into the snapshot, where it has one, and adds the digest of all of it.
template <class Source, class Warp>
DELTAWIRE_STEP void take_part(Warp& warp, const Part& part, std::uint64_t* digests) {
  using Element = typename Source::Element;
  constexpr unsigned in_vector = vector_elements<Element>;
  const Reader<typename Source::Now> now(part.now, part.now_stride, part.elements);
  const bool at_once = bytes_past_vector(part.snapshot) == 0;
  const std::uint32_t whole = part.elements / in_vector;
  const std::uint32_t vectors = (part.elements + in_vector - 1) / in_vector;
  typename Warp::template PerLane<std::uint64_t> digest{};
  for (std::uint32_t first = 0; first < vectors; first += lanes) {
    warp.each([&](unsigned lane) {
      const std::uint32_t v = first + lane;
      std::uint64_t slot =
        part.slot + static_cast<std::uint64_t>(static_cast<std::int64_t>(v) * in_vector * part.slot_stride);
      std::byte* snapshot = part.snapshot == nullptr ? nullptr : part.snapshot + std::size_t{v} * vector_bytes;
      const auto take = [&](Element element, std::uint32_t i, bool store) {
        if (store)
          store_at(snapshot + i * sizeof(Element), element);
        if (digests != nullptr)
          digest[lane] += mix(slot, element);
        slot += static_cast<std::uint64_t>(part.slot_stride);
      };
      if (v < whole) {
        const Vector vector = Source::template vector<false>(now, v);
        const bool whole_store = snapshot != nullptr && at_once;
        if (whole_store)
          store_vector(snapshot, vector);
        DELTAWIRE_UNROLL
        for (unsigned i = 0; i < in_vector; ++i)
          take(element_of<Element>(vector, i), i, snapshot != nullptr && !whole_store);
      } else {
        for (std::uint32_t i = v * in_vector; i < part.elements; ++i)
          take(Source::element(now, i), i - v * in_vector, snapshot != nullptr);
      }
    });
  }
  if (digests == nullptr)
    return;
  const std::uint64_t sum = warp.sum(digest);
  warp.each([&](unsigned lane) {
    if (lane == 0)
      Warp::add(digests + part.cell, sum);
  });
}

} // namespace deltawire::kernels::cuda
