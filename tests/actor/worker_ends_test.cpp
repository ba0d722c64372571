// However a worker's session ends, and whatever was under way: what version() and status() say is what memory holds. A
// whole worker, through the facade, against a root that the test plays.

#include "catch.hpp"
#include "deltawire/deltawire.hpp"
#include "testing.hpp"
#include "unit/scratch_folder.hpp"
#include "unit/text_matchers.hpp"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

using namespace deltawire;
using namespace deltawire::test;

namespace {

using Values = std::vector<std::uint16_t>;
using transport::Connection;

constexpr std::uint64_t session = 0x5E55;
const Values poison(4, 0xFFFF), first{1, 2, 3, 4}, second{1, 0x66, 3, 0x88};

layout::Block block() {
  return flat_block(0, DType::bf16, 4);
}

/// Meets one worker, which has one tensor of four elements, and agrees; from then on it says what it is told to.
class Root {
public:
  Root() : network_(transport::make_inproc_network(wire::framing())) {
    listener_ =
      network_->listen("127.0.0.1:0", [this](std::shared_ptr<Connection> each) { accept(std::move(each)); }).value();
  }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;
  ~Root() { network_->shutdown(Failure{Code::call_order, "the test is over"}); }

  [[nodiscard]] std::string address() const { return listener_->address(); }
  /// Nobody comes in its place.
  void listen_no_more() { listener_.reset(); }
  void die() {
    for (const auto& each : {control_, data_})
      each->abort(Failure{Code::peer_failed, "the root is gone"});
  }

  template <class Message>
  void say(const Message& message) {
    wire::FrameHeader header;
    header.type = Message::type;
    send(*control_, header, wire::encode(message));
  }
  void say_nonsense(std::uint16_t type) {
    wire::FrameHeader header;
    header.type = type;
    send(*control_, header, transport::Buffer(3));
  }
  void flush(std::uint64_t delivery, transport::Buffer payload) {
    wire::FrameHeader header;
    header.type = static_cast<std::uint16_t>(wire::FrameType::flush);
    header.delivery = delivery;
    send(*data_, header, std::move(payload));
  }

  /// The next of these; others are forgotten.
  template <class Message>
  Message hear() {
    std::unique_lock lock(mutex_);
    for (;;) {
      const bool came = came_.wait_for(lock, std::chrono::seconds(20), [this] { return !heard_.empty(); });
      INFO("the root waits for frames of type " << Message::type);
      REQUIRE(came);
      const auto [type, body] = std::move(heard_.front());
      heard_.erase(heard_.begin());
      if (type == Message::type)
        return wire::decode<Message>(body).value();
    }
  }

private:
  void accept(std::shared_ptr<Connection> accepted) {
    transport::Handlers handlers;
    handlers.on_closed = [](const Failure&) {};
    handlers.on_frame = [this, each = accepted.get()](transport::Incoming&& frame) {
      take(*each, wire::read_header(std::span<const std::byte, wire::header_bytes>(frame.header)).value().type,
           std::move(frame.body));
    };
    (control_ ? data_ : control_) = accepted; // until it has said which it is
    accepted->start(std::move(handlers));
  }

  void take(Connection& from, std::uint16_t type, transport::Buffer body) {
    const std::vector<layout::SlotSpec> slots{{"w", DType::bf16, {4}}};
    switch (type) {
    case wire::Hello::type: {
      const bool control = wire::decode<wire::Hello>(body).value().channel == wire::Channel::control;
      if (control && control_.get() != &from)
        std::swap(control_, data_);
      wire::FrameHeader header;
      header.type = wire::Welcome::type;
      send(from, header, wire::encode(wire::Welcome{session}));
      if (++hellos_ == 2)
        say(wire::Catalogue{slots});
      return;
    }
    case wire::DeclareWorker::type:
      return say(wire::Agreement{slots, {{0, 4}}, 1, 1, {block()}});
    case wire::Agreed::type:
      return say(wire::Connected{});
    default: {
      const std::lock_guard lock(mutex_);
      heard_.emplace_back(type, std::move(body));
      came_.notify_all();
    }
    }
  }

  static void send(Connection& to, wire::FrameHeader header, transport::Buffer payload) {
    header.session = session;
    wire::describe_payload(header, payload);
    const wire::HeaderBytes bytes = wire::write_header(header);
    to.send({{bytes.begin(), bytes.end()}, std::make_shared<const transport::Buffer>(std::move(payload))});
  }

  std::unique_ptr<transport::Network> network_;
  std::unique_ptr<transport::Listener> listener_;
  std::shared_ptr<Connection> control_, data_; ///< set while the worker connects, one hello after the other
  std::atomic<int> hellos_{0};
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::pair<std::uint16_t, transport::Buffer>> heard_;
};

/// Where the session ends.
enum class At { empty, seeding, seeded, serving, staging, refusing, asked, in_doubt, read_back_wrong, found_dirty };
enum class End { dies, goodbye, failed, nonsense, leaves };

struct Stands {
  Version version = 0;
  std::string state;
  Values memory;
};

/// By the design (section 6.2), whatever the end is.
Stands expected(At at) {
  switch (at) {
  case At::empty:
    return {0, "empty", poison};
  case At::seeding:
    return {0, "dirty", first};
  case At::seeded:
    return {0, "in_doubt", first};
  case At::serving:
  case At::staging:
  case At::refusing:
  case At::asked:
    return {1, "serving", first};
  case At::in_doubt:
    return {0, "in_doubt", second};
  case At::read_back_wrong:
  case At::found_dirty:
    return {0, "dirty", {1, 0xBAD, 3, 4}};
  }
  return {};
}

class Worker {
public:
  Worker(bool polled, const std::string& reconnect) : polled_(polled) {
    WorkerOptions options;
    options.overrides = {fmt::format("transport.master=\"{}\"", root.address()), "actors.sender.transport=inproc"};
    if (!reconnect.empty())
      options.overrides.push_back("update.reconnect=" + reconnect);
    options.polled = polled;
    subscriber = std::make_unique<Subscriber>(Subscriber::open(
      folder_.write("topology.toml", "[trainer]\nmesh = [[\"fsdp\", 1]]\n[worker]\nmesh = [[\"dp\", 1]]\n"), options));
    subscriber->bind({.name = "w", .dtype = DType::bf16, .shape = {4}, .data = memory.data()});
    if (!polled)
      hook();
    subscriber->start();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    subscriber->close();
    if (engine_.joinable())
      engine_.join();
  }

  void reach(At at) {
    if (at == At::empty)
      return;
    root.say(wire::Begin{1, wire::DeliveryKind::seed, 0, 1});
    let_engine_commit();
    (void)root.hear<wire::Ready>();
    const auto seed = seed_piece(block(), first);
    root.flush(1, seed);
    (void)root.hear<wire::FlushStaged>();
    if (at == At::seeding)
      return;
    root.say(wire::Seal{1, 1, seed.size(), {{0, digest_of(first)}}});
    (void)root.hear<wire::Staged>();
    root.say(wire::Commit{1});
    (void)root.hear<wire::Applied>();
    if (at == At::seeded)
      return;
    root.say(wire::Release{1});
    (void)root.hear<wire::Released>();
    if (engine_.joinable())
      engine_.join();
    if (at == At::serving)
      return;
    if (at == At::found_dirty) {
      memory[1] = 0xBAD;
      root.say(wire::Audit{1, 1, {{0, digest_of(first)}}});
      REQUIRE_FALSE(root.hear<wire::Audited>().error.empty());
      return;
    }
    root.say(wire::Begin{2, wire::DeliveryKind::delta, 1, 2});
    const auto delta = delta_piece(block(), {1, 3}, {0x66, 0x88});
    root.flush(2, delta);
    root.say(wire::Seal{2, 1, delta.size(), {{0, digest_of(second)}}});
    (void)root.hear<wire::Staged>();
    if (at == At::staging)
      return;
    if (at == At::read_back_wrong)
      memory[1] = 0xBAD;
    refuses = at == At::refusing;
    root.say(wire::Commit{2});
    if (at == At::asked)
      return (void)polled();
    if (at != At::refusing)
      let_engine_commit();
    if (at == At::in_doubt)
      (void)root.hear<wire::Applied>();
    else
      (void)root.hear<wire::Failed>();
  }

  void end(End end) {
    if (end != End::leaves)
      root.listen_no_more();
    switch (end) {
    case End::dies:
      return root.die();
    case End::goodbye:
      return root.say(wire::Goodbye{});
    case End::failed:
      return root.say(wire::Failed{Code::peer_failed, "rank 1 is lost", 0});
    case End::nonsense:
      return root.say_nonsense(wire::Begin::type);
    case End::leaves:
      return subscriber->close();
    }
  }

  /// What wait() throws; empty: it returned.
  std::string thrown() const {
    try {
      subscriber->wait();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  Root root;
  Values memory = poison;
  std::vector<Version> resumed; ///< read once the session has ended
  std::atomic<bool> refuses{false};
  std::unique_ptr<Subscriber> subscriber;

private:
  void hook() {
    subscriber->on_pause([this] {
      if (refuses)
        throw std::runtime_error("the engine does not stop");
    });
    subscriber->on_resume([this](Version version) { resumed.push_back(version); });
  }
  Version polled() {
    for (;;) {
      if (const auto version = subscriber->poll())
        return *version;
      std::this_thread::yield();
    }
  }
  void let_engine_commit() {
    if (!polled_)
      return;
    engine_ = std::thread([this, version = polled()] {
      try {
        (void)subscriber->commit(version);
      } catch (const Error&) { // that is how most of these end
      }
    });
  }

  ScratchFolder folder_;
  bool polled_;
  std::thread engine_;
};

void check(At at, End end, bool polled, const std::string& reconnect) {
  CAPTURE(static_cast<int>(at), static_cast<int>(end), polled, reconnect);
  const Stands stands = expected(at);
  Worker worker(polled, reconnect);
  worker.reach(at);
  worker.end(end);
  const std::string thrown = worker.thrown();
  // At once: who hears of the end looks there next.
  CHECK(worker.subscriber->version() == stands.version);
  const WorkerStatus status = worker.subscriber->status();
  CHECK(status.version == stands.version);
  CHECK(status.state == stands.state);
  CHECK_FALSE(status.connected);
  CHECK(worker.memory == stands.memory);
  const bool well = end == End::leaves || (end == End::goodbye && stands.state != "in_doubt");
  CHECK(thrown.empty() == well);
  worker.subscriber->close();
  CHECK(worker.subscriber->version() == stands.version);
  const bool goes_on = at == At::refusing && end != End::leaves;
  CHECK(worker.resumed == (goes_on ? std::vector<Version>{1} : std::vector<Version>{}));
}

void check_all(std::initializer_list<End> ends, const std::string& reconnect) {
  for (const At at : {At::empty, At::seeding, At::seeded, At::serving, At::staging, At::refusing, At::asked,
                      At::in_doubt, At::read_back_wrong, At::found_dirty})
    for (const End end : ends)
      for (const bool polled : {false, true})
        if (at != (polled ? At::refusing : At::asked))
          check(at, end, polled, reconnect);
}

} // namespace

TEST_CASE("whatever was under way when a worker's session ends, version and status are what memory holds") {
  check_all({End::dies, End::goodbye, End::failed, End::nonsense, End::leaves}, "");
}

TEST_CASE("the same where the next trainer is waited for, and does not come") {
  check_all({End::dies, End::goodbye, End::leaves}, "50ms");
}
