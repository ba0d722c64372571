// Limits for peers that have not said who they are (Admission in transport.hpp): a port scanner, one that is silent,
// one that sends too much, and too many of them, with real peers coming all the while.
#include "raw_sockets.hpp"
#include "text_matchers.hpp"
#include "transport/strangers.hpp"

using namespace deltawire;
using namespace deltawire::transport;
using namespace std::chrono_literals;

namespace {

TcpSettings plain() {
  return {};
}

TcpSettings encrypted() {
  TcpSettings settings;
  settings.key = SharedKey::derive("a secret of thirty-two bytes, or more").value();
  return settings;
}

} // namespace

TEST_CASE("a stranger that says nothing is closed in time and named, and the others go on") {
  for (TcpSettings settings : {plain(), encrypted()}) {
    CAPTURE(settings.key.has_value());
    settings.admission.time = 200ms;
    Host host(settings);
    const RawSocket silent = RawSocket::to(host.port());
    check_goes_on(host, settings);
    CHECK(silent.is_closed());
    const auto told = settings.key ? host.refused.wait_for(1) : host.closed.wait_for(2);
    bool named = false;
    for (const Failure& reason : told)
      named |= reason.code == Code::timed_out && reason.message.starts_with(silent.address());
    CHECK(named);
    check_goes_on(host, settings);
  }
}

TEST_CASE("a peer that was admitted may be silent") {
  TcpSettings settings;
  settings.admission.time = 100ms;
  Host host(settings);
  Guest guest(settings);
  const auto connection = guest.connect(host.listener->address());
  REQUIRE(connection);
  (*connection)->send(raw_frame("hello"));
  REQUIRE(host.frames.wait_for(1).size() == 1);
  std::this_thread::sleep_for(400ms);
  (*connection)->send(raw_frame("again"));
  CHECK(host.frames.wait_for(2).size() == 2);
}

TEST_CASE("one byte at a time does not keep a stranger") {
  for (TcpSettings settings : {plain(), encrypted()}) {
    settings.admission.time = 300ms;
    Host host(settings);
    const RawSocket slow = RawSocket::to(host.port());
    const std::string beginning = settings.key ? std::string("\x16\x03\x01\x02\x00\x01\x00", 7) : std::string(7, '\0');
    for (const char byte : beginning) {
      slow.send({&byte, 1});
      std::this_thread::sleep_for(20ms);
    }
    check_goes_on(host, settings);
    CHECK(slow.is_closed());
  }
}

TEST_CASE("a stranger's frames are limited before memory is taken for them, an admitted peer's are not") {
  TcpSettings settings;
  settings.admission.bytes = 100;
  for (const std::uint64_t announced : {std::uint64_t{93}, std::uint64_t{1} << 40, ~std::uint64_t{0} - 1}) {
    CAPTURE(announced);
    Host host(settings);
    const RawSocket greedy = RawSocket::to(host.port());
    greedy.send({reinterpret_cast<const char*>(&announced), sizeof announced});
    CHECK(greedy.is_closed());
    const auto closed = host.closed.wait_for(1);
    REQUIRE(closed.size() == 1);
    CHECK(closed[0].code == Code::limit_exceeded);
    CHECK_THAT(closed[0].message, test::starts_with(greedy.address()) && test::contains("the limit is 100"));
  }
  { // 92 bytes fit with their header; nothing more does
    Host host(settings, false);
    Guest guest(settings);
    const auto connection = guest.connect(host.listener->address());
    REQUIRE(connection);
    (*connection)->send(raw_frame(std::string(92, 'a')));
    REQUIRE(host.frames.wait_for(1).size() == 1);
    (*connection)->send(raw_frame(""));
    REQUIRE(host.closed.wait_for(1).size() == 1);
    CHECK(host.closed.now()[0].code == Code::limit_exceeded);
    CHECK(host.frames.now().size() == 1);
  }
  Host host(settings);
  Guest guest(settings);
  const auto connection = guest.connect(host.listener->address());
  REQUIRE(connection);
  (*connection)->send(raw_frame("hello"));
  REQUIRE(host.frames.wait_for(1).size() == 1);
  std::this_thread::sleep_for(50ms); // until the admission is done
  (*connection)->send(raw_frame(std::string(100'000, 'b')));
  CHECK(host.frames.wait_for(2).size() == 2);
}

TEST_CASE("a crowd of silent strangers keeps nobody out") {
  for (TcpSettings settings : {plain(), encrypted()}) {
    CAPTURE(settings.key.has_value());
    settings.admission.strangers = 8;
    Host host(settings);
    Guest early(settings);
    const auto admitted = early.connect(host.listener->address());
    REQUIRE(admitted);
    (*admitted)->send(raw_frame("early"));
    REQUIRE(host.frames.wait_for(1).size() == 1);
    std::vector<RawSocket> crowd;
    for (int i = 0; i < 40; ++i)
      crowd.push_back(RawSocket::to(host.port()));
    check_goes_on(host, settings);
    for (std::size_t i = 0; i + 8 < crowd.size(); ++i)
      CHECK(crowd[i].is_closed());
    (*admitted)->send(raw_frame("and still here"));
    CHECK(host.frames.wait_for(3).size() == 3);
    bool told = false;
    for (const Failure& reason : settings.key ? host.refused.wait_for(1) : host.closed.wait_for(1))
      told |= reason.code == Code::limit_exceeded && reason.message.find("in favor of newcomers") != std::string::npos;
    CHECK(told);
  }
}

TEST_CASE("so many connections and no more, and room again when one closes") {
  for (TcpSettings settings : {plain(), encrypted()}) {
    CAPTURE(settings.key.has_value());
    settings.admission.connections = 2;
    Host host(settings);
    Guest guest(settings);
    const auto first = guest.connect(host.listener->address());
    const auto second = guest.connect(host.listener->address());
    REQUIRE((first && second));
    (*first)->send(raw_frame("one"));
    (*second)->send(raw_frame("two"));
    REQUIRE(host.frames.wait_for(2).size() == 2);
    const RawSocket third = RawSocket::to(host.port());
    CHECK(third.is_closed());
    const auto refused = host.refused.wait_for(1);
    REQUIRE(refused.size() == 1);
    CHECK_THAT(refused[0].message, test::starts_with(third.address()) && test::contains("2 connections are open"));
    (*first)->close(5s);
    REQUIRE(host.closed.wait_for(1).size() == 1);
    check_goes_on(host, settings);
  }
}

TEST_CASE("a port scanner leaves nothing behind") {
  for (const TcpSettings& settings : {plain(), encrypted()}) {
    Host host(settings);
    for (int i = 0; i < 100; ++i)
      const RawSocket gone = RawSocket::to(host.port());
    const std::size_t seen = settings.key ? host.refused.wait_for(100).size() : host.closed.wait_for(100).size();
    CHECK(seen == 100);
    check_goes_on(host, settings);
  }
}
