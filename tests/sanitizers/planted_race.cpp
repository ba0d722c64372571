// Two actors that share a plain counter, for the thread sanitizer to prove itself on: what it must report, and what it
// must not.
//
//   planted_race pool|detached race          the lender goes on writing after it has lent the counter: a race
//   planted_race pool|detached hand-over     each writes only while the counter is its own: none
//
// The race does not depend on luck: both actors wait inside their handlers until the other one is in its own, so they
// are on two threads. They wait on a relaxed atomic, which orders nothing, for the tool just as for the machine.
#include "actors/caf.hpp"

#include <caf/scoped_actor.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

namespace deltawire::test {

/// What the two share. `inside` counts the handlers that have begun; it lies apart, since the sanitizer remembers only
/// the last few accesses to each eight bytes, and waiting for it is many.
struct Shared {
  int counter = 0;
  alignas(64) std::atomic<int> inside{0};
};

struct Lent {
  std::shared_ptr<Shared> shared;
};

struct Returned {
  std::shared_ptr<Shared> shared;
};

} // namespace deltawire::test

CAF_BEGIN_TYPE_ID_BLOCK(planted_race, first_custom_type_id)
CAF_ADD_TYPE_ID(planted_race, (deltawire::test::Lent))
CAF_ADD_TYPE_ID(planted_race, (deltawire::test::Returned))
CAF_END_TYPE_ID_BLOCK(planted_race)

DELTAWIRE_LOCAL_MESSAGE(deltawire::test::Lent)
DELTAWIRE_LOCAL_MESSAGE(deltawire::test::Returned)

namespace deltawire::test {
namespace {

using Borrower = caf::typed_actor<caf::reacts_to<caf::actor, Lent>>;

constexpr int rounds = 1000;

void wait_for_both(Shared& shared) {
  shared.inside.fetch_add(1, std::memory_order_relaxed);
  while (shared.inside.load(std::memory_order_relaxed) < 2)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
}

void write_as_borrower(Shared& shared) {
  ++shared.counter;
}

void write_as_lender(Shared& shared) {
  ++shared.counter;
}

Borrower::behavior_type racing_borrower() {
  return {[](const caf::actor&, const Lent& lent) {
    wait_for_both(*lent.shared);
    write_as_borrower(*lent.shared);
  }};
}

caf::behavior racing_lender(caf::event_based_actor* self, const Borrower& borrower) {
  return {[=](const Lent& lent) {
    write_as_lender(*lent.shared); // still its own
    self->send(borrower, caf::actor_cast<caf::actor>(self), lent);
    wait_for_both(*lent.shared);
    write_as_lender(*lent.shared); // not its own any more
    self->quit();
  }};
}

Borrower::behavior_type borrower_that_returns() {
  return {[](const caf::actor& lender, const Lent& lent) {
    write_as_borrower(*lent.shared);
    caf::anon_send(lender, Returned{lent.shared});
  }};
}

caf::behavior lender_that_waits(caf::event_based_actor* self, const Borrower& borrower) {
  const auto lend = [=](const std::shared_ptr<Shared>& shared) {
    write_as_lender(*shared);
    self->send(borrower, caf::actor_cast<caf::actor>(self), Lent{shared});
  };
  return {
    [=](const Lent& lent) { lend(lent.shared); },
    [=](const Returned& returned) {
      if (returned.shared->counter < 2 * rounds)
        lend(returned.shared);
      else
        self->quit();
    },
  };
}

template <caf::spawn_options Options>
int play(caf::actor_system& system, bool race) {
  auto shared = std::make_shared<Shared>();
  const auto borrower = race ? system.spawn<Options>(racing_borrower) : system.spawn<Options>(borrower_that_returns);
  const auto lender =
    race ? system.spawn<Options>(racing_lender, borrower) : system.spawn<Options>(lender_that_waits, borrower);
  caf::anon_send(lender, Lent{shared});
  caf::scoped_actor waiting(system);
  waiting->wait_for(lender);
  caf::anon_send_exit(borrower, caf::exit_reason::user_shutdown);
  waiting->wait_for(borrower);
  return shared->counter;
}

int main_of(const std::string& thread, const std::string& what) {
  if ((thread != "pool" && thread != "detached") || (what != "race" && what != "hand-over")) {
    std::fputs("usage: planted_race pool|detached race|hand-over\n", stderr);
    return 2;
  }
  caf::actor_system_config config;
  config.add_message_types<caf::id_block::planted_race>();
  config.set("scheduler.policy", caf::atom("sharing"));
  config.set("scheduler.max-threads", std::size_t{2});
  caf::actor_system system(config);
  const bool race = what == "race";
  const int counted = thread == "pool" ? play<caf::no_spawn_options>(system, race) : play<caf::detached>(system, race);
  std::printf("%d writes\n", counted);
  return race || counted == 2 * rounds ? 0 : 1;
}

} // namespace
} // namespace deltawire::test

int main(int count, char** words) {
  return deltawire::test::main_of(count > 1 ? words[1] : "", count > 2 ? words[2] : "");
}
