// A whole run: starts the trainer ranks and the workers as processes of this same executable, connects them, and hears
// from them until they have ended. None outlives this process or a failure of another one.
#pragma once

#include "channel.hpp"
#include "record.hpp"
#include "settings.hpp"

#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace trainer {

/// What a child inherits: the numbers of its descriptors.
struct Seat {
  std::uint32_t index = 0;     ///< rank or worker
  pid_t parent = 0;            ///< with which it dies
  int events = -1;             ///< to the launcher
  std::vector<int> group;      ///< to the others of its side, in their order
  std::vector<int> other_side; ///< of rank 0: to the workers; of a worker: to rank 0
  int listening_socket = -1;   ///< of rank 0 with Sync::deltawire
  std::string master;          ///< its address
};

/// What a child tells the launcher: what kind of message it is comes first.
enum class Event : std::uint8_t {
  warming, ///< u32: steps so far
  record,  ///< UpdateRecord
  failed,  ///< text
  done,
};

struct RunEvents {
  std::function<void(std::uint32_t steps)> on_warming;
  std::function<void(const UpdateRecord&)> on_record;
};

/// Returns the records of all updates; throws std::runtime_error that says which process failed, and why.
[[nodiscard]] std::vector<UpdateRecord> launch(const Settings& settings, const RunEvents& events);

// For a child.

/// Dies with its parent from now on; throws where that has died already.
void die_with(pid_t parent);

} // namespace trainer
