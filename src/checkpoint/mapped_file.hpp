// A regular file's bytes in memory, read-only, by mmap. A file must not be shortened while it is mapped: its pages
// would be gone.
#pragma once

#include "result.hpp"

#include <cstddef>
#include <span>
#include <string>

namespace deltawire::checkpoint {

/// Move-only; unmaps at its end.
class MappedFile {
public:
  /// Fails with Code::invalid_input naming path and cause: not there, not readable, no regular file.
  [[nodiscard]] static Result<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  /// Empty for an empty file. Valid while this lives, also after a move.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {base_, length_}; }

private:
  const std::byte* base_ = nullptr;
  std::size_t length_ = 0;
};

} // namespace deltawire::checkpoint
