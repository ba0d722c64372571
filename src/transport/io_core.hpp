// What the objects of one network of sockets share: its io threads, and who must be ended when it shuts down.
//
// Each io thread runs an io_context of its own, and a connection lives on one of them: its state is touched by that
// thread only. What other threads ask for is posted there, in the order in which they ask.
//
// Shutdown ends every operation and lets the contexts run dry, instead of stopping them: a handler left in a stopped
// context would own a connection that owns the context.
//
// This header and the others that include it are the room's own: they bring Asio in.
#pragma once

#include "transport/guarded.hpp"
#include "transport/transport.hpp"

#include <atomic>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <thread>

#define BOOST_ERROR_CODE_HEADER_ONLY
#include <boost/asio.hpp>

namespace deltawire::transport {

namespace asio = boost::asio;
using asio::ip::tcp;
/// A connected socket of any family. Shared memory's are of messages, and never asked to read or write by Asio.
using Socket = asio::generic::stream_protocol::socket;
using boost::system::error_code;

/// "127.0.0.1:80", "[::1]:80"
[[nodiscard]] std::string to_text(const tcp::endpoint& endpoint);

/// Processes that ours starts must not hold our sockets open.
void close_on_exec(int descriptor);

/// What every connected TCP socket is set to, before it is used.
void prepare(Socket& socket);

/// What shutdown ends. Thread-safe.
class Ended {
public:
  virtual ~Ended() = default;
  virtual void end(const Failure& reason) = 0;
};

class Arena;
class TlsContext;

class IoCore {
public:
  /// What all connections are: over TCP, plain where `tls_context` is null, or over shared memory, where there is an
  /// arena.
  IoCore(Framing frames, unsigned threads, std::shared_ptr<const TlsContext> tls_context,
         std::shared_ptr<Arena> sends_from);

  const Framing framing;
  const std::shared_ptr<const TlsContext> tls;
  const std::shared_ptr<Arena> arena; ///< bodies are sent from it

  [[nodiscard]] asio::io_context& next_context() noexcept { return *contexts_[next_++ % contexts_.size()]; }

  /// Runs `call` on the context's thread, in order; after shutdown never.
  template <class Call>
  void post(asio::io_context& context, Call call) {
    const std::shared_lock lock(post_mutex_);
    if (!posts_closed_)
      asio::post(context, std::move(call));
  }

  /// Keep what must be ended by shutdown; false once that began.
  [[nodiscard]] bool add(const std::shared_ptr<Ended>& object);
  void remove(const std::shared_ptr<Ended>& object);

  void start(const std::string& name);

  /// Once. Not on an io thread.
  void shutdown(const Failure& reason);

private:
  std::vector<std::unique_ptr<asio::io_context>> contexts_;
  std::vector<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  std::vector<std::thread> threads_;
  std::atomic<std::size_t> next_ = 0;

  std::shared_mutex post_mutex_;
  bool posts_closed_ = false;

  std::mutex mutex_;
  bool down_ = false;
  std::set<std::shared_ptr<Ended>> objects_;
};

} // namespace deltawire::transport
