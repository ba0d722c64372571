// Records in slabs. A record is cut wherever a slab ends, so that no slab has more than one element's room left over.
#include "delta/stage.hpp"

#include "delta/tiles.hpp"
#include "kernels/digest.hpp"
#include "kernels/values.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <limits>
#include <new>
#include <utility>

namespace deltawire::delta {
namespace {

constexpr std::size_t first_slab = std::size_t{16} << 10;
constexpr std::size_t largest_slab = std::size_t{1} << 20;
/// A record of one element, whatever its form: a slab has no more than that left over.
constexpr std::size_t least_record = 40;
/// What is sorted at a time: enough for neighbours in memory to meet, and it stays in the second-level cache.
constexpr std::size_t largest_listing = std::size_t{1} << 16;
/// Changes that a run has on average, at least, for a record of its own to be no larger than a list.
constexpr std::uint64_t changes_for_a_record = 4;
/// Runs of so many bytes are as good as sorted: the next page is anywhere.
constexpr std::uint64_t page = 4096;

constexpr std::size_t listed_bytes = 2 * sizeof(std::uint32_t);

constexpr std::size_t whole_words(std::size_t bytes) noexcept {
  return (bytes + 7) / 8 * 8;
}

/// What a map makes of a block's order.
struct Shape {
  std::uint64_t run = 1;   ///< elements
  bool in_order = true;    ///< addresses ascend with the elements
  bool near = true;        ///< addresses, and slot positions, differ by less than 2^32
  layout::Index local = 0; ///< the lowest address, elements
  layout::Index slot = 0;  ///< the lowest slot position
  bool scattered = false;  ///< neighbours in memory are far from each other in the block
};

Shape shape_of(const layout::Block& block, const Walk& walk) {
  Shape shape;
  shape.run = walk.run_elements();
  shape.local = block.local_offset;
  shape.slot = block.slot_offset;
  layout::Index inner = 0; // the reach of the dims inside of this one
  std::uint64_t local_reach = 0;
  std::uint64_t slot_reach = 0;
  for (std::size_t d = block.extents.size(); d-- > 0;) {
    const layout::Index steps = block.extents[d] - 1;
    if (steps <= 0)
      continue;
    const layout::Index local = block.local_strides[d];
    const layout::Index slot = block.slot_strides[d];
    shape.in_order = shape.in_order && local > inner;
    inner += steps * local;
    shape.local += std::min<layout::Index>(0, steps * local);
    shape.slot += std::min<layout::Index>(0, steps * slot);
    local_reach += static_cast<std::uint64_t>(std::abs(steps * local));
    slot_reach += static_cast<std::uint64_t>(std::abs(steps * slot));
  }
  constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
  shape.near = local_reach <= most && slot_reach <= most;
  shape.scattered = !shape.in_order && (walk.local_stride() != 1 || shape.run * size_of(block.dtype) < page);
  return shape;
}

} // namespace

struct Stage::Binding {
  const layout::Block* block;
  std::byte* local;
  Walk walk;
  Walk ahead; ///< the same, for what is looked at next
  Shape shape;

  explicit Binding(const BoundBlock& bound)
    : block(bound.block), local(bound.local), walk(*bound.block), ahead(walk), shape(shape_of(*bound.block, walk)) {}

  [[nodiscard]] std::size_t size() const noexcept { return size_of(block->dtype); }
  [[nodiscard]] std::byte* at(layout::Index element) const noexcept {
    return local + element * static_cast<layout::Index>(size());
  }
  /// Does a tile part's list take no more than its runs' records, or does it have to be sorted?
  [[nodiscard]] bool lists(std::size_t changes, std::size_t span) const noexcept {
    if (!shape.near)
      return false;
    return shape.scattered || (shape.run < span && changes * shape.run < changes_for_a_record * span);
  }
};

enum class Stage::Form : std::uint32_t { tile, listed, range };

/// Followed by its positions (tile: 16 bits each) or its addresses and slot positions (listed: 32 bits each, addresses
/// first), then its values.
struct Stage::Record {
  std::uint32_t block = 0;
  std::uint32_t form : 2;
  std::uint32_t count : 30; ///< elements
  layout::Index local = 0;  ///< tile: address of the first one; listed: of address 0; range: its first block element
  std::uint64_t slot = 0;   ///< likewise
};

struct Stage::Slab {
  std::unique_ptr<std::byte[]> bytes;
  std::size_t size = 0;
  std::size_t used = 0;
};

/// Elements on their way to listed records, all of one block.
struct Stage::Listing {
  std::size_t capacity = 0;
  std::size_t count = 0;
  std::vector<std::uint32_t> addresses;
  std::vector<std::uint32_t> slots;
  std::vector<std::byte> values;
  std::vector<std::uint64_t> order; ///< address, then index
  std::vector<std::uint64_t> other;

  static constexpr std::size_t bytes_of_element = listed_bytes + 8 + 2 * sizeof(std::uint64_t);

  void grow(std::size_t elements) {
    capacity = elements;
    addresses.resize(elements);
    slots.resize(elements);
    values.resize(elements * 8);
    order.resize(elements);
    other.resize(elements);
  }

  /// `order` by address: as many counting passes as the addresses' range needs.
  void sort() {
    const auto listed = std::span(addresses).first(count);
    const auto [low, high] = std::minmax_element(listed.begin(), listed.end());
    const std::uint32_t lowest = *low;
    const auto bits = static_cast<unsigned>(std::bit_width(*high - lowest));
    for (std::size_t i = 0; i < count; ++i)
      order[i] = std::uint64_t{listed[i] - lowest} << 32 | i;
    if (std::is_sorted(listed.begin(), listed.end()))
      return;
    constexpr unsigned most_digit_bits = 11;
    const unsigned passes = (bits + most_digit_bits - 1) / most_digit_bits;
    const unsigned digit_bits = (bits + passes - 1) / passes;
    for (unsigned pass = 0; pass < passes; ++pass) {
      const unsigned shift = 32 + pass * digit_bits;
      const std::uint64_t mask = (std::uint64_t{1} << digit_bits) - 1;
      std::array<std::uint32_t, std::size_t{1} << most_digit_bits> next{};
      for (std::size_t i = 0; i < count; ++i)
        ++next[order[i] >> shift & mask];
      std::uint32_t sum = 0;
      for (std::uint32_t& begin : next)
        sum += std::exchange(begin, sum);
      for (std::size_t i = 0; i < count; ++i)
        other[next[order[i] >> shift & mask]++] = order[i];
      order.swap(other);
    }
  }
};

Stage::Stage(std::span<const BoundBlock> bound, std::uint64_t cap, bool digests)
  : bindings_(bound.begin(), bound.end()), listing_(std::make_unique<Listing>()), cap_(cap), digests_(digests) {}

Stage::~Stage() = default;
Stage::Stage(Stage&& other) noexcept = default;
Stage& Stage::operator=(Stage&& other) noexcept = default;

namespace {

/// Bytes of a record's elements.
std::size_t payload(std::size_t element_bytes, std::size_t count) noexcept {
  return whole_words(element_bytes * count);
}

} // namespace

/// What cannot be held, with what is.
Failure Stage::full(std::uint64_t wanted) const {
  std::uint64_t needed = wanted + listing_->capacity * Listing::bytes_of_element;
  for (std::size_t s = 0; s < slabs_.size() && s <= current_; ++s)
    needed += slabs_[s].used;
  return {
    Code::limit_exceeded,
    fmt::format("{} bytes do not hold the changes once they are decoded: at least {} are needed so far", cap_, needed)};
}

/// Begins a record of as many of the `wanted` elements as there is room for in a slab: at least one.
Result<Stage::Record*> Stage::open(Form form, std::uint32_t block, std::size_t element_bytes, std::size_t wanted) {
  const std::size_t least = sizeof(Record) + payload(element_bytes, 1);
  while (current_ < slabs_.size() && slabs_[current_].size - slabs_[current_].used < least)
    ++current_;
  if (current_ == slabs_.size()) {
    const std::uint64_t left = cap_ - std::min(held_, cap_);
    const std::size_t regular = slabs_.empty() ? first_slab : std::min(2 * slabs_.back().size, largest_slab);
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(std::max(regular, first_slab), left)) / 8 * 8;
    if (size < least)
      return tl::make_unexpected(full(sizeof(Record) + payload(element_bytes, wanted)));
    slabs_.push_back({std::unique_ptr<std::byte[]>(new std::byte[size]), size, 0});
    held_ += size;
  }
  Slab& slab = slabs_[current_];
  const std::size_t room = slab.size - slab.used - sizeof(Record);
  const std::size_t count = std::min(wanted, room / 8 * 8 / element_bytes);
  auto* record = new (slab.bytes.get() + slab.used) Record;
  record->block = block;
  record->form = static_cast<std::uint32_t>(form) & 3;
  record->count = static_cast<std::uint32_t>(count) & 0x3FFFFFFF;
  slab.used += sizeof(Record) + payload(element_bytes, count);
  return record;
}

Result<Digest> Stage::add(std::uint32_t block, const PieceView& piece) {
  return piece.kind == PieceKind::values ? add_range(block, piece) : add_changes(block, piece);
}

/// A tile part, decoded: all that its record says.
struct Stage::Decoded {
  TilePositions positions;
  UlpValues ulp;
};

/// What memory holds of a tile part, and what it is to hold.
struct Stage::Held {
  TileValues before;
  TileValues after;
};

Result<Digest> Stage::add_range(std::uint32_t block, const PieceView& piece) {
  const std::size_t size = bindings_[block].size();
  Held held;
  Digest change = 0;
  Result<void> room;
  for_each_tile_part(piece.first, piece.first + piece.elements, [&](std::uint64_t first, std::size_t span) {
    if (room)
      room = add_whole(block, first, span, piece.values.data() + (first - piece.first) * size, nullptr, held, change);
  });
  if (!room)
    return pass_on(std::move(room));
  return change;
}

/// Values of consecutive block elements.
Result<void> Stage::add_values(std::uint32_t block, std::uint64_t first, std::uint64_t count, const std::byte* values) {
  const std::size_t size = bindings_[block].size();
  while (count > 0) {
    const auto opened =
      open(Form::range, block, size, static_cast<std::size_t>(std::min<std::uint64_t>(count, largest_slab)));
    if (!opened)
      return tl::make_unexpected(opened.error());
    Record& record = **opened;
    record.local = static_cast<layout::Index>(first);
    std::memcpy(&record + 1, values, record.count * size);
    first += record.count;
    values += record.count * size;
    count -= record.count;
  }
  return {};
}

Result<Digest> Stage::add_changes(std::uint32_t block, const PieceView& piece) {
  Binding& binding = bindings_[block];
  const std::size_t size = binding.size();
  // One tile part behind: what memory holds of it comes into the cache while the next one's record is decoded.
  struct Part {
    std::uint64_t first = 0;
    std::size_t span = 0; ///< 0: there is none
    std::size_t changes = 0;
    const std::byte* raw = nullptr; ///< values as they are; null in the ulp lane
  };
  std::array<Decoded, 2> decoded;
  std::size_t turn = 0;
  Part part;
  Held held;
  Digest change = 0;
  Result<void> room;
  std::uint64_t bad = piece.first + piece.elements;
  const auto add = [&](const Decoded& places) {
    const bool listed = binding.lists(part.changes, part.span);
    if (listed)
      room = reserve_listing(piece.changed);
    if (room && part.changes == part.span && !listed)
      room = add_whole(block, part.first, part.span, part.raw, &places.ulp, held, change);
    else if (room)
      room = add_some(block, part.first, part.changes, listed, part.raw, places, held, change);
    return room.has_value();
  };
  const auto stage = [&](std::uint64_t first, std::size_t span, const TileHead& head, std::span<const std::byte> record,
                         std::uint64_t index) {
    bad = first;
    Decoded& next = decoded[turn];
    if (!read_record(piece.kind, head, record, span, size, next.positions, next.ulp))
      return false;
    if (head.changes < span) // what goes by runs the processor foresees
      for_each_run_of(binding.ahead, first, std::span<const std::uint16_t>(next.positions).first(head.changes),
                      [&](const Run& run, std::ptrdiff_t origin, std::span<const std::uint16_t> group, std::size_t) {
                        kernels::prefetch(binding.at(run.local), {binding.walk.local_stride(), origin}, group, size);
                      });
    turn ^= 1;
    if (part.span != 0 && !add(decoded[turn]))
      return false;
    part = {first, span, head.changes, nullptr};
    if (!head.ulp)
      part.raw = piece.kind == PieceKind::ulp_delta ? record.last(head.changes * size).data()
                                                    : piece.values.data() + index * size;
    return true;
  };
  const bool valid = for_each_record(piece, stage);
  if (!valid && room)
    return tl::make_unexpected(bad_record(piece, bad));
  if (room && part.span != 0)
    add(decoded[turn ^ 1]);
  if (room)
    room = add_listing(block);
  if (!room)
    return pass_on(std::move(room));
  return change;
}

/// A tile part of which every element changed, by runs. `raw` are its values; else they are in the ulp lane.
Result<void> Stage::add_whole(std::uint32_t block, std::uint64_t first, std::size_t span, const std::byte* raw,
                              const UlpValues* ulp, Held& held, Digest& change) {
  Binding& binding = bindings_[block];
  Walk& walk = binding.walk;
  const std::size_t size = binding.size();
  const bool dense = walk.local_stride() == 1; // then memory itself is what was there before
  const auto pack = [&](std::byte* out) {
    for_each_stretch(binding.local, walk, first, span, size,
                     [&](const std::byte* memory, std::uint64_t, std::uint64_t at, std::size_t count) {
                       kernels::pack(memory, walk.local_stride(), count, size, out + at * size);
                     });
  };
  if (!dense && (digests_ || raw == nullptr))
    pack(held.before.data());
  if (raw == nullptr) {
    if (dense)
      pack(held.after.data());
    else
      std::memcpy(held.after.data(), held.before.data(), span * size);
    add_ulp(*ulp, span, binding.block->dtype, held.after.data());
  }
  const std::byte* values = raw != nullptr ? raw : held.after.data();
  if (digests_)
    for_each_stretch(binding.local, walk, first, span, size,
                     [&](const std::byte* memory, std::uint64_t slot, std::uint64_t at, std::size_t count) {
                       change += kernels::digest_change_of_run(slot, walk.slot_stride(), count, size,
                                                               dense ? memory : held.before.data() + at * size,
                                                               values + at * size);
                     });
  return add_values(block, first, span, values);
}

/// A tile part of which some elements changed, at decoded positions.
Result<void> Stage::add_some(std::uint32_t block, std::uint64_t first, std::size_t changes, bool listed,
                             const std::byte* raw, const Decoded& decoded, Held& held, Digest& change) {
  Binding& binding = bindings_[block];
  Walk& walk = binding.walk;
  const std::size_t size = binding.size();
  const auto positions = std::span<const std::uint16_t>(decoded.positions).first(changes);
  std::byte* before = held.before.data();
  if (digests_ || raw == nullptr)
    for_each_run_of(
      walk, first, positions,
      [&](const Run& run, std::ptrdiff_t origin, std::span<const std::uint16_t> group, std::size_t at) {
        kernels::gather(binding.at(run.local), {walk.local_stride(), origin}, group, size, before + at * size);
      });
  if (raw == nullptr) {
    std::memcpy(held.after.data(), before, changes * size);
    add_ulp(decoded.ulp, changes, binding.block->dtype, held.after.data());
  }
  const std::byte* values = raw != nullptr ? raw : held.after.data();
  Result<void> room;
  for_each_run_of(walk, first, positions,
                  [&](const Run& run, std::ptrdiff_t origin, std::span<const std::uint16_t> group, std::size_t at) {
                    if (!room)
                      return;
                    if (digests_)
                      change +=
                        kernels::digest_change_at(static_cast<std::uint64_t>(run.slot), {walk.slot_stride(), origin},
                                                  group, size, before + at * size, values + at * size);
                    room = listed ? list(block, run, origin, group, values + at * size)
                                  : add_tile(block, run, origin, group, values + at * size);
                  });
  return room;
}

/// Positions of one run, as they are.
Result<void> Stage::add_tile(std::uint32_t block, const Run& run, std::ptrdiff_t origin,
                             std::span<const std::uint16_t> positions, const std::byte* values) {
  const Binding& binding = bindings_[block];
  const std::size_t size = binding.size();
  while (!positions.empty()) {
    const auto opened = open(Form::tile, block, sizeof(std::uint16_t) + size, positions.size());
    if (!opened)
      return tl::make_unexpected(opened.error());
    Record& record = **opened;
    const layout::Index inside = positions.front() - origin;
    record.local = run.local + inside * binding.walk.local_stride();
    record.slot = static_cast<std::uint64_t>(run.slot + inside * binding.walk.slot_stride());
    auto* out = reinterpret_cast<std::byte*>(&record + 1);
    std::memcpy(out, positions.data(), record.count * sizeof(std::uint16_t));
    std::memcpy(out + record.count * sizeof(std::uint16_t), values, record.count * size);
    positions = positions.subspan(record.count);
    values += record.count * size;
  }
  return {};
}

/// Room for a piece's changes to be listed and sorted, or for a good part of them.
Result<void> Stage::reserve_listing(std::uint64_t changes) {
  const std::uint64_t wanted = std::bit_ceil(std::min<std::uint64_t>(changes, largest_listing));
  if (wanted <= listing_->capacity)
    return {};
  const std::uint64_t more = (wanted - listing_->capacity) * Listing::bytes_of_element;
  if (more > cap_ - std::min(held_, cap_))
    return tl::make_unexpected(full(more));
  listing_->grow(static_cast<std::size_t>(wanted));
  held_ += more;
  return {};
}

Result<void> Stage::list(std::uint32_t block, const Run& run, std::ptrdiff_t origin,
                         std::span<const std::uint16_t> positions, const std::byte* values) {
  const Binding& binding = bindings_[block];
  const std::size_t size = binding.size();
  const layout::Index local_stride = binding.walk.local_stride();
  const layout::Index slot_stride = binding.walk.slot_stride();
  const layout::Index local = run.local - binding.shape.local;
  const layout::Index slot = run.slot - binding.shape.slot;
  Listing& listing = *listing_;
  while (!positions.empty()) {
    if (listing.count == listing.capacity)
      if (auto added = add_listing(block); !added)
        return added;
    const std::size_t count = std::min(positions.size(), listing.capacity - listing.count);
    for (std::size_t i = 0; i < count; ++i) {
      const layout::Index inside = positions[i] - origin;
      listing.addresses[listing.count + i] = static_cast<std::uint32_t>(local + inside * local_stride);
      listing.slots[listing.count + i] = static_cast<std::uint32_t>(slot + inside * slot_stride);
    }
    std::memcpy(listing.values.data() + listing.count * size, values, count * size);
    listing.count += count;
    positions = positions.subspan(count);
    values += count * size;
  }
  return {};
}

/// Makes records of what is listed, by ascending address.
Result<void> Stage::add_listing(std::uint32_t block) {
  Listing& listing = *listing_;
  const std::size_t total = std::exchange(listing.count, 0);
  if (total == 0)
    return {};
  const Binding& binding = bindings_[block];
  const std::size_t size = binding.size();
  listing.count = total;
  listing.sort();
  listing.count = 0;
  for (std::size_t done = 0; done < total;) {
    const auto opened = open(Form::listed, block, listed_bytes + size, total - done);
    if (!opened)
      return tl::make_unexpected(opened.error());
    Record& record = **opened;
    record.local = binding.shape.local;
    record.slot = static_cast<std::uint64_t>(binding.shape.slot);
    auto* addresses = reinterpret_cast<std::uint32_t*>(&record + 1);
    auto* slots = addresses + record.count;
    auto* values = reinterpret_cast<std::byte*>(slots + record.count);
    for (std::size_t i = 0; i < record.count; ++i) {
      const auto from = static_cast<std::uint32_t>(listing.order[done + i]);
      addresses[i] = listing.addresses[from];
      slots[i] = listing.slots[from];
      std::memcpy(values + i * size, listing.values.data() + from * size, size);
    }
    done += record.count;
  }
  return {};
}

/// Calls visit(record, its binding, its bytes) for each, in the order in which they were added. What memory holds of a
/// tile comes into the cache while the record before it is visited.
template <class Visit>
void Stage::visit_records(Visit&& visit) {
  for (std::size_t s = 0; s < slabs_.size() && s <= current_; ++s) {
    const auto record_at = [&](std::size_t at) {
      return std::launder(reinterpret_cast<const Record*>(slabs_[s].bytes.get() + at));
    };
    for (std::size_t at = 0; at < slabs_[s].used;) {
      const Record& record = *record_at(at);
      Binding& binding = bindings_[record.block];
      const auto form = static_cast<Form>(record.form);
      const std::size_t place = form == Form::tile     ? sizeof(std::uint16_t)
                                : form == Form::listed ? listed_bytes
                                                       : std::size_t{0};
      std::byte* bytes = slabs_[s].bytes.get() + at + sizeof(Record);
      at += sizeof(Record) + payload(place + binding.size(), record.count);
      if (at < slabs_[s].used)
        if (const Record& next = *record_at(at); static_cast<Form>(next.form) == Form::tile) {
          const Binding& there = bindings_[next.block];
          const std::span positions(reinterpret_cast<const std::uint16_t*>(&next + 1), next.count);
          kernels::prefetch(there.at(next.local), {there.walk.local_stride(), positions.front()}, positions,
                            there.size());
        }
      visit(record, binding, bytes);
    }
  }
}

/// A record's places and values, taken apart: calls tile(start, stretch, slot, positions, values), listed(start,
/// places, values) or, for each run of a range, range(memory, slot, count, values).
template <class Tile, class Listed, class Range>
void Stage::visit_places(const Record& record, Binding& binding, std::byte* bytes, Tile&& tile, Listed&& listed,
                         Range&& range) {
  const std::size_t count = record.count;
  const std::size_t size = binding.size();
  switch (static_cast<Form>(record.form)) {
  case Form::tile: {
    const std::span positions(reinterpret_cast<const std::uint16_t*>(bytes), count);
    tile(binding.at(record.local), kernels::Stretch{binding.walk.local_stride(), positions.front()},
         kernels::Stretch{binding.walk.slot_stride(), positions.front()}, positions,
         bytes + count * sizeof(std::uint16_t));
    return;
  }
  case Form::listed: {
    const auto* numbers = reinterpret_cast<const std::uint32_t*>(bytes);
    listed(binding.at(record.local), kernels::ListedPlaces{{numbers, count}, {numbers + count, count}, record.slot},
           bytes + count * listed_bytes);
    return;
  }
  case Form::range:
    for_each_stretch(binding.local, binding.walk, static_cast<std::uint64_t>(record.local), count, size,
                     [&](std::byte* memory, std::uint64_t slot, std::uint64_t index, std::size_t elements) {
                       range(memory, slot, elements, bytes + index * size);
                     });
  }
}

void Stage::exchange(std::span<Digest> taken) {
  visit_records([&](const Record& record, Binding& binding, std::byte* bytes) {
    const std::size_t size = binding.size();
    const bool asked = !taken.empty();
    Digest digest = 0;
    visit_places(
      record, binding, bytes,
      [&](std::byte* start, kernels::Stretch stretch, kernels::Stretch slot, std::span<const std::uint16_t> positions,
          std::byte* values) {
        if (asked)
          digest += kernels::exchange_and_digest(start, stretch, record.slot, slot, positions, size, values);
        else
          kernels::exchange(start, stretch, positions, size, values);
      },
      [&](std::byte* start, const kernels::ListedPlaces& places, std::byte* values) {
        if (asked)
          digest += kernels::exchange_and_digest(start, places, size, values);
        else
          kernels::exchange(start, places.addresses, size, values);
      },
      [&](std::byte* memory, std::uint64_t slot, std::size_t count, std::byte* values) {
        kernels::exchange_run(memory, binding.walk.local_stride(), count, size, values);
        if (asked)
          digest += kernels::digest_run(values, 1, count, size, slot, binding.walk.slot_stride());
      });
    if (asked)
      taken[record.block] += digest;
  });
}

void Stage::read_back(std::span<Digest> found) {
  visit_records([&](const Record& record, Binding& binding, std::byte* bytes) {
    const std::size_t size = binding.size();
    Digest& digest = found[record.block];
    visit_places(
      record, binding, bytes,
      [&](const std::byte* start, kernels::Stretch stretch, kernels::Stretch slot,
          std::span<const std::uint16_t> positions,
          const std::byte*) { digest += kernels::digest_at(start, stretch, record.slot, slot, positions, size); },
      [&](const std::byte* start, const kernels::ListedPlaces& places, const std::byte*) {
        digest += kernels::digest_at(start, places, size);
      },
      [&](const std::byte* memory, std::uint64_t slot, std::size_t count, const std::byte*) {
        digest +=
          kernels::digest_run(memory, binding.walk.local_stride(), count, size, slot, binding.walk.slot_stride());
      });
  });
}

void Stage::clear() noexcept {
  for (Slab& slab : slabs_)
    slab.used = 0;
  current_ = 0;
  listing_->count = 0;
}

std::uint64_t worst_case_staged_bytes(const layout::Block& block, std::uint64_t elements,
                                      std::size_t piece_limit) noexcept {
  if (elements == 0)
    return 0;
  const Walk walk(block);
  const Shape shape = shape_of(block, walk);
  const std::size_t size = size_of(block.dtype);
  constexpr std::uint64_t record = 24 + 8; // and what its last word has too much
  const std::uint64_t parts = elements / tile_elements + 2 + most_cuts(elements, size, piece_limit);
  std::uint64_t bytes = 0;
  if (shape.near && (shape.scattered || shape.run < tile_elements)) // lists, or as many records as are no more
    bytes = elements * (listed_bytes + size) + 3 * record * parts;
  else
    bytes = elements * (sizeof(std::uint16_t) + size) + record * (elements / shape.run + 2 * parts);
  return bytes + 2 * bytes / (first_slab / least_record); // what slabs have left over, and records that they cut
}

std::uint64_t stage_overhead() noexcept {
  return largest_slab + largest_listing * std::uint64_t{32};
}

} // namespace deltawire::delta
