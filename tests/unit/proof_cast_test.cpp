// The proof's casts against an oracle that searches for the nearest value, and a proof of cast parameters against
// values written by hand.
#include "cast_oracle.hpp"
#include "catch.hpp"
#include "config/topology.hpp"
#include "proof_values.hpp"
#include "replay/proof/cast.hpp"

#include <cstring>

using namespace deltawire;
using namespace deltawire::replay;
using test::ScratchFolder;

namespace {

template <class Element>
std::vector<std::byte> bytes_of(const std::vector<Element>& elements) {
  const auto bytes = std::as_bytes(std::span(elements));
  return {bytes.begin(), bytes.end()};
}

} // namespace

TEST_CASE("the proof's casts are the nearest values, and exact where they widen") {
  std::vector<std::uint32_t> wide;
  std::vector<std::uint16_t> narrow;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x0FFFu, 0x1000u, 0x1001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
      wide.push_back(upper << 16 | lower);
    narrow.push_back(static_cast<std::uint16_t>(upper));
  }
  for (const DType dtype : {DType::bf16, DType::f16}) {
    CAPTURE(static_cast<int>(dtype));
    std::vector<std::uint16_t> narrowed;
    for (const std::uint32_t bits : wide)
      narrowed.push_back(static_cast<std::uint16_t>(test::on_wire(bits, DType::f32, dtype)));
    const bool nearest = proof::cast_elements(bytes_of(wide), DType::f32, dtype) == bytes_of(narrowed);
    CHECK(nearest);
    std::vector<std::uint32_t> widened;
    for (const std::uint16_t bits : narrow)
      widened.push_back(static_cast<std::uint32_t>(test::on_wire(bits, dtype, DType::f32)));
    const bool exact = proof::cast_elements(bytes_of(narrow), dtype, DType::f32) == bytes_of(widened);
    CHECK(exact);
  }
}

TEST_CASE("a worker must hold what fp32 parameters are cast to, and others as they are") {
  const ScratchFolder folder;
  const std::vector<std::uint32_t> weight{0x3DCCCCCD, 0x3F808000, 0x7F800001, 0x80000001};
  const std::vector<std::uint32_t> bias{0x3DCCCD53, 0xBE800000};
  const std::vector<std::int64_t> count{1ll << 32};
  const std::vector<std::byte> weight_bytes = bytes_of(weight);
  const std::vector<std::byte> bias_bytes = bytes_of(bias);
  const std::vector<std::byte> count_bytes = bytes_of(count);
  const std::vector<checkpoint::TensorToWrite> tensors{{"bias", DType::f32, {2}, bias_bytes},
                                                       {"count", DType::i64, {1}, count_bytes},
                                                       {"weight", DType::f32, {2, 2}, weight_bytes}};
  REQUIRE(checkpoint::write(folder.path("masters"), tensors));
  const auto file = checkpoint::Checkpoint::open(folder.path("masters"));
  REQUIRE(file);

  config::Topology topology;
  topology.trainer.wire_dtype = {DType::bf16};
  topology.trainer.placements = {{"bias", {}, "f.toml:3", {}, layout::WireDType{}}};
  topology.worker.mesh = *layout::Mesh::make({{"tp", 2}});
  topology.worker.placements = {{"weight", {"tp:0"}, "f.toml:9"}};
  const auto proof = Proof::make(topology, *file, 1);
  INFO((proof ? "" : proof.error().message));
  REQUIRE(proof);
  std::vector<std::uint16_t> lower{0x7FC0, 0x8000};
  std::vector<std::uint32_t> held_bias = bias;
  const std::vector<WorkerTensor> held{{"bias", DType::f32, {2}, std::as_bytes(std::span(held_bias))},
                                       {"count", DType::i64, {1}, count_bytes},
                                       {"weight", DType::bf16, {1, 2}, std::as_bytes(std::span(lower))}};
  const auto compared = proof->compare(*file, held);
  INFO((compared ? "" : compared.error().message));
  REQUIRE(compared);
  CHECK(*compared == 5);
  lower[1] = 0x0000;
  const auto differing = proof->compare(*file, held);
  REQUIRE_FALSE(differing);
  CHECK_THAT(differing.error().message, test::contains("holds 0x0000, must be 0x8000 ('weight'"));
  lower[1] = 0x8000;
  held_bias[0] ^= 1;
  CHECK_FALSE(proof->compare(*file, held));
  // Without the cast it must be fp32.
  topology.trainer.wire_dtype = {};
  const auto plain = Proof::make(topology, *file, 1);
  REQUIRE(plain);
  CHECK_FALSE(plain->compare(*file, held));
  // And a cast that there is not is refused here too.
  topology.trainer.placements.push_back({"count", {}, "f.toml:5", {}, layout::WireDType{DType::bf16}});
  test::check_refused(Proof::make(topology, *file, 1), "'count' is int64, and there is no cast to bfloat16");
}
