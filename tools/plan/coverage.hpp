// What the trainer's tensors come to on each rank and worker, counted from what start-up compiles.
#pragma once

#include "replay/inputs.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace deltawire::plan {

/// One rank. It holds its shards; of what several ranks hold, one is the owner and provides it.
struct RankCoverage {
  std::vector<layout::Index> coordinates; ///< one a mesh axis
  std::uint64_t parameters = 0;           ///< of which it holds an element
  std::uint64_t held_elements = 0;
  std::uint64_t held_bytes = 0;
  std::uint64_t slots = 0; ///< of which it owns an element; so are the counts below
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
  std::uint64_t blocks = 0;
  std::uint64_t chunks = 0;
  std::uint64_t snapshot_bytes = 0;
  std::uint64_t log_bytes = 0;     ///< positions of one capture, when every element changes
  std::uint64_t encoded_bytes = 0; ///< of one update, at most
};

/// One worker. What it binds is covered by slots, or is padding.
struct WorkerCoverage {
  std::vector<layout::Index> coordinates;
  std::uint64_t replica = 0;
  std::uint64_t parameters = 0; ///< of which it holds an element
  std::uint64_t slots = 0;      ///< of which it reads an element
  std::uint64_t elements = 0;   ///< of its memory that slots cover; an element of a slot counts once a place
  std::uint64_t bytes = 0;
  std::uint64_t padding = 0; ///< elements of its memory that no slot covers
  std::uint64_t blocks = 0;
  std::uint64_t staged_bytes = 0; ///< of one update, at most: decoded, and what a stage may hold besides
};

struct Unused {
  std::string slot;
  std::uint64_t elements = 0;
};

/// Parameters that are cast before they are compared and sent.
struct CastParameters {
  DType from = DType::f32;
  DType to = DType::bf16;
  std::uint64_t parameters = 0;
};

struct Coverage {
  std::string checkpoint; ///< the first file
  std::uint64_t parameters = 0;
  std::uint64_t slots = 0;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
  std::uint64_t cells = 0;
  std::uint64_t blocks = 0;
  std::uint64_t windows = 0;
  std::uint64_t largest_window = 0;    ///< source bytes
  std::uint64_t largest_parameter = 0; ///< source bytes; a window holds whole parameters
  std::uint64_t piece_limit = 0;       ///< encoded bytes
  std::uint64_t largest_chunk = 0;     ///< worst case, encoded bytes
  std::uint64_t largest_piece = 0;     ///< encoded bytes
  std::uint64_t encoded_bytes = 0;     ///< of an update, at most, over all ranks
  std::vector<CastParameters> casts;   ///< by dtypes
  std::vector<Unused> unused;          ///< listed as such and read by no worker
  std::vector<RankCoverage> ranks;
  std::vector<WorkerCoverage> workers;
};

/// Bytes of the position log of `count` elements from `first` on, on the block's grid, when all of them change.
[[nodiscard]] std::uint64_t position_log_bytes(std::uint64_t first, std::uint64_t count) noexcept;

/// `piece_limit` is what sync::piece_limit() says of the topology's caps and the slots.
[[nodiscard]] Coverage coverage_of(const replay::Sides& sides, const replay::AgreedLayout& agreed,
                                   std::size_t piece_limit, const std::string& checkpoint);

} // namespace deltawire::plan
