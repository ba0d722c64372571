// A listening socket that hands over what it accepts: of whom its kind of network lets in, and with TLS once the peer
// has shown that it holds the key.
#pragma once

#include "transport/stream_connection.hpp"

namespace deltawire::transport {

using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;

/// Who has connected: its name, or why it is turned away. Nothing: it is gone already.
using WhoIs = std::optional<Result<std::string>> (*)(Socket& socket, const std::string& listener);

class StreamAcceptor final : public Ended, public std::enable_shared_from_this<StreamAcceptor> {
public:
  StreamAcceptor(std::shared_ptr<IoCore> core, asio::io_context& context, Acceptor acceptor, std::string address,
                 WhoIs who_is, const Admission& limits, Network::Accepted accepted, Network::Refused refused);

  /// Begins on the context's thread, so that a caller's locks and ours are never held together.
  void start();

  /// The port is free afterwards, and no callback runs, but one that calls this.
  void stop();
  void end(const Failure&) override { stop(); }

  [[nodiscard]] const std::string& address() const noexcept { return address_; }

private:
  void go_on();
  void accept();
  void take(const error_code& error, Socket socket, asio::io_context& context);
  void receive(Socket socket, asio::io_context& context);
  void hand_over(const std::shared_ptr<StreamConnection>& connection, const HandshakeEnd& end);
  void turn_away(const std::shared_ptr<StreamConnection>& connection, const Failure& why);

  const std::shared_ptr<IoCore> core_;
  asio::io_context& context_;
  std::recursive_mutex mutex_; ///< a callback may stop us
  Acceptor acceptor_;
  asio::steady_timer pause_;
  const std::shared_ptr<Strangers> strangers_;
  Network::Accepted accepted_;
  Network::Refused refused_;
  const std::string address_;
  const WhoIs who_is_;
  bool stopped_ = false;
};

/// What the user holds.
class StreamListener final : public Listener {
public:
  explicit StreamListener(std::shared_ptr<StreamAcceptor> acceptor) : acceptor_(std::move(acceptor)) {}
  StreamListener(const StreamListener&) = delete;
  StreamListener& operator=(const StreamListener&) = delete;
  ~StreamListener() override { acceptor_->stop(); }
  [[nodiscard]] std::string address() const override { return acceptor_->address(); }

private:
  std::shared_ptr<StreamAcceptor> acceptor_;
};

} // namespace deltawire::transport
