#include "scratch_file.hpp"

#include "target.hpp"

#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace deltawire::fuzz {
namespace {

class Folder {
public:
  Folder() {
    std::error_code error;
    const bool in_memory = std::filesystem::is_directory("/dev/shm", error) && ::access("/dev/shm", W_OK) == 0;
    const std::filesystem::path parent = in_memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    path_ = (parent / ("deltawire-fuzz-" + std::to_string(::getpid()))).string();
    std::filesystem::create_directories(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

private:
  std::string path_;
};

} // namespace

const std::string& scratch_folder() {
  static const Folder folder;
  return folder.path();
}

std::string scratch_file(const std::string& name, std::span<const std::byte> bytes) {
  std::string path = scratch_folder() + "/" + name;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  require(file.good(), "the target's own file can be written");
  return path;
}

} // namespace deltawire::fuzz
