// Calls out of order, updates that overlap, peers that leave or disagree: what the facade promises about them.

#include "calls.hpp"
#include "catch.hpp"
#include "session.hpp"
#include "unit/text_matchers.hpp"

#include <fmt/format.h>

#include <future>
#include <memory>
#include <thread>

using namespace deltawire;
using namespace deltawire::test;

namespace {

void seed_and_check(Session& session, const Scenario& scenario) {
  session.publish(scenario.tensors, 1);
  for (const Outcome& outcome : session.wait()) {
    CHECK(outcome.error_message == "");
    CHECK(outcome.committed);
    CHECK(outcome.version == 1);
  }
  CHECK(session.compare(scenario.tensors) == "");
}

} // namespace

TEST_CASE("calls of a publisher out of order name the call and change nothing") {
  const Scenario scenario = two_ranks();
  Session session(scenario);
  Publisher& root = session.rank(0);
  std::uint16_t value = 0;
  CHECK_THAT(error_of(Code::call_order, [&] { (void)root.publish(1); }), contains("publish() before connect()"));
  CHECK_THAT(error_of(Code::invalid_argument,
                      [&] {
                        root.add({"w", DType::bf16, {8}, &value, {}});
                      }),
             contains("add('w')"));
  CHECK_THAT(error_of(Code::invalid_argument, [&] { root.rebind("x", &value); }), contains("rebind('x')"));
  CHECK_THAT(error_of(Code::invalid_argument, [&] { root.rebind("w", nullptr); }), contains("null"));
  CHECK(root.local_shape("w", {8}) == std::vector<std::int64_t>{4});
  connect(session);
  CHECK_THAT(error_of(Code::call_order,
                      [&] {
                        root.add({"late", DType::bf16, {8}, &value, {}});
                      }),
             contains("add('late') after connect()"));
  CHECK_THAT(error_of(Code::call_order, [&] { root.connect(); }), contains("connect() twice"));
  seed_and_check(session, scenario);
  session.close();
  CHECK_THAT(error_of(Code::call_order, [&] { (void)root.publish(2); }), contains("close()"));
  CHECK_THAT(error_of(Code::call_order, [&] { root.connect(); }), contains("close()"));
  root.close(); // again: nothing
}

TEST_CASE("calls of a subscriber out of order name the call and change nothing") {
  const Scenario scenario = two_ranks();
  Session session(scenario);
  Subscriber& worker = session.worker(1);
  std::uint16_t value = 0;
  CHECK_THAT(error_of(Code::call_order, [&] { worker.wait(); }), contains("wait() before start()"));
  CHECK(worker.version() == 0);
  connect(session);
  CHECK(worker.version() == 0);
  CHECK_THAT(error_of(Code::call_order,
                      [&] {
                        worker.bind({"x", DType::bf16, {1}, &value, {}});
                      }),
             contains("bind('x') after start()"));
  CHECK_THAT(error_of(Code::call_order, [&] { worker.on_pause([] {}); }), contains("on_pause() after start()"));
  CHECK_THAT(error_of(Code::call_order, [&] { worker.on_commit({}); }), contains("on_commit() after start()"));
  CHECK_THAT(error_of(Code::call_order, [&] { worker.start(); }), contains("start() after start()"));
  CHECK(worker.parameters().size() == 1);
  seed_and_check(session, scenario);
  session.close();
  CHECK_THAT(error_of(Code::call_order, [&] { (void)worker.parameters(); }), contains("parameters() after close()"));
  CHECK_THAT(error_of(Code::call_order, [&] { worker.start(); }), contains("close()"));
  worker.close(); // again: nothing
}

TEST_CASE("polls and commits out of order name the call and change nothing") {
  const Scenario scenario = two_ranks();
  Session session(scenario, {}, {1});
  Subscriber& hooked = session.worker(0);
  Subscriber& polled = session.worker(1);
  CHECK_THAT(error_of(Code::call_order, [&] { (void)hooked.poll(); }),
             contains("poll(): this subscriber commits by its hooks"));
  CHECK_THAT(error_of(Code::call_order, [&] { (void)hooked.commit(1); }), contains("commit(1): this subscriber"));
  CHECK_THAT(error_of(Code::call_order, [&] { polled.on_pause([] {}); }), contains("on_pause()") && contains("polled"));
  CHECK_THAT(error_of(Code::call_order, [&] { polled.on_commit({}); }), contains("on_commit()") && contains("polled"));
  CHECK_THAT(error_of(Code::call_order, [&] { (void)polled.poll(); }), contains("poll() before start()"));
  CHECK_THAT(error_of(Code::call_order, [&] { (void)polled.commit(1); }), contains("commit(1) before start()"));
  connect(session);
  CHECK_FALSE(polled.poll());
  CHECK_THAT(error_of(Code::call_order, [&] { (void)polled.commit(1); }), contains("commit(1) before a poll()"));
  session.publish(scenario.tensors, 1);
  while (!polled.poll())
    std::this_thread::yield();
  CHECK_THAT(error_of(Code::call_order, [&] { (void)polled.commit(2); }), contains("commit(2): poll() returned 1"));
  CHECK(session.untouched());
  CHECK(polled.poll() == Version{1});
  CHECK(polled.commit(1).size() == 1);
  CHECK_THAT(error_of(Code::call_order, [&] { (void)polled.commit(1); }), contains("commit(1) twice"));
  CHECK(session.wait()[0].committed);
  CHECK(session.compare(scenario.tensors) == "");
}

TEST_CASE("who ends last in a process may do so on another thread than who began, while that one lives on") {
  // What an actor system is tied to by CAF: the threads that made it or spawned in it.
  struct Parts {
    Scenario scenario = two_ranks();
    std::unique_ptr<Session> session;
    std::promise<void> ended;
  };
  const auto parts = std::make_shared<Parts>(); // outlives a failure of this test
  parts->session = std::make_unique<Session>(parts->scenario);
  connect(*parts->session);
  parts->session->close();
  std::thread([parts] {
    parts->session.reset();
    parts->ended.set_value();
  }).detach();
  REQUIRE(parts->ended.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready);
}

TEST_CASE("a name is bound once") {
  const ScratchFolder folder;
  const Scenario scenario = two_ranks();
  auto worker = Subscriber::open(folder.write("topology.toml", scenario.topology), {0, inproc_overrides()});
  std::uint16_t value = 0;
  worker.bind({"x", DType::bf16, {1}, &value, {}});
  CHECK_THAT(error_of(Code::invalid_argument,
                      [&] {
                        worker.bind({"x", DType::bf16, {1}, &value, {}});
                      }),
             contains("bind('x'): bound already"));
}

TEST_CASE("a seat that the mesh does not have is refused") {
  const ScratchFolder folder;
  const std::string topology = folder.write("topology.toml", two_ranks().topology);
  const auto open_rank = [&](std::uint32_t rank, std::uint32_t world) {
    TrainerOptions options;
    options.rank = rank;
    options.world = world;
    options.overrides = inproc_overrides();
    (void)Publisher::open(topology, options);
  };
  CHECK_THAT(error_of(Code::invalid_argument, [&] { open_rank(0, 3); }), contains("the job has 3"));
  CHECK_THAT(error_of(Code::invalid_argument, [&] { open_rank(2, 2); }), contains("rank 2"));
  CHECK_THAT(error_of(Code::invalid_argument,
                      [&] {
                        (void)Subscriber::open(topology, {2, inproc_overrides()});
                      }),
             contains("worker 2"));
}

TEST_CASE("captures run ahead of deliveries and both commit in order") {
  Scenario scenario = two_ranks(1000);
  Session session(scenario, {"actors.differ.inflight=1KiB", "actors.differ.chunk=200B",
                             "actors.gather_queue.max_round=1KiB", "actors.flush_bucket.cap=1KiB"});
  connect(session);
  std::vector<Values> values = scenario.tensors;
  constexpr Version updates = 5;
  for (Version v = 1; v <= updates; ++v) {
    for (std::size_t i = 0; i < 1000; i += v)
      values[0].bits[i] = 1000 * v + i;
    session.publish(values, 10 * v); // returns when captured: memory is scribbled over while deliveries run
  }
  for (Version v = 1; v <= updates; ++v)
    for (const Outcome& outcome : session.wait()) {
      CHECK(outcome.error_message == "");
      CHECK(outcome.committed);
      CHECK(outcome.version == v);
      CHECK(outcome.base == v - 1);
      CHECK(outcome.step == 10 * v);
    }
  CHECK(session.compare(values) == "");
  for (std::size_t w = 0; w < 2; ++w) {
    std::vector<Version> order;
    for (const auto& committed : session.committed(w))
      order.push_back(committed.version);
    CHECK(order == std::vector<Version>{1, 2, 3, 4, 5});
  }
}

TEST_CASE("a commit tells which parameters changed and by how much") {
  Scenario scenario = two_ranks();
  Session session(scenario);
  connect(session);
  seed_and_check(session, scenario);
  std::vector<Values> values = scenario.tensors;
  values[0].bits[1] = 0x1111;
  values[0].bits[6] = 0x6666;
  session.publish(values, 2);
  CHECK(session.wait()[0].committed);
  session.publish(values, 3);
  CHECK(session.wait()[0].committed);
  const auto committed = session.committed(1);
  REQUIRE(committed.size() == 3);
  REQUIRE(committed[0].changes.size() == 1);
  CHECK(committed[0].changes[0].name == "w");
  CHECK(committed[0].changes[0].elements == 8);
  REQUIRE(committed[1].changes.size() == 1);
  CHECK(committed[1].changes[0].elements == 2);
  CHECK(committed[2].changes.empty());
}

TEST_CASE("storage that moved is read from where it is now") {
  const Scenario scenario = two_ranks();
  Session session(scenario);
  connect(session);
  seed_and_check(session, scenario);
  std::vector<Values> values = scenario.tensors;
  values[0].bits[3] = 0x3333;
  HeldMemory moved(scenario.ranks[0][0], session.memory(0, 0).on_gpu() ? trainer_gpus() : nullptr);
  moved.store(values);
  session.rank(0).rebind("w", moved.data());
  session.publish(scenario.tensors, 2); // where it was before
  for (const Outcome& outcome : session.wait()) {
    CHECK(outcome.committed);
    CHECK(outcome.changed == 1);
  }
  CHECK(session.compare(values) == "");
}

TEST_CASE("ranks that publish different steps are both named") {
  const Scenario scenario = two_ranks();
  Session session(scenario);
  connect(session);
  Ticket first = session.rank(0).publish(7);
  Ticket second = session.rank(1).publish(8);
  for (Ticket* ticket : {&first, &second}) {
    ticket->captured();
    const Outcome outcome = ticket->wait();
    CHECK_FALSE(outcome.committed);
    CHECK(static_cast<int>(outcome.error) == static_cast<int>(Code::disagreement));
    CHECK_THAT(outcome.error_message, contains("rank 0"));
    CHECK_THAT(outcome.error_message, contains("rank 1"));
    CHECK_THAT(outcome.error_message, contains("7"));
    CHECK_THAT(outcome.error_message, contains("8"));
  }
  CHECK(session.committed(0).empty());
}

TEST_CASE("workers learn that the trainer closed the session") {
  const Scenario scenario = two_ranks();
  Session session(scenario);
  connect(session);
  seed_and_check(session, scenario);
  std::thread closing([&] {
    session.rank(0).close();
    session.rank(1).close();
  });
  session.worker(0).wait();
  session.worker(1).wait();
  closing.join();
  CHECK(session.worker(0).version() == 1);
}
