#include "transport/tcp_acceptor.hpp"

namespace deltawire::transport {
namespace {

constexpr auto accept_pause = std::chrono::milliseconds(100); // after a failed accept: out of descriptors, mostly

} // namespace

TcpAcceptor::TcpAcceptor(std::shared_ptr<TcpCore> core, asio::io_context& context, tcp::acceptor acceptor,
                         Network::Accepted accepted)
  : core_(std::move(core)), context_(context), acceptor_(std::move(acceptor)), pause_(context),
    accepted_(std::move(accepted)) {
  close_on_exec(acceptor_.native_handle());
  error_code ignored;
  address_ = to_text(acceptor_.local_endpoint(ignored));
}

void TcpAcceptor::start() {
  core_->post(context_, [self = shared_from_this()] { self->go_on(); });
}

void TcpAcceptor::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel(ignored);
  }
  core_->remove(shared_from_this());
}

void TcpAcceptor::go_on() {
  const std::lock_guard lock(mutex_);
  accept();
}

void TcpAcceptor::accept() {
  if (stopped_)
    return;
  asio::io_context& context = core_->next_context();
  acceptor_.async_accept(context, [self = shared_from_this(), &context](const error_code& error, tcp::socket socket) {
    self->take(error, std::move(socket), context);
  });
}

void TcpAcceptor::take(const error_code& error, tcp::socket socket, asio::io_context& context) {
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
    const auto connection =
      std::make_shared<TcpConnection>(core_, make_plain_stream(std::move(socket)), context, to_text(peer));
    if (core_->add(connection))
      if (const auto thrown = guarded(address_, [&] { accepted_(make_handle(connection)); }))
        connection->abort(*thrown);
  }
  accept();
}

} // namespace deltawire::transport
