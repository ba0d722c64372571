// Memory for a rank's snapshot: one mapping for all of its blocks, on huge pages where the system gives them (a diff
// walks twice the model's bytes in order, and half of its address translations are the snapshot's). Pages come into
// being at their first write, so that they lie near the core of the thread that captures them.
#pragma once

#include <cstddef>

namespace deltawire::delta {

/// Owns the mapping. Movable. Holds no bytes when default-constructed or made for 0 bytes.
class SnapshotMemory {
public:
  SnapshotMemory() noexcept = default;
  /// Zero bytes, none of them backed yet; begins at a huge page. Throws std::bad_alloc.
  explicit SnapshotMemory(std::size_t bytes);
  SnapshotMemory(SnapshotMemory&& other) noexcept;
  SnapshotMemory& operator=(SnapshotMemory&& other) noexcept;
  ~SnapshotMemory();

  /// Valid as long as this object, or the one that it was moved to.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

private:
  void* mapping_ = nullptr; ///< what was mapped: begins before data_ where the system did not align it
  std::size_t mapped_ = 0;
  std::byte* data_ = nullptr;
};

} // namespace deltawire::delta
