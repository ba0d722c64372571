#include "plan_bench.hpp"

#include "layout/plan.hpp"
#include "layout/side.hpp"
#include "sync/capture_walk.hpp"
#include "sync/chunks.hpp"
#include "sync/gather.hpp"
#include "sync/route_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <malloc.h>
#include <stdexcept>
#include <string>

namespace deltawire::bench {
namespace {

using layout::Declaration;
using layout::Index;
using layout::LocalTensor;
using layout::Side;

constexpr Index layers = 94;
constexpr Index experts = 128;
constexpr Index hidden = 4096;
constexpr Index intermediate = 1536;
constexpr Index vocabulary = 151936;

// The topology's defaults.
constexpr std::uint64_t window_bytes = std::uint64_t{256} << 20;
constexpr std::uint64_t max_round = std::uint64_t{64} << 20;
constexpr std::uint64_t chunk_bytes = std::uint64_t{32} << 20;
constexpr std::uint64_t inflight = std::uint64_t{256} << 20;
constexpr std::uint64_t flush_cap = std::uint64_t{256} << 20;

template <class T>
T taken(Result<T> result) {
  if (!result)
    throw std::logic_error("the bench's own model is refused: " + result.error().message);
  return std::move(*result);
}

layout::Mesh mesh_of(std::vector<layout::Axis> axes) {
  return taken(layout::Mesh::make(std::move(axes)));
}

layout::MapRule map_of(std::string parameter, std::string slot, std::string slice) {
  layout::MapRule rule;
  rule.parameter = std::move(parameter);
  rule.slot = std::move(slot);
  rule.slice = std::move(slice);
  return rule;
}

/// Expert parallel times sharded: experts over both, everything else over all ranks.
Side trainer_side() {
  layout::SideRules rules;
  rules.mesh = mesh_of({{"ep", 8}, {"fsdp", 8}});
  rules.placements = {{"*.experts.*", {"ep:0", "fsdp:1"}, ""}, {"*", {"ep:0", "fsdp:0"}, ""}};
  const std::string stack = "model.layers.{l}.mlp.experts.";
  rules.maps = {map_of(stack + "gate_up_proj", stack + "{e}.gate_proj.weight", "[e, 0:1536, :]"),
                map_of(stack + "gate_up_proj", stack + "{e}.up_proj.weight", "[e, 1536:3072, :]"),
                map_of(stack + "down_proj", stack + "{e}.down_proj.weight", "[e, :, :]")};
  return taken(Side::compile(std::move(rules), Side::Role::trainer));
}

struct Serving {
  const char* what;
  layout::Mesh mesh;
  std::vector<std::string> w13, w2; ///< cuts of the two expert stacks
};

Side worker_side(const Serving& serving) {
  layout::SideRules rules;
  rules.mesh = serving.mesh;
  rules.placements = {{"*.w13_weight", serving.w13, ""},      {"*.w2_weight", serving.w2, ""},
                      {"*.o_proj.weight", {"tp:1"}, ""},      {"*.q_proj.weight", {"tp:0"}, ""},
                      {"*embed_tokens.weight", {"tp:0"}, ""}, {"lm_head.weight", {"tp:0"}, ""}};
  const std::string stack = "model.layers.{l}.mlp.experts.";
  rules.maps = {map_of(stack + "w13_weight", stack + "{e}.gate_proj.weight", "[e, 0:1536, :]"),
                map_of(stack + "w13_weight", stack + "{e}.up_proj.weight", "[e, 1536:3072, :]"),
                map_of(stack + "w2_weight", stack + "{e}.down_proj.weight", "[e, :, :]")};
  return taken(Side::compile(std::move(rules), Side::Role::worker));
}

std::vector<LocalTensor> model() {
  std::vector<LocalTensor> tensors;
  const auto add = [&](const std::string& name, layout::Shape shape) {
    tensors.push_back({name, DType::bf16, std::move(shape), {}});
  };
  add("model.embed_tokens.weight", {vocabulary, hidden});
  for (Index l = 0; l < layers; ++l) {
    const std::string layer = fmt::format("model.layers.{}.", l);
    add(layer + "input_layernorm.weight", {hidden});
    add(layer + "self_attn.q_proj.weight", {8192, hidden});
    add(layer + "self_attn.k_proj.weight", {512, hidden});
    add(layer + "self_attn.v_proj.weight", {512, hidden});
    add(layer + "self_attn.q_norm.weight", {128});
    add(layer + "self_attn.k_norm.weight", {128});
    add(layer + "self_attn.o_proj.weight", {hidden, 8192});
    add(layer + "post_attention_layernorm.weight", {hidden});
    add(layer + "mlp.gate.weight", {experts, hidden});
    add(layer + "mlp.experts.gate_up_proj", {experts, 2 * intermediate, hidden});
    add(layer + "mlp.experts.down_proj", {experts, hidden, intermediate});
  }
  add("model.norm.weight", {hidden});
  add("lm_head.weight", {vocabulary, hidden});
  return tensors;
}

/// Bytes that the program has allocated.
double live_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<double>(info.uordblks) + static_cast<double>(info.hblkhd);
}

/// The most memory of this process that was resident since restart_peak(), bytes; 0 where the kernel does not tell.
double resident_peak() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:"))
      return 1024.0 * std::stod(line.substr(6));
  return 0;
}

void restart_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

/// Of this process, all in one thread: what others do meanwhile does not count.
double processor_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

class Rows {
public:
  explicit Rows(Report& report) : report_(report) {}

  /// Times `work` and adds a row: its seconds, the bytes that it left allocated, and its own words. Returns what it
  /// returned.
  template <class Work, class Say>
  auto timed(const std::string& name, double weights, const Work& work, const Say& say) {
    const double before = live_bytes();
    const double begin = processor_seconds();
    auto result = work();
    const double seconds = std::max(processor_seconds() - begin, 1e-9);
    report_.rows.push_back(
      {name,
       fmt::format("{:.3f} s, {:.1f} MB: {}", seconds, (live_bytes() - before) * 1e-6, say(result)),
       1,
       weights / seconds,
       {}});
    return result;
  }

private:
  Report& report_;
};

/// One update in which nothing changed, as the machines of all ranks and of the root see it.
class EmptyUpdate {
public:
  EmptyUpdate(const layout::Plan& plan, const std::vector<std::vector<sync::Chunk>>& chunks)
    : root_(static_cast<std::uint32_t>(plan.ranks.size()), plan.windows, max_round) {
    for (const auto& of_rank : chunks) {
      std::vector<std::uint64_t> worst;
      std::vector<std::uint32_t> windows;
      for (const sync::Chunk& chunk : of_rank) {
        worst.push_back(chunk.worst_case);
        windows.push_back(chunk.window);
      }
      walks_.emplace_back(std::move(worst), inflight, 4);
      ranks_.emplace_back(std::move(windows), plan.windows);
    }
  }

  /// Returns what the ranks say to the root.
  std::size_t run() {
    ++version_;
    const std::uint64_t gather = sync::gather_of(version_);
    root_.begin(gather);
    std::size_t messages = 0;
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
      sync::CaptureWalk& walk = walks_[r];
      walk.start(false);
      while (const auto hand_out = walk.next()) {
        walk.done(*hand_out, 0, 0);
        sync::EncodedChunk empty;
        empty.gather = gather;
        empty.chunk = hand_out->chunk;
        if (const auto offer = ranks_[r].add(std::move(empty)))
          messages += say(r, *offer);
      }
      if (!walk.captured() || !walk.idle())
        throw std::logic_error("the walk stands still");
      wire::CaptureReport report;
      report.version = version_;
      report.step = version_;
      if (!root_.on_report(r, report))
        throw std::logic_error("a report is refused");
      ++messages;
      advance();
    }
    if (!finished_)
      throw std::logic_error("the gather stands still");
    finished_ = false;
    return messages;
  }

private:
  std::size_t say(std::uint32_t rank, const wire::Offer& offer) {
    if (!root_.on_offer(rank, offer))
      throw std::logic_error("an offer is refused");
    advance();
    return 1;
  }

  /// As the root's gather queue does after every message.
  void advance() {
    (void)root_.next_round();
    while (root_.window_ended())
      (void)root_.next_round();
    if (root_.finished())
      finished_ = true;
  }

  sync::GatherRoot root_;
  std::vector<sync::CaptureWalk> walks_;
  std::vector<sync::GatherRank> ranks_;
  std::uint64_t version_ = 0;
  bool finished_ = false;
};

void add_serving(const Serving& serving, const Side& trainer, const std::vector<LocalTensor>& tensors, Rows& rows) {
  const auto name = [&](const char* what) { return fmt::format("{}, {}", serving.what, what); };
  double weights = 0;
  for (const LocalTensor& tensor : tensors)
    weights += 2 * static_cast<double>(*layout::element_count(tensor.shape));

  const auto ranks = rows.timed(
    name("all ranks declare"), weights,
    [&] {
      std::vector<Declaration> made;
      for (Index rank = 0; rank < trainer.mesh().size(); ++rank)
        made.push_back(taken(trainer.declare_trainer(tensors, rank)));
      return made;
    },
    [](const auto& made) { return fmt::format("{} ranks of {} slots each", made.size(), made[0].slots.size()); });
  const auto catalogue = taken(layout::catalogue(ranks));
  const Side side = worker_side(serving);
  const auto workers = rows.timed(
    name("all workers declare"), weights,
    [&] {
      std::vector<Declaration> made;
      for (Index index = 0; index < side.mesh().size(); ++index) {
        std::vector<LocalTensor> bound;
        for (const layout::ParameterSpec& parameter : taken(side.worker_parameters(catalogue, index)))
          bound.push_back({parameter.name, parameter.dtype, parameter.local_shape, {}});
        made.push_back(taken(side.declare_worker(catalogue, bound, index)));
      }
      return made;
    },
    [](const auto& made) {
      return fmt::format("{} workers of {} parameters", made.size(), made[0].parameters.size());
    });

  restart_peak();
  const double before = live_bytes();
  const auto plan = rows.timed(
    name("compile the plan"), weights, [&] { return taken(layout::compile_plan(ranks, workers, {}, window_bytes)); },
    [&](const layout::Plan& made) {
      std::size_t views = 0;
      for (const auto& blocks : made.workers)
        views += blocks.size();
      return fmt::format(
        "{} slots, {} cells, {} blocks, {} views by workers; at most {:.0f} MB resident with the {:.0f} "
        "MB of declarations",
        made.slots.size(), made.cells.size(), made.blocks, views, resident_peak() * 1e-6, before * 1e-6);
    });
  rows.timed(
    name("routes"), weights, [&] { return sync::rank_local(plan.blocks, plan.cells.size(), plan.workers); },
    [](const sync::RouteTable& made) { return fmt::format("{} routes", made.workers.size()); });
  const std::size_t piece_limit =
    taken(sync::piece_limit(inflight, max_round, flush_cap, sync::largest_element(plan.slots)));
  std::vector<std::vector<sync::Chunk>> chunks;
  rows.timed(
    name("all ranks cut chunks"), weights,
    [&] {
      std::size_t made = 0;
      for (const auto& blocks : plan.ranks) {
        chunks.push_back(sync::cut_chunks(blocks, chunk_bytes, inflight, piece_limit).chunks);
        made += chunks.back().size();
      }
      return made;
    },
    [](std::size_t made) { return fmt::format("{} chunks", made); });
  EmptyUpdate update(plan, chunks);
  (void)update.run(); // warms up
  rows.timed(
    name("an update without a change"), weights, [&] { return update.run(); },
    [&](std::size_t messages) { return fmt::format("{} windows, {} messages to the root", plan.windows, messages); });
}

} // namespace

Report plan_bench() {
  Report report{"plan", {}};
  Rows rows(report);
  const Side trainer = trainer_side();
  const std::vector<LocalTensor> tensors = model();
  for (const Serving& serving : {Serving{"EP8", mesh_of({{"dp", 2}, {"ep", 8}, {"tp", 1}}), {"ep:0"}, {"ep:0"}},
                                 Serving{"TP8", mesh_of({{"dp", 2}, {"tp", 8}}), {"tp:1 by slice"}, {"tp:2"}}})
    add_serving(serving, trainer, tensors, rows);
  return report;
}

} // namespace deltawire::bench
