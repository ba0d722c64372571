#include "transport/tcp_acceptor.hpp"

namespace deltawire::transport {
namespace {

constexpr auto accept_pause = std::chrono::milliseconds(100); // after a failed accept: out of descriptors, mostly

} // namespace

TcpAcceptor::TcpAcceptor(std::shared_ptr<TcpCore> core, asio::io_context& context, tcp::acceptor acceptor,
                         const Admission& limits, Network::Accepted accepted, Network::Refused refused)
  : core_(std::move(core)), context_(context), acceptor_(std::move(acceptor)), pause_(context),
    strangers_(std::make_shared<Strangers>(limits)), accepted_(std::move(accepted)), refused_(std::move(refused)) {
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
  const std::lock_guard lock(mutex_);
  if (stopped_)
    return;
  if (error && error != asio::error::connection_aborted) {
    pause_.expires_after(accept_pause);
    pause_.async_wait([self = shared_from_this()](const error_code&) { self->go_on(); });
    return;
  }
  if (!error)
    guarded(address_, [&] { receive(std::move(socket), context); }); // memory that ran out: a connection is lost
  accept();
}

void TcpAcceptor::receive(tcp::socket socket, asio::io_context& context) {
  error_code gone;
  const tcp::endpoint peer = socket.remote_endpoint(gone);
  if (gone)
    return;
  const auto connection =
    std::make_shared<TcpConnection>(core_, TlsRole::server, std::move(socket), context, to_text(peer));
  if (!core_->add(connection))
    return;
  const Strangers::Entry entry = strangers_->enter(connection);
  if (entry.instead)
    entry.instead->abort({Code::limit_exceeded,
                          fmt::format("{}: closed in favor of newcomers: {} connections at a time may be of peers that "
                                      "have not said who they are",
                                      entry.instead->peer(), strangers_->limits().strangers)});
  if (!entry.taken)
    return turn_away(connection,
                     {Code::limit_exceeded, fmt::format("{}: {} connections are open, the most there may be",
                                                        connection->peer(), strangers_->limits().connections)});
  connection->make_ready(
    strangers_, [self = shared_from_this(), connection](const HandshakeEnd& end) { self->hand_over(connection, end); });
}

/// On the connection's thread.
void TcpAcceptor::hand_over(const std::shared_ptr<TcpConnection>& connection, const HandshakeEnd& end) {
  const std::lock_guard lock(mutex_); // held by callbacks, so that stop() waits for them
  if (stopped_)
    return connection->abort({Code::peer_failed, fmt::format("{}: nobody listens any more", connection->peer())});
  if (end.failure)
    return turn_away(connection, *end.failure);
  if (const auto thrown = guarded(address_, [&] { accepted_(make_handle(connection)); }))
    connection->abort(*thrown);
}

void TcpAcceptor::turn_away(const std::shared_ptr<TcpConnection>& connection, const Failure& why) {
  connection->abort(why);
  if (refused_)
    guarded(address_, [&] { refused_(why); });
}

} // namespace deltawire::transport
