#include "transport/stream_connection.hpp"

#include "transport/shm_stream.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <sys/socket.h>

namespace deltawire::transport {
namespace {

/// A body grows by this much as its bytes arrive: a header alone, however long a body it announces, takes no memory.
constexpr std::uint64_t body_step = 64ull << 20;
/// Address space set aside for a body at once, so that it need not move while it grows. Pages are taken by steps only.
constexpr std::uint64_t body_reserve = 1ull << 30;

class StreamConnectionHandle final : public Connection {
public:
  explicit StreamConnectionHandle(std::shared_ptr<StreamConnection> connection) : connection_(std::move(connection)) {}
  void start(Handlers handlers) override { connection_->start(std::move(handlers)); }
  void send(Outgoing frame, SendDone done) override { connection_->send(std::move(frame), std::move(done)); }
  void close(std::chrono::milliseconds linger) override { connection_->close(linger); }
  void admit() override { connection_->admit(); }
  void abort(const Failure& reason) override { connection_->abort(reason); }
  [[nodiscard]] std::string peer() const override { return connection_->peer(); }
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept override { return connection_->bytes_sent(); }
  [[nodiscard]] std::uint64_t bytes_received() const noexcept override { return connection_->bytes_received(); }

private:
  std::shared_ptr<StreamConnection> connection_;
};

} // namespace

std::shared_ptr<Connection> make_handle(std::shared_ptr<StreamConnection> connection) {
  return std::make_shared<StreamConnectionHandle>(std::move(connection));
}

StreamConnection::StreamConnection(std::shared_ptr<IoCore> core, TlsRole role, Socket socket, asio::io_context& context,
                                   std::string peer)
  : core_(std::move(core)), peer_(std::move(peer)), context_(context),
    tls_(core_->tls ? core_->tls->make_stream(role, std::move(socket)) : nullptr),
    stream_(tls_           ? std::shared_ptr<ByteStream>(tls_)
            : core_->arena ? make_shm_stream(std::move(socket), core_->arena)
                           : make_plain_stream(std::move(socket))),
    linger_(context), patience_(context) {}

void StreamConnection::make_ready(std::shared_ptr<Strangers> strangers,
                                  std::function<void(const HandshakeEnd&)> ready) {
  core_->post(context_,
              [self = shared_from_this(), strangers = std::move(strangers), ready = std::move(ready)]() mutable {
                self->do_make_ready(std::move(strangers), std::move(ready));
              });
}

void StreamConnection::start(Handlers handlers) {
  core_->post(context_, [self = shared_from_this(), handlers = std::move(handlers)]() mutable {
    self->do_start(std::move(handlers));
  });
}

void StreamConnection::send(Outgoing frame, SendDone done) {
  core_->post(context_, [self = shared_from_this(), frame = std::move(frame), done = std::move(done)]() mutable {
    self->do_send(std::move(frame), std::move(done));
  });
}

void StreamConnection::close(std::chrono::milliseconds linger) {
  core_->post(context_, [self = shared_from_this(), linger] { self->do_close(linger); });
}

void StreamConnection::admit() {
  if (strangers_) // set before anybody held us; at once, so that no newcomer takes our place
    strangers_->trust(*this);
  core_->post(context_, [self = shared_from_this()] { self->do_admit(); });
}

void StreamConnection::abort(const Failure& reason) {
  {
    const std::lock_guard lock(socket_mutex_);
    if (!abort_reason_)
      abort_reason_ = reason;
    if (open_)
      ::shutdown(stream_->descriptor(), SHUT_RDWR);
  }
  core_->post(context_, [self = shared_from_this(), reason] { self->finish(reason); });
}

// Strangers
// ---------------------------------------------------------------------------------------------------------------

void StreamConnection::do_make_ready(std::shared_ptr<Strangers>&& strangers,
                                     std::function<void(const HandshakeEnd&)>&& ready) {
  if (strangers && finished_)
    strangers->leave(*this);
  else if (strangers) {
    strangers_ = std::move(strangers);
    stranger_ = true;
    patience_.expires_after(strangers_->limits().time);
    patience_.async_wait([self = shared_from_this()](const error_code& error) {
      if (error || !self->stranger_)
        return;
      self->finish(
        {Code::timed_out, fmt::format("{}: it did not {} within {:.1f} s", self->peer_,
                                      self->shaking_ ? "finish the TLS handshake" : "say who it is",
                                      std::chrono::duration<double>(self->strangers_->limits().time).count())});
    });
  }
  if (!tls_ || finished_) {
    ready({finished_, false});
    return;
  }
  shaking_ = true;
  const std::uint64_t most = strangers_ ? strangers_->limits().bytes : Admission{}.bytes;
  tls_->shake_hands(most, [self = shared_from_this(), ready = std::move(ready)](HandshakeEnd end) {
    self->shaken(std::move(end), ready);
  });
}

void StreamConnection::shaken(HandshakeEnd end, const std::function<void(const HandshakeEnd&)>& ready) {
  shaking_ = false;
  if (finished_) { // aborted, or out of time
    end = {finished_, false};
  } else if (end.failure) {
    end.failure->message = fmt::format("{}: {}", peer_, end.failure->message);
    finish(*end.failure);
  } else if (strangers_) {
    strangers_->trust(*this);
  }
  ready(end);
  complete();
}

void StreamConnection::do_admit() {
  if (!std::exchange(stranger_, false))
    return;
  patience_.cancel();
}

/// Ends the connection if so.
bool StreamConnection::too_much_for_a_stranger(std::uint64_t body) {
  if (!stranger_)
    return false;
  const std::uint64_t most = strangers_->limits().bytes;
  const std::uint64_t before = received_ + incoming_.header.size();
  if (before <= most && body <= most - before)
    return false;
  finish(
    speaks_tls(incoming_.header.size())
      ? tls_met_plain()
      : Failure{Code::limit_exceeded,
                fmt::format("{}: it sends {} bytes and more before it was told that it is known; the limit is {}",
                            peer_, before + std::min(body, std::numeric_limits<std::uint64_t>::max() - before), most)});
  return true;
}

void StreamConnection::do_start(Handlers&& handlers) {
  if (started_)
    return;
  started_ = true;
  handlers_ = std::move(handlers);
  if (finished_)
    complete();
  else if (!reading_) // else close() was first, and discards
    read_header();
}

// Sending
// ---------------------------------------------------------------------------------------------------------------

void StreamConnection::do_send(Outgoing&& frame, SendDone&& done) {
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

void StreamConnection::write() {
  writing_ = true;
  stream_->write(queue_.front().frame, [self = shared_from_this()](const error_code& error, std::size_t bytes) {
    self->written(error, bytes);
  });
}

void StreamConnection::written(const error_code& error, std::size_t bytes) {
  writing_ = false;
  if (error) {
    finish({Code::peer_failed, fmt::format("{}: sending failed: {}", peer_, stream_->explain(error))});
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

// Receiving
// ---------------------------------------------------------------------------------------------------------------

void StreamConnection::read_header() {
  reading_ = true;
  incoming_.header.resize(core_->framing.header_bytes);
  stream_->read(
    asio::buffer(incoming_.header),
    [self = shared_from_this()](const error_code& error, std::size_t bytes) { self->header_read(error, bytes); });
}

void StreamConnection::header_read(const error_code& error, std::size_t bytes) {
  reading_ = false;
  if (!finished_ && error && speaks_tls(bytes))
    finish(tls_met_plain());
  if (finished_ || error) {
    read_failed(error, bytes != 0);
    return;
  }
  const auto body = core_->framing.body_bytes(incoming_.header);
  if (!body) {
    finish(speaks_tls(incoming_.header.size())
             ? tls_met_plain()
             : Failure{body.error().code, fmt::format("{}: {}", peer_, body.error().message)});
    return;
  }
  if (too_much_for_a_stranger(*body))
    return;
  body_bytes_ = *body;
  incoming_.body = {};
  read_body();
}

/// Whether the first that came are bytes of a TLS record, to a side that has no key.
bool StreamConnection::speaks_tls(std::size_t bytes) const {
  constexpr std::byte alert{21};
  constexpr std::byte handshake{22};
  constexpr std::byte major_version{3};
  return !tls_ && received_ == 0 && bytes >= 2 && (incoming_.header[0] == alert || incoming_.header[0] == handshake) &&
         incoming_.header[1] == major_version;
}

Failure StreamConnection::tls_met_plain() const {
  return {
    Code::peer_failed,
    fmt::format("{}: the peer speaks TLS and this process does not: give both the same transport.secret_file", peer_)};
}

/// Reads the next step of the body, or hands the frame over.
void StreamConnection::read_body() {
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
    reading_ = true;
    stream_->append(incoming_.body, want, [self = shared_from_this()](const error_code& error, std::size_t) {
      self->reading_ = false;
      if (self->finished_ || error)
        self->read_failed(error, true);
      else
        self->read_body();
    });
  } catch (const std::exception&) {
    reading_ = false;
    finish({Code::limit_exceeded, fmt::format("{}: not enough memory for a frame of {} bytes", peer_, body_bytes_)});
  }
}

void StreamConnection::read_failed(const error_code& error, bool within_frame) {
  if (error == asio::error::eof)
    finish(within_frame ? Failure{Code::peer_failed, fmt::format("{}: the peer closed in the middle of a frame", peer_)}
           : half_closed_ ? closed_here()
                          : Failure{Code::peer_failed, fmt::format("{}: the peer closed the connection", peer_)});
  else
    finish({Code::peer_failed, fmt::format("{}: receiving failed: {}", peer_, stream_->explain(error))});
  complete();
}

// The end
// ---------------------------------------------------------------------------------------------------------------

void StreamConnection::do_close(std::chrono::milliseconds linger) {
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
void StreamConnection::half_close() {
  half_closed_ = true;
  stream_->end_sending();
  if (!reading_ && !started_)
    discard();
}

void StreamConnection::discard() {
  reading_ = true;
  incoming_.body.resize(1 << 16);
  stream_->read_some(asio::buffer(incoming_.body), [self = shared_from_this()](const error_code& error, std::size_t) {
    self->reading_ = false;
    if (self->finished_ || error)
      self->read_failed(error, false);
    else
      self->discard();
  });
}

Failure StreamConnection::closed_here() const {
  return {Code::peer_failed, fmt::format("{}: closed by this side", peer_)};
}

/// Ends the connection; callbacks follow once no operation uses the socket or a buffer.
void StreamConnection::finish(const Failure& why) {
  if (finished_)
    return;
  {
    const std::lock_guard lock(socket_mutex_);
    finished_ = abort_reason_ ? *abort_reason_ : why;
    open_ = false;
    stream_->close();
  }
  linger_.cancel();
  patience_.cancel();
  if (strangers_)
    strangers_->leave(*this);
  // In a turn of its own: finish() is called from callbacks, too.
  asio::post(context_, [self = shared_from_this()] { self->complete(); });
}

void StreamConnection::complete() {
  if (!finished_ || shaking_ || reading_ || writing_ || told_)
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

void StreamConnection::tell(const SendDone& done, const Result<void>& result) {
  if (!done)
    return;
  if (const auto thrown = guarded(peer_, [&] { done(result); }))
    finish(*thrown);
}

} // namespace deltawire::transport
