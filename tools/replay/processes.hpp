// All peers as child processes of this one, over the topology's transport. The children are this same executable; no
// child outlives its parent.
#pragma once

#include "config/address.hpp"
#include "progress.hpp"
#include "record.hpp"
#include "result.hpp"

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace deltawire::replay {

/// A child: its command line without the executable and without the options that processes.cpp adds.
struct ChildProcess {
  Peer peer;
  std::vector<std::string> arguments;
};

/// A listening socket that is bound before anybody starts, so that the port cannot be taken in between. Move-only
/// owner.
class ListeningSocket {
public:
  /// Binds and listens; port 0 lets the system choose. Fails with Code::address_in_use for a taken port, naming the key
  /// that the address is of.
  [[nodiscard]] static Result<ListeningSocket> open(const config::Address& address,
                                                    const std::string& key = "transport.master");

  ListeningSocket(ListeningSocket&& other) noexcept;
  ListeningSocket& operator=(ListeningSocket&& other) noexcept;
  ~ListeningSocket();

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  /// With the real port, numeric.
  [[nodiscard]] const std::string& address() const noexcept { return address_; }

private:
  ListeningSocket(int descriptor, std::string address) : descriptor_(descriptor), address_(std::move(address)) {}
  int descriptor_ = -1;
  std::string address_;
};

/// Called with the number of versions that all workers hold and have proven, once for each, before the trainers hear of
/// it and may go on; false gives the run up.
using BeforeTurn = std::function<bool(std::size_t versions)>;

/// Starts the children and notes their events until all have ended. The child of `root` inherits the socket as
/// --listen-fd. A child that gives no sign of life for twice `stall` (3 s at least: the session's own deadline, which
/// knows more, comes first) counts as dead. After the first failure the others get a short grace, then they are killed.
/// On SIGINT, SIGTERM or SIGHUP kills all children, and then this process by the same signal. Fails where a child
/// cannot be started. Requires a single-threaded process.
[[nodiscard]] Result<void> run_in_processes(const std::vector<ChildProcess>& children, Peer root,
                                            ListeningSocket socket, std::chrono::nanoseconds stall, Record& record,
                                            Progress& progress, const BeforeTurn& before_turn = {});

/// For a child: die with the parent. False where the parent has died already.
[[nodiscard]] bool die_with_parent(int parent);

/// For a trainer child: the parent says on the same descriptor when the next update may begin.
[[nodiscard]] std::function<bool(std::size_t versions)> turns_from(int descriptor);

/// For a child: an empty line to the parent every now and then, so that it can tell a process that works from one that
/// stands still. Its own thread, from construction to destruction.
class Pulse {
public:
  explicit Pulse(int descriptor);
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;
  ~Pulse();

private:
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;
};

/// For a child: events go to the parent as lines. Thread-safe; the descriptor stays the caller's.
[[nodiscard]] EventSink line_sink(int descriptor);

} // namespace deltawire::replay
