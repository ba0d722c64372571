// A folder of its own for the files that a benchmark makes up.
#pragma once

#include "result.hpp"

#include <string>

namespace deltawire::bench {

/// Removed with all that is in it. Move-only.
class ScratchFolder {
public:
  /// In the system's folder for temporary files; fails with Code::output_failed.
  [[nodiscard]] static Result<ScratchFolder> make();

  ScratchFolder(ScratchFolder&& other) noexcept;
  ScratchFolder& operator=(ScratchFolder&& other) noexcept;
  ~ScratchFolder();

  /// Writes a file and returns its path; fails with Code::output_failed.
  [[nodiscard]] Result<std::string> write(const std::string& name, const std::string& text) const;

private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_; ///< empty: moved from
};

} // namespace deltawire::bench
