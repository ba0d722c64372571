// A folder of a test's own, removed at its end.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <unistd.h>

namespace deltawire::test {

class ScratchFolder {
public:
  ScratchFolder() {
    static std::atomic<int> count{0};
    folder_ = std::filesystem::temp_directory_path() / fmt::format("deltawire-test-{}-{}", ::getpid(), ++count);
    std::filesystem::create_directories(folder_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

  /// Files and folders in it, at any depth.
  [[nodiscard]] std::size_t entries() const {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::recursive_directory_iterator(folder_))
      ++count;
    return count;
  }

private:
  std::filesystem::path folder_;
};

} // namespace deltawire::test
