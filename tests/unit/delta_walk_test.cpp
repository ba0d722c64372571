// Contract of delta/walk.hpp: a run holds the element asked for, and its addresses are those of index arithmetic.
#include "catch.hpp"
#include "delta_random_block.hpp"
#include "random.hpp"

#include "delta/walk.hpp"

using namespace deltawire;

TEST_CASE("walking in any order gives the addresses of index arithmetic") {
  auto random = test::generator(50);
  for (int repeat = 0; repeat < 300; ++repeat) {
    const test::Sides sides(random, DType::bf16, 2000);
    for (const layout::Block* block : {&sides.owner, &sides.worker}) {
      delta::Walk walk(*block);
      REQUIRE(walk.elements() == sides.elements);
      std::uint64_t element = 0;
      for (int move = 0; move < 200; ++move) {
        element = random() % 3 ? (element + 1 + random() % 40) % sides.elements : random() % sides.elements;
        CAPTURE(test::seed(), repeat, element);
        const delta::Run& run = walk.at(element);
        REQUIRE(run.first <= element);
        REQUIRE(element < run.end);
        const auto inside = static_cast<layout::Index>(element - run.first);
        REQUIRE(run.local + inside * walk.local_stride() ==
                test::address(*block, element, block->local_offset, block->local_strides));
        REQUIRE(run.slot + inside * walk.slot_stride() ==
                test::address(*block, element, block->slot_offset, block->slot_strides));
      }
    }
  }
}

TEST_CASE("a block that is contiguous on both sides is one run") {
  layout::Block block;
  block.extents = {3, 1, 4, 5};
  block.local_offset = 7;
  block.local_strides = {20, 99, 5, 1};
  block.slot_offset = 40;
  block.slot_strides = {20, 1, 5, 1};
  delta::Walk walk(block);
  const delta::Run& run = walk.at(33);
  REQUIRE(run.first == 0);
  REQUIRE(run.end == 60);
  REQUIRE(run.local == 7);
  REQUIRE(run.slot == 40);
}

TEST_CASE("addresses past 2^32 keep all their bits") {
  layout::Block block;
  block.extents = {1 << 20, 1 << 14};
  block.local_strides = {1 << 15, 1};
  block.slot_strides = {1, 1 << 20};
  delta::Walk walk(block);
  const std::uint64_t element = (std::uint64_t{900000} << 14) + 12345;
  const delta::Run& run = walk.at(element);
  const auto inside = static_cast<layout::Index>(element - run.first);
  REQUIRE(run.local + inside * walk.local_stride() == (layout::Index{900000} << 15) + 12345);
  REQUIRE(run.slot + inside * walk.slot_stride() == 900000 + (layout::Index{12345} << 20));
}
