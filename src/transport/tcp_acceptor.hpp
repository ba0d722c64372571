// A listening TCP socket that hands over what it accepts; with TLS, once the peer has shown that it holds the key.
#pragma once

#include "transport/tcp_connection.hpp"

namespace deltawire::transport {

class TcpAcceptor final : public Ended, public std::enable_shared_from_this<TcpAcceptor> {
public:
  TcpAcceptor(std::shared_ptr<TcpCore> core, asio::io_context& context, tcp::acceptor acceptor, const Admission& limits,
              Network::Accepted accepted, Network::Refused refused);

  /// Begins on the context's thread, so that a caller's locks and ours are never held together.
  void start();

  /// The port is free afterwards, and no callback runs, but one that calls this.
  void stop();
  void end(const Failure&) override { stop(); }

  [[nodiscard]] const std::string& address() const noexcept { return address_; }

private:
  void go_on();
  void accept();
  void take(const error_code& error, tcp::socket socket, asio::io_context& context);
  void receive(tcp::socket socket, asio::io_context& context);
  void hand_over(const std::shared_ptr<TcpConnection>& connection, const HandshakeEnd& end);
  void turn_away(const std::shared_ptr<TcpConnection>& connection, const Failure& why);

  const std::shared_ptr<TcpCore> core_;
  asio::io_context& context_;
  std::recursive_mutex mutex_; ///< a callback may stop us
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  const std::shared_ptr<Strangers> strangers_;
  Network::Accepted accepted_;
  Network::Refused refused_;
  std::string address_;
  bool stopped_ = false;
};

} // namespace deltawire::transport
