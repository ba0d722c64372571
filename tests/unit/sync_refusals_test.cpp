// Who was turned away before a session began: what is said of them, and that nobody can make it grow or hide another.
#include "sync/refusals.hpp"

#include "catch.hpp"

#include <fmt/format.h>

using deltawire::sync::Refusals;

TEST_CASE("refusals: nobody, one, and one that was lost, in order") {
  Refusals refusals;
  CHECK(refusals.text().empty());
  refusals.note("127.0.0.1:4000: why");
  refusals.note_lost("worker 1 (127.0.0.1:4001): the peer closed the connection");
  CHECK(refusals.text() ==
        "; refused: 127.0.0.1:4000: why; lost: worker 1 (127.0.0.1:4001): the peer closed the connection");
}

TEST_CASE("refusals: who knocks again and again takes one place, and hides nobody") {
  Refusals refusals;
  refusals.note("127.0.0.1:9: it has another secret");
  for (int port = 40000; port < 40100; ++port) {
    refusals.note(fmt::format("127.0.0.1:{}: it does not speak TLS", port));
    refusals.note_lost(fmt::format("worker 3 ([::1]:{}): gone", port));
  }
  CHECK(refusals.text() == "; refused: 127.0.0.1:9: it has another secret"
                           "; refused: 127.0.0.1:40099: it does not speak TLS (100 times)"
                           "; lost: worker 3 ([::1]:40099): gone (100 times)");
  refusals.note("127.0.0.1:1: it has another secret"); // the newest last
  CHECK(refusals.text().ends_with("; refused: 127.0.0.1:1: it has another secret (2 times)"));
}

TEST_CASE("refusals: hosts, workers, reasons and numbers that are no ports are told apart") {
  Refusals refusals;
  for (const char* each : {"10.0.0.1:5: a", "10.0.0.2:5: a", "10.0.0.1:5: b", "worker 1 (10.0.0.1:5): a",
                           "worker 2 (10.0.0.1:5): a", "10.0.0.1:5: within 8 s", "10.0.0.1:5: within 9 s"})
    refusals.note(each);
  CHECK(refusals.text().find("times") == std::string::npos);
}

TEST_CASE("refusals: only eight are kept, the rest is counted, and a long text is cut") {
  Refusals refusals;
  for (int i = 0; i < 3; ++i)
    refusals.note("10.0.0.1:1: first");
  for (int host = 0; host < 9; ++host)
    refusals.note(fmt::format("host-{}: why", host));
  CHECK(refusals.text().starts_with("; refused or lost: 4 earlier ones; refused: host-1: why"));
  refusals.note(std::string(100'000, 'x'));
  CHECK(refusals.text().size() < 2000);
}
