#include "remarks.hpp"

#include "config/address.hpp"
#include "delta/gpu_ranges.hpp"
#include "delta/piece.hpp"
#include "graph.hpp"
#include "memory.hpp"
#include "sync/chunks.hpp"
#include "telemetry/updates.hpp"

#include <algorithm>
#include <array>

namespace deltawire::plan {

namespace {

Result<std::size_t> limit_of(const config::Actors& actors, std::size_t element) {
  return sync::piece_limit(actors.differ.inflight, actors.gather_queue.max_round, actors.flush_bucket.cap, element,
                           actors.flush_bucket.compression == config::Compression::zstd);
}

/// The sizes that matter, of the checkpoint's chunks or of full ones of 2-byte elements.
struct Sizes {
  std::uint64_t piece_limit = 0;
  std::uint64_t largest_chunk = 0; ///< worst case
  std::uint64_t largest_piece = 0;
};

constexpr std::size_t assumed_element = 2;

Sizes sizes_of(const config::Actors& actors, const Coverage* coverage) {
  if (coverage != nullptr)
    return {coverage->piece_limit, coverage->largest_chunk, coverage->largest_piece};
  const auto limit = limit_of(actors, assumed_element);
  if (!limit)
    return {*limit_of(actors, 1), 0, 0};
  const std::uint64_t elements =
    sync::chunk_elements(assumed_element, actors.differ.chunk, actors.differ.inflight, *limit);
  const std::uint64_t worst = delta::worst_case_bytes(elements, assumed_element, *limit);
  return {*limit, worst, std::min<std::uint64_t>(worst, *limit)};
}

class Remarks {
public:
  Remarks(const config::Topology& topology, const Coverage* coverage)
    : topology_(topology), actors_(topology.actors), coverage_(coverage), sizes_(sizes_of(actors_, coverage)) {}

  std::vector<std::string> make() {
    too_small_for_some_dtypes();
    casts();
    piece();
    chunk();
    credit();
    rounds();
    flushes();
    stage();
    window();
    snapshots();
    return std::move(lines_);
  }

private:
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    lines_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  /// What worst cases are of, unless there is a checkpoint.
  [[nodiscard]] const char* assumption() const { return coverage_ != nullptr ? "" : ", of 2-byte elements"; }

  void too_small_for_some_dtypes() {
    if (coverage_ != nullptr) // they are refused where a tensor has one
      return;
    for (const std::size_t size : {2u, 4u, 8u})
      if (const auto limit = limit_of(actors_, size); !limit)
        return say("Tensors of {}-byte elements will be refused. {}", size, limit.error().message);
  }

  /// With a checkpoint, its parameters are counted.
  void casts() {
    if (coverage_ == nullptr && topology_.trainer.wire_dtype.cast_to)
      say("Floating-point parameters of the trainer are cast to {} before they are compared and sent "
          "(update.wire_dtype), but for those whose placement says otherwise.",
          layout::to_string(topology_.trainer.wire_dtype));
  }

  void piece() {
    const std::array<std::pair<const char*, std::uint64_t>, 3> caps{
      {{"actors.differ.inflight", actors_.differ.inflight},
       {"actors.gather_queue.max_round", actors_.gather_queue.max_round},
       {"actors.flush_bucket.cap less a header", flush_payload(topology_)}}};
    const auto* binding =
      std::min_element(caps.begin(), caps.end(), [](auto& a, auto& b) { return a.second < b.second; });
    const bool own = binding->second > sizes_.piece_limit;
    const char* most = actors_.flush_bucket.compression == config::Compression::zstd
                         ? "the most that is compressed at a time"
                         : "the most there is";
    say("A piece is at most {} ({}): pieces are never cut on their way.", cap_text(sizes_.piece_limit),
        own ? most : binding->first);
  }

  void chunk() {
    if (actors_.differ.chunk > sync::largest_chunk)
      say("actors.differ.chunk: a chunk is at most {}.", cap_text(sync::largest_chunk));
    const auto limit = limit_of(actors_, assumed_element);
    if (!limit)
      return;
    const std::uint64_t wanted = std::min(actors_.differ.chunk, sync::largest_chunk);
    const std::uint64_t got =
      assumed_element * sync::chunk_elements(assumed_element, actors_.differ.chunk, actors_.differ.inflight, *limit);
    if (got + assumed_element * delta::tile_elements <= wanted)
      say("A chunk of 2-byte elements is cut to {}, not {} (actors.differ.chunk): encoded, it must fit "
          "actors.differ.inflight whatever changes.",
          cap_text(got), cap_text(actors_.differ.chunk));
  }

  void credit() {
    if (sizes_.largest_chunk == 0)
      return;
    const std::uint64_t fit = actors_.differ.inflight / sizes_.largest_chunk;
    const std::uint64_t out = 2ull * actors_.differ.count;
    if (fit >= out || (coverage_ != nullptr && actors_.differ.inflight >= most_encoded_by_a_rank()))
      return;
    say("actors.differ.inflight has room for {} of the {} chunks that {} at a time ({} each at worst{}): a capture "
        "goes on without, and encodes the rest from its log afterwards{}.",
        fit, out, actors_.differ.count == 1 ? "a Differ gets" : "the Differs get", cap_text(sizes_.largest_chunk),
        assumption(), fit < actors_.differ.count ? "; not all Differs encode at once" : "");
  }

  void rounds() {
    if (sizes_.largest_piece <= actors_.gather_queue.max_round / 2)
      return;
    say("actors.gather_queue.max_round holds one piece of the largest size ({}{}), not two: such pieces are gathered "
        "one by one, each after the last is packed. {} would let them overlap.",
        cap_text(sizes_.largest_piece), assumption(), cap_text(2 * sizes_.largest_piece));
  }

  void flushes() {
    const std::uint64_t payload = flush_payload(topology_);
    if (actors_.gather_queue.max_round == config::unlimited ||
        multiply_cap(payload, 2) >= actors_.gather_queue.max_round)
      return;
    say(
      "Two flushes (actors.flush_bucket.cap) hold less than a round (actors.gather_queue.max_round): the gather waits "
      "for the workers.");
  }

  void stage() {
    const std::uint64_t stage = actors_.applier.stage;
    if (stage == config::unlimited)
      return;
    std::uint64_t most = 0;
    if (coverage_ != nullptr)
      for (const WorkerCoverage& worker : coverage_->workers)
        most = std::max(most, worker.staged_bytes);
    if (coverage_ != nullptr && most <= stage)
      return say("Every update fits actors.applier.stage: decoded, a worker has at most {} of it.", cap_text(most));
    const std::string all =
      coverage_ == nullptr ? "" : fmt::format(" One that changes every element may have {}.", cap_text(most));
    say("An update of which a worker has more than {} decoded is refused (actors.applier.stage): the value of each "
        "change and 2 bytes for its place, up to 8 where runs are short or the order differs; a seed is not staged.{}",
        cap_text(stage), all);
    if (stage < flush_payload(topology_))
      say("actors.applier.stage is less than one flush (actors.flush_bucket.cap).");
  }

  void window() {
    if (coverage_ == nullptr || coverage_->largest_window <= actors_.gather_queue.window)
      return;
    say("A window holds whole parameters: the largest has {}, more than actors.gather_queue.window ({}).",
        cap_text(coverage_->largest_parameter), cap_text(actors_.gather_queue.window));
  }

  void snapshots() {
    if (actors_.snapshotter.tier != config::Tier::device)
      return;
    say(
      "Snapshots of parameters on a GPU are in its memory (actors.snapshotter.tier), and each of the {} Differs takes "
      "{} of it, and of pinned memory, besides copies of chunks. Where parameters are a plan does not know: it counts "
      "all snapshots as the host's.",
      actors_.differ.count, telemetry::bytes_text(delta::GpuRanges::buffer_bytes({})));
  }

  [[nodiscard]] std::uint64_t most_encoded_by_a_rank() const {
    std::uint64_t most = 0;
    for (const RankCoverage& rank : coverage_->ranks)
      most = std::max(most, rank.encoded_bytes);
    return most;
  }

  const config::Topology& topology_;
  const config::Actors& actors_;
  const Coverage* coverage_;
  Sizes sizes_;
  std::vector<std::string> lines_;
};

} // namespace

std::vector<std::string> remarks_on(const config::Topology& topology, const Coverage* coverage) {
  return Remarks(topology, coverage).make();
}

std::vector<std::string> trusted_planes(const config::Topology& topology) {
  const Graph graph = graph_of(topology);
  const bool encrypted = !topology.transport.secret_file.empty();
  const auto says = [&](std::string_view stage, Medium medium) -> std::string {
    switch (medium) {
    case Medium::message:
    case Medium::inproc:
      return {};
    case Medium::shm:
      return fmt::format("{} over shm: memory that this user's processes on this host share, not encrypted; the kernel "
                         "says who is at the other end: trust whoever runs as this user",
                         stage);
    case Medium::tcp:
      break;
    }
    if (encrypted)
      return fmt::format("{} over tcp: encrypted and authenticated both ways (TLS 1.3 with transport.secret_file): "
                         "trust whoever can read the secret",
                         stage);
    return fmt::format("{} over tcp: neither encrypted nor authenticated; only loopback addresses are accepted", stage);
  };
  std::vector<std::string> lines;
  if (graph.ranks > 1)
    lines.push_back(says("gather", medium_of(topology.actors.gather_queue.transport)));
  lines.push_back(says("delivery", medium_of(topology.actors.sender.transport)));
  std::erase(lines, "");
  if (const auto metrics = config::parse_address(topology.telemetry.prometheus);
      metrics && !config::is_loopback(metrics->host))
    lines.push_back(fmt::format("metrics at {} (telemetry.prometheus): read-only, but neither encrypted nor "
                                "authenticated, and not only for this machine",
                                topology.telemetry.prometheus));
  return lines;
}

} // namespace deltawire::plan
