// A gather of 480 ranks over the in-process transport, in real frames: what the root holds is what there is to gather,
// counted by an allocator and by the bytes that arrive; not the world times the largest share, as a padded gather
// would. The ranks are their pure machines (plan, capture, GatherRank) and the root is GatherRoot: sessions of 480
// full ranks would be 480 threads and more, and hold memory of their own.

#include "allocations.hpp"
#include "catch.hpp"

#include "delta/capture.hpp"
#include "layout/plan.hpp"
#include "layout/side.hpp"
#include "sync/chunks.hpp"
#include "sync/gather.hpp"
#include "wire/encode.hpp"
#include "wire/frame.hpp"
#include "wire/framing.hpp"

#include <algorithm>

using namespace deltawire;
using namespace deltawire::test;

namespace {

constexpr std::uint32_t world = 480;
constexpr layout::Index columns = 8192; // bf16 elements of a rank
using Bytes = std::vector<std::byte>;

template <class T>
T value_of(Result<T> result) {
  if (!result)
    throw std::runtime_error(result.error().message);
  return std::move(*result);
}

/// One slot, a row a rank, read by one worker.
layout::Plan make_plan() {
  layout::SideRules trainer;
  trainer.mesh = value_of(layout::Mesh::make({{"fsdp", world}}));
  trainer.placements = {{"w", {"fsdp:0"}, ""}};
  const auto side = value_of(layout::Side::compile(trainer, layout::Side::Role::trainer));
  const std::vector<layout::LocalTensor> tensors{{"w", DType::bf16, {world, columns}, {}}};
  std::vector<layout::Declaration> ranks;
  for (layout::Index rank = 0; rank < world; ++rank)
    ranks.push_back(value_of(side.declare_trainer(tensors, rank)));
  const auto reader = value_of(layout::Side::compile({}, layout::Side::Role::worker));
  const std::vector<layout::Declaration> workers{
    value_of(reader.declare_worker(value_of(layout::catalogue(ranks)), tensors, 0))};
  return value_of(layout::compile_plan(ranks, workers, {}, std::uint64_t{256} << 20));
}

template <class Message>
transport::Outgoing frame_of(const Message& message) {
  auto body = std::make_shared<const Bytes>(wire::encode(message));
  wire::FrameHeader header;
  header.type = Message::type;
  wire::describe_payload(header, *body);
  const wire::HeaderBytes bytes = wire::write_header(header);
  return {{bytes.begin(), bytes.end()}, std::move(body)};
}

wire::FrameHeader header_of(const transport::Incoming& frame) {
  return value_of(wire::read_header(std::span(frame.header).first<wire::header_bytes>()));
}

/// A rank: its row, its snapshot, and its end of the connection to the root.
struct Rank {
  std::vector<layout::Block> blocks;
  std::vector<std::uint16_t> memory = std::vector<std::uint16_t>(columns);
  std::vector<std::uint16_t> snapshot = std::vector<std::uint16_t>(columns);
  std::optional<sync::GatherRank> machine;
  std::shared_ptr<transport::Connection> connection;

  void granted(const wire::Grant& grant) {
    auto share = std::make_shared<const Bytes>(value_of(machine->cut(grant)));
    wire::FrameHeader header;
    header.type = static_cast<std::uint16_t>(wire::FrameType::round);
    header.delivery = grant.gather;
    header.sequence = grant.round;
    wire::describe_payload(header, *share);
    const wire::HeaderBytes bytes = wire::write_header(header);
    connection->send({{bytes.begin(), bytes.end()}, std::move(share)});
  }

  /// Captures and encodes its row, and says so.
  void publish(std::uint64_t version, std::size_t piece_limit) {
    delta::PieceEncoder encoder(piece_limit);
    delta::PositionLog log;
    const delta::OwnedBlock owned{&blocks[0], reinterpret_cast<const std::byte*>(memory.data()),
                                  reinterpret_cast<std::byte*>(snapshot.data())};
    wire::CaptureReport report;
    report.version = version;
    report.elements = columns;
    report.changed = delta::capture_changes(owned, 0, columns, &encoder, log).changed;
    delta::EncodedPieces pieces = encoder.take();
    if (const auto offer = machine->add({sync::gather_of(version), 0, std::move(pieces.bytes), std::move(pieces.ends)}))
      connection->send(frame_of(*offer));
    connection->send(frame_of(report));
  }
};

struct Gathered {
  std::uint64_t changed = 0;     ///< as the totals say
  std::uint64_t share_bytes = 0; ///< of all shares that arrived
  std::uint64_t shares = 0;
  std::uint64_t control_bytes = 0; ///< of all other frames that reached the root, headers included
  std::uint64_t held_peak = 0;     ///< what the root had granted or gathered, and not yet let go
  std::uint64_t heap_peak = 0;     ///< all that was allocated during the update, by ranks and root together
};

class Wide {
public:
  explicit Wide(std::uint64_t max_round) : max_round_(max_round), root_(world, plan_.windows, max_round) {
    const auto accepted = [this](std::shared_ptr<transport::Connection> connection) { accept(std::move(connection)); };
    listener_ = value_of(network_->listen("127.0.0.1:1", accepted));
    for (std::uint32_t r = 0; r < world; ++r) {
      Rank& rank = ranks_[r];
      rank.blocks = plan_.ranks[r];
      REQUIRE(rank.blocks.size() == 1);
      rank.machine.emplace(std::vector<std::uint32_t>{rank.blocks[0].window}, plan_.windows);
      network_->connect(
        listener_->address(), std::chrono::steady_clock::now() + std::chrono::seconds(10),
        [&](Result<std::shared_ptr<transport::Connection>> made) { rank.connection = value_of(std::move(made)); });
      REQUIRE(rank.connection);
      rank.connection->start(
        {[&rank](transport::Incoming&& frame) { rank.granted(value_of(wire::decode<wire::Grant>(frame.body))); },
         [](const Failure&) {}});
    }
    REQUIRE(root_ends_.size() == world);
  }
  ~Wide() { network_->shutdown({Code::internal, "the test is over"}); }
  Wide(const Wide&) = delete;
  Wide& operator=(const Wide&) = delete;

  [[nodiscard]] Rank& rank(std::uint32_t index) { return ranks_[index]; }

  /// `ahead`: the ranks say all they have to say before the root begins.
  Gathered update(bool ahead = false) {
    ++version_;
    gathered_ = {};
    owed_ = 0;
    const std::size_t piece_limit = value_of(sync::piece_limit(max_round_, max_round_, max_round_, 2));
    const std::uint64_t before = live_bytes();
    restart_peak();
    if (!ahead)
      root_.begin(sync::gather_of(version_));
    for (Rank& rank : ranks_)
      rank.publish(version_, piece_limit);
    if (ahead) {
      root_.begin(sync::gather_of(version_));
      advance();
    }
    gathered_.heap_peak = peak_bytes() - before;
    REQUIRE(finished_);
    REQUIRE(held_.empty());
    finished_ = false;
    return gathered_;
  }

private:
  void accept(std::shared_ptr<transport::Connection> connection) {
    const auto rank = static_cast<std::uint32_t>(root_ends_.size());
    root_ends_.push_back(connection);
    connection->start(
      {[this, rank](transport::Incoming&& frame) { on_frame(rank, std::move(frame)); }, [](const Failure&) {}});
  }

  void on_frame(std::uint32_t rank, transport::Incoming&& frame) {
    const wire::FrameHeader header = header_of(frame);
    if (header.type == static_cast<std::uint16_t>(wire::FrameType::round)) {
      REQUIRE(value_of(root_.on_share(rank, header.delivery, header.sequence, frame.body.size())));
      gathered_.share_bytes += frame.body.size();
      ++gathered_.shares;
      held_.push_back(std::move(frame.body));
    } else {
      gathered_.control_bytes += frame.header.size() + frame.body.size();
      if (header.type == wire::Offer::type)
        REQUIRE(root_.on_offer(rank, value_of(wire::decode<wire::Offer>(frame.body))));
      else
        REQUIRE(root_.on_report(rank, value_of(wire::decode<wire::CaptureReport>(frame.body))));
    }
    advance();
  }

  /// As the root's gather queue. What was gathered is let go as late as the round's budget allows: when nothing more is
  /// granted without, and at the end.
  void advance() {
    grant();
    if (!held_.empty() && owed_ == gathered_.shares) {
      std::uint64_t bytes = 0;
      for (const Bytes& share : held_)
        bytes += share.size();
      held_.clear();
      root_.consumed(bytes);
      grant();
    }
    while (root_.window_ended())
      grant();
    if (const auto totals = root_.finished()) {
      gathered_.changed = totals->changed;
      finished_ = true;
    }
  }

  void grant() {
    const auto round = root_.next_round();
    owed_ += round.size();
    for (const auto& [rank, grant] : round) {
      gathered_.held_peak = std::max(gathered_.held_peak, root_.held_bytes());
      root_ends_[rank]->send(frame_of(grant));
    }
  }

  std::uint64_t max_round_;
  layout::Plan plan_ = make_plan();
  std::unique_ptr<transport::Network> network_ = transport::make_inproc_network(wire::framing());
  std::unique_ptr<transport::Listener> listener_;
  std::vector<Rank> ranks_ = std::vector<Rank>(world);
  std::vector<std::shared_ptr<transport::Connection>> root_ends_;
  sync::GatherRoot root_;
  std::vector<Bytes> held_; ///< gathered shares that no flush has taken
  std::uint64_t owed_ = 0;  ///< shares granted in this update
  std::uint64_t version_ = 0;
  Gathered gathered_;
  bool finished_ = false;
};

} // namespace

TEST_CASE("of 480 ranks one has a change: the root gathers the bytes of that change, and holds no more") {
  constexpr std::uint64_t max_round = std::uint64_t{64} << 20;
  Wide gather(max_round);
  const Gathered nothing = gather.update();
  CHECK(nothing.changed == 0);
  CHECK(nothing.shares == 0);
  CHECK(nothing.held_peak == 0);

  // One element: a header and a few bytes.
  gather.rank(317).memory[4711] = 0x7FC1;
  const Gathered one = gather.update();
  CHECK(one.changed == 1);
  CHECK(one.shares == 1);
  CHECK(one.share_bytes < 40);
  CHECK(one.held_peak == one.share_bytes);
  // What the ranks say in control is the same but for the one offer, and small: it grows with the world, not with data.
  CHECK(one.control_bytes < nothing.control_bytes + 40);
  CHECK(nothing.control_bytes < world * 400);
  CHECK(one.heap_peak < nothing.heap_peak + 4096);

  // All of one rank: were every share as long as the longest, the root would hold 7.8 MB.
  for (std::uint16_t& element : gather.rank(41).memory)
    element ^= 0x5555;
  const Gathered row = gather.update();
  CHECK(row.changed == columns);
  CHECK(row.shares == 1);
  CHECK(row.held_peak == row.share_bytes);
  CHECK(row.share_bytes >= 2 * columns);
  CHECK(row.share_bytes < 2 * columns + 1024);
  INFO("heap " << row.heap_peak << ", with nothing to gather " << nothing.heap_peak);
  CHECK(row.heap_peak < nothing.heap_peak + 8 * row.share_bytes); // encoder, share, its copy on the wire
  CHECK(row.heap_peak < world * row.share_bytes / 10);
}

TEST_CASE("480 ranks that all have changes are gathered in rounds, and the root never holds more than one") {
  constexpr std::uint64_t max_round = 64 << 10;
  Wide gather(max_round);
  for (std::uint32_t r = 0; r < world; ++r)
    for (std::uint32_t i = 0; i <= r; ++i)
      gather.rank(r).memory[i * 7] = static_cast<std::uint16_t>(1 + r + i);
  const Gathered all = gather.update(true);
  CHECK(all.changed == world * (world + 1) / 2);
  CHECK(all.shares >= world);
  CHECK(all.held_peak <= max_round);
  CHECK(all.held_peak > max_round / 4);
  CHECK(all.share_bytes > max_round); // several rounds
}
