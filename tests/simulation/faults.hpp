// What goes wrong in a simulated job: faults of the world, the moments that they strike in, and defects of the protocol
// that are planted to see that the oracle tells.
#pragma once

#include <array>
#include <cstdint>

namespace deltawire::simulation {

/// What the world does to a job, or its program to itself.
enum class Fault : std::uint8_t {
  connection_breaks, ///< part of what is under way still arrives; either side notices when it does
  connection_delays, ///< one direction of a channel stands still for a while, at times past the stall
  worker_crashes,    ///< a new process takes its place
  worker_leaves,     ///< and none does until faults stop
  worker_lags,       ///< it handles nothing for a while, at times past the stall
  engine_fails,      ///< its next pause throws
  staging_fails,     ///< its next flush cannot be staged
  memory_changes,    ///< somebody else writes to a worker's memory; the next audit is to find it
  frame_repeats,     ///< a flush's frame arrives twice
  rank_lags,         ///< a trainer rank's process stands still for a while
  trainer_crashes,   ///< any rank: the session is over
  trainer_fails,     ///< its side cannot go on: the update is given up, then the session is over
  update_aborted,    ///< a rank leaves an update in parts without finish()
  update_folded,     ///< a publish does not wait for the update under way
  count
};
constexpr std::size_t fault_count = static_cast<std::size_t>(Fault::count);
constexpr std::array<const char*, fault_count> fault_names{
  "connection breaks", "connection delays", "worker crashes", "worker leaves", "worker lags",
  "engine fails",      "staging fails",     "memory changes", "frame repeats", "rank lags",
  "trainer crashes",   "trainer fails",     "update aborted", "update folded"};

/// Where the job is, by what is furthest.
enum class Phase : std::uint8_t {
  connecting,      ///< not all have agreed
  in_doubt,        ///< the root's word on what a lost root left is on its way to some worker
  idle,            ///< between updates
  capturing,       ///< an update is published and not delivered yet
  beginning,       ///< not all are ready
  sending,         ///< flushes
  seeding,         ///< flushes of a seed
  sealing,         ///< the manifest is on its way, or checked
  committing,      ///< nobody has applied
  partly_applied,  ///< some members of a replica have applied
  all_applied,     ///< a whole replica has, and none of it serves
  partly_released, ///< some of a replica serve the target, others do not know
  count
};
constexpr std::size_t phase_count = static_cast<std::size_t>(Phase::count);
constexpr std::array<const char*, phase_count> phase_names{
  "connect", "doubt", "idle", "capture", "begin", "send", "seed", "seal", "commit", "partly", "applied", "released"};

/// A defect of the protocol, in what is said or done between the machines.
enum class Planted : std::uint8_t {
  none,
  captures_without_log,    ///< the snapshot runs ahead of the workers: what is captured later is not logged
  reuses_delivery,         ///< a delivery has the number of the one before
  releases_alone,          ///< each worker is released when it has applied, whatever its replica has
  commits_alone,           ///< each worker commits when it has staged
  folds_too_little,        ///< a fold leaves out what came right after its base
  does_not_undo,           ///< a worker keeps what it applied when it is told to undo
  undo_is_lost,            ///< a worker that gave up is never told to undo
  delta_to_anybody,        ///< who has undone is taken for one that has the target, and its fence is passed
  settles_by_undoing,      ///< what is in doubt is undone, also where another of the replica serves it
  settles_by_serving,      ///< what is in doubt is served, also where others never applied it
  forgets_doubt,           ///< a worker whose root is lost undoes what it applied, all by itself
  hides_abort,             ///< a rank reports a capture that was left half done as a whole one
  captured_too_early,      ///< the program may change its weights while they are read
  forgets_aborted_changes, ///< what an aborted update captured is not logged for the next one
  catch_up_skips_a_chunk,  ///< a catch-up lacks what one chunk changed
  audits_unread,           ///< a worker says that its memory is right, and does not look
  count
};
constexpr std::size_t planted_count = static_cast<std::size_t>(Planted::count);
constexpr std::array<const char*, planted_count> planted_names{"none",
                                                               "positions are not logged at capture",
                                                               "a delivery's number is used again",
                                                               "released before all of the replica have applied",
                                                               "committed before all of the replica have staged",
                                                               "a fold from the wrong version",
                                                               "an undo is not done",
                                                               "an undo is not sent",
                                                               "a delta to whoever is there",
                                                               "what is in doubt is undone",
                                                               "what is in doubt is served",
                                                               "a worker settles its doubt by itself",
                                                               "an aborted version is reported whole",
                                                               "captured before it is",
                                                               "what an aborted update captured is not logged",
                                                               "a catch-up lacks a chunk",
                                                               "an audit does not read memory"};

struct Counts {
  std::uint64_t schedules = 0, events = 0, sessions = 0, published = 0, updates = 0, committed = 0, deliveries = 0,
                seeds = 0, deltas = 0, folds = 0, released = 0, undone = 0, settled = 0, joined = 0, in_parts = 0,
                patched = 0, deferred = 0, caught_up = 0, audited = 0, found_wrong = 0, adopted = 0;
  std::array<std::array<std::uint64_t, phase_count>, fault_count> struck{};
};

} // namespace deltawire::simulation
