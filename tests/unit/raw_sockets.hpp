// Peers that are no part of deltawire: bare sockets to a listener, and what the listener and its connections said.
#pragma once

#include "catch.hpp"
#include "transport/transport.hpp"

#include <condition_variable>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace deltawire::transport {

// A header: u64 length of the body; one of all ones is broken.
inline constexpr std::size_t raw_header = 8;

inline Framing raw_framing() {
  return {.header_bytes = raw_header, .body_bytes = [](std::span<const std::byte> header) -> Result<std::uint64_t> {
            std::uint64_t length = 0;
            std::memcpy(&length, header.data(), sizeof length);
            if (length == ~std::uint64_t{0})
              return fail(Code::invalid_input, "a broken header");
            return length;
          }};
}

inline Outgoing raw_frame(const std::string& body) {
  std::vector<std::byte> header(raw_header);
  const std::uint64_t length = body.size();
  std::memcpy(header.data(), &length, sizeof length);
  const auto* bytes = reinterpret_cast<const std::byte*>(body.data());
  return {header, std::make_shared<Buffer>(bytes, bytes + body.size())};
}

inline std::uint16_t port_of(const std::string& address) {
  return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return name;
}

class RawSocket {
public:
  explicit RawSocket(int descriptor) : descriptor_(descriptor) {}
  RawSocket(RawSocket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  RawSocket& operator=(RawSocket&&) = delete;
  ~RawSocket() {
    if (descriptor_ >= 0)
      ::close(descriptor_);
  }
  /// On any thread, where Catch2 asserts nothing. Without a descriptor where nobody listens.
  static RawSocket try_to(std::uint16_t port) {
    const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in name = loopback(port);
    if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0)
      return RawSocket(descriptor);
    ::close(descriptor);
    return RawSocket(-1);
  }
  static RawSocket to(std::uint16_t port) {
    RawSocket made = try_to(port);
    REQUIRE(made.descriptor_ >= 0);
    return made;
  }
  static RawSocket listening() {
    RawSocket made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in name = loopback(0);
    REQUIRE(::bind(made.descriptor_, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
    REQUIRE(::listen(made.descriptor_, 8) == 0);
    return made;
  }

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  /// "127.0.0.1:port" of this end.
  [[nodiscard]] std::string address() const {
    sockaddr_in name{};
    socklen_t size = sizeof name;
    ::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&name), &size);
    return fmt::format("127.0.0.1:{}", ntohs(name.sin_port));
  }
  [[nodiscard]] RawSocket accept() const { return RawSocket(::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC)); }
  /// Whether all of it could be sent.
  bool send(std::string_view bytes) const {
    return ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  /// Until the other end closes, or for `limit`.
  [[nodiscard]] std::string receive_all(std::chrono::seconds limit = std::chrono::seconds(20)) const {
    const timeval patience{.tv_sec = limit.count(), .tv_usec = 0};
    ::setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    std::string all;
    char part[4096];
    for (ssize_t count = 0; (count = ::recv(descriptor_, part, sizeof part, 0)) > 0;)
      all.append(part, static_cast<std::size_t>(count));
    return all;
  }
  /// Whether the other end has closed, or does so soon.
  [[nodiscard]] bool is_closed() const {
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    char byte = 0;
    ssize_t count = 0;
    while ((count = ::recv(descriptor_, &byte, 1, 0)) > 0) {
    }
    return count == 0 || errno == ECONNRESET;
  }

private:
  int descriptor_;
};

/// Things that happened, in order; waits end after 20 s.
template <class T>
class Happened {
public:
  void add(T thing) {
    const std::lock_guard lock(mutex_);
    things_.push_back(std::move(thing));
    changed_.notify_all();
  }
  [[nodiscard]] std::vector<T> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return things_.size() >= count; });
    return things_;
  }
  [[nodiscard]] std::vector<T> now() { return wait_for(0); }
  void clear() {
    const std::lock_guard lock(mutex_);
    things_.clear();
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<T> things_;
};

/// A listener that starts what it accepts, and admits it with its first frame unless told otherwise.
struct Host {
  explicit Host(const TcpSettings& settings, bool admits = true)
    : network(make_tcp_network(raw_framing(), "dw-host", 2, settings).value()) {
    auto made = network->listen(
      "127.0.0.1:0",
      [this, admits](std::shared_ptr<Connection> connection) {
        accepted.add(connection);
        connection->start({.on_frame =
                             [this, admits, weak = std::weak_ptr(connection)](Incoming&& frame) {
                               if (const auto alive = weak.lock(); alive && admits)
                                 alive->admit();
                               frames.add(
                                 std::string(reinterpret_cast<const char*>(frame.body.data()), frame.body.size()));
                             },
                           .on_closed = [this](const Failure& reason) { closed.add(reason); }});
      },
      [this](const Failure& reason) { refused.add(reason); });
    REQUIRE(made);
    listener = std::move(*made);
  }
  ~Host() { network->shutdown({Code::peer_failed, "the test is over"}); }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  [[nodiscard]] std::uint16_t port() const { return port_of(listener->address()); }

  Happened<std::shared_ptr<Connection>> accepted;
  Happened<std::string> frames;
  Happened<Failure> closed, refused;
  std::unique_ptr<Network> network;
  std::unique_ptr<Listener> listener;
};

/// A peer as deltawire has them.
struct Guest {
  explicit Guest(const TcpSettings& settings)
    : network(make_tcp_network(raw_framing(), "dw-guest", 1, settings).value()) {}
  ~Guest() { network->shutdown({Code::peer_failed, "the test is over"}); }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;

  Result<std::shared_ptr<Connection>> connect(const std::string& address,
                                              std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    std::promise<Result<std::shared_ptr<Connection>>> promise;
    network->connect(address, std::chrono::steady_clock::now() + limit,
                     [&](auto result) { promise.set_value(std::move(result)); });
    auto result = promise.get_future().get();
    if (result)
      (*result)->start({.on_frame =
                          [this](Incoming&& frame) {
                            frames.add(
                              std::string(reinterpret_cast<const char*>(frame.body.data()), frame.body.size()));
                          },
                        .on_closed = [this](const Failure& reason) { closed.add(reason); }});
    return result;
  }

  Happened<std::string> frames;
  Happened<Failure> closed;
  std::unique_ptr<Network> network;
};

/// The listener still serves: a frame of a new peer arrives.
inline void check_goes_on(Host& host, const TcpSettings& settings) {
  Guest guest(settings);
  const std::size_t before = host.frames.now().size();
  const auto connection = guest.connect(host.listener->address());
  if (!connection)
    FAIL(connection.error().message);
  (*connection)->send(raw_frame("still here"), {});
  const auto frames = host.frames.wait_for(before + 1);
  REQUIRE(frames.size() > before);
  CHECK(frames.back() == "still here");
}

} // namespace deltawire::transport
