// Contract of the start-up agreement on the root (sync/agreement.hpp): who belongs here, what is made when, and what
// the message says when someone is missing.
#include "catch.hpp"
#include "text_matchers.hpp"

#include "sync/agreement.hpp"
#include "sync/naming.hpp"

namespace {

using namespace deltawire;
using sync::AgreementRoot;
using wire::Channel;
using wire::Role;

constexpr std::uint64_t fingerprint = 0xF1;

wire::Hello hello(Role role, std::uint32_t index, std::uint32_t count, Channel channel = Channel::control,
                  std::uint64_t incarnation = 11, std::uint64_t settings = fingerprint) {
  return {role, channel, index, count, incarnation, settings};
}

/// Two ranks and two workers, windows without a limit.
AgreementRoot two_and_two() {
  return {2, 2, {}, UINT64_MAX, fingerprint};
}

/// Rows begin..end of the matrix "w" of four rows and three columns.
layout::Declaration rows(layout::Index begin, layout::Index end) {
  layout::Declaration declaration;
  declaration.parameters.push_back({"w", DType::bf16, {4, 3}, {end - begin, 3}, {3, 1}});
  declaration.slots.push_back({"w", DType::bf16, {4, 3}});
  if (begin < end)
    declaration.regions.push_back({0, 0, 0, {{{begin, end - begin, 0, 3}}, {{0, 3, 0, 1}}}});
  return declaration;
}

void connect_all(AgreementRoot& root, std::uint32_t ranks = 2, std::uint32_t workers = 2) {
  for (const Channel channel : {Channel::control, Channel::data}) {
    for (std::uint32_t rank = 1; rank < ranks; ++rank)
      REQUIRE(root.hello(hello(Role::rank, rank, ranks, channel)));
    for (std::uint32_t worker = 0; worker < workers; ++worker)
      REQUIRE(root.hello(hello(Role::worker, worker, workers, channel)));
  }
}

} // namespace

TEST_CASE("the agreement goes from connections over declarations to everyone's consent") {
  AgreementRoot root = two_and_two();
  connect_all(root);
  REQUIRE_FALSE(root.catalogue());
  REQUIRE(root.declare(Role::rank, 1, rows(2, 4)));
  REQUIRE_FALSE(root.catalogue());
  REQUIRE(root.declare(Role::rank, 0, rows(0, 2)));
  const auto catalogue = root.catalogue();
  REQUIRE(catalogue);
  REQUIRE(*catalogue);
  REQUIRE((*catalogue)->size() == 1);
  REQUIRE((**catalogue)[0].name == "w");
  REQUIRE_FALSE(root.catalogue()); // once
  REQUIRE_FALSE(root.plan());

  REQUIRE(root.declare(Role::worker, 0, rows(0, 4)));
  REQUIRE_FALSE(root.plan());
  REQUIRE_FALSE(root.agreed(Role::worker, 0)); // nothing to agree to yet
  REQUIRE(root.declare(Role::worker, 1, rows(0, 4)));
  const auto plan = root.plan();
  REQUIRE(plan);
  if (!*plan)
    FAIL(plan->error().message);
  REQUIRE((*plan)->blocks == 2);
  REQUIRE_FALSE(root.plan()); // once
  REQUIRE_FALSE(root.catalogue());

  for (std::uint32_t i = 0; i < 2; ++i) {
    REQUIRE_FALSE(root.all_agreed());
    REQUIRE(root.agreed(Role::rank, i));
    REQUIRE(root.agreed(Role::worker, i));
  }
  REQUIRE(root.all_agreed());
  REQUIRE(root.missing().empty());
}

TEST_CASE("a peer that does not belong here is refused and leaves no trace") {
  AgreementRoot root = two_and_two();
  const std::string nobody = root.missing();
  const auto refused = [&](const wire::Hello& message, const std::string& says) {
    const auto answer = root.hello(message);
    REQUIRE_FALSE(answer);
    REQUIRE(answer.error().code == Code::disagreement);
    REQUIRE_THAT(answer.error().message, test::contains(says));
    REQUIRE(root.missing() == nobody);
  };
  refused(hello(Role::rank, 2, 2), "rank 2 of 2");
  refused(hello(Role::worker, 7, 2), "worker 7 of 2: the root's topology has 2 workers");
  refused(hello(Role::rank, 1, 4), "rank 1 of 4: the root's topology has 2 ranks");
  refused(hello(Role::worker, 0, 1), "worker 0 of 1");
  refused(hello(Role::worker, 0, 2, Channel::control, 11, 0xBAD), "worker 0 has other settings");
  refused(hello(Role::rank, 0, 2), "rank 0 is connected already"); // the root itself
  REQUIRE(root.hello(hello(Role::worker, 0, 2)));
}

TEST_CASE("a rank is one process, whichever connection comes first") {
  AgreementRoot root = two_and_two();
  REQUIRE(root.hello(hello(Role::rank, 1, 2, Channel::control, 11)));
  const auto again = root.hello(hello(Role::rank, 1, 2, Channel::control, 11));
  REQUIRE_FALSE(again);
  REQUIRE_THAT(again.error().message, test::contains("rank 1 is connected already"));
  REQUIRE_FALSE(root.hello(hello(Role::rank, 1, 2, Channel::control, 12)));
  REQUIRE_FALSE(root.hello(hello(Role::rank, 1, 2, Channel::data, 12)));
  REQUIRE(root.hello(hello(Role::rank, 1, 2, Channel::data, 11)));
  REQUIRE(root.hello(hello(Role::worker, 1, 2, Channel::data, 12))); // a worker of the same number is someone else
}

TEST_CASE("a worker's newer process replaces the one before it, at any time of the agreement, and for good") {
  using Welcome = AgreementRoot::Welcome;
  for (const bool connected : {false, true})
    for (const bool declared : {false, true})
      for (const bool planned : {false, true})
        for (const bool agreed : {false, true}) {
          if ((declared && !connected) || (planned && !declared) || (agreed && !planned))
            continue;
          CAPTURE(connected, declared, planned, agreed);
          AgreementRoot root(1, 2, {}, UINT64_MAX, fingerprint);
          REQUIRE(root.declare(Role::rank, 0, rows(0, 4)));
          REQUIRE(*root.catalogue());
          for (const std::uint32_t worker : {0U, 1U}) {
            if (worker == 1 && !planned)
              continue;
            REQUIRE(root.hello(hello(Role::worker, worker, 2, Channel::control, 11)) == Welcome::first);
            if (connected)
              REQUIRE(root.hello(hello(Role::worker, worker, 2, Channel::data, 11)) == Welcome::first);
            if (declared)
              REQUIRE(root.declare(Role::worker, worker, rows(0, 4)));
          }
          if (planned)
            REQUIRE(*root.plan());
          if (agreed)
            REQUIRE(root.agreed(Role::worker, 0, {1, 1, 0, 0}));
          // The newer one: either connection may be first.
          const Channel one = connected ? Channel::data : Channel::control;
          const Channel other = connected ? Channel::control : Channel::data;
          REQUIRE(root.hello(hello(Role::worker, 0, 2, one, 12)) == Welcome::in_place);
          REQUIRE_THAT(root.missing(), test::contains("worker 0 (not connected)"));
          const auto late = root.hello(hello(Role::worker, 0, 2, other, 11));
          REQUIRE_FALSE(late);
          REQUIRE_THAT(late.error().message, test::contains("worker 0: another process has taken its place"));
          REQUIRE(root.hello(hello(Role::worker, 0, 2, other, 12)) == Welcome::first);
          REQUIRE_FALSE(root.agreed(Role::worker, 0)); // what its predecessor declared does not count
          REQUIRE(root.declare(Role::worker, 0, rows(0, 4)));
          if (!planned) {
            for (const Channel channel : {Channel::control, Channel::data})
              REQUIRE(root.hello(hello(Role::worker, 1, 2, channel, 11)) == Welcome::first);
            REQUIRE(root.declare(Role::worker, 1, rows(0, 4)));
            REQUIRE(*root.plan());
          }
          REQUIRE(root.planned());
          REQUIRE(root.agreed(Role::rank, 0));
          REQUIRE(root.agreed(Role::worker, 1));
          REQUIRE_FALSE(root.all_agreed());
          REQUIRE(root.agreed(Role::worker, 0, {2, 3, 0, 0}));
          REQUIRE(root.all_agreed());
          REQUIRE(root.standing()[0] == wire::Agreed{2, 3, 0, 0});
        }
}

TEST_CASE("nobody has agreed who is not connected on both channels") {
  AgreementRoot root(1, 1, {}, UINT64_MAX, fingerprint);
  connect_all(root, 1, 1);
  REQUIRE(root.declare(Role::rank, 0, rows(0, 4)));
  REQUIRE(root.declare(Role::worker, 0, rows(0, 4)));
  REQUIRE(*root.plan());
  REQUIRE(root.agreed(Role::rank, 0));
  REQUIRE(root.hello(hello(Role::worker, 0, 1, Channel::control, 12)));
  REQUIRE(root.declare(Role::worker, 0, rows(0, 4)));
  REQUIRE(root.agreed(Role::worker, 0));
  REQUIRE_FALSE(root.all_agreed());
  REQUIRE(root.hello(hello(Role::worker, 0, 1, Channel::data, 12)));
  REQUIRE(root.all_agreed());
}

TEST_CASE("declaring twice, and by someone who is not there, is refused and changes nothing") {
  AgreementRoot root = two_and_two();
  connect_all(root);
  REQUIRE(root.declare(Role::rank, 0, rows(0, 2)));
  const auto twice = root.declare(Role::rank, 0, rows(0, 4));
  REQUIRE_FALSE(twice);
  REQUIRE(twice.error().code == Code::call_order);
  REQUIRE_THAT(twice.error().message, test::contains("rank 0 declares its parameters twice"));
  const auto unknown = root.declare(Role::worker, 2, rows(0, 4));
  REQUIRE_FALSE(unknown);
  REQUIRE_THAT(unknown.error().message, test::contains("worker 2"));
  REQUIRE(root.declare(Role::rank, 1, rows(2, 4)));
  REQUIRE(*root.catalogue());
  REQUIRE(root.declare(Role::worker, 0, rows(0, 4)));
  REQUIRE(root.declare(Role::worker, 1, rows(0, 4)));
  REQUIRE_FALSE(root.declare(Role::worker, 1, rows(0, 4)));
  REQUIRE(*root.plan()); // of the first declarations: rows 0..4 by rank 0 would overlap
  REQUIRE_FALSE(root.declare(Role::rank, 0, rows(0, 2)));
}

TEST_CASE("agreeing twice or by someone who is not there is refused") {
  AgreementRoot root(1, 1, {}, UINT64_MAX, fingerprint);
  connect_all(root, 1, 1);
  REQUIRE(root.declare(Role::rank, 0, rows(0, 4)));
  REQUIRE_FALSE(root.agreed(Role::rank, 0));
  REQUIRE(*root.catalogue());
  REQUIRE(root.declare(Role::worker, 0, rows(0, 4)));
  REQUIRE(*root.plan());
  REQUIRE(root.agreed(Role::rank, 0));
  REQUIRE_FALSE(root.agreed(Role::rank, 0));
  REQUIRE_FALSE(root.agreed(Role::rank, 1));
  REQUIRE_FALSE(root.all_agreed());
  REQUIRE(root.agreed(Role::worker, 0));
  REQUIRE(root.all_agreed());
}

TEST_CASE("what is missing is told by name and by what is missing of it") {
  AgreementRoot root = two_and_two();
  REQUIRE(root.missing() == "rank 0 (has not declared its parameters), rank 1 (not connected), worker 0 (not "
                            "connected), worker 1 (not connected)");
  REQUIRE(root.hello(hello(Role::worker, 0, 2, Channel::data)));
  REQUIRE_THAT(root.missing(), test::contains("worker 0 (not connected)"));
  REQUIRE(root.hello(hello(Role::worker, 0, 2, Channel::control)));
  REQUIRE_THAT(root.missing(), test::contains("worker 0 (has not declared its parameters)"));
  REQUIRE(root.declare(Role::rank, 0, rows(0, 4)));
  REQUIRE(root.missing() ==
          "rank 0 (has not agreed), rank 1 (not connected), worker 0 (has not declared its parameters), "
          "worker 1 (not connected)");
}

TEST_CASE("a plan is made once, and no catalogue from declarations that went into it") {
  AgreementRoot root(1, 1, {}, UINT64_MAX, fingerprint);
  connect_all(root, 1, 1);
  REQUIRE(root.declare(Role::worker, 0, rows(0, 4)));
  REQUIRE(root.declare(Role::rank, 0, rows(0, 4)));
  REQUIRE(*root.plan());
  REQUIRE_FALSE(root.catalogue());
  REQUIRE_FALSE(root.plan());
}

TEST_CASE("a plan waits for the last connection, also when everyone has declared") {
  AgreementRoot root(1, 1, {}, UINT64_MAX, fingerprint);
  REQUIRE(root.hello(hello(Role::worker, 0, 1, Channel::control)));
  REQUIRE(root.declare(Role::rank, 0, rows(0, 4)));
  REQUIRE(root.declare(Role::worker, 0, rows(0, 4)));
  REQUIRE_FALSE(root.plan());
  REQUIRE(root.hello(hello(Role::worker, 0, 1, Channel::data)));
  REQUIRE(*root.plan());
}

TEST_CASE("disagreements come out of the catalogue and the plan") {
  AgreementRoot root(2, 1, {}, UINT64_MAX, fingerprint);
  layout::Declaration other = rows(2, 4);
  other.slots[0].dtype = DType::f32;
  REQUIRE(root.declare(Role::rank, 0, rows(0, 2)));
  REQUIRE(root.declare(Role::rank, 1, other));
  const auto catalogue = root.catalogue();
  REQUIRE(catalogue);
  REQUIRE_FALSE(*catalogue);

  AgreementRoot holes(1, 1, {}, UINT64_MAX, fingerprint);
  connect_all(holes, 1, 1);
  REQUIRE(holes.declare(Role::rank, 0, rows(0, 3)));
  REQUIRE(*holes.catalogue());
  REQUIRE(holes.declare(Role::worker, 0, rows(0, 4)));
  const auto plan = holes.plan();
  REQUIRE(plan);
  REQUIRE_FALSE(*plan);
  REQUIRE_THAT(plan->error().message, test::contains("w"));
}

TEST_CASE("peers are named by role and number, once, whoever tells a reason on") {
  REQUIRE(sync::peer_name(Role::rank, 3) == "rank 3");
  REQUIRE(sync::peer_name(Role::worker, 1) == "worker 1");
  const auto named = [](const char* message, std::string_view address = {}) {
    return sync::naming(Role::worker, 1, {Code::peer_failed, message}, address).message;
  };
  REQUIRE(named("it hung up") == "worker 1: it hung up");
  REQUIRE(named("it hung up", "host:5") == "worker 1 (host:5): it hung up");
  REQUIRE(named("host:5: it hung up", "host:5") == "worker 1 (host:5): it hung up");
  for (const char* message :
       {"worker 1: it hung up", "worker 1 (host:5): it hung up", "worker 1 sent Hello", "worker 1"}) {
    REQUIRE(named(message) == message);
    REQUIRE(named(message, "host:5") == message);
  }
  REQUIRE(named("worker 12: it hung up") == "worker 1: worker 12: it hung up");
  REQUIRE(named("rank 1: it hung up") == "worker 1: rank 1: it hung up");
  REQUIRE(named("no answer from worker 1") == "worker 1: no answer from worker 1");
}

TEST_CASE("what workers bring along comes with their consent, by worker") {
  AgreementRoot root(1, 2, {}, UINT64_MAX, fingerprint);
  connect_all(root, 1, 2);
  REQUIRE(root.declare(Role::rank, 0, rows(0, 4)));
  REQUIRE(*root.catalogue());
  REQUIRE(root.declare(Role::worker, 0, rows(0, 4)));
  REQUIRE(root.declare(Role::worker, 1, rows(0, 4)));
  REQUIRE(*root.plan());
  const wire::Agreed in_doubt{0xA, 6, 12, 7};
  REQUIRE(root.agreed(Role::rank, 0));
  REQUIRE(root.agreed(Role::worker, 1, in_doubt));
  REQUIRE(root.agreed(Role::worker, 0, {}));
  REQUIRE(root.standing() == std::vector<wire::Agreed>{{}, in_doubt});
}

TEST_CASE("a worker that hangs up may come again, also after the plan") {
  AgreementRoot root(1, 1, {}, UINT64_MAX, fingerprint);
  REQUIRE(root.hello(hello(Role::worker, 0, 1, Channel::data, 11)));
  root.left(0);
  REQUIRE_THAT(root.missing(), test::contains("worker 0 (not connected)"));
  REQUIRE(root.hello(hello(Role::worker, 0, 1, Channel::control, 12)));
  REQUIRE(root.hello(hello(Role::worker, 0, 1, Channel::data, 12)));
  REQUIRE(root.declare(Role::worker, 0, rows(0, 2)));
  root.left(0); // with what it declared
  REQUIRE(root.hello(hello(Role::worker, 0, 1, Channel::control, 13)));
  REQUIRE(root.hello(hello(Role::worker, 0, 1, Channel::data, 13)));
  REQUIRE(root.declare(Role::worker, 0, rows(0, 4)));
  REQUIRE(root.declare(Role::rank, 0, rows(0, 4)));
  REQUIRE(*root.plan());
  REQUIRE(root.agreed(Role::rank, 0));
  REQUIRE(root.agreed(Role::worker, 0));
  REQUIRE(root.all_agreed());
  root.left(0);
  root.left(1); // nobody
  REQUIRE_FALSE(root.all_agreed());
  REQUIRE_THAT(root.missing(), test::contains("worker 0 (not connected)"));
}
