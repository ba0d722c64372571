// Contract of sync/gather.hpp: GatherRank and GatherRoot together in random simulations. Messages of a rank come late
// but in order, the flush bucket consumes late, ranks run ahead with the next version or fall far behind, gathers are
// dropped by the root or given up by a rank at any moment. The oracle knows every piece and what of it was said,
// granted, sent, dropped and consumed. Then what no honest peer says, a rule a test.
#include "catch.hpp"
#include "random.hpp"
#include "text_matchers.hpp"

#include "sync/gather.hpp"

#include <fmt/format.h>

#include <numeric>
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
  std::uint64_t gather;
  std::uint64_t round;
  Bytes bytes;
};

/// A rank has given an update up.
struct Abandoned {
  std::uint64_t version;
};

/// One rank, its pieces as the oracle knows them, and what is on the way from and to it.
struct Rank {
  std::vector<std::uint32_t> windows_of_chunks;
  std::optional<GatherRank> machine;

  // The version that it captures now.
  std::uint64_t version = 0;
  std::deque<std::pair<std::uint64_t, std::uint32_t>> to_add; ///< (gather, chunk), in the order in which they come
  bool reported = false;

  // By gather: all pieces in walk order, (window, bytes), and their bytes back to back.
  struct Truth {
    std::vector<std::pair<std::uint32_t, std::uint64_t>> pieces;
    Bytes bytes;
    std::vector<EncodedChunk> chunks;
    std::uint64_t queued = 0; ///< added, and neither cut nor dropped
    bool dropped = false;     ///< as this rank knows
    std::size_t granted_pieces = 0;
    std::deque<std::uint64_t> granted; ///< bytes granted and not arrived, round by round
    Bytes arrived;
    std::uint32_t complete_told = 0; ///< windows complete, as far as it has arrived at the root
  };
  std::map<std::uint64_t, Truth> truth;
  std::set<std::uint64_t> reports_arrived; ///< versions
  std::set<std::uint64_t> offers_nothing;  ///< gathers of which a rank without chunks has said so

  std::deque<std::variant<wire::Offer, wire::CaptureReport, Abandoned>> control_up;
  std::deque<Share> data_up;
  std::deque<std::variant<wire::Grant, wire::Drop>> down;

  [[nodiscard]] std::uint64_t granted_outstanding(std::uint64_t gather) const {
    const auto found = truth.find(gather);
    if (found == truth.end())
      return 0;
    return std::accumulate(found->second.granted.begin(), found->second.granted.end(), std::uint64_t{0});
  }
};

struct Counts {
  std::uint64_t gathers = 0, catch_ups = 0, dropped = 0, never_begun = 0, abandoned = 0, far_behind = 0,
                empty_shares = 0, unused_shares = 0, windows = 0, rounds = 0, pieces = 0, early_offers = 0,
                silent_ranks = 0, empty_gathers = 0, late_reports = 0;
};

class Simulation {
public:
  Simulation(std::uint64_t schedule, Counts& counts) : random_(test::generator(7200000 + schedule)), counts_(counts) {
    const std::uint64_t ranks = uniform(random_, 1, 16);
    windows_ = static_cast<std::uint32_t>(uniform(random_, 1, 6));
    versions_ = uniform(random_, 1, 5);
    largest_ = uniform(random_, 1, 60);
    max_round_ = largest_ + (uniform(random_, 0, 1) ? 0 : uniform(random_, 0, 4 * largest_));
    ahead_ = uniform(random_, 0, 1);
    density_ = uniform(random_, 0, 4);
    drops_ = uniform(random_, 0, 1) != 0;
    // Sometimes nobody takes anything for many versions, and the root does not wait for its ranks.
    nobody_from_ = drops_ && uniform(random_, 0, 3) == 0 ? uniform(random_, 2, versions_ + 1) : UINT64_MAX;
    nobody_until_ = nobody_from_ == UINT64_MAX ? 0 : nobody_from_ + uniform(random_, 1, 15);
    if (nobody_from_ != UINT64_MAX)
      versions_ = nobody_until_ + uniform(random_, 0, 2);
    for (std::uint64_t version = 2; version <= versions_; ++version)
      if (uniform(random_, 0, 2) == 0)
        catch_ups_.insert(version);
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
    const auto settled = [this] {
      return over_ == versions_ && std::all_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
               return rank.version == versions_ && rank.reported && rank.to_add.empty() && rank.control_up.empty() &&
                      rank.data_up.empty() && rank.down.empty();
             });
    };
    while (!settled()) {
      const bool moved = uniform(random_, 0, 3) == 0 ? root_step() : rank_step();
      check();
      idle = moved ? 0 : idle + 1;
      if (idle > 5000)
        FAIL("the gather stands still at gather " << gather_ << ", window " << window_);
    }
    for (Rank& rank : ranks_)
      REQUIRE(rank.machine->queued_bytes() == 0);
    root_->consumed(unconsumed_);
    REQUIRE(root_->held_bytes() == 0);
  }

private:
  [[nodiscard]] bool catches_up(std::uint64_t version) const { return catch_ups_.contains(version); }

  /// Makes what a rank finds in a version.
  void start_capture(Rank& rank) {
    ++rank.version;
    rank.reported = false;
    counts_.far_behind += over_ > rank.version + 4 ? 1 : 0;
    make_gather(rank, sync::gather_of(rank.version));
    if (catches_up(rank.version))
      make_gather(rank, sync::catch_up_gather_of(rank.version));
  }
  void make_gather(Rank& rank, std::uint64_t gather) {
    Rank::Truth& truth = rank.truth[gather];
    std::vector<std::uint32_t> to_add;
    for (std::uint32_t chunk = 0; chunk < rank.windows_of_chunks.size(); ++chunk) {
      EncodedChunk encoded;
      encoded.gather = gather;
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
      to_add.push_back(chunk);
    }
    counts_.pieces += truth.pieces.size();
    counts_.silent_ranks += truth.pieces.empty() ? 1 : 0;
    // Chunks come back from several Differs: a few are swapped with neighbours, or all are shuffled.
    if (uniform(random_, 0, 3) == 0)
      std::shuffle(to_add.begin(), to_add.end(), random_);
    else
      for (std::size_t i = 1; i < to_add.size(); ++i)
        if (uniform(random_, 0, 1))
          std::swap(to_add[i - 1], to_add[i]);
    // A rank knows before its capture what nobody will take; a few chunks may be on their way all the same.
    for (const std::uint32_t chunk : to_add)
      if (!truth.dropped || uniform(random_, 0, 3) == 0)
        rank.to_add.emplace_back(gather, chunk);
    if (rank.windows_of_chunks.empty())
      rank.control_up.emplace_back(rank.machine->nothing(gather));
  }

  /// The rank hears, or decides itself, that nobody takes a gather.
  void drop_at(Rank& rank, std::uint64_t gather) {
    Rank::Truth& truth = rank.truth[gather];
    REQUIRE(rank.machine->drop(gather) == truth.queued);
    REQUIRE(rank.machine->drop(gather) == 0);
    truth.queued = 0;
    truth.dropped = true;
    std::erase_if(rank.to_add, [&](const auto& each) { return each.first == gather && uniform(random_, 0, 3) != 0; });
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
    switch (uniform(random_, 0, 5)) {
    case 0: // capture
      if (rank.to_add.empty() && (rank.version == 0 || rank.reported) &&
          rank.version < std::min(versions_, over_ + 1 + ahead_)) {
        start_capture(rank);
        return true;
      }
      if (!rank.to_add.empty()) {
        const auto [gather, chunk] = rank.to_add.front();
        rank.to_add.pop_front();
        Rank::Truth& truth = rank.truth.at(gather);
        EncodedChunk& encoded = truth.chunks[chunk];
        const std::uint64_t bytes = encoded.bytes.size();
        REQUIRE(rank.machine->dropped(gather) == truth.dropped);
        auto offer = rank.machine->add(std::move(encoded));
        if (truth.dropped)
          REQUIRE_FALSE(offer);
        else
          truth.queued += bytes;
        if (offer)
          rank.control_up.emplace_back(std::move(*offer));
        return true;
      }
      return false;
    case 1: // its report comes when everything is captured; what was deferred is encoded later
      if (rank.version == 0 || rank.reported || (!rank.to_add.empty() && uniform(random_, 0, 5) != 0))
        return false;
      rank.reported = true;
      rank.control_up.emplace_back(report_of(index));
      return true;
    case 2: // a grant or a drop arrives at the rank
      if (rank.down.empty())
        return false;
      {
        const auto message = rank.down.front();
        rank.down.pop_front();
        if (const auto* dropped = std::get_if<wire::Drop>(&message)) {
          drop_at(rank, dropped->gather);
          return true;
        }
        const wire::Grant& grant = std::get<wire::Grant>(message);
        Rank::Truth& truth = rank.truth.at(grant.gather);
        auto cut = rank.machine->cut(grant);
        if (!cut)
          FAIL(cut.error().message);
        REQUIRE(cut->size() == (truth.dropped ? 0 : grant.bytes));
        counts_.empty_shares += truth.dropped ? 1 : 0;
        truth.queued -= cut->size();
        rank.data_up.push_back({grant.gather, grant.round, std::move(*cut)});
      }
      return true;
    case 3: // control arrives at the root
      if (rank.control_up.empty())
        return false;
      control_arrives(index, rank);
      return true;
    case 4: // it gives its update up: it has captured it, not encoded all of it, and it carries no catch-up
      if (!drops_ || !rank.reported || rank.version == 1 || rank.to_add.empty() || catches_up(rank.version) ||
          rank.truth.at(sync::gather_of(rank.version)).dropped || uniform(random_, 0, 3) != 0)
        return false;
      drop_at(rank, sync::gather_of(rank.version));
      rank.control_up.emplace_back(Abandoned{rank.version});
      ++counts_.abandoned;
      return true;
    default: // a share arrives at the root
      if (rank.data_up.empty())
        return false;
      {
        const Share share = std::move(rank.data_up.front());
        rank.data_up.pop_front();
        Rank::Truth& truth = rank.truth.at(share.gather);
        const bool use = share.gather == gather_ && active_ && !share.bytes.empty();
        const auto taken = root_->on_share(index, share.gather, share.round, share.bytes.size());
        if (!taken)
          FAIL(taken.error().message);
        REQUIRE(*taken == use);
        truth.granted.pop_front();
        if (!use) {
          counts_.unused_shares += share.bytes.empty() ? 0 : 1;
          return true;
        }
        unconsumed_ += share.bytes.size();
        truth.arrived.insert(truth.arrived.end(), share.bytes.begin(), share.bytes.end());
      }
      return true;
    }
  }

  void control_arrives(std::uint32_t index, Rank& rank) {
    const auto message = std::move(rank.control_up.front());
    rank.control_up.pop_front();
    if (const auto* offer = std::get_if<wire::Offer>(&message)) {
      counts_.early_offers += offer->gather > gather_ ? 1 : 0;
      const auto taken = root_->on_offer(index, *offer);
      if (!taken)
        FAIL(taken.error().message);
      Rank::Truth& truth = rank.truth.at(offer->gather);
      REQUIRE(offer->windows_complete >= truth.complete_told);
      truth.complete_told = offer->windows_complete;
    } else if (const auto* report = std::get_if<wire::CaptureReport>(&message)) {
      counts_.late_reports += report->version <= over_ ? 1 : 0;
      const auto taken = root_->on_report(index, *report);
      if (!taken)
        FAIL(taken.error().message);
      rank.reports_arrived.insert(report->version);
    } else {
      const std::uint64_t version = std::get<Abandoned>(message).version;
      if (over_ >= version)
        return; // given up for another reason, or by another rank
      // It cannot be complete: the rank had not encoded all.
      if (gather_ < sync::gather_of(version)) {
        abandoned_.insert(version);
        return;
      }
      REQUIRE(gather_ == sync::gather_of(version));
      REQUIRE(active_);
      drop_at_root(gather_);
      gather_over();
    }
  }

  void drop_at_root(std::uint64_t gather) {
    root_->drop(gather);
    ++counts_.dropped;
    for (Rank& rank : ranks_)
      rank.down.emplace_back(wire::Drop{gather});
  }

  /// Goes on to the next gather, or the next version.
  void gather_over() {
    active_ = false;
    const std::uint64_t version = sync::version_of_gather(gather_);
    if (sync::is_catch_up(gather_) || !catches_up(version))
      over_ = version;
  }

  [[nodiscard]] std::uint64_t next_gather() const {
    if (gather_ != 0 && over_ < sync::version_of_gather(gather_))
      return sync::catch_up_gather_of(sync::version_of_gather(gather_));
    return sync::gather_of(over_ + 1);
  }

  bool root_step() {
    switch (uniform(random_, 0, 5)) {
    case 0: {
      // The root captures itself: it begins nothing before its own publish().
      if (active_ || over_ == versions_ || ranks_[0].version < over_ + 1)
        return false;
      gather_ = next_gather();
      const std::uint64_t version = sync::version_of_gather(gather_);
      const bool nobody = (version >= nobody_from_ && version < nobody_until_) || abandoned_.contains(version) ||
                          (drops_ && uniform(random_, 0, 9) == 0);
      if (nobody) {
        drop_at_root(gather_);
        ++counts_.never_begun;
        gather_over();
        return true;
      }
      root_->begin(gather_);
      active_ = true;
      window_ = 0;
      rounds_ = 0;
      return true;
    }
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
        REQUIRE(active_);
        REQUIRE(grant.gather == gather_);
        Rank::Truth& truth = rank.truth.at(gather_);
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
        truth.granted.push_back(bytes);
        rank.down.emplace_back(grant);
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
    case 4: // its delivery has failed
      if (!drops_ || !active_ || uniform(random_, 0, 150) != 0)
        return false;
      drop_at_root(gather_);
      REQUIRE_FALSE(root_->active());
      REQUIRE(root_->next_round().empty());
      REQUIRE_FALSE(root_->window_ended());
      REQUIRE_FALSE(root_->finished());
      gather_over();
      return true;
    default: {
      const auto totals = root_->finished();
      bool expected = active_ && window_ == windows_;
      for (const Rank& rank : ranks_)
        for (std::uint64_t version = 1; version <= sync::version_of_gather(gather_); ++version)
          expected = expected && rank.reports_arrived.contains(version);
      REQUIRE(totals.has_value() == expected);
      if (!totals)
        return false;
      check_totals(*totals);
      REQUIRE_FALSE(root_->finished());
      REQUIRE_FALSE(root_->active());
      gather_over();
      ++counts_.gathers;
      counts_.catch_ups += sync::is_catch_up(gather_) ? 1 : 0;
      return true;
    }
    }
  }

  bool window_is_over() const {
    if (!active_ || window_ == windows_)
      return false;
    for (const Rank& rank : ranks_) {
      const auto found = rank.truth.find(gather_);
      if (found == rank.truth.end() || found->second.complete_told <= window_ || !found->second.granted.empty())
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
    const std::uint64_t version = sync::version_of_gather(gather_);
    REQUIRE(totals.gather == gather_);
    REQUIRE(totals.rounds == rounds_);
    std::uint64_t bytes = 0;
    for (const Rank& rank : ranks_) {
      const Rank::Truth& truth = rank.truth.at(gather_);
      REQUIRE(truth.arrived == truth.bytes); // every byte once, in walk order
      bytes += truth.bytes.size();
    }
    counts_.empty_gathers += bytes == 0 ? 1 : 0;
    // What was reported is told once: by the first gather of its version that finishes; the digests of versions that no
    // gather brought come with it.
    REQUIRE(totals.reported == (told_ < version));
    std::uint64_t elements = 0, changed = 0, differ_peak = 0, queue_peak = 0;
    std::int64_t begin = 0, end = 0;
    std::map<std::uint32_t, std::uint64_t> digests;
    for (std::uint32_t index = 0; index < ranks_.size(); ++index) {
      for (std::uint64_t each = told_ + 1; each <= version; ++each) {
        digests[index % 4] += UINT64_MAX - index;
        digests[7] += each;
      }
      if (told_ == version)
        continue;
      elements += index + 1;
      changed += version + index;
      differ_peak = std::max<std::uint64_t>(differ_peak, (index * 7) % 5);
      queue_peak = std::max<std::uint64_t>(queue_peak, (index * 3) % 7);
      if (index % 3 != 2) {
        const auto from = static_cast<std::int64_t>(100 * version + index);
        begin = begin == 0 ? from : std::min(begin, from);
        end = std::max(end, static_cast<std::int64_t>(100 * version + 2 * index + 1));
      }
    }
    REQUIRE(totals.step == (told_ < version ? version * 10 : 0));
    told_ = version;
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
      std::uint64_t queued = 0;
      for (const auto& [gather, truth] : rank.truth) {
        held += rank.granted_outstanding(gather);
        queued += truth.queued;
      }
      if (rank.machine->queued_bytes() != queued)
        FAIL("rank " << index << " counts " << rank.machine->queued_bytes() << " queued bytes, not " << queued);
      const auto found = rank.truth.find(gather_);
      if (active_ && (!rank.reports_arrived.contains(sync::version_of_gather(gather_)) || found == rank.truth.end() ||
                      !found->second.granted.empty() || found->second.complete_told < windows_))
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
  bool drops_ = false;
  std::uint64_t nobody_from_ = 0, nobody_until_ = 0;
  std::set<std::uint64_t> catch_ups_; ///< versions that bring one
  std::set<std::uint64_t> abandoned_; ///< versions that a rank gave up before the root began them
  std::vector<Rank> ranks_;
  std::optional<GatherRoot> root_;
  bool active_ = false;
  std::uint64_t gather_ = 0; ///< the one that runs, or ran last
  std::uint64_t over_ = 0;   ///< versions up to this one are gathered or dropped
  std::uint64_t told_ = 0;   ///< reports up to this version were in some totals
  std::uint32_t window_ = 0;
  std::uint64_t rounds_ = 0, next_round_ = 0, unconsumed_ = 0;
};

wire::Offer offer_of(std::uint64_t gather, std::vector<std::pair<std::uint32_t, std::uint32_t>> pieces,
                     std::uint32_t complete) {
  return {gather, std::move(pieces), complete};
}

wire::CaptureReport report_of(std::uint64_t version, std::uint64_t step = 5,
                              wire::DeliveryKind kind = wire::DeliveryKind::delta) {
  wire::CaptureReport report;
  report.version = version;
  report.step = step;
  report.kind = kind;
  return report;
}

EncodedChunk chunk_of(std::uint64_t gather, std::uint32_t chunk, const std::vector<std::uint64_t>& sizes) {
  EncodedChunk encoded{gather, chunk, {}, {}};
  for (const std::uint64_t size : sizes) {
    encoded.bytes.resize(encoded.bytes.size() + size, static_cast<std::byte>(chunk));
    encoded.ends.push_back(encoded.bytes.size());
  }
  return encoded;
}

/// Two ranks, three windows, rounds of 100 bytes; gather 2, of version 1, has begun.
GatherRoot gathering() {
  GatherRoot root(2, 3, 100);
  root.begin(2);
  return root;
}

template <class T>
void refuses(const Result<T>& result, const std::string& says) {
  REQUIRE_FALSE(result);
  REQUIRE_THAT(result.error().message, test::contains(says));
}

} // namespace

TEST_CASE("all pieces are gathered once, in walk order, windows in order, within max_round, whatever is dropped") {
  constexpr std::uint64_t schedules = 600;
  CAPTURE(test::seed());
  Counts counts;
  for (std::uint64_t schedule = 0; schedule < schedules; ++schedule) {
    CAPTURE(schedule);
    Simulation(schedule, counts).run();
  }
  fmt::print("gather: seed {}, {} schedules, {} gathers ({} catch-ups, {} empty), {} windows, {} rounds, {} pieces, {} "
             "offers for a gather that had not begun, {} times a rank with nothing\n"
             "  {} dropped ({} before they began), {} given up by a rank, {} empty shares, {} shares too late, {} "
             "captures more than 4 versions behind, {} late reports\n",
             test::seed(), schedules, counts.gathers, counts.catch_ups, counts.empty_gathers, counts.windows,
             counts.rounds, counts.pieces, counts.early_offers, counts.silent_ranks, counts.dropped, counts.never_begun,
             counts.abandoned, counts.empty_shares, counts.unused_shares, counts.far_behind, counts.late_reports);
  REQUIRE(counts.early_offers > 100);
  REQUIRE(counts.empty_gathers > 10);
  REQUIRE(counts.silent_ranks > 100);
  REQUIRE(counts.catch_ups > 50);
  REQUIRE(counts.dropped > 100);
  REQUIRE(counts.never_begun > 50);
  REQUIRE(counts.abandoned > 20);
  REQUIRE(counts.empty_shares > 20);
  REQUIRE(counts.unused_shares > 20);
  REQUIRE(counts.far_behind > 50);
  REQUIRE(counts.late_reports > 100);
}

TEST_CASE("a gather has a number: two a version, its own changes first") {
  for (const std::uint64_t version : {1, 2, 7}) {
    REQUIRE(sync::gather_of(version) < sync::catch_up_gather_of(version));
    REQUIRE(sync::catch_up_gather_of(version) < sync::gather_of(version + 1));
    REQUIRE(sync::version_of_gather(sync::gather_of(version)) == version);
    REQUIRE(sync::version_of_gather(sync::catch_up_gather_of(version)) == version);
    REQUIRE(sync::is_catch_up(sync::catch_up_gather_of(version)));
    REQUIRE_FALSE(sync::is_catch_up(sync::gather_of(version)));
  }
}

TEST_CASE("a rank says only what is new: pieces, or windows that are complete") {
  GatherRank rank({0, 0, 2}, 3);
  REQUIRE_FALSE(rank.add(chunk_of(2, 1, {4}))); // chunk 0 is missing in front of it
  REQUIRE(rank.queued_bytes() == 4);
  const auto first = rank.add(chunk_of(2, 0, {}));
  REQUIRE(first);
  REQUIRE((first->pieces == std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 4}}));
  REQUIRE(first->windows_complete == 2);
  const auto last = rank.add(chunk_of(2, 2, {}));
  REQUIRE(last);
  REQUIRE(last->pieces.empty());
  REQUIRE(last->windows_complete == 3);

  GatherRank quiet({0, 0}, 1);
  REQUIRE_FALSE(quiet.add(chunk_of(2, 0, {})));
  REQUIRE(quiet.add(chunk_of(2, 1, {}))->windows_complete == 1);

  const GatherRank none({}, 3);
  REQUIRE(none.nothing(4).gather == 4);
  REQUIRE(none.nothing(4).windows_complete == 3);
}

TEST_CASE("a rank that has nothing to offer says how far it is a few times, and at once when there is something") {
  constexpr std::uint32_t windows = 200;
  std::vector<std::uint32_t> windows_of_chunks(windows);
  for (std::uint32_t window = 0; window < windows; ++window)
    windows_of_chunks[window] = window;
  GatherRank rank(windows_of_chunks, windows);
  for (const std::uint64_t gather : {2u, 4u}) {
    std::uint32_t said = 0, times = 0;
    for (std::uint32_t chunk = 0; chunk < windows; ++chunk) {
      const bool changed = gather == 4 && chunk == 101;
      const auto offer =
        rank.add(chunk_of(gather, chunk, changed ? std::vector<std::uint64_t>{7} : std::vector<std::uint64_t>{}));
      REQUIRE((offer || !changed));
      if (!offer)
        continue;
      REQUIRE(offer->windows_complete == chunk + 1);
      REQUIRE(offer->pieces.size() == (changed ? 1 : 0));
      said = offer->windows_complete;
      ++times;
    }
    REQUIRE(said == windows);
    REQUIRE(times >= 16);
    REQUIRE(times <= 20);
    if (gather == 4)
      REQUIRE(rank.cut({4, 0, 1, 7})->size() == 7);
  }
}

TEST_CASE("a rank forgets a gather that is dropped, gives its bytes back once, and answers its grants with nothing") {
  GatherRank rank({0, 0, 0}, 1);
  REQUIRE(rank.add(chunk_of(4, 0, {4, 6})));
  REQUIRE_FALSE(rank.add(chunk_of(4, 2, {100}))); // early
  REQUIRE(rank.add(chunk_of(5, 0, {7})));
  REQUIRE(rank.cut({4, 0, 1, 4})->size() == 4);
  REQUIRE(rank.drop(4) == 106);
  REQUIRE(rank.queued_bytes() == 7);
  REQUIRE(rank.dropped(4));
  REQUIRE_FALSE(rank.dropped(5));
  REQUIRE(rank.drop(4) == 0);
  REQUIRE(rank.cut({4, 1, 1, 6})->empty());
  REQUIRE_FALSE(rank.add(chunk_of(4, 1, {9})));
  REQUIRE(rank.queued_bytes() == 7);
  REQUIRE(rank.cut({5, 2, 1, 7})->size() == 7);
}

TEST_CASE("a rank that is many versions behind still knows what was dropped") {
  GatherRank rank({0}, 1);
  REQUIRE(rank.add(chunk_of(sync::gather_of(3), 0, {5})));
  for (std::uint64_t version = 3; version < 103; ++version)
    REQUIRE(rank.drop(sync::gather_of(version)) == (version == 3 ? 5 : 0));
  for (std::uint64_t version = 3; version < 103; ++version) {
    REQUIRE(rank.dropped(sync::gather_of(version)));
    REQUIRE_FALSE(rank.add(chunk_of(sync::gather_of(version), 0, {5})));
    REQUIRE(rank.cut({sync::gather_of(version), version, 1, 5})->empty());
  }
  REQUIRE(rank.queued_bytes() == 0);
  REQUIRE(rank.add(chunk_of(sync::gather_of(103), 0, {5})));
  REQUIRE(rank.cut({sync::gather_of(50), 200, 1, 5})->empty()); // a grant that has waited for long
}

TEST_CASE(
  "the root takes what ranks say of dropped gathers, however late, and refuses what they say of finished ones") {
  GatherRoot root(2, 1, 100);
  root.begin(sync::gather_of(1));
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    REQUIRE(root.on_offer(rank, offer_of(sync::gather_of(1), {}, 1)));
    REQUIRE(root.on_report(rank, report_of(1)));
  }
  REQUIRE(root.window_ended());
  REQUIRE(root.finished()->reported);
  // Nobody takes anything for a long time; rank 0 goes on, rank 1 is behind.
  for (std::uint64_t version = 2; version < 52; ++version) {
    root.drop(sync::gather_of(version));
    REQUIRE(root.on_report(0, report_of(version, version)));
  }
  for (std::uint64_t version = 2; version < 52; ++version) {
    REQUIRE(root.on_offer(1, offer_of(sync::gather_of(version), {{0, 10}}, 1)));
    REQUIRE(root.on_report(1, report_of(version, version)));
    refuses(root.on_report(1, report_of(version, version)), version == 51 ? "twice" : "reports the capture of version");
  }
  refuses(root.on_offer(1, offer_of(sync::gather_of(1), {}, 1)), "gather 2");
}

TEST_CASE("the digests of versions that no gather brought come with the next totals, and only they") {
  GatherRoot root(1, 1, 100);
  for (std::uint64_t version = 1; version <= 20; ++version) {
    wire::CaptureReport report = report_of(version, version);
    report.changed = 100 + version;
    report.digest_changes = {{3, version}, {static_cast<std::uint32_t>(10 + version), 1}};
    root.drop(sync::gather_of(version));
    REQUIRE(root.on_report(0, report));
  }
  root.begin(sync::catch_up_gather_of(20));
  REQUIRE(root.on_offer(0, offer_of(sync::catch_up_gather_of(20), {}, 1)));
  REQUIRE(root.window_ended());
  const auto totals = root.finished();
  REQUIRE(totals);
  REQUIRE(totals->reported);
  REQUIRE(totals->step == 20);
  REQUIRE(totals->changed == 120);
  REQUIRE(totals->digest_changes.size() == 21);
  REQUIRE((totals->digest_changes[0] == std::pair<std::uint32_t, std::uint64_t>{3, 210}));
}

TEST_CASE("a version that a rank left half done is never finished; once dropped, its digests come with the next") {
  for (const bool first_aborts : {false, true}) {
    GatherRoot root(2, 1, 100);
    root.begin(sync::gather_of(1));
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      REQUIRE(root.on_offer(rank, offer_of(sync::gather_of(1), {}, 1)));
      wire::CaptureReport report = report_of(1);
      report.digest_changes = {{0, 5}};
      report.aborted = (rank == 0) == first_aborts ? 1 : 0;
      REQUIRE(root.on_report(rank, report));
    }
    REQUIRE(root.window_ended());
    REQUIRE_FALSE(root.finished());
    root.drop(sync::gather_of(1));
    root.begin(sync::gather_of(2));
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      REQUIRE(root.on_offer(rank, offer_of(sync::gather_of(2), {}, 1)));
      wire::CaptureReport report = report_of(2);
      report.digest_changes = {{0, 7}};
      REQUIRE(root.on_report(rank, report));
    }
    REQUIRE(root.window_ended());
    const auto totals = root.finished();
    REQUIRE(totals);
    REQUIRE((totals->digest_changes == std::vector<std::pair<std::uint32_t, std::uint64_t>>{{0, 24}}));
  }
}

TEST_CASE(
  "a held gather grants nothing, but tells what the ranks have reported; begun again, it runs and tells it once") {
  GatherRoot root(2, 1, 100);
  const std::uint64_t gather = sync::gather_of(1);
  REQUIRE(root.on_offer(0, offer_of(gather, {{0, 10}}, 1)));
  root.begin(gather, true);
  REQUIRE(root.on_offer(1, offer_of(gather, {}, 1)));
  REQUIRE(root.next_round().empty());
  REQUIRE_FALSE(root.window_ended());
  REQUIRE_FALSE(root.known());
  REQUIRE(root.waiting_for() == std::vector<std::uint32_t>{0, 1});
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    wire::CaptureReport report = report_of(1, 30);
    report.elements = 7;
    report.digest_changes = {{4, 3 + rank}};
    REQUIRE(root.on_report(rank, report));
  }
  REQUIRE(root.waiting_for().empty()); // windows need not be complete
  const auto known = root.known();
  REQUIRE(known);
  REQUIRE(known->gather == gather);
  REQUIRE(known->reported);
  REQUIRE(known->step == 30);
  REQUIRE(known->elements == 14);
  REQUIRE((known->digest_changes == std::vector<std::pair<std::uint32_t, std::uint64_t>>{{4, 7}}));
  REQUIRE_FALSE(root.known());
  REQUIRE_FALSE(root.finished());
  const bool dropped = GENERATE(false, true);
  if (dropped) {
    root.drop(gather);
  } else {
    root.begin(gather);
    const auto granted = root.next_round();
    REQUIRE(granted.size() == 1);
    REQUIRE(granted[0].rank == 0);
    REQUIRE(root.on_share(0, gather, granted[0].grant.round, 10) == true);
    REQUIRE(root.window_ended());
    const auto totals = root.finished();
    REQUIRE(totals);
    REQUIRE_FALSE(totals->reported);
    REQUIRE(totals->rounds == 1);
    REQUIRE(totals->digest_changes.empty());
  }
  // The next one begins where that ended.
  root.begin(sync::gather_of(2));
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    REQUIRE(root.on_offer(rank, offer_of(sync::gather_of(2), {}, 1)));
    wire::CaptureReport report = report_of(2);
    report.digest_changes = {{4, 1}};
    REQUIRE(root.on_report(rank, report));
  }
  REQUIRE(root.window_ended());
  const auto next = root.finished();
  REQUIRE(next);
  REQUIRE((next->digest_changes == std::vector<std::pair<std::uint32_t, std::uint64_t>>{{4, 2}}));
}

TEST_CASE("of a held gather that a rank has left half done nothing is known") {
  GatherRoot root(1, 1, 100);
  root.begin(sync::gather_of(1), true);
  wire::CaptureReport report = report_of(1);
  report.aborted = 1;
  REQUIRE(root.on_report(0, report));
  REQUIRE_FALSE(root.known());
}

TEST_CASE("a catch-up gather follows its version's own, and tells no report twice") {
  GatherRoot root(1, 1, 100);
  root.begin(sync::gather_of(1));
  REQUIRE(root.on_offer(0, offer_of(sync::gather_of(1), {}, 1)));
  REQUIRE(root.on_offer(0, offer_of(sync::catch_up_gather_of(1), {{0, 30}}, 1))); // ahead
  REQUIRE(root.on_report(0, report_of(1)));
  REQUIRE(root.next_round().empty());
  REQUIRE(root.window_ended());
  REQUIRE(root.finished()->reported);
  root.begin(sync::catch_up_gather_of(1));
  REQUIRE(root.next_round().size() == 1);
  REQUIRE(root.on_share(0, sync::catch_up_gather_of(1), 0, 30) == true);
  REQUIRE(root.window_ended());
  const auto totals = root.finished();
  REQUIRE(totals);
  REQUIRE_FALSE(totals->reported);
  REQUIRE(totals->digest_changes.empty());
  REQUIRE(totals->rounds == 1);
}

TEST_CASE("a dropped gather's share is not used but frees its place in the round, full or empty") {
  for (const std::uint64_t bytes : {60, 0}) {
    CAPTURE(bytes);
    GatherRoot root = gathering();
    REQUIRE(root.on_offer(0, offer_of(2, {{0, 60}}, 3)));
    REQUIRE(root.on_offer(1, offer_of(2, {{0, 30}}, 3)));
    REQUIRE(root.next_round().size() == 1); // the largest piece first: rank 1's does not fit beside it
    root.drop(2);
    REQUIRE(root.held_bytes() == 60);
    root.begin(4);
    REQUIRE(root.on_offer(1, offer_of(4, {{0, 50}}, 1)));
    REQUIRE(root.next_round().empty());
    REQUIRE(root.on_share(0, 2, 0, bytes) == false);
    REQUIRE(root.held_bytes() == 0);
    refuses(root.on_share(0, 2, 0, bytes), "not what it was granted");
    REQUIRE(root.next_round().size() == 1);
    REQUIRE(root.on_share(1, 4, 1, 50) == true);
  }
}

TEST_CASE("a rank that answers a grant with nothing has given up: its gather never completes, and nothing is held") {
  GatherRoot root(1, 1, 100);
  root.begin(2);
  REQUIRE(root.on_offer(0, offer_of(2, {{0, 60}}, 1)));
  REQUIRE(root.on_report(0, report_of(1)));
  REQUIRE(root.next_round().size() == 1);
  REQUIRE(root.on_share(0, 2, 0, 0) == false);
  REQUIRE(root.held_bytes() == 0);
  REQUIRE_FALSE(root.window_ended());
  REQUIRE_FALSE(root.finished());
  root.drop(2);
  root.begin(4);
  REQUIRE(root.on_offer(0, offer_of(4, {}, 1)));
  REQUIRE(root.window_ended());
}

TEST_CASE("a rank refuses a grant of what it did not offer") {
  GatherRank rank({0}, 1);
  refuses(rank.cut({2, 0, 1, 4}), "did not offer");
  REQUIRE(rank.add(chunk_of(2, 0, {4, 6})));
  refuses(rank.cut({4, 0, 1, 4}), "did not offer");
  refuses(rank.cut({2, 0, 2, 11}), "granted 11 bytes where 10 are offered");
  REQUIRE(rank.queued_bytes() == 10);
  REQUIRE(rank.cut({2, 0, 1, 4})->size() == 4);
  refuses(rank.cut({2, 1, 1, 7}), "granted 7 bytes where 6 are offered");
  refuses(rank.cut({2, 1, 1, 5}), "does not end between two pieces");
}

TEST_CASE("a rank refuses a grant of more pieces than it offered") {
  GatherRank rank({0}, 1);
  REQUIRE(rank.add(chunk_of(2, 0, {4, 6})));
  refuses(rank.cut({2, 0, 3, 10}), "does not end between two pieces");
}

TEST_CASE("the root refuses offers that no honest rank makes") {
  GatherRoot root = gathering();
  refuses(root.on_offer(2, offer_of(2, {}, 1)), "rank 2 of 2 ranks");
  refuses(root.on_offer(0, offer_of(1, {}, 1)), "gather 1");
  refuses(root.on_offer(0, offer_of(8, {}, 1)), "gather 8");
  refuses(root.on_offer(0, offer_of(2, {}, 4)), "4 windows complete after 0, of 3");
  refuses(root.on_offer(0, offer_of(2, {{3, 10}}, 0)), "a piece of window 3");
  refuses(root.on_offer(0, offer_of(2, {{0, 0}}, 0)), "a piece of 0 bytes");
  refuses(root.on_offer(0, offer_of(2, {{0, 101}}, 0)), "a piece of 101 bytes; max_round is 100");
  REQUIRE(root.on_offer(0, offer_of(2, {{1, 100}}, 1)));
  refuses(root.on_offer(0, offer_of(2, {}, 0)), "0 windows complete after 1");
  refuses(root.on_offer(0, offer_of(2, {{0, 10}}, 1)), "a piece of window 0 after window 1");
  REQUIRE(root.on_offer(0, offer_of(2, {}, 3)));
  refuses(root.on_offer(0, offer_of(2, {{2, 10}}, 3)), "a piece of window 2 after window 3");
  REQUIRE(root.on_offer(1, offer_of(7, {{2, 1}}, 3))); // ahead as far as is legal
}

TEST_CASE("the root refuses offers and reports of a version that is over") {
  GatherRoot root(1, 1, 100);
  REQUIRE(root.on_offer(0, offer_of(2, {}, 1))); // before it begins
  REQUIRE(root.on_report(0, report_of(1)));
  refuses(root.on_offer(0, offer_of(6, {}, 1)), "gather 6");
  root.begin(2);
  REQUIRE(root.window_ended());
  REQUIRE(root.finished());
  refuses(root.on_offer(0, offer_of(2, {}, 1)), "gather 2");
  refuses(root.on_report(0, report_of(1)), "version 1");
  root.begin(4);
  refuses(root.on_offer(0, offer_of(2, {}, 1)), "gather 2");
  refuses(root.on_offer(0, offer_of(3, {}, 1)), "gather 3"); // it has no catch-up any more
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

TEST_CASE("the root refuses shares that were not granted, or of another length, round or gather") {
  GatherRoot root = gathering();
  REQUIRE(root.on_offer(0, offer_of(2, {{0, 50}, {0, 50}}, 3)));
  refuses(root.on_share(0, 2, 0, 50), "not what it was granted");
  const auto granted = root.next_round();
  REQUIRE(granted.size() == 1);
  REQUIRE(granted[0].grant.bytes == 50);
  refuses(root.on_share(1, 2, 0, 50), "rank 1 sent 50 bytes for round 0 of gather 2");
  refuses(root.on_share(0, 2, 0, 49), "not what it was granted");
  refuses(root.on_share(0, 2, 1, 50), "not what it was granted");
  refuses(root.on_share(0, 3, 0, 50), "not what it was granted");
  refuses(root.on_share(2, 2, 0, 50), "not what it was granted");
  REQUIRE(root.on_share(0, 2, 0, 50) == true);
  refuses(root.on_share(0, 2, 0, 50), "not what it was granted");
  GatherRoot before(1, 1, 100);
  refuses(before.on_share(0, 2, 0, 1), "not what it was granted");
}

TEST_CASE("a piece as large as max_round goes when nothing else is held") {
  GatherRoot root(2, 1, 100);
  REQUIRE_FALSE(root.blocked());
  root.begin(2);
  REQUIRE(root.on_offer(0, offer_of(2, {{0, 40}}, 1)));
  REQUIRE(root.on_offer(1, offer_of(2, {{0, 100}}, 1)));
  const auto first = root.next_round();
  REQUIRE(first.size() == 1);
  REQUIRE(first[0].rank == 0);
  REQUIRE(root.next_round().empty());
  REQUIRE(root.blocked());
  REQUIRE(root.on_share(0, 2, 0, 40) == true);
  REQUIRE(root.next_round().empty());
  REQUIRE(root.blocked()); // until it is consumed
  root.consumed(40);
  const auto second = root.next_round();
  REQUIRE_FALSE(root.blocked()); // all that is offered is on its way
  REQUIRE(second.size() == 1);
  REQUIRE(second[0].rank == 1);
  REQUIRE(second[0].grant.round == 1);
  REQUIRE(root.held_bytes() == 100);
}
