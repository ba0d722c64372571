// A checkpoint on disk, in one safetensors file or in several with an index (index.hpp): one set of named tensors.
// Everything is checked before it is used; memory is mapped, as in File, and the files must not be shortened meanwhile.
#pragma once

#include "checkpoint/safetensors.hpp"

#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace deltawire::checkpoint {

/// An open checkpoint. Immutable; safe to share between threads; copies share the mappings.
class Checkpoint {
public:
  /// Opens what `path` names:
  ///   - a file whose name ends in ".json": an index, whose files are relative to its folder;
  ///   - a folder: the one "*.safetensors.index.json" in it, or else its "model.safetensors"; a folder with both, or
  ///   with
  ///     several indexes, is refused;
  ///   - any other file: a safetensors file.
  /// Fails with Code::invalid_input, with all errors at once: a file that is missing or no good, a tensor that its file
  /// lacks, that lies in a second file too or that the index does not name, a total_size that is not what the tensors
  /// come to.
  [[nodiscard]] static Result<Checkpoint> open(const std::string& path);

  /// As it was given to open().
  [[nodiscard]] const std::string& path() const noexcept;
  /// File by file, by name, each in the order of its data.
  [[nodiscard]] std::span<const TensorView> tensors() const noexcept;
  /// Null when there is none of that name.
  [[nodiscard]] const TensorView* find(std::string_view name) const noexcept;

private:
  struct Contents;
  std::shared_ptr<const Contents> contents_;
};

} // namespace deltawire::checkpoint
