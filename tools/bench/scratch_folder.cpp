#include "scratch_folder.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

namespace deltawire::bench {

Result<ScratchFolder> ScratchFolder::make() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error)
    return fail(Code::output_failed, "there is no folder for temporary files ({}): set TMPDIR", error.message());
  std::string path = (parent / "deltawire-bench-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr)
    return fail(Code::output_failed, "{}: a temporary folder cannot be made: {}", path, std::strerror(errno));
  return ScratchFolder(std::move(path));
}

ScratchFolder::ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}

ScratchFolder& ScratchFolder::operator=(ScratchFolder&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored; // a folder for temporary files: what is left there harms nobody
  if (!path_.empty())
    std::filesystem::remove_all(path_, ignored);
}

Result<std::string> ScratchFolder::write(const std::string& name, const std::string& text) const {
  std::string path = (std::filesystem::path(path_) / name).string();
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file)
    return fail(Code::output_failed, "{}: cannot be written", path);
  return path;
}

} // namespace deltawire::bench
