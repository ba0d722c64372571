// The tables that device kernels walk, and what they write. Plain types: the host fills tables, copies them to the
// device, and reads results back. Every pointer in them is the device's.
//
// A warp takes an entry of a table at a time, so that small tensors share thread blocks and no entry waits for another.
// An entry is of one run of a block, and at most part_elements elements. Pointers are aligned to the elements that they
// point to; beyond that any alignment will do, and 16 bytes are the fastest.
#pragma once

#include "kernels/diff.hpp"

#include <cstddef>
#include <cstdint>

namespace deltawire::kernels::cuda {

/// Elements whose addresses are affine in memory and in their slot: element i lies at now + i * now_stride elements, in
/// the slot at slot + i * slot_stride, and densely in the snapshot.
struct Part {
  const std::byte* now = nullptr;
  std::byte* snapshot = nullptr; ///< null where only a digest is asked for
  std::uint64_t slot = 0;
  std::int64_t now_stride = 1;
  std::int64_t slot_stride = 1;
  std::uint32_t elements = 0; ///< at most part_elements
  std::uint32_t cell = 0;     ///< whose digest it counts to
};

/// What a diff found, for one small copy to the host.
struct Found {
  std::uint64_t changed = 0; ///< elements that differ, over all parts
  std::uint64_t taken = 0;   ///< parts, from the first on, whose changes had room: saved and refreshed
  std::uint64_t saved = 0;   ///< elements that differ, over the parts taken
};

/// Where a diff writes. Positions and values are dense, part after part, each part's in the order of its elements: what
/// the encoder of pieces and the position log take, tile part by tile part (set_positions() makes the log's mask).
struct Changes {
  std::uint32_t* counts = nullptr;    ///< one a part: elements that differ, taken or not
  std::uint16_t* positions = nullptr; ///< from the start of the part
  std::byte* before = nullptr;        ///< what the snapshot held; null where nobody asks
  std::byte* after = nullptr;         ///< what it holds now
  std::uint64_t room = 0;             ///< elements that each of the three has room for
  std::uint64_t* digests = nullptr;   ///< by cell, added to: what the digest changes by; null where nobody asks
  Found* found = nullptr;
};

/// Elements of one run of a block in memory, and a dense array that they are swapped with. Element i of `values` is the
/// i-th of the run, unless positions or addresses say otherwise. No element is in two places of a table.
struct Places {
  std::byte* start = nullptr;
  std::byte* values = nullptr;
  const std::uint16_t* positions = nullptr; ///< it is the (positions[i] - origin)-th of the run
  const std::uint32_t* addresses = nullptr; ///< it lies at start + addresses[i], and in the slot at slot + slots[i]
  const std::uint32_t* slots = nullptr;     ///< as many as addresses
  std::uint64_t slot = 0;
  std::int64_t stride = 1;
  std::int64_t slot_stride = 1;
  std::int64_t origin = 0; ///< the position that lies at the start; below 0 where the run began before position 0
  std::uint32_t count = 0;
  std::uint32_t cell = 0; ///< whose digest it counts to
};

// ---------------------------------------------------------------------------------------------------- workspace

/// Parts whose changes are counted together, on the way to where each part's changes go.
inline constexpr std::size_t group_parts = 128;

[[nodiscard]] constexpr std::size_t groups_of(std::size_t parts) noexcept {
  return (parts + group_parts - 1) / group_parts;
}

/// What a diff keeps between its launches, in one piece of device memory that begins at a multiple of 16.
struct Workspace {
  std::uint64_t* masks = nullptr;      ///< part_mask_words a part
  std::uint64_t* offsets = nullptr;    ///< one a group: changes before it
  std::uint32_t* group_sums = nullptr; ///< one a group; zero before the first launch
};

/// Bytes that a diff of so many parts needs.
[[nodiscard]] constexpr std::size_t workspace_bytes(std::size_t parts) noexcept {
  return parts * part_mask_words * sizeof(std::uint64_t) +
         groups_of(parts) * (sizeof(std::uint64_t) + sizeof(std::uint32_t));
}

[[nodiscard]] inline Workspace workspace_at(std::byte* memory, std::size_t parts) noexcept {
  Workspace workspace;
  workspace.masks = reinterpret_cast<std::uint64_t*>(memory);
  workspace.offsets = workspace.masks + parts * part_mask_words;
  workspace.group_sums = reinterpret_cast<std::uint32_t*>(workspace.offsets + groups_of(parts));
  return workspace;
}

} // namespace deltawire::kernels::cuda
