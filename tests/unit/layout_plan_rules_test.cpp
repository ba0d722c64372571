// The rules of a plan, one test a rule: what the blocks look like in cases small enough to do by hand, and what is
// refused.
#include "catch.hpp"
#include "layout/plan.hpp"

using namespace deltawire;
using namespace deltawire::layout;

namespace {

const std::vector<std::string> nothing_unused;

/// A process with parameters and regions added one after the other; memory is row-major over the local shape.
struct Process {
  Declaration declaration;

  Process& parameter(const std::string& name, const Shape& local, std::vector<Index> strides = {},
                     DType dtype = DType::bf16) {
    declaration.parameters.push_back(
      {name, dtype, local, local, strides.empty() ? row_major_strides(local) : std::move(strides)});
    return *this;
  }
  Process& slot(const std::string& name, const Shape& shape, DType dtype = DType::bf16) {
    declaration.slots.push_back({name, dtype, shape});
    return *this;
  }
  /// A region of the last parameter and the last slot.
  Process& region(Index base, std::vector<std::vector<Segment>> dims) {
    declaration.regions.push_back({static_cast<std::uint32_t>(declaration.parameters.size() - 1),
                                   static_cast<std::uint32_t>(declaration.slots.size() - 1), base, std::move(dims)});
    return *this;
  }
  operator Declaration() const { return declaration; }
};

/// All of a slot in a parameter of the same name and shape.
Process whole(const std::string& name, const Shape& shape) {
  std::vector<std::vector<Segment>> dims;
  const std::vector<Index> strides = row_major_strides(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    dims.emplace_back();
    if (shape[d] > 0)
      dims.back().push_back({0, shape[d], 0, strides[d]});
  }
  return Process{}.parameter(name, shape).slot(name, shape).region(0, dims);
}

/// Rows (dim 0) or columns (dim 1) begin..end of a matrix, packed.
Process part(const std::string& name, const Shape& shape, std::size_t dim, Index begin, Index end) {
  Shape local = shape;
  local[dim] = end - begin;
  const std::vector<Index> strides = row_major_strides(local);
  std::vector<std::vector<Segment>> dims;
  for (std::size_t d = 0; d < shape.size(); ++d)
    dims.push_back({d == dim ? Segment{begin, end - begin, 0, strides[d]} : Segment{0, shape[d], 0, strides[d]}});
  return Process{}.parameter(name, local).slot(name, shape).region(0, dims);
}

Plan plan_of(const std::vector<Declaration>& ranks, const std::vector<Declaration>& workers,
             const std::vector<std::string>& unused = nothing_unused, std::uint64_t window_bytes = UINT64_MAX) {
  auto plan = compile_plan(ranks, workers, unused, window_bytes);
  if (!plan)
    FAIL(plan.error().message);
  return std::move(*plan);
}

std::string refusal(const std::vector<Declaration>& ranks, const std::vector<Declaration>& workers,
                    const std::vector<std::string>& unused = nothing_unused) {
  auto plan = compile_plan(ranks, workers, unused, UINT64_MAX);
  REQUIRE(!plan);
  CHECK(plan.error().code == Code::disagreement);
  return plan.error().message;
}

/// What a malformed rank is told; the worker would fit.
std::string refused_rank(const Declaration& rank) {
  CHECK(!catalogue(std::vector{rank}));
  return refusal({rank}, {whole("a", {2, 3})});
}

/// The message names all of these.
void check_names(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& text : parts) {
    CAPTURE(message, text);
    CHECK(message.find(text) != std::string::npos);
  }
}

using Indices = std::vector<Index>;

} // namespace

TEST_CASE("a whole tensor read whole is one block of one dim", "[layout][plan]") {
  const Plan plan = plan_of({whole("a", {4, 5, 6})}, {whole("a", {4, 5, 6})});
  REQUIRE(plan.blocks == 1);
  CHECK(plan.windows == 1);
  REQUIRE(plan.cells.size() == 1);
  CHECK(plan.cells[0] == Cell{0, 120});
  const Block expected{0, 0, 0, 0, 0, DType::bf16, {120}, 0, {1}, 0, {1}};
  CHECK(plan.ranks == std::vector<std::vector<Block>>{{expected}});
  CHECK(plan.workers == plan.ranks);
  CHECK(element_count(expected) == 120);
}

TEST_CASE("a scalar is one block of extent 1", "[layout][plan]") {
  const Plan plan = plan_of({whole("step", {})}, {whole("step", {})});
  REQUIRE(plan.ranks[0].size() == 1);
  CHECK(plan.ranks[0][0].extents == Indices{1});
  CHECK(plan.ranks[0][0].local_strides == Indices{1});
  CHECK(plan.workers[0] == plan.ranks[0]);
}

TEST_CASE("rows of the owners and columns of the workers make a block each", "[layout][plan]") {
  const Plan plan = plan_of({part("a", {4, 6}, 0, 0, 2), part("a", {4, 6}, 0, 2, 4)},
                            {part("a", {4, 6}, 1, 0, 4), part("a", {4, 6}, 1, 4, 6)});
  CHECK(plan.blocks == 4);
  CHECK(plan.cells == std::vector<Cell>{{0, 16}, {0, 8}});
  REQUIRE(plan.ranks[1].size() == 2);
  CHECK(plan.ranks[1][0] == Block{2, 0, 0, 0, 0, DType::bf16, {2, 4}, 0, {6, 1}, 12, {6, 1}});
  CHECK(plan.ranks[1][1] == Block{3, 0, 0, 1, 0, DType::bf16, {2, 2}, 4, {6, 1}, 16, {6, 1}});
  REQUIRE(plan.workers[1].size() == 2);
  CHECK(plan.workers[1][0] == Block{1, 0, 0, 1, 0, DType::bf16, {2, 2}, 0, {2, 1}, 4, {6, 1}});
  CHECK(plan.workers[1][1] == Block{3, 0, 0, 1, 0, DType::bf16, {2, 2}, 4, {2, 1}, 16, {6, 1}});
}

TEST_CASE("segments that continue each other are no boundary", "[layout][plan]") {
  Process worker = Process{}
                     .parameter("a", {6, 2})
                     .slot("a", {6, 2})
                     .region(0, {{{0, 2, 0, 2}, {2, 1, 4, 77}, {3, 3, 6, 2}}, {{0, 2, 0, 1}}});
  CHECK(plan_of({whole("a", {6, 2})}, {worker}).blocks == 1);
  CHECK(plan_of({worker}, {whole("a", {6, 2})}).blocks == 1);

  SECTION("but where the local address jumps, it is one inside a cell") {
    worker.declaration.parameters[0] = {"a", DType::bf16, {7, 2}, {7, 2}, {2, 1}};
    worker.declaration.regions[0].dims[0][2].local = 8;
    const Plan plan = plan_of({whole("a", {6, 2})}, {worker});
    CHECK(plan.cells.size() == 1);
    REQUIRE(plan.blocks == 1); // of two pieces at one distance
    CHECK(plan.workers[0][0].extents == Indices{2, 6});
    CHECK(plan.workers[0][0].local_strides == Indices{8, 1});
    CHECK(plan.ranks[0][0].local_strides == Indices{6, 1});
  }
  SECTION("and pieces of different lengths are blocks of their own") {
    worker.declaration.parameters[0] = {"a", DType::bf16, {7, 2}, {7, 2}, {2, 1}};
    worker.declaration.regions[0].dims[0] = {{0, 2, 0, 2}, {2, 4, 6, 2}};
    const Plan plan = plan_of({whole("a", {6, 2})}, {worker});
    CHECK(plan.cells.size() == 1);
    REQUIRE(plan.blocks == 2);
    CHECK(plan.workers[0][1].local_offset == 6);
    CHECK(plan.workers[0][1].extents == Indices{8});
  }
}

TEST_CASE("a transposed owner is walked in the order of its memory", "[layout][plan]") {
  const Declaration transposed =
    Process{}.parameter("a", {5, 3}).slot("a", {3, 5}).region(0, {{{0, 3, 0, 1}}, {{0, 5, 0, 3}}});
  const Plan plan = plan_of({transposed}, {whole("a", {3, 5})});
  REQUIRE(plan.blocks == 1);
  CHECK(plan.ranks[0][0].extents == Indices{5, 3});
  CHECK(plan.ranks[0][0].local_strides == Indices{3, 1});
  CHECK(plan.ranks[0][0].slot_strides == Indices{1, 5});
  CHECK(plan.workers[0][0].local_strides == Indices{1, 5});
}

TEST_CASE("dims merge only where they nest on every side", "[layout][plan]") {
  const Declaration padded_rows =
    Process{}.parameter("a", {3, 5}, {8, 1}).slot("a", {3, 5}).region(0, {{{0, 3, 0, 8}}, {{0, 5, 0, 1}}});
  const Plan plan = plan_of({whole("a", {3, 5})}, {whole("a", {3, 5}), padded_rows});
  REQUIRE(plan.blocks == 1);
  CHECK(plan.ranks[0][0].extents == Indices{3, 5});
  CHECK(plan.workers[1][0].local_strides == Indices{8, 1});
}

TEST_CASE("a tied parameter repeats the block, in parameter order", "[layout][plan]") {
  Process tied = whole("head", {4});
  tied.declaration.slots[0].name = "embed";
  tied.parameter("embed", {4}).region(0, {{{0, 4, 0, 1}}});
  const Plan plan = plan_of({whole("embed", {4})}, {tied});
  CHECK(plan.blocks == 1);
  REQUIRE(plan.workers[0].size() == 2);
  CHECK(plan.workers[0][0].id == plan.workers[0][1].id);
  CHECK(plan.workers[0][0].parameter == 0);
  CHECK(plan.workers[0][1].parameter == 1);
}

TEST_CASE("indices with the same readers are one cell, neighbours or not", "[layout][plan]") {
  // Worker 0 reads rows 0, 1, 4, 5; worker 1 rows 2, 3.
  const Declaration outer = Process{}.parameter("a", {4}).slot("a", {6}).region(0, {{{0, 2, 0, 1}, {4, 2, 2, 1}}});
  const Declaration inner = Process{}.parameter("a", {2}).slot("a", {6}).region(0, {{{2, 2, 0, 1}}});
  const Plan plan = plan_of({whole("a", {6})}, {outer, inner});
  CHECK(plan.cells == std::vector<Cell>{{0, 4}, {0, 2}});
  REQUIRE(plan.ranks[0].size() == 3);
  CHECK(plan.ranks[0][0].cell == 0);
  CHECK(plan.ranks[0][1].cell == 1);
  CHECK(plan.ranks[0][2].cell == 0);
}

TEST_CASE("pipeline stages own different names in one order", "[layout][plan]") {
  Process second = whole("w1", {2});
  second.parameter("b1", {1}).slot("b1", {1}).region(0, {{{0, 1, 0, 1}}});
  const std::vector<Declaration> ranks = {whole("w0", {2}), second};
  const auto slots = catalogue(ranks);
  REQUIRE(slots.has_value());
  REQUIRE(slots->size() == 3);
  CHECK((*slots)[0].name == "w0");
  CHECK((*slots)[1].name == "w1");
  CHECK((*slots)[2].name == "b1");
  const Plan plan = plan_of(ranks, {}, {"*"});
  CHECK(plan.ranks[0].size() == 1);
  REQUIRE(plan.ranks[1].size() == 2);
  CHECK(plan.ranks[1][1].id == 2);
}

TEST_CASE("the catalogue follows the parameters, not the order of the slots", "[layout][plan]") {
  Process rank;
  rank.slot("late", {1}).slot("early", {1}).slot("never", {0});
  rank.parameter("p", {1}).parameter("q", {1});
  rank.declaration.regions = {{1, 0, 0, {{{0, 1, 0, 1}}}}, {0, 1, 0, {{{0, 1, 0, 1}}}}};
  const auto slots = catalogue(std::vector<Declaration>{rank});
  REQUIRE(slots.has_value());
  CHECK((*slots)[0].name == "early");
  CHECK((*slots)[1].name == "late");
  CHECK((*slots)[2].name == "never");
}

TEST_CASE("tensors without elements are legal and have no block and no cell", "[layout][plan]") {
  const Plan plan = plan_of({whole("a", {0, 5})}, {whole("a", {0, 5})});
  CHECK(plan.slots.size() == 1);
  CHECK(plan.cells.empty());
  CHECK(plan.blocks == 0);
  CHECK(plan.windows == 0);
  CHECK(plan.ranks == std::vector<std::vector<Block>>(1));
  CHECK(plan.workers == std::vector<std::vector<Block>>(1));
  const Shape wide = {0, Index{1} << 62, Index{1} << 62}; // no elements, and strides that would not fit
  CHECK(plan_of({Process{}.parameter("a", wide, {1, 1, 1}).slot("a", wide).region(0, {{}, {}, {}})}, {}).blocks == 0);
}

TEST_CASE("a window ends before the parameter that would pass its bytes", "[layout][plan]") {
  Process rank;
  for (const auto& [name, size] : std::vector<std::pair<std::string, Index>>{{"a", 2}, {"b", 3}, {"c", 9}, {"d", 1}})
    rank.parameter(name, {size}).slot(name, {size}).region(0, {{{0, size, 0, 1}}});
  const auto windows = [&](std::uint64_t bytes) {
    std::vector<std::uint32_t> result;
    const Plan plan = plan_of({rank}, {rank}, {}, bytes);
    for (const Block& block : plan.ranks[0])
      result.push_back(block.window);
    CHECK(plan.windows == result.back() + 1);
    return result;
  };
  using Windows = std::vector<std::uint32_t>;
  CHECK(windows(UINT64_MAX) == Windows{0, 0, 0, 0});
  CHECK(windows(10) == Windows{0, 0, 1, 2}); // c alone passes it; bytes are 4, 6, 18, 2
  CHECK(windows(9) == Windows{0, 1, 2, 3});
  CHECK(windows(20) == Windows{0, 0, 1, 1});
  CHECK(windows(0) == Windows{0, 1, 2, 3});
}

TEST_CASE("an element that no rank provides is refused with its box", "[layout][plan]") {
  check_names(refusal({part("a", {4, 6}, 0, 0, 2), part("a", {4, 6}, 0, 3, 4)}, {whole("a", {4, 6})}),
              {"slot \"a\" [4, 6]", "no rank provides [2:3, 0:6]", "(6 elements in all)"});
}

TEST_CASE("an element that two ranks provide is refused with its box and their names", "[layout][plan]") {
  check_names(refusal({part("a", {4, 6}, 0, 0, 3), part("a", {4, 6}, 0, 2, 4)}, {whole("a", {4, 6})}),
              {"slot \"a\" [4, 6]", "[2:3, 0:6] is provided 2 times (6 elements in all)", "rank 0 (parameter \"a\")",
               "rank 1 (parameter \"a\")"});
  check_names(refusal({whole("s", {}), whole("s", {})}, {whole("s", {})}), {"slot \"s\" []: [] is provided 2 times"});
}

TEST_CASE("all errors come at once", "[layout][plan]") {
  Process rank = whole("a", {4});
  rank.slot("hole", {2}).slot("unread", {3}).region(0, {{{0, 3, 0, 1}}});
  Process worker = whole("a", {4});
  const std::string message = refusal({rank, whole("a", {4})}, {worker});
  check_names(message, {"slot \"a\"", "slot \"hole\" [2]: no rank provides [0:2]",
                        "slot \"hole\" [2]: no worker reads [0:2]", "slot \"unread\" [3]: no worker reads [0:3]"});
  CHECK(std::count(message.begin(), message.end(), '\n') == 3);
}

TEST_CASE("a long list of errors ends with their number", "[layout][plan]") {
  Process rank;
  for (int i = 0; i < 150; ++i) {
    const std::string name = "slot." + std::to_string(i);
    rank.parameter(name, {1}).slot(name, {1}).region(0, {{{0, 1, 0, 1}}});
  }
  const std::string message = refusal({rank}, {});
  check_names(message, {"slot.0\"", "slot.40\"", "... and "});
  CHECK(message.find("slot.149\"") == std::string::npos);
}

TEST_CASE("a slot that is listed as unused by its name and read all the same is refused", "[layout][plan]") {
  const auto four_each = [](const std::vector<std::string>& names) {
    Process process;
    for (const std::string& name : names)
      process.parameter(name, {4}).slot(name, {4}).region(0, {{{0, 4, 0, 1}}});
    return process;
  };
  const Declaration rank = four_each({"a", "b", "mtp.x"}), worker = four_each({"a", "mtp.x"});
  plan_of({rank}, {worker}, {"b"});
  plan_of({rank}, {worker}, {"*"}); // a pattern may match what is read beside what is not
  plan_of({rank}, {worker}, {"b", "mtp.*", "vision.*"});
  const std::string message = refusal({rank}, {worker}, {"a", "b", "mtp.x"});
  check_names(message, {"worker.unused lists slot \"a\"", "worker 0 in its parameter \"a\"",
                        "worker.unused lists slot \"mtp.x\""});
  CHECK(message.find("\"b\"") == std::string::npos);
  // A part may be read, and the rest listed.
  plan_of({whole("a", {4, 6})}, {part("a", {4, 6}, 1, 0, 3)}, {"a"});
}

TEST_CASE("a slot that no worker reads must be listed as unused", "[layout][plan]") {
  Process rank = whole("a", {4});
  rank.parameter("model.layers.7.bias", {2}).slot("model.layers.7.bias", {2}).region(0, {{{0, 2, 0, 1}}});
  check_names(refusal({rank}, {whole("a", {4})}), {"slot \"model.layers.7.bias\" [2]: no worker reads [0:2]"});
  refusal({rank}, {whole("a", {4})}, {"model.{l}.bias", "bias"});
  for (const char* pattern : {"model.layers.7.bias", "*.bias", "model.layers.{l}.bias", "*"}) {
    const Plan plan = plan_of({rank}, {whole("a", {4})}, {"other", pattern});
    CHECK(plan.blocks == 2);
    CHECK(plan.cells == std::vector<Cell>{{0, 4}, {1, 2}});
    CHECK(plan.workers[0].size() == 1);
  }
  check_names(refusal({rank}, {whole("a", {4})}, {"{unclosed"}), {"unused \"{unclosed\""});
}

TEST_CASE("workers may read a slot in parts, but not leave a part out", "[layout][plan]") {
  plan_of({whole("a", {4, 6})}, {part("a", {4, 6}, 1, 0, 3), part("a", {4, 6}, 1, 3, 6)});
  check_names(refusal({whole("a", {4, 6})}, {part("a", {4, 6}, 1, 0, 3), part("a", {4, 6}, 1, 4, 6)}),
              {"slot \"a\" [4, 6]: no worker reads [0:4, 3:4] (4 elements in all)"});
}

TEST_CASE("a slot that a worker reads and nobody provides is refused", "[layout][plan]") {
  check_names(refusal({whole("a", {4})}, {whole("a", {4}), whole("b", {4})}),
              {"slot \"b\": worker 1 reads it, no rank provides it"});
}

TEST_CASE("shapes and dtypes must agree", "[layout][plan]") {
  check_names(refusal({whole("a", {4}), whole("a", {5})}, {whole("a", {4})}),
              {"slot \"a\" is bfloat16 [4] on rank 0 but bfloat16 [5] on rank 1"});
  check_names(refusal({whole("a", {4})}, {whole("a", {2, 2})}),
              {"slot \"a\" is bfloat16 [4] on the trainer but bfloat16 [2, 2] on worker 0"});
  Process wide = whole("a", {4});
  wide.declaration.slots[0].dtype = DType::i32;
  check_names(refusal({wide}, {whole("a", {4})}), {"rank 0: parameter \"a\" is bfloat16, its slot \"a\" is int32"});
  wide.declaration.slots[0].dtype = DType::f32; // by a cast, which this worker does not expect
  check_names(refusal({wide}, {whole("a", {4})}), {"is float32 [4] on the trainer but bfloat16 [4] on worker 0"});
  wide.declaration.parameters[0].dtype = DType::f32;
  check_names(refusal({wide}, {whole("a", {4})}), {"is float32 [4] on the trainer but bfloat16 [4] on worker 0"});
  CHECK(!catalogue(std::vector<Declaration>{whole("a", {4}), wide}));
}

TEST_CASE("a declaration is not believed", "[layout][plan]") {
  constexpr Index huge = std::numeric_limits<Index>::max();
  Declaration rank = whole("a", {2, 3});
  Region& region = rank.regions[0];
  ParameterSpec& parameter = rank.parameters[0];

  SECTION("parameter index") {
    region.parameter = 1;
    check_names(refused_rank(rank), {"rank 0", "parameter 1 of 1"});
  }
  SECTION("slot index") {
    region.slot = 7;
    check_names(refused_rank(rank), {"slot 7 of 1"});
  }
  SECTION("number of dims") {
    region.dims.pop_back();
    check_names(refused_rank(rank), {"covers 1 dims of slot \"a\" [2, 3]"});
  }
  SECTION("segment past the slot") {
    region.dims[1] = {{1, 3, 0, 1}};
    check_names(refused_rank(rank), {"dim 1", "slot \"a\" [2, 3]"});
  }
  SECTION("segment whose end wraps") {
    region.dims[1] = {{1, huge, 0, 1}};
    check_names(refused_rank(rank), {"dim 1"});
  }
  SECTION("negative index, empty and negative segments") {
    for (const Segment& segment : {Segment{-1, 2, 0, 1}, Segment{0, 0, 0, 1}, Segment{0, -1, 0, 1},
                                   Segment{huge, 1, 0, 1}, Segment{std::numeric_limits<Index>::min(), 1, 0, 1}}) {
      region.dims[1] = {segment};
      check_names(refused_rank(rank), {"dim 1"});
    }
  }
  SECTION("segments out of order or overlapping") {
    region.dims[1] = {{1, 2, 1, 1}, {0, 1, 0, 1}};
    check_names(refused_rank(rank), {"dim 1"});
    region.dims[1] = {{0, 2, 0, 1}, {1, 2, 1, 1}};
    check_names(refused_rank(rank), {"dim 1"});
  }
  SECTION("addresses outside the buffer") {
    region.base = 1;
    check_names(refused_rank(rank), {"slot \"a\" lies at local elements 1 to 6, outside its buffer of shape [2, 3]"});
    region.base = -1;
    check_names(refused_rank(rank), {"lies at local elements -1 to 4"});
    region.base = 0;
    region.dims[0][0].stride = 4;
    check_names(refused_rank(rank), {"lies at local elements 0 to 6"});
    region.dims[0][0].stride = -3;
    check_names(refused_rank(rank), {"lies at local elements -3 to 2"});
  }
  SECTION("addresses that wrap") {
    region.base = huge;
    check_names(refused_rank(rank), {"reach past"});
    region.base = 0;
    region.dims[1][0].stride = huge;
    check_names(refused_rank(rank), {"reach past"});
    region.dims[1][0].stride = std::numeric_limits<Index>::min();
    check_names(refused_rank(rank), {"reach past"});
    region.dims[1][0] = {0, 3, huge, 1};
    check_names(refused_rank(rank), {"reach past"});
  }
  SECTION("a buffer without elements") {
    parameter.local_shape = {0, 3};
    check_names(refused_rank(rank), {"outside its buffer of shape [0, 3]"});
  }
  SECTION("strides of another length, or that wrap") {
    parameter.strides = {1};
    check_names(refused_rank(rank), {"1 strides for the local shape [2, 3]"});
    parameter.strides = {huge, huge};
    check_names(refused_rank(rank), {"reach past"});
  }
  SECTION("shapes that cannot be counted") {
    parameter.local_shape = {-2, 3};
    check_names(refused_rank(rank), {"parameter \"a\"", "negative extent"});
    parameter.local_shape = {2, 3};
    rank.slots[0].shape = {huge, huge};
    check_names(refused_rank(rank), {"slot \"a\"", "2^62"});
  }
  SECTION("unknown dtypes") {
    parameter.dtype = static_cast<DType>(200);
    check_names(refused_rank(rank), {"parameter \"a\" has the unknown dtype 200"});
    parameter.dtype = DType::bf16;
    rank.slots[0].dtype = static_cast<DType>(15);
    check_names(refused_rank(rank), {"slot \"a\" has the unknown dtype 15"});
  }
  SECTION("names twice") {
    rank.parameters.push_back(ParameterSpec(parameter));
    check_names(refused_rank(rank), {"parameter \"a\" is declared twice"});
    rank.parameters.pop_back();
    rank.slots.push_back(SlotSpec(rank.slots[0]));
    check_names(refused_rank(rank), {"slot \"a\" is declared twice"});
  }
  SECTION("and neither is a worker's") {
    region.base = 1;
    check_names(refusal({whole("a", {2, 3})}, {whole("a", {2, 3}), rank}), {"worker 1: parameter \"a\"", "outside"});
  }
}

TEST_CASE("the stride of a segment of one element means nothing", "[layout][plan]") {
  Declaration rank = whole("a", {1, 3});
  rank.regions[0].dims[0][0].stride = std::numeric_limits<Index>::max();
  CHECK(plan_of({rank}, {rank}).blocks == 1);
}

TEST_CASE("memory walked backwards has negative strides", "[layout][plan]") {
  const Declaration backwards = Process{}.parameter("a", {4}).slot("a", {4}).region(3, {{{0, 4, 0, -1}}});
  const Plan plan = plan_of({whole("a", {4})}, {backwards});
  REQUIRE(plan.workers[0].size() == 1);
  CHECK(plan.workers[0][0].local_offset == 3);
  CHECK(plan.workers[0][0].local_strides == Indices{-1});
}

TEST_CASE("expanded memory is refused on both sides", "[layout][plan]") {
  const Declaration expanded =
    Process{}.parameter("a", {2, 3}, {0, 1}).slot("a", {2, 3}).region(0, {{{0, 2, 0, 0}}, {{0, 3, 0, 1}}});
  check_names(refusal({expanded}, {whole("a", {2, 3})}), {"rank 0: parameter \"a\"", "may share an address"});
  Declaration worker = expanded;
  worker.parameters[0].local_shape = {9, 3}; // enough elements to be counted as room
  check_names(refusal({whole("a", {2, 3})}, {worker}), {"worker 0: parameter \"a\"", "may share an address"});
}

TEST_CASE("maps that lie over each other in a worker's parameter are refused", "[layout][plan]") {
  Process rank = whole("a", {4});
  rank.parameter("b", {4}).slot("b", {4}).region(0, {{{0, 4, 0, 1}}});
  Process worker = whole("a", {4});
  worker.slot("b", {4}).region(0, {{{0, 4, 0, 1}}});
  check_names(refusal({rank}, {worker}), {"worker 0: parameter \"a\" [4]", "over each other"});
}

TEST_CASE("a slot in too many cells is refused", "[layout][plan]") {
  std::vector<Declaration> workers;
  const Index side = 1100;
  Process diagonal; // each region alone in its rows and columns: side * side cells
  diagonal.parameter("a", {side}).slot("a", {side, side});
  for (Index i = 0; i < side; ++i)
    diagonal.region(i, {{{i, 1, 0, 1}}, {{i, 1, 0, 1}}});
  auto plan = compile_plan(std::vector<Declaration>{whole("a", {side, side})}, std::vector<Declaration>{diagonal},
                           std::vector<std::string>{"*"}, UINT64_MAX);
  REQUIRE(!plan);
  CHECK(plan.error().code == Code::limit_exceeded);
  check_names(plan.error().message, {"slot \"a\"", "cells"});
}

TEST_CASE("thousands of slots on 64 ranks compile", "[layout][plan]") {
  constexpr Index slots = 2000;
  constexpr Index ranks = 64;
  const Shape shape = {768, 2048};
  std::vector<Process> trainer(ranks);
  std::vector<Process> workers(4);
  for (Index s = 0; s < slots; ++s) {
    const std::string name = fmt::format("model.layers.{}.mlp.experts.{}.gate_proj.weight", s / 128, s % 128);
    for (Index r = 0; r < ranks; ++r)
      trainer[static_cast<std::size_t>(r)]
        .parameter(name, {12, 2048})
        .slot(name, shape)
        .region(0, {{{r * 12, 12, 0, 2048}}, {{0, 2048, 0, 1}}});
    for (Index w = 0; w < 4; ++w)
      workers[static_cast<std::size_t>(w)]
        .parameter(name, {384, 2048})
        .slot(name, shape)
        .region(0, {{{w % 2 * 384, 384, 0, 2048}}, {{0, 2048, 0, 1}}});
  }
  const Plan plan = plan_of({trainer.begin(), trainer.end()}, {workers.begin(), workers.end()}, {}, 256 << 20);
  CHECK(plan.blocks == slots * ranks);
  CHECK(plan.cells.size() == 2 * slots);
  CHECK(plan.workers[3].size() == slots * ranks / 2);
  CHECK(plan.windows == 24); // 85 tensors of 3 MiB fit 256 MiB
}
