// One connect(): tries all endpoints of the name, pauses, tries again, until one takes it or the deadline passes. With
// TLS, taking it includes the handshake: a connection that is lost in it is tried again, a peer that does not hold the
// key ends the attempt.
#pragma once

#include "transport/host_port.hpp"
#include "transport/stream_connection.hpp"

namespace deltawire::transport {

class TcpAttempt final : public Ended, public std::enable_shared_from_this<TcpAttempt> {
public:
  TcpAttempt(std::shared_ptr<IoCore> core, asio::io_context& context, std::string address,
             Network::Connected connected);

  void start(const HostPort& target, std::chrono::steady_clock::time_point deadline);
  void end(const Failure& reason) override;

private:
  void resolve();
  void try_endpoint(std::size_t index);
  [[nodiscard]] bool is_own_end();
  void connected(std::size_t index);
  void shaken(std::size_t index, const HandshakeEnd& end);
  void finish(Result<std::shared_ptr<StreamConnection>> result);

  const std::shared_ptr<IoCore> core_;
  asio::io_context& context_;
  const std::string address_;
  Network::Connected connected_;
  HostPort target_;
  tcp::resolver resolver_;
  Socket socket_;
  asio::steady_timer pause_;
  asio::steady_timer deadline_;
  std::vector<tcp::endpoint> endpoints_;
  std::shared_ptr<StreamConnection> connection_; ///< while its handshake lasts
  std::string last_ = "nothing was tried";
  bool ended_ = false;
};

} // namespace deltawire::transport
