// One side of the topology (trainer or worker), compiled: patterns, maps and placements, and the declarations made with
// them. Pure and immutable after compile(): safe to share between threads.
#pragma once

#include "layout/exported.hpp"
#include "layout/region.hpp"
#include "layout/rules.hpp"
#include "layout/shard.hpp"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace deltawire::layout {

/// A tensor as a process holds it.
struct LocalTensor {
  std::string name;
  DType dtype = DType::bf16;
  Shape shape;                ///< trainer: the full shape; worker: the local shape
  std::vector<Index> strides; ///< elements; empty = row-major over the local shape
  /// Trainer, with a flat cut: the interval that this rank holds of the elements that the cuts before it leave, in
  /// place of the topology's (a parameter within a longer flat buffer).
  std::optional<FlatRange> flat{};
  /// Trainer: what this rank's memory, row-major, has of which slots, in place of what the maps say. `shape` and the
  /// placement still tell how large the memory is; who owns what, the blocks alone do.
  std::optional<std::vector<ExportedSlot>> exported{};
};

class Side {
public:
  enum class Role { trainer, worker };

  /// Parses every pattern, cut and map. All errors at once, each prefixed by its rule's `where`.
  [[nodiscard]] static Result<Side> compile(SideRules rules, Role role);

  [[nodiscard]] const Mesh& mesh() const noexcept;
  [[nodiscard]] const SideRules& rules() const noexcept;

  /// How a parameter of this full shape is sharded on this rank (by its placement and maps).
  [[nodiscard]] Result<Shard> shard(const std::string& name, const Shape& full_shape, Index rank) const;

  /// Trainer: what `rank` provides, from its tensors (full shapes). Slots follow from maps and shapes.
  /// Every slot of every tensor is listed, also on a rank that provides none of its elements; their order follows the
  /// tensors and the maps, so that ranks that hold the same tensors list the same slots.
  /// A slot's dtype is what its parameters are cast to.
  /// Fails, all errors at once, on: an element that no map covers (without padding) or that two slots claim, a slot
  /// with two sources, a map that does not fit, a cut of a missing dim, memory that overlaps itself, a cast that does
  /// not exist.
  [[nodiscard]] Result<Declaration> declare_trainer(std::span<const LocalTensor> tensors, Index rank) const;

  /// Worker: the parameters that worker `index` holds, as the maps and the trainer's slots imply them: parameters of
  /// the maps (shape from the slots and slices, or from a ParameterRule), and each slot that no map names under its own
  /// name, except those listed as unused. Order: by first slot in the catalogue.
  /// A slot that a map names is read by the maps that name it and no longer stands for itself: a tied head is two maps
  /// of one slot, one of them `parameter = slot`.
  /// Shapes: `:` takes the slot's extent, `a:b` reaches to b, an index or bound name to its largest number; the largest
  /// of all maps counts, and a ParameterRule's shape before all of them. A view tells the shape by itself, unless it
  /// leaves open which dims are one: then a ParameterRule must.
  [[nodiscard]] Result<std::vector<ParameterSpec>> worker_parameters(std::span<const SlotSpec> catalogue,
                                                                     Index index) const;

  /// Worker: what `index` reads, from its bound tensors (local shapes). Each must be one of worker_parameters() with
  /// the same local shape and dtype, and none may be missing.
  [[nodiscard]] Result<Declaration> declare_worker(std::span<const SlotSpec> catalogue,
                                                   std::span<const LocalTensor> tensors, Index index) const;

  /// Rules that name one thing, without a pattern, must find it: a name that nothing has is a typing error that would
  /// pass unseen. `parameters` = the names of this side's parameters, on all its processes; `catalogue` = the slots.
  /// Fails with every name that nothing has, each with its rule.
  [[nodiscard]] Result<void> check_names(std::span<const std::string> parameters,
                                         std::span<const SlotSpec> catalogue) const;

private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

} // namespace deltawire::layout
