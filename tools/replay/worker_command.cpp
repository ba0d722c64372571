#include "worker_command.hpp"

#include "worker_seat.hpp"

namespace deltawire::replay {

namespace {

void print_version(const Event& event) {
  const auto* held = std::get_if<VersionHeld>(&event);
  if (held == nullptr)
    return;
  const char* proof = held->proof == VersionHeld::Proof::none    ? ""
                      : held->proof == VersionHeld::Proof::equal ? ", verified"
                                                                 : ", DIFFERENT";
  (void)print_out(fmt::format("version {}: {} elements of {} tensors written{}\n", held->version, held->elements,
                              held->tensors, proof));
}

/// Keeps count of the proofs on their way to the sink.
struct Proofs {
  const EventSink& sink;
  std::size_t equal = 0;
  std::string first_difference;

  void note(const Event& event) {
    if (const auto* held = std::get_if<VersionHeld>(&event)) {
      equal += held->proof == VersionHeld::Proof::equal ? 1 : 0;
      if (held->proof == VersionHeld::Proof::different && first_difference.empty())
        first_difference = fmt::format("version {}: {}", held->version, held->difference);
    }
    sink(event);
  }

  [[nodiscard]] Result<void> verdict(std::size_t versions) const {
    if (!first_difference.empty())
      return fail(Code::verification_failed, "verification failed: {}", first_difference);
    if (equal != versions)
      return fail(
        Code::peer_failed,
        "{} of {} versions reached this worker, all of them right, when the session ended: it joined late, was "
        "left out of updates (the root's messages say why), or its trainer stopped early",
        equal, versions);
    return {};
  }
};

Result<void> work(const WorkerCommand& command, const EventSink& sink) {
  auto sides = open_sides(command.topology, command.overrides);
  if (!sides)
    return pass_on(std::move(sides));
  if (command.index >= sides->workers())
    return fail(Code::invalid_argument, "--index {}: {} has {} workers, 0 to {}", command.index, command.topology,
                sides->workers(), sides->workers() - 1);
  auto files = open_checkpoints(command.verify);
  if (!files)
    return pass_on(std::move(files));
  Proofs proofs{sink, 0, {}};
  const WorkerSeat seat{command.topology, command.overrides, command.index, command.dump, command.dump_each};
  auto ran = run_worker(seat, sides->topology, *files, [&proofs](const Event& event) { proofs.note(event); });
  if (!ran || command.ties.is_child()) // the parent hears of each version and judges
    return ran;
  return proofs.verdict(files->size());
}

} // namespace

ExitStatus worker_command(const WorkerCommand& command) {
  return run_as({Peer::Side::worker, command.index}, command.ties, print_version,
                [&](const EventSink& sink) { return work(command, sink); });
}

} // namespace deltawire::replay
