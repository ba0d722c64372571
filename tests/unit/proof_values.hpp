// Checkpoints of counted values, and what the proof must say of workers that hold some of them.
#pragma once

#include "catch.hpp"
#include "replay/proof.hpp"
#include "replay/proof/rules.hpp"
#include "scratch_folder.hpp"
#include "text_matchers.hpp"

#include <cstring>
#include <numeric>

namespace deltawire::test {

using Values = std::vector<std::uint16_t>;

inline std::span<const std::byte> bytes_of(const Values& values) {
  return std::as_bytes(std::span(values));
}

/// A checkpoint of u16 tensors that count up from 0: an element's value is its place. The next tensor counts on from
/// there where `on` is true.
inline checkpoint::Checkpoint counting_file(const ScratchFolder& folder,
                                            const std::vector<std::pair<std::string, layout::Shape>>& tensors,
                                            bool on = false) {
  std::vector<Values> storage;
  std::vector<checkpoint::TensorToWrite> to_write;
  storage.reserve(tensors.size());
  std::uint16_t next = 0;
  for (const auto& [name, shape] : tensors) {
    Values& values = storage.emplace_back(static_cast<std::size_t>(replay::proof::count_of(shape)));
    std::iota(values.begin(), values.end(), next);
    next = static_cast<std::uint16_t>(on ? next + values.size() : 0);
    to_write.push_back({name, DType::u16, shape, bytes_of(values)});
  }
  REQUIRE(checkpoint::write(folder.path("counting"), to_write));
  auto file = checkpoint::Checkpoint::open(folder.path("counting"));
  REQUIRE(file);
  return *file;
}

struct Held {
  std::string name;
  layout::Shape shape;
  Values values;
};

/// The worker must hold exactly this, and every other value of every element must be noticed.
inline void check_holds(const Result<replay::Proof>& proof, const checkpoint::Checkpoint& file,
                        std::vector<Held> held) {
  INFO((proof ? "" : proof.error().message));
  REQUIRE(proof);
  std::vector<replay::WorkerTensor> tensors;
  std::size_t elements = 0;
  for (const Held& tensor : held) {
    tensors.push_back({tensor.name, DType::u16, tensor.shape, bytes_of(tensor.values)});
    elements += tensor.values.size();
  }
  const auto compared = proof->compare(file, tensors);
  INFO((compared ? "" : compared.error().message));
  REQUIRE(compared);
  CHECK(*compared == elements);
  for (Held& tensor : held)
    for (std::uint16_t& value : tensor.values) {
      value ^= 0x8000;
      CHECK(!proof->compare(file, tensors));
      value ^= 0x8000;
    }
}

inline void check_refused(const Result<replay::Proof>& proof, const std::string& why) {
  REQUIRE(!proof);
  CHECK_THAT(proof.error().message, contains(why));
}

} // namespace deltawire::test
