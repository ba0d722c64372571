// TCP through Boost.Asio: the network, which makes listeners and attempts to connect.
#include "transport/stream_acceptor.hpp"
#include "transport/tcp_attempt.hpp"

#include <cstring>

#include <sys/socket.h>

namespace deltawire::transport {
namespace {

/// Nothing where the peer is gone already.
std::optional<Result<std::string>> address_of_peer(Socket& socket, const std::string&) {
  error_code gone;
  const Socket::endpoint_type peer = socket.remote_endpoint(gone);
  if (gone)
    return std::nullopt;
  tcp::endpoint endpoint;
  if (peer.size() > endpoint.capacity())
    return std::nullopt;
  std::memcpy(endpoint.data(), peer.data(), peer.size());
  endpoint.resize(peer.size());
  return to_text(endpoint);
}

class TcpNetwork final : public Network {
public:
  TcpNetwork(Framing framing, const std::string& name, unsigned threads, const Admission& limits,
             std::shared_ptr<const TlsContext> tls)
    : limits_(limits), core_(std::make_shared<IoCore>(framing, threads, std::move(tls), nullptr)) {
    core_->start(name);
  }
  TcpNetwork(const TcpNetwork&) = delete;
  TcpNetwork& operator=(const TcpNetwork&) = delete;
  ~TcpNetwork() override { shutdown({Code::peer_failed, "the network was shut down"}); }

  [[nodiscard]] Result<std::unique_ptr<Listener>> listen(const std::string& address, Accepted accepted,
                                                         Refused refused) override {
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
    return take(context, std::move(acceptor), std::move(accepted), std::move(refused));
  }

  [[nodiscard]] Result<std::unique_ptr<Listener>> adopt(int listening_socket, Accepted accepted,
                                                        Refused refused) override {
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
    return take(context, std::move(acceptor), std::move(accepted), std::move(refused));
  }

  void connect(const std::string& address, std::chrono::steady_clock::time_point deadline,
               Connected connected) override {
    const auto attempt = std::make_shared<TcpAttempt>(core_, core_->next_context(), address, std::move(connected));
    if (!core_->add(attempt))
      return;
    const Result<HostPort> target = split_address(address);
    if (target)
      attempt->start(*target, deadline);
    else
      attempt->end(target.error());
  }

  void shutdown(const Failure& reason) override {
    if (!down_.exchange(true))
      core_->shutdown(reason);
  }

private:
  [[nodiscard]] Result<std::unique_ptr<Listener>> take(asio::io_context& context, tcp::acceptor acceptor,
                                                       Accepted accepted, Refused refused) {
    error_code ignored;
    const std::string address = to_text(acceptor.local_endpoint(ignored));
    const auto shared = std::make_shared<StreamAcceptor>(core_, context, std::move(acceptor), address, address_of_peer,
                                                         limits_, std::move(accepted), std::move(refused));
    auto listener = std::make_unique<StreamListener>(shared);
    if (!core_->add(shared))
      return fail(Code::call_order, "{}: listen after shutdown", shared->address());
    shared->start();
    return listener;
  }

  const Admission limits_;
  const std::shared_ptr<IoCore> core_;
  std::atomic<bool> down_ = false;
};

} // namespace

Result<std::unique_ptr<Network>> make_tcp_network(Framing framing, const std::string& name, unsigned threads,
                                                  const TcpSettings& settings) {
  std::shared_ptr<const TlsContext> tls;
  if (settings.key) {
    auto made = TlsContext::make(*settings.key, settings.new_key_after);
    if (!made)
      return pass_on(std::move(made));
    tls = std::move(*made);
  }
  return std::make_unique<TcpNetwork>(framing, name, threads, settings.admission, std::move(tls));
}

std::unique_ptr<Network> make_tcp_network(Framing framing, const std::string& name, unsigned threads) {
  return std::make_unique<TcpNetwork>(framing, name, threads, Admission{}, nullptr);
}

} // namespace deltawire::transport
