#include "telemetry/updates.hpp"

#include "telemetry/catalogue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

namespace deltawire::telemetry {

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB"};
  auto amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; amount >= 1024 && unit + 1 < units.size(); ++unit)
    amount /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", amount, units[unit]);
}

namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

std::uint64_t natural(std::int64_t ns) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, ns));
}

std::string_view name_of(UpdateFacts::Kind kind) {
  switch (kind) {
  case UpdateFacts::Kind::seed:
    return "seed";
  case UpdateFacts::Kind::delta:
    return "delta";
  case UpdateFacts::Kind::fold:
    return "fold";
  }
  return "";
}

std::uint64_t times(std::uint64_t bytes, std::uint64_t count) {
  return bytes > unlimited / count ? unlimited : bytes * count;
}

} // namespace

void UpdateMeter::update_over(const UpdateFacts& facts) {
  Registry& metrics = *registry_;
  metrics
    .counter(family::updates,
             {{"kind", std::string(name_of(facts.kind))}, {"result", facts.committed ? "committed" : "failed"}})
    .add();
  metrics.gauge(family::update_density)
    .set(facts.elements == 0 ? 0
                             : static_cast<std::uint64_t>(1e6 * static_cast<double>(facts.changed) /
                                                          static_cast<double>(facts.elements)));
  metrics.gauge(family::update_changed_elements).set(facts.changed);
  metrics.gauge(family::update_wire_bytes).set(facts.wire_bytes);
  metrics.gauge(family::update_gather_bytes).set(facts.gather_bytes);
  metrics.gauge(family::update_captured_seconds).set(natural(facts.captured_ns));
  for (const Phase phase : all_phases) {
    const PhaseSpan& span = facts.phases[static_cast<std::size_t>(phase)];
    metrics.gauge(family::update_phase_seconds, {{"phase", std::string(to_string(phase))}})
      .set(natural(span.end_ns - span.begin_ns));
  }
  metrics.counter(family::changed_elements).add(facts.changed);
  metrics.counter(family::wire_bytes).add(facts.wire_bytes);
  metrics.counter(family::gather_bytes).add(facts.gather_bytes);
  if (facts.committed) {
    committed_version_ = facts.version;
    metrics.histogram(family::update_committed_seconds).record(natural(facts.committed_ns));
    metrics.histogram(family::update_pause_seconds).record(natural(facts.pause_ns));
  }
  metrics.gauge(family::version).set(committed_version_);
  for (const UpdateFacts::Worker& worker : facts.workers)
    worker_fared(worker);
}

void UpdateMeter::worker_fared(const UpdateFacts::Worker& worker) {
  Registry& metrics = *registry_;
  const std::string index = std::to_string(worker.index);
  const Labels labels{{"worker", index}};
  metrics.gauge(family::worker_version, labels).set(worker.version);
  metrics.gauge(family::worker_lag, labels)
    .set(committed_version_ > worker.version ? committed_version_ - worker.version : 0);
  metrics.gauge(family::worker_pause_seconds, labels).set(natural(worker.pause_ns));
  metrics.gauge(family::worker_digest_ok, labels).set(worker.digest_ok ? 1 : 0);
  std::string& state = states_[worker.index];
  if (!state.empty())
    metrics.gauge(family::worker_state, {{"worker", index}, {"state", state}}).set(0);
  state = worker.state;
  metrics.gauge(family::worker_state, {{"worker", index}, {"state", state}}).set(1);
}

std::vector<Warning> WarningWatch::update_over(const UpdateFacts& facts, std::uint64_t own_changes) {
  std::vector<Warning> out;
  about_own_shard(facts, own_changes, out);
  if (caps_.rank == 0) {
    about_empty_deltas(facts, out);
    about_density(facts, out);
    about_workers(facts, out);
    about_caps(facts, out);
  }
  return out;
}

void WarningWatch::about_empty_deltas(const UpdateFacts& facts, std::vector<Warning>& out) {
  const bool another_step = facts.step != std::exchange(last_step_, facts.step);
  if (facts.kind != UpdateFacts::Kind::delta || facts.changed != 0) {
    empty_deltas_ = 0;
    return;
  }
  if (!facts.committed || !another_step || ++empty_deltas_ != patience)
    return;
  out.push_back(
    {"empty_delta",
     fmt::format("no element has changed in {} updates up to version {}, though the trainer's step went on "
                 "(now {}): is the optimizer stepping the tensors that were added, or are its steps smaller "
                 "than the dtype can hold?",
                 patience, facts.version, facts.step)});
}

void WarningWatch::about_own_shard(const UpdateFacts& facts, std::uint64_t own_changes, std::vector<Warning>& out) {
  const bool idle = own_changes == std::exchange(own_changes_, own_changes);
  if (!idle || caps_.own_elements == 0) {
    idle_updates_ = 0;
    return;
  }
  if (!facts.committed || facts.kind != UpdateFacts::Kind::delta || facts.changed == 0 || ++idle_updates_ != patience)
    return;
  out.push_back({"idle_shard",
                 fmt::format("rank {}: none of its {} elements has changed in {} updates up to version {}, while other "
                             "ranks' did: were the tensors added that its optimizer steps (Publisher::rebind after a "
                             "move)?",
                             caps_.rank, caps_.own_elements, patience, facts.version)});
}

void WarningWatch::about_density(const UpdateFacts& facts, std::vector<Warning>& out) {
  const bool all_served = std::exchange(
    all_served_, facts.committed && std::all_of(facts.workers.begin(), facts.workers.end(),
                                                [&](const auto& worker) { return worker.version == facts.version; }));
  if (!facts.committed)
    return;
  const bool sent_to_all = std::none_of(facts.workers.begin(), facts.workers.end(),
                                        [](const UpdateFacts::Worker& worker) { return worker.matched; });
  if (facts.kind == UpdateFacts::Kind::seed && dense_bytes_ == 0 && all_served_ && sent_to_all)
    dense_bytes_ = facts.wire_bytes;
  // Of an update that brought nobody anything but its own changes.
  if (facts.kind != UpdateFacts::Kind::delta || !all_served || !all_served_ || dense_said_ || dense_bytes_ == 0 ||
      facts.elements == 0 || facts.wire_bytes < dense_bytes_)
    return;
  dense_said_ = true;
  out.push_back(
    {"dense",
     fmt::format("version {}: {:.1f} % of the elements changed and took {} on the wire, {:.2f} times what "
                 "sending all of them took: this run has no sparsity to gain from",
                 facts.version, 100.0 * static_cast<double>(facts.changed) / static_cast<double>(facts.elements),
                 bytes_text(facts.wire_bytes),
                 static_cast<double>(facts.wire_bytes) / static_cast<double>(dense_bytes_))});
}

void WarningWatch::about_workers(const UpdateFacts& facts, std::vector<Warning>& out) {
  if (facts.committed)
    committed_version_ = facts.version;
  for (const UpdateFacts::Worker& worker : facts.workers) {
    std::uint32_t& behind = behind_[worker.index];
    if (worker.version >= committed_version_) {
      if (behind >= lag_patience)
        out.push_back(
          {"caught_up_worker", fmt::format("worker {} ({}) has caught up: it holds version {}, after {} updates "
                                           "in a row that it had not got",
                                           worker.index, worker.state, worker.version, behind)});
      behind = 0;
    } else if (++behind == lag_patience)
      out.push_back({"lagging_worker",
                     fmt::format("worker {} ({}) is {} versions behind after {} updates in a row that it has not got: "
                                 "it holds version {}, the others {}",
                                 worker.index, worker.state, committed_version_ - worker.version, lag_patience,
                                 worker.version, committed_version_)});
  }
}

void WarningWatch::about_caps(const UpdateFacts& facts, std::vector<Warning>& out) {
  if (!facts.committed)
    return;
  const std::uint64_t at_once = std::min<std::uint64_t>(caps_.differs, caps_.chunks);
  const std::uint64_t wanted = times(caps_.largest_chunk, std::max<std::uint64_t>(1, at_once));
  if (!differ_said_ && at_once > 1 && caps_.inflight < wanted) {
    differ_said_ = true;
    out.push_back({"cap_differ_inflight",
                   fmt::format("actors.differ.inflight = {} serialises the Differs: {} of {} can encode at a time "
                               "(a chunk takes {} at worst); {} would let all",
                               bytes_text(caps_.inflight), caps_.inflight / caps_.largest_chunk, at_once,
                               bytes_text(caps_.largest_chunk), bytes_text(wanted))});
  }
  // More than half of a round was one piece: the next round waited until that was packed.
  if (!round_said_ && facts.rounds > 1 && caps_.largest_piece > caps_.max_round / 2 &&
      facts.gather_queue_peak > caps_.max_round / 2) {
    round_said_ = true;
    out.push_back(
      {"cap_max_round", fmt::format("actors.gather_queue.max_round = {} serialises the gather: pieces of up to {} are "
                                    "gathered one by one ({} rounds, version {}); {} would let them overlap",
                                    bytes_text(caps_.max_round), bytes_text(caps_.largest_piece), facts.rounds,
                                    facts.version, bytes_text(times(caps_.largest_piece, 2)))});
  }
  // Both flushes were full, and what was gathered had to wait for the workers.
  const std::uint64_t both = times(caps_.flush_payload, 2);
  if (!flush_said_ && facts.flushes > 2 && caps_.max_round != unlimited && both < caps_.max_round &&
      facts.flush_bucket_peak > caps_.flush_payload && facts.gather_queue_peak > both) {
    flush_said_ = true;
    out.push_back(
      {"cap_flush_bucket",
       fmt::format("actors.flush_bucket.cap = {} serialises the gather behind the workers: up to {} was "
                   "gathered and waited for {} flushes of version {}; {} would hold a round",
                   bytes_text(caps_.flush_cap), bytes_text(facts.gather_queue_peak), facts.flushes, facts.version,
                   bytes_text(caps_.max_round / 2 + 1 + (caps_.flush_cap - caps_.flush_payload)))});
  }
}

} // namespace deltawire::telemetry
