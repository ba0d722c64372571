#include "threads.hpp"

#include <chrono>
#include <condition_variable>
#include <thread>

namespace deltawire::replay {

namespace {

/// How long peers may take to end after one has failed.
constexpr std::chrono::seconds grace{10};

/// Counts the peers that still run, and wakes whoever waits at every event.
struct Running {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t peers = 0;
  std::size_t events = 0;
};

/// What the threads share; they may outlive the call.
struct Shared {
  std::shared_ptr<const Seats> seats;
  std::shared_ptr<const Sides> sides;
  std::shared_ptr<const std::vector<checkpoint::Checkpoint>> files;
  std::shared_ptr<Record> record;
  Running running;

  void note(const Event& event) {
    record->note(event);
    const std::lock_guard lock(running.mutex);
    running.peers -= std::holds_alternative<PeerEnded>(event) ? 1 : 0;
    ++running.events;
    running.changed.notify_all();
  }

  bool wait_until_held(std::size_t versions) {
    std::unique_lock lock(running.mutex);
    running.changed.wait(lock, [&] { return record->failed() || record->versions_held() >= versions; });
    return !record->failed();
  }

  void end(Peer peer, const Result<void>& result) {
    note(PeerEnded{peer, result ? std::nullopt : std::optional<Failure>(result.error())});
  }
};

} // namespace

bool run_in_threads(std::shared_ptr<const Seats> seats, std::shared_ptr<const Sides> sides,
                    std::shared_ptr<const std::vector<checkpoint::Checkpoint>> files,
                    const std::shared_ptr<Record>& record, Progress& progress) {
  const auto shared = std::make_shared<Shared>();
  shared->seats = std::move(seats);
  shared->sides = std::move(sides);
  shared->files = std::move(files);
  shared->record = record;
  shared->running.peers = shared->seats->trainers.size() + shared->seats->workers.size();

  std::vector<std::thread> threads;
  for (const TrainerSeat& seat : shared->seats->trainers)
    threads.emplace_back([shared, &seat] {
      shared->end({Peer::Side::trainer, seat.rank},
                  run_trainer(
                    seat, *shared->sides, *shared->files, [&](const Event& event) { shared->note(event); },
                    [&](std::size_t versions) { return shared->wait_until_held(versions); }));
    });
  for (const WorkerSeat& seat : shared->seats->workers)
    threads.emplace_back([shared, &seat] {
      shared->end({Peer::Side::worker, seat.index}, run_worker(seat, shared->sides->topology, *shared->files,
                                                               [&](const Event& event) { shared->note(event); }));
    });

  Running& running = shared->running;
  std::unique_lock lock(running.mutex);
  std::optional<std::chrono::steady_clock::time_point> give_up;
  std::size_t seen = 0;
  while (running.peers > 0) {
    const auto news = [&] { return running.events != seen; };
    if (!give_up)
      running.changed.wait(lock, news);
    else if (!running.changed.wait_until(lock, *give_up, news))
      break;
    seen = running.events;
    if (!give_up && record->failed())
      give_up = std::chrono::steady_clock::now() + grace;
    progress.show(record->versions_held(), record->versions());
  }
  const bool all_ended = running.peers == 0;
  lock.unlock();
  for (std::thread& thread : threads) {
    if (all_ended)
      thread.join();
    else
      thread.detach();
  }
  return all_ended;
}

} // namespace deltawire::replay
