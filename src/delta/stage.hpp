// The stage of a worker: what a delivery changes, decoded once and laid out as it is used, then exchanged with memory
// (which makes it the undo log) and read back.
//
// Decoded changes are records in slabs, each record at once in one of three forms:
//   tile    positions (16 bits) and values of one tile part and one run of its block: places are affine in the position
//   listed  32-bit addresses and slot positions and values, where runs are short for their changes; sorted by address,
//           stretch by stretch, where the block's order is not that of memory
//   range   values of consecutive block elements, of which nobody lists the positions
// Values are absolute. Slabs are kept for the next delivery, so that a session allocates no more once its largest
// delivery has been; what is held, sorting included, never passes the cap.
#pragma once

#include "delta/apply.hpp"
#include "delta/walk.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace deltawire::delta {

/// Not thread-safe. Refers to the blocks and to memory; owns what is staged.
class Stage {
public:
  /// `bound`: blocks as a worker binds them, named by their index from now on. `cap` in bytes. Without `digests`, add()
  /// computes none and returns 0.
  Stage(std::span<const BoundBlock> bound, std::uint64_t cap, bool digests = true);
  ~Stage();
  Stage(Stage&& other) noexcept;
  Stage& operator=(Stage&& other) noexcept;

  /// Decodes a piece that open_piece() or read_piece() accepted for the block; differences are added to what memory
  /// holds, which is their base. Returns what the digest of the block will change by. Reads memory, writes only the
  /// stage. Fails with invalid_input where a record is not what its head says, and with limit_exceeded where the cap
  /// does not hold it all. A part of the piece may be staged then: clear() is due.
  /// Pieces of one delivery do not meet: no element is in two of them.
  [[nodiscard]] Result<Digest> add(std::uint32_t block, const PieceView& piece);

  /// Swaps what is staged with memory; the second call undoes the first. Adds to `taken`, by block, the digests of what
  /// memory held; empty: nobody asks.
  void exchange(std::span<Digest> taken);

  /// Adds to `found`, by block, the digests of what memory holds where something is staged.
  void read_back(std::span<Digest> found);

  /// Forgets what is staged and keeps the slabs.
  void clear() noexcept;

  /// Bytes of memory that this holds, full or not; only grows.
  [[nodiscard]] std::uint64_t held() const noexcept { return held_; }

private:
  struct Binding;
  struct Record;
  struct Slab;
  struct Listing;
  struct Decoded;
  struct Held;
  enum class Form : std::uint32_t;

  Result<Record*> open(Form form, std::uint32_t block, std::size_t element_bytes, std::size_t wanted);
  Result<Digest> add_range(std::uint32_t block, const PieceView& piece);
  Result<Digest> add_changes(std::uint32_t block, const PieceView& piece);
  Result<void> add_whole(std::uint32_t block, std::uint64_t first, std::size_t span, const std::byte* raw,
                         const UlpValues* ulp, Held& held, Digest& change);
  Result<void> add_some(std::uint32_t block, std::uint64_t first, std::size_t changes, bool listed,
                        const std::byte* raw, const Decoded& decoded, Held& held, Digest& change);
  Result<void> add_values(std::uint32_t block, std::uint64_t first, std::uint64_t count, const std::byte* values);
  Result<void> add_tile(std::uint32_t block, const Run& run, std::ptrdiff_t origin,
                        std::span<const std::uint16_t> positions, const std::byte* values);
  Result<void> reserve_listing(std::uint64_t changes);
  Result<void> list(std::uint32_t block, const Run& run, std::ptrdiff_t origin,
                    std::span<const std::uint16_t> positions, const std::byte* values);
  Result<void> add_listing(std::uint32_t block);
  [[nodiscard]] Failure full(std::uint64_t wanted) const;
  template <class Visit>
  void visit_records(Visit&& visit);
  template <class Tile, class Listed, class Range>
  void visit_places(const Record& record, Binding& binding, std::byte* bytes, Tile&& tile, Listed&& listed,
                    Range&& range);

  std::vector<Binding> bindings_;
  std::vector<Slab> slabs_;
  std::size_t current_ = 0; ///< slab that is being filled; those after it are empty
  std::unique_ptr<Listing> listing_;
  std::uint64_t cap_ = 0;
  std::uint64_t held_ = 0;
  bool digests_ = true;
};

/// An upper bound of what a stage holds of a range of `elements` elements of a block as a worker binds it, all of them
/// changed, in pieces of at most `piece_limit` bytes. What it holds once for all blocks is stage_overhead().
[[nodiscard]] std::uint64_t worst_case_staged_bytes(const layout::Block& block, std::uint64_t elements,
                                                    std::size_t piece_limit) noexcept;

/// What a stage may hold besides: a slab that is not full, and room to sort in.
[[nodiscard]] std::uint64_t stage_overhead() noexcept;

} // namespace deltawire::delta
