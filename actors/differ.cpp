#include "actors/differ.hpp"

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
  }
  return "";
}

/// Does the chunk's work on memory; changes and digests go into `worked`, pieces into the encoder.
void work_on(RankWork& rank, const ChunkTask& task, delta::PieceEncoder& encoder, ChunkWorked& worked) {
  const Chunk& chunk = rank.chunks[task.hand_out.chunk];
  std::vector<delta::PositionLog>& logs = rank.memory.logs[task.hand_out.chunk];
  std::map<std::uint32_t, delta::Digest> digests;
  for (std::size_t r = 0; r < chunk.ranges.size(); ++r) {
    const ChunkRange& range = chunk.ranges[r];
    const delta::OwnedBlock owned = rank.owned(range.block);
    const layout::Block& block = *owned.block;
    switch (task.hand_out.work) {
    case Work::capture_and_encode:
    case Work::capture: {
      logs[r] = {};
      const bool encode = task.hand_out.work == Work::capture_and_encode;
      const delta::Captured captured =
        task.seed ? delta::capture_all(owned, range.first, range.count)
                  : delta::capture_changes(owned, range.first, range.count, encode ? &encoder : nullptr, logs[r]);
      worked.changed += captured.changed;
      digests[block.cell] += captured.digest_change;
      break;
    }
    case Work::encode:
      if (task.seed)
        delta::encode_all(block, owned.snapshot, range.first, range.count, encoder);
      else
        delta::encode_logged(block, owned.snapshot, range.first, range.count, logs[r], encoder);
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
  initial.encoder = std::make_unique<delta::PieceEncoder>(work->piece_limit);
  initial.lane = fmt::format("rank {}: differ {}", work->rank, number);
  initial.work = std::move(work);
  return {
    [self](const Meet& meet) { self->state.colleagues = meet.colleagues; },
    [self](const ChunkTask& task) {
      DifferState& state = self->state;
      ChunkWorked worked;
      worked.version = task.version;
      worked.hand_out = task.hand_out;
      const telemetry::TimePoint begin = telemetry::now();
      work_on(*state.work, task, *state.encoder, worked);
      delta::EncodedPieces pieces = state.encoder->take();
      const telemetry::TimePoint end = telemetry::now();
      worked.begin_ns = begin.time_since_epoch().count();
      worked.end_ns = end.time_since_epoch().count();
      worked.encoded = pieces.bytes.size();
      state.work->recorder->span(state.lane, name_of(task.hand_out.work), begin, end,
                                 {{"version", static_cast<std::int64_t>(task.version)},
                                  {"chunk", task.hand_out.chunk},
                                  {"changed", static_cast<std::int64_t>(worked.changed)},
                                  {"bytes", static_cast<std::int64_t>(worked.encoded)}});
      if (task.hand_out.work != Work::capture) {
        auto chunk = std::make_shared<sync::EncodedChunk>();
        chunk->version = task.version;
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
