// Shards as a trainer's framework places them, and their positions in the full tensor.
#include "catch.hpp"
#include "layout/block_placement.hpp"
#include "random.hpp"

#include <array>
#include <numeric>

using namespace deltawire;
using namespace deltawire::layout;

namespace {

using Random = std::mt19937_64;
using Indices = std::vector<Index>;

Index pick(Random& random, Index low, Index high) {
  return std::uniform_int_distribution<Index>(low, high)(random);
}

AxisPlacement replicate() {
  return {};
}
AxisPlacement shard(int dim, int cut_order = -1) {
  return {AxisPlacement::Kind::shard, dim, cut_order};
}

DerivedPlacement derive(const TensorSpec& spec, Index rank) {
  auto derived = derive_placement(spec, rank);
  if (!derived)
    FAIL(derived.error().message);
  return *derived;
}

Indices translate(const BlockPlacement& placement, const Indices& local) {
  Indices out(local.size());
  auto done = translate_flat_indices(placement, local, out);
  if (!done)
    FAIL(done.error().message);
  return out;
}

/// All of the shard's positions in the full tensor.
Indices all_of(const BlockPlacement& placement) {
  Indices local(static_cast<std::size_t>(*element_count(placement.local_shape)));
  std::iota(local.begin(), local.end(), Index{0});
  return translate(placement, local);
}

bool refused(const TensorSpec& spec, Index rank, Code code) {
  auto derived = derive_placement(spec, rank);
  return !derived && derived.error().code == code && !derived.error().message.empty();
}

/// Cuts a list of coordinates as a framework does, axis by axis, one coordinate at a time.
std::vector<std::vector<Index>> brute_force(const TensorSpec& spec, const std::vector<std::size_t>& cuts,
                                            const Indices& coordinates) {
  std::vector<std::vector<Index>> kept;
  for (Index extent : spec.full_shape) {
    kept.emplace_back(static_cast<std::size_t>(extent));
    std::iota(kept.back().begin(), kept.back().end(), Index{0});
  }
  for (std::size_t axis : cuts) {
    auto& dim = kept[static_cast<std::size_t>(spec.placements[axis].dim)];
    const auto size = static_cast<Index>(dim.size());
    Index piece = 0;
    while (piece * spec.mesh[axis] < size)
      ++piece;
    std::vector<Index> mine;
    for (Index i = 0; i < size; ++i)
      if (piece > 0 && i / piece == coordinates[axis])
        mine.push_back(dim[static_cast<std::size_t>(i)]);
    dim = mine;
  }
  return kept;
}

} // namespace

TEST_CASE("uneven shards are ceil pieces", "[layout][placement]") {
  const TensorSpec spec{{7, 3}, {4}, {shard(0)}};
  const Indices rows = {2, 2, 2, 1};
  const Indices starts = {0, 6, 12, 18};
  for (Index rank = 0; rank < 4; ++rank) {
    const DerivedPlacement derived = derive(spec, rank);
    CHECK(derived.owner);
    CHECK(derived.block.local_shape == Shape{rows[static_cast<std::size_t>(rank)], 3});
    CHECK(translate(derived.block, {0}) == Indices{starts[static_cast<std::size_t>(rank)]});
  }
}

TEST_CASE("shards past the end are empty, at the end", "[layout][placement]") {
  const DerivedPlacement last = derive({{6, 2}, {4}, {shard(0)}}, 3);
  CHECK(last.owner);
  CHECK(last.block.local_shape == Shape{0, 2});
  CHECK(last.block.global_offset == Shape{6, 0});
  // 9 rows over 8: pieces of 2, so rank 4 has one row and rank 5 would start at 10.
  const TensorSpec nine{{9}, {8}, {shard(0)}};
  CHECK(derive(nine, 4).block == BlockPlacement{{1}, {8}, {9}});
  for (Index rank = 5; rank < 8; ++rank)
    CHECK(derive(nine, rank).block == BlockPlacement{{0}, {9}, {9}});
  CHECK(all_of(derive(nine, 5).block).empty());
}

TEST_CASE("scalars are never cut, and small or empty shapes are", "[layout][placement]") {
  for (Index world : {Index{2}, Index{4}}) {
    for (Index rank = 0; rank < world; ++rank) {
      const DerivedPlacement scalar = derive({{}, {world}, {shard(0)}}, rank);
      CHECK(scalar.block == BlockPlacement{{}, {}, {}});
      CHECK(scalar.owner == (rank == 0));
      CHECK(all_of(scalar.block) == Indices{0});
      CHECK(derive({{1}, {world}, {shard(0)}}, rank).block ==
            BlockPlacement{{rank == 0 ? 1 : 0}, {rank == 0 ? 0 : 1}, {1}});
      CHECK(derive({{1, 17}, {world}, {shard(0)}}, rank).block ==
            BlockPlacement{{rank == 0 ? 1 : 0, 17}, {rank == 0 ? 0 : 1, 0}, {1, 17}});
      CHECK(derive({{0, 5}, {world}, {shard(0)}}, rank).block == BlockPlacement{{0, 5}, {0, 0}, {0, 5}});
    }
  }
}

TEST_CASE("a shard of an inner dim is not offset plus position", "[layout][placement]") {
  const DerivedPlacement derived = derive({{3, 9}, {2}, {shard(1)}}, 1);
  CHECK(derived.block == BlockPlacement{{3, 4}, {0, 5}, {3, 9}});
  CHECK(translate(derived.block, {4}) == Indices{14});
  // EP2 on dim 0 and FSDP2 on dim 1.
  CHECK(all_of(derive({{4, 2, 3}, {2, 2}, {shard(0), shard(1)}}, 3).block) == Indices{15, 16, 17, 21, 22, 23});
}

TEST_CASE("two cuts of one dim follow their order", "[layout][placement]") {
  // dp2 x tp2, tp cuts first; ranks are (dp0, tp0), (dp0, tp1), (dp1, tp0), (dp1, tp1).
  const TensorSpec spec{{6}, {2, 2}, {shard(0, 1), shard(0, 0)}};
  CHECK(all_of(derive(spec, 0).block) == Indices{0, 1});
  CHECK(all_of(derive(spec, 2).block) == Indices{2});
  CHECK(all_of(derive(spec, 1).block) == Indices{3, 4});
  CHECK(all_of(derive(spec, 3).block) == Indices{5});
  // In mesh order, dp cuts first.
  CHECK(all_of(derive({{6}, {2, 2}, {shard(0), shard(0)}}, 1).block) == Indices{2});
}

TEST_CASE("one replica owns, the lowest", "[layout][placement]") {
  const TensorSpec spec{{4}, {2, 2}, {replicate(), shard(0)}};
  int owners_of_3 = 0;
  for (Index rank = 0; rank < 4; ++rank) {
    const DerivedPlacement derived = derive(spec, rank);
    CHECK(derived.owner == (rank < 2));
    for (Index position : all_of(derived.block))
      owners_of_3 += position == 3 && derived.owner ? 1 : 0;
  }
  CHECK(owners_of_3 == 1);
}

TEST_CASE("positions past 2^31 survive", "[layout][placement]") {
  const BlockPlacement tail{{100, 7168}, {299900, 0}, {300000, 7168}};
  CHECK(translate(tail, {0, 716799}) == Indices{2149683200, 2150399999});
  const BlockPlacement column{{300000, 1}, {0, 7167}, {300000, 7168}};
  CHECK(translate(column, {0, 299999}) == Indices{7167, 2150399999});
}

TEST_CASE("derived shards are what cutting one coordinate at a time gives", "[layout][placement]") {
  Random random = test::generator(301);
  for (int round = 0; round < 3000; ++round) {
    TensorSpec spec;
    spec.full_shape.resize(static_cast<std::size_t>(pick(random, 0, 3)));
    for (Index& extent : spec.full_shape)
      extent = pick(random, 0, 7);
    std::vector<std::size_t> cuts;
    for (Index axes = pick(random, 0, 3); axes > 0; --axes) {
      spec.mesh.push_back(pick(random, 1, 4));
      const bool cut = !spec.full_shape.empty() && pick(random, 0, 3) > 0;
      spec.placements.push_back(
        cut ? shard(static_cast<int>(pick(random, 0, static_cast<Index>(spec.full_shape.size()) - 1))) : replicate());
      if (cut)
        cuts.push_back(spec.placements.size() - 1);
    }
    if (pick(random, 0, 1) == 1) {
      std::shuffle(cuts.begin(), cuts.end(), random);
      for (std::size_t i = 0; i < cuts.size(); ++i)
        spec.placements[cuts[i]].cut_order = static_cast<int>(2 * i);
    }
    CAPTURE(test::seed(), round, to_string(spec.full_shape), to_string(spec.mesh));
    const auto count = static_cast<std::size_t>(*element_count(spec.full_shape));
    std::vector<int> owned(count, 0);
    Index ranks = 1;
    for (Index size : spec.mesh)
      ranks *= size;
    for (Index rank = 0; rank < ranks; ++rank) {
      Indices coordinates(spec.mesh.size());
      Index rest = rank;
      for (std::size_t a = spec.mesh.size(); a-- > 0; rest /= spec.mesh[a])
        coordinates[a] = rest % spec.mesh[a];
      const auto kept = brute_force(spec, cuts, coordinates);
      const DerivedPlacement derived = derive(spec, rank);
      REQUIRE(derived.block.full_shape == spec.full_shape);
      for (std::size_t d = 0; d < kept.size(); ++d) {
        REQUIRE(derived.block.local_shape[d] == static_cast<Index>(kept[d].size()));
        REQUIRE(derived.block.global_offset[d] + derived.block.local_shape[d] <= spec.full_shape[d]);
        if (!kept[d].empty())
          REQUIRE(derived.block.global_offset[d] == kept[d].front());
      }
      const Indices all = all_of(derived.block);
      // Every position, by walking the kept coordinates.
      Indices expected = {0};
      for (std::size_t d = 0; d < kept.size(); ++d) {
        Indices longer;
        for (Index prefix : expected)
          for (Index i : kept[d])
            longer.push_back(prefix * spec.full_shape[d] + i);
        expected = longer;
      }
      REQUIRE(all == expected);
      Indices some;
      Indices some_expected;
      for (std::size_t i = 0; i < all.size(); ++i)
        if (pick(random, 0, 1) == 1) {
          some.push_back(static_cast<Index>(i));
          some_expected.push_back(all[i]);
        }
      REQUIRE(translate(derived.block, some) == some_expected);
      if (derived.owner)
        for (Index position : all)
          ++owned[static_cast<std::size_t>(position)];
    }
    REQUIRE(std::count(owned.begin(), owned.end(), 1) == static_cast<std::ptrdiff_t>(count));
  }
}

TEST_CASE("positions of large blocks, dense and sparse, are translated as by division", "[layout][placement]") {
  Random random = test::generator(302);
  std::array<int, 4> outer_dims{}; // of the block's runs
  int sparse = 0;
  for (int round = 0; round < 600; ++round) {
    BlockPlacement placement;
    const bool huge = pick(random, 0, 2) == 0; // up to 2^62 elements, of which some are looked at
    for (Index dims = pick(random, 0, 4); dims > 0; --dims) {
      const Index bits = huge ? 62 / 4 : 5;
      const Index full = pick(random, 1, Index{1} << pick(random, 0, bits));
      const Index local = pick(random, 0, 2) == 0 ? full : pick(random, 1, full);
      placement.full_shape.push_back(full);
      placement.local_shape.push_back(local);
      placement.global_offset.push_back(pick(random, 0, full - local));
    }
    const Index elements = *element_count(placement.local_shape);
    const Index longest = std::max<Index>(1, elements / pick(random, 1, 5000)); // from one position to the next
    Indices local;
    for (Index at = pick(random, 0, longest - 1); at < elements && local.size() < 5000; at += pick(random, 1, longest))
      local.push_back(at);
    if (pick(random, 0, 3) == 0 && (local.empty() || local.back() < elements - 1))
      local.push_back(elements - 1);
    CAPTURE(test::seed(), round, to_string(placement.full_shape), to_string(placement.local_shape), local.size());
    const Indices translated = translate(placement, local);
    Index before = -1;
    for (std::size_t i = 0; i < local.size(); ++i) {
      Index rest = local[i];
      Index expected = 0;
      Index stride = 1;
      for (std::size_t d = placement.full_shape.size(); d-- > 0; stride *= placement.full_shape[d]) {
        expected += (placement.global_offset[d] + rest % placement.local_shape[d]) * stride;
        rest /= placement.local_shape[d];
      }
      REQUIRE(translated[i] == expected);
      REQUIRE(translated[i] > before);
      before = translated[i];
    }
    std::size_t run_dim = placement.full_shape.size();
    while (run_dim > 1 && placement.local_shape[run_dim - 1] == placement.full_shape[run_dim - 1])
      --run_dim;
    ++outer_dims.at(run_dim == 0 ? 0 : run_dim - 1);
    sparse += longest > 8 ? 1 : 0;
  }
  for (const int count : outer_dims)
    CHECK(count > 40);
  CHECK(sparse > 40);
  CHECK(sparse < 560);
}

TEST_CASE("placements that cannot be are refused", "[layout][placement]") {
  AxisPlacement partial;
  partial.kind = AxisPlacement::Kind::partial;
  CHECK(refused({{4}, {2}, {partial}}, 0, Code::unsupported));
  CHECK(refused({{4}, {2}, {shard(1)}}, 0, Code::invalid_argument));
  CHECK(refused({{4}, {2}, {shard(-1)}}, 0, Code::invalid_argument));
  CHECK(refused({{4}, {2}, {shard(0, -2)}}, 0, Code::invalid_argument));
  CHECK(refused({{4}, {2}, {}}, 0, Code::invalid_argument));
  CHECK(refused({{4}, {2}, {shard(0)}}, 2, Code::invalid_argument));
  CHECK(refused({{4}, {2}, {shard(0)}}, -1, Code::invalid_argument));
  CHECK(refused({{4}, {0}, {shard(0)}}, 0, Code::invalid_argument));
  CHECK(refused({{-4}, {2}, {shard(0)}}, 0, Code::invalid_argument));
  CHECK(refused({{4}, {2, 2}, {shard(0, 0), shard(0)}}, 0, Code::invalid_argument));
  CHECK(refused({{4}, {2, 2}, {shard(0, 3), shard(0, 3)}}, 0, Code::invalid_argument));
  constexpr Index huge = Index{1} << 40;
  CHECK(refused({{huge, huge}, {2}, {shard(0)}}, 0, Code::limit_exceeded));
}

TEST_CASE("positions outside the shard or out of order are refused", "[layout][placement]") {
  const BlockPlacement placement{{2, 2}, {1, 0}, {4, 3}};
  Indices out(2);
  const auto refuses = [&](const BlockPlacement& block, const Indices& local) {
    auto done = translate_flat_indices(block, local, out);
    return !done && done.error().code == Code::invalid_argument;
  };
  CHECK(translate(placement, {1, 2}) == Indices{4, 6});
  CHECK(refuses(placement, {0, 4}));
  CHECK(refuses(placement, {-1, 0}));
  CHECK(refuses(placement, {1, 1}));
  CHECK(refuses(placement, {2, 1}));
  CHECK(refuses(placement, {0}));
  // Checked a stretch at a time: also the step from one to the next.
  Indices many(3000);
  std::iota(many.begin(), many.end(), Index{0});
  out.resize(many.size());
  const BlockPlacement wide{{2, 1500}, {0, 0}, {2, 1501}};
  CHECK(translate(wide, many).back() == 3000);
  for (const std::size_t at : {1u, 1023u, 1024u, 1025u, 2048u, 2999u}) {
    Indices wrong = many;
    wrong[at] = wrong[at - 1];
    CHECK(refuses(wide, wrong));
  }
  many.back() = 3000;
  CHECK(refuses(wide, many));
  out.resize(2);
  CHECK(refuses({{0, 2}, {1, 0}, {4, 3}}, {0, 1}));
  CHECK(refuses({{2}, {1, 0}, {4, 3}}, {0, 1}));
  CHECK(refuses({{2, 2}, {3, 0}, {4, 3}}, {0, 1}));
  CHECK(refuses({{2, 2}, {-1, 0}, {4, 3}}, {0, 1}));
  CHECK(refuses({{2, 2}, {std::numeric_limits<Index>::max(), 0}, {4, 3}}, {0, 1}));
}
