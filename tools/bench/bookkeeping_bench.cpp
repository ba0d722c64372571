#include "bookkeeping_bench.hpp"

#include "changing_weights.hpp"
#include "measure.hpp"
#include "parallel.hpp"
#include "peers.hpp"
#include "replay/exit_status.hpp"
#include "scratch_folder.hpp"

#include "deltawire/deltawire.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <memory>

namespace deltawire::bench {
namespace {

/// What the figures are related to: the part of a model of 64 GiB that one of 64 ranks reads.
constexpr double share_bytes = 0x1p30;

/// Stacks of experts, each a parameter of the trainer and of the workers, each expert a slot.
struct ExpertModel {
  bool cut = false; ///< every expert over all ranks; else whole, on one of them
  std::uint32_t ranks = 64;
  std::uint32_t workers = 2;
  std::uint32_t stacks = 180;
  std::uint32_t experts = 200; ///< of a stack
  std::uint32_t rows = 64;     ///< of an expert
  std::uint32_t columns = 32;

  [[nodiscard]] std::uint32_t slots() const noexcept { return stacks * experts; }
  [[nodiscard]] std::size_t stack_bytes() const noexcept { return std::size_t{2} * experts * rows * columns; }
  [[nodiscard]] std::size_t bytes() const noexcept { return stacks * stack_bytes(); }

  [[nodiscard]] std::string topology() const {
    constexpr const char* map = R"([[{0}.map]]
parameter = "layers.{{l}}.experts.weight"
slot = "layers.{{l}}.experts.{{e}}.weight"
slice = "[e, :, :]"
)";
    // As many windows as 64 GiB have with stacks of 364 MiB: one a stack.
    return fmt::format(R"([trainer]
mesh = [["fsdp", {}]]
[[trainer.placement]]
parameter = "*"
shard = ["fsdp:{}"]
)",
                       ranks, cut ? 1 : 0) +
           fmt::format(map, "trainer") +
           fmt::format("[worker]\nmesh = [[\"tp\", {}]]\n[[worker.placement]]\nparameter = \"*\"\nshard = [\"tp:1\"]\n",
                       workers) +
           fmt::format(map, "worker") +
           fmt::format("[update]\nconnect = \"30min\"\nstall = \"2min\"\n[transport]\nmaster = "
                       "\"127.0.0.1:1\"\n[actors.gather_queue]\ntransport = \"inproc\"\n"
                       "window = \"{}B\"\n[actors.sender]\ntransport = \"inproc\"\n",
                       stack_bytes());
  }
};

/// A part of ceil(length / parts) indices, as far as they go.
std::pair<std::size_t, std::size_t> part_of(std::size_t length, std::size_t parts, std::size_t index) {
  const std::size_t each = (length + parts - 1) / parts;
  const std::size_t first = std::min(length, index * each);
  return {first, std::min(length, first + each) - first};
}

/// All ranks and workers in this process. Each has memory of its own.
class ExpertSession {
public:
  ExpertSession(const ExpertModel& model, const std::string& topology, const std::vector<std::string>& overrides)
    : model_(model) {
    const std::size_t row_bytes = std::size_t{2} * model.columns;
    for (std::uint32_t rank = 0; rank < model.ranks; ++rank) {
      const std::size_t experts = model.cut ? model.experts : part_of(model.experts, model.ranks, rank).second;
      const std::size_t rows = model.cut ? part_of(model.rows, model.ranks, rank).second : model.rows;
      const HugeArray& memory =
        memories_.emplace_back(std::max<std::size_t>(1, model.stacks * experts * rows * row_bytes));
      std::memset(memory.data(), static_cast<int>(rank + 1), memory.size());
      publishers_.push_back(Publisher::open(topology, {.rank = rank, .world = model.ranks, .overrides = overrides}));
      for (std::uint32_t stack = 0; stack < model.stacks; ++stack)
        publishers_.back().add({fmt::format("layers.{}.experts.weight", stack),
                                DType::bf16,
                                {model.experts, model.rows, model.columns},
                                experts * rows == 0 ? nullptr : memory.data() + stack * experts * rows * row_bytes});
    }
    for (std::uint32_t worker = 0; worker < model.workers; ++worker) {
      const std::size_t rows = part_of(model.rows, model.workers, worker).second;
      const HugeArray& memory =
        memories_.emplace_back(std::max<std::size_t>(1, model.stacks * model.experts * rows * row_bytes));
      std::memset(memory.data(), 0, memory.size());
      subscribers_.push_back(Subscriber::open(topology, {.worker = worker, .overrides = overrides}));
      for (std::uint32_t stack = 0; stack < model.stacks; ++stack)
        subscribers_.back().bind({fmt::format("layers.{}.experts.weight", stack),
                                  DType::bf16,
                                  {model.experts, static_cast<std::int64_t>(rows), model.columns},
                                  memory.data() + stack * model.experts * rows * row_bytes});
    }
  }

  Result<void> connect() {
    return all_at_once(publishers_.size() + subscribers_.size(), [&](std::size_t peer) {
      if (peer < publishers_.size())
        publishers_[peer].connect();
      else
        subscribers_[peer - publishers_.size()].start();
    });
  }

  /// What the root says of an update, once all ranks have heard of it.
  Result<Outcome> update() {
    Outcome outcome;
    auto ran = replay::catching([&]() -> Result<void> {
      ++step_;
      std::vector<Ticket> tickets;
      for (Publisher& publisher : publishers_)
        tickets.push_back(publisher.publish(step_));
      for (Ticket& ticket : tickets)
        if (Outcome heard = ticket.wait(); &ticket == tickets.data())
          outcome = std::move(heard);
      return {};
    });
    if (!ran)
      return pass_on(std::move(ran));
    if (!outcome.committed)
      return fail(outcome.error, "version {} was not committed: {}", outcome.version, outcome.error_message);
    return outcome;
  }

  Result<void> close() {
    auto closed = all_at_once(publishers_.size(), [&](std::size_t rank) { publishers_[rank].close(); });
    auto ended = all_at_once(subscribers_.size(), [&](std::size_t worker) { subscribers_[worker].close(); });
    return closed ? ended : closed;
  }

private:
  ExpertModel model_;
  std::vector<HugeArray> memories_; ///< outlive those who use them
  std::vector<Publisher> publishers_;
  std::vector<Subscriber> subscribers_;
  std::uint64_t step_ = 0;
};

/// Processor time of all threads of this process.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Bytes of each of two equal arrays that one core compares in a second of its own time, past the caches.
class CompareSpeed {
public:
  CompareSpeed() {
    std::memset(a_.data(), 1, bytes);
    std::memset(b_.data(), 1, bytes);
  }

  [[nodiscard]] double measure() const {
    const double before = processor_seconds();
    keep(static_cast<std::size_t>(std::memcmp(a_.data(), b_.data(), bytes)));
    return bytes / (processor_seconds() - before);
  }

private:
  static constexpr std::size_t bytes = std::size_t{256} << 20;
  HugeArray a_{bytes};
  HugeArray b_{bytes};
};

Result<Row> measure(const ExpertModel& model, std::size_t runs, const std::vector<std::string>& overrides) {
  const auto folder = ScratchFolder::make();
  if (!folder)
    return tl::make_unexpected(folder.error());
  const auto topology = folder->write("bookkeeping.toml", model.topology());
  if (!topology)
    return tl::make_unexpected(topology.error());
  std::unique_ptr<ExpertSession> session;
  auto connected = replay::catching([&]() -> Result<void> {
    session = std::make_unique<ExpertSession>(model, *topology, overrides);
    return session->connect();
  });
  if (!connected)
    return pass_on(std::move(connected));
  const CompareSpeed compare;
  std::vector<double> processor, waited, alone, scans, ratios;
  for (std::size_t round = 0; round < runs + 3; ++round) { // the seed, and two that warm up
    const auto begin = std::chrono::steady_clock::now();
    const double before = processor_seconds();
    auto outcome = session->update();
    const double used = processor_seconds() - before;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!outcome)
      return pass_on(std::move(outcome));
    if (round < 3)
      continue;
    if (outcome->changed != 0)
      return fail(Code::verification_failed, "version {} counts {} changed elements, there are none", outcome->version,
                  outcome->changed);
    const double speed = compare.measure();
    const double scan = share_bytes / speed;
    const double each = used / model.ranks;
    const double book = std::max(0.0, each - static_cast<double>(model.bytes()) / model.ranks / speed);
    processor.push_back(each);
    waited.push_back(seconds);
    alone.push_back(book);
    scans.push_back(scan);
    ratios.push_back(book / scan);
  }
  if (auto closed = session->close(); !closed)
    return pass_on(std::move(closed));
  Row row{fmt::format("{} ranks, experts {}", model.ranks, model.cut ? "cut over all" : "whole"),
          fmt::format("{} slots, nothing changed", model.slots()),
          usable_cores(),
          static_cast<double>(model.bytes()) / median(waited),
          {}};
  constexpr double us = 1e6;
  row.figures.push_back({"update", "publish to committed", "ms", median(waited) * 1e3, true});
  row.figures.push_back({"a rank", "processor", "us", median(processor) * us});
  row.figures.push_back({"a rank", "bookkeeping", "us", median(alone) * us, true});
  row.figures.push_back({"a rank", "scan of 1 GiB", "us", median(scans) * us, true});
  row.figures.push_back({"a rank", "bookkeeping of scan", "%", median(ratios) * 100, true});
  return row;
}

} // namespace

Result<Report> bookkeeping_bench(const BenchOptions& options) {
  Report report{"bookkeeping", {}};
  const auto slots = static_cast<std::uint32_t>(options.tensors.value_or(36'000));
  for (const bool cut : {false, true})
    for (const std::uint32_t fewer : {4u, 1u}) {
      ExpertModel model;
      model.cut = cut;
      model.ranks = static_cast<std::uint32_t>(options.ranks.value_or(model.ranks));
      model.workers = static_cast<std::uint32_t>(options.workers.value_or(model.workers));
      model.experts = std::max(1u, slots / model.stacks / fewer);
      model.columns *= fewer;
      auto row = measure(model, static_cast<std::size_t>(options.runs.value_or(7)), options.overrides);
      if (!row)
        return pass_on(std::move(row));
      report.rows.push_back(std::move(*row));
    }
  return report;
}

} // namespace deltawire::bench
