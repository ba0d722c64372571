// The contract of transport.hpp, clause by clause, for every network: the same tests run over tcp, plain and encrypted,
// over shared memory, with room and with hardly any, and in-process.
#include "catch.hpp"
#include "random.hpp"
#include "text_matchers.hpp"
#include "transport/transport.hpp"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

using namespace deltawire;
using namespace deltawire::transport;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

// A header: u64 length of the body, u64 tag. All ones as length is no header.
Result<std::uint64_t> body_bytes(std::span<const std::byte> header) {
  std::uint64_t length = 0;
  if (header.size() != 16)
    return fail(Code::invalid_input, "a header of {} bytes", header.size());
  std::memcpy(&length, header.data(), sizeof length);
  if (length == ~std::uint64_t{0})
    return fail(Code::invalid_input, "a broken header");
  return length;
}

constexpr Framing framing{.header_bytes = 16, .body_bytes = body_bytes};

std::vector<std::byte> header(std::uint64_t length, std::uint64_t tag) {
  std::vector<std::byte> bytes(16);
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, &tag, 8);
  return bytes;
}

std::uint64_t tag_of(const Incoming& frame) {
  std::uint64_t tag = 0;
  std::memcpy(&tag, frame.header.data() + 8, 8);
  return tag;
}

Outgoing frame(std::uint64_t tag, std::size_t size = 0) {
  auto body = std::make_shared<Buffer>(size);
  for (std::size_t i = 0; i < size; ++i)
    (*body)[i] = static_cast<std::byte>(tag + i * 7);
  return {header(size, tag), size == 0 && tag % 2 == 0 ? nullptr : body};
}

bool has_right_body(const Incoming& received) {
  const Outgoing sent = frame(tag_of(received), received.body.size());
  return sent.body ? *sent.body == received.body : received.body.empty();
}

/// A value that another thread changes; waits fail the test after a while instead of hanging.
template <class T>
class Watched {
public:
  template <class Change>
  void change(Change change_it) {
    const std::lock_guard lock(mutex_);
    change_it(value_);
    changed_.notify_all();
  }
  template <class Condition>
  [[nodiscard]] bool wait(Condition condition, std::chrono::milliseconds limit = 20s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return condition(value_); });
  }
  [[nodiscard]] T get() {
    const std::lock_guard lock(mutex_);
    return value_;
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  T value_{};
};

/// One end: what its callbacks saw.
struct End {
  struct Seen {
    std::vector<std::uint64_t> tags;
    std::vector<Failure> closed;
    bool right = true;       ///< bodies
    bool overlapped = false; ///< two callbacks at a time
    bool late = false;       ///< a callback after on_closed
  };
  std::shared_ptr<Connection> connection;
  std::shared_ptr<Watched<Seen>> seen = std::make_shared<Watched<Seen>>();
  std::shared_ptr<std::atomic<int>> inside = std::make_shared<std::atomic<int>>(0);

  void start(std::function<void(const Incoming&)> also = {}) const {
    connection->start({
      .on_frame =
        [seen = seen, inside = inside, also = std::move(also)](Incoming&& received) {
          const bool alone = ++*inside == 1;
          const bool right = has_right_body(received);
          if (also)
            also(received);
          seen->change([&](Seen& value) {
            value.tags.push_back(tag_of(received));
            value.right &= right;
            value.overlapped |= !alone;
            value.late |= !value.closed.empty();
          });
          --*inside;
        },
      .on_closed =
        [seen = seen, inside = inside](const Failure& reason) {
          const bool alone = ++*inside == 1;
          seen->change([&](Seen& value) {
            value.late |= !value.closed.empty();
            value.overlapped |= !alone;
            value.closed.push_back(reason);
          });
          --*inside;
        },
    });
  }
  [[nodiscard]] bool receives(std::size_t count) const {
    return seen->wait([&](const Seen& value) { return value.tags.size() >= count; });
  }
  [[nodiscard]] bool closes() const {
    return seen->wait([](const Seen& value) { return !value.closed.empty(); });
  }
};

/// Results of sends, by tag.
struct Dones {
  std::shared_ptr<Watched<std::vector<std::pair<std::uint64_t, Result<void>>>>> results =
    std::make_shared<Watched<std::vector<std::pair<std::uint64_t, Result<void>>>>>();

  [[nodiscard]] SendDone of(std::uint64_t tag) const {
    return [all = results, tag](const Result<void>& result) {
      all->change([&](auto& value) { value.emplace_back(tag, result); });
    };
  }
  [[nodiscard]] bool reach(std::size_t count) const {
    return results->wait([&](const auto& value) { return value.size() >= count; });
  }
};

struct Kind {
  const char* name;
  std::unique_ptr<Network> (*make)();
};

TcpSettings encrypted() {
  TcpSettings settings;
  settings.key = SharedKey::derive("a secret of thirty-two bytes, or more").value();
  return settings;
}

std::unique_ptr<Network> over_shared_memory(std::uint64_t arena) {
  ShmSettings settings;
  settings.arena = arena;
  return make_shm_network(framing, "dw-test", 2, settings).value();
}

const std::vector<Kind> kinds = {
  {"tcp", [] { return make_tcp_network(framing, "dw-test", 2); }},
  {"tls", [] { return make_tcp_network(framing, "dw-test", 2, encrypted()).value(); }},
  {"inproc", [] { return make_inproc_network(framing); }},
  {"shm", [] { return over_shared_memory(32u << 20); }},
  {"shm with little room", [] { return over_shared_memory(2u << 20); }},
};

/// A body that no network takes of us while the peer takes nothing.
constexpr std::size_t more_than_is_buffered = 40'000'000;

const Failure enough{Code::peer_failed, "enough"};

/// Two networks (as in two processes), a listener on one, and connections between them.
struct Fixture {
  Fixture(const Kind& kind) : server(kind.make()), client(kind.make()) {
    auto result = server->listen("127.0.0.1:0", [accepted = accepted](std::shared_ptr<Connection> connection) {
      connection->admit();
      accepted->change([&](auto& all) { all.push_back(std::move(connection)); });
    });
    REQUIRE(result);
    listener = std::move(*result);
  }

  /// (client's end, server's end)
  std::pair<End, End> pair() {
    const std::size_t before = accepted->get().size();
    Watched<std::optional<Result<std::shared_ptr<Connection>>>> connected;
    client->connect(listener->address(), Clock::now() + 10s, [&](Result<std::shared_ptr<Connection>> result) {
      connected.change([&](auto& value) { value = std::move(result); });
    });
    REQUIRE(connected.wait([](const auto& value) { return value.has_value(); }));
    REQUIRE(accepted->wait([&](const auto& all) { return all.size() > before; }));
    REQUIRE(connected.get()->has_value());
    std::pair<End, End> ends;
    ends.first.connection = **connected.get();
    ends.second.connection = accepted->get().back();
    return ends;
  }

  using All = std::vector<std::shared_ptr<Connection>>;
  std::shared_ptr<Watched<All>> accepted = std::make_shared<Watched<All>>();
  std::unique_ptr<Network> server;
  std::unique_ptr<Network> client;
  std::unique_ptr<Listener> listener;
};

void check_sane(const End& end) {
  const auto seen = end.seen->get();
  CHECK(seen.right);
  CHECK(!seen.overlapped);
  CHECK(!seen.late);
  CHECK(seen.closed.size() <= 1);
}

} // namespace

#define FOR_EACH_NETWORK()                                                                                             \
  const auto& kind = kinds[static_cast<std::size_t>(GENERATE(0, 1, 2, 3, 4))];                                         \
  CAPTURE(kind.name)

TEST_CASE("frames arrive whole and in the order of their sends") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  auto [client, server] = fixture.pair();
  client.start();
  server.start();
  auto random = test::generator(20);
  CAPTURE(test::seed());
  Dones dones;
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < 500; ++i) {
    const std::size_t size = i % 5 == 0 ? 0 : random() % (i % 50 == 1 ? 300'000 : 2000);
    bytes += 16 + size;
    client.connection->send(frame(i, size), dones.of(i));
  }
  REQUIRE(server.receives(500));
  REQUIRE(dones.reach(500));
  std::vector<std::uint64_t> expected(500);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(server.seen->get().tags == expected);
  const auto results = dones.results->get();
  for (std::uint64_t i = 0; i < 500; ++i) {
    CHECK(results[i].first == i);
    CHECK(results[i].second.has_value());
  }
  CHECK(client.connection->bytes_sent() == bytes);
  CHECK(server.connection->bytes_received() == bytes);
  CHECK(client.connection->bytes_received() == 0);
  CHECK(server.connection->bytes_sent() == 0);
  check_sane(server);
}

TEST_CASE("large bodies arrive bit for bit, both ways at once") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  auto [client, server] = fixture.pair();
  client.start();
  server.start();
  Dones dones;
  for (std::uint64_t i = 0; i < 3; ++i) {
    client.connection->send(frame(i, 20'000'000 + i), dones.of(i));
    server.connection->send(frame(100 + i, 20'000'000 + i), dones.of(i));
  }
  REQUIRE(server.receives(3));
  REQUIRE(client.receives(3));
  REQUIRE(dones.reach(6));
  check_sane(client);
  check_sane(server);
}

TEST_CASE("a body that is longer than a step of its growth arrives bit for bit") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  auto [client, server] = fixture.pair();
  server.start();
  client.connection->send(frame(1, (64u << 20) + 12345));
  client.connection->send(frame(2, 3));
  REQUIRE(server.receives(2));
  check_sane(server);
}

TEST_CASE("frames that came before start are delivered first") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  auto [client, server] = fixture.pair();
  for (std::uint64_t i = 0; i < 10; ++i)
    client.connection->send(frame(i, 100));
  std::this_thread::sleep_for(20ms);
  CHECK(server.seen->get().tags.empty());
  server.start();
  for (std::uint64_t i = 10; i < 20; ++i)
    client.connection->send(frame(i, 100));
  REQUIRE(server.receives(20));
  const auto tags = server.seen->get().tags;
  CHECK(std::is_sorted(tags.begin(), tags.end()));
}

TEST_CASE("callbacks may send, on the same connection and without end") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  auto [client, server] = fixture.pair();
  constexpr std::uint64_t bounces = 20'000; // a stack of so many calls would overflow
  const auto bounce = [](std::shared_ptr<Connection> connection) {
    return [weak = std::weak_ptr(connection)](const Incoming& received) {
      if (const auto alive = weak.lock(); alive && tag_of(received) < bounces)
        alive->send(frame(tag_of(received) + 1));
    };
  };
  client.start(bounce(client.connection));
  server.start(bounce(server.connection));
  client.connection->send(frame(0));
  REQUIRE(server.receives(bounces / 2 + 1));
  REQUIRE(client.receives(bounces / 2));
  check_sane(client);
  check_sane(server);
}

TEST_CASE("many threads may send at once, each in its own order") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  auto [client, server] = fixture.pair();
  server.start();
  client.start();
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 200; ++i) {
        client.connection->send(frame(t * 1000 + i, i));
        server.connection->send(frame(t * 1000 + i, i));
      }
    });
  for (auto& thread : threads)
    thread.join();
  for (const End& end : {client, server}) {
    REQUIRE(end.receives(800));
    std::uint64_t next[4] = {0, 1000, 2000, 3000};
    for (const auto tag : end.seen->get().tags)
      CHECK(tag == next[tag / 1000]++);
    check_sane(end);
  }
}

TEST_CASE("close sends what is queued, then both ends learn of it once") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  auto [client, server] = fixture.pair();
  client.start();
  server.start();
  server.connection->send(frame(7, 10));
  Dones dones;
  for (std::uint64_t i = 0; i < 5; ++i)
    client.connection->send(frame(i, 1'000'000), dones.of(i));
  client.connection->close(10s);
  client.connection->send(frame(9), dones.of(9));
  REQUIRE(client.closes());
  REQUIRE(server.closes());
  REQUIRE(dones.reach(5));
  CHECK(server.seen->get().tags == std::vector<std::uint64_t>{0, 1, 2, 3, 4});
  CHECK_THAT(client.seen->get().closed[0].message, test::contains("closed by this side"));
  CHECK_THAT(client.seen->get().closed[0].message, test::contains(client.connection->peer()));
  CHECK_THAT(server.seen->get().closed[0].message, test::contains("the peer closed"));
  CHECK(server.seen->get().closed[0].code == Code::peer_failed);
  for (const auto& [tag, result] : dones.results->get())
    CHECK(result.has_value() == (tag < 5));
  std::this_thread::sleep_for(10ms);
  check_sane(client);
  check_sane(server);
}

TEST_CASE("close gives up when its time is over") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  auto [client, server] = fixture.pair();
  client.start(); // the server's end does not start, and takes nothing
  Dones dones;
  client.connection->send(frame(1, more_than_is_buffered), dones.of(1));
  client.connection->close(50ms);
  REQUIRE(client.closes());
  REQUIRE(dones.reach(1));
  CHECK(!dones.results->get()[0].second);
}

TEST_CASE("abort ends queued sends with its reason, in the middle of a frame too") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  auto [client, server] = fixture.pair();
  client.start();
  const auto large = std::make_shared<const Buffer>(more_than_is_buffered);
  Dones dones;
  for (std::uint64_t i = 0; i < 4; ++i)
    client.connection->send({header(more_than_is_buffered, i), large}, dones.of(i));
  std::this_thread::sleep_for(10ms);
  client.connection->abort(enough);
  client.connection->abort({Code::internal, "too late"});
  REQUIRE(client.closes());
  CHECK(client.seen->get().closed[0] == enough);
  REQUIRE(dones.reach(4));
  for (const auto& [tag, result] : dones.results->get()) {
    REQUIRE(!result);
    CHECK((result.error() == enough || result.error().code == Code::peer_failed));
  }
  server.start();
  REQUIRE(server.closes());
  CHECK(server.seen->get().tags.empty());
  CHECK(server.seen->get().closed[0].code == Code::peer_failed);
  client.connection->send(frame(5), dones.of(5)); // after on_closed: nothing
  check_sane(client);
  check_sane(server);
}

TEST_CASE("abort works from a callback and ends the callbacks") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  auto [client, server] = fixture.pair();
  server.start([connection = std::weak_ptr(server.connection)](const Incoming&) { connection.lock()->abort(enough); });
  client.start();
  for (std::uint64_t i = 0; i < 10; ++i)
    client.connection->send(frame(i, 1000));
  REQUIRE(server.closes());
  REQUIRE(client.closes());
  CHECK(server.seen->get().tags.size() == 1);
  CHECK(server.seen->get().closed[0] == enough);
  check_sane(client);
  check_sane(server);
}

TEST_CASE("a callback that throws closes its connection with a named cause") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  auto [client, server] = fixture.pair();
  server.start([](const Incoming&) { throw std::runtime_error("no idea"); });
  client.start();
  client.connection->send(frame(1));
  REQUIRE(server.closes());
  CHECK(server.seen->get().closed[0].code == Code::internal);
  CHECK_THAT(server.seen->get().closed[0].message, test::contains("no idea"));
  REQUIRE(client.closes());
}

TEST_CASE("a frame whose header does not fit its body is not sent") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  auto [client, server] = fixture.pair();
  server.start();
  client.start();
  Dones dones;
  client.connection->send({header(5, 0), nullptr}, dones.of(0));
  client.connection->send({header(~std::uint64_t{0}, 1), nullptr}, dones.of(1));
  client.connection->send({{}, nullptr}, dones.of(2));
  client.connection->send(frame(3), dones.of(3));
  REQUIRE(dones.reach(4));
  for (const auto& [tag, result] : dones.results->get())
    CHECK(result.has_value() == (tag == 3));
  REQUIRE(server.receives(1));
  CHECK(server.seen->get().tags == std::vector<std::uint64_t>{3});
}

TEST_CASE("a taken address is refused by name, and free again when its listener goes") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  const std::string address = fixture.listener->address();
  CHECK_THAT(address, !test::contains(":0"));
  const auto second = fixture.client->listen(address, [](auto) {});
  REQUIRE(!second);
  CHECK(second.error().code == Code::address_in_use);
  CHECK_THAT(second.error().message, test::contains(address));
  fixture.listener.reset();
  CHECK(fixture.client->listen(address, [](auto) {}));
}

TEST_CASE("connect waits for a listener that is late") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  const std::string address = fixture.listener->address();
  fixture.listener.reset();
  auto connected = std::make_shared<Watched<std::vector<Result<std::shared_ptr<Connection>>>>>();
  for (int i = 0; i < 3; ++i)
    fixture.client->connect(address, Clock::now() + 15s, [connected](auto result) {
      connected->change([&](auto& all) { all.push_back(std::move(result)); });
    });
  std::this_thread::sleep_for(120ms);
  CHECK(connected->get().empty());
  Result<std::unique_ptr<Listener>> late = fail(Code::internal, "");
  for (int i = 0; i < 50 && !late; ++i) { // the port may be a client's own for a moment
    late = fixture.server->listen(address, [accepted = fixture.accepted](auto connection) {
      accepted->change([&](auto& all) { all.push_back(std::move(connection)); });
    });
    if (!late)
      std::this_thread::sleep_for(10ms);
  }
  REQUIRE(late);
  REQUIRE(connected->wait([](const auto& all) { return all.size() == 3; }));
  REQUIRE(fixture.accepted->wait([](const auto& all) { return all.size() == 3; }));
  for (const auto& result : connected->get())
    CHECK(result.has_value());
}

TEST_CASE("connect fails at its deadline") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  const std::string address = fixture.listener->address();
  fixture.listener.reset();
  Watched<std::optional<Result<std::shared_ptr<Connection>>>> connected;
  const auto start = Clock::now();
  fixture.client->connect(address, start + 150ms,
                          [&](auto result) { connected.change([&](auto& value) { value = std::move(result); }); });
  REQUIRE(connected.wait([](const auto& value) { return value.has_value(); }));
  CHECK(Clock::now() - start >= 150ms);
  CHECK(Clock::now() - start < 5s);
  REQUIRE(!connected.get()->has_value());
  CHECK(connected.get()->error().code == Code::timed_out);
  CHECK_THAT(connected.get()->error().message, test::contains(address));
}

TEST_CASE("64 connections carry their own frames") {
  FOR_EACH_NETWORK();
  Fixture fixture(kind);
  std::vector<std::pair<End, End>> pairs;
  for (int i = 0; i < 64; ++i) {
    pairs.push_back(fixture.pair());
    pairs.back().first.start();
    pairs.back().second.start();
  }
  for (std::uint64_t n = 0; n < 20; ++n)
    for (std::uint64_t i = 0; i < 64; ++i) {
      pairs[i].first.connection->send(frame(i * 100 + n, 500));
      pairs[i].second.connection->send(frame(i * 100 + n, 500));
    }
  for (std::uint64_t i = 0; i < 64; ++i)
    for (const End& end : {pairs[i].first, pairs[i].second}) {
      REQUIRE(end.receives(20));
      std::vector<std::uint64_t> expected(20);
      std::iota(expected.begin(), expected.end(), i * 100);
      CHECK(end.seen->get().tags == expected);
      check_sane(end);
    }
}

TEST_CASE("shutdown while busy ends everything with its reason, and no callback runs after it") {
  FOR_EACH_NETWORK();
  for (int round = 0; round < 5; ++round) {
    Fixture fixture(kind);
    std::vector<std::pair<End, End>> pairs;
    for (int i = 0; i < 4; ++i) {
      pairs.push_back(fixture.pair());
      pairs.back().first.start();
      if (i != 3)
        pairs.back().second.start();
    }
    auto connected = std::make_shared<Watched<std::vector<Failure>>>();
    fixture.client->connect("127.0.0.1:1", Clock::now() + 60s, [connected](auto result) {
      connected->change([&](auto& all) { all.push_back(result ? Failure{} : result.error()); });
    });
    std::atomic<bool> stop = false;
    std::vector<std::thread> senders;
    for (auto& [client, server] : pairs)
      senders.emplace_back([&stop, a = client.connection, b = server.connection] {
        for (std::uint64_t i = 0; i < 300 && !stop; ++i) {
          a->send(frame(i, 10'000));
          b->send(frame(i, 10'000));
        }
      });
    std::this_thread::sleep_for(5ms);
    fixture.client->shutdown(enough);
    CHECK(connected->get() == std::vector<Failure>{enough});
    std::vector<std::size_t> counts;
    for (auto& [client, server] : pairs) {
      REQUIRE(client.seen->get().closed.size() == 1);
      CHECK(client.seen->get().closed[0] == enough);
      counts.push_back(client.seen->get().tags.size());
    }
    for (std::size_t i = 0; i < 3; ++i)
      CHECK(pairs[i].second.closes());
    stop = true;
    for (auto& sender : senders)
      sender.join();
    pairs[0].first.connection->send(frame(1));
    pairs[0].first.connection->abort(enough);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      CHECK(pairs[i].first.seen->get().tags.size() == counts[i]);
      check_sane(pairs[i].first);
      check_sane(pairs[i].second);
    }
  }
}

TEST_CASE("connections may be used after their network is gone, to no effect") {
  FOR_EACH_NETWORK();
  End client;
  {
    Fixture fixture(kind);
    client = fixture.pair().first;
  }
  client.connection->send(frame(1));
  client.start();
  client.connection->close(1ms);
  client.connection->abort(enough);
  CHECK(client.seen->get().tags.empty());
  CHECK(client.seen->get().closed.empty());
  CHECK(!client.connection->peer().empty());
}

TEST_CASE("a listener may be destroyed by its own callback") {
  FOR_EACH_NETWORK();
  auto server = kind.make();
  auto client = kind.make();
  Watched<int> accepted;
  std::unique_ptr<Listener> listener;
  std::mutex mutex;
  {
    const std::lock_guard lock(mutex);
    auto result = server->listen("127.0.0.1:0", [&](auto) {
      const std::lock_guard inner(mutex);
      listener.reset();
      accepted.change([](int& count) { ++count; });
    });
    REQUIRE(result);
    listener = std::move(*result);
  }
  const std::string address = listener->address();
  client->connect(address, Clock::now() + 5s, [](auto) {});
  REQUIRE(accepted.wait([](int count) { return count == 1; }));
  client->connect(address, Clock::now() + 60s, [](auto) {});
  std::this_thread::sleep_for(30ms);
  CHECK(accepted.get() == 1);
  client->shutdown(enough);
}
