#include "actors/differ.hpp"

#include "actors/arrows.hpp"
#include "actors/metered.hpp"

#include <algorithm>

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

void encode_catch_up(const std::vector<RankWork::CaptureLog>& logs, const ChunkTask& task, std::uint32_t range_index,
                     const delta::OwnedBlock& owned, const ChunkRange& range, DifferState& state) {
  // More than what changed does no harm: values are absolute.
  if (task.all || !reach_back(logs, task.base))
    return delta::encode_all(*owned.block, owned.snapshot, range.first, range.count, *state.encoder);
  delta::PositionLog united;
  for (const RankWork::CaptureLog& log : logs)
    if (log.version > task.base) {
      log.log.read(range_index, state.log);
      united.merge(state.log);
    }
  delta::encode_logged(*owned.block, owned.snapshot, range.first, range.count, united, *state.encoder);
}

using DigestChanges = std::vector<std::pair<std::uint32_t, delta::Digest>>;

/// Neighbours are of one cell often enough to be told as one.
void add_change(DigestChanges& changes, std::uint32_t cell, delta::Digest change) {
  if (!changes.empty() && changes.back().first == cell)
    changes.back().second += change;
  else
    changes.emplace_back(cell, change);
}

/// Digests of the chunk as the snapshot holds it now.
void audit(RankWork& rank, const ChunkTask& task) {
  DigestChanges& digests = rank.memory.digest_changes[task.hand_out.chunk];
  digests.clear();
  for (const ChunkRange& range : rank.chunks[task.hand_out.chunk].ranges) {
    const layout::Block& block = rank.blocks[range.block];
    const std::byte* snapshot = rank.memory.snapshot.data() + rank.memory.snapshot_offsets[range.block];
    add_change(digests, block.cell, delta::digest_of_snapshot(block, snapshot, range.first, range.count));
  }
}

/// Captures a range: what changed goes into the state's log.
delta::Captured capture(const ChunkTask& task, const delta::OwnedBlock& owned, const ChunkRange& range,
                        DifferState& state) {
  const bool whole = !task.parts || task.parts->has(owned.block->parameter);
  if (task.all)
    return whole ? delta::capture_all(owned, range.first, range.count) : delta::Captured{};
  if (whole)
    return delta::capture_changes(owned, range.first, range.count,
                                  task.hand_out.work == Work::capture_and_encode ? state.encoder.get() : nullptr,
                                  state.log);
  if (const auto patch = task.parts->patches.find(range.block); patch != task.parts->patches.end())
    return delta::capture_patch(owned, range.first, range.count, patch->second, state.log);
  return {};
}

void capture(RankWork& rank, const ChunkTask& task, DifferState& state, ChunkWorked& worked) {
  const Chunk& chunk = rank.chunks[task.hand_out.chunk];
  // Before a seed there was nothing: it needs no log.
  delta::ChunkLog* log = task.all ? nullptr : &start_log(rank.memory.logs[task.hand_out.chunk], task);
  DigestChanges& digests = rank.memory.digest_changes[task.hand_out.chunk];
  digests.clear();
  for (std::uint32_t r = 0; r < chunk.ranges.size(); ++r) {
    const delta::OwnedBlock owned = rank.owned(chunk.ranges[r].block);
    const delta::Captured captured = capture(task, owned, chunk.ranges[r], state);
    if (captured.changed == 0)
      continue;
    worked.changed += captured.changed;
    add_change(digests, owned.block->cell, captured.digest_change);
    if (log != nullptr)
      log->add(r, state.log);
    state.log.clear();
  }
  worked.log_bytes = log == nullptr ? 0 : log->bytes();
}

/// Does the chunk's work on memory; changes go into `worked`, pieces into the encoder.
void work_on(RankWork& rank, const ChunkTask& task, DifferState& state, ChunkWorked& worked) {
  const Work work = task.hand_out.work;
  if (work == Work::skip)
    return;
  if (work == Work::capture || work == Work::capture_and_encode)
    return capture(rank, task, state, worked);
  const Chunk& chunk = rank.chunks[task.hand_out.chunk];
  const std::vector<RankWork::CaptureLog>& logs = rank.memory.logs[task.hand_out.chunk];
  for (std::uint32_t r = 0; r < chunk.ranges.size(); ++r) {
    const ChunkRange& range = chunk.ranges[r];
    const delta::OwnedBlock owned = rank.owned(range.block);
    if (work == Work::catch_up) {
      encode_catch_up(logs, task, r, owned, range, state);
    } else if (task.all) {
      delta::encode_all(*owned.block, owned.snapshot, range.first, range.count, *state.encoder);
    } else {
      logs.back().log.read(r, state.log);
      if (!state.log.empty())
        delta::encode_logged(*owned.block, owned.snapshot, range.first, range.count, state.log, *state.encoder);
    }
  }
  state.log.clear();
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
      const telemetry::TimePoint begin = telemetry::now();
      if (task.audit) {
        worked.audit = true;
        audit(*state.work, task);
        state.work->recorder->span(
          state.lane, "audit", begin, telemetry::now(),
          {{"version", static_cast<std::int64_t>(task.version)}, {"chunk", task.hand_out.chunk}});
        return self->send(state.colleagues->snapshotter, std::move(worked));
      }
      work_on(*state.work, task, state, worked);
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
