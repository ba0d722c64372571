// TCP through Boost.Asio. Each io thread runs an io_context of its own, and a connection lives on one of them: its
// state is touched by that thread only, so that nothing but the socket's descriptor (abort() shuts it down from any
// thread) needs a lock. What other threads ask for is posted there, in the order in which they ask.
//
// Shutdown ends every operation and lets the contexts run dry, instead of stopping them: a handler left in a stopped
// context would own a connection that owns the context.
#include "transport/transport.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <shared_mutex>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>

#define BOOST_ERROR_CODE_HEADER_ONLY
#include <boost/asio.hpp>

namespace deltawire::transport {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Connected = Network::Connected;
using Accepted = Network::Accepted;

/// A body grows by this much as its bytes arrive: a header alone, however long a body it announces, takes no memory.
constexpr std::uint64_t body_step = 64ull << 20;
/// Address space set aside for a body at once, so that it need not move while it grows. Pages are taken by steps only.
constexpr std::uint64_t body_reserve = 1ull << 30;

constexpr auto retry_pause = std::chrono::milliseconds(50);   // between attempts to connect
constexpr auto accept_pause = std::chrono::milliseconds(100); // after a failed accept: out of descriptors, mostly

/// Calls, and tells what a callback threw.
template <class Call>
std::optional<Failure> guarded(const std::string& who, Call call) noexcept {
  try {
    call();
    return std::nullopt;
  } catch (const std::exception& error) {
    return Failure{Code::internal, fmt::format("{}: a callback threw: {}", who, error.what())};
  } catch (...) {
    return Failure{Code::internal, fmt::format("{}: a callback threw", who)};
  }
}

std::string to_text(const tcp::endpoint& endpoint) {
  error_code ignored;
  const std::string address = endpoint.address().to_string(ignored);
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", address, endpoint.port())
                                    : fmt::format("{}:{}", address, endpoint.port());
}

/// Asio's own condition caps a system call at 64 KiB.
auto all_of_it(std::uint64_t total) {
  return [total](const error_code& error, std::size_t done) -> std::size_t {
    return error ? 0 : static_cast<std::size_t>(total - done);
  };
}

/// Processes that ours starts must not hold our sockets open.
void close_on_exec(int descriptor) {
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};

/// "host:port", "[::1]:port", "[fe80::1%eth0]:port".
Result<HostPort> split_address(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  HostPort result;
  if (colon != std::string::npos) {
    result.host = address.substr(0, colon);
    if (result.host.size() > 2 && result.host.front() == '[' && result.host.back() == ']')
      result.host = result.host.substr(1, result.host.size() - 2);
    else if (result.host.find_first_of(":[]") != std::string::npos)
      result.host.clear();
    const std::string port = address.substr(colon + 1);
    unsigned value = 0;
    for (const char digit : port)
      value = digit >= '0' && digit <= '9' && value <= 65535 ? value * 10 + static_cast<unsigned>(digit - '0') : 65536;
    if (!result.host.empty() && !port.empty() && value <= 65535) {
      result.port = static_cast<std::uint16_t>(value);
      return result;
    }
  }
  return fail(Code::invalid_argument, "\"{}\" is no address: write \"host:port\" or \"[ipv6]:port\"", address);
}

class TcpConnection;
class TcpAcceptor;
class TcpAttempt;

// What the objects of one network share
// ---------------------------------------------------------------------------------------------------------------

class Core {
public:
  Core(Framing frames, unsigned threads) : framing(frames) {
    for (unsigned i = 0; i < std::max(threads, 1u); ++i) {
      contexts_.push_back(std::make_unique<asio::io_context>(1));
      work_.emplace_back(contexts_.back()->get_executor());
    }
  }

  const Framing framing;

  [[nodiscard]] asio::io_context& next_context() noexcept { return *contexts_[next_++ % contexts_.size()]; }

  /// Runs `call` on the context's thread, in order; after shutdown never.
  template <class Call>
  void post(asio::io_context& context, Call call) {
    const std::shared_lock lock(post_mutex_);
    if (!posts_closed_)
      asio::post(context, std::move(call));
  }

  /// Keep what must be ended by shutdown; false once that began.
  template <class T>
  [[nodiscard]] bool add(const std::shared_ptr<T>& object) {
    const std::lock_guard lock(mutex_);
    return !down_ && set_of(object).insert(object).second;
  }
  template <class T>
  void remove(const std::shared_ptr<T>& object) {
    const std::lock_guard lock(mutex_);
    set_of(object).erase(object);
  }

  void start(const std::string& name) {
    for (std::size_t i = 0; i < contexts_.size(); ++i) {
      threads_.emplace_back([context = contexts_[i].get()] { run(*context); });
      // Linux takes 15 characters.
      const std::string numbered = contexts_.size() == 1 ? name : fmt::format("{}-{}", name.substr(0, 11), i);
      pthread_setname_np(threads_.back().native_handle(), numbered.substr(0, 15).c_str());
    }
  }

  void shutdown(const Failure& reason);

private:
  static void run(asio::io_context& context) {
    for (;;)
      try {
        context.run();
        return;
      } catch (...) { // callbacks are guarded: this is memory that ran out, and the operation it hit is lost, not us
      }
  }

  std::set<std::shared_ptr<TcpConnection>>& set_of(const std::shared_ptr<TcpConnection>&) { return connections_; }
  std::set<std::shared_ptr<TcpAcceptor>>& set_of(const std::shared_ptr<TcpAcceptor>&) { return acceptors_; }
  std::set<std::shared_ptr<TcpAttempt>>& set_of(const std::shared_ptr<TcpAttempt>&) { return attempts_; }

  std::vector<std::unique_ptr<asio::io_context>> contexts_;
  std::vector<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  std::vector<std::thread> threads_;
  std::atomic<std::size_t> next_ = 0;

  std::shared_mutex post_mutex_;
  bool posts_closed_ = false;

  std::mutex mutex_;
  bool down_ = false;
  std::set<std::shared_ptr<TcpConnection>> connections_;
  std::set<std::shared_ptr<TcpAcceptor>> acceptors_;
  std::set<std::shared_ptr<TcpAttempt>> attempts_;
};

// A connection
// ---------------------------------------------------------------------------------------------------------------

class TcpConnection : public std::enable_shared_from_this<TcpConnection> {
public:
  TcpConnection(std::shared_ptr<Core> core, tcp::socket socket, asio::io_context& context, std::string peer)
    : core_(std::move(core)), peer_(std::move(peer)), context_(context), socket_(std::move(socket)), linger_(context) {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    close_on_exec(socket_.native_handle());
  }

  // From any thread.

  void start(Handlers handlers) {
    core_->post(context_, [self = shared_from_this(), handlers = std::move(handlers)]() mutable {
      self->do_start(std::move(handlers));
    });
  }
  void send(Outgoing frame, SendDone done) {
    core_->post(context_, [self = shared_from_this(), frame = std::move(frame), done = std::move(done)]() mutable {
      self->do_send(std::move(frame), std::move(done));
    });
  }
  void close(std::chrono::milliseconds linger) {
    core_->post(context_, [self = shared_from_this(), linger] { self->do_close(linger); });
  }
  void abort(const Failure& reason) {
    {
      const std::lock_guard lock(socket_mutex_);
      if (!abort_reason_)
        abort_reason_ = reason;
      if (open_)
        ::shutdown(socket_.native_handle(), SHUT_RDWR);
    }
    core_->post(context_, [self = shared_from_this(), reason] { self->finish(reason); });
  }

  [[nodiscard]] const std::string& peer() const noexcept { return peer_; }
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept { return sent_; }
  [[nodiscard]] std::uint64_t bytes_received() const noexcept { return received_; }

private:
  struct Queued {
    Outgoing frame;
    SendDone done;
  };

  // On the connection's thread.

  void do_start(Handlers&& handlers) {
    if (started_)
      return;
    started_ = true;
    handlers_ = std::move(handlers);
    if (finished_)
      complete();
    else if (!reading_) // else close() was first, and discards
      read_header();
  }

  void do_send(Outgoing&& frame, SendDone&& done) {
    if (told_)
      return; // after on_closed there are no callbacks
    const std::size_t size = frame.body ? frame.body->size() : 0;
    Result<void> sound;
    if (finished_)
      sound = tl::make_unexpected(*finished_);
    else if (closing_)
      sound = fail(Code::call_order, "{}: send after close", peer_);
    else if (const auto body = core_->framing.body_bytes(frame.header); !body)
      sound = tl::make_unexpected(body.error());
    else if (*body != size)
      sound = fail(Code::invalid_argument, "{}: frame not sent: its header says a body of {} bytes, it has {}", peer_,
                   *body, size);
    if (!sound) {
      tell(done, sound);
      return;
    }
    queue_.push_back({std::move(frame), std::move(done)});
    if (!writing_)
      write();
  }

  void write() {
    writing_ = true;
    const Outgoing& frame = queue_.front().frame;
    const std::size_t body = frame.body ? frame.body->size() : 0;
    const std::array<asio::const_buffer, 2> parts{
      asio::buffer(frame.header),
      body == 0 ? asio::const_buffer() : asio::const_buffer(frame.body->data(), body),
    };
    asio::async_write(
      socket_, parts, all_of_it(frame.header.size() + body),
      [self = shared_from_this()](const error_code& error, std::size_t bytes) { self->written(error, bytes); });
  }

  void written(const error_code& error, std::size_t bytes) {
    writing_ = false;
    if (error) {
      finish({Code::peer_failed, fmt::format("{}: sending failed: {}", peer_, error.message())});
      complete();
      return;
    }
    sent_ += bytes;
    const SendDone done = std::move(queue_.front().done);
    queue_.pop_front();
    if (!finished_ && !queue_.empty())
      write();
    tell(done, {});
    if (finished_)
      complete();
    else if (closing_ && queue_.empty())
      half_close();
  }

  void read_header() {
    reading_ = true;
    incoming_.header.resize(core_->framing.header_bytes);
    asio::async_read(
      socket_, asio::buffer(incoming_.header), all_of_it(incoming_.header.size()),
      [self = shared_from_this()](const error_code& error, std::size_t bytes) { self->header_read(error, bytes); });
  }

  void header_read(const error_code& error, std::size_t bytes) {
    reading_ = false;
    if (finished_ || error) {
      read_failed(error, bytes != 0);
      return;
    }
    const auto body = core_->framing.body_bytes(incoming_.header);
    if (!body) {
      finish({body.error().code, fmt::format("{}: {}", peer_, body.error().message)});
      return;
    }
    body_bytes_ = *body;
    incoming_.body = {};
    read_body();
  }

  /// Reads the next step of the body, or hands the frame over.
  void read_body() {
    const std::uint64_t have = incoming_.body.size();
    if (have == body_bytes_) {
      received_ += incoming_.header.size() + have;
      if (auto thrown = guarded(peer_, [&] { handlers_.on_frame(std::exchange(incoming_, {})); })) {
        finish(*thrown);
        return;
      }
      if (finished_)
        complete();
      else
        read_header();
      return;
    }
    const std::uint64_t want = std::min(body_bytes_ - have, body_step);
    try {
      if (incoming_.body.capacity() < have + want)
        incoming_.body.reserve(std::min(body_bytes_, std::max(body_reserve, 2 * have)));
      incoming_.body.resize(have + want);
    } catch (const std::exception&) {
      finish({Code::limit_exceeded, fmt::format("{}: not enough memory for a frame of {} bytes", peer_, body_bytes_)});
      return;
    }
    reading_ = true;
    asio::async_read(socket_, asio::buffer(incoming_.body.data() + have, want), all_of_it(want),
                     [self = shared_from_this()](const error_code& error, std::size_t) {
                       self->reading_ = false;
                       if (self->finished_ || error)
                         self->read_failed(error, true);
                       else
                         self->read_body();
                     });
  }

  void read_failed(const error_code& error, bool within_frame) {
    if (error == asio::error::eof)
      finish(within_frame
               ? Failure{Code::peer_failed, fmt::format("{}: the peer closed in the middle of a frame", peer_)}
             : half_closed_ ? closed_here()
                            : Failure{Code::peer_failed, fmt::format("{}: the peer closed the connection", peer_)});
    else
      finish({Code::peer_failed, fmt::format("{}: receiving failed: {}", peer_, error.message())});
    complete();
  }

  void do_close(std::chrono::milliseconds linger) {
    if (finished_ || std::exchange(closing_, true))
      return;
    linger_.expires_after(linger);
    linger_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error)
        self->finish(self->closed_here());
    });
    if (queue_.empty())
      half_close();
  }

  /// All is sent. The socket stays until the peer closes too: closing with unread bytes would reset the connection, and
  /// the peer could lose our last frames.
  void half_close() {
    half_closed_ = true;
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    if (!reading_ && !started_)
      discard();
  }

  void discard() {
    reading_ = true;
    incoming_.body.resize(1 << 16);
    socket_.async_read_some(asio::buffer(incoming_.body),
                            [self = shared_from_this()](const error_code& error, std::size_t) {
                              self->reading_ = false;
                              if (self->finished_ || error)
                                self->read_failed(error, false);
                              else
                                self->discard();
                            });
  }

  [[nodiscard]] Failure closed_here() const {
    return {Code::peer_failed, fmt::format("{}: closed by this side", peer_)};
  }

  /// Ends the connection; callbacks follow once no operation uses the socket or a buffer.
  void finish(const Failure& why) {
    if (finished_)
      return;
    {
      const std::lock_guard lock(socket_mutex_);
      finished_ = abort_reason_ ? *abort_reason_ : why;
      open_ = false;
      error_code ignored;
      socket_.close(ignored);
    }
    linger_.cancel();
    // In a turn of its own: finish() is called from callbacks, too.
    asio::post(context_, [self = shared_from_this()] { self->complete(); });
  }

  void complete() {
    if (!finished_ || reading_ || writing_ || told_)
      return;
    while (!queue_.empty()) {
      const SendDone done = std::move(queue_.front().done);
      queue_.pop_front();
      tell(done, tl::make_unexpected(*finished_));
    }
    if (started_ && !std::exchange(told_, true)) {
      const Handlers handlers = std::exchange(handlers_, {}); // what it holds on to may be us
      if (handlers.on_closed)
        guarded(peer_, [&] { handlers.on_closed(*finished_); });
    }
    incoming_ = {};
    core_->remove(shared_from_this());
  }

  void tell(const SendDone& done, const Result<void>& result) {
    if (!done)
      return;
    if (const auto thrown = guarded(peer_, [&] { done(result); }))
      finish(*thrown);
  }

  const std::shared_ptr<Core> core_;
  const std::string peer_;
  asio::io_context& context_;

  std::mutex socket_mutex_; ///< for the descriptor's life, and what follows
  bool open_ = true;
  std::optional<Failure> abort_reason_;

  tcp::socket socket_;
  asio::steady_timer linger_;
  std::deque<Queued> queue_; ///< the first is being written while writing_
  Handlers handlers_;
  Incoming incoming_;
  std::uint64_t body_bytes_ = 0;
  bool started_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool closing_ = false;     ///< close() was called
  bool half_closed_ = false; ///< and all is sent
  bool told_ = false;        ///< on_closed was called
  std::optional<Failure> finished_;
  std::atomic<std::uint64_t> sent_ = 0;
  std::atomic<std::uint64_t> received_ = 0;
};

/// What the user holds.
class TcpConnectionHandle final : public Connection {
public:
  explicit TcpConnectionHandle(std::shared_ptr<TcpConnection> connection) : connection_(std::move(connection)) {}
  void start(Handlers handlers) override { connection_->start(std::move(handlers)); }
  void send(Outgoing frame, SendDone done) override { connection_->send(std::move(frame), std::move(done)); }
  void close(std::chrono::milliseconds linger) override { connection_->close(linger); }
  void abort(const Failure& reason) override { connection_->abort(reason); }
  [[nodiscard]] std::string peer() const override { return connection_->peer(); }
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept override { return connection_->bytes_sent(); }
  [[nodiscard]] std::uint64_t bytes_received() const noexcept override { return connection_->bytes_received(); }

private:
  std::shared_ptr<TcpConnection> connection_;
};

// A listener
// ---------------------------------------------------------------------------------------------------------------

class TcpAcceptor : public std::enable_shared_from_this<TcpAcceptor> {
public:
  TcpAcceptor(std::shared_ptr<Core> core, asio::io_context& context, tcp::acceptor acceptor, Accepted accepted)
    : core_(std::move(core)), context_(context), acceptor_(std::move(acceptor)), pause_(context),
      accepted_(std::move(accepted)) {
    close_on_exec(acceptor_.native_handle());
    error_code ignored;
    address_ = to_text(acceptor_.local_endpoint(ignored));
  }

  /// Begins on the context's thread, so that a caller's locks and ours are never held together.
  void start() {
    core_->post(context_, [self = shared_from_this()] { self->go_on(); });
  }

  /// The port is free afterwards, and no callback runs, but one that calls this.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      error_code ignored;
      acceptor_.close(ignored);
      pause_.cancel(ignored);
    }
    core_->remove(shared_from_this());
  }

  [[nodiscard]] const std::string& address() const noexcept { return address_; }

private:
  void go_on() {
    const std::lock_guard lock(mutex_);
    accept();
  }

  void accept() {
    if (stopped_)
      return;
    asio::io_context& context = core_->next_context();
    acceptor_.async_accept(context, [self = shared_from_this(), &context](const error_code& error, tcp::socket socket) {
      self->take(error, std::move(socket), context);
    });
  }

  void take(const error_code& error, tcp::socket socket, asio::io_context& context) {
    const std::lock_guard lock(mutex_); // held by callbacks, so that stop() waits for them
    if (stopped_)
      return;
    if (error && error != asio::error::connection_aborted) {
      pause_.expires_after(accept_pause);
      pause_.async_wait([self = shared_from_this()](const error_code&) { self->go_on(); });
      return;
    }
    error_code gone;
    const tcp::endpoint peer = error ? tcp::endpoint() : socket.remote_endpoint(gone);
    if (!error && !gone) {
      const auto connection = std::make_shared<TcpConnection>(core_, std::move(socket), context, to_text(peer));
      if (core_->add(connection))
        if (const auto thrown =
              guarded(address_, [&] { accepted_(std::make_shared<TcpConnectionHandle>(connection)); }))
          connection->abort(*thrown);
    }
    accept();
  }

  const std::shared_ptr<Core> core_;
  asio::io_context& context_;
  std::recursive_mutex mutex_; ///< a callback may stop us
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  Accepted accepted_;
  std::string address_;
  bool stopped_ = false;
};

class TcpListener final : public Listener {
public:
  explicit TcpListener(std::shared_ptr<TcpAcceptor> acceptor) : acceptor_(std::move(acceptor)) {}
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;
  ~TcpListener() override { acceptor_->stop(); }
  [[nodiscard]] std::string address() const override { return acceptor_->address(); }

private:
  std::shared_ptr<TcpAcceptor> acceptor_;
};

// Connecting
// ---------------------------------------------------------------------------------------------------------------

/// One connect(): tries all endpoints of the name, pauses, tries again, until one takes it or the deadline passes.
class TcpAttempt : public std::enable_shared_from_this<TcpAttempt> {
public:
  TcpAttempt(std::shared_ptr<Core> core, asio::io_context& context, std::string address, Connected connected)
    : core_(std::move(core)), context_(context), address_(std::move(address)), connected_(std::move(connected)),
      resolver_(context), socket_(context), pause_(context), deadline_(context) {}

  void start(const HostPort& target, Clock::time_point deadline) {
    core_->post(context_, [self = shared_from_this(), target, deadline] {
      self->target_ = target;
      self->deadline_.expires_at(deadline);
      self->deadline_.async_wait([self](const error_code& error) {
        if (!error)
          self->end(
            fail(Code::timed_out, "{}: no connection before the deadline; last: {}", self->address_, self->last_));
      });
      self->resolve();
    });
  }

  void give_up(const Failure& reason) {
    core_->post(context_, [self = shared_from_this(), reason] { self->end(tl::make_unexpected(reason)); });
  }

private:
  void resolve() {
    error_code no_number;
    const auto number = asio::ip::make_address(target_.host, no_number);
    if (!no_number) { // no need for Asio's resolver thread
      endpoints_ = {tcp::endpoint(number, target_.port)};
      try_endpoint(0);
      return;
    }
    resolver_.async_resolve(
      target_.host, std::to_string(target_.port),
      [self = shared_from_this()](const error_code& error, const tcp::resolver::results_type& found) {
        if (self->ended_)
          return;
        self->endpoints_.clear();
        for (const auto& entry : found)
          self->endpoints_.push_back(entry.endpoint());
        if (error)
          self->last_ = fmt::format("cannot resolve the name: {}", error.message());
        self->try_endpoint(0);
      });
  }

  void try_endpoint(std::size_t index) {
    if (index == endpoints_.size()) {
      pause_.expires_after(retry_pause);
      pause_.async_wait([self = shared_from_this()](const error_code&) {
        if (!self->ended_)
          self->resolve();
      });
      return;
    }
    error_code ignored;
    socket_.close(ignored);
    socket_.async_connect(endpoints_[index], [self = shared_from_this(), index](const error_code& error) {
      if (self->ended_)
        return;
      if (error)
        self->last_ = fmt::format("{}: {}", to_text(self->endpoints_[index]), error.message());
      else if (self->is_own_end())
        self->last_ = fmt::format("{}: nobody listens", to_text(self->endpoints_[index]));
      else
        return self->succeed(self->endpoints_[index]);
      self->try_endpoint(index + 1);
    });
  }

  /// Without a listener, the kernel may pick the port we call as our own and connect the socket to itself.
  bool is_own_end() {
    error_code error;
    const bool own = socket_.local_endpoint(error) == socket_.remote_endpoint(error);
    if (own) // free the port at once, somebody wants to listen on it
      socket_.set_option(asio::socket_base::linger(true, 0), error);
    return own;
  }

  void succeed(const tcp::endpoint& peer) {
    const auto connection = std::make_shared<TcpConnection>(core_, std::move(socket_), context_, to_text(peer));
    if (core_->add(connection))
      end(connection);
    // else shutdown has begun, and ends this attempt
  }

  void end(Result<std::shared_ptr<TcpConnection>> result) {
    if (std::exchange(ended_, true))
      return;
    error_code ignored;
    resolver_.cancel();
    socket_.close(ignored);
    pause_.cancel(ignored);
    deadline_.cancel(ignored);
    const Connected connected = std::exchange(connected_, {});
    const auto thrown = guarded(address_, [&] {
      if (result)
        connected(std::make_shared<TcpConnectionHandle>(*result));
      else
        connected(tl::make_unexpected(result.error()));
    });
    if (thrown && result)
      (*result)->abort(*thrown);
    core_->remove(shared_from_this());
  }

  const std::shared_ptr<Core> core_;
  asio::io_context& context_;
  const std::string address_;
  Connected connected_;
  HostPort target_;
  tcp::resolver resolver_;
  tcp::socket socket_;
  asio::steady_timer pause_;
  asio::steady_timer deadline_;
  std::vector<tcp::endpoint> endpoints_;
  std::string last_ = "nothing was tried";
  bool ended_ = false;
};

void Core::shutdown(const Failure& reason) {
  std::set<std::shared_ptr<TcpConnection>> connections;
  std::set<std::shared_ptr<TcpAcceptor>> acceptors;
  std::set<std::shared_ptr<TcpAttempt>> attempts;
  {
    const std::lock_guard lock(mutex_);
    down_ = true;
    connections = connections_;
    acceptors = acceptors_;
    attempts = attempts_;
  }
  for (const auto& acceptor : acceptors)
    acceptor->stop();
  for (const auto& attempt : attempts)
    attempt->give_up(reason);
  for (const auto& connection : connections)
    connection->abort(reason);
  {
    const std::lock_guard lock(post_mutex_);
    posts_closed_ = true;
  }
  work_.clear();
  for (std::thread& thread : threads_)
    thread.join();
  threads_.clear();
  // What no posted call could end any more would hold on to us, and we to it. Destroyed without the lock.
  connections.clear();
  acceptors.clear();
  attempts.clear();
  const std::lock_guard lock(mutex_);
  connections.swap(connections_);
  acceptors.swap(acceptors_);
  attempts.swap(attempts_);
}

// The network
// ---------------------------------------------------------------------------------------------------------------

class TcpNetwork final : public Network {
public:
  TcpNetwork(Framing framing, const std::string& name, unsigned threads)
    : core_(std::make_shared<Core>(framing, threads)) {
    core_->start(name);
  }
  TcpNetwork(const TcpNetwork&) = delete;
  TcpNetwork& operator=(const TcpNetwork&) = delete;
  ~TcpNetwork() override { shutdown({Code::peer_failed, "the network was shut down"}); }

  [[nodiscard]] Result<std::unique_ptr<Listener>> listen(const std::string& address, Accepted accepted) override {
    Result<HostPort> target = split_address(address);
    if (!target)
      return pass_on(std::move(target));
    asio::io_context& context = core_->next_context();
    error_code error;
    tcp::endpoint endpoint(asio::ip::make_address(target->host, error), target->port);
    if (error) {
      tcp::resolver resolver(context);
      const auto found = resolver.resolve(target->host, std::to_string(target->port), tcp::resolver::passive, error);
      if (error || found.empty())
        return fail(Code::invalid_argument, "{}: cannot resolve the name to listen on: {}", address, error.message());
      endpoint = found.begin()->endpoint();
    }
    tcp::acceptor acceptor(context);
    acceptor.open(endpoint.protocol(), error);
    if (!error) // a port in TIME_WAIT is free; one that somebody listens on is not, on Linux
      acceptor.set_option(asio::socket_base::reuse_address(true), error);
    if (!error)
      acceptor.bind(endpoint, error);
    if (!error)
      acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error == asio::error::address_in_use)
      return fail(Code::address_in_use, "{}: another process listens on this port: choose another, or stop it",
                  address);
    if (error)
      return fail(Code::invalid_argument, "{}: cannot listen: {}", address, error.message());
    return take(context, std::move(acceptor), std::move(accepted));
  }

  [[nodiscard]] Result<std::unique_ptr<Listener>> adopt(int listening_socket, Accepted accepted) override {
    int listens = 0;
    socklen_t size = sizeof listens;
    sockaddr_storage name{};
    socklen_t name_size = sizeof name;
    if (::getsockopt(listening_socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0 ||
        ::getsockname(listening_socket, reinterpret_cast<sockaddr*>(&name), &name_size) != 0 ||
        (name.ss_family != AF_INET && name.ss_family != AF_INET6))
      return fail(Code::invalid_argument, "descriptor {} is no listening TCP socket", listening_socket);
    asio::io_context& context = core_->next_context();
    tcp::acceptor acceptor(context);
    error_code error;
    acceptor.assign(name.ss_family == AF_INET ? tcp::v4() : tcp::v6(), listening_socket, error);
    if (error)
      return fail(Code::invalid_argument, "descriptor {}: cannot adopt it: {}", listening_socket, error.message());
    return take(context, std::move(acceptor), std::move(accepted));
  }

  void connect(const std::string& address, Clock::time_point deadline, Connected connected) override {
    const auto attempt = std::make_shared<TcpAttempt>(core_, core_->next_context(), address, std::move(connected));
    if (!core_->add(attempt))
      return;
    const Result<HostPort> target = split_address(address);
    if (target)
      attempt->start(*target, deadline);
    else
      attempt->give_up(target.error());
  }

  void shutdown(const Failure& reason) override {
    if (!down_.exchange(true))
      core_->shutdown(reason);
  }

private:
  [[nodiscard]] Result<std::unique_ptr<Listener>> take(asio::io_context& context, tcp::acceptor acceptor,
                                                       Accepted accepted) {
    const auto shared = std::make_shared<TcpAcceptor>(core_, context, std::move(acceptor), std::move(accepted));
    auto listener = std::make_unique<TcpListener>(shared);
    if (!core_->add(shared))
      return fail(Code::call_order, "{}: listen after shutdown", shared->address());
    shared->start();
    return listener;
  }

  std::shared_ptr<Core> core_;
  std::atomic<bool> down_ = false;
};

} // namespace

std::unique_ptr<Network> make_tcp_network(Framing framing, const std::string& name, unsigned threads) {
  return std::make_unique<TcpNetwork>(framing, name, threads);
}

} // namespace deltawire::transport
