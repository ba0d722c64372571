// Topology files for the config tests: a directory of its own for each test, removed at its end.
#pragma once

#include "config/topology.hpp"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

namespace deltawire::config {

class TopologyFiles {
public:
  TopologyFiles() {
    static std::atomic<int> count{0};
    directory_ = std::filesystem::temp_directory_path() / fmt::format("deltawire-config-{}-{}", ::getpid(), ++count);
    std::filesystem::create_directories(directory_);
  }
  ~TopologyFiles() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  TopologyFiles(const TopologyFiles&) = delete;
  TopologyFiles& operator=(const TopologyFiles&) = delete;

  std::string path(const std::string& name) const { return (directory_ / name).string(); }

  void write(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories((directory_ / name).parent_path());
    std::ofstream{path(name), std::ios::binary} << text;
  }

  Result<Topology> load(const std::string& name = "t.toml", const std::vector<std::string>& overrides = {}) const {
    return config::load(path(name), overrides);
  }

  /// The messages of a load that must fail, one a line, without the directory.
  std::string errors(const std::string& name = "t.toml", const std::vector<std::string>& overrides = {}) const {
    auto loaded = load(name, overrides);
    if (loaded)
      return "(accepted)";
    std::string text = loaded.error().message;
    const std::string prefix = directory_.string() + "/";
    for (auto at = text.find(prefix); at != std::string::npos; at = text.find(prefix))
      text.erase(at, prefix.size());
    return text;
  }

private:
  std::filesystem::path directory_;
};

/// The errors of one file.
inline std::string errors_of(std::string_view text, const std::vector<std::string>& overrides = {}) {
  TopologyFiles files;
  files.write("t.toml", text);
  return files.errors("t.toml", overrides);
}

inline Result<Topology> load_text(std::string_view text, const std::vector<std::string>& overrides = {}) {
  TopologyFiles files;
  files.write("t.toml", text);
  return files.load("t.toml", overrides);
}

} // namespace deltawire::config
