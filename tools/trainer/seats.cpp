#include "seats.hpp"

#include "copied.hpp"
#include "embed.hpp"
#include "engine.hpp"
#include "training.hpp"

#include <exception>
#include <string_view>

#include <fmt/format.h>

namespace trainer {

namespace {

/// Channels to processes of one kind, in order; without the own one where `own` is of this kind.
std::vector<Channel> channels(const std::vector<int>& descriptors, std::string_view kind, int own,
                              std::chrono::nanoseconds deadline) {
  std::vector<Channel> list;
  int index = 0;
  for (const int descriptor : descriptors) {
    index += index == own ? 1 : 0;
    list.emplace_back(descriptor, fmt::format("{} {}", kind, index++), deadline);
  }
  return list;
}

std::vector<std::string> with_master(const Settings& settings, const Seat& seat) {
  std::vector<std::string> overrides = settings.overrides;
  overrides.push_back("transport.master=" + seat.master);
  return overrides;
}

/// `work` with a channel to the launcher, which then hears how it went.
template <class Work>
int run_as_child(const Seat& seat, const Settings& settings, Work&& work) {
  die_with(seat.parent);
  Channel events(seat.events, "the launcher", settings.deadline);
  try {
    work(events);
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    events.send(Writer().put(Event::failed).put(std::span<const char>(text)).take());
    return 3;
  }
  events.send(Writer().put(Event::done).take());
  return 0;
}

} // namespace

int trainer_rank(const Seat& seat, const Settings& settings) {
  return run_as_child(seat, settings, [&](Channel& events) {
    Training training(
      Group(seat.index, channels(seat.group, "trainer rank", static_cast<int>(seat.index), settings.deadline)),
      channels(seat.other_side, "worker", -1, settings.deadline), settings);
    if (seat.index == 0)
      training.on_record = [&](const UpdateRecord& record) {
        events.send(Writer().put(Event::record).put(record).take());
      };
    training.warm_up([&](std::uint32_t steps) { events.send(Writer().put(Event::warming).put(steps).take()); });
    if (settings.sync == Sync::deltawire)
      train_with_deltawire(settings.topology,
                           {.rank = seat.index,
                            .world = rank_count,
                            .overrides = with_master(settings, seat),
                            .listening_socket = seat.listening_socket},
                           training);
    else
      train_with_copies(training);
    training.stop_workers();
  });
}

int rollout_worker(const Seat& seat, const Settings& settings) {
  return run_as_child(seat, settings, [&](Channel&) {
    // Longer than the trainer waits for its workers: it is the one that knows which of them is late.
    Channel trainer = std::move(channels(seat.other_side, "trainer rank", -1, 2 * settings.deadline).front());
    Engine engine(Group(seat.index, channels(seat.group, "worker", static_cast<int>(seat.index), settings.deadline)),
                  settings);
    await_updates(trainer);
    if (settings.sync == Sync::deltawire)
      serve_with_deltawire(settings.topology, {.worker = seat.index, .overrides = with_master(settings, seat)}, engine,
                           trainer);
    else
      serve_with_copies(engine, trainer);
  });
}

} // namespace trainer
