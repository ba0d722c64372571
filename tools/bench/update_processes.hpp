// Trainer ranks and workers of a synthetic model as processes of this same executable, over TCP. The trainer's weights
// lie in memory that all of them share: ranks publish it, workers compare themselves with it.
#pragma once

#include "update_rounds.hpp"

#include "replay/child_ties.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace deltawire::bench {

/// Memory that child processes inherit by its descriptor. Move-only owner.
class SharedArray {
public:
  /// Fails with Code::internal where the system gives none.
  [[nodiscard]] static Result<SharedArray> make(std::size_t bytes);
  /// Maps what the parent made.
  [[nodiscard]] static Result<SharedArray> inherited(int descriptor, std::size_t bytes);

  SharedArray(SharedArray&& other) noexcept;
  SharedArray& operator=(SharedArray&& other) noexcept;
  ~SharedArray();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }

private:
  SharedArray(int descriptor, std::byte* data, std::size_t bytes)
    : descriptor_(descriptor), data_(data), bytes_(bytes) {}
  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Runs all updates of `rounds`, which changes `weights` between them. Fails as replay in processes does.
/// The processes' total is Outcome::committed_s. Requires a single-threaded process.
[[nodiscard]] Result<void> run_in_processes(const UpdateSettings& settings, const SharedArray& weights,
                                            const std::string& topology, UpdateRounds& rounds);

/// The command line of one of them; not for people.
struct PeerCommand {
  std::string topology;
  std::vector<std::string> overrides;
  std::int64_t rank = -1;  ///< -1: a worker
  std::int64_t index = -1; ///< of a worker
  ModelShape shape;
  std::size_t updates = 0;
  int weights = -1;          ///< descriptor
  int listening_socket = -1; ///< root
  replay::ChildTies ties;
};

[[nodiscard]] replay::ExitStatus peer_command(const PeerCommand& command);

} // namespace deltawire::bench
