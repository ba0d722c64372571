#include "transport/stream_acceptor.hpp"

namespace deltawire::transport {
namespace {

constexpr auto accept_pause = std::chrono::milliseconds(100); // after a failed accept: out of descriptors, mostly

} // namespace

StreamAcceptor::StreamAcceptor(std::shared_ptr<IoCore> core, asio::io_context& context, Acceptor acceptor,
                               std::string address, WhoIs who_is, const Admission& limits, Network::Accepted accepted,
                               Network::Refused refused)
  : core_(std::move(core)), context_(context), acceptor_(std::move(acceptor)), pause_(context),
    strangers_(std::make_shared<Strangers>(limits)), accepted_(std::move(accepted)), refused_(std::move(refused)),
    address_(std::move(address)), who_is_(who_is) {
  close_on_exec(acceptor_.native_handle());
}

void StreamAcceptor::start() {
  core_->post(context_, [self = shared_from_this()] { self->go_on(); });
}

void StreamAcceptor::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel(ignored);
  }
  core_->remove(shared_from_this());
}

void StreamAcceptor::go_on() {
  const std::lock_guard lock(mutex_);
  accept();
}

void StreamAcceptor::accept() {
  if (stopped_)
    return;
  asio::io_context& context = core_->next_context();
  acceptor_.async_accept(context, [self = shared_from_this(), &context](const error_code& error, Socket socket) {
    self->take(error, std::move(socket), context);
  });
}

void StreamAcceptor::take(const error_code& error, Socket socket, asio::io_context& context) {
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

void StreamAcceptor::receive(Socket socket, asio::io_context& context) {
  const auto peer = who_is_(socket, address_);
  if (!peer)
    return;
  if (!*peer) {
    if (refused_)
      guarded(address_, [&] { refused_(peer->error()); });
    return;
  }
  const auto connection =
    std::make_shared<StreamConnection>(core_, TlsRole::server, std::move(socket), context, **peer);
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
void StreamAcceptor::hand_over(const std::shared_ptr<StreamConnection>& connection, const HandshakeEnd& end) {
  const std::lock_guard lock(mutex_); // held by callbacks, so that stop() waits for them
  if (stopped_)
    return connection->abort({Code::peer_failed, fmt::format("{}: nobody listens any more", connection->peer())});
  if (end.failure)
    return turn_away(connection, *end.failure);
  if (const auto thrown = guarded(address_, [&] { accepted_(make_handle(connection)); }))
    connection->abort(*thrown);
}

void StreamAcceptor::turn_away(const std::shared_ptr<StreamConnection>& connection, const Failure& why) {
  connection->abort(why);
  if (refused_)
    guarded(address_, [&] { refused_(why); });
}

} // namespace deltawire::transport
