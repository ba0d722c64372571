// An update in parts, on one rank: what its caller says (UpdateParts, with the caller), which chunks are ready by it
// (ChunkParts, with the Snapshotter), and what takes part at the end (CaptureParts). Pure.
//
// A parameter is sent once an update, or patched, or neither: then it keeps its last captured bits. What is sent is
// read from the trainer's memory, what is patched is not. Every call either succeeds as a whole or changes nothing.
#pragma once

#include "delta/patch.hpp"
#include "layout/plan.hpp"
#include "result.hpp"
#include "sync/chunks.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::sync {

/// What an update that was not sent as a whole holds.
struct CaptureParts {
  std::vector<bool> sent;                             ///< by parameter of the rank; empty: none
  std::map<std::uint32_t, delta::BlockPatch> patches; ///< by block of the rank

  [[nodiscard]] bool has(std::uint32_t parameter) const { return parameter < sent.size() && sent[parameter]; }
};

/// New values of elements of a slot, as the caller gives them.
struct SlotPatch {
  std::string_view slot;
  std::span<const std::uint64_t> indices; ///< row-major in the slot, in any order, each once
  DType dtype = DType::bf16;
  std::span<const std::byte> values; ///< one an index
};

/// What a rank has: all of it outlives the parts.
struct PartsOf {
  std::uint32_t rank = 0;
  std::span<const std::string> parameters; ///< names, in the order of layout::Block::parameter
  std::span<const layout::SlotSpec> slots;
  std::span<const layout::Block> blocks;
};

class UpdateParts {
public:
  /// `captured`: by parameter, whether an earlier update of this rank was finished with it.
  UpdateParts(std::uint64_t version, const PartsOf& of, std::vector<bool> captured);

  /// The parameters that are sent now, ascending. Fails on a pattern that is malformed or matches none of the rank's
  /// parameters, and on a parameter that was sent or patched already; names all of them.
  [[nodiscard]] Result<std::vector<std::uint32_t>> send(std::span<const std::string> patterns);

  /// Fails on an unknown slot, another dtype, lengths that do not fit, a position past the slot's end or there twice
  /// (also in an earlier patch), a parameter that was sent in this update or in none so far, and on a position that
  /// this rank does not own: `owner_of` says whose it is, in words.
  using OwnerOf = std::function<std::string(std::uint32_t slot, std::uint64_t position)>;
  [[nodiscard]] Result<void> patch(const SlotPatch& patch, const OwnerOf& owner_of);

  /// What the update holds. Fails while a parameter has never been captured: it names all of them.
  [[nodiscard]] Result<CaptureParts> finish() const;

  /// By parameter, whether it is captured once this update is finished.
  [[nodiscard]] std::vector<bool> captured() const;
  /// The parameter's memory is read by this update.
  [[nodiscard]] bool sent(std::uint32_t parameter) const { return parts_.has(parameter); }

private:
  [[nodiscard]] Result<std::uint32_t> check(const SlotPatch& patch) const;

  std::uint64_t version_;
  PartsOf of_;
  std::vector<bool> captured_;
  std::vector<bool> patched_; ///< by parameter
  CaptureParts parts_;
};

/// Which chunks may be captured: those of which every parameter was sent.
class ChunkParts {
public:
  ChunkParts(std::span<const Chunk> chunks, std::span<const layout::Block> blocks);

  /// A new update: nothing was sent.
  void start();

  /// Parameters were sent, each for the first time: the chunks that are complete with them.
  [[nodiscard]] std::vector<std::uint32_t> sent(std::span<const std::uint32_t> parameters);

  /// Chunks that hold a patched block, ascending.
  [[nodiscard]] std::vector<std::uint32_t> patched(const CaptureParts& parts) const;

private:
  std::vector<std::vector<std::uint32_t>> chunks_of_;   ///< by parameter, each chunk once
  std::vector<std::vector<std::uint32_t>> chunks_with_; ///< by block
  std::vector<std::uint32_t> parameters_in_;            ///< by chunk: how many
  std::vector<std::uint32_t> missing_;                  ///< by chunk: how many were not sent
};

} // namespace deltawire::sync
