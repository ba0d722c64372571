// safetensors files (https://github.com/huggingface/safetensors, README "Format"), read by mmap and written whole.
// Every rule of the format is checked before tensor memory is touched: header size within the file and at most 100 MB,
// JSON object, known dtype, shape x size = range, ranges within the data, no overlap, no hole, no duplicate name, data
// aligned to its element size. A file must not be shortened while it is open: its pages would be gone.
#pragma once

#include "deltawire/dtype.hpp"
#include "layout/shape.hpp"
#include "result.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::checkpoint {

/// A tensor of a file; data points into the mapping (read-only, valid while the File lives), row-major.
struct TensorView {
  std::string name;
  DType dtype = DType::bf16;
  layout::Shape shape;
  std::span<const std::byte> data;
};

/// An open file. Immutable; safe to share between threads.
class File {
public:
  /// Fails with Code::invalid_input naming file, tensor and rule.
  [[nodiscard]] static Result<File> open(const std::string& path);

  [[nodiscard]] const std::string& path() const noexcept;
  /// In the order of the data.
  [[nodiscard]] std::span<const TensorView> tensors() const noexcept;
  /// Null when there is none of that name.
  [[nodiscard]] const TensorView* find(std::string_view name) const noexcept;

private:
  struct Mapping;
  std::shared_ptr<const Mapping> mapping_;
};

/// A tensor to write; data is borrowed for the call.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::bf16;
  layout::Shape shape;
  std::span<const std::byte> data;
};

/// Writes a file whole or not at all (temporary name, then rename; the temporary is removed on failure). Data is
/// aligned to 8 bytes, larger dtypes first, each sorted by name. Fails with Code::output_failed naming path and cause
/// (also where the path is a device, a pipe or a folder), or with Code::invalid_argument on tensors that no file can
/// hold (a name twice, data that is not as long as dtype and shape say).
[[nodiscard]] Result<void> write(const std::string& path, std::span<const TensorToWrite> tensors);

} // namespace deltawire::checkpoint
