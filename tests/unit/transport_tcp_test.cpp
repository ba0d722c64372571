// What only tcp promises: addresses, adopted sockets, names of threads, and peers that do not speak our frames.
#include "catch.hpp"
#include "text_matchers.hpp"
#include "transport/transport.hpp"

#include <condition_variable>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace deltawire;
using namespace deltawire::transport;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

// A header: u64 length of the body.
Result<std::uint64_t> body_bytes(std::span<const std::byte> header) {
  std::uint64_t length = 0;
  if (header.size() != sizeof length)
    return fail(Code::invalid_input, "a header of {} bytes", header.size());
  std::memcpy(&length, header.data(), sizeof length);
  if (length == ~std::uint64_t{0})
    return fail(Code::invalid_input, "a broken header");
  return length;
}

constexpr Framing framing{.header_bytes = 8, .body_bytes = body_bytes};

Outgoing frame(std::size_t size) {
  std::vector<std::byte> header(8);
  const std::uint64_t length = size;
  std::memcpy(header.data(), &length, 8);
  return {header, std::make_shared<Buffer>(size)};
}

std::uint16_t port_of(const std::string& address) {
  return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

/// A bare socket to a port of this machine.
int raw_connect(std::uint16_t port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(descriptor, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
  return descriptor;
}

/// A server that starts its first connection and promises how it closed.
struct Server {
  Server() {
    auto result = network->listen("127.0.0.1:0", [this](std::shared_ptr<Connection> accepted) {
      connection = accepted;
      accepted->admit();
      accepted->start({.on_frame = [this](Incoming&&) { ++frames; },
                       .on_closed = [this](const Failure& reason) { closed.set_value(reason); }});
    });
    REQUIRE(result);
    listener = std::move(*result);
  }
  Failure closing() {
    auto future = closed.get_future();
    REQUIRE(future.wait_for(20s) == std::future_status::ready);
    return future.get();
  }
  [[nodiscard]] std::uint16_t port() const { return port_of(listener->address()); }

  std::atomic<int> frames = 0;
  std::promise<Failure> closed;
  std::shared_ptr<Connection> connection;
  std::unique_ptr<Network> network = make_tcp_network(framing, "dw-io", 1);
  std::unique_ptr<Listener> listener;
};

Result<std::shared_ptr<Connection>> connect(Network& network, const std::string& address) {
  std::promise<Result<std::shared_ptr<Connection>>> promise;
  network.connect(address, Clock::now() + 10s, [&](auto result) { promise.set_value(std::move(result)); });
  return promise.get_future().get();
}

/// Of memory that holds no file's pages: what the process has taken, wherever the system keeps it just now.
std::size_t taken_bytes() {
  std::ifstream file("/proc/self/status");
  std::size_t kib = 0;
  for (std::string word; file >> word;)
    if (std::size_t amount = 0; (word == "RssAnon:" || word == "VmSwap:") && file >> amount)
      kib += amount;
  return kib << 10;
}

} // namespace

TEST_CASE("a peer that breaks the framing is closed with the cause") {
  Server server;
  const int raw = raw_connect(server.port());
  const std::uint64_t broken = ~std::uint64_t{0};
  REQUIRE(::send(raw, &broken, sizeof broken, 0) == sizeof broken);
  const Failure reason = server.closing();
  CHECK(reason.code == Code::invalid_input);
  CHECK_THAT(reason.message, test::contains("a broken header"));
  CHECK_THAT(reason.message, test::contains("127.0.0.1:"));
  char byte = 0;
  CHECK(::recv(raw, &byte, 1, 0) <= 0);
  ::close(raw);
}

TEST_CASE("a peer that closes in the middle of a frame is told from one that closes between frames") {
  for (const int sent : {4, 8, 12, 18}) {
    CAPTURE(sent);
    Server server;
    const int raw = raw_connect(server.port());
    unsigned char bytes[18] = {10}; // a header, then 10 bytes
    REQUIRE(::send(raw, bytes, static_cast<std::size_t>(sent), 0) == sent);
    ::close(raw);
    const Failure reason = server.closing();
    CHECK(reason.code == Code::peer_failed);
    CHECK_THAT(reason.message, test::contains(sent == 18 ? "the peer closed the connection" : "middle of a frame"));
    CHECK(server.frames == (sent == 18 ? 1 : 0));
  }
}

TEST_CASE("a header that announces a terabyte takes no memory for it") {
  // A test runner may ask the allocator to write over all that it hands out (meson test does: MALLOC_PERTURB_), and
  // what is only reserved would be taken by that.
  ::mallopt(M_PERTURB, 0);
  Server server;
  const std::size_t before = taken_bytes();
  const int raw = raw_connect(server.port());
  const std::uint64_t length = 1ull << 40;
  REQUIRE(::send(raw, &length, sizeof length, 0) == sizeof length);
  std::this_thread::sleep_for(100ms);
  CHECK(taken_bytes() < before + (200u << 20));
  ::close(raw);
  CHECK_THAT(server.closing().message, test::contains("middle of a frame"));
}

TEST_CASE("a peer that is gone does not kill the process by a signal") {
  Server server;
  const int raw = raw_connect(server.port());
  const std::uint64_t empty = 0;
  REQUIRE(::send(raw, &empty, sizeof empty, 0) == sizeof empty);
  while (server.frames == 0)
    std::this_thread::sleep_for(1ms);
  const linger hard{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(raw, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  ::close(raw);
  for (int i = 0; i < 100; ++i)
    server.connection->send(frame(100'000));
  CHECK(server.closing().code == Code::peer_failed);
}

TEST_CASE("addresses are host:port or [ipv6]:port, and anything else is refused at once") {
  auto network = make_tcp_network(framing, "dw-io", 1);
  for (const std::string bad : {"", "nowhere", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:1x", ":80",
                                "::1:80", "[]:80", "[::1:80", "127.0.0.1:-1", "127.0.0.1:99999999999999"}) {
    CAPTURE(bad);
    const auto listener = network->listen(bad, [](auto) {});
    REQUIRE(!listener);
    CHECK(listener.error().code == Code::invalid_argument);
    const auto connection = connect(*network, bad);
    REQUIRE(!connection);
    CHECK(connection.error().code == Code::invalid_argument);
  }
  const auto named = network->listen("localhost:0", [](auto) {});
  REQUIRE(named);
  const auto connection = connect(*network, "localhost:" + std::to_string(port_of((*named)->address())));
  CHECK(connection);
  if (const auto six = network->listen("[::1]:0", [](auto) {})) { // where the machine has IPv6
    CHECK_THAT((*six)->address(), test::starts_with("[::1]:"));
    const auto other = connect(*network, (*six)->address());
    REQUIRE(other);
    CHECK((*other)->peer() == (*six)->address());
  }
}

TEST_CASE("a listening socket can be adopted, and nothing else") {
  auto network = make_tcp_network(framing, "dw-io", 1);
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(descriptor, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
  CHECK(!network->adopt(descriptor, [](auto) {}));
  CHECK(!network->adopt(-1, [](auto) {}));
  CHECK(!network->adopt(0, [](auto) {}));
  REQUIRE(::listen(descriptor, 8) == 0);
  std::promise<void> accepted;
  const auto listener = network->adopt(descriptor, [&](auto) { accepted.set_value(); });
  REQUIRE(listener);
  CHECK(port_of((*listener)->address()) != 0);
  CHECK(connect(*network, (*listener)->address()));
  CHECK(accepted.get_future().wait_for(10s) == std::future_status::ready);
}

TEST_CASE("in-process networks adopt no sockets") {
  const auto result = make_inproc_network(framing)->adopt(0, [](auto) {});
  REQUIRE(!result);
  CHECK(result.error().code == Code::unsupported);
}

TEST_CASE("io threads carry the name they were given") {
  auto network = make_tcp_network(framing, "dw-names", 2);
  int found = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    found += name.starts_with("dw-names");
  }
  CHECK(found == 2);
}
