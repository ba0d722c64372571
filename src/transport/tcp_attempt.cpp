#include "transport/tcp_attempt.hpp"

#include <utility>

namespace deltawire::transport {
namespace {

constexpr auto retry_pause = std::chrono::milliseconds(50); // between attempts to connect

} // namespace

TcpAttempt::TcpAttempt(std::shared_ptr<IoCore> core, asio::io_context& context, std::string address,
                       Network::Connected connected)
  : core_(std::move(core)), context_(context), address_(std::move(address)), connected_(std::move(connected)),
    resolver_(context), socket_(context), pause_(context), deadline_(context) {}

void TcpAttempt::start(const HostPort& target, std::chrono::steady_clock::time_point deadline) {
  core_->post(context_, [self = shared_from_this(), target, deadline] {
    self->target_ = target;
    self->deadline_.expires_at(deadline);
    self->deadline_.async_wait([self](const error_code& error) {
      if (!error)
        self->finish(
          fail(Code::timed_out, "{}: no connection before the deadline; last: {}", self->address_, self->last_));
    });
    self->resolve();
  });
}

void TcpAttempt::end(const Failure& reason) {
  core_->post(context_, [self = shared_from_this(), reason] { self->finish(tl::make_unexpected(reason)); });
}

void TcpAttempt::resolve() {
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

void TcpAttempt::try_endpoint(std::size_t index) {
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
      return self->connected(index);
    self->try_endpoint(index + 1);
  });
}

/// Without a listener, the kernel may pick the port we call as our own and connect the socket to itself.
bool TcpAttempt::is_own_end() {
  error_code error;
  const bool own = socket_.local_endpoint(error) == socket_.remote_endpoint(error);
  if (own) // free the port at once, somebody wants to listen on it
    socket_.set_option(asio::socket_base::linger(true, 0), error);
  return own;
}

void TcpAttempt::connected(std::size_t index) {
  const std::string peer = to_text(endpoints_[index]);
  const auto connection =
    std::make_shared<StreamConnection>(core_, TlsRole::client, std::move(socket_), context_, peer);
  if (!core_->add(connection))
    return; // shutdown has begun, and ends this attempt
  if (!core_->tls)
    return finish(connection);
  connection_ = connection;
  last_ = fmt::format("{}: the TLS handshake is not finished", peer);
  connection->make_ready(nullptr,
                         [self = shared_from_this(), index](const HandshakeEnd& end) { self->shaken(index, end); });
}

void TcpAttempt::shaken(std::size_t index, const HandshakeEnd& end) {
  const auto connection = std::exchange(connection_, nullptr);
  if (ended_)
    return;
  if (!end.failure)
    return finish(connection);
  if (end.hopeless)
    return finish(tl::make_unexpected(*end.failure));
  last_ = end.failure->message;
  try_endpoint(index + 1);
}

void TcpAttempt::finish(Result<std::shared_ptr<StreamConnection>> result) {
  if (std::exchange(ended_, true))
    return;
  error_code ignored;
  resolver_.cancel();
  socket_.close(ignored);
  pause_.cancel(ignored);
  deadline_.cancel(ignored);
  if (connection_ && !result)
    connection_->abort(result.error());
  const Network::Connected callback = std::exchange(connected_, {});
  const auto thrown = guarded(address_, [&] {
    if (result)
      callback(make_handle(*result));
    else
      callback(tl::make_unexpected(result.error()));
  });
  if (thrown && result)
    (*result)->abort(*thrown);
  core_->remove(shared_from_this());
}

} // namespace deltawire::transport
