// What encryption promises (tls.hpp): who lacks the key is turned away by name whatever it says, the listener goes on,
// and what crosses the network is not what was sent. The peers are bare sockets, OpenSSL used directly, and our own.
#include "random.hpp"
#include "raw_sockets.hpp"
#include "text_matchers.hpp"

#include <array>
#include <atomic>
#include <optional>

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>

using namespace deltawire;
using namespace deltawire::transport;
using namespace std::chrono_literals;

namespace {

TcpSettings with_secret(const std::string& secret) {
  TcpSettings settings;
  settings.key = SharedKey::derive(secret).value();
  return settings;
}

const TcpSettings right = with_secret("the secret of this test, which is long enough");
const TcpSettings wrong = with_secret("another secret, which is long enough as well");
const TcpSettings plain;

std::string hex(std::span<const unsigned char> bytes) {
  std::string text;
  for (const unsigned char byte : bytes)
    text += fmt::format("{:02x}", byte);
  return text;
}

/// Passes bytes on between a client and a listener, one connection at a time, and keeps what it saw.
class Relay {
public:
  explicit Relay(std::uint16_t target) : thread_([this, target] { run(target); }) {}
  ~Relay() {
    stop_ = true;
    thread_.join();
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  [[nodiscard]] std::string address() const { return listening_.address(); }
  [[nodiscard]] std::string to_listener() {
    const std::lock_guard lock(mutex_);
    return seen_[0];
  }
  [[nodiscard]] std::string to_client() {
    const std::lock_guard lock(mutex_);
    return seen_[1];
  }

private:
  void run(std::uint16_t target) {
    while (!stop_) {
      pollfd waiting{listening_.descriptor(), POLLIN, 0};
      if (::poll(&waiting, 1, 20) != 1)
        continue;
      const RawSocket client = listening_.accept();
      if (const RawSocket listener = RawSocket::try_to(target); listener.descriptor() >= 0)
        pass_on({client.descriptor(), listener.descriptor()});
    }
  }
  void pass_on(std::array<int, 2> ends) {
    while (!stop_) {
      std::array<pollfd, 2> waiting{pollfd{ends[0], POLLIN, 0}, pollfd{ends[1], POLLIN, 0}};
      ::poll(waiting.data(), 2, 20);
      for (std::size_t from = 0; from < 2; ++from) {
        if (waiting[from].revents == 0)
          continue;
        std::array<char, 65536> part{};
        const ssize_t count = ::recv(ends[from], part.data(), part.size(), 0);
        if (count <= 0)
          return;
        const std::lock_guard lock(mutex_);
        seen_[from].append(part.data(), static_cast<std::size_t>(count));
        (void)::send(ends[1 - from], part.data(), static_cast<std::size_t>(count), MSG_NOSIGNAL);
      }
    }
  }

  RawSocket listening_ = RawSocket::listening();
  std::mutex mutex_;
  std::array<std::string, 2> seen_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

/// What a client sends until its first frame is through.
std::string recorded_client(Host& host, const std::string& text) {
  Relay relay(host.port());
  Guest guest(right);
  const auto connection = guest.connect(relay.address());
  REQUIRE(connection);
  const std::size_t before = host.frames.now().size();
  (*connection)->send(raw_frame(text));
  REQUIRE(host.frames.wait_for(before + 1).size() == before + 1);
  return relay.to_listener();
}

struct FreeTls {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using Context = std::unique_ptr<SSL_CTX, FreeTls>;

/// A client of another program; whether its handshake went through.
bool foreign_client(const Context& context, std::uint16_t port) {
  const RawSocket socket = RawSocket::to(port);
  const std::unique_ptr<SSL, FreeTls> ssl(SSL_new(context.get()));
  SSL_set_fd(ssl.get(), socket.descriptor());
  const bool connected = SSL_connect(ssl.get()) == 1;
  char byte = 0;
  return connected && SSL_read(ssl.get(), &byte, 1) > 0;
}

/// A server of another program: TLS 1.3 with a certificate that it made itself.
class Impostor {
public:
  Impostor() : thread_([this] { run(); }) {}
  ~Impostor() {
    stop_ = true;
    thread_.join();
  }
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;
  [[nodiscard]] std::string address() const { return listening_.address(); }

private:
  void run() {
    const Context context(SSL_CTX_new(TLS_server_method()));
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    SSL_CTX_use_certificate(context.get(), certificate);
    SSL_CTX_use_PrivateKey(context.get(), key);
    X509_free(certificate);
    EVP_PKEY_free(key);
    while (!stop_) {
      pollfd waiting{listening_.descriptor(), POLLIN, 0};
      if (::poll(&waiting, 1, 20) != 1)
        continue;
      const RawSocket client = listening_.accept();
      const std::unique_ptr<SSL, FreeTls> ssl(SSL_new(context.get()));
      SSL_set_fd(ssl.get(), client.descriptor());
      SSL_accept(ssl.get());
    }
  }
  RawSocket listening_ = RawSocket::listening();
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

} // namespace

TEST_CASE("a key is HKDF-SHA256 of the secret, however long that is") {
  // Reference: RFC 5869 by Python's hmac and hashlib.
  CHECK(hex(SharedKey::derive("0123456789abcdef0123456789abcdef")->bytes()) ==
        "00d0851106e76c54c35b522cae8edbe0d3014007b4c24a547bffd056f1dba8ba");
  std::string every_byte;
  for (int i = 0; i < 3 * 256; ++i)
    every_byte += static_cast<char>(i);
  CHECK(hex(SharedKey::derive(every_byte)->bytes()) ==
        "baa572def0b56a0921bd1dacd9140f2e0803e0a0704b64cd666eec8b85323d46");
  const auto refused = SharedKey::derive(std::string(31, 'x'));
  REQUIRE(!refused);
  CHECK_THAT(refused.error().message, test::contains("31 bytes") && test::contains("the least is 32"));
}

TEST_CASE("a peer with another secret is turned away at once, and each side names the other") {
  Host host(right);
  Guest guest(wrong);
  const auto start = std::chrono::steady_clock::now();
  const auto connection = guest.connect(host.listener->address(), 60s);
  REQUIRE(!connection);
  CHECK(std::chrono::steady_clock::now() - start < 30s); // not the deadline
  CHECK(connection.error().code == Code::peer_failed);
  CHECK_THAT(connection.error().message,
             test::starts_with(host.listener->address()) && test::contains("it has another secret"));
  const auto refused = host.refused.wait_for(1);
  REQUIRE(!refused.empty());
  CHECK_THAT(refused[0].message, test::starts_with("127.0.0.1:") && test::contains("it has another secret"));
  CHECK(host.accepted.now().empty());
  check_goes_on(host, right);
}

TEST_CASE("a plain peer of an encrypted listener is told so on both sides") {
  Host host(right);
  Guest guest(plain);
  const auto connection = guest.connect(host.listener->address());
  REQUIRE(connection); // as far as TCP goes
  (*connection)->send(raw_frame("hello"));
  const auto closed = guest.closed.wait_for(1);
  REQUIRE(closed.size() == 1);
  CHECK(closed[0].code == Code::peer_failed);
  CHECK_THAT(closed[0].message, test::starts_with(host.listener->address()));
  const auto refused = host.refused.wait_for(1);
  REQUIRE(refused.size() == 1);
  CHECK_THAT(refused[0].message, test::starts_with("127.0.0.1:") && test::contains("it does not speak TLS") &&
                                   test::contains("transport.secret_file"));
  check_goes_on(host, right);
}

TEST_CASE("an encrypted peer of a plain listener is told so on both sides") {
  Host host(plain);
  Guest guest(right);
  const auto connection = guest.connect(host.listener->address(), 500ms);
  REQUIRE(!connection);
  CHECK_THAT(connection.error().message,
             test::contains(host.listener->address()) && test::contains("during the TLS handshake"));
  const auto closed = host.closed.wait_for(1);
  REQUIRE(!closed.empty());
  CHECK_THAT(closed[0].message, test::starts_with("127.0.0.1:") && test::contains("the peer speaks TLS"));
  check_goes_on(host, plain);
}

TEST_CASE("TLS 1.2, TLS 1.3 without the key, and a plain web browser are turned away by name") {
  Host host(right);
  Context old(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_max_proto_version(old.get(), TLS1_2_VERSION);
  CHECK(!foreign_client(old, host.port()));
  const Context keyless(SSL_CTX_new(TLS_client_method()));
  CHECK(!foreign_client(keyless, host.port()));
  const RawSocket browser = RawSocket::to(host.port());
  browser.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(browser.is_closed());
  const auto refused = host.refused.wait_for(3);
  REQUIRE(refused.size() == 3);
  for (const Failure& reason : refused)
    CHECK_THAT(reason.message, test::starts_with("127.0.0.1:"));
  CHECK_THAT(refused[0].message, test::contains("does not speak TLS 1.3"));
  CHECK_THAT(refused[1].message, test::contains("does not use deltawire's secret"));
  CHECK_THAT(refused[2].message, test::contains("does not speak TLS"));
  CHECK(host.accepted.now().empty());
  check_goes_on(host, right);
}

TEST_CASE("a listener with a certificate in place of the key is not believed") {
  const Impostor impostor;
  Guest guest(right);
  const auto connection = guest.connect(impostor.address(), 60s);
  REQUIRE(!connection);
  CHECK(connection.error().code == Code::peer_failed);
  CHECK_THAT(connection.error().message,
             test::starts_with(impostor.address()) && test::contains("it does not know the secret"));
}

TEST_CASE("a handshake that is replayed, cut anywhere, or changed gets nowhere") {
  Host host(right);
  const std::string recorded = recorded_client(host, "once");
  REQUIRE(recorded.size() > 300);
  const std::size_t accepted = host.accepted.now().size();
  const std::size_t frames = host.frames.now().size();
  std::size_t tries = 0;

  { // all of it, the first frame too
    const RawSocket replay = RawSocket::to(host.port());
    replay.send(recorded);
    CHECK(replay.is_closed());
    ++tries;
  }
  auto random = test::generator(71);
  CAPTURE(test::seed());
  for (int i = 0; i < 30; ++i) {
    const RawSocket cut = RawSocket::to(host.port());
    cut.send(std::string_view(recorded).substr(0, random() % recorded.size()));
    ::shutdown(cut.descriptor(), SHUT_WR);
    CHECK(cut.is_closed());
    ++tries;
  }
  for (int i = 0; i < 30; ++i) {
    std::string changed = recorded;
    changed[random() % changed.size()] ^= static_cast<char>(1 + random() % 255);
    const RawSocket liar = RawSocket::to(host.port());
    liar.send(changed);
    ::shutdown(liar.descriptor(), SHUT_WR);
    CHECK(liar.is_closed());
    ++tries;
  }
  for (int i = 0; i < 30; ++i) {
    std::string noise(1 + random() % 2000, '\0');
    for (char& byte : noise)
      byte = static_cast<char>(random());
    if (i % 2 == 0)
      noise.replace(0, std::min<std::size_t>(noise.size(), 3), "\x16\x03\x01");
    const RawSocket liar = RawSocket::to(host.port());
    liar.send(noise);
    ::shutdown(liar.descriptor(), SHUT_WR);
    CHECK(liar.is_closed());
    ++tries;
  }
  CHECK(host.refused.wait_for(tries).size() == tries);
  CHECK(host.accepted.now().size() == accepted);
  CHECK(host.frames.now().size() == frames);
  check_goes_on(host, right);
}

TEST_CASE("what was sent is not seen on the way, and no two connections look alike") {
  Host host(right);
  const std::string text(5000, 'w');
  const std::string first = recorded_client(host, text);
  const std::string second = recorded_client(host, text);
  CHECK(first.find("wwwwwwww") == std::string::npos);
  CHECK(first != second);
  CHECK(first.size() < text.size() + 2000);
  Host open(plain); // the oracle sees it where nothing is encrypted
  Relay relay(open.port());
  Guest guest(plain);
  const auto connection = guest.connect(relay.address());
  REQUIRE(connection);
  (*connection)->send(raw_frame(text));
  REQUIRE(open.frames.wait_for(1).size() == 1);
  CHECK(relay.to_listener().find("wwwwwwww") != std::string::npos);
}

TEST_CASE("a byte that is changed on the way ends the connection") {
  Host host(right);
  Guest guest(right);
  // The listener's end of a connection whose relay adds bytes of its own.
  RawSocket middle = RawSocket::listening();
  std::thread attacker([&] {
    const RawSocket client = middle.accept();
    const RawSocket listener = RawSocket::try_to(host.port());
    if (listener.descriptor() < 0)
      return;
    std::array<pollfd, 2> waiting{pollfd{client.descriptor(), POLLIN, 0}, pollfd{listener.descriptor(), POLLIN, 0}};
    for (;;) {
      ::poll(waiting.data(), 2, 100);
      for (std::size_t from = 0; from < 2; ++from) {
        if (waiting[from].revents == 0)
          continue;
        std::array<char, 65536> part{};
        const ssize_t count = ::recv(waiting[from].fd, part.data(), part.size(), 0);
        if (count <= 0)
          return;
        if (count > 2000) // the frame
          part[1000] ^= 1;
        (void)::send(waiting[1 - from].fd, part.data(), static_cast<std::size_t>(count), MSG_NOSIGNAL);
      }
    }
  });
  const auto connection = guest.connect(middle.address());
  if (connection)
    (*connection)->send(raw_frame(std::string(3000, 'x')));
  const auto closed = host.closed.wait_for(1);
  attacker.join();
  REQUIRE(connection);
  REQUIRE(closed.size() == 1);
  CHECK(closed[0].code == Code::peer_failed);
  CHECK_THAT(closed[0].message, test::contains("receiving failed"));
  CHECK(host.frames.now().empty());
  check_goes_on(host, right);
}

TEST_CASE("keys are renewed under way, both ways, and nothing is lost") {
  TcpSettings often = right;
  often.new_key_after = 5;
  Host host(often);
  Guest guest(often);
  const auto connection = guest.connect(host.listener->address());
  REQUIRE(connection);
  (*connection)->send(raw_frame("hello"));
  REQUIRE(host.frames.wait_for(1).size() == 1);
  const auto other = host.accepted.now()[0];
  auto random = test::generator(72);
  CAPTURE(test::seed());
  std::vector<std::string> sent;
  for (std::size_t i = 0; i < 200; ++i) {
    sent.emplace_back(random() % (i % 10 == 0 ? 300'000 : 300), static_cast<char>('a' + i % 26));
    (*connection)->send(raw_frame(sent.back()));
    other->send(raw_frame(sent.back()));
  }
  auto received = host.frames.wait_for(201);
  REQUIRE(received.size() == 201);
  received.erase(received.begin());
  CHECK(received == sent);
  CHECK(guest.frames.wait_for(200) == sent);
}

TEST_CASE("a peer that never answers the handshake is named at the deadline") {
  const RawSocket silent = RawSocket::listening();
  Guest guest(right);
  const auto connection = guest.connect(silent.address(), 200ms);
  REQUIRE(!connection);
  CHECK(connection.error().code == Code::timed_out);
  CHECK_THAT(connection.error().message,
             test::contains(silent.address()) && test::contains("the TLS handshake is not finished"));
}
