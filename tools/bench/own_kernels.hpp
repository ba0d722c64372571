// What an update costs if its kernels are all there is: the same data, the same functions, on all cores, and no actors,
// messages, credit or protocol. Phase after phase, each shared out by the chunk to whichever core is free.
#pragma once

#include "changing_weights.hpp"
#include "synthetic_model.hpp"

#include "delta/piece.hpp"
#include "delta/stage.hpp"
#include "layout/plan.hpp"
#include "sync/chunks.hpp"

#include <memory>
#include <string>
#include <vector>

namespace deltawire::bench {

/// Seconds of each phase, by the clock.
struct KernelSeconds {
  double capture = 0;   ///< diff, refresh of the snapshot, log, digest, encode
  double checksum = 0;  ///< of what is sent, once to write and once a worker to check
  double decode = 0;    ///< reading the pieces and staging them, with what the digests change by
  double exchange = 0;  ///< in memory
  double read_back = 0; ///< digest of what was written

  [[nodiscard]] double pause() const noexcept { return exchange + read_back; }
  [[nodiscard]] double all() const noexcept { return capture + checksum + decode + pause(); }
};

/// Has a snapshot and worker memory of its own, and follows the weights as the session beside it does. Used by one
/// thread.
class OwnKernels {
public:
  /// Compiles the topology file and takes the first snapshot of `weights`, memory of plan.bytes() that is borrowed.
  [[nodiscard]] static Result<std::unique_ptr<OwnKernels>> make(const ModelPlan& plan, const std::byte* weights,
                                                                const std::string& topology,
                                                                const std::vector<std::string>& overrides);

  /// Brings snapshot and workers to what the weights are now. Fails where what was encoded does not decode, and where
  /// a digest that is read back differs from the one before the exchange: defects.
  [[nodiscard]] Result<KernelSeconds> run();

  /// What a worker's parameters hold, laid out as plan.held_by(worker).
  [[nodiscard]] const std::byte* memory_of(std::uint32_t worker) const noexcept { return memories_[worker].data(); }

private:
  /// A chunk of a rank.
  struct Item {
    std::uint32_t rank = 0;
    const sync::Chunk* chunk = nullptr;
    delta::EncodedPieces pieces;
  };

  explicit OwnKernels(const ModelPlan& plan) : plan_(plan) {}
  [[nodiscard]] Result<void> compile(const std::string& topology, const std::vector<std::string>& overrides);
  void place(const std::byte* weights);

  void receive();
  [[nodiscard]] Result<delta::Digest> decode(std::uint32_t worker);

  const ModelPlan& plan_;
  layout::Plan layout_;
  std::size_t piece_limit_ = 0;
  delta::Encoding encoding_;
  std::vector<sync::Chunks> chunks_;                      ///< by rank
  std::vector<std::vector<const std::byte*>> parameters_; ///< by rank: where each parameter's rows lie
  std::vector<HugeArray> snapshots_;                      ///< by rank
  std::vector<HugeArray> memories_;                       ///< by worker
  std::vector<std::vector<std::uint32_t>> bound_; ///< by worker, by block id: the stage's number of it, or nobody
  std::vector<delta::Stage> stages_;              ///< by worker
  std::vector<Item> items_;
  std::vector<std::vector<std::byte>> received_;               ///< by worker, by item: the pieces that it meets
  std::vector<std::unique_ptr<delta::PieceEncoder>> encoders_; ///< by thread
};

} // namespace deltawire::bench
