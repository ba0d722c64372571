// Holes and overlaps of random regions against counting every element.
#include "catch.hpp"
#include "layout/coverage.hpp"
#include "random.hpp"
#include "refusal.hpp"

#include <map>

using namespace deltawire;
using namespace deltawire::layout;

namespace {

using Random = std::mt19937_64;

Index pick(Random& random, Index low, Index high) {
  return std::uniform_int_distribution<Index>(low, high)(random);
}

bool contains(const Region& region, const std::vector<Index>& at) {
  for (std::size_t d = 0; d < at.size(); ++d) {
    bool inside = false;
    for (const Segment& segment : region.dims[d])
      inside = inside || (at[d] >= segment.slot && at[d] < segment.slot + segment.length);
    if (!inside)
      return false;
  }
  return true;
}

/// All coordinates of a shape, row-major.
std::vector<std::vector<Index>> coordinates(const Shape& shape) {
  std::vector<std::vector<Index>> result = {{}};
  for (Index extent : shape) {
    std::vector<std::vector<Index>> longer;
    for (const auto& prefix : result)
      for (Index i = 0; i < extent; ++i) {
        longer.push_back(prefix);
        longer.back().push_back(i);
      }
    result = std::move(longer);
  }
  return result;
}

bool in_box(const Box& box, const std::vector<Index>& at) {
  for (std::size_t d = 0; d < at.size(); ++d)
    if (at[d] < box[d].begin || at[d] >= box[d].end)
      return false;
  return true;
}

Region box_region(std::vector<std::pair<Index, Index>> ranges) {
  Region region;
  for (const auto& [begin, end] : ranges)
    region.dims.push_back({{begin, end - begin, 0, 1}});
  return region;
}

std::vector<Fault> faults_of(const Shape& shape, const std::vector<Region>& regions, Cover cover) {
  std::vector<const Region*> pointers;
  for (const Region& region : regions)
    pointers.push_back(&region);
  auto faults = find_faults(shape, pointers, cover, 1000);
  REQUIRE(faults);
  return *faults;
}

} // namespace

TEST_CASE("faults are the elements that counting finds, by the regions that cover them", "[layout][coverage]") {
  Random random = test::generator(201);
  for (int round = 0; round < 4000; ++round) {
    Shape shape(static_cast<std::size_t>(pick(random, 0, 3)));
    for (Index& extent : shape)
      extent = pick(random, 1, 6);
    std::vector<Region> regions(static_cast<std::size_t>(pick(random, 0, 5)));
    for (Region& region : regions)
      for (Index extent : shape) {
        region.dims.emplace_back();
        if (pick(random, 0, 2) == 0) {
          region.dims.back().push_back({0, extent, 0, 1});
          continue;
        }
        for (Index i = 0; i < extent;) {
          const Index length = pick(random, 1, extent - i);
          if (pick(random, 0, 2) > 0)
            region.dims.back().push_back({i, length, 0, 1});
          i += length;
        }
      }
    CAPTURE(test::seed(), round, to_string(shape));

    std::map<std::vector<std::uint32_t>, std::vector<std::vector<Index>>> expected; // in row-major order
    for (const auto& at : coordinates(shape)) {
      std::vector<std::uint32_t> covering;
      for (std::uint32_t r = 0; r < regions.size(); ++r)
        if (contains(regions[r], at))
          covering.push_back(r);
      if (covering.size() != 1)
        expected[covering].push_back(at);
    }
    const std::vector<Fault> found = faults_of(shape, regions, Cover::exactly_once);
    REQUIRE(found.size() == expected.size());
    for (const Fault& fault : found) {
      const auto& elements = expected[fault.regions];
      REQUIRE(fault.elements == static_cast<Index>(elements.size()));
      REQUIRE(in_box(fault.first, elements.front()));
      Index in_first = 0;
      for (const auto& at : elements)
        in_first += in_box(fault.first, at) ? 1 : 0;
      Index volume = 1;
      for (std::size_t d = 0; d < shape.size(); ++d) {
        volume *= fault.first[d].end - fault.first[d].begin;
        REQUIRE(fault.first[d].begin == elements.front()[d]);
      }
      REQUIRE(in_first == volume);
    }
    const std::vector<Fault> holes = faults_of(shape, regions, Cover::at_least_once);
    REQUIRE(holes.size() == expected.count({}));
    if (!holes.empty())
      REQUIRE(holes.front().elements == static_cast<Index>(expected[{}].size()));
  }
}

TEST_CASE("a hole between differently cut neighbours is one box", "[layout][coverage]") {
  // [0:4, 0:6] without [0:4, 2:4]; the right side is cut at row 1, the left at row 3.
  const std::vector<Region> regions = {box_region({{0, 3}, {0, 2}}), box_region({{3, 4}, {0, 2}}),
                                       box_region({{0, 1}, {4, 6}}), box_region({{1, 4}, {4, 6}})};
  const std::vector<Fault> faults = faults_of({4, 6}, regions, Cover::exactly_once);
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].regions.empty());
  CHECK(to_string(faults[0].first) == "[0:4, 2:4]");
  CHECK(faults[0].elements == 8);
}

TEST_CASE("a segment that goes on in the next one does not divide a hole", "[layout][coverage]") {
  Region region = box_region({{0, 2}, {0, 3}});
  region.dims[0].push_back({2, 2, 7, 1});
  const std::vector<Fault> faults = faults_of({4, 6}, {region}, Cover::exactly_once);
  REQUIRE(faults.size() == 1);
  CHECK(to_string(faults[0].first) == "[0:4, 3:6]");
}

TEST_CASE("an overlap is one box with its regions", "[layout][coverage]") {
  const std::vector<Region> regions = {box_region({{0, 4}, {0, 4}}), box_region({{0, 4}, {4, 8}}),
                                       box_region({{1, 3}, {2, 4}})};
  const std::vector<Fault> faults = faults_of({4, 8}, regions, Cover::exactly_once);
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].regions == std::vector<std::uint32_t>{0, 2});
  CHECK(to_string(faults[0].first) == "[1:3, 2:4]");
  CHECK(faults[0].elements == 4);
}

TEST_CASE("a shape of 2^62 elements is judged without walking them", "[layout][coverage]") {
  const Index side = Index{1} << 31;
  const std::vector<Region> regions = {box_region({{0, side}, {0, side - 1}})};
  const std::vector<Fault> faults = faults_of({side, side}, regions, Cover::exactly_once);
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].elements == side);
  CHECK(to_string(faults[0].first) == fmt::format("[0:{}, {}:{}]", side, side - 1, side));
}

TEST_CASE("regions that lie over each other in very many ways are refused, not walked", "[layout][coverage]") {
  // Region r leaves out index r of each dim: every set of regions with one missing a dim is alive somewhere.
  constexpr Index extent = 30;
  constexpr std::size_t dims = 8;
  std::vector<Region> regions(static_cast<std::size_t>(extent));
  for (Index r = 0; r < extent; ++r)
    for (std::size_t d = 0; d < dims; ++d) {
      auto& segments = regions[static_cast<std::size_t>(r)].dims.emplace_back();
      if (r > 0)
        segments.push_back({0, r, 0, 1});
      if (r + 1 < extent)
        segments.push_back({r + 1, extent - r - 1, r, 1});
    }
  std::vector<const Region*> pointers;
  for (const Region& region : regions)
    pointers.push_back(&region);
  test::check_refused(find_faults(Shape(dims, extent), pointers, Cover::at_least_once, 4), Code::limit_exceeded,
                      {"30 regions", "too many ways"});
}

TEST_CASE("a slot that very many ranks hold piece by piece is within what a walk may take", "[layout][coverage]") {
  // Dealt one by one along both dims: every rank is alive in every class of its own row of the mesh.
  constexpr Index world = 64;
  constexpr Index extent = 1024;
  std::vector<Region> regions;
  for (Index a = 0; a < world; ++a)
    for (Index b = 0; b < world; ++b) {
      Region& region = regions.emplace_back();
      region.dims.resize(2);
      for (Index i = 0; i < extent / world; ++i) {
        region.dims[0].push_back({i * world + a, 1, i, 1});
        region.dims[1].push_back({i * world + b, 1, i, 1});
      }
    }
  CHECK(faults_of({extent, extent}, regions, Cover::exactly_once).empty());
}
