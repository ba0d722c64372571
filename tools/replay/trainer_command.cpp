#include "trainer_command.hpp"

#include "message.hpp"
#include "missed_versions.hpp"
#include "table.hpp"
#include "trainer_seat.hpp"

namespace deltawire::replay {

namespace {

/// Workers that an update did not reach, on standard error.
void tell_missed(MissedVersions& missed, const Event& event) {
  if (const auto* ended = std::get_if<UpdateEnded>(&event); ended != nullptr && ended->outcome.committed)
    for (const std::string& line : missed.update_over(ended->outcome))
      print_error({Code::peer_failed, line});
}

void print_update(const Event& event) {
  const auto* ended = std::get_if<UpdateEnded>(&event);
  if (ended == nullptr || !ended->outcome.committed)
    return;
  const Outcome& outcome = ended->outcome;
  (void)print_out(fmt::format("version {}: {}, {} of {} elements changed, {} sent, committed after {:.1f} ms\n",
                              outcome.version, outcome.seed ? "seed" : "delta", outcome.changed, outcome.elements,
                              short_bytes(outcome.wire_bytes), outcome.committed_s * 1e3));
}

} // namespace

ExitStatus trainer_command(const TrainerCommand& command) {
  return run_as(
    {Peer::Side::trainer, command.rank}, command.ties, print_update, [&](const EventSink& sink) -> Result<void> {
      auto sides = open_sides(command.topology, command.overrides);
      if (!sides)
        return pass_on(std::move(sides));
      if (command.rank >= sides->ranks())
        return fail(Code::invalid_argument, "--rank {}: {} has {} trainer ranks, 0 to {}", command.rank,
                    command.topology, sides->ranks(), sides->ranks() - 1);
      auto files = open_checkpoints(command.checkpoints);
      if (!files)
        return pass_on(std::move(files));
      if (!command.ties.is_child()) // the parent has checked it
        if (auto fits = check_layout(*sides, files->front()); !fits)
          return fits;
      MissedVersions missed;
      const auto told = [&](const Event& event) {
        sink(event);
        if (!command.ties.is_child()) // the parent hears it all
          tell_missed(missed, event);
      };
      auto ran = run_trainer(
        {command.topology, command.overrides, command.rank, command.listening_socket, command.parts}, *sides, *files,
        told, command.ties.is_child() ? turns_from(command.ties.events_descriptor) : at_once());
      if (ran && !missed.first().empty())
        return fail(Code::peer_failed, "not every version reached every worker; the first: {}", missed.first());
      return ran;
    });
}

} // namespace deltawire::replay
