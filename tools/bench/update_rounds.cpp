#include "update_rounds.hpp"

#include <algorithm>
#include <utility>

namespace deltawire::bench {

double Rounds::hardware(const Round& round) const noexcept {
  constexpr double line = 64; // bytes
  const auto lines = static_cast<double>(round.changes.trainer_lines + round.changes.worker_lines);
  return bytes / round.memory.compare +
         (lines * line + static_cast<double>(round.update.outcome.wire_bytes)) / round.memory.copy;
}

UpdateRounds::UpdateRounds(const UpdateSettings& settings, const ModelPlan& plan, std::byte* weights)
  : settings_(&settings), plan_(&plan), weights_(weights),
    limits_(std::min<std::size_t>(plan.bytes(), std::size_t{256} << 20)) {}

Result<UpdateRounds> UpdateRounds::start(const UpdateSettings& settings, const ModelPlan& plan, std::byte* weights,
                                         const std::string& topology) {
  UpdateRounds rounds(settings, plan, weights);
  if (!settings.own_kernels)
    return rounds;
  auto kernels = OwnKernels::make(plan, weights, topology, settings.overrides);
  if (!kernels)
    return pass_on(std::move(kernels));
  rounds.kernels_ = std::move(*kernels);
  return rounds;
}

Result<void> UpdateRounds::ended(TimedUpdate update) {
  ++ended_;
  if (ended_ > 1) { // the seed is no round
    const Outcome& outcome = update.outcome;
    if (outcome.changed != changes_.elements)
      return fail(Code::verification_failed, "verification failed: version {} counts {} changed elements, there are {}",
                  outcome.version, outcome.changed, changes_.elements);
    Round round{std::move(update), changes_, {}, {}};
    if (auto measured = measure(round); !measured)
      return measured;
    const std::size_t number = ended_ - 2;
    const std::size_t each = settings_->runs + 1;
    if (number % each == 0) // this one warms up
      measured_.push_back({settings_->densities[number / each], static_cast<double>(2 * plan_->elements()), {}});
    else
      measured_.back().rounds.push_back(std::move(round));
  }
  if (ended_ < updates())
    change();
  return {};
}

Result<void> UpdateRounds::measure(Round& round) {
  if (kernels_) {
    auto alone = kernels_->run();
    if (!alone)
      return pass_on(std::move(alone));
    round.kernels = *alone;
  }
  round.memory = limits_.measure();
  return {};
}

void UpdateRounds::change() {
  const double density = settings_->densities[(ended_ - 1) / (settings_->runs + 1)];
  changes_ = change_weights(*plan_, weights_, density / 100, settings_->spread, ended_);
}

Result<std::vector<Rounds>> UpdateRounds::finish() {
  for (std::uint32_t worker = 0; kernels_ && worker < plan_->shape().workers; ++worker)
    if (auto equal = compare_worker(*plan_, weights_, worker, kernels_->memory_of(worker)); !equal)
      return fail(Code::internal, "own kernels: {}", equal.error().message);
  return std::move(measured_);
}

} // namespace deltawire::bench
