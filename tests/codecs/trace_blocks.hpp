// The trainer's memory of a replayed trace, without a pipeline: every rank's blocks as the agreement would make them,
// and what an update from one checkpoint to the next takes in each encoding, next to its entropy.
#pragma once

#include "delta/capture.hpp"
#include "replay/inputs.hpp"

#include <memory>
#include <vector>

namespace deltawire::test {

class TraceBlocks {
public:
  /// Compiles the plan and takes the first file's values, as a seed does.
  [[nodiscard]] static Result<TraceBlocks> make(const replay::Sides& sides, const checkpoint::Checkpoint& first);

  /// Memory takes the values of another file; snapshots stay.
  void take_values(const checkpoint::Checkpoint& file);

  struct Sizes {
    std::uint64_t changes = 0; ///< elements that changed
    std::uint64_t pieces = 0;
    std::uint64_t bytes = 0;   ///< all pieces, headers included
    std::uint64_t framing = 0; ///< their headers
  };
  /// What a capture encodes, from the snapshots; they are left as they were.
  [[nodiscard]] Sizes encode(const delta::Encoding& encoding) const;

  struct Entropy {
    double gaps = 0; ///< bits a change: of the distances between changes in a block, over all blocks
    double ulp = 0;  ///< bits a change: of the differences in ulp order
    [[nodiscard]] double bytes() const noexcept { return (gaps + ulp) / 8; }
  };
  /// Counted element by element, without the code that encodes.
  [[nodiscard]] Entropy entropy() const;

  /// Snapshots take the values of memory.
  void refresh();

private:
  struct Rank {
    std::vector<layout::Shard> shards; ///< by tensor
    std::vector<std::vector<std::byte>> memory;
    std::vector<layout::Block> blocks;
    std::vector<std::vector<std::byte>> snapshots; ///< by block
  };
  std::vector<Rank> ranks_;
  std::vector<std::string> names_;
  std::vector<std::size_t> sizes_;
};

} // namespace deltawire::test
