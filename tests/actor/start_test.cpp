// A session starts with the processes that are there: workers that hang up, or are replaced by another process while
// nobody has noticed that they are gone, hold up nobody. A root, through the facade, and workers that the test plays.

#include "catch.hpp"
#include "config/topology.hpp"
#include "deltawire/deltawire.hpp"
#include "layout/side.hpp"
#include "testing.hpp"
#include "unit/scratch_folder.hpp"
#include "unit/text_matchers.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

using namespace deltawire;
using namespace deltawire::test;

namespace {

/// How far a worker comes by itself.
enum class Step { one_hello, hellos, declared, agreed };

/// A process of a worker, which comes that far and then says nothing.
class Process {
public:
  Process(transport::Network& network, const config::Topology& topology, std::uint32_t worker,
          std::uint64_t incarnation, Step until)
    : worker_(worker), until_(until),
      side_(layout::Side::compile(topology.worker, layout::Side::Role::worker).value()) {
    for (const wire::Channel channel : {wire::Channel::control, wire::Channel::data}) {
      if (channel == wire::Channel::data && until == Step::one_hello)
        return;
      std::promise<std::shared_ptr<transport::Connection>> connected; // once the root listens
      network.connect(topology.transport.master, std::chrono::steady_clock::now() + std::chrono::seconds(20),
                      [&](Result<std::shared_ptr<transport::Connection>> made) { connected.set_value(made.value()); });
      open_.push_back(connected.get_future().get());
      transport::Handlers handlers;
      handlers.on_closed = [](const Failure&) {};
      handlers.on_frame = [this](transport::Incoming&& frame) { take(std::move(frame)); };
      open_.back()->start(std::move(handlers));
      say(wire::Hello{wire::Role::worker, channel, worker, 2, incarnation, config::fingerprint(topology)});
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void hang_up() {
    for (const auto& each : open_)
      each->abort(Failure{Code::peer_failed, "the process ended"});
  }

  /// Waits until it has come so far, or was refused.
  void await() {
    const std::uint16_t last = until_ == Step::declared ? wire::Agreement::type
                               : until_ == Step::agreed ? wire::Connected::type
                                                        : wire::Welcome::type;
    std::unique_lock lock(mutex_);
    REQUIRE(came_.wait_for(lock, std::chrono::seconds(20), [&] { return heard_ >= last || !refusal_.empty(); }));
  }
  [[nodiscard]] std::string refusal() {
    const std::lock_guard lock(mutex_);
    return refusal_;
  }

private:
  template <class Message>
  void say(const Message& message) {
    wire::FrameHeader header;
    header.type = Message::type;
    header.session = session_;
    transport::Buffer payload = wire::encode(message);
    wire::describe_payload(header, payload);
    const wire::HeaderBytes bytes = wire::write_header(header);
    const auto& to = Message::type == wire::Hello::type ? open_.back() : open_.front();
    to->send({{bytes.begin(), bytes.end()}, std::make_shared<const transport::Buffer>(std::move(payload))});
  }

  void take(transport::Incoming&& frame) {
    const auto header = wire::read_header(std::span<const std::byte, wire::header_bytes>(frame.header)).value();
    if (header.type == wire::Welcome::type)
      session_ = header.session;
    if (header.type == wire::Catalogue::type && until_ >= Step::declared) {
      const std::vector<layout::LocalTensor> tensors{{"w", DType::bf16, {4}, {}}};
      say(wire::DeclareWorker{
        side_.declare_worker(wire::decode<wire::Catalogue>(frame.body).value().slots, tensors, worker_).value()});
    }
    if (header.type == wire::Agreement::type && until_ == Step::agreed)
      say(wire::Agreed{});
    const std::lock_guard lock(mutex_);
    heard_ = std::max(heard_, header.type); // they ascend
    if (header.type == wire::Refused::type)
      refusal_ = wire::decode<wire::Refused>(frame.body).value().message;
    came_.notify_all();
  }

  std::uint32_t worker_;
  Step until_;
  layout::Side side_;
  std::vector<std::shared_ptr<transport::Connection>> open_; ///< control, data
  std::atomic<std::uint64_t> session_{0};
  std::mutex mutex_;
  std::condition_variable came_;
  std::uint16_t heard_ = 0;
  std::string refusal_;
};

/// A root that waits for two workers.
class Start {
public:
  explicit Start(const std::string& connect) {
    static std::atomic<int> number{0};
    const std::vector<std::string> overrides{fmt::format("transport.master=\"127.0.0.1:{}\"", 30000 + ++number),
                                             "actors.gather_queue.transport=inproc", "actors.sender.transport=inproc",
                                             "update.connect=" + connect};
    const std::string file =
      folder_.write("topology.toml", "[trainer]\nmesh = [[\"fsdp\", 1]]\n[worker]\nmesh = [[\"dp\", 2]]\n");
    topology = config::load(file, overrides).value();
    publisher_ = std::make_unique<Publisher>(Publisher::open(file, {.rank = 0, .world = 1, .overrides = overrides}));
    publisher_->add({.name = "w", .dtype = DType::bf16, .full_shape = {4}, .data = memory_.data()});
    thread_ = std::thread([this] {
      try {
        publisher_->connect();
      } catch (const Error& error) {
        thrown_ = error.what();
      }
    });
  }
  Start(const Start&) = delete;
  Start& operator=(const Start&) = delete;
  ~Start() {
    if (thread_.joinable())
      thread_.join();
    publisher_->close();
    network->shutdown(Failure{Code::call_order, "the test is over"});
  }

  /// It lives as long as this: until the network is shut down its callbacks may run.
  Process& process(std::uint32_t worker, std::uint64_t incarnation, Step until) {
    return *processes_.emplace_back(std::make_unique<Process>(*network, topology, worker, incarnation, until));
  }
  /// What connect() threw; empty: the session runs.
  std::string thrown() {
    thread_.join();
    return thrown_;
  }

  std::unique_ptr<transport::Network> network = transport::make_inproc_network(wire::framing());
  config::Topology topology;

private:
  ScratchFolder folder_;
  std::vector<std::uint16_t> memory_{1, 2, 3, 4};
  std::unique_ptr<Publisher> publisher_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::thread thread_;
  std::string thrown_;
};

} // namespace

TEST_CASE("a worker's new process takes part in the start in place of one that is gone, noticed or not") {
  for (const Step before : {Step::one_hello, Step::hellos, Step::declared, Step::agreed})
    for (const bool noticed : {false, true}) {
      CAPTURE(static_cast<int>(before), noticed);
      Start start("20s");
      // Worker 1 keeps the session from starting; up to the plan it takes part where the step is behind that.
      Process* const first_of_1 = before >= Step::declared ? &start.process(1, 21, Step::declared) : nullptr;
      Process& first_of_0 = start.process(0, 11, before);
      if (before < Step::agreed)
        first_of_0.await();
      else // nothing tells that its word has come: the new process is behind it in any case
        first_of_1->await();
      if (noticed)
        first_of_0.hang_up();
      Process &anew = start.process(0, 12, Step::agreed), &other = start.process(1, 22, Step::agreed);
      CHECK(start.thrown() == "");
      anew.await();
      other.await();
      CHECK(anew.refusal() == "");
      CHECK(other.refusal() == "");
      first_of_0.hang_up();
      if (first_of_1 != nullptr)
        first_of_1->hang_up();
    }
}

TEST_CASE("of two processes that are the same worker the first is told that the second has its place") {
  Start start("20s");
  Process& first = start.process(0, 11, Step::hellos);
  first.await();
  start.process(0, 12, Step::agreed);
  start.process(1, 21, Step::agreed);
  CHECK(start.thrown() == "");
  CHECK_THAT(first.refusal(), contains("worker 0: another process has taken its place") &&
                                contains("two processes have the same index"));
}

TEST_CASE("a worker that is lost after the plan is waited for, and named where it does not come again") {
  Start start("2s");
  start.process(1, 21, Step::agreed);
  Process& lost = start.process(0, 11, Step::declared);
  lost.await();
  lost.hang_up();
  const std::string thrown = start.thrown();
  CHECK_THAT(thrown, contains("not everyone connected") && contains("worker 0 (not connected)"));
  CHECK_THAT(thrown, contains("; lost: worker 0 ("));
  CHECK_THAT(thrown, !contains("worker 1 ("));
}
