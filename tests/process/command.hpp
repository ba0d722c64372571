// Drives the real deltawire command: starts it, waits for it, and reads what it said. DELTAWIRE_COMMAND names the
// executable, DELTAWIRE_SOURCE the source tree (meson test sets both).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace deltawire::test {

/// A directory of its own, removed at its end.
class Scratch {
public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  [[nodiscard]] std::string path(const std::string& name) const { return (directory_ / name).string(); }
  /// Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& content) const;

private:
  std::filesystem::path directory_;
};

[[nodiscard]] std::string read_file(const std::string& path);

/// A path in the source tree.
[[nodiscard]] std::string source_path(const std::string& relative);

struct Ended {
  int status = 0; ///< exit status; 128 + signal when killed; 124 when this test gave up waiting and killed it
  std::string out;
  std::string err;
};

/// A command under way; killed at its end if it still runs.
class Running {
public:
  explicit Running(const std::vector<std::string>& arguments, const std::string& standard_output = "");
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Ids of its child processes whose command line contains all of `words`.
  [[nodiscard]] std::vector<pid_t> children(const std::vector<std::string>& words = {}) const;
  /// Does nothing to one that was waited for.
  void signal(int number) const;
  /// The same again to who waits once more.
  [[nodiscard]] Ended wait(double seconds = 120);

private:
  Scratch scratch_;
  pid_t pid_ = 0;
  std::optional<Ended> ended_;
};

/// Starts the command and waits for its end.
[[nodiscard]] Ended run_command(const std::vector<std::string>& arguments);

/// Whether a process exists and is no zombie.
[[nodiscard]] bool is_alive(pid_t pid);

/// A port of 127.0.0.1 that nobody else gets by chance until this process ends, not for a connection of its own either:
/// only who asks for it by its number, with SO_REUSEADDR as deltawire does, may listen on it. Nobody listens as yet.
[[nodiscard]] int reserve_port();

/// A TCP socket that listens on a port of 127.0.0.1 that the system chose.
class TakenPort {
public:
  TakenPort();
  ~TakenPort();
  TakenPort(const TakenPort&) = delete;
  TakenPort& operator=(const TakenPort&) = delete;
  [[nodiscard]] int port() const noexcept { return port_; }

private:
  int socket_ = -1;
  int port_ = 0;
};

} // namespace deltawire::test
