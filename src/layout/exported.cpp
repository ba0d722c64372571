#include "layout/exported.hpp"

#include <algorithm>
#include <limits>

namespace deltawire::layout {
namespace {

Index step_of(const ExportedBlock& block, std::size_t d) {
  return block.steps.empty() ? 1 : block.steps[d];
}

bool is_empty(const ExportedBlock& block) {
  return std::find(block.extents.begin(), block.extents.end(), 0) != block.extents.end();
}

/// first + (count - 1) * step, where that is below `end`. Requires a count of 1 and more.
std::optional<Index> last_of(Index first, Index count, Index step, Index end) {
  Index last = 0;
  if (first < 0 || __builtin_mul_overflow(count - 1, step, &last) || __builtin_add_overflow(first, last, &last) ||
      last >= end)
    return std::nullopt;
  return last;
}

/// "[0:16, 3:9:2]", the slot indices of a block.
std::string box_of(const ExportedBlock& block) {
  std::string text = "[";
  for (std::size_t d = 0; d < block.extents.size(); ++d) {
    const Index step = step_of(block, d);
    // Not checked yet where the message is about these numbers.
    Index end = 0;
    const bool wraps = __builtin_mul_overflow(std::max<Index>(block.extents[d] - 1, 0), step, &end) ||
                       __builtin_add_overflow(block.begin[d], end, &end) || end == std::numeric_limits<Index>::max();
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", block.begin[d], wraps ? "..." : std::to_string(end + 1));
    if (step != 1)
      text += fmt::format(":{}", step);
  }
  return text + "]";
}

/// Calls visit(first address, length) for every run of addresses with distance 1, in the block's order.
template <class Visit>
void each_run(const ExportedBlock& block, const Visit& visit) {
  const std::size_t dims = block.extents.size();
  const bool runs = dims > 0 && (block.local_strides.back() == 1 || block.extents.back() == 1);
  const Index length = runs ? block.extents.back() : 1;
  const std::size_t outer = runs ? dims - 1 : dims;
  std::vector<Index> at(outer, 0);
  for (Index address = block.local_offset;;) {
    visit(address, length);
    std::size_t d = outer;
    while (d > 0 && ++at[d - 1] == block.extents[d - 1]) {
      --d;
      address -= (block.extents[d] - 1) * block.local_strides[d];
      at[d] = 0;
    }
    if (d == 0)
      return;
    address += block.local_strides[d - 1];
  }
}

class Check {
public:
  Check(Index elements, bool padding, std::string_view who, Problems& problems)
    : elements_(elements), padding_(padding), who_(who), problems_(problems) {}

  bool run(std::span<const ExportedSlot> slots) {
    bool fits = true;
    for (const ExportedSlot& slot : slots) {
      if (auto count = element_count(slot.shape); !count) {
        problems_.add(Code::invalid_argument, "{}: slot '{}': {}", who_, slot.name, count.error().message);
        fits = false;
        continue;
      }
      for (std::size_t b = 0; b < slot.blocks.size(); ++b)
        fits = check_block(slot, b) && fits;
    }
    return fits && check_cover(slots); // addresses are in the buffer
  }

private:
  template <class... Args>
  bool wrong(const ExportedSlot& slot, std::size_t b, fmt::format_string<Args...> format, Args&&... args) {
    problems_.add(Code::invalid_argument, "{}: block {} of slot '{}' {}: {}", who_, b, slot.name, to_string(slot.shape),
                  fmt::format(format, std::forward<Args>(args)...));
    return false;
  }

  bool check_block(const ExportedSlot& slot, std::size_t b) {
    const ExportedBlock& block = slot.blocks[b];
    const std::size_t dims = slot.shape.size();
    if (block.begin.size() != dims || block.extents.size() != dims || block.local_strides.size() != dims ||
        (!block.steps.empty() && block.steps.size() != dims))
      return wrong(slot, b, "it has {} begins, {} extents, {} local strides and {} steps; give one a slot dim",
                   block.begin.size(), block.extents.size(), block.local_strides.size(), block.steps.size());
    for (std::size_t d = 0; d < dims; ++d)
      if (block.extents[d] < 0 || step_of(block, d) < 1 || (block.extents[d] > 1 && block.local_strides[d] < 1))
        return wrong(slot, b, "dim {} has extent {}, step {} and local stride {}; steps and strides are 1 and more", d,
                     block.extents[d], step_of(block, d), block.local_strides[d]);
    if (is_empty(block))
      return true;
    for (std::size_t d = 0; d < dims; ++d)
      if (!last_of(block.begin[d], block.extents[d], step_of(block, d), slot.shape[d]))
        return wrong(slot, b, "{} leaves the slot in dim {}", box_of(block), d);
    std::optional<Index> last = block.local_offset;
    for (std::size_t d = 0; d < dims && last; ++d)
      last = last_of(*last, block.extents[d], block.local_strides[d], std::numeric_limits<Index>::max());
    if (block.local_offset < 0 || !last || *last >= elements_)
      return wrong(slot, b, "{} lies at local elements {} to {}, the shard has {}", box_of(block), block.local_offset,
                   last ? std::to_string(*last) : "past all numbers", elements_);
    return true;
  }

  bool check_cover(std::span<const ExportedSlot> slots) {
    std::vector<bool> taken(static_cast<std::size_t>(elements_));
    Index covered = 0;
    bool fits = true;
    for (const ExportedSlot& slot : slots)
      for (std::size_t b = 0; b < slot.blocks.size(); ++b) {
        if (is_empty(slot.blocks[b]))
          continue;
        std::optional<Index> twice; // the first of this block
        each_run(slot.blocks[b], [&](Index address, Index length) {
          for (Index at = address; at < address + length; ++at) {
            auto bit = taken[static_cast<std::size_t>(at)];
            if (bit && !twice)
              twice = at;
            covered += bit ? 0 : 1;
            bit = true;
          }
        });
        if (twice)
          fits = wrong(slot, b, "{} takes local element {}, which a block before it or this one has taken",
                       box_of(slot.blocks[b]), *twice);
      }
    if (padding_ || covered == elements_)
      return fits;
    const auto hole = std::find(taken.begin(), taken.end(), false);
    const auto end = std::find(hole, taken.end(), true);
    problems_.add(Code::invalid_argument,
                  "{}: {} of {} local elements are in no block, the first are {}:{}; add them, or a "
                  "[[trainer.parameter]] with padding = true",
                  who_, elements_ - covered, elements_, hole - taken.begin(), end - taken.begin());
    return false;
  }

  Index elements_;
  bool padding_;
  std::string_view who_;
  Problems& problems_;
};

} // namespace

bool check_exported(std::span<const ExportedSlot> slots, Index local_elements, bool padding, std::string_view who,
                    Problems& problems) {
  return Check(local_elements, padding, who, problems).run(slots);
}

std::optional<Region> region_of(const ExportedBlock& block) {
  if (is_empty(block))
    return std::nullopt;
  Region region;
  region.base = block.local_offset;
  region.dims.resize(block.extents.size());
  for (std::size_t d = 0; d < block.extents.size(); ++d) {
    const Index step = step_of(block, d);
    if (step == 1 || block.extents[d] == 1) {
      region.dims[d].push_back({block.begin[d], block.extents[d], 0, block.local_strides[d]});
      continue;
    }
    for (Index x = 0; x < block.extents[d]; ++x)
      region.dims[d].push_back({block.begin[d] + x * step, 1, x * block.local_strides[d], block.local_strides[d]});
  }
  return region;
}

} // namespace deltawire::layout
