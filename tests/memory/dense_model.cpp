#include "dense_model.hpp"

namespace deltawire::test {
namespace {

/// The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014).
std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

std::uint16_t first_bits(std::size_t tensor, std::uint64_t element) noexcept {
  return static_cast<std::uint16_t>(mix(element * DenseModel::tensors + tensor + 1) >> 48);
}

/// What an update flips of an element: 0 for most, and never twice the same bit.
std::uint16_t flipped(std::size_t tensor, std::uint64_t element, Version version) noexcept {
  const std::uint64_t number = (element * DenseModel::tensors + tensor + 1) ^ version << 48;
  return mix(number) % DenseModel::one_in == 0 ? static_cast<std::uint16_t>(1u << (version % 16)) : std::uint16_t{0};
}

} // namespace

DenseModel DenseModel::of_bytes(std::uint64_t bytes) {
  const std::uint64_t row_pair = std::uint64_t{2} * members * columns * tensors;
  return {static_cast<std::int64_t>(bytes / row_pair * members)};
}

std::uint64_t DenseModel::elements() const {
  return static_cast<std::uint64_t>(rows * columns) * tensors;
}

std::string DenseModel::topology() {
  return "[trainer]\nmesh = [[\"fsdp\", 2]]\n[[trainer.placement]]\nparameter = \"*\"\nshard = [\"fsdp:0\"]\n"
         "[worker]\nmesh = [[\"tp\", 2]]\n[[worker.placement]]\nparameter = \"*\"\nshard = [\"tp:0\"]\n";
}

std::string DenseModel::name(std::size_t tensor) {
  return "layers." + std::to_string(tensor) + ".weight";
}

DenseShards::DenseShards(const DenseModel& model, std::uint32_t member)
  : model_(model), first_(static_cast<std::uint64_t>(model.rows / DenseModel::members * DenseModel::columns) * member),
    bits_(DenseModel::tensors) {
  for (auto& shard : bits_)
    shard.assign(static_cast<std::size_t>(model.rows / DenseModel::members * DenseModel::columns), 0);
}

void DenseShards::add_to(Publisher& publisher) const {
  for (std::size_t t = 0; t < bits_.size(); ++t)
    publisher.add({DenseModel::name(t), DType::bf16, {model_.rows, DenseModel::columns}, bits_[t].data()});
}

void DenseShards::bind_to(Subscriber& subscriber) {
  for (std::size_t t = 0; t < bits_.size(); ++t)
    subscriber.bind(
      {DenseModel::name(t), DType::bf16, {model_.rows / DenseModel::members, DenseModel::columns}, bits_[t].data()});
}

void DenseShards::change_to(Version version) {
  for (std::size_t t = 0; t < bits_.size(); ++t)
    for (std::size_t i = 0; i < bits_[t].size(); ++i)
      if (version == 1)
        bits_[t][i] = first_bits(t, first_ + i);
      else
        bits_[t][i] ^= flipped(t, first_ + i, version);
}

std::uint64_t DenseShards::differences(Version version) const {
  std::uint64_t wrong = 0;
  for (std::size_t t = 0; t < bits_.size(); ++t)
    for (std::size_t i = 0; i < bits_[t].size(); ++i) {
      std::uint16_t expected = first_bits(t, first_ + i);
      for (Version v = 2; v <= version; ++v)
        expected ^= flipped(t, first_ + i, v);
      wrong += expected != bits_[t][i] ? 1 : 0;
    }
  return wrong;
}

} // namespace deltawire::test
