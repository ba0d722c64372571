// Contract of sync/gather.hpp: GatherRank and GatherRoot together in random simulations. Messages of a rank come late
// but in order, the flush bucket consumes late, ranks run ahead with the next version. The oracle knows every piece and
// what of it was said, granted, sent and consumed. Then what no honest peer says, a rule a test.
#include "catch.hpp"
#include "random.hpp"
#include "text_matchers.hpp"

#include "sync/gather.hpp"

#include <fmt/format.h>

#include <functional>
#include <variant>

namespace {

using namespace deltawire;
using sync::EncodedChunk;
using sync::GatherRank;
using sync::GatherRoot;
using sync::GatherTotals;
using Bytes = std::vector<std::byte>;

std::uint64_t uniform(std::mt19937_64& random, std::uint64_t low, std::uint64_t high) {
  return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
}

struct Share {
  std::uint64_t version;
  std::uint64_t round;
  Bytes bytes;
};

/// One rank, its pieces as the oracle knows them, and what is on the way from and to it.
struct Rank {
  std::vector<std::uint32_t> windows_of_chunks;
  std::optional<GatherRank> machine;

  // The version that it captures now.
  std::uint64_t version = 0;
  std::vector<std::uint32_t> to_add; ///< chunks not added, in the order in which they will be
  bool said_nothing = false;         ///< a rank without chunks has said so
  bool reported = false;

  // By version: all pieces in walk order, (window, bytes), and their bytes back to back.
  struct Truth {
    std::vector<std::pair<std::uint32_t, std::uint64_t>> pieces;
    Bytes bytes;
    std::vector<EncodedChunk> chunks;
    std::size_t granted_pieces = 0;
    std::uint64_t granted_bytes = 0;
    Bytes arrived;
    std::uint32_t complete_told = 0; ///< windows complete, as far as it has arrived at the root
    bool report_arrived = false;
  };
  std::map<std::uint64_t, Truth> truth;
  std::uint64_t queued = 0;

  std::deque<std::variant<wire::Offer, wire::CaptureReport>> control_up;
  std::deque<Share> data_up;
  std::deque<wire::Grant> down;
  std::uint64_t granted_outstanding = 0; ///< bytes granted and not arrived
};

struct Counts {
  std::uint64_t versions = 0, windows = 0, rounds = 0, pieces = 0, early_offers = 0, silent_ranks = 0,
                empty_versions = 0;
};

class Simulation {
public:
  Simulation(std::uint64_t schedule, Counts& counts) : random_(test::generator(7200000 + schedule)), counts_(counts) {
    const std::uint64_t ranks = uniform(random_, 1, 16);
    windows_ = static_cast<std::uint32_t>(uniform(random_, 1, 6));
    versions_ = uniform(random_, 1, 4);
    largest_ = uniform(random_, 1, 60);
    max_round_ = largest_ + (uniform(random_, 0, 1) ? 0 : uniform(random_, 0, 4 * largest_));
    ahead_ = uniform(random_, 0, 1);
    density_ = uniform(random_, 0, 4);
    ranks_.resize(ranks);
    for (Rank& rank : ranks_) {
      rank.windows_of_chunks.resize(uniform(random_, 0, 3) == 0 ? 0 : uniform(random_, 1, 10));
      for (std::uint32_t& window : rank.windows_of_chunks)
        window = static_cast<std::uint32_t>(uniform(random_, 0, windows_ - 1));
      std::sort(rank.windows_of_chunks.begin(), rank.windows_of_chunks.end());
      rank.machine.emplace(rank.windows_of_chunks, windows_);
    }
    root_.emplace(static_cast<std::uint32_t>(ranks), windows_, max_round_);
  }

  void run() {
    std::uint64_t idle = 0;
    while (finished_ < versions_) {
      const bool moved = uniform(random_, 0, 3) == 0 ? root_step() : rank_step();
      check();
      idle = moved ? 0 : idle + 1;
      if (idle > 5000)
        FAIL("the gather stands still at version " << active_ << ", window " << window_);
    }
    for (Rank& rank : ranks_) {
      REQUIRE(rank.control_up.empty());
      REQUIRE(rank.data_up.empty());
      REQUIRE(rank.down.empty());
      REQUIRE(rank.machine->queued_bytes() == 0);
    }
    root_->consumed(unconsumed_);
    REQUIRE(root_->held_bytes() == 0);
  }

private:
  /// Makes what a rank finds in a version.
  void start_capture(Rank& rank) {
    ++rank.version;
    rank.said_nothing = rank.reported = false;
    Rank::Truth& truth = rank.truth[rank.version];
    for (std::uint32_t chunk = 0; chunk < rank.windows_of_chunks.size(); ++chunk) {
      EncodedChunk encoded;
      encoded.version = rank.version;
      encoded.chunk = chunk;
      for (std::uint64_t count = uniform(random_, 0, density_); count > 0; --count) {
        const std::uint64_t size = uniform(random_, 0, 2) == 0 ? largest_ : uniform(random_, 1, largest_);
        for (std::uint64_t i = 0; i < size; ++i)
          encoded.bytes.push_back(static_cast<std::byte>(random_()));
        encoded.ends.push_back(encoded.bytes.size());
        truth.pieces.emplace_back(rank.windows_of_chunks[chunk], size);
      }
      truth.bytes.insert(truth.bytes.end(), encoded.bytes.begin(), encoded.bytes.end());
      truth.chunks.push_back(std::move(encoded));
      rank.to_add.push_back(chunk);
    }
    counts_.pieces += truth.pieces.size();
    counts_.silent_ranks += truth.pieces.empty() ? 1 : 0;
    // Chunks come back from several Differs: a few are swapped with neighbours, or all are shuffled.
    if (uniform(random_, 0, 3) == 0)
      std::shuffle(rank.to_add.begin(), rank.to_add.end(), random_);
    else
      for (std::size_t i = 1; i < rank.to_add.size(); ++i)
        if (uniform(random_, 0, 1))
          std::swap(rank.to_add[i - 1], rank.to_add[i]);
  }

  wire::CaptureReport report_of(std::uint32_t index) {
    wire::CaptureReport report;
    report.version = ranks_[index].version;
    report.step = report.version * 10;
    report.kind = report.version == 1 ? wire::DeliveryKind::seed : wire::DeliveryKind::delta;
    report.elements = index + 1;
    report.changed = report.version + index;
    if (index % 3 != 2)
      report.diff = {static_cast<std::int64_t>(100 * report.version + index),
                     static_cast<std::int64_t>(100 * report.version + 2 * index + 1)};
    report.digest_changes = {{index % 4, UINT64_MAX - index}, {7, report.version}};
    report.differ_peak = (index * 7) % 5;
    report.gather_queue_peak = (index * 3) % 7;
    return report;
  }

  bool rank_step() {
    const auto index = static_cast<std::uint32_t>(uniform(random_, 0, ranks_.size() - 1));
    Rank& rank = ranks_[index];
    switch (uniform(random_, 0, 4)) {
    case 0: // capture
      if (rank.to_add.empty() && rank.reported && rank.version < std::min(versions_, finished_ + 1 + ahead_)) {
        start_capture(rank);
        return true;
      }
      if (rank.version == 0) {
        start_capture(rank);
        return true;
      }
      if (!rank.to_add.empty()) {
        const std::uint32_t chunk = rank.to_add.front();
        rank.to_add.erase(rank.to_add.begin());
        EncodedChunk& encoded = rank.truth.at(rank.version).chunks[chunk];
        rank.queued += encoded.bytes.size();
        if (auto offer = rank.machine->add(std::move(encoded)))
          rank.control_up.emplace_back(std::move(*offer));
        return true;
      }
      if (rank.windows_of_chunks.empty() && !rank.said_nothing) {
        rank.said_nothing = true;
        rank.control_up.emplace_back(rank.machine->nothing(rank.version));
        return true;
      }
      return false;
    case 1: // its report comes when everything is captured, before or after its last offers were taken
      if (rank.version == 0 || rank.reported || !rank.to_add.empty() ||
          (rank.windows_of_chunks.empty() && !rank.said_nothing))
        return false;
      rank.reported = true;
      rank.control_up.emplace_back(report_of(index));
      return true;
    case 2: // a grant arrives at the rank
      if (rank.down.empty())
        return false;
      {
        const wire::Grant grant = rank.down.front();
        rank.down.pop_front();
        auto cut = rank.machine->cut(grant);
        if (!cut)
          FAIL(cut.error().message);
        REQUIRE(cut->size() == grant.bytes);
        rank.queued -= cut->size();
        rank.data_up.push_back({grant.version, grant.round, std::move(*cut)});
      }
      return true;
    case 3: // control arrives at the root
      if (rank.control_up.empty())
        return false;
      if (const auto* offer = std::get_if<wire::Offer>(&rank.control_up.front())) {
        counts_.early_offers += offer->version != active_ ? 1 : 0;
        const auto taken = root_->on_offer(index, *offer);
        if (!taken)
          FAIL(taken.error().message);
        REQUIRE(offer->windows_complete >= rank.truth.at(offer->version).complete_told);
        rank.truth.at(offer->version).complete_told = offer->windows_complete;
      } else {
        const auto& report = std::get<wire::CaptureReport>(rank.control_up.front());
        const auto taken = root_->on_report(index, report);
        if (!taken)
          FAIL(taken.error().message);
        rank.truth.at(report.version).report_arrived = true;
      }
      rank.control_up.pop_front();
      return true;
    default: // a share arrives at the root
      if (rank.data_up.empty())
        return false;
      {
        const Share share = std::move(rank.data_up.front());
        rank.data_up.pop_front();
        REQUIRE(share.version == active_);
        const auto taken = root_->on_share(index, share.round, share.bytes.size());
        if (!taken)
          FAIL(taken.error().message);
        rank.granted_outstanding -= share.bytes.size();
        unconsumed_ += share.bytes.size();
        Bytes& arrived = rank.truth.at(share.version).arrived;
        arrived.insert(arrived.end(), share.bytes.begin(), share.bytes.end());
      }
      return true;
    }
  }

  bool root_step() {
    switch (uniform(random_, 0, 4)) {
    case 0:
      if (active_ != 0)
        return false;
      root_->begin(active_ = finished_ + 1);
      window_ = 0;
      rounds_ = 0;
      return true;
    case 1: {
      const auto granted = root_->next_round();
      if (!granted.empty()) {
        ++rounds_;
        ++counts_.rounds;
      }
      std::optional<std::uint32_t> last_rank;
      for (const auto& [index, grant] : granted) {
        REQUIRE((!last_rank || index > *last_rank)); // at most one grant a rank
        last_rank = index;
        Rank& rank = ranks_[index];
        Rank::Truth& truth = rank.truth.at(active_);
        REQUIRE(grant.version == active_);
        REQUIRE(grant.round == next_round_); // never reused
        REQUIRE(grant.pieces > 0);
        std::uint64_t bytes = 0;
        for (std::uint32_t i = 0; i < grant.pieces; ++i) {
          REQUIRE(truth.granted_pieces < truth.pieces.size());
          const auto& [window, size] = truth.pieces[truth.granted_pieces++];
          REQUIRE(window == window_); // windows in order
          bytes += size;
        }
        REQUIRE(grant.bytes == bytes);
        truth.granted_bytes += bytes;
        rank.granted_outstanding += bytes;
        rank.down.push_back(grant);
      }
      next_round_ += granted.empty() ? 0 : 1;
      return !granted.empty();
    }
    case 2: {
      if (unconsumed_ == 0)
        return false;
      const std::uint64_t bytes = uniform(random_, 0, 2) == 0 ? unconsumed_ : uniform(random_, 1, unconsumed_);
      unconsumed_ -= bytes;
      root_->consumed(bytes);
      return true;
    }
    case 3: {
      const bool ended = root_->window_ended();
      REQUIRE(ended == window_is_over());
      if (ended) {
        ++window_;
        ++counts_.windows;
      }
      return ended;
    }
    default: {
      const auto totals = root_->finished();
      bool expected = active_ != 0 && window_ == windows_;
      for (const Rank& rank : ranks_)
        expected = expected && rank.truth.contains(active_) && rank.truth.at(active_).report_arrived;
      REQUIRE(totals.has_value() == expected);
      if (!totals)
        return false;
      check_totals(*totals);
      REQUIRE_FALSE(root_->finished());
      REQUIRE_FALSE(root_->active());
      finished_ = active_;
      active_ = 0;
      ++counts_.versions;
      return true;
    }
    }
  }

  bool window_is_over() const {
    if (active_ == 0 || window_ == windows_)
      return false;
    for (const Rank& rank : ranks_) {
      const auto found = rank.truth.find(active_);
      if (found == rank.truth.end() || found->second.complete_told <= window_ || rank.granted_outstanding > 0)
        return false;
      std::uint64_t due = 0;
      for (const auto& [window, size] : found->second.pieces)
        due += window <= window_ ? size : 0;
      if (found->second.arrived.size() != due)
        return false;
    }
    return true;
  }

  void check_totals(const GatherTotals& totals) {
    REQUIRE(totals.version == active_);
    REQUIRE(totals.step == active_ * 10);
    REQUIRE(totals.seed == (active_ == 1));
    REQUIRE(totals.rounds == rounds_);
    std::uint64_t elements = 0, changed = 0, differ_peak = 0, queue_peak = 0, bytes = 0;
    std::int64_t begin = 0, end = 0;
    std::map<std::uint32_t, std::uint64_t> digests;
    for (std::uint32_t index = 0; index < ranks_.size(); ++index) {
      const Rank::Truth& truth = ranks_[index].truth.at(active_);
      REQUIRE(truth.arrived == truth.bytes); // every byte once, in walk order
      bytes += truth.bytes.size();
      elements += index + 1;
      changed += active_ + index;
      differ_peak = std::max<std::uint64_t>(differ_peak, (index * 7) % 5);
      queue_peak = std::max<std::uint64_t>(queue_peak, (index * 3) % 7);
      digests[index % 4] += UINT64_MAX - index;
      digests[7] += active_;
      if (index % 3 != 2) {
        const auto from = static_cast<std::int64_t>(100 * active_ + index);
        begin = begin == 0 ? from : std::min(begin, from);
        end = std::max(end, static_cast<std::int64_t>(100 * active_ + 2 * index + 1));
      }
    }
    counts_.empty_versions += bytes == 0 ? 1 : 0;
    REQUIRE(totals.elements == elements);
    REQUIRE(totals.changed == changed);
    REQUIRE(totals.differ_peak == differ_peak);
    REQUIRE(totals.gather_queue_peak == queue_peak);
    REQUIRE(totals.diff_begin_ns == begin);
    REQUIRE(totals.diff_end_ns == end);
    REQUIRE(
      (totals.digest_changes == std::vector<std::pair<std::uint32_t, std::uint64_t>>(digests.begin(), digests.end())));
  }

  void check() {
    std::uint64_t held = unconsumed_;
    std::vector<std::uint32_t> waited;
    for (std::uint32_t index = 0; index < ranks_.size(); ++index) {
      const Rank& rank = ranks_[index];
      held += rank.granted_outstanding;
      if (rank.machine->queued_bytes() != rank.queued)
        FAIL("rank " << index << " counts " << rank.machine->queued_bytes() << " queued bytes, not " << rank.queued);
      const auto found = rank.truth.find(active_);
      if (active_ != 0 && (found == rank.truth.end() || !found->second.report_arrived || rank.granted_outstanding > 0 ||
                           found->second.complete_told < windows_))
        waited.push_back(index);
    }
    if (root_->held_bytes() != held || held > max_round_)
      FAIL("the root holds " << root_->held_bytes() << " bytes, the oracle " << held << ", max_round " << max_round_);
    if (root_->waiting_for() != waited)
      FAIL("waiting_for() names other ranks than the oracle");
  }

  std::mt19937_64 random_;
  Counts& counts_;
  std::uint32_t windows_ = 0;
  std::uint64_t versions_ = 0, largest_ = 0, max_round_ = 0, ahead_ = 0, density_ = 0;
  std::vector<Rank> ranks_;
  std::optional<GatherRoot> root_;
  std::uint64_t active_ = 0, finished_ = 0;
  std::uint32_t window_ = 0;
  std::uint64_t rounds_ = 0, next_round_ = 0, unconsumed_ = 0;
};

wire::Offer offer_of(std::uint64_t version, std::vector<std::pair<std::uint32_t, std::uint32_t>> pieces,
                     std::uint32_t complete) {
  return {version, std::move(pieces), complete};
}

wire::CaptureReport report_of(std::uint64_t version, std::uint64_t step = 5,
                              wire::DeliveryKind kind = wire::DeliveryKind::delta) {
  wire::CaptureReport report;
  report.version = version;
  report.step = step;
  report.kind = kind;
  return report;
}

EncodedChunk chunk_of(std::uint64_t version, std::uint32_t chunk, const std::vector<std::uint64_t>& sizes) {
  EncodedChunk encoded{version, chunk, {}, {}};
  for (const std::uint64_t size : sizes) {
    encoded.bytes.resize(encoded.bytes.size() + size, static_cast<std::byte>(chunk));
    encoded.ends.push_back(encoded.bytes.size());
  }
  return encoded;
}

/// Two ranks, three windows, rounds of 100 bytes; version 1 is gathered.
GatherRoot gathering() {
  GatherRoot root(2, 3, 100);
  root.begin(1);
  return root;
}

template <class T>
void refuses(const Result<T>& result, const std::string& says) {
  REQUIRE_FALSE(result);
  REQUIRE_THAT(result.error().message, test::contains(says));
}

} // namespace

TEST_CASE("all pieces are gathered once, in walk order, windows in order, within max_round") {
  constexpr std::uint64_t schedules = 400;
  CAPTURE(test::seed());
  Counts counts;
  for (std::uint64_t schedule = 0; schedule < schedules; ++schedule) {
    CAPTURE(schedule);
    Simulation(schedule, counts).run();
  }
  fmt::print("gather: seed {}, {} schedules, {} versions ({} empty), {} windows, {} rounds, {} pieces, {} offers for a "
             "version that was not gathered yet, {} times a rank with nothing\n",
             test::seed(), schedules, counts.versions, counts.empty_versions, counts.windows, counts.rounds,
             counts.pieces, counts.early_offers, counts.silent_ranks);
  REQUIRE(counts.early_offers > 100);
  REQUIRE(counts.empty_versions > 10);
  REQUIRE(counts.silent_ranks > 100);
}

TEST_CASE("a rank says only what is new: pieces, or windows that are complete") {
  GatherRank rank({0, 0, 2}, 3);
  REQUIRE_FALSE(rank.add(chunk_of(1, 1, {4}))); // chunk 0 is missing in front of it
  REQUIRE(rank.queued_bytes() == 4);
  const auto first = rank.add(chunk_of(1, 0, {}));
  REQUIRE(first);
  REQUIRE((first->pieces == std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 4}}));
  REQUIRE(first->windows_complete == 2);
  const auto last = rank.add(chunk_of(1, 2, {}));
  REQUIRE(last);
  REQUIRE(last->pieces.empty());
  REQUIRE(last->windows_complete == 3);

  GatherRank quiet({0, 0}, 1);
  REQUIRE_FALSE(quiet.add(chunk_of(1, 0, {})));
  REQUIRE(quiet.add(chunk_of(1, 1, {}))->windows_complete == 1);

  const GatherRank none({}, 3);
  REQUIRE(none.nothing(4).version == 4);
  REQUIRE(none.nothing(4).windows_complete == 3);
}

TEST_CASE("a rank refuses a grant of what it did not offer") {
  GatherRank rank({0}, 1);
  refuses(rank.cut({1, 0, 1, 4}), "did not offer");
  REQUIRE(rank.add(chunk_of(1, 0, {4, 6})));
  refuses(rank.cut({2, 0, 1, 4}), "did not offer");
  refuses(rank.cut({1, 0, 2, 11}), "granted 11 bytes where 10 are offered");
  REQUIRE(rank.queued_bytes() == 10);
  REQUIRE(rank.cut({1, 0, 1, 4})->size() == 4);
  refuses(rank.cut({1, 1, 1, 7}), "granted 7 bytes where 6 are offered");
  refuses(rank.cut({1, 1, 1, 5}), "does not end between two pieces");
}

TEST_CASE("a rank refuses a grant of more pieces than it offered") {
  GatherRank rank({0}, 1);
  REQUIRE(rank.add(chunk_of(1, 0, {4, 6})));
  refuses(rank.cut({1, 0, 3, 10}), "does not end between two pieces");
}

TEST_CASE("the root refuses offers that no honest rank makes") {
  GatherRoot root = gathering();
  refuses(root.on_offer(2, offer_of(1, {}, 1)), "rank 2 of 2 ranks");
  refuses(root.on_offer(0, offer_of(0, {}, 1)), "version 0");
  refuses(root.on_offer(0, offer_of(4, {}, 1)), "version 4");
  refuses(root.on_offer(0, offer_of(1, {}, 4)), "4 windows complete after 0, of 3");
  refuses(root.on_offer(0, offer_of(1, {{3, 10}}, 0)), "a piece of window 3");
  refuses(root.on_offer(0, offer_of(1, {{0, 0}}, 0)), "a piece of 0 bytes");
  refuses(root.on_offer(0, offer_of(1, {{0, 101}}, 0)), "a piece of 101 bytes; max_round is 100");
  REQUIRE(root.on_offer(0, offer_of(1, {{1, 100}}, 1)));
  refuses(root.on_offer(0, offer_of(1, {}, 0)), "0 windows complete after 1");
  refuses(root.on_offer(0, offer_of(1, {{0, 10}}, 1)), "a piece of window 0 after window 1");
  REQUIRE(root.on_offer(0, offer_of(1, {}, 3)));
  refuses(root.on_offer(0, offer_of(1, {{2, 10}}, 3)), "a piece of window 2 after window 3");
  REQUIRE(root.on_offer(1, offer_of(3, {{2, 1}}, 3))); // ahead as far as is legal
}

TEST_CASE("the root refuses offers and reports of a version that is over") {
  GatherRoot root(1, 1, 100);
  REQUIRE(root.on_offer(0, offer_of(1, {}, 1))); // before it begins
  REQUIRE(root.on_report(0, report_of(1)));
  refuses(root.on_offer(0, offer_of(3, {}, 1)), "version 3");
  root.begin(1);
  REQUIRE(root.window_ended());
  REQUIRE(root.finished());
  refuses(root.on_offer(0, offer_of(1, {}, 1)), "version 1");
  refuses(root.on_report(0, report_of(1)), "version 1");
  root.begin(2);
  refuses(root.on_offer(0, offer_of(1, {}, 1)), "version 1");
  refuses(root.on_report(0, report_of(1)), "version 1");
}

TEST_CASE("the root refuses reports that no honest rank makes, and names ranks that publish different steps") {
  GatherRoot root = gathering();
  refuses(root.on_report(2, report_of(1)), "rank 2 of 2 ranks");
  refuses(root.on_report(0, report_of(4)), "version 4");
  REQUIRE(root.on_report(0, report_of(1)));
  refuses(root.on_report(0, report_of(1)), "twice");
  const auto other_step = root.on_report(1, report_of(1, 6));
  refuses(other_step, "rank 1 publishes step 6, rank 0 step 5");
  REQUIRE(other_step.error().code == Code::disagreement);
  REQUIRE(root.on_report(1, report_of(1)));
}

TEST_CASE("the root refuses shares that were not granted, or of another length or round") {
  GatherRoot root = gathering();
  REQUIRE(root.on_offer(0, offer_of(1, {{0, 50}, {0, 50}}, 3)));
  refuses(root.on_share(0, 0, 50), "not what it was granted");
  const auto granted = root.next_round();
  REQUIRE(granted.size() == 1);
  REQUIRE(granted[0].grant.bytes == 50);
  refuses(root.on_share(1, 0, 50), "rank 1 sent 50 bytes for round 0");
  refuses(root.on_share(0, 0, 49), "not what it was granted");
  refuses(root.on_share(0, 1, 50), "not what it was granted");
  refuses(root.on_share(2, 0, 50), "not running");
  REQUIRE(root.on_share(0, 0, 50));
  refuses(root.on_share(0, 0, 50), "not what it was granted");
  GatherRoot before(1, 1, 100);
  refuses(before.on_share(0, 0, 1), "not running");
}

TEST_CASE("a piece as large as max_round goes when nothing else is held") {
  GatherRoot root(2, 1, 100);
  root.begin(1);
  REQUIRE(root.on_offer(0, offer_of(1, {{0, 40}}, 1)));
  REQUIRE(root.on_offer(1, offer_of(1, {{0, 100}}, 1)));
  const auto first = root.next_round();
  REQUIRE(first.size() == 1);
  REQUIRE(first[0].rank == 0);
  REQUIRE(root.next_round().empty());
  REQUIRE(root.on_share(0, 0, 40));
  REQUIRE(root.next_round().empty());
  root.consumed(40);
  const auto second = root.next_round();
  REQUIRE(second.size() == 1);
  REQUIRE(second[0].rank == 1);
  REQUIRE(second[0].grant.round == 1);
  REQUIRE(root.held_bytes() == 100);
}
