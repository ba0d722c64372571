// Compiling goes slot by slot: gather the regions of all processes that touch it, check that owners and readers cover
// it, cut it into cells and blocks (slot_cut.hpp). Only then are the blocks numbered, over all slots, by parameter.

#include "layout/plan.hpp"

#include "layout/coverage.hpp"
#include "layout/declaration_check.hpp"
#include "layout/pattern.hpp"
#include "layout/problems.hpp"
#include "layout/slot_cut.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace deltawire::layout {

namespace {

constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

/// Overlaps named of one slot.
constexpr std::size_t overlaps_named = 8;

using Names = std::unordered_map<std::string_view, std::uint32_t>;

/// What the ranks declare together.
struct Provided {
  std::vector<SlotSpec> slots;                        ///< the catalogue
  Names slot_of;                                      ///< name to index into slots; views of the declarations' names
  std::vector<std::vector<std::uint32_t>> slots_of;   ///< a rank: its slot index to the catalogue's
  std::vector<std::vector<std::uint32_t>> parameters; ///< a rank: its parameter index to the walk order
};

/// Where a slot appears first in the walk order.
struct Appearance {
  std::uint32_t parameter = none;
  std::uint32_t rank = 0;
  std::uint32_t at = 0; ///< region, or slot where no region names it

  friend auto operator<=>(const Appearance&, const Appearance&) = default;
};

/// The walk order: parameters by first appearance, ranks in order.
std::vector<std::vector<std::uint32_t>> order_parameters(std::span<const Declaration> ranks) {
  Names order;
  std::vector<std::vector<std::uint32_t>> result(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    result[r].reserve(ranks[r].parameters.size());
    for (const ParameterSpec& parameter : ranks[r].parameters)
      result[r].push_back(order.try_emplace(parameter.name, static_cast<std::uint32_t>(order.size())).first->second);
  }
  return result;
}

bool differ(const SlotSpec& a, const SlotSpec& b) {
  return a.dtype != b.dtype || a.shape != b.shape;
}

void report_differing(const SlotSpec& slot, std::string_view who, const SlotSpec& other, std::string_view other_who,
                      Problems& problems) {
  problems.add(Code::disagreement, "slot \"{}\" is {} {} on {} but {} {} on {}", slot.name, to_string(slot.dtype),
               to_string(slot.shape), who, to_string(other.dtype), to_string(other.shape), other_who);
}

/// Requires declarations that passed check_declaration().
Provided collect(std::span<const Declaration> ranks, Problems& problems) {
  Provided provided;
  provided.parameters = order_parameters(ranks);
  provided.slots_of.resize(ranks.size());
  std::vector<const SlotSpec*> found; // by first appearance among the slots
  std::vector<std::uint32_t> found_on;
  std::vector<Appearance> appearances;
  for (std::uint32_t r = 0; r < ranks.size(); ++r) {
    const Declaration& rank = ranks[r];
    std::vector<std::uint32_t>& slots_of = provided.slots_of[r];
    slots_of.reserve(rank.slots.size());
    for (std::uint32_t s = 0; s < rank.slots.size(); ++s) {
      const SlotSpec& slot = rank.slots[s];
      const auto [place, inserted] = provided.slot_of.try_emplace(slot.name, static_cast<std::uint32_t>(found.size()));
      if (inserted) {
        found.push_back(&slot);
        found_on.push_back(r);
        appearances.push_back({none, r, s});
      } else if (const SlotSpec& other = *found[place->second]; differ(other, slot)) {
        report_differing(other, fmt::format("rank {}", found_on[place->second]), slot, fmt::format("rank {}", r),
                         problems);
      }
      slots_of.push_back(place->second);
    }
    for (std::uint32_t i = 0; i < rank.regions.size(); ++i) {
      Appearance& first = appearances[slots_of[rank.regions[i].slot]];
      first = std::min(first, {provided.parameters[r][rank.regions[i].parameter], r, i});
    }
  }

  std::vector<std::uint32_t> order(found.size());
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return appearances[a] < appearances[b]; });
  std::vector<std::uint32_t> catalogue_index(found.size());
  provided.slots.reserve(found.size());
  for (std::uint32_t index : order) {
    catalogue_index[index] = static_cast<std::uint32_t>(provided.slots.size());
    provided.slots.push_back(*found[index]);
  }
  for (auto& [name, index] : provided.slot_of)
    index = catalogue_index[index];
  for (auto& slots_of : provided.slots_of)
    for (std::uint32_t& index : slots_of)
      index = catalogue_index[index];
  return provided;
}

/// Claims of all processes of one side, by slot; those of a slot ascend by process, then region.
struct Claims {
  std::vector<Claim> all;
  std::vector<std::size_t> begin; ///< a slot, and the end

  [[nodiscard]] std::span<const Claim> of(std::size_t slot) const {
    return std::span(all).subspan(begin[slot], begin[slot + 1] - begin[slot]);
  }
};

/// slots_of: a process' slot index to the catalogue's; `none` where the catalogue lacks it.
Claims sort_claims(std::span<const Declaration> processes, const std::vector<std::vector<std::uint32_t>>& slots_of,
                   std::size_t slots) {
  Claims claims;
  claims.begin.assign(slots + 1, 0);
  const auto each = [&](const auto& visit) {
    for (std::uint32_t p = 0; p < processes.size(); ++p)
      for (const Region& region : processes[p].regions)
        if (const std::uint32_t slot = slots_of[p][region.slot]; slot != none && !is_empty(region))
          visit(slot, Claim{p, &region});
  };
  each([&](std::uint32_t slot, const Claim&) { ++claims.begin[slot + 1]; });
  std::partial_sum(claims.begin.begin(), claims.begin.end(), claims.begin.begin());
  claims.all.resize(claims.begin.back());
  std::vector<std::size_t> next(claims.begin.begin(), claims.begin.end() - 1);
  each([&](std::uint32_t slot, const Claim& claim) { claims.all[next[slot]++] = claim; });
  return claims;
}

class Compiler {
public:
  Compiler(std::span<const Declaration> ranks, std::span<const Declaration> workers,
           std::span<const std::string> unused, std::uint64_t window_bytes)
    : ranks_(ranks), workers_(workers), unused_(unused), window_bytes_(window_bytes) {}

  Result<Plan> run() {
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      check_declaration(ranks_[r], Of::rank, fmt::format("rank {}", r), problems_);
    for (std::size_t w = 0; w < workers_.size(); ++w)
      check_declaration(workers_[w], Of::worker, fmt::format("worker {}", w), problems_);
    if (problems_.any()) // the steps below believe what was checked
      return tl::make_unexpected(problems_.failure());

    provided_ = collect(ranks_, problems_);
    match_worker_slots();
    check_worker_buffers();
    parse_unused();
    if (problems_.any()) // shapes that differ would only add confusion to what follows
      return tl::make_unexpected(problems_.failure());

    owners_ = sort_claims(ranks_, provided_.slots_of, provided_.slots.size());
    readers_ = sort_claims(workers_, worker_slots_, provided_.slots.size());
    compile_slots();
    if (problems_.any())
      return tl::make_unexpected(problems_.failure());
    if (cut_.blocks.size() >= none || plan_.cells.size() >= none)
      return fail(Code::limit_exceeded, "{} blocks and {} cells: at most 2^32 - 1 of each can be numbered",
                  cut_.blocks.size(), plan_.cells.size());
    plan_.slots = std::move(provided_.slots);
    number_blocks();
    return std::move(plan_);
  }

private:
  void match_worker_slots() {
    worker_slots_.resize(workers_.size());
    for (std::size_t w = 0; w < workers_.size(); ++w)
      for (const SlotSpec& slot : workers_[w].slots) {
        const auto found = provided_.slot_of.find(slot.name);
        worker_slots_[w].push_back(found == provided_.slot_of.end() ? none : found->second);
        if (found == provided_.slot_of.end())
          problems_.add(Code::disagreement,
                        "slot \"{}\": worker {} reads it, no rank provides it; check the names of the maps", slot.name,
                        w);
        else if (const SlotSpec& other = provided_.slots[found->second]; differ(other, slot))
          report_differing(other, "the trainer", slot, fmt::format("worker {}", w), problems_);
      }
  }

  /// A worker's element can take the value of one slot element only. Counting finds maps that lie over each other
  /// where they fill the buffer more than once.
  void check_worker_buffers() {
    for (std::size_t w = 0; w < workers_.size(); ++w) {
      const Declaration& worker = workers_[w];
      std::vector<Index> room;
      room.reserve(worker.parameters.size());
      for (const ParameterSpec& parameter : worker.parameters)
        room.push_back(element_count(parameter.local_shape).value_or(0));
      for (const Region& region : worker.regions) {
        if (is_empty(region))
          continue;
        Index elements = 1;
        for (const auto& segments : region.dims)
          elements *= std::accumulate(segments.begin(), segments.end(), Index{0},
                                      [](Index sum, const Segment& segment) { return sum + segment.length; });
        Index& left = room[region.parameter];
        if (left >= 0 && elements > left) {
          const ParameterSpec& parameter = worker.parameters[region.parameter];
          problems_.add(Code::disagreement,
                        "worker {}: parameter \"{}\" {}: more slot elements are mapped to it than it has; the maps lie "
                        "over each other",
                        w, parameter.name, to_string(parameter.local_shape));
          left = -1;
        } else if (left >= 0) {
          left -= elements;
        }
      }
    }
  }

  void parse_unused() {
    for (const std::string& text : unused_) {
      unused_names_.insert(text);
      auto pattern = Pattern::parse(text);
      if (pattern)
        unused_patterns_.push_back(std::move(*pattern));
      else
        problems_.add(Code::disagreement, "unused \"{}\": {}", text, pattern.error().message);
    }
  }

  [[nodiscard]] bool is_unused(std::string_view slot) const {
    return std::any_of(unused_patterns_.begin(), unused_patterns_.end(),
                       [&](const Pattern& pattern) { return pattern.match(slot).has_value(); });
  }

  /// Whoever lists a slot by its name believes that no worker reads it. A pattern may match what is read, too.
  void check_unused(const SlotSpec& slot, const Claim& reader) {
    if (!unused_names_.contains(slot.name))
      return;
    problems_.add(
      Code::disagreement,
      "worker.unused lists slot \"{}\", and workers read all of it (worker {} in its parameter \"{}\"): take "
      "it out of the list, or the map that reads it",
      slot.name, reader.process, workers_[reader.process].parameters[reader.region->parameter].name);
  }

  void compile_slots() {
    std::vector<const Region*> regions;
    const auto faults_of = [&](const SlotSpec& slot, std::span<const Claim> claims, Cover cover) {
      regions.clear();
      for (const Claim& claim : claims)
        regions.push_back(claim.region);
      auto faults = find_faults(slot.shape, regions, cover, overlaps_named);
      if (faults)
        return *std::move(faults);
      problems_.add(faults.error().code, "slot \"{}\" {}: {}", slot.name, to_string(slot.shape),
                    faults.error().message);
      return std::vector<Fault>{};
    };
    for (std::uint32_t s = 0; s < provided_.slots.size(); ++s) {
      const SlotSpec& slot = provided_.slots[s];
      for (const Fault& fault : faults_of(slot, owners_.of(s), Cover::exactly_once))
        report_owners(slot, owners_.of(s), fault);
      const auto unread = faults_of(slot, readers_.of(s), Cover::at_least_once);
      if (unread.empty() && !readers_.of(s).empty())
        check_unused(slot, readers_.of(s).front());
      else if (!is_unused(slot.name))
        for (const Fault& fault : unread)
          report_unread(slot, fault);
      if (problems_.any())
        continue;
      auto made = cut_slot(slot, owners_.of(s), readers_.of(s), cut_);
      if (!made)
        problems_.add(std::move(made).error());
      report_folded(slot);
      while (plan_.cells.size() < cut_.cells.size())
        plan_.cells.push_back({s, cut_.cells[plan_.cells.size()]});
    }
  }

  void report_owners(const SlotSpec& slot, std::span<const Claim> claims, const Fault& fault) {
    if (fault.regions.empty()) {
      problems_.add(Code::disagreement,
                    "slot \"{}\" {}: no rank provides {} ({} elements in all); check the trainer's maps and placements",
                    slot.name, to_string(slot.shape), to_string(fault.first), fault.elements);
      return;
    }
    std::string providers;
    for (std::size_t i = 0; i < std::min(fault.regions.size(), overlaps_named); ++i) {
      const Claim& claim = claims[fault.regions[i]];
      providers += fmt::format("{}rank {} (parameter \"{}\")", i == 0 ? "" : ", ", claim.process,
                               ranks_[claim.process].parameters[claim.region->parameter].name);
    }
    if (fault.regions.size() > overlaps_named)
      providers += fmt::format(" and {} more", fault.regions.size() - overlaps_named);
    problems_.add(Code::disagreement, "slot \"{}\" {}: {} is provided {} times ({} elements in all): by {}", slot.name,
                  to_string(slot.shape), to_string(fault.first), fault.regions.size(), fault.elements, providers);
  }

  void report_unread(const SlotSpec& slot, const Fault& fault) {
    problems_.add(Code::disagreement,
                  "slot \"{}\" {}: no worker reads {} ({} elements in all); map it, or list the slot as unused",
                  slot.name, to_string(slot.shape), to_string(fault.first), fault.elements);
  }

  void report_folded(const SlotSpec& slot) {
    for (const Claim* claim : cut_.folded) {
      const bool owner =
        !owners_.all.empty() && claim >= owners_.all.data() && claim < owners_.all.data() + owners_.all.size();
      const Declaration& process = owner ? ranks_[claim->process] : workers_[claim->process];
      const ParameterSpec& parameter = process.parameters[claim->region->parameter];
      problems_.add(Code::disagreement,
                    "{} {}: parameter \"{}\" {} with strides {}: elements of slot \"{}\" may share an address; "
                    "expanded or interleaved memory is not supported",
                    owner ? "rank" : "worker", claim->process, parameter.name, to_string(parameter.local_shape),
                    to_string(parameter.strides), slot.name);
    }
    cut_.folded.clear();
  }

  [[nodiscard]] std::uint32_t walk_order(const CutBlock& block) const {
    return provided_.parameters[block.owner->process][block.owner->region->parameter];
  }

  /// Ids, windows, and the views of the processes.
  void number_blocks() {
    std::vector<std::uint32_t> order(cut_.blocks.size());
    std::iota(order.begin(), order.end(), std::uint32_t{0});
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      const CutBlock& x = cut_.blocks[a];
      const CutBlock& y = cut_.blocks[b];
      if (const auto p = walk_order(x), q = walk_order(y); p != q)
        return p < q;
      if (x.owner->process != y.owner->process)
        return x.owner->process < y.owner->process;
      if (x.local_offset != y.local_offset)
        return x.local_offset < y.local_offset;
      return a < b; // one element for several slots: by slot
    });
    reserve_views();
    plan_.blocks = static_cast<std::uint32_t>(order.size());

    std::uint64_t window_filled = 0;
    for (std::size_t begin = 0; begin < order.size();) { // a parameter at a time
      std::size_t end = begin;
      std::uint64_t bytes = 0;
      for (; end < order.size() && walk_order(cut_.blocks[order[end]]) == walk_order(cut_.blocks[order[begin]]); ++end)
        bytes = add_bytes(bytes, cut_.blocks[order[end]]);
      if (plan_.windows == 0 || window_filled > window_bytes_ || bytes > window_bytes_ - window_filled) {
        ++plan_.windows;
        window_filled = 0;
      }
      window_filled = saturating_sum(window_filled, bytes);
      for (; begin < end; ++begin)
        add_views(cut_.blocks[order[begin]], static_cast<std::uint32_t>(begin));
    }
  }

  static std::uint64_t saturating_sum(std::uint64_t a, std::uint64_t b) noexcept {
    constexpr auto most = std::numeric_limits<std::uint64_t>::max();
    return a > most - b ? most : a + b;
  }

  [[nodiscard]] std::uint64_t add_bytes(std::uint64_t bytes, const CutBlock& block) const {
    const auto& source = ranks_[block.owner->process].parameters[block.owner->region->parameter];
    std::uint64_t elements = 1; // below 2^62, so that twice is no overflow, eight times may be
    for (std::uint32_t d = 0; d < block.dims; ++d)
      elements *= static_cast<std::uint64_t>(cut_.numbers[block.numbers + d]);
    for (std::size_t i = 0; i < size_of(source.dtype); ++i)
      bytes = saturating_sum(bytes, elements);
    return bytes;
  }

  void reserve_views() {
    plan_.ranks.resize(ranks_.size());
    plan_.workers.resize(workers_.size());
    std::vector<std::size_t> counts(ranks_.size(), 0);
    for (const CutBlock& block : cut_.blocks)
      ++counts[block.owner->process];
    for (std::size_t r = 0; r < counts.size(); ++r)
      plan_.ranks[r].reserve(counts[r]);
    counts.assign(workers_.size(), 0);
    for (const CutReader& reader : cut_.readers)
      ++counts[reader.reader->process];
    for (std::size_t w = 0; w < counts.size(); ++w)
      plan_.workers[w].reserve(counts[w]);
  }

  void add_views(const CutBlock& cut, std::uint32_t id) {
    const auto numbers = [&](std::size_t begin) {
      const auto first = cut_.numbers.begin() + static_cast<std::ptrdiff_t>(begin);
      return std::vector<Index>(first, first + cut.dims);
    };
    Block block;
    block.id = id;
    block.parameter = cut.owner->region->parameter;
    block.slot = plan_.cells[cut.cell].slot;
    block.cell = cut.cell;
    block.window = plan_.windows - 1;
    block.dtype = plan_.slots[block.slot].dtype;
    block.extents = numbers(cut.numbers);
    block.local_offset = cut.local_offset;
    block.local_strides = numbers(cut.numbers + cut.dims);
    block.slot_offset = cut.slot_offset;
    block.slot_strides = numbers(cut.numbers + std::size_t{2} * cut.dims);

    // Claims ascend by process, then region; within a process the order is by parameter.
    const auto readers = std::span(cut_.readers).subspan(cut.readers_begin, cut.readers_end - cut.readers_begin);
    std::stable_sort(readers.begin(), readers.end(), [](const CutReader& a, const CutReader& b) {
      return a.reader->process != b.reader->process ? a.reader->process < b.reader->process
                                                    : a.reader->region->parameter < b.reader->region->parameter;
    });
    for (const CutReader& reader : readers) {
      Block view = block;
      view.parameter = reader.reader->region->parameter;
      view.local_offset = reader.local_offset;
      view.local_strides = numbers(reader.numbers);
      plan_.workers[reader.reader->process].push_back(std::move(view));
    }
    plan_.ranks[cut.owner->process].push_back(std::move(block));
  }

  std::span<const Declaration> ranks_;
  std::span<const Declaration> workers_;
  std::span<const std::string> unused_;
  std::uint64_t window_bytes_;

  Problems problems_;
  Provided provided_;
  std::vector<std::vector<std::uint32_t>> worker_slots_; ///< a worker: its slot index to the catalogue's
  std::vector<Pattern> unused_patterns_;
  std::unordered_set<std::string_view> unused_names_; ///< the same as text
  Claims owners_;
  Claims readers_;
  CutBlocks cut_;
  Plan plan_;
};

} // namespace

Index element_count(const Block& block) noexcept {
  Index count = 1;
  for (Index extent : block.extents)
    count *= extent;
  return count;
}

Result<std::vector<SlotSpec>> catalogue(std::span<const Declaration> ranks) {
  Problems problems;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    check_declaration(ranks[r], Of::rank, fmt::format("rank {}", r), problems);
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  Provided provided = collect(ranks, problems);
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  return std::move(provided.slots);
}

Result<Plan> compile_plan(std::span<const Declaration> ranks, std::span<const Declaration> workers,
                          std::span<const std::string> unused, std::uint64_t window_bytes) {
  return Compiler(ranks, workers, unused, window_bytes).run();
}

} // namespace deltawire::layout
