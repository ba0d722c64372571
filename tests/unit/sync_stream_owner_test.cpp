// Contracts of sync/stream_owner.hpp and sync/device_gather.hpp, a rule a test, over a communicator that does what the
// test says. The random schedules are in sync_device_gather_test.cpp. They prove the machines, not NCCL.
#include "catch.hpp"
#include "refusal.hpp"
#include "text_matchers.hpp"

#include "sync/device_gather.hpp"

#include <algorithm>

namespace {

using namespace deltawire;
using namespace deltawire::sync;
using transport::Progress;
using State = StreamOwner::State;

/// Does what it is told, and writes down what is asked of it.
class Scripted final : public transport::Communicator {
public:
  Result<transport::UniqueId> make_id() override { return transport::UniqueId{}; }
  Result<Progress> begin(const transport::UniqueId&, std::uint32_t, std::uint32_t) override {
    calls += "begin ";
    joined = false;
    return Progress::under_way;
  }
  Result<Progress> poll() override {
    if (error)
      return tl::make_unexpected(*error);
    return joined && enqueued ? Progress::done : Progress::under_way;
  }
  Result<void> group_begin() override {
    calls += "( ";
    return {};
  }
  Result<void> send(std::span<const std::byte>, std::uint32_t peer) override { return transfer("send", peer); }
  Result<void> receive(std::span<std::byte>, std::uint32_t peer) override { return transfer("receive", peer); }
  Result<Progress> group_end() override {
    calls += ") ";
    return enqueued ? Progress::done : Progress::under_way;
  }
  Result<void> record(std::uint32_t slot) override {
    calls += fmt::format("record{} ", slot);
    return {};
  }
  Result<Progress> reached(std::uint32_t slot) override {
    return reached_slots.contains(slot) ? Progress::done : Progress::under_way;
  }
  void abort() override { calls += "abort "; }
  Result<Progress> quiet() override { return is_quiet ? Progress::done : Progress::under_way; }
  Result<std::uint64_t> free_memory() override { return 0; }

  std::string calls;
  bool joined = false, enqueued = true, is_quiet = false;
  std::optional<Failure> error;
  std::uint32_t bad_peer = 99;
  std::set<std::uint32_t> reached_slots;

private:
  Result<void> transfer(const char* what, std::uint32_t peer) {
    calls += fmt::format("{}{} ", what, peer);
    if (peer == bad_peer)
      return fail(Code::peer_failed, "remote process has gone");
    return {};
  }
};

struct Bench {
  Scripted device;
  StreamOwner owner{device, 2, {5, 5, 5}};
  std::vector<std::byte> memory = std::vector<std::byte>(64);
  std::vector<StreamOwner::Notice> told;

  Bench() { owner.open_window(); }

  void tick(int times = 1) {
    for (; times > 0; --times)
      owner.tick();
    for (auto& notice : owner.notices())
      told.push_back(std::move(notice));
  }
  StreamOwner::Hold hold() { return owner.hold().value(); }
  void connect(std::uint64_t epoch = 1) {
    const auto held = hold();
    REQUIRE(owner.begin(held, epoch, {}, 3, 0));
    device.joined = true;
    tick();
    owner.release(held);
    REQUIRE(owner.state() == State::ready);
    device.calls.clear();
    told.clear();
  }
  /// A round from ranks 1 and 2. Keeps its hold.
  StreamOwner::Hold launch(std::uint64_t tag) {
    const auto held = hold();
    const auto slot = owner.take_slot().value();
    const std::span<std::byte> all(memory);
    REQUIRE(owner.launch(held, {tag,
                                fmt::format("round {} from rank 1, rank 2", tag),
                                slot,
                                {{false, 1, all.first(8)}, {false, 2, all.subspan(8, 8)}}}));
    return held;
  }
  template <class T>
  std::vector<T> all_told() const {
    std::vector<T> found;
    for (const auto& notice : told)
      if (const auto* one = std::get_if<T>(&notice))
        found.push_back(*one);
    return found;
  }
};

} // namespace

TEST_CASE("a round is one group, and its event is recorded when the group is enqueued, not before") {
  Bench bench;
  bench.connect();
  bench.device.enqueued = false;
  bench.launch(7);
  CHECK(bench.device.calls == "( receive1 receive2 ) ");
  bench.tick(2);
  CHECK(bench.device.calls == "( receive1 receive2 ) ");
  bench.device.enqueued = true;
  bench.tick();
  CHECK(bench.device.calls == "( receive1 receive2 ) record0 ");
  CHECK(bench.told.empty());
  bench.device.reached_slots = {0};
  bench.tick();
  const auto ended = bench.all_told<StreamOwner::Ended>();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].tag == 7);
  CHECK(ended[0].how);
}

TEST_CASE("events that are seen out of order end their operations in order") {
  Bench bench;
  bench.connect();
  bench.launch(1);
  bench.launch(2);
  bench.device.reached_slots = {1};
  bench.tick();
  CHECK(bench.told.empty());
  bench.device.reached_slots = {0, 1};
  bench.tick();
  const auto ended = bench.all_told<StreamOwner::Ended>();
  REQUIRE(ended.size() == 2);
  CHECK(ended[0].tag == 1);
  CHECK(ended[1].tag == 2);
}

TEST_CASE(
  "an error in the middle of a group ends the group, then the communicator, and names the round and the cause") {
  Bench bench;
  bench.connect();
  bench.device.bad_peer = 2;
  bench.launch(7);
  CHECK(bench.device.calls == "( receive1 receive2 ) abort ");
  bench.tick();
  const auto ended = bench.all_told<StreamOwner::Ended>();
  REQUIRE(ended.size() == 1);
  test::check_refused(ended[0].how, Code::peer_failed,
                      {"communicator 1", "round 7 from rank 1, rank 2", "remote process has gone"});
  CHECK(bench.all_told<StreamOwner::Aborted>().size() == 1);
}

TEST_CASE("an event that was reached does not count where there is an error to tell") {
  Bench bench;
  bench.connect();
  bench.launch(7);
  bench.device.reached_slots = {0};
  bench.device.error = Failure{Code::peer_failed, "a network error"};
  bench.tick();
  const auto ended = bench.all_told<StreamOwner::Ended>();
  REQUIRE(ended.size() == 1);
  test::check_refused(ended[0].how, Code::peer_failed, {"a network error"});
}

TEST_CASE("the deadline is for a lack of progress, and a completion after it is dropped") {
  Bench bench;
  bench.connect();
  bench.launch(1);
  bench.launch(2);
  bench.tick(4);
  bench.device.reached_slots = {0}; // just in time: the second has the whole limit again
  bench.tick(5);
  REQUIRE(bench.owner.state() == State::ready);
  bench.tick(3);
  REQUIRE(bench.owner.state() == State::aborting);
  const auto ended = bench.all_told<StreamOwner::Ended>();
  REQUIRE(ended.size() == 2);
  CHECK(ended[0].how);
  test::check_refused(ended[1].how, Code::timed_out, {"round 2 from rank 1, rank 2", "5 ticks"});
  bench.told.clear();
  bench.device.reached_slots = {0, 1}; // late
  bench.tick(3);
  CHECK(bench.told.empty());
}

TEST_CASE("an abort while others wait tells each of them once, and a window closes when the device is quiet") {
  Bench bench;
  bench.connect();
  const auto first = bench.launch(1), second = bench.launch(2);
  REQUIRE(bench.owner.close_window(77)); // the trainer waits for captured
  bench.tick();
  CHECK(bench.told.empty());
  bench.owner.abort({Code::peer_failed, "rank 2: its process has ended"});
  bench.owner.release(first);
  bench.owner.release(second);
  bench.tick(2);
  const auto ended = bench.all_told<StreamOwner::Ended>();
  REQUIRE(ended.size() == 2);
  for (const auto& one : ended)
    test::check_refused(one.how, Code::peer_failed, {"rank 2", "its process has ended"});
  CHECK(bench.all_told<StreamOwner::WindowClosed>().empty());
  bench.device.is_quiet = true;
  bench.tick(2);
  const auto closed = bench.all_told<StreamOwner::WindowClosed>();
  REQUIRE(closed.size() == 1);
  CHECK(closed[0].waiter == 77);
  test::check_refused(closed[0].how, Code::peer_failed, {"rank 2", "its process has ended"});
  CHECK(bench.all_told<StreamOwner::Aborted>().size() == 1);
  CHECK(bench.device.calls.find("abort") == bench.device.calls.rfind("abort"));
}

TEST_CASE("nothing begins outside a window, and slots come back when the device is quiet") {
  Bench bench;
  bench.connect();
  const auto held = bench.launch(1);
  bench.launch(2);
  CHECK_FALSE(bench.owner.take_slot());
  bench.owner.give_slot(0); // its reader is done, its event was not reached
  CHECK_FALSE(bench.owner.take_slot());
  bench.owner.abort({Code::peer_failed, "gone"});
  bench.owner.give_slot(1);
  CHECK_FALSE(bench.owner.take_slot());
  CHECK_FALSE(bench.owner.hold());
  bench.device.is_quiet = true;
  bench.tick();
  CHECK(bench.owner.take_slot());
  bench.owner.release(held);
  test::check_refused(bench.owner.launch(held, {3, "round 3", 0, {}}), Code::call_order, {"round 3", "launch window"});
  REQUIRE(bench.owner.close_window(1));
  CHECK_FALSE(bench.owner.hold());
  test::check_refused(bench.owner.begin(held, 2, {}, 2, 0), Code::call_order, {"outside a launch window"});
  test::check_refused(bench.owner.close_window(2), Code::call_order, {"none is open"});
}

TEST_CASE("the next communicator has a higher epoch, and begins when the last one's device is quiet") {
  Bench bench;
  bench.connect(3);
  const auto held = bench.hold();
  bench.owner.abort({Code::peer_failed, "gone"});
  test::check_refused(bench.owner.begin(held, 4, {}, 3, 0), Code::call_order, {"before communicator 3 has ended"});
  bench.device.is_quiet = true;
  bench.tick();
  test::check_refused(bench.owner.begin(held, 3, {}, 3, 0), Code::call_order, {"after communicator 3"});
  CHECK(bench.owner.begin(held, 4, {}, 3, 0));
}

TEST_CASE("a device that does not become quiet is lost, and everybody who waits for it is told why") {
  Bench bench;
  bench.connect();
  bench.launch(1);
  REQUIRE(bench.owner.close_window(5));
  bench.owner.abort({Code::peer_failed, "rank 1 is gone"});
  bench.tick(6);
  REQUIRE(bench.owner.state() == State::lost);
  const auto closed = bench.all_told<StreamOwner::WindowClosed>();
  REQUIRE(closed.size() == 1);
  test::check_refused(closed[0].how, Code::timed_out, {"lost", "5 ticks", "rank 1 is gone"});
  bench.owner.open_window();
  CHECK_FALSE(bench.owner.hold());
}

TEST_CASE("ranks that do not join in time are the end of a communicator") {
  Bench bench;
  REQUIRE(bench.owner.begin(bench.hold(), 1, {}, 3, 0));
  bench.tick(6);
  const auto begun = bench.all_told<StreamOwner::Begun>();
  REQUIRE(begun.size() == 1);
  test::check_refused(begun[0].how, Code::timed_out, {"communicator 1", "5 ticks"});
}

// ------------------------------------------------------------------------------------------------- between ranks

namespace {

struct Root {
  Scripted device;
  StreamOwner owner{device, 1, {50, 50, 50}};
  std::vector<std::byte> memory = std::vector<std::byte>(64);
  DeviceGatherRoot gather{owner, {memory}, {"host-a, GPU 0", uuid(0)}, 3, {20, 5}};

  static DeviceUuid uuid(int last) {
    DeviceUuid id{};
    id[15] = static_cast<std::byte>(last);
    return id;
  }

  /// All ranks hold their windows, join, and send their first bytes. Returns the epoch.
  std::uint64_t connect() {
    if (!owner.window_is_open()) {
      gather.open_window();
      REQUIRE(gather.on(1, DeviceHello{"host-a, GPU 1", uuid(1)}));
      REQUIRE(gather.on(2, DeviceHello{"host-b, GPU 0", uuid(2)}));
    }
    (void)gather.messages();
    REQUIRE(gather.connect(1));
    const auto proposed = gather.messages();
    REQUIRE(proposed.size() == 2);
    const auto [epoch, step, begins, round, bytes] = std::get<StepProposed>(proposed[0].message);
    for (const std::uint32_t rank : {1u, 2u})
      REQUIRE(gather.on(rank, StepAnswered{epoch, step, true, ""}));
    device.joined = true;
    device.reached_slots = {0};
    gather.tick();
    gather.tick();
    for (const std::uint32_t rank : {1u, 2u})
      REQUIRE(gather.on(rank, StepEnded{epoch, step, 0}));
    REQUIRE(gather.ready());
    (void)gather.messages();
    (void)gather.notices();
    return epoch;
  }
};

} // namespace

TEST_CASE("the same GPU twice is found at start-up, with both names") {
  Root root;
  root.gather.open_window();
  REQUIRE(root.gather.connect(1));
  REQUIRE(root.gather.on(1, DeviceHello{"host-a, GPU 1", Root::uuid(7)}));
  const auto second = root.gather.on(2, DeviceHello{"host-a, GPU 1 again", Root::uuid(7)});
  test::check_refused(second, Code::disagreement,
                      {"rank 1 (host-a, GPU 1)", "rank 2 (host-a, GPU 1 again)",
                       "GPU-00000000-0000-0000-0000-000000000007", "CUDA_VISIBLE_DEVICES"});
  const auto told = root.gather.notices();
  REQUIRE(told.size() == 1);
  test::check_refused(std::get<DeviceGatherRoot::Connected>(told[0]).how, Code::disagreement, {"rank 1", "rank 2"});
  CHECK(root.device.calls.empty()); // nothing was begun
}

TEST_CASE("ranks that were not heard of are named when the deadline has passed") {
  Root root;
  root.gather.open_window();
  REQUIRE(root.gather.connect(1));
  REQUIRE(root.gather.on(1, DeviceHello{"host-a, GPU 1", Root::uuid(1)}));
  for (int i = 0; i < 21; ++i)
    root.gather.tick();
  const auto told = root.gather.notices();
  REQUIRE(told.size() == 1);
  test::check_refused(std::get<DeviceGatherRoot::Connected>(told[0]).how, Code::timed_out,
                      {"not heard of: rank 2", "20 ticks"});
}

TEST_CASE("a rank outside its launch window is named, and asked again until the deadline") {
  Root root;
  root.gather.open_window();
  REQUIRE(root.gather.on(1, DeviceHello{"host-a, GPU 1", Root::uuid(1)}));
  REQUIRE(root.gather.on(2, DeviceHello{"host-b, GPU 0", Root::uuid(2)}));
  REQUIRE(root.gather.connect(1));
  int proposed = 0;
  for (int i = 0; i < 21; ++i) {
    for (const auto& [rank, message] : root.gather.messages())
      if (const auto* step = std::get_if<StepProposed>(&message); step != nullptr && rank == 2) {
        ++proposed;
        REQUIRE(root.gather.on(1, StepAnswered{step->epoch, step->step, true, ""}));
        REQUIRE(root.gather.on(2, StepAnswered{step->epoch, step->step, false, "it is outside a launch window"}));
      }
    root.gather.tick();
  }
  CHECK(proposed > 10);
  const auto told = root.gather.notices();
  REQUIRE(told.size() == 1);
  test::check_refused(std::get<DeviceGatherRoot::Connected>(told[0]).how, Code::timed_out,
                      {"rank 2 (host-b, GPU 0)", "outside a launch window"});
  CHECK(root.device.calls.empty());
}

TEST_CASE("a round that a rank does not answer in time goes through host memory, and the rank is named") {
  Root root;
  const std::uint64_t epoch = root.connect();
  REQUIRE(root.gather.gather(5, {{1, 8}, {2, 9}}));
  const auto proposed = root.gather.messages();
  REQUIRE(proposed.size() == 2);
  const auto step = std::get<StepProposed>(proposed[0].message).step;
  REQUIRE(root.gather.on(1, StepAnswered{epoch, step, true, ""}));
  for (int i = 0; i < 5; ++i)
    root.gather.tick();
  CHECK(root.gather.notices().empty());
  root.gather.tick();
  const auto told = root.gather.notices();
  REQUIRE(told.size() == 1);
  const auto& host = std::get<DeviceGatherRoot::ThroughHost>(told[0]);
  CHECK(host.round == 5);
  CHECK_THAT(host.why, test::contains("rank 2 (host-b, GPU 0)"));
  CHECK(host.why.find("rank 1") == std::string::npos);
  const auto cancelled = root.gather.messages();
  REQUIRE(cancelled.size() == 2);
  CHECK(std::get<StepCancelled>(cancelled[0].message).step == step);
  REQUIRE(root.gather.on(2, StepAnswered{epoch, step, true, ""})); // late: nothing is launched
  root.gather.tick();
  CHECK(root.gather.messages().empty());
  CHECK(root.gather.ready());
}

TEST_CASE("what is said of an epoch that has ended does not touch the next one") {
  Root root;
  const std::uint64_t first = root.connect();
  root.gather.abort({Code::peer_failed, "called off"});
  root.device.is_quiet = true;
  root.gather.tick();
  const std::uint64_t second = root.connect();
  REQUIRE(second > first);
  REQUIRE(root.gather.on(1, EpochAborted{first, {Code::peer_failed, "late news"}}));
  CHECK(root.gather.ready());
  CHECK(root.owner.state() == State::ready);
  REQUIRE(root.gather.on(1, EpochAborted{second, {Code::peer_failed, "news"}}));
  CHECK_FALSE(root.gather.ready());

  Scripted device;
  StreamOwner owner(device, 1, {50, 50, 50});
  std::vector<std::byte> memory(64);
  DeviceGatherRank rank(owner, {memory}, {"host-b", Root::uuid(3)}, 2, 3, {50});
  rank.open_window();
  REQUIRE(rank.on(StepProposed{7, 1, true, 0, warm_up_bytes}));
  REQUIRE(rank.on(StepGo{7, 1, {}}));
  REQUIRE(rank.on(EpochAborted{6, {Code::peer_failed, "late news"}}));
  CHECK(owner.state() == State::beginning);
  REQUIRE(rank.on(EpochAborted{7, {Code::peer_failed, "news"}}));
  CHECK(owner.state() == State::aborting);
}

TEST_CASE("without a communicator a round goes through host memory, and one without bytes goes nowhere") {
  Root root;
  REQUIRE(root.gather.gather(5, {{1, 0}, {2, 9}}));
  REQUIRE(root.gather.gather(6, {{1, 0}, {2, 0}}));
  const auto told = root.gather.notices();
  REQUIRE(told.size() == 2);
  CHECK(std::get<DeviceGatherRoot::ThroughHost>(told[0]).round == 5);
  CHECK_FALSE(std::get<DeviceGatherRoot::Gathered>(told[1]).slot);
  CHECK(root.gather.messages().empty());
  CHECK_FALSE(root.gather.gather(7, {{2, 1}, {1, 1}}));
  CHECK_FALSE(root.gather.gather(7, {{0, 1}}));
  CHECK_FALSE(root.gather.gather(7, {{3, 1}}));
}

TEST_CASE("what no honest peer says is refused") {
  Root root;
  test::check_refused(root.gather.on(3, DeviceHello{}), Code::invalid_input, {"rank 3 of 3"});
  test::check_refused(root.gather.on(0, DeviceHello{}), Code::invalid_input, {"rank 0"});
  REQUIRE(root.gather.on(1, DeviceHello{"host-a", Root::uuid(1)}));
  test::check_refused(root.gather.on(1, DeviceHello{"host-a", Root::uuid(2)}), Code::invalid_input, {"twice"});
  test::check_refused(root.gather.on(1, StepAnswered{1, 1, true, ""}), Code::invalid_input, {"nobody proposed"});
  test::check_refused(root.gather.on(1, StepEnded{0, 4, 0}), Code::invalid_input, {"step 4"});
  test::check_refused(root.gather.on(1, EpochAborted{9, {}}), Code::invalid_input, {"communicator 9"});

  Scripted device;
  StreamOwner owner(device, 1, {5, 5, 5});
  std::vector<std::byte> memory(64);
  DeviceGatherRank rank(owner, {memory}, {"host-b", Root::uuid(3)}, 2, 3, {5});
  test::check_refused(rank.on(StepGo{1, 1, {}}), Code::invalid_input, {"step 1", "does not hold"});
  test::check_refused(rank.on(StepProposed{1, 1, false, 0, 8}), Code::invalid_input, {"communicator 1"});
  test::check_refused(rank.on(StepProposed{1, 1, true, 0, 0}), Code::invalid_input, {"0 bytes"});
}

TEST_CASE("a rank gives its window back when the root says nothing, and a go that comes later ends the epoch") {
  Scripted device;
  StreamOwner owner(device, 1, {5, 5, 5});
  std::vector<std::byte> memory(64);
  DeviceGatherRank rank(owner, {memory}, {"host-b", Root::uuid(3)}, 2, 3, {5});
  rank.open_window();
  REQUIRE(rank.on(StepProposed{1, 1, true, 0, warm_up_bytes}));
  REQUIRE(rank.close_window(9));
  CHECK(rank.notices().empty());
  for (int i = 0; i < 6; ++i)
    rank.tick();
  const auto told = rank.notices();
  REQUIRE(told.size() == 1);
  CHECK(std::get<StreamOwner::WindowClosed>(told[0]).how);
  const auto messages = rank.messages();
  REQUIRE(messages.size() == 3); // hello, held, and no more
  CHECK(std::get<EpochAborted>(messages[2]).epoch == 1);
  REQUIRE(rank.on(StepGo{1, 1, {}}));
  CHECK(device.calls.empty());
}
