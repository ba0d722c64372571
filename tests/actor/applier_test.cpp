// Applier: verifies before it writes, commits by exchange, undoes, and touches nothing that is not in a piece.

#include "catch.hpp"
#include "testing.hpp"
#include "unit/text_matchers.hpp"

#include <cstring>

using namespace deltawire;
using namespace deltawire::actors;
using namespace deltawire::test;

namespace {

constexpr auto flush_type = static_cast<std::uint16_t>(wire::FrameType::flush);
using Values = std::vector<std::uint16_t>;

/// A worker with a packed [q | k | v] of four elements each, poisoned, and a tied copy of k with gaps. Block 3 is held
/// by other workers only. The test plays the root.
struct Worker {
  enum Id : std::uint32_t { q, k, v, elsewhere };

  Log log;
  TestSystem system;
  Values packed = Values(12, 0xFFFF);
  Values tied = Values(8, 0xFFFF); ///< k at 0, 2, 4, 6
  std::shared_ptr<WorkerWork> work = std::make_shared<WorkerWork>();
  std::shared_ptr<Routes> routes = std::make_shared<Routes>();
  Peer control{routes, wire::Role::rank, 0, wire::Channel::control};
  Peer data{routes, wire::Role::rank, 0, wire::Channel::data};
  ApplierActor actor;
  std::uint64_t delivery = 0;
  std::vector<Version> committed, resumed;
  int pauses = 0;

  explicit Worker(std::uint64_t stage = 1 << 20) {
    work->worker = 5;
    for (std::uint32_t id : {q, k, v})
      work->blocks.push_back(flat_block(id, DType::bf16, 4, 4 * id));
    layout::Block copy = flat_block(k, DType::bf16, 4, 0, 2);
    copy.parameter = 1;
    work->blocks.insert(work->blocks.begin() + 2, copy);
    work->block_ids = 4;
    work->parameters = {reinterpret_cast<std::byte*>(packed.data()), reinterpret_cast<std::byte*>(tied.data())};
    work->names = {"qkv", "tied"};
    work->slots = {{"q", DType::bf16, {4}}, {"k", DType::bf16, {4}}, {"v", DType::bf16, {4}}, {"x", DType::bf16, {4}}};
    work->cells = {{0, 4}, {1, 4}, {2, 4}, {3, 4}};
    work->stage_cap = stage;
    work->recorder = std::make_shared<telemetry::Recorder>();
    work->on_pause = [this] { ++pauses; };
    work->on_commit = [this](Version version, std::span<const Change>) { committed.push_back(version); };
    work->on_resume = [this](Version version) {
      CHECK(work->version == version); // who asks in the hook hears the same
      CHECK(work->standing.get().version == version);
      CHECK(work->standing.get().state == sync::WorkerState::serving);
      resumed.push_back(version);
    };
    actor = system.spawn(applier, work, control.port(), failure_probe(system, log));
    routes->set_delivery(caf::actor_cast<caf::actor>(actor));
    routes->set_supervisor(failure_probe(system, log));
  }

  template <class Message>
  void say(const Message& message) {
    control.say(message);
    system.run();
  }

  void begin(std::uint64_t version) {
    say(wire::Begin{++delivery, version == 1 ? wire::DeliveryKind::seed : wire::DeliveryKind::delta, version - 1,
                    version});
  }

  void flush(Bytes payload, std::uint64_t sequence = 0, bool corrupt = false) {
    wire::FrameHeader header;
    header.type = flush_type;
    header.delivery = delivery;
    header.sequence = sequence;
    data.say_data(header, std::move(payload), corrupt);
    system.run();
  }

  void seal(std::uint64_t flushes, std::uint64_t bytes, std::vector<std::pair<std::uint32_t, std::uint64_t>> digests) {
    say(wire::Seal{delivery, flushes, bytes, std::move(digests)});
  }

  static layout::Block block(std::uint32_t id) { return flat_block(id, DType::bf16, 4); }

  static Bytes seed_payload() {
    Bytes payload;
    for (const auto& [id, values] : {std::pair<std::uint32_t, Values>{q, {1, 2, 3, 4}},
                                     {k, {5, 6, 7, 8}},
                                     {v, {9, 10, 11, 12}},
                                     {elsewhere, {13, 14, 15, 16}}}) {
      const Bytes piece = seed_piece(block(id), values);
      payload.insert(payload.end(), piece.begin(), piece.end());
    }
    return payload;
  }

  void seed() {
    begin(1);
    const Bytes payload = seed_payload();
    flush(payload);
    seal(1, payload.size(),
         {{q, digest_of({1, 2, 3, 4})},
          {k, digest_of({5, 6, 7, 8})},
          {v, digest_of({9, 10, 11, 12})},
          {elsewhere, digest_of({13, 14, 15, 16})}});
    say(wire::Commit{delivery});
    say(wire::Release{delivery});
    REQUIRE(control.heard<wire::Released>().size() == 1);
    REQUIRE(control.heard<wire::Failed>().empty());
    (void)control.heard<wire::Ready>();
    (void)control.heard<wire::FlushStaged>();
    (void)control.heard<wire::Staged>();
    (void)control.heard<wire::Applied>();
    REQUIRE(work->version == 1);
  }

  /// k becomes [5, 0x66, 7, 0x88].
  void stage_k() {
    begin(2);
    const Bytes payload = delta_piece(block(k), {1, 3}, {0x66, 0x88});
    flush(payload);
    seal(1, payload.size(), {{k, digest_of({5, 0x66, 7, 0x88})}});
  }

  /// k goes from the seed to [5, 7, 7, 5]: +1 and -3.
  static Bytes ulp_payload() {
    const Values before = {6, 8};
    const Values after = {7, 5};
    const Values positions = {1, 3};
    delta::PieceEncoder encoder(1 << 20);
    encoder.start_range(block(k), 0, 4);
    encoder.add_changes(0, positions, reinterpret_cast<const std::byte*>(after.data()),
                        reinterpret_cast<const std::byte*>(before.data()));
    encoder.finish_range();
    Bytes bytes = encoder.take().bytes;
    REQUIRE(delta::read_piece(bytes, block(k)).value().kind == delta::PieceKind::ulp_delta);
    return bytes;
  }

  bool at_seed() const {
    return packed == Values{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12} &&
           tied == Values{5, 0xFFFF, 6, 0xFFFF, 7, 0xFFFF, 8, 0xFFFF};
  }

  bool poisoned() const { return packed == Values(12, 0xFFFF) && tied == Values(8, 0xFFFF); }

  std::string failure() {
    const auto failed = control.heard<wire::Failed>();
    return failed.size() == 1 ? failed[0].message : fmt::format("{} failures", failed.size());
  }
};

} // namespace

TEST_CASE("a delta before any seed is refused and memory untouched") {
  Worker worker;
  worker.delivery = 8;
  worker.begin(2);
  CHECK_THAT(worker.failure(), contains("worker 5") && contains("a delta before any seed"));
  worker.flush(delta_piece(Worker::block(Worker::k), {1}, {0x66}));
  CHECK(worker.poisoned());
  CHECK(worker.work->version == 0);
  CHECK(worker.control.heard<wire::Ready>().empty());
}

TEST_CASE("a seed fills every copy, and gaps between elements stay what they were") {
  Worker worker;
  worker.seed();
  CHECK(worker.at_seed());
  CHECK(worker.pauses == 1);
  CHECK(worker.committed == std::vector<Version>{1});
}

TEST_CASE("nothing is written before the commit; then only what is in a piece, in both tied copies") {
  Worker worker;
  worker.seed();
  worker.stage_k();
  CHECK(worker.control.heard<wire::Staged>().size() == 1);
  CHECK(worker.at_seed());
  CHECK(worker.pauses == 1);
  worker.say(wire::Commit{worker.delivery});
  CHECK(worker.pauses == 2);
  CHECK(worker.packed == Values{1, 2, 3, 4, 5, 0x66, 7, 0x88, 9, 10, 11, 12});
  CHECK(worker.tied == Values{5, 0xFFFF, 0x66, 0xFFFF, 7, 0xFFFF, 0x88, 0xFFFF});
  const auto applied = worker.control.heard<wire::Applied>();
  REQUIRE(applied.size() == 1);
  CHECK(applied[0].version == 2);
  const auto k = digest_of({5, 0x66, 7, 0x88});
  CHECK(applied[0].digests == decltype(wire::Applied::digests){{Worker::k, k}, {Worker::k, k}}); // in two places
  CHECK(worker.work->version == 1); // not before its replica is released
  worker.say(wire::Release{worker.delivery});
  CHECK(worker.control.heard<wire::Released>().size() == 1);
  CHECK(worker.work->version == 2);
  CHECK(worker.committed == std::vector<Version>{1, 2});
}

TEST_CASE("without digests a worker takes what comes, and tells none") {
  Worker worker;
  worker.work->verify = false;
  worker.begin(1);
  const Bytes payload = Worker::seed_payload();
  worker.flush(payload);
  worker.seal(1, payload.size(), {});
  worker.say(wire::Commit{worker.delivery});
  const auto applied = worker.control.heard<wire::Applied>();
  REQUIRE(applied.size() == 1);
  CHECK(applied[0].digests.empty());
  worker.say(wire::Release{worker.delivery});
  CHECK(worker.at_seed());
  CHECK(worker.work->version == 1);
}

TEST_CASE("a delta that meets memory which somebody has changed leaves the worker dirty; a wrong manifest does not") {
  const bool changed = GENERATE(true, false);
  Worker worker;
  worker.seed();
  worker.packed[5] ^= changed ? 1 : 0; // an element of k that changes
  worker.begin(2);
  const Bytes payload = delta_piece(Worker::block(Worker::k), {1, 3}, {0x66, 0x88});
  worker.flush(payload);
  worker.seal(1, payload.size(), {{Worker::k, digest_of({5, 0x66, 7, 0x88}) + (changed ? 0 : 1)}});
  CHECK(worker.control.heard<wire::Staged>().empty());
  CHECK_THAT(worker.control.heard<wire::Failed>().at(0).message, contains("slot 'k'"));
  CHECK(worker.work->version == 1);
  worker.say(wire::Undo{worker.delivery, "its digests are wrong"});
  CHECK(worker.control.heard<wire::Undone>().at(0).version == (changed ? 0 : 1));
  CHECK(worker.work->version == (changed ? 0 : 1));
  CHECK(worker.work->standing.get().state == (changed ? sync::WorkerState::dirty : sync::WorkerState::serving));
}

TEST_CASE("an audit reads all memory without a pause: who serves and is wrong serves no more") {
  Worker worker;
  worker.seed();
  const decltype(wire::Audit::digests) right{{Worker::q, digest_of({1, 2, 3, 4})},
                                             {Worker::k, digest_of({5, 6, 7, 8})},
                                             {Worker::v, digest_of({9, 10, 11, 12})}};
  const int pauses = worker.pauses;
  worker.say(wire::Audit{1, 1, right});
  auto audited = worker.control.heard<wire::Audited>();
  REQUIRE(audited.size() == 1);
  CHECK(audited[0].audit == 1);
  CHECK(audited[0].version == 1);
  CHECK(audited[0].error == "");
  CHECK(audited[0].digests == decltype(wire::Audit::digests){right[0], right[1], right[1], right[2]});
  worker.tied[1] = 0x1234; // between elements: nobody's
  worker.say(wire::Audit{2, 1, right});
  CHECK(worker.control.heard<wire::Audited>().at(0).error == "");
  CHECK(worker.work->version == 1);
  worker.tied[4] ^= 1; // of the copy, not of k itself
  worker.say(wire::Audit{3, 1, right});
  audited = worker.control.heard<wire::Audited>();
  REQUIRE(audited.size() == 1);
  CHECK_THAT(audited[0].error, contains("parameter 'tied'") && contains("slot 'k'") && contains("cell 1"));
  CHECK(audited[0].version == 0);
  CHECK(worker.work->version == 0);
  CHECK(worker.work->standing.get().state == sync::WorkerState::dirty);
  CHECK(worker.pauses == pauses);
  worker.begin(2);
  CHECK(worker.control.heard<wire::Failed>().size() == 1); // a delta
}

TEST_CASE("a worker that holds the version already serves it as soon as it is told, and takes a delta on it") {
  Worker worker;
  worker.packed = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  for (std::size_t i = 0; i < 4; ++i)
    worker.tied[2 * i] = worker.packed[4 + i];
  const decltype(wire::Audit::digests) held{{Worker::q, digest_of({1, 2, 3, 4})},
                                            {Worker::k, digest_of({5, 6, 7, 8})},
                                            {Worker::v, digest_of({9, 10, 11, 12})}};
  worker.say(wire::Adopt{1, 1}); // before anybody looked
  CHECK(worker.control.heard<wire::Failed>().size() == 1);
  worker.say(wire::Audit{1, 1, held});
  CHECK(worker.control.heard<wire::Audited>().at(0).error == "");
  CHECK(worker.work->version == 0);
  worker.say(wire::Adopt{1, 1});
  CHECK(worker.work->version == 1);
  CHECK(worker.control.heard<wire::Audited>().at(0).version == 1);
  CHECK(worker.committed == std::vector<Version>{1});
  worker.stage_k();
  worker.say(wire::Commit{worker.delivery});
  worker.say(wire::Release{worker.delivery});
  CHECK(worker.packed == Values{1, 2, 3, 4, 5, 0x66, 7, 0x88, 9, 10, 11, 12});
  CHECK(worker.control.heard<wire::Failed>().empty());
  CHECK(worker.committed == std::vector<Version>{1, 2});
}

TEST_CASE("an undo after the commit puts every old value back") {
  Worker worker;
  worker.seed();
  worker.stage_k();
  worker.say(wire::Commit{worker.delivery});
  REQUIRE(worker.control.heard<wire::Applied>().size() == 1);
  worker.say(wire::Undo{worker.delivery, "another worker failed"});
  const auto undone = worker.control.heard<wire::Undone>();
  REQUIRE(undone.size() == 1);
  CHECK(undone[0].version == 1);
  CHECK(worker.at_seed());
  CHECK(worker.work->version == 1);
  CHECK(worker.committed == std::vector<Version>{1});
  // It goes on from where it was.
  worker.stage_k();
  worker.say(wire::Commit{worker.delivery});
  worker.say(wire::Release{worker.delivery});
  CHECK(worker.failure() == "0 failures");
  CHECK(worker.packed == Values{1, 2, 3, 4, 5, 0x66, 7, 0x88, 9, 10, 11, 12});
}

TEST_CASE("an engine that was made to pause hears when it may go on with the version that it had, and only then") {
  const std::vector<Version> no, yes{1};
  const Failure lost{Code::peer_failed, "the root is lost"};
  SECTION("an update is undone: after its commit, and before") {
    Worker worker;
    worker.seed();
    worker.stage_k();
    worker.say(wire::Undo{worker.delivery, "worker 7 is slow"});
    CHECK(worker.resumed == no); // it was never paused
    worker.stage_k();
    worker.say(wire::Commit{worker.delivery});
    CHECK(worker.resumed == no);
    worker.say(wire::Undo{worker.delivery, "worker 7 is slow"});
    CHECK(worker.resumed == yes);
    CHECK(worker.at_seed());
  }
  SECTION("its own pause has failed") {
    Worker worker;
    worker.seed();
    worker.work->on_pause = [] { throw std::runtime_error("the engine does not stop"); };
    worker.stage_k();
    worker.say(wire::Commit{worker.delivery});
    worker.say(wire::Undo{worker.delivery, "worker 5 has failed"});
    CHECK(worker.resumed == yes);
  }
  SECTION("a seed is undone, and the next one is released") {
    Worker worker;
    worker.begin(1);
    worker.say(wire::Undo{worker.delivery, "worker 7 is slow"});
    CHECK(worker.resumed == no);
    CHECK(worker.work->version == 0);
    worker.seed();
    CHECK(worker.resumed == no);
    CHECK(worker.committed == yes);
  }
  SECTION("somebody else has changed its memory") {
    Worker worker;
    worker.seed();
    worker.stage_k();
    worker.packed[5] = 0xBAD;
    worker.say(wire::Commit{worker.delivery});
    worker.say(wire::Undo{worker.delivery, "worker 5 has failed"});
    CHECK(worker.resumed == no);
    CHECK(worker.work->version == 0);
  }
  SECTION("the root is lost: what is in doubt waits for the next one's word") {
    for (const bool release : {false, true}) {
      Worker worker;
      worker.seed();
      worker.stage_k();
      worker.say(wire::Commit{worker.delivery});
      worker.system.send(worker.actor, RootLost{lost});
      CHECK(worker.resumed == no);
      CHECK(worker.work->version == 0);
      worker.system.send(worker.actor, RootMet{worker.control.port(), 0, nullptr});
      worker.say(wire::Settle{0, worker.delivery, static_cast<std::uint8_t>(release ? 1 : 0)});
      CHECK(worker.resumed == (release ? no : yes));
      CHECK(worker.work->version == (release ? 2 : 1));
    }
  }
  SECTION("it does not go on: the root hears of it") {
    Worker worker;
    worker.seed();
    worker.work->on_resume = [](Version) { throw std::runtime_error("the engine does not go on"); };
    worker.stage_k();
    worker.say(wire::Commit{worker.delivery});
    worker.say(wire::Undo{worker.delivery, "worker 7 is slow"});
    CHECK_THAT(worker.failure(), contains("worker 5: on_resume threw: the engine does not go on"));
    CHECK(worker.work->version == 1);
  }
}

TEST_CASE("an undo before the commit forgets the stage") {
  Worker worker;
  worker.seed();
  worker.stage_k();
  worker.say(wire::Undo{worker.delivery, "another worker failed"});
  CHECK(worker.control.heard<wire::Undone>().size() == 1);
  CHECK(worker.at_seed());
  worker.say(wire::Commit{worker.delivery});
  CHECK_THAT(worker.failure(), contains("commit"));
  CHECK(worker.at_seed());
}

TEST_CASE("a corrupt flush is refused and memory untouched") {
  Worker worker;
  worker.seed();
  worker.begin(2);
  (void)worker.control.heard<wire::Ready>();
  worker.flush(delta_piece(Worker::block(Worker::k), {1}, {0x66}), 0, true);
  CHECK_THAT(worker.failure(), contains("worker 5") && contains("checksum"));
  CHECK(worker.control.heard<wire::FlushStaged>().empty());
  CHECK(worker.at_seed());
}

TEST_CASE("a flush whose checksum is right and whose pieces lie is refused and memory untouched") {
  Worker worker;
  worker.seed();
  const Bytes good = delta_piece(Worker::block(Worker::k), {1, 3}, {0x66, 0x88});
  Bytes wide = delta_piece(flat_block(Worker::k, DType::bf16, 9), {1, 8}, {0x66, 0x88}); // past the block's end
  Bytes cut(good.begin(), good.end() - 1);
  Bytes unknown = delta_piece(flat_block(77, DType::bf16, 4), {0}, {0x66});
  for (const Bytes& payload : {wide, cut, unknown}) {
    worker.begin(2);
    worker.flush(payload);
    CHECK_THAT(worker.failure(), contains("worker 5"));
    CHECK(worker.at_seed());
    worker.say(wire::Undo{worker.delivery, "undo"});
    CHECK(worker.at_seed());
  }
}

TEST_CASE("a digest that will not be the trainer's is found before the commit, by parameter and slot") {
  Worker worker;
  worker.seed();
  worker.begin(2);
  const Bytes payload = delta_piece(Worker::block(Worker::k), {1}, {0x66});
  worker.flush(payload);
  worker.seal(1, payload.size(), {{Worker::k, digest_of({5, 0x67, 7, 8})}});
  CHECK_THAT(worker.failure(), contains("worker 5") && contains("'k'"));
  CHECK(worker.control.heard<wire::Staged>().empty());
  worker.say(wire::Commit{worker.delivery});
  CHECK(worker.at_seed());
  CHECK(worker.pauses == 1);
}

TEST_CASE("memory that somebody else wrote to is found before the commit when its cell changes") {
  Worker worker;
  worker.seed();
  worker.packed[5] = 0x1234; // k's element 1: the base is not what the digest says
  worker.stage_k();
  CHECK_THAT(worker.failure(), contains("'k'"));
  CHECK(worker.control.heard<wire::Staged>().empty());
}

TEST_CASE("a duplicate of a flush is acknowledged again and taken once") {
  Worker worker;
  worker.seed();
  worker.begin(2);
  const Bytes payload = delta_piece(Worker::block(Worker::k), {1}, {0x66});
  worker.flush(payload);
  worker.flush(payload);
  CHECK(worker.control.heard<wire::FlushStaged>().size() == 2);
  worker.seal(1, payload.size(), {{Worker::k, digest_of({5, 0x66, 7, 8})}});
  worker.say(wire::Commit{worker.delivery});
  CHECK(worker.failure() == "0 failures");
  CHECK(worker.packed[5] == 0x66);
}

TEST_CASE("a delivery larger than the stage is refused with the bytes it needs") {
  Worker worker(6);
  worker.seed();
  worker.begin(2);
  const Bytes payload = delta_piece(Worker::block(Worker::k), {1}, {0x66});
  worker.flush(payload);
  // A record of one position and one value.
  CHECK_THAT(worker.failure(), contains("actors.applier.stage, update to version 2: 6 bytes do not hold") &&
                                 contains("at least 32 are needed"));
  CHECK(worker.at_seed());
}

TEST_CASE(
  "differences become values when they are staged, in both tied copies, and nothing is written before the commit") {
  Worker worker;
  worker.seed();
  worker.begin(2);
  const Bytes payload = Worker::ulp_payload();
  worker.flush(payload);
  worker.flush(payload); // a retry
  CHECK(worker.at_seed());
  worker.seal(1, payload.size(), {{Worker::k, digest_of({5, 7, 7, 5})}});
  CHECK(worker.control.heard<wire::Staged>().size() == 1);
  CHECK(worker.at_seed());
  worker.say(wire::Commit{worker.delivery});
  const auto applied = worker.control.heard<wire::Applied>();
  REQUIRE(applied.size() == 1);
  CHECK(applied[0].elements == 4);
  CHECK(applied[0].applier_peak == 16 * 1024); // of memory, full or not
  CHECK(worker.packed == Values{1, 2, 3, 4, 5, 7, 7, 5, 9, 10, 11, 12});
  CHECK(worker.tied == Values{5, 0xFFFF, 7, 0xFFFF, 7, 0xFFFF, 5, 0xFFFF});
  worker.say(wire::Undo{worker.delivery, "another worker failed"});
  CHECK(worker.at_seed());
  // Delivered again, as values: what was staged before is of no consequence.
  worker.begin(2);
  const Bytes again = delta_piece(Worker::block(Worker::k), {1, 3}, {7, 5});
  worker.flush(again);
  worker.seal(1, again.size(), {{Worker::k, digest_of({5, 7, 7, 5})}});
  worker.say(wire::Commit{worker.delivery});
  worker.say(wire::Release{worker.delivery});
  CHECK(worker.failure() == "0 failures");
  CHECK(worker.packed == Values{1, 2, 3, 4, 5, 7, 7, 5, 9, 10, 11, 12});
}

TEST_CASE("differences to a base that memory does not hold are found before the commit") {
  Worker worker;
  worker.seed();
  worker.tied[2] = 0x0123; // the copy's element 1
  worker.begin(2);
  const Bytes payload = Worker::ulp_payload();
  worker.flush(payload);
  worker.seal(1, payload.size(), {{Worker::k, digest_of({5, 7, 7, 5})}});
  CHECK_THAT(worker.failure(), contains("'tied'"));
  CHECK(worker.control.heard<wire::Staged>().empty());
  CHECK(worker.packed[5] == 6);
}

TEST_CASE("what differences and positions are decoded to counts against the stage, for each copy") {
  Worker worker(63); // room for a record of two changes of one copy, not of both
  worker.seed();
  worker.begin(2);
  worker.flush(Worker::ulp_payload());
  CHECK_THAT(worker.failure(), contains("actors.applier.stage") && contains("at least 64 are needed"));
  CHECK(worker.at_seed());
}

TEST_CASE("a seed of differences is refused: there is no base") {
  Worker worker;
  worker.begin(1);
  worker.flush(Worker::ulp_payload());
  CHECK_THAT(worker.failure(), contains("differences to a base in a seed"));
  CHECK(worker.poisoned());
}

TEST_CASE("a begin that is refused names its own delivery, and the running one goes on") {
  Worker worker;
  worker.seed();
  worker.stage_k();
  worker.say(wire::Begin{worker.delivery + 1, wire::DeliveryKind::delta, 2, 3});
  const auto failed = worker.control.heard<wire::Failed>();
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].delivery == worker.delivery + 1);
  worker.say(wire::Begin{worker.delivery, wire::DeliveryKind::delta, 1, 2}); // the running one's, again
  CHECK(worker.control.heard<wire::Failed>().size() == 1);
  worker.say(wire::Commit{worker.delivery});
  worker.say(wire::Release{worker.delivery});
  CHECK(worker.failure() == "0 failures");
  CHECK(worker.packed == Values{1, 2, 3, 4, 5, 0x66, 7, 0x88, 9, 10, 11, 12});
  CHECK(worker.work->version == 2);
}

TEST_CASE("a begin that is refused while a flush is due does not stop the flush") {
  Worker worker;
  worker.seed();
  worker.begin(2);
  worker.say(wire::Begin{worker.delivery + 1, wire::DeliveryKind::delta, 2, 3});
  CHECK(worker.control.heard<wire::Failed>().size() == 1);
  const Bytes payload = delta_piece(Worker::block(Worker::k), {1}, {0x66});
  worker.flush(payload);
  worker.seal(1, payload.size(), {{Worker::k, digest_of({5, 0x66, 7, 8})}});
  CHECK(worker.control.heard<wire::Staged>().size() == 1);
  worker.say(wire::Commit{worker.delivery});
  CHECK(worker.failure() == "0 failures");
  CHECK(worker.packed[5] == 0x66);
}

TEST_CASE("memory that somebody else wrote to after it was staged is found when it is read back, and undone") {
  Worker worker;
  worker.seed();
  worker.stage_k();
  worker.packed[5] = 0x1234;
  worker.say(wire::Commit{worker.delivery});
  CHECK_THAT(worker.failure(), contains("'k'") && contains("read back"));
  CHECK(worker.control.heard<wire::Applied>().empty());
}

TEST_CASE("a delta on another base, an older delivery and a version that goes back are refused") {
  Worker worker;
  worker.seed();
  worker.say(wire::Begin{10, wire::DeliveryKind::delta, 3, 4});
  CHECK_THAT(worker.failure(), contains("version 3"));
  worker.say(wire::Begin{1, wire::DeliveryKind::delta, 1, 2});
  CHECK_THAT(worker.failure(), contains("not newer"));
  worker.say(wire::Begin{11, wire::DeliveryKind::delta, 1, 1});
  CHECK_THAT(worker.failure(), contains("never go back"));
  CHECK(worker.at_seed());
  CHECK(worker.work->version == 1);
}

// ------------------------------------------------------------------------------------- an engine with a loop of its
// own

namespace {

/// A worker at its seed whose engine commits from now on, with version 2 waiting for it.
struct PolledWorker : Worker {
  std::shared_ptr<EngineLoop> engine = std::make_shared<EngineLoop>();

  PolledWorker() {
    seed();
    work->engine = engine;
    work->on_commit = [this](Version, std::span<const Change> changes) {
      engine->served({changes.begin(), changes.end()});
    };
    stage_k();
    say(wire::Commit{delivery});
    REQUIRE(engine->poll() == Version{2});
    REQUIRE(at_seed());
    REQUIRE(control.heard<wire::Applied>().empty());
    REQUIRE(pauses == 1); // the seed's
  }

  std::string why_not() {
    const auto ended = engine->wait();
    return ended ? "" : ended.error().message;
  }
};

const Failure gone{Code::peer_failed, "the root is gone"};

} // namespace

TEST_CASE("memory is exchanged when the engine commits, and its commit ends with the release") {
  PolledWorker worker;
  REQUIRE(worker.engine->commit(2));
  CHECK(worker.at_seed());
  worker.system.send(worker.actor, EngineCommits{});
  CHECK_FALSE(worker.at_seed());
  CHECK(worker.control.heard<wire::Applied>().size() == 1);
  CHECK(worker.engine->committing());
  worker.say(wire::Release{worker.delivery});
  REQUIRE_FALSE(worker.engine->committing());
  const auto changes = worker.engine->wait();
  REQUIRE(changes);
  CHECK(changes->size() == 2); // both copies of k
  CHECK(worker.work->version == 2);
}

TEST_CASE("an engine whose commit comes after the undo writes nothing") {
  PolledWorker worker;
  REQUIRE(worker.engine->commit(2));
  worker.say(wire::Undo{worker.delivery, "worker 7 is slow"});
  CHECK_THAT(worker.why_not(),
             contains("version 2 was not committed: worker 7 is slow") && contains("memory holds version 1"));
  worker.system.send(worker.actor, EngineCommits{}); // sent before its failure was known
  CHECK(worker.at_seed());
  CHECK(worker.control.heard<wire::Applied>().empty());
}

TEST_CASE("a root that is lost before the exchange fails the commit; after it, the next root decides") {
  {
    PolledWorker worker;
    worker.system.send(worker.actor, RootLost{gone, false});
    CHECK_FALSE(worker.engine->poll());
    const auto late = worker.engine->commit(2);
    REQUIRE_FALSE(late);
    CHECK_THAT(late.error().message, contains("the root is gone") && contains("memory holds version 1"));
    CHECK(worker.at_seed());
  }
  PolledWorker worker;
  REQUIRE(worker.engine->commit(2));
  worker.system.send(worker.actor, EngineCommits{});
  worker.system.send(worker.actor, RootLost{gone, false});
  CHECK(worker.engine->committing()); // in doubt
  CHECK(worker.work->version == 0);
  worker.system.send(worker.actor, RootLost{gone, true}); // and nobody comes
  REQUIRE_FALSE(worker.engine->committing());
  CHECK_THAT(worker.why_not(), contains("in doubt") && contains("memory holds nothing whole"));
}

TEST_CASE("an engine that is stopped while it waits hears so") {
  PolledWorker worker;
  REQUIRE(worker.engine->commit(2));
  worker.system.send(worker.actor, Stop{});
  CHECK_THAT(worker.why_not(), contains("closed"));
  CHECK(worker.at_seed());
}
