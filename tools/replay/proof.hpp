// The proof of `deltawire replay`: what a worker must hold, worked out from the topology's text and the checkpoint
// files by index arithmetic over full tensors. It uses no layout code of the product; proof/ has how it is done:
//   words, sum, text, pattern   the little languages of the rules        kept, relation    which elements they relate
//   rules, topology_text        the rules of one side                    fitting           shapes that no one states
//   slots, reads, cuts, plan    what the worker must hold                walk, comparison  bit by bit
//   cast                        what a tensor is on the wire
#pragma once

#include "checkpoint/checkpoint.hpp"
#include "config/topology.hpp"
#include "deltawire/dtype.hpp"
#include "result.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace deltawire::replay {

namespace proof {
struct SideText;
}

/// A tensor as a worker holds it: its local shape, row-major. The data is borrowed.
struct WorkerTensor {
  std::string name;
  DType dtype = DType::bf16;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};

/// A tensor that a worker must hold.
struct ExpectedTensor {
  std::string name;
  DType dtype = DType::bf16;
  std::vector<std::int64_t> shape;      ///< local
  std::vector<std::int64_t> full_shape; ///< over all workers of a replica
};

/// Immutable; safe to share between threads.
class Proof {
public:
  /// Works out what worker `index` must hold, from the topology's rules and the tensors of `first` (the trainer's
  /// names, full tensors). Costs time and memory of a few words a position of each dim of each parameter, not an
  /// element (proof/relation.hpp says where it does). Fails where the rules do not say of every element what it must
  /// be.
  [[nodiscard]] static Result<Proof> make(const config::Topology& topology, const checkpoint::Checkpoint& first,
                                          std::uint32_t index);
  /// The same from the text of the rules.
  [[nodiscard]] static Result<Proof> make(const proof::SideText& trainer, const proof::SideText& worker,
                                          const checkpoint::Checkpoint& first, std::uint32_t index);

  /// Sorted by name.
  [[nodiscard]] const std::vector<ExpectedTensor>& expected() const noexcept;

  /// Compares the bits of every element with `version`'s; padding must be zero bits. Returns how many elements were
  /// compared: all that the worker holds. Fails with Code::verification_failed, naming worker, tensor, local and full
  /// coordinates and both bit patterns of the first difference, and how many elements differ in all; or with
  /// Code::invalid_input where `version` lacks a tensor of the first file or has it in another form.
  [[nodiscard]] Result<std::uint64_t> compare(const checkpoint::Checkpoint& version,
                                              std::span<const WorkerTensor> held) const;

private:
  struct State;
  std::shared_ptr<const State> state_;
};

} // namespace deltawire::replay
