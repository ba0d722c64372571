// Contract of sync/engine_turn.hpp: who may do what when, and that a call out of order changes nothing.
#include "catch.hpp"
#include "refusal.hpp"
#include "sync/engine_turn.hpp"

using namespace deltawire;
using sync::EngineTurn;
using test::check_refused;

TEST_CASE("an engine commits what it polled, once") {
  EngineTurn turn;
  CHECK_FALSE(turn.poll());
  check_refused(turn.commit(1), Code::call_order, {"commit(1) before a poll()"});
  turn.offer(1);
  check_refused(turn.commit(1), Code::call_order, {"commit(1) before a poll()"});
  CHECK(turn.poll() == 1u);
  CHECK(turn.poll() == 1u); // as often as it likes
  check_refused(turn.commit(2), Code::call_order, {"commit(2)", "poll() returned 1"});
  CHECK_FALSE(turn.committing());
  REQUIRE(turn.commit(1));
  CHECK(turn.committing());
  CHECK_FALSE(turn.poll());
  check_refused(turn.commit(1), Code::call_order, {"while commit(1) runs"});
  turn.served();
  CHECK_FALSE(turn.committing());
  check_refused(turn.commit(1), Code::call_order, {"commit(1) twice"});
  turn.offer(2);
  check_refused(turn.commit(1), Code::call_order, {"commit(1) twice"});
  CHECK(turn.poll() == 2u);
  REQUIRE(turn.commit(2));
}

TEST_CASE("what ends before its commit is told to the commit, and not offered any more") {
  EngineTurn turn;
  turn.offer(3);
  turn.failed({Code::timed_out, "too late"}); // never seen: nobody is told
  CHECK_FALSE(turn.poll());
  check_refused(turn.commit(3), Code::call_order, {"before a poll()"});
  turn.offer(4);
  CHECK(turn.poll() == 4u);
  turn.failed({Code::timed_out, "too late"});
  turn.failed({Code::peer_failed, "and the session is over"}); // nothing waits: nothing to fail
  CHECK_FALSE(turn.poll());
  check_refused(turn.commit(4), Code::timed_out, {"too late"});
  check_refused(turn.commit(4), Code::call_order, {"before a poll()"}); // told once
  turn.offer(5);
  CHECK(turn.poll() == 5u);
  REQUIRE(turn.commit(5));
  turn.failed({Code::peer_failed, "undone"});
  CHECK_FALSE(turn.committing());
  check_refused(turn.commit(5), Code::call_order, {"before a poll()"});
}

TEST_CASE("a poll of what comes next forgets what was missed") {
  EngineTurn turn;
  turn.offer(1);
  CHECK(turn.poll() == 1u);
  turn.failed({Code::timed_out, "too late"});
  turn.offer(1); // of the next session
  CHECK(turn.poll() == 1u);
  REQUIRE(turn.commit(1));
}
