#include "layout/declaration_check.hpp"

#include "layout/wire_dtype.hpp"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <vector>

namespace deltawire::layout {

namespace {

/// Bound of each term of an address, so that no sum over `dims` terms and a base passes 2^61.
Index term_limit(std::size_t dims) noexcept {
  return (Index{1} << 61) / static_cast<Index>(dims + 1);
}

bool within(Index value, Index limit) noexcept {
  return value <= limit && value >= -limit;
}

/// Lowest and highest element offset.
struct Reach {
  Index lowest = 0;
  Index highest = -1; ///< below `lowest`: nothing
};

/// (length - 1) * stride, unless it passes the limit.
std::optional<Index> last_step(Index length, Index stride, Index limit) {
  Index step = 0;
  if (__builtin_mul_overflow(length - 1, stride, &step) || !within(step, limit))
    return std::nullopt;
  return step;
}

/// Offsets that a parameter's buffer has. Requires strides.size() == local_shape.size() and no negative extent.
std::optional<Reach> buffer_reach(const ParameterSpec& parameter) {
  const Index limit = term_limit(parameter.local_shape.size());
  Reach reach{0, 0};
  for (std::size_t d = 0; d < parameter.local_shape.size(); ++d) {
    if (parameter.local_shape[d] == 0)
      return Reach{};
    const auto step = last_step(parameter.local_shape[d], parameter.strides[d], limit);
    if (!step)
      return std::nullopt;
    (*step < 0 ? reach.lowest : reach.highest) += *step;
  }
  return reach;
}

/// Offsets that a region touches: exact, since the dims are independent.
std::optional<Reach> region_reach(const Region& region) {
  const Index limit = term_limit(region.dims.size());
  if (!within(region.base, limit))
    return std::nullopt;
  Reach reach{region.base, region.base};
  for (const auto& segments : region.dims) {
    if (segments.empty())
      return Reach{};
    std::optional<Reach> dim;
    for (const Segment& segment : segments) {
      if (!within(segment.local, limit / 2))
        return std::nullopt;
      const auto step = segment.length == 1 ? 0 : last_step(segment.length, segment.stride, limit / 2);
      if (!step)
        return std::nullopt;
      const Index low = segment.local + std::min<Index>(*step, 0);
      const Index high = segment.local + std::max<Index>(*step, 0);
      dim = dim ? Reach{std::min(dim->lowest, low), std::max(dim->highest, high)} : Reach{low, high};
    }
    reach.lowest += dim->lowest;
    reach.highest += dim->highest;
  }
  return reach;
}

bool known(DType dtype) noexcept {
  return static_cast<std::size_t>(dtype) < dtype_count;
}

class Check {
public:
  Check(const Declaration& declaration, Of of, std::string_view who, Problems& problems)
    : declaration_(declaration), of_(of), who_(who), problems_(problems) {}

  void run() {
    check_parameters();
    check_slots();
    for (const Region& region : declaration_.regions)
      check_region(region);
  }

private:
  void check_parameters() {
    std::unordered_set<std::string_view> names;
    buffers_.reserve(declaration_.parameters.size());
    for (const ParameterSpec& parameter : declaration_.parameters) {
      buffers_.emplace_back(); // nothing: its regions are not judged
      if (!names.insert(parameter.name).second)
        problems_.add(Code::disagreement, "{}: parameter \"{}\" is declared twice", who_, parameter.name);
      if (!known(parameter.dtype)) {
        problems_.add(Code::disagreement, "{}: parameter \"{}\" has the unknown dtype {}", who_, parameter.name,
                      static_cast<unsigned>(parameter.dtype));
        continue;
      }
      if (auto count = element_count(parameter.local_shape); !count) {
        problems_.add(Code::disagreement, "{}: parameter \"{}\": local {}", who_, parameter.name,
                      count.error().message);
        continue;
      }
      if (parameter.strides.size() != parameter.local_shape.size()) {
        problems_.add(Code::disagreement, "{}: parameter \"{}\" has {} strides for the local shape {}", who_,
                      parameter.name, parameter.strides.size(), to_string(parameter.local_shape));
        continue;
      }
      buffers_.back() = buffer_reach(parameter);
      if (!buffers_.back())
        problems_.add(Code::disagreement,
                      "{}: parameter \"{}\": strides {} of the local shape {} reach past 2^61 elements", who_,
                      parameter.name, to_string(parameter.strides), to_string(parameter.local_shape));
    }
  }

  void check_slots() {
    std::unordered_set<std::string_view> names;
    slots_valid_.reserve(declaration_.slots.size());
    for (const SlotSpec& slot : declaration_.slots) {
      slots_valid_.push_back(false);
      if (!names.insert(slot.name).second)
        problems_.add(Code::disagreement, "{}: slot \"{}\" is declared twice", who_, slot.name);
      if (!known(slot.dtype)) {
        problems_.add(Code::disagreement, "{}: slot \"{}\" has the unknown dtype {}", who_, slot.name,
                      static_cast<unsigned>(slot.dtype));
        continue;
      }
      if (auto count = element_count(slot.shape); !count) {
        problems_.add(Code::disagreement, "{}: slot \"{}\": {}", who_, slot.name, count.error().message);
        continue;
      }
      slots_valid_.back() = true;
    }
  }

  void check_region(const Region& region) {
    if (region.parameter >= declaration_.parameters.size() || region.slot >= declaration_.slots.size()) {
      problems_.add(Code::disagreement, "{}: a region names parameter {} of {} and slot {} of {}", who_,
                    region.parameter, declaration_.parameters.size(), region.slot, declaration_.slots.size());
      return;
    }
    const std::optional<Reach>& buffer = buffers_[region.parameter];
    if (!buffer || !slots_valid_[region.slot])
      return;
    const ParameterSpec& parameter = declaration_.parameters[region.parameter];
    const SlotSpec& slot = declaration_.slots[region.slot];
    if (!dtypes_fit(parameter.dtype, slot.dtype, of_))
      problems_.add(Code::disagreement,
                    "{}: parameter \"{}\" is {}, its slot \"{}\" is {}; there is no cast between them", who_,
                    parameter.name, to_string(parameter.dtype), slot.name, to_string(slot.dtype));
    if (region.dims.size() != slot.shape.size()) {
      problems_.add(Code::disagreement, "{}: parameter \"{}\" covers {} dims of slot \"{}\" {}", who_, parameter.name,
                    region.dims.size(), slot.name, to_string(slot.shape));
      return;
    }
    for (std::size_t d = 0; d < region.dims.size(); ++d) {
      Index end = 0;
      for (const Segment& segment : region.dims[d]) {
        if (segment.slot < end || segment.length <= 0 || segment.slot > slot.shape[d] ||
            segment.length > slot.shape[d] - segment.slot) {
          problems_.add(Code::disagreement,
                        "{}: parameter \"{}\": indices {} to {}+{} of dim {} are out of order or not in slot \"{}\" {}",
                        who_, parameter.name, segment.slot, segment.slot, segment.length, d, slot.name,
                        to_string(slot.shape));
          return;
        }
        end = segment.slot + segment.length;
      }
    }
    if (is_empty(region))
      return;
    const std::optional<Reach> reach = region_reach(region);
    if (!reach) {
      problems_.add(Code::disagreement, "{}: parameter \"{}\": its addresses for slot \"{}\" reach past 2^61 elements",
                    who_, parameter.name, slot.name);
      return;
    }
    if (reach->lowest < buffer->lowest || reach->highest > buffer->highest)
      problems_.add(
        Code::disagreement,
        "{}: parameter \"{}\": slot \"{}\" lies at local elements {} to {}, outside its buffer of shape {}, "
        "strides {}",
        who_, parameter.name, slot.name, reach->lowest, reach->highest, to_string(parameter.local_shape),
        to_string(parameter.strides));
  }

  const Declaration& declaration_;
  Of of_;
  std::string_view who_;
  Problems& problems_;
  std::vector<std::optional<Reach>> buffers_; ///< a parameter; nothing if it is not valid
  std::vector<char> slots_valid_;
};

} // namespace

void check_declaration(const Declaration& declaration, Of of, std::string_view who, Problems& problems) {
  Check(declaration, of, who, problems).run();
}

bool dtypes_fit(DType held, DType wire, Of of) noexcept {
  return of == Of::rank ? casts_to(held, wire) : held == wire;
}

bool is_empty(const Region& region) noexcept {
  return std::any_of(region.dims.begin(), region.dims.end(), [](const auto& segments) { return segments.empty(); });
}

} // namespace deltawire::layout
