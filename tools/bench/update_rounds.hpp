// Measuring whole updates: what is done between them, in whichever way the updates themselves are run. The weights
// change, and beside each update the bounds are measured on the same changes.
#pragma once

#include "machine.hpp"
#include "measure.hpp"
#include "own_kernels.hpp"
#include "synthetic_model.hpp"

#include "deltawire/deltawire.hpp"

#include <memory>
#include <string>
#include <vector>

namespace deltawire::bench {

struct UpdateSettings {
  ModelShape shape;
  std::vector<double> densities; ///< percent of the elements that change
  std::size_t runs = 5;          ///< rounds that count, after one that warms up
  Spread spread = Spread::uniform;
  std::vector<std::string> overrides; ///< "key=value" over the topology
  bool processes = false;             ///< ranks and workers are processes of their own
  bool own_kernels = true;            ///< measure them too: twice the memory of the weights more
};

struct TimedUpdate {
  Outcome outcome;
  double seconds = 0; ///< from the first rank's publish() to the word that all workers serve it
};

/// One update and the bounds measured beside it.
struct Round {
  TimedUpdate update;
  Changes changes;
  MemorySpeeds memory;
  KernelSeconds kernels; ///< zeros: not measured
};

/// What one density came to.
struct Rounds {
  double density = 0; ///< percent
  double bytes = 0;   ///< of the weights
  std::vector<Round> rounds;

  /// The median of what `value` says of a round.
  template <class Value>
  [[nodiscard]] double median_of(Value&& value) const {
    std::vector<double> values;
    for (const Round& round : rounds)
      values.push_back(static_cast<double>(value(round)));
    return median(std::move(values));
  }

  /// What reading weights and snapshot, writing the lines that changed on both sides, and moving what was sent would
  /// take at the memory's speed, seconds.
  [[nodiscard]] double hardware(const Round& round) const noexcept;
};

/// Goes through the densities, round by round. Used by one thread.
class UpdateRounds {
public:
  /// `weights`: memory of plan.bytes(), filled, borrowed and changed; `topology`: path of the file.
  [[nodiscard]] static Result<UpdateRounds> start(const UpdateSettings& settings, const ModelPlan& plan,
                                                  std::byte* weights, const std::string& topology);

  /// Updates in all: the seed, and a round each.
  [[nodiscard]] std::size_t updates() const noexcept { return 1 + settings_->densities.size() * (settings_->runs + 1); }

  /// An update has ended and all workers were compared: measures the bounds on its changes, and changes the weights for
  /// the next one, if there is one. Fails where the update did not count what was changed, or the kernels err.
  [[nodiscard]] Result<void> ended(TimedUpdate update);

  /// After the last update: all that was measured, in the order of the densities.
  [[nodiscard]] Result<std::vector<Rounds>> finish();

private:
  UpdateRounds(const UpdateSettings& settings, const ModelPlan& plan, std::byte* weights);
  [[nodiscard]] Result<void> measure(Round& round);
  void change();

  const UpdateSettings* settings_;
  const ModelPlan* plan_;
  std::byte* weights_;
  std::unique_ptr<OwnKernels> kernels_; ///< null: not measured
  MemoryLimits limits_;
  std::size_t ended_ = 0; ///< updates so far
  Changes changes_;       ///< those of the next update
  std::vector<Rounds> measured_;
};

} // namespace deltawire::bench
