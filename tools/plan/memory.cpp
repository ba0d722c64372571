#include "memory.hpp"

#include "delta/compression.hpp"
#include "replay/numbers.hpp"

#include <algorithm>
#include <cctype>

namespace deltawire::plan {

namespace {

void add_bound(PeersMemory& memory, std::string stage, std::string key, std::uint64_t each) {
  memory.bounds.push_back({std::move(stage), std::move(key), each, multiply_cap(each, memory.count)});
  memory.most = add_caps(memory.most, memory.bounds.back().most);
  memory.total = add_caps(memory.total, memory.bounds.back().total);
}

/// What depends on the rank's tensors: ranks first..last.
void add_tensor_bounds(PeersMemory& memory, const Coverage& coverage, std::size_t first, std::size_t last) {
  Bound log{"positions of the running capture", "", 0, 0};
  Bound snapshot{"snapshot", "", 0, 0};
  std::uint64_t both = 0;
  for (std::size_t r = first; r <= last; ++r) {
    const RankCoverage& rank = coverage.ranks[r];
    log.most = std::max(log.most, rank.log_bytes);
    log.total += rank.log_bytes;
    snapshot.most = std::max(snapshot.most, rank.snapshot_bytes);
    snapshot.total += rank.snapshot_bytes;
    both = std::max(both, rank.log_bytes + rank.snapshot_bytes);
  }
  memory.most = add_caps(memory.most, both);
  memory.total = add_caps(memory.total, log.total + snapshot.total);
  memory.bounds.push_back(std::move(log));
  memory.bounds.push_back(std::move(snapshot));
}

PeersMemory rank_memory(const config::Topology& topology, const Graph& graph, Peers peers, const Coverage* coverage) {
  PeersMemory memory{peers, graph.count(peers), {}, 0, 0};
  const config::Actors& actors = topology.actors;
  add_bound(memory, "encoded, not sent yet", "actors.differ.inflight", actors.differ.inflight);
  if (peers == Peers::root) {
    add_bound(memory, "gathered, not packed yet", "actors.gather_queue.max_round", actors.gather_queue.max_round);
    add_bound(memory, "flushes: one packed, one on the wire", "actors.flush_bucket.cap",
              multiply_cap(flush_payload(topology), 2));
    if (actors.sender.transport == config::TransportKind::shm)
      add_bound(memory, "shared with workers", "actors.flush_bucket.cap", config::most_shared(actors.flush_bucket.cap));
  } else if (actors.gather_queue.transport == config::TransportKind::shm) {
    add_bound(memory, "shared with rank 0", "actors.gather_queue.max_round",
              config::most_shared(actors.gather_queue.max_round));
  }
  if (actors.flush_bucket.compression == config::Compression::zstd)
    add_bound(memory, "pieces that are compressed", "actors.differ.count",
              multiply_cap(2 * delta::most_plain_bytes, actors.differ.count));
  add_bound(memory, "positions of earlier captures", "actors.snapshotter.log", actors.snapshotter.log);
  if (coverage != nullptr) {
    const std::size_t first = peers == Peers::root ? 0 : 1;
    add_tensor_bounds(memory, *coverage, first, peers == Peers::root ? 0 : graph.ranks - 1);
  }
  return memory;
}

PeersMemory worker_memory(const config::Topology& topology, const Graph& graph) {
  PeersMemory memory{Peers::workers, graph.workers, {}, 0, 0};
  add_bound(memory, "staged until the commit", "actors.applier.stage", topology.actors.applier.stage);
  add_bound(memory, "the flush that arrives", "actors.flush_bucket.cap", flush_payload(topology));
  if (topology.actors.flush_bucket.compression == config::Compression::zstd)
    add_bound(memory, "a piece that is expanded", "actors.flush_bucket.compression", 2 * delta::most_plain_bytes);
  return memory;
}

/// Which peers share a process. Rank 0 has both transports; without other ranks the gather has none to go over.
std::vector<ProcessMemory> processes_of(const config::Topology& topology, const std::vector<PeersMemory>& peers) {
  const bool other_ranks = peers.size() == 3;
  const bool ranks_join = other_ranks && topology.actors.gather_queue.transport == config::TransportKind::inproc;
  const bool workers_join = topology.actors.sender.transport == config::TransportKind::inproc;
  ProcessMemory root{{Peers::root}, ranks_join || workers_join, peers.front().total};
  std::vector<ProcessMemory> processes;
  for (std::size_t i = 1; i < peers.size(); ++i) {
    const bool join = peers[i].peers == Peers::workers ? workers_join : ranks_join;
    if (!join) {
      processes.push_back({{peers[i].peers}, false, peers[i].most});
      continue;
    }
    root.holds.push_back(peers[i].peers);
    root.most = add_caps(root.most, peers[i].total);
  }
  processes.insert(processes.begin(), std::move(root));
  return processes;
}

} // namespace

std::uint64_t add_caps(std::uint64_t a, std::uint64_t b) noexcept {
  return a > config::unlimited - b ? config::unlimited : a + b;
}

std::uint64_t multiply_cap(std::uint64_t cap, std::uint64_t factor) noexcept {
  if (factor == 0)
    return 0;
  return cap > config::unlimited / factor ? config::unlimited : cap * factor;
}

std::string cap_text(std::uint64_t bytes) {
  if (bytes == config::unlimited)
    return "unlimited";
  std::string text = replay::short_bytes(bytes);
  // "64.0MiB" is how a power of two should not look.
  for (const std::string_view zeros : {".00", ".0"})
    if (const auto at = text.find(zeros); at != std::string::npos && std::isalpha(text[at + zeros.size()]) != 0)
      text.erase(at, zeros.size());
  return text;
}

Memory memory_of(const config::Topology& topology, const Graph& graph, const Coverage* coverage) {
  Memory memory;
  memory.peers.push_back(rank_memory(topology, graph, Peers::root, coverage));
  if (graph.ranks > 1)
    memory.peers.push_back(rank_memory(topology, graph, Peers::ranks, coverage));
  memory.peers.push_back(worker_memory(topology, graph));
  memory.processes = processes_of(topology, memory.peers);
  return memory;
}

} // namespace deltawire::plan
