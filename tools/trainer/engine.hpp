// A rollout worker's inference engine: its tensor-parallel part of the policy, packed, in bf16, and what it derives
// from the weights (fp32 copies, which its arithmetic uses). Workers sample in step and exchange activations. It knows
// nothing of how its weights get here.
#pragma once

#include "channel.hpp"
#include "rollouts.hpp"
#include "settings.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trainer {

class Engine {
public:
  /// Weights are zero until somebody writes them. `group`: the workers, of which this is one.
  Engine(Group group, const Settings& settings);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Memory of a packed parameter, bf16, row-major; throws where the engine has none of that name and shape.
  [[nodiscard]] void* weights(const std::string& name, const std::vector<std::int64_t>& shape);

  // Around a change of the weights. Thread-safe.
  void pause();                          ///< returns when nothing reads them; nothing will until resume()
  void refresh(const std::string& name); ///< derives anew what depends on this parameter; while paused
  void resume(std::uint64_t version);    ///< samples with them again

  /// Sync::copy: takes the weights from the bits of all whole parameters (Learner::whole_weights).
  void load(std::span<const std::byte> whole);

  /// Waits until it has the version that is asked for. Every worker is asked for the same, and has the same answers.
  [[nodiscard]] Rollouts sample(const RolloutRequest& request);

private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns when the trainer has warmed up and updates will come.
void await_updates(Channel& trainer);

/// Does what the trainer orders from then on, until it says stop.
void serve(Engine& engine, Channel& trainer);

} // namespace trainer
