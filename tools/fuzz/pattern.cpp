// Name patterns, and the sums that they and slices compute. Input: lines "pattern ..", then "name .." as often as
// wanted.
#include "layout/pattern.hpp"

#include "target.hpp"

#include <cstdint>

namespace deltawire::fuzz {
namespace {

/// A sum at some values is what its terms say, and solving for a name finds the value that it had.
void check_sum(const layout::Linear& sum) {
  layout::Values values;
  for (const auto& [name, factor] : sum.terms) {
    require(factor != 0 && !layout::find_value(values, name), "terms are distinct and count");
    values.emplace_back(name, static_cast<layout::Index>(values.size()) + 3);
  }
  const auto total = sum.at(values);
  require(sum.open_names(values) == 0, "no name is open once all have values");
  if (!total || values.empty())
    return;
  const auto [last, value] = values.back();
  values.pop_back();
  std::string name;
  const auto solved = sum.solve(values, *total, name);
  require(solved == value && name == last, "the value of an open name follows from the sum");
}

} // namespace

bool accepts(std::span<const std::byte> input) {
  std::optional<layout::Pattern> pattern;
  bool accepted = false;
  for (const Line& line : lines_of(as_text(input))) {
    if (line.key == "pattern") {
      const AllocationBound bound(8192 + 256 * input.size());
      auto parsed = layout::Pattern::parse(line.value, true);
      if (!parsed) {
        require(parsed.error().code == Code::invalid_topology, "a bad pattern has the code of a bad topology");
        return false;
      }
      require(parsed->text() == line.value, "a pattern keeps its text");
      pattern = std::move(*parsed);
      accepted = true;
      for (const layout::Linear& sum : pattern->computed())
        check_sum(sum);
    } else if (line.key == "name" && pattern) {
      // Cubic where a name comes again; the product's names are short.
      if (line.value.size() > 100)
        continue;
      const auto bound = pattern->match(line.value);
      accepted = bound.has_value();
      if (!bound)
        continue;
      require(bound->stars.size() == pattern->stars() && bound->computed.size() == pattern->computed().size(),
              "a match binds everything");
      require(pattern->substitute(*bound) == line.value, "a pattern with what a name bound is the name");
    }
  }
  return accepted;
}

} // namespace deltawire::fuzz
