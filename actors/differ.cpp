#include "actors/differ.hpp"

#include "actors/arrows.hpp"
#include "actors/metered.hpp"

#include <map>

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

/// A log for the capture to fill; those that nobody needs any more go.
void start_log(std::vector<RankWork::CaptureLog>& logs, const ChunkTask& task, std::size_t ranges) {
  std::erase_if(logs, [&](const RankWork::CaptureLog& log) { return log.version <= task.keep_logs_after; });
  logs.push_back({task.version, std::vector<delta::PositionLog>(ranges)});
}

/// Whether the logs tell everything that changed after `base`.
bool reach_back(const std::vector<RankWork::CaptureLog>& logs, std::uint64_t base) {
  return !logs.empty() && logs.front().version <= base + 1;
}

void encode_catch_up(const std::vector<RankWork::CaptureLog>& logs, const ChunkTask& task, std::size_t r,
                     const delta::OwnedBlock& owned, const ChunkRange& range, delta::PieceEncoder& encoder) {
  // More than what changed does no harm: values are absolute.
  if (task.all || !reach_back(logs, task.base))
    return delta::encode_all(*owned.block, owned.snapshot, range.first, range.count, encoder);
  delta::PositionLog united;
  for (const RankWork::CaptureLog& log : logs)
    if (log.version > task.base)
      united.merge(log.ranges[r]);
  delta::encode_logged(*owned.block, owned.snapshot, range.first, range.count, united, encoder);
}

/// Digests of the chunk as the snapshot holds it now.
void audit(const RankWork& rank, const ChunkTask& task, ChunkWorked& worked) {
  std::map<std::uint32_t, delta::Digest> digests;
  for (const ChunkRange& range : rank.chunks[task.hand_out.chunk].ranges) {
    const layout::Block& block = rank.blocks[range.block];
    const std::byte* snapshot = rank.memory.snapshot.data() + rank.memory.snapshot_offsets[range.block];
    digests[block.cell] += delta::digest_of_snapshot(block, snapshot, range.first, range.count);
  }
  worked.digest_changes.assign(digests.begin(), digests.end());
}

/// Does the chunk's work on memory; changes and digests go into `worked`, pieces into the encoder.
void work_on(RankWork& rank, const ChunkTask& task, delta::PieceEncoder& encoder, ChunkWorked& worked) {
  const Chunk& chunk = rank.chunks[task.hand_out.chunk];
  std::vector<RankWork::CaptureLog>& logs = rank.memory.logs[task.hand_out.chunk];
  const Work work = task.hand_out.work;
  if (!task.all && (work == Work::capture || work == Work::capture_and_encode)) // before a seed there was nothing
    start_log(logs, task, chunk.ranges.size());
  std::map<std::uint32_t, delta::Digest> digests;
  for (std::size_t r = 0; r < chunk.ranges.size(); ++r) {
    const ChunkRange& range = chunk.ranges[r];
    const delta::OwnedBlock owned = rank.owned(range.block);
    const layout::Block& block = *owned.block;
    switch (work) {
    case Work::capture_and_encode:
    case Work::capture: {
      const bool whole = !task.parts || task.parts->has(block.parameter);
      delta::Captured captured;
      if (task.all) {
        if (whole)
          captured = delta::capture_all(owned, range.first, range.count);
      } else {
        delta::PositionLog& log = logs.back().ranges[r];
        if (whole)
          captured = delta::capture_changes(owned, range.first, range.count,
                                            work == Work::capture_and_encode ? &encoder : nullptr, log);
        else if (const auto patch = task.parts->patches.find(range.block); patch != task.parts->patches.end())
          captured = delta::capture_patch(owned, range.first, range.count, patch->second, log);
        worked.log_bytes += sizeof(delta::PositionLog) + log.bytes();
      }
      worked.changed += captured.changed;
      digests[block.cell] += captured.digest_change;
      break;
    }
    case Work::encode:
      if (task.all)
        delta::encode_all(block, owned.snapshot, range.first, range.count, encoder);
      else
        delta::encode_logged(block, owned.snapshot, range.first, range.count, logs.back().ranges[r], encoder);
      break;
    case Work::catch_up:
      encode_catch_up(logs, task, r, owned, range, encoder);
      break;
    case Work::skip:
      break;
    }
  }
  for (const auto& [cell, change] : digests)
    if (change != 0)
      worked.digest_changes.emplace_back(cell, change);
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
        audit(*state.work, task, worked);
        state.work->recorder->span(
          state.lane, "audit", begin, telemetry::now(),
          {{"version", static_cast<std::int64_t>(task.version)}, {"chunk", task.hand_out.chunk}});
        return self->send(state.colleagues->snapshotter, std::move(worked));
      }
      work_on(*state.work, task, *state.encoder, worked);
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
