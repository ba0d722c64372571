// A synthetic model of bf16 matrices, and what one rank or one worker holds of it: both cut the rows in two. Each
// update changes one element in `one_in`, scattered, by arithmetic on its number: any process can tell the bits of any
// version. Filling memory allocates nothing, and touches every page before the first update.
#pragma once

#include "deltawire/deltawire.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace deltawire::test {

struct DenseModel {
  static constexpr std::int64_t columns = 1024;
  static constexpr std::size_t tensors = 4;
  static constexpr std::uint32_t members = 2; ///< ranks, and workers
  static constexpr std::uint64_t one_in = 12;

  std::int64_t rows = 0; ///< of each tensor, a multiple of `members`

  [[nodiscard]] static DenseModel of_bytes(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t elements() const;
  [[nodiscard]] std::uint64_t bytes() const { return 2 * elements(); }

  [[nodiscard]] static std::string topology();
  [[nodiscard]] static std::string name(std::size_t tensor);
};

/// One rank's or worker's half of every tensor.
class DenseShards {
public:
  DenseShards(const DenseModel& model, std::uint32_t member);

  void add_to(Publisher& publisher) const;
  void bind_to(Subscriber& subscriber);

  /// Brings memory from the version before to this one; version 1 is the first.
  void change_to(Version version);

  /// Elements that differ from the trainer's at this version, worked out from their numbers alone.
  [[nodiscard]] std::uint64_t differences(Version version) const;

  [[nodiscard]] const std::vector<std::vector<std::uint16_t>>& bits() const noexcept { return bits_; }

private:
  DenseModel model_;
  std::uint64_t first_ = 0; ///< number of the first element in each tensor
  std::vector<std::vector<std::uint16_t>> bits_;
};

} // namespace deltawire::test
