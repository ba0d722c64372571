// All ranks and workers of a model of many equal slots in this process, through the facade, over the in-process
// transport, with as many chunks whatever the model's size. What an update changes is the same for every model: one
// element in each of some slots, which lie evenly over all of them. Used by one thread. After the constructor nothing
// here allocates beyond what the facade's calls do.
#pragma once

#include "deltawire/deltawire.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace deltawire::test {

struct SlotModel {
  static constexpr std::uint32_t members = 2; ///< ranks, and workers: both cut the rows of every slot
  static constexpr std::int64_t columns = 64;

  std::size_t slots = 0;
  std::int64_t rows = 0;   ///< of a slot, even
  std::size_t touched = 0; ///< slots in which an update changes something
  std::size_t chunks = 8;  ///< of each rank

  [[nodiscard]] std::size_t shard_elements() const { return static_cast<std::size_t>(rows / members * columns); }
  [[nodiscard]] std::string topology() const;
};

class SlotSession {
public:
  /// Every member with its memory, connected.
  explicit SlotSession(const SlotModel& model);
  ~SlotSession();
  SlotSession(const SlotSession&) = delete;
  SlotSession& operator=(const SlotSession&) = delete;

  /// Changes the trainer's memory.
  void train();
  /// Publishes on every rank and waits; the root's outcome. Throws when it was not committed.
  Outcome update();

  /// Whether every worker holds what the trainer has.
  [[nodiscard]] bool equal() const { return trained_ == served_; }

private:
  SlotModel model_;
  std::uint64_t step_ = 1;
  std::vector<std::vector<std::uint16_t>> trained_, served_; ///< by member: slot after slot
  std::vector<Publisher> publishers_;
  std::vector<Subscriber> subscribers_;
  std::vector<Ticket> tickets_;
};

} // namespace deltawire::test
