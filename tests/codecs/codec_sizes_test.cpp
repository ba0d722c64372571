// What the codecs are for: the updates of a real training run take little more than their entropy.
#include "catch.hpp"
#include "codecs/trace_blocks.hpp"

#include <fmt/format.h>

using namespace deltawire;

TEST_CASE("the updates of the small trace take at most 1.1 times the entropy of gaps and differences") {
  const auto sides = replay::open_sides(std::string(DELTAWIRE_TOPOLOGIES) + "/trace.toml", {});
  REQUIRE(sides);
  std::vector<std::string> paths;
  for (int step = 0; step < 4; ++step)
    paths.push_back(fmt::format("{}/trace/trainer/step-{:02}.safetensors", DELTAWIRE_TEST_DATA, step));
  const auto files = replay::open_checkpoints(paths);
  REQUIRE(files);
  auto trace = test::TraceBlocks::make(*sides, files->front());
  REQUIRE(trace);
  std::uint64_t dense = 0;
  for (const checkpoint::TensorView& tensor : files->front().tensors())
    dense += tensor.data.size();
  for (std::size_t step = 1; step < files->size(); ++step) {
    trace->take_values((*files)[step]);
    const double entropy = trace->entropy().bytes();
    const auto sizes = trace->encode({});
    const double bytes = static_cast<double>(sizes.bytes - sizes.framing) / static_cast<double>(sizes.changes);
    CAPTURE(step, sizes.changes, bytes, entropy, sizes.pieces, sizes.framing);
    CHECK(bytes <= 1.1 * entropy);
    CHECK(sizes.bytes < dense);
    CHECK(sizes.framing <= 12 * sizes.pieces);
    for (unsigned codec = 0; codec < delta::position_codecs; ++codec)
      for (const bool ulp : {false, true})
        CHECK(sizes.bytes <= trace->encode({static_cast<delta::PositionCodec>(codec), ulp}).bytes);
    if (delta::can_compress()) {
      CHECK(trace->encode({{}, true, true}).bytes <= sizes.bytes);
      CHECK(trace->encode({{}, false, true}).bytes < trace->encode({{}, false}).bytes);
    }
    trace->refresh();
  }
}
