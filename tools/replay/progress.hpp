// A progress bar on standard error, for people. One thread at a time.
#pragma once

#include <cstddef>
#include <string>

namespace deltawire::replay {

class Progress {
public:
  /// Draws only when `wanted` and standard error is a terminal.
  explicit Progress(bool wanted);
  /// Removes the bar.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::size_t done, std::size_t all);

private:
  bool enabled_;
  std::string drawn_;
};

} // namespace deltawire::replay
