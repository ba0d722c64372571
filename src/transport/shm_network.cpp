// Shared memory between processes of this host: the network, which makes listeners and attempts to connect.
#include "transport/shm_arena.hpp"
#include "transport/shm_attempt.hpp"
#include "transport/stream_acceptor.hpp"

#include <cerrno>
#include <cstring>
#include <random>

#include <netinet/in.h>
#include <sys/socket.h>

namespace deltawire::transport {
namespace {

/// As port 0 gives them.
constexpr std::uint16_t first_free_port = 32'768;
constexpr std::uint16_t last_free_port = 60'999;

std::optional<Result<std::string>> process_of_peer(Socket& socket, const std::string& listener) {
  const std::string name = "shm:" + listener;
  auto process = process_of_same_user(socket.native_handle(), name);
  if (!process)
    return Result<std::string>(pass_on(std::move(process)));
  return Result<std::string>(fmt::format("{}#{}", name, *process));
}

/// Holds the TCP port that gave the name, where there is one.
class ShmListener final : public Listener {
public:
  ShmListener(std::shared_ptr<StreamAcceptor> acceptor, Descriptor port)
    : listener_(std::move(acceptor)), port_(std::move(port)) {}
  [[nodiscard]] std::string address() const override { return listener_.address(); }

private:
  StreamListener listener_;
  Descriptor port_;
};

class Shm final : public ShmNetwork {
public:
  Shm(Framing framing, const std::string& name, unsigned threads, const Admission& limits, std::shared_ptr<Arena> arena)
    : limits_(limits), core_(std::make_shared<IoCore>(framing, threads, nullptr, std::move(arena))) {
    core_->start(name);
  }
  Shm(const Shm&) = delete;
  Shm& operator=(const Shm&) = delete;
  ~Shm() override { shutdown({Code::peer_failed, "the network was shut down"}); }

  [[nodiscard]] Result<std::unique_ptr<Listener>> listen(const std::string& address, Accepted accepted,
                                                         Refused refused) override {
    auto target = shm_host(address);
    if (!target)
      return pass_on(std::move(target));
    if (target->port != 0)
      return listen_at(*target, {}, std::move(accepted), std::move(refused));
    std::random_device seed;
    std::minstd_rand random(seed());
    std::uniform_int_distribution<std::uint16_t> ports(first_free_port, last_free_port);
    for (int tries = 0;; ++tries) {
      target->port = ports(random);
      auto made = listen_at(*target, {}, accepted, refused);
      if (made || made.error().code != Code::address_in_use || tries == 1000)
        return made;
    }
  }

  [[nodiscard]] Result<std::unique_ptr<Listener>> adopt(int listening_socket, Accepted accepted,
                                                        Refused refused) override {
    tcp::endpoint endpoint;
    auto size = static_cast<socklen_t>(endpoint.capacity());
    if (::getsockname(listening_socket, endpoint.data(), &size) != 0 ||
        (endpoint.data()->sa_family != AF_INET && endpoint.data()->sa_family != AF_INET6))
      return fail(Code::invalid_argument, "descriptor {} is no listening TCP socket", listening_socket);
    endpoint.resize(size);
    auto target = shm_host(to_text(endpoint));
    if (!target)
      return pass_on(std::move(target));
    return listen_at(*target, Descriptor(listening_socket), std::move(accepted), std::move(refused));
  }

  void connect(const std::string& address, std::chrono::steady_clock::time_point deadline,
               Connected connected) override {
    const auto attempt = std::make_shared<ShmAttempt>(core_, core_->next_context(), address, std::move(connected));
    if (!core_->add(attempt))
      return;
    const auto target = shm_host(address);
    if (target)
      attempt->start(shm_name(*target), deadline);
    else
      attempt->end(target.error());
  }

  void shutdown(const Failure& reason) override {
    if (!down_.exchange(true))
      core_->shutdown(reason);
  }

  [[nodiscard]] ShmCounters counters() const override { return core_->arena->counters(); }

private:
  [[nodiscard]] Result<std::unique_ptr<Listener>> listen_at(const HostPort& target, Descriptor port, Accepted accepted,
                                                            Refused refused) {
    const ShmName name = shm_name(target);
    auto socket = shm_socket();
    if (!socket)
      return pass_on(std::move(socket));
    if (::bind(socket->get(), reinterpret_cast<const sockaddr*>(&name.name), name.size) != 0 ||
        ::listen(socket->get(), SOMAXCONN) != 0) {
      if (errno == EADDRINUSE)
        return fail(Code::address_in_use,
                    "shm:{}: another process listens under this address: choose another port, or stop it",
                    name.address);
      return fail(Code::invalid_argument, "shm:{}: cannot listen: {}", name.address, std::strerror(errno));
    }
    asio::io_context& context = core_->next_context();
    Acceptor acceptor(context, {AF_UNIX, 0}, socket->get());
    (void)socket->release(); // the acceptor's
    const auto shared =
      std::make_shared<StreamAcceptor>(core_, context, std::move(acceptor), name.address, process_of_peer, limits_,
                                       std::move(accepted), std::move(refused));
    auto listener = std::make_unique<ShmListener>(shared, std::move(port));
    if (!core_->add(shared))
      return fail(Code::call_order, "shm:{}: listen after shutdown", name.address);
    shared->start();
    return listener;
  }

  const Admission limits_;
  const std::shared_ptr<IoCore> core_;
  std::atomic<bool> down_ = false;
};

} // namespace

Result<std::unique_ptr<ShmNetwork>> make_shm_network(Framing framing, const std::string& name, unsigned threads,
                                                     const ShmSettings& settings) {
  auto arena = Arena::make(settings.arena);
  if (!arena)
    return pass_on(std::move(arena));
  return std::make_unique<Shm>(framing, name, threads, settings.admission, std::move(*arena));
}

} // namespace deltawire::transport
