#include "layout/slot_cut.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace deltawire::layout {

namespace {

constexpr std::uint64_t most_cells = std::uint64_t{1} << 20;
constexpr std::uint64_t most_blocks = std::uint64_t{1} << 22;

/// Appends `segment`, as part of the last one where it continues it affinely. A segment of one element has no stride of
/// its own and takes the one that continues it.
void append_merged(std::vector<Segment>& segments, std::size_t begin, const Segment& segment) {
  if (segments.size() > begin) {
    Segment& last = segments.back();
    const Index step = segment.local - last.local;
    if (last.slot + last.length == segment.slot) {
      if (last.length == 1 && (segment.length == 1 || segment.stride == step)) {
        last.stride = step;
        last.length += segment.length;
        return;
      }
      if (last.length > 1 && step == last.stride * last.length &&
          (segment.length == 1 || segment.stride == last.stride)) {
        last.length += segment.length;
        return;
      }
    }
  }
  segments.push_back(segment);
}

/// A stretch of an owner's segment between two boundaries of its dim, or several of them at regular distances.
struct Piece {
  Segment segment;       ///< the first
  std::uint32_t cls = 0; ///< class of the interval that holds it
  Index count = 1;
  Index slot_step = 0; ///< from one to the next, along the dim
  Index local_step = 0;
};

/// One dim of the block under construction.
struct BlockDim {
  Index extent = 0;
  Index local = 0; ///< stride in the owner's buffer
  Index slot = 0;  ///< stride in the slot
  std::size_t dim = 0;
  Index step = 0; ///< from piece to piece along `dim`; 0: within a piece
};

class Cutter {
public:
  Cutter(const SlotSpec& slot, std::span<const Claim> owners, std::span<const Claim> readers, CutBlocks& out)
    : slot_(slot), owners_(owners), readers_(readers), out_(out), dims_(slot.shape.size()),
      slot_strides_(row_major_strides(slot.shape)) {}

  Result<void> run() {
    merge_reader_segments();
    for (std::size_t d = 0; d < dims_; ++d)
      cut_dim(d);
    if (auto made = make_cells(); !made)
      return made;
    list_cell_readers();
    const std::size_t before = out_.blocks.size();
    for (const Claim& owner : owners_)
      if (auto made = cut_owner(owner, most_blocks - (out_.blocks.size() - before)); !made)
        return made;
    return {};
  }

private:
  struct Cuts {
    std::vector<Index> bounds;         ///< ascending, from 0 to the extent
    std::vector<std::uint32_t> cls;    ///< of each interval; numbered by first appearance
    std::vector<Index> lengths;        ///< elements along the dim, a class
    std::vector<std::size_t> interval; ///< first interval of each class
  };

  [[nodiscard]] std::span<const Segment> reader_segments(std::size_t reader, std::size_t d) const {
    const std::size_t at = reader * dims_ + d;
    return std::span(segments_).subspan(segment_begin_[at], segment_begin_[at + 1] - segment_begin_[at]);
  }

  /// The segment that holds `index`; null if none does.
  [[nodiscard]] const Segment* reader_segment(std::size_t reader, std::size_t d, Index index) const {
    const auto segments = reader_segments(reader, d);
    auto after = std::upper_bound(segments.begin(), segments.end(), index,
                                  [](Index i, const Segment& segment) { return i < segment.slot; });
    if (after == segments.begin())
      return nullptr;
    --after;
    return index - after->slot < after->length ? &*after : nullptr;
  }

  void merge_reader_segments() {
    segment_begin_.reserve(readers_.size() * dims_ + 1);
    segment_begin_.push_back(0);
    for (const Claim& claim : readers_)
      for (std::size_t d = 0; d < dims_; ++d) {
        for (const Segment& segment : claim.region->dims[d])
          append_merged(segments_, segment_begin_.back(), segment);
        segment_begin_.push_back(segments_.size());
      }
  }

  void cut_dim(std::size_t d) {
    Cuts cuts;
    cuts.bounds = {0, slot_.shape[d]};
    for (std::size_t r = 0; r < readers_.size(); ++r)
      for (const Segment& segment : reader_segments(r, d)) {
        if (segment.slot != 0)
          cuts.bounds.push_back(segment.slot);
        if (segment.slot + segment.length != slot_.shape[d])
          cuts.bounds.push_back(segment.slot + segment.length);
      }
    std::sort(cuts.bounds.begin(), cuts.bounds.end());
    cuts.bounds.erase(std::unique(cuts.bounds.begin(), cuts.bounds.end()), cuts.bounds.end());

    // One class at first; each region splits the classes into what it contains and what not.
    const std::size_t intervals = cuts.bounds.size() - 1;
    cuts.cls.assign(intervals, 0);
    std::uint32_t classes = 1;
    std::vector<char> inside(intervals);
    for (std::size_t r = 0; r < readers_.size(); ++r) {
      const auto segments = reader_segments(r, d);
      if (segments.size() == 1 && segments.front().length == slot_.shape[d])
        continue;
      std::fill(inside.begin(), inside.end(), char{0});
      for (const Segment& segment : segments)
        for (std::size_t i = interval_at(cuts, segment.slot);
             i < intervals && cuts.bounds[i] < segment.slot + segment.length; ++i)
          inside[i] = 1;
      constexpr auto unnamed = static_cast<std::uint32_t>(-1);
      std::vector<std::uint32_t> renamed(std::size_t{classes} * 2, unnamed);
      classes = 0;
      for (std::size_t i = 0; i < intervals; ++i) {
        std::uint32_t& name = renamed[std::size_t{cuts.cls[i]} * 2 + static_cast<std::size_t>(inside[i])];
        if (name == unnamed)
          name = classes++;
        cuts.cls[i] = name;
      }
    }
    cuts.lengths.assign(classes, 0);
    cuts.interval.assign(classes, intervals);
    for (std::size_t i = 0; i < intervals; ++i) {
      cuts.lengths[cuts.cls[i]] += cuts.bounds[i + 1] - cuts.bounds[i];
      cuts.interval[cuts.cls[i]] = std::min(cuts.interval[cuts.cls[i]], i);
    }
    cuts_.push_back(std::move(cuts));
  }

  [[nodiscard]] static std::size_t interval_at(const Cuts& cuts, Index index) {
    return static_cast<std::size_t>(
      std::distance(cuts.bounds.begin(), std::upper_bound(cuts.bounds.begin(), cuts.bounds.end(), index)) - 1);
  }

  /// Cells are row-major over the classes of the dims.
  Result<void> make_cells() {
    std::uint64_t cells = 1;
    for (const Cuts& cuts : cuts_) {
      if (cells * cuts.lengths.size() > most_cells)
        return fail(Code::limit_exceeded,
                    "slot \"{}\" {}: the workers' shards cut it into more than {} cells; cut fewer of its dims",
                    slot_.name, to_string(slot_.shape), most_cells);
      cells *= cuts.lengths.size();
    }
    cell_strides_.assign(dims_, 1);
    for (std::size_t d = dims_; d-- > 1;)
      cell_strides_[d - 1] = cell_strides_[d] * cuts_[d].lengths.size();
    cells_ = cells;
    first_cell_ = out_.cells.size();
    for (std::size_t cell = 0; cell < cells_; ++cell) {
      Index elements = 1;
      for (std::size_t d = 0; d < dims_; ++d)
        elements *= cuts_[d].lengths[cell_class(cell, d)];
      out_.cells.push_back(elements);
    }
    return {};
  }

  [[nodiscard]] std::size_t cell_class(std::size_t cell, std::size_t d) const {
    return cell / cell_strides_[d] % cuts_[d].lengths.size();
  }

  /// The readers whose regions contain each cell. A region contains a class wholly or not at all.
  void list_cell_readers() {
    std::vector<std::vector<char>> contains(dims_); // a dim: reader * classes + class
    for (std::size_t d = 0; d < dims_; ++d) {
      const std::size_t classes = cuts_[d].lengths.size();
      contains[d].resize(readers_.size() * classes);
      for (std::size_t r = 0; r < readers_.size(); ++r)
        for (std::size_t c = 0; c < classes; ++c)
          contains[d][r * classes + c] =
            static_cast<char>(reader_segment(r, d, cuts_[d].bounds[cuts_[d].interval[c]]) != nullptr);
    }
    cell_readers_.resize(cells_);
    for (std::size_t cell = 0; cell < cells_; ++cell)
      for (std::uint32_t r = 0; r < readers_.size(); ++r) {
        bool all = true;
        for (std::size_t d = 0; all && d < dims_; ++d)
          all = contains[d][r * cuts_[d].lengths.size() + cell_class(cell, d)] != 0;
        if (all)
          cell_readers_[cell].push_back(r);
      }
  }

  /// `most`: blocks that it may add.
  Result<void> cut_owner(const Claim& owner, std::uint64_t most) {
    pieces_.resize(dims_);
    std::uint64_t blocks = 1;
    for (std::size_t d = 0; d < dims_; ++d) {
      std::vector<Segment> merged;
      for (const Segment& segment : owner.region->dims[d])
        append_merged(merged, 0, segment);
      if (merged.empty())
        return {};
      pieces_[d].clear();
      for (const Segment& segment : merged) {
        const Index end = segment.slot + segment.length;
        std::size_t i = interval_at(cuts_[d], segment.slot);
        for (Index begin = segment.slot; begin < end; ++i) {
          const Index stop = std::min(end, cuts_[d].bounds[i + 1]);
          const Index local = begin == segment.slot ? segment.local // the stride of one element may be anything
                                                    : segment.local + (begin - segment.slot) * segment.stride;
          pieces_[d].push_back({{begin, stop - begin, local, segment.stride}, cuts_[d].cls[i]});
          begin = stop;
        }
      }
      group_pieces(d);
      if (__builtin_mul_overflow(blocks, std::uint64_t{pieces_[d].size()}, &blocks) || blocks > most)
        return fail(Code::limit_exceeded,
                    "slot \"{}\" {}: rank {} provides it in parts that make more than {} blocks; cut fewer of its dims",
                    slot_.name, to_string(slot_.shape), owner.process, most_blocks);
    }
    chosen_.assign(dims_, 0);
    for (bool more = true; more;) {
      add_block(owner);
      more = false;
      for (std::size_t d = dims_; !more && d-- > 0;) {
        more = ++chosen_[d] < pieces_[d].size();
        if (!more)
          chosen_[d] = 0;
      }
    }
    return {};
  }

  /// Joins pieces that follow each other at equal distances on every side: heads of a grouped parameter, dealt rows.
  void group_pieces(std::size_t d) {
    std::vector<Piece> grouped;
    for (const Piece& piece : pieces_[d])
      if (grouped.empty() || !goes_on(d, grouped.back(), piece))
        grouped.push_back(piece);
    pieces_[d] = std::move(grouped);
  }

  /// Appends `next` to `run` if it is one step further, for the owner and for every reader.
  [[nodiscard]] bool goes_on(std::size_t d, Piece& run, const Piece& next) const {
    const Segment& first = run.segment;
    const Index length = first.length;
    if (run.cls != next.cls || length != next.segment.length || (length > 1 && first.stride != next.segment.stride))
      return false;
    const Index last = first.slot + (run.count - 1) * run.slot_step;
    const Index slot_step = next.segment.slot - last;
    const Index local_step = next.segment.local - (first.local + (run.count - 1) * run.local_step);
    if (run.count > 1 && (slot_step != run.slot_step || local_step != run.local_step))
      return false;
    // Steps that pass what one piece reaches: the dims of a block nest.
    const auto nests = [&](Index step, Index stride) {
      return magnitude(step) > magnitude(stride) * static_cast<std::uint64_t>(length - 1);
    };
    if (!nests(local_step, length > 1 ? first.stride : 0))
      return false;
    for (std::size_t r = 0; r < readers_.size(); ++r) {
      const Segment* here = reader_segment(r, d, last);
      if (here == nullptr)
        continue; // it reads nothing of this class
      const Segment* there = reader_segment(r, d, next.segment.slot);
      const Index step = address(*there, next.segment.slot) - address(*here, last);
      if (length > 1 && here->stride != there->stride)
        return false;
      if (!nests(step, length > 1 ? here->stride : 0))
        return false;
      if (run.count > 1) {
        const Segment& before = *reader_segment(r, d, last - slot_step);
        if (address(*here, last) - address(before, last - slot_step) != step)
          return false;
      }
    }
    ++run.count;
    run.slot_step = slot_step;
    run.local_step = local_step;
    return true;
  }

  /// Of an index that the segment holds, without the region's base.
  [[nodiscard]] static Index address(const Segment& segment, Index index) noexcept {
    return index == segment.slot ? segment.local // the stride of one element may be anything
                                 : segment.local + (index - segment.slot) * segment.stride;
  }

  void add_block(const Claim& owner) {
    CutBlock block;
    block.owner = &owner;
    block.local_offset = owner.region->base;
    std::size_t cell = 0;
    block_dims_.clear();
    for (std::size_t d = 0; d < dims_; ++d) {
      const Piece& piece = pieces_[d][chosen_[d]];
      block.local_offset += piece.segment.local;
      block.slot_offset += piece.segment.slot * slot_strides_[d];
      cell += piece.cls * cell_strides_[d];
      if (piece.count > 1)
        block_dims_.push_back({piece.count, piece.local_step, piece.slot_step * slot_strides_[d], d, piece.slot_step});
      if (piece.segment.length > 1)
        block_dims_.push_back({piece.segment.length, piece.segment.stride, slot_strides_[d], d});
    }
    block.cell = static_cast<std::uint32_t>(first_cell_ + cell);
    std::stable_sort(block_dims_.begin(), block_dims_.end(),
                     [](const BlockDim& a, const BlockDim& b) { return magnitude(a.local) > magnitude(b.local); });

    // Strides of the readers, over the dims as sorted.
    const std::vector<std::uint32_t>& readers = cell_readers_[cell];
    const std::size_t unmerged = block_dims_.size();
    reader_strides_.resize(readers.size() * unmerged);
    reader_offsets_.resize(readers.size());
    for (std::size_t r = 0; r < readers.size(); ++r) {
      reader_offsets_[r] = readers_[readers[r]].region->base;
      for (std::size_t d = 0; d < dims_; ++d) {
        const Index index = pieces_[d][chosen_[d]].segment.slot;
        const Segment& segment = *reader_segment(readers[r], d, index);
        reader_offsets_[r] += address(segment, index);
        for (std::size_t k = 0; k < unmerged; ++k) {
          const BlockDim& dim = block_dims_[k];
          if (dim.dim != d)
            continue;
          reader_strides_[r * unmerged + k] =
            dim.step == 0
              ? segment.stride
              : address(*reader_segment(readers[r], d, index + dim.step), index + dim.step) - address(segment, index);
        }
      }
    }

    merge_dims(readers.size(), unmerged);

    const std::size_t dims = kept_.size();
    block.dims = static_cast<std::uint32_t>(std::max<std::size_t>(dims, 1));
    block.numbers = out_.numbers.size();
    if (dims == 0) { // one element
      out_.numbers.insert(out_.numbers.end(), {1, 1, 1});
    } else {
      for (std::size_t k : kept_)
        out_.numbers.push_back(block_dims_[k].extent);
      for (std::size_t k : kept_)
        out_.numbers.push_back(block_dims_[k].local);
      for (std::size_t k : kept_)
        out_.numbers.push_back(block_dims_[k].slot);
      check_folded(owner, std::span(out_.numbers).subspan(block.numbers + dims, dims));
    }
    block.readers_begin = out_.readers.size();
    for (std::size_t r = 0; r < readers.size(); ++r) {
      const std::size_t numbers = out_.numbers.size();
      out_.readers.push_back({&readers_[readers[r]], numbers, reader_offsets_[r]});
      if (dims == 0) {
        out_.numbers.push_back(1);
        continue;
      }
      for (std::size_t k : kept_)
        out_.numbers.push_back(reader_strides_[r * unmerged + k]);
      check_folded(readers_[readers[r]], std::span(out_.numbers).subspan(numbers, dims));
    }
    block.readers_end = out_.readers.size();
    out_.blocks.push_back(block);
  }

  /// Joins each dim to the one outside it where their strides nest on every side. Afterwards kept_ lists the dims that
  /// are left, with their extents in block_dims_; the strides are those of the innermost dim joined.
  void merge_dims(std::size_t readers, std::size_t unmerged) {
    kept_.clear();
    for (std::size_t k = 0; k < unmerged; ++k) {
      BlockDim& inner = block_dims_[k];
      bool nests = !kept_.empty();
      if (nests) {
        const std::size_t o = kept_.back();
        nests = block_dims_[o].local == inner.local * inner.extent && block_dims_[o].slot == inner.slot * inner.extent;
        for (std::size_t r = 0; nests && r < readers; ++r)
          nests = reader_strides_[r * unmerged + o] == reader_strides_[r * unmerged + k] * inner.extent;
      }
      if (nests) {
        inner.extent *= block_dims_[kept_.back()].extent;
        kept_.back() = k;
      } else {
        kept_.push_back(k);
      }
    }
  }

  [[nodiscard]] static std::uint64_t magnitude(Index value) noexcept {
    return value < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  }

  /// Strides that nest reach every element once: each is larger than the reach of all smaller ones.
  void check_folded(const Claim& claim, std::span<const Index> strides) {
    nested_.clear();
    for (std::size_t k = 0; k < strides.size(); ++k)
      nested_.push_back({magnitude(strides[k]), block_dims_[kept_[k]].extent});
    std::sort(nested_.begin(), nested_.end());
    std::uint64_t reach = 0;
    for (const auto& [stride, extent] : nested_) {
      if (stride <= reach) {
        if (std::find(out_.folded.begin(), out_.folded.end(), &claim) == out_.folded.end())
          out_.folded.push_back(&claim);
        return;
      }
      reach += stride * static_cast<std::uint64_t>(extent - 1);
    }
  }

  const SlotSpec& slot_;
  std::span<const Claim> owners_;
  std::span<const Claim> readers_;
  CutBlocks& out_;
  std::size_t dims_;
  std::vector<Index> slot_strides_;

  std::vector<Segment> segments_; ///< of all readers, merged: reader-major, then dim
  std::vector<std::size_t> segment_begin_;
  std::vector<Cuts> cuts_; ///< a dim
  std::uint64_t cells_ = 0;
  std::size_t first_cell_ = 0; ///< in out_
  std::vector<std::size_t> cell_strides_;
  std::vector<std::vector<std::uint32_t>> cell_readers_;

  // Of the owner region and the block under construction.
  std::vector<std::vector<Piece>> pieces_;
  std::vector<std::size_t> chosen_;
  std::vector<BlockDim> block_dims_;
  std::vector<std::size_t> kept_;
  std::vector<Index> reader_strides_;
  std::vector<Index> reader_offsets_;
  std::vector<std::pair<std::uint64_t, Index>> nested_;
};

} // namespace

Result<void> cut_slot(const SlotSpec& slot, std::span<const Claim> owners, std::span<const Claim> readers,
                      CutBlocks& out) {
  if (std::find(slot.shape.begin(), slot.shape.end(), 0) != slot.shape.end())
    return {};
  return Cutter(slot, owners, readers, out).run();
}

} // namespace deltawire::layout
