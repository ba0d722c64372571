#include "actors/observer.hpp"

#include "config/address.hpp"
#include "telemetry/catalogue.hpp"
#include "telemetry/log.hpp"
#include "wire/frame.hpp"

#include <algorithm>

namespace deltawire::actors {
namespace {

telemetry::PhaseSpan phase_of(const wire::Span& span) {
  return span.begin <= span.end ? telemetry::PhaseSpan{span.begin, span.end} : telemetry::PhaseSpan{};
}

telemetry::UpdateFacts::Kind kind_of(wire::DeliveryKind kind) {
  switch (kind) {
  case wire::DeliveryKind::seed:
    return telemetry::UpdateFacts::Kind::seed;
  case wire::DeliveryKind::delta:
    return telemetry::UpdateFacts::Kind::delta;
  case wire::DeliveryKind::fold:
    return telemetry::UpdateFacts::Kind::fold;
  }
  return telemetry::UpdateFacts::Kind::delta;
}

telemetry::UpdateFacts facts_of(const wire::DeliveryReport& report) {
  telemetry::UpdateFacts facts;
  facts.version = report.version;
  facts.step = report.step;
  facts.kind = kind_of(report.kind);
  facts.committed = report.committed != 0;
  facts.elements = report.counts.elements;
  facts.changed = report.counts.changed;
  facts.wire_bytes = report.counts.wire_bytes;
  facts.gather_bytes = report.counts.gather_bytes;
  facts.flushes = report.counts.flushes;
  facts.rounds = report.counts.rounds;
  facts.captured_ns = report.times.captured_ns;
  facts.committed_ns = report.times.committed_ns;
  facts.pause_ns = report.times.pause_ns;
  facts.phases = {phase_of(report.times.diff), phase_of(report.times.gather), phase_of(report.times.assemble),
                  phase_of(report.times.send), phase_of(report.times.stage),  phase_of(report.times.commit)};
  facts.gather_queue_peak = report.high_water.gather_queue;
  facts.flush_bucket_peak = report.high_water.flush_bucket;
  for (const wire::WorkerReport& worker : report.workers)
    facts.workers.push_back(
      {worker.index, worker.version, worker.state, worker.digest_ok != 0, worker.pause_ns, worker.matched != 0});
  return facts;
}

} // namespace

Result<std::shared_ptr<telemetry::Endpoint>> serve_metrics(const std::string& address, std::uint32_t index,
                                                           std::shared_ptr<const telemetry::Registry> registry) {
  if (address.empty())
    return nullptr;
  auto parsed = config::metrics_address(address, index);
  if (!parsed)
    return pass_on(std::move(parsed));
  auto endpoint = telemetry::Endpoint::open(parsed->host, parsed->port, std::move(registry));
  if (endpoint && (*endpoint)->made())
    telemetry::log(fmt::format("metrics at http://{}/metrics", (*endpoint)->address()));
  return endpoint;
}

CommitHook counted(const std::shared_ptr<telemetry::Registry>& registry, CommitHook hook) {
  telemetry::Gauge& version = registry->gauge(telemetry::family::served_version);
  telemetry::Counter& commits = registry->counter(telemetry::family::commits);
  return [registry, &version, &commits, hook = std::move(hook)](Version committed, std::span<const Change> changes) {
    version.set(committed);
    commits.add();
    if (hook)
      hook(committed, changes);
  };
}

RankObserver::RankObserver(std::uint32_t rank, std::shared_ptr<telemetry::Registry> registry)
  : rank_(rank), registry_(std::move(registry)), meter_(registry_) {}

Result<void> RankObserver::serve(const std::string& address, std::uint32_t index) {
  auto endpoint = serve_metrics(address, index, registry_);
  if (!endpoint)
    return pass_on(std::move(endpoint));
  const std::lock_guard lock(mutex_);
  endpoint_ = std::move(*endpoint);
  return {};
}

void RankObserver::connected(const RankWork& work, const config::Actors& actors) {
  telemetry::Caps caps;
  caps.rank = rank_;
  caps.own_elements = work.elements;
  caps.chunks = work.chunks.size();
  caps.differs = actors.differ.count;
  for (const Chunk& chunk : work.chunks)
    caps.largest_chunk = std::max(caps.largest_chunk, chunk.worst_case);
  caps.largest_piece = std::min<std::uint64_t>(caps.largest_chunk, work.piece_limit);
  caps.inflight = actors.differ.inflight;
  caps.max_round = actors.gather_queue.max_round;
  caps.flush_cap = actors.flush_bucket.cap;
  caps.flush_payload =
    actors.flush_bucket.cap == config::unlimited ? config::unlimited : actors.flush_bucket.cap - wire::header_bytes;
  const std::lock_guard lock(mutex_);
  watch_.emplace(caps);
}

std::vector<std::string> RankObserver::update_over(const wire::DeliveryReport& report) {
  const telemetry::UpdateFacts facts = facts_of(report);
  std::vector<std::string> texts;
  {
    const std::lock_guard lock(mutex_);
    if (rank_ == 0)
      meter_.update_over(facts);
    if (!watch_)
      return texts;
    for (telemetry::Warning& warning :
         watch_->update_over(facts, registry_->counter(telemetry::family::captured_changes).value())) {
      registry_->counter(telemetry::family::warnings, {{"kind", warning.kind}}).add();
      texts.push_back(std::move(warning.text));
    }
  }
  for (const std::string& text : texts)
    telemetry::log("warning: " + text);
  return texts;
}

void RankObserver::end() {
  const std::lock_guard lock(mutex_);
  endpoint_.reset();
}

} // namespace deltawire::actors
