// Connections that carry frames, in order, both ways. A transport never knows what it carries: a frame is a fixed
// number of header bytes and a body whose length the Framing tells from the header.
//
// Threads: every function is thread-safe. Callbacks run on the transport's own thread (tcp, shm) or on the thread of
// the peer's call (inproc), one at a time per connection; they must not block and may call any function here except
// shutdown(). After on_closed no callback of that connection runs. Nothing here waits: deadlines are arguments.
// inproc runs callbacks inside the calls (connect, listen, start, send, close, abort) or on its thread "dw-inproc" when
// a deadline ends something: hold no lock over a call that a callback takes.
//
// Life: a connection that nobody holds stays open until it is closed, by close(), abort(), the peer or shutdown().
#pragma once

#include "result.hpp"
#include "transport/shared_key.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace deltawire::transport {

using Buffer = std::vector<std::byte>;

/// How to find the end of a frame.
struct Framing {
  std::size_t header_bytes = 0;
  /// Body length from a header; a Failure closes the connection.
  Result<std::uint64_t> (*body_bytes)(std::span<const std::byte> header) = nullptr;
};

/// A frame to send. The body is borrowed through a shared owner until the send is done: never copied by tcp; inproc
/// copies it once, as a wire would, so that the receiver owns its memory; shm copies it once for all the peers that the
/// same owner is sent to. What an owner shares never changes: other bytes are another owner's.
struct Outgoing {
  std::vector<std::byte> header;
  std::shared_ptr<const Buffer> body; ///< may be null: no body
};

/// A frame received; the body is the receiver's own.
struct Incoming {
  std::vector<std::byte> header;
  Buffer body;
};

/// Called when the frame has left (tcp: handed to the kernel whole; shm: lies where the peer reads it, or in the
/// kernel; inproc: delivered), or with the reason it never will.
using SendDone = std::function<void(const Result<void>&)>;

struct Handlers {
  std::function<void(Incoming&&)> on_frame;
  std::function<void(const Failure&)>
    on_closed; ///< once: the peer closed, an error, or abort(); says which, names the peer
};

class Connection {
public:
  virtual ~Connection() = default;

  /// Begins to deliver frames (those that came earlier first). Once.
  virtual void start(Handlers handlers) = 0;

  /// Queues a frame. Frames arrive in the order of send() calls of one thread. A frame whose header the framing
  /// refuses, or whose body is not as long as its header says, is not sent: `done` tells.
  virtual void send(Outgoing frame, SendDone done = {}) = 0;

  /// Sends what is queued, then closes. At most `linger`, then as abort(). Frames still arrive until on_closed.
  virtual void close(std::chrono::milliseconds linger) = 0;

  /// Accepted connections: the peer has said who it is, and the limits for strangers (Admission) end. inproc: nothing.
  virtual void admit() {}

  /// Closes at once; queued sends end with `reason`; on_closed(reason) follows if start() was called.
  virtual void abort(const Failure& reason) = 0;

  /// "127.0.0.1:41234", "inproc:name", "shm:127.0.0.1:29500" or, accepted, "shm:127.0.0.1:29500#" and the peer's
  /// process id; for messages.
  [[nodiscard]] virtual std::string peer() const = 0;

  /// Bytes of frames (header and body) sent and received so far.
  [[nodiscard]] virtual std::uint64_t bytes_sent() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t bytes_received() const noexcept = 0;
};

/// Accepts connections until destroyed. The destructor waits for an accepted-callback that runs on another thread.
class Listener {
public:
  virtual ~Listener() = default;
  /// The address to connect to, with the real port (inproc: a number that is free within the process; shm: one that
  /// nobody on this host listens under).
  [[nodiscard]] virtual std::string address() const = 0;
};

class Network {
public:
  virtual ~Network() = default;

  using Accepted = std::function<void(std::shared_ptr<Connection>)>;
  /// Whom a listener turned away before there was a connection to hand over, and why; names the peer's address.
  using Refused = std::function<void(const Failure&)>;
  using Connected = std::function<void(Result<std::shared_ptr<Connection>>)>;

  /// Listens; a taken port is Code::address_in_use with the address in the message. `refused` may be empty.
  [[nodiscard]] virtual Result<std::unique_ptr<Listener>> listen(const std::string& address, Accepted accepted,
                                                                 Refused refused) = 0;
  [[nodiscard]] Result<std::unique_ptr<Listener>> listen(const std::string& address, Accepted accepted) {
    return listen(address, std::move(accepted), {});
  }

  /// tcp: adopts a listening socket (port 0 resolved by the parent that started us). shm: listens under that socket's
  /// address, and keeps it, so that the port stays taken. inproc: Code::unsupported.
  [[nodiscard]] virtual Result<std::unique_ptr<Listener>> adopt(int listening_socket, Accepted accepted,
                                                                Refused refused) = 0;
  [[nodiscard]] Result<std::unique_ptr<Listener>> adopt(int listening_socket, Accepted accepted) {
    return adopt(listening_socket, std::move(accepted), {});
  }

  /// Connects, trying again (a peer that does not listen yet is no error) until `deadline`, then Code::timed_out. With
  /// a key, one that does not hold it is Code::peer_failed at once.
  virtual void connect(const std::string& address, std::chrono::steady_clock::time_point deadline,
                       Connected connected) = 0;

  /// Aborts every connection and attempt with `reason`, stops and joins the transport's threads. After it no callback
  /// runs. Not from a callback.
  virtual void shutdown(const Failure& reason) = 0;
};

/// What a listener grants to strangers, peers that have not been admitted: Connection::admit().
struct Admission {
  std::chrono::milliseconds time{10'000}; ///< from accept to admit(), TLS handshake included
  std::uint64_t bytes = 64 << 10;         ///< of frames, looked at before memory is taken; and as many of a handshake
  /// At a time; beyond it the one that has waited longest is closed. With a key, who has shown it counts no more.
  std::size_t strangers = 256;
  std::size_t connections = 16'384; ///< open at a time, admitted ones too; beyond it newcomers are closed
};

struct TcpSettings {
  /// With a key every connection is TLS 1.3 (tls.hpp): accepted or connected means that the peer holds it too.
  std::optional<SharedKey> key;
  Admission admission;
  std::uint64_t new_key_after = 1ull << 22; ///< TLS records that are encrypted under one key of a connection
};

/// TCP through Boost.Asio. `threads` io threads named `name` ("dw-io"); connections are spread over them. Fails only
/// with a key, where OpenSSL lacks what it takes.
[[nodiscard]] Result<std::unique_ptr<Network>> make_tcp_network(Framing framing, const std::string& name,
                                                                unsigned threads, const TcpSettings& settings);
/// Not encrypted, with the usual limits.
[[nodiscard]] std::unique_ptr<Network> make_tcp_network(Framing framing, const std::string& name, unsigned threads);

/// What a process has sent through shared memory.
struct ShmCounters {
  std::uint64_t copied = 0;       ///< bytes of bodies, into shared memory
  std::uint64_t in_use = 0;       ///< bytes of it that peers may still read, or that are being sent
  std::uint64_t most_in_use = 0;  ///< at any time
  std::uint64_t without_room = 0; ///< bodies that found none and went through sockets
};

class ShmNetwork : public Network {
public:
  [[nodiscard]] virtual ShmCounters counters() const = 0;
};

struct ShmSettings {
  Admission admission;
  /// The most memory that is shared with peers: what they have not read yet. A body that finds no room goes through a
  /// socket, so that no peer waits for another one.
  std::uint64_t arena = 256ull << 20;
};

/// Between processes of one user on this host: large bodies through shared memory, the rest through Unix sockets.
/// Addresses are those of tcp, loopback only: "127.0.0.1:29500" is a name here, and takes no TCP port. Peers of another
/// user are turned away, on both sides, on the kernel's word. Not encrypted: nothing leaves the host.
/// Code::unsupported where the system lacks what it takes (Linux 5.1).
[[nodiscard]] Result<std::unique_ptr<ShmNetwork>> make_shm_network(Framing framing, const std::string& name,
                                                                   unsigned threads, const ShmSettings& settings);

/// Between objects of one process, found by address within this process.
[[nodiscard]] std::unique_ptr<Network> make_inproc_network(Framing framing);

} // namespace deltawire::transport
