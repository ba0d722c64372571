// What the actors of one trainer rank share: its blocks, its chunks, its memory. Built once after the agreement.
//
// Everything but `memory` and `counters` is immutable. A chunk's memory (tensor ranges, snapshot ranges, log) is
// touched by one actor at a time: the Differ that was handed the chunk; the hand-over is a message.
#pragma once

#include "actors/rank_gpu.hpp"
#include "delta/capture.hpp"
#include "delta/snapshot_memory.hpp"
#include "layout/plan.hpp"
#include "sync/chunks.hpp"
#include "telemetry/metrics.hpp"
#include "telemetry/trace.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace deltawire::actors {

using sync::Chunk;
using sync::ChunkRange;

struct RankCounters {
  telemetry::HighWater differ;       ///< encoded bytes not yet cut into a round
  telemetry::HighWater gather_queue; ///< bytes of rounds on their way (root: gathered and not yet packed)
  telemetry::HighWater flush_bucket; ///< bytes of flushes, assembled or on the wire
};

struct RankWork {
  std::uint32_t rank = 0;
  std::vector<layout::SlotSpec> slots; ///< the checkpoint's
  std::vector<layout::Block> blocks;
  std::vector<Chunk> chunks;
  std::uint32_t windows = 0;
  std::uint64_t elements = 0;
  std::size_t piece_limit = 0;
  delta::Encoding encoding; ///< what differs may choose from
  RankCounters counters;
  std::shared_ptr<telemetry::Recorder> recorder;
  std::shared_ptr<telemetry::Registry> metrics; ///< none: nothing is measured
  std::shared_ptr<RankGpu> gpu;                 ///< none: all parameters are in the host's memory

  /// What changed in one capture, of one chunk.
  struct CaptureLog {
    std::uint64_t version = 0;
    delta::ChunkLog log;
  };

  struct Memory {
    std::vector<const std::byte*> parameters; ///< base of each parameter; changed by rebind() between captures only
    std::vector<DType> dtypes;                ///< of each parameter, where blocks may have another one; else empty
    delta::SnapshotMemory snapshot;
    std::vector<std::size_t> snapshot_offsets; ///< by block: in `snapshot`, or in the GPU's where its home is that
    std::vector<std::vector<CaptureLog>> logs; ///< by chunk: the captures that are kept, the latest last
    /// By chunk: what its last capture, or audit, did to digests, (cell, change), a cell maybe more than once. Read by
    /// the Snapshotter once the chunk has come back.
    std::vector<std::vector<std::pair<std::uint32_t, delta::Digest>>> digest_changes;
  } memory;

  /// Builds chunks and allocates snapshot and logs. `dtypes`: of the parameters in memory; empty: their blocks'.
  [[nodiscard]] static std::shared_ptr<RankWork>
  make(std::uint32_t rank, std::vector<layout::Block> blocks, std::uint32_t windows, std::uint64_t chunk_bytes,
       std::uint64_t inflight, std::size_t piece_limit, std::vector<const std::byte*> parameters,
       std::vector<DType> dtypes = {}, std::shared_ptr<RankGpu> gpu = nullptr);

  /// Where memory and snapshot are, either of which may be the GPU's: see home().
  [[nodiscard]] delta::OwnedBlock owned(std::uint32_t block);
  [[nodiscard]] BlockHome home(std::uint32_t block) const;

private:
  [[nodiscard]] DType held_dtype(const layout::Block& block) const;
  void place_snapshots();
};

} // namespace deltawire::actors
