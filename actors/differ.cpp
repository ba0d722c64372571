#include "actors/differ.hpp"

#include "actors/arrows.hpp"
#include "actors/metered.hpp"

#include <algorithm>
#include <thread>

namespace deltawire::actors {
namespace {

using Work = sync::CaptureWalk::Work;

const char* name_of(Work work) noexcept {
  switch (work) {
  case Work::capture_and_encode:
    return "diff and encode";
  case Work::capture:
    return "diff";
  case Work::encode:
    return "encode";
  case Work::skip:
    return "skip";
  case Work::catch_up:
    return "encode catch-up";
  }
  return "";
}

/// A log for the capture to fill; those that nobody needs any more go, and one of them is the new one's memory.
delta::ChunkLog& start_log(std::vector<RankWork::CaptureLog>& logs, const ChunkTask& task) {
  const auto kept = std::find_if(logs.begin(), logs.end(),
                                 [&](const RankWork::CaptureLog& log) { return log.version > task.keep_logs_after; });
  const bool any_goes = kept != logs.begin();
  const auto left = static_cast<std::size_t>(logs.end() - kept);
  std::rotate(logs.begin(), kept, logs.end());
  logs.resize(left + 1);
  if (any_goes)
    logs.back().log.clear();
  logs.back().version = task.version;
  return logs.back().log;
}

/// Whether the logs tell everything that changed after `base`.
bool reach_back(const std::vector<RankWork::CaptureLog>& logs, std::uint64_t base) {
  return !logs.empty() && logs.front().version <= base + 1;
}

/// Of the rank's GPU, the Differ's share.
Result<delta::GpuRanges*> gpu_of(RankWork& rank, DifferState& state) {
  if (!state.gpu) {
    auto opened = delta::GpuRanges::open(rank.gpu->gpu, rank.gpu->ranges);
    if (!opened)
      return pass_on(std::move(opened));
    state.gpu = std::move(*opened);
  }
  return state.gpu.get();
}

/// Where the host finds a range of the block's snapshot.
Result<const std::byte*> snapshot_of(RankWork& rank, const ChunkRange& range, DifferState& state) {
  const delta::OwnedBlock owned = rank.owned(range.block);
  if (rank.home(range.block) != BlockHome::gpu)
    return owned.snapshot;
  auto gpu = gpu_of(rank, state);
  if (!gpu)
    return pass_on(std::move(gpu));
  return (*gpu)->fetch_snapshot(owned, range.first, range.count);
}

Result<void> encode_all(RankWork& rank, const ChunkRange& range, DifferState& state) {
  auto snapshot = snapshot_of(rank, range, state);
  if (!snapshot)
    return pass_on(std::move(snapshot));
  delta::encode_all(rank.blocks[range.block], *snapshot, range.first, range.count, *state.encoder);
  return {};
}

Result<void> encode_logged(RankWork& rank, const ChunkRange& range, const delta::PositionLog& log, DifferState& state) {
  if (log.empty())
    return {};
  auto snapshot = snapshot_of(rank, range, state);
  if (!snapshot)
    return pass_on(std::move(snapshot));
  delta::encode_logged(rank.blocks[range.block], *snapshot, range.first, range.count, log, *state.encoder);
  return {};
}

Result<void> encode_catch_up(RankWork& rank, const std::vector<RankWork::CaptureLog>& logs, const ChunkTask& task,
                             std::uint32_t range_index, const ChunkRange& range, DifferState& state) {
  // More than what changed does no harm: values are absolute.
  if (task.all || !reach_back(logs, task.base))
    return encode_all(rank, range, state);
  delta::PositionLog united;
  for (const RankWork::CaptureLog& log : logs)
    if (log.version > task.base) {
      log.log.read(range_index, state.log);
      united.merge(state.log);
    }
  return encode_logged(rank, range, united, state);
}

using DigestChanges = std::vector<std::pair<std::uint32_t, delta::Digest>>;

/// Neighbours are of one cell often enough to be told as one.
void add_change(DigestChanges& changes, std::uint32_t cell, delta::Digest change) {
  if (!changes.empty() && changes.back().first == cell)
    changes.back().second += change;
  else
    changes.emplace_back(cell, change);
}

/// What was attempted on a range, and whose it is.
Failure about(const RankWork& rank, const ChunkRange& range, std::string_view attempt, const Failure& failure) {
  return {failure.code, fmt::format("rank {}: slot '{}', elements {} to {} of its block {}: {}: {}", rank.rank,
                                    rank.slots[rank.blocks[range.block].slot].name, range.first,
                                    range.first + range.count, range.block, attempt, failure.message)};
}

/// Digests of the chunk as the snapshot holds it now.
Result<void> audit(RankWork& rank, const ChunkTask& task, DifferState& state) {
  DigestChanges& digests = rank.memory.digest_changes[task.hand_out.chunk];
  digests.clear();
  for (const ChunkRange& range : rank.chunks[task.hand_out.chunk].ranges) {
    const layout::Block& block = rank.blocks[range.block];
    const auto snapshot = snapshot_of(rank, range, state);
    if (!snapshot)
      return tl::make_unexpected(about(rank, range, "reading the snapshot again", snapshot.error()));
    add_change(digests, block.cell, delta::digest_of_snapshot(block, *snapshot, range.first, range.count));
  }
  return {};
}

/// Captures all of a range; `gpu`: where its memory is that one's.
Result<delta::Captured> capture_memory(const ChunkTask& task, const ChunkRange& range, delta::OwnedBlock owned,
                                       BlockHome home, delta::GpuRanges* gpu, DifferState& state) {
  delta::PieceEncoder* const encoder = task.hand_out.work == Work::capture_and_encode ? state.encoder.get() : nullptr;
  if (home == BlockHome::gpu)
    return task.all ? gpu->capture_all(owned, range.first, range.count)
                    : gpu->capture_changes(owned, range.first, range.count, encoder, state.log);
  if (home == BlockHome::gpu_memory) {
    auto fetched = gpu->fetch_memory(owned, range.first, range.count);
    if (!fetched)
      return pass_on(std::move(fetched));
    owned = *fetched;
  }
  return task.all ? delta::capture_all(owned, range.first, range.count)
                  : delta::capture_changes(owned, range.first, range.count, encoder, state.log);
}

Result<delta::Captured> capture_patch(const ChunkRange& range, const delta::BlockPatch& patch, delta::OwnedBlock owned,
                                      BlockHome home, delta::GpuRanges* gpu, DifferState& state) {
  if (home != BlockHome::gpu)
    return delta::capture_patch(owned, range.first, range.count, patch, state.log);
  auto fetched = gpu->fetch_snapshot(owned, range.first, range.count);
  if (!fetched)
    return pass_on(std::move(fetched));
  delta::OwnedBlock on_host = owned;
  on_host.snapshot = *fetched;
  const delta::Captured captured = delta::capture_patch(on_host, range.first, range.count, patch, state.log);
  if (captured.changed > 0)
    if (auto stored = gpu->store_snapshot(owned, range.first, range.count); !stored)
      return pass_on(std::move(stored));
  return captured;
}

/// Until the rank's GPU has reached what the publish said; the host reads memory next.
Result<void> wait_for(device::Event& event, std::chrono::nanoseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    auto reached = event.reached();
    if (!reached)
      return pass_on(std::move(reached));
    if (*reached)
      return {};
    if (std::chrono::steady_clock::now() >= deadline)
      return fail(Code::timed_out, "the stream of publish()'s `after` has not come that far");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// Captures a range: what changed goes into the state's log.
Result<delta::Captured> capture(RankWork& rank, const ChunkTask& task, const ChunkRange& range, DifferState& state) {
  const delta::OwnedBlock owned = rank.owned(range.block);
  const BlockHome home = rank.home(range.block);
  const bool whole = !task.parts || task.parts->has(owned.block->parameter);
  const delta::BlockPatch* patch = nullptr;
  if (!whole && !task.all)
    if (const auto found = task.parts->patches.find(range.block); found != task.parts->patches.end())
      patch = &found->second;
  if (!whole && patch == nullptr)
    return delta::Captured{};
  delta::GpuRanges* gpu = nullptr;
  if (home != BlockHome::host) {
    auto opened = gpu_of(rank, state);
    if (!opened)
      return pass_on(std::move(opened));
    gpu = *opened;
  }
  if (patch != nullptr)
    return capture_patch(range, *patch, owned, home, gpu, state);
  if (task.after) {
    auto waits = gpu != nullptr ? gpu->wait_for(*task.after) : wait_for(*task.after, rank.gpu->ranges.patience);
    if (!waits)
      return pass_on(std::move(waits));
  }
  return capture_memory(task, range, owned, home, gpu, state);
}

Result<void> capture(RankWork& rank, const ChunkTask& task, DifferState& state, ChunkWorked& worked) {
  const Chunk& chunk = rank.chunks[task.hand_out.chunk];
  // Before a seed there was nothing: it needs no log.
  delta::ChunkLog* log = task.all ? nullptr : &start_log(rank.memory.logs[task.hand_out.chunk], task);
  DigestChanges& digests = rank.memory.digest_changes[task.hand_out.chunk];
  digests.clear();
  for (std::uint32_t r = 0; r < chunk.ranges.size(); ++r) {
    const auto captured = capture(rank, task, chunk.ranges[r], state);
    if (!captured)
      return tl::make_unexpected(about(rank, chunk.ranges[r], "capturing", captured.error()));
    if (captured->changed == 0)
      continue;
    worked.changed += captured->changed;
    add_change(digests, rank.blocks[chunk.ranges[r].block].cell, captured->digest_change);
    if (log != nullptr)
      log->add(r, state.log);
    state.log.clear();
  }
  worked.log_bytes = log == nullptr ? 0 : log->bytes();
  return {};
}

/// Does the chunk's work on memory; changes go into `worked`, pieces into the encoder.
Result<void> work_on(RankWork& rank, const ChunkTask& task, DifferState& state, ChunkWorked& worked) {
  const Work work = task.hand_out.work;
  if (work == Work::skip)
    return {};
  if (work == Work::capture || work == Work::capture_and_encode)
    return capture(rank, task, state, worked);
  const Chunk& chunk = rank.chunks[task.hand_out.chunk];
  const std::vector<RankWork::CaptureLog>& logs = rank.memory.logs[task.hand_out.chunk];
  for (std::uint32_t r = 0; r < chunk.ranges.size(); ++r) {
    const ChunkRange& range = chunk.ranges[r];
    Result<void> encoded{};
    if (work == Work::catch_up) {
      encoded = encode_catch_up(rank, logs, task, r, range, state);
    } else if (task.all) {
      encoded = encode_all(rank, range, state);
    } else {
      logs.back().log.read(r, state.log);
      encoded = encode_logged(rank, range, state.log, state);
    }
    if (!encoded)
      return tl::make_unexpected(about(rank, range, "encoding from the snapshot", encoded.error()));
  }
  state.log.clear();
  return {};
}

/// Gives the chunk back as it was.
void give_back(DifferActor::stateful_pointer<DifferState> self, ChunkWorked worked) {
  worked.failed = true;
  self->send(self->state.colleagues->snapshotter, std::move(worked));
}

/// Ends the session: what a GPU did not do nobody can make up for.
void end_session(DifferActor::stateful_pointer<DifferState> self, const Failure& failure, ChunkWorked worked) {
  DifferState& state = self->state;
  state.failed = true;
  if (state.gpu && state.gpu->lost())
    state.work->gpu->lost = true;
  self->send(state.colleagues->supervisor, FailureReport{failure});
  give_back(self, std::move(worked));
}

} // namespace

DifferActor::behavior_type differ(DifferActor::stateful_pointer<DifferState> self, std::shared_ptr<RankWork> work,
                                  std::uint32_t number) {
  DifferState& initial = self->state;
  initial.encoder = std::make_unique<delta::PieceEncoder>(work->piece_limit, work->encoding);
  initial.lane = fmt::format("rank {}: differ {}", work->rank, number);
  initial.work = std::move(work);
  return Metered{
    self,
    meter_of(*initial.work, fmt::format("differ {}", number)),
    [self](const Meet& meet) { self->state.colleagues = meet.colleagues; },
    [self](const ChunkTask& task) {
      DifferState& state = self->state;
      ChunkWorked worked;
      worked.version = task.version;
      worked.hand_out = task.hand_out;
      if (state.failed)
        return give_back(self, std::move(worked));
      const telemetry::TimePoint begin = telemetry::now();
      if (task.audit) {
        worked.audit = true;
        if (const auto audited = audit(*state.work, task, state); !audited)
          return end_session(self, audited.error(), std::move(worked));
        state.work->recorder->span(
          state.lane, "audit", begin, telemetry::now(),
          {{"version", static_cast<std::int64_t>(task.version)}, {"chunk", task.hand_out.chunk}});
        return self->send(state.colleagues->snapshotter, std::move(worked));
      }
      if (const auto done = work_on(*state.work, task, state, worked); !done)
        return end_session(self, done.error(), std::move(worked));
      delta::EncodedPieces pieces = state.encoder->take();
      const telemetry::TimePoint end = telemetry::now();
      worked.begin_ns = begin.time_since_epoch().count();
      worked.end_ns = end.time_since_epoch().count();
      worked.encoded = pieces.bytes.size();
      const std::uint64_t gather =
        task.hand_out.work == Work::catch_up ? sync::catch_up_gather_of(task.version) : sync::gather_of(task.version);
      const bool handed_on = task.hand_out.work != Work::capture && worked.encoded > 0;
      state.work->recorder->span(state.lane, name_of(task.hand_out.work), begin, end,
                                 {{"version", static_cast<std::int64_t>(task.version)},
                                  {"chunk", task.hand_out.chunk},
                                  {"changed", static_cast<std::int64_t>(worked.changed)},
                                  {"bytes", static_cast<std::int64_t>(worked.encoded)}},
                                 {.out = handed_on ? arrow::chunk(state.work->rank, gather, task.hand_out.chunk) : 0});
      if (task.hand_out.work != Work::capture) {
        auto chunk = std::make_shared<sync::EncodedChunk>();
        chunk->gather = gather;
        chunk->chunk = task.hand_out.chunk;
        chunk->bytes = std::move(pieces.bytes);
        chunk->ends = std::move(pieces.ends);
        state.work->counters.differ.add(worked.encoded);
        self->send(state.colleagues->gather_queue, ChunkEncoded{std::move(chunk)});
      }
      self->send(state.colleagues->snapshotter, std::move(worked));
    },
    [self](Stop) {
      self->state = {};
      self->quit();
    },
  };
}

} // namespace deltawire::actors
