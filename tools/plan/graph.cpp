#include "graph.hpp"

#include "wire/frame.hpp"

#include <algorithm>

namespace deltawire::plan {

namespace {

class Builder {
public:
  explicit Builder(const config::Topology& topology) : topology_(topology) {
    graph_.ranks = static_cast<std::uint32_t>(topology.trainer.mesh.size());
    graph_.workers = static_cast<std::uint32_t>(topology.worker.mesh.size());
    graph_.replicas = static_cast<std::uint32_t>(graph_.workers / topology.workers_per_replica());
    if (medium_of(topology.actors.gather_queue.transport) != Medium::inproc)
      graph_.connecting_ranks = graph_.ranks - 1;
    if (medium_of(topology.actors.sender.transport) != Medium::inproc)
      graph_.connecting_workers = graph_.workers;
  }

  Graph build() {
    const std::size_t root_queue = add_rank(Peers::root);
    if (graph_.ranks > 1) {
      const std::size_t queue = add_rank(Peers::ranks);
      connect({queue, root_queue, "rounds", medium_of(actors().gather_queue.transport), actors().gather_queue.max_round,
               "actors.gather_queue.max_round", "the root's grant", root_queue, queue});
    }
    const std::size_t bucket = add({Peers::root, "flush bucket", 1, Thread::pool});
    const std::size_t sender = add({Peers::root, "sender", 1, Thread::own});
    connect({root_queue, bucket, "rounds", Medium::message, actors().gather_queue.max_round,
             "actors.gather_queue.max_round", "room in its two buffers", bucket, root_queue});
    connect({bucket, sender, "one flush", Medium::message, actors().flush_bucket.cap, "actors.flush_bucket.cap",
             "the last one, staged by all", sender, bucket});

    const std::size_t applier = add({Peers::workers, "applier", 1, Thread::own});
    const std::size_t bound = add({Peers::workers, "bound memory", 1, Thread::memory});
    add({Peers::workers, "supervisor", 1, Thread::pool});
    connect({sender, applier, "one flush", medium_of(actors().sender.transport), actors().flush_bucket.cap,
             "actors.flush_bucket.cap", "the last one, staged", applier, sender});
    connect({applier, bound, "an update", Medium::message, actors().applier.stage, "actors.applier.stage",
             "the root's commit", sender, applier});
    return std::move(graph_);
  }

private:
  [[nodiscard]] const config::Actors& actors() const noexcept { return topology_.actors; }

  std::size_t add(Node node) {
    graph_.nodes.push_back(std::move(node));
    return graph_.nodes.size() - 1;
  }

  void connect(Arrow arrow) { graph_.arrows.push_back(std::move(arrow)); }

  /// What every rank has, up to its gather queue, which is returned.
  std::size_t add_rank(Peers peers) {
    const config::Differ& settings = actors().differ;
    const Thread thread = settings.thread == config::ThreadKind::detached ? Thread::own : Thread::pool;
    add({peers, "supervisor", 1, Thread::pool});
    const std::size_t tensors = add({peers, "tensors", 1, Thread::memory});
    const std::size_t snapshotter = add({peers, "snapshotter", 1, Thread::pool});
    const std::size_t differ = add({peers, "differ", settings.count, thread});
    const std::size_t queue = add({peers, "gather queue", 1, Thread::own});
    // Read in place: nothing of the tensors is copied but what goes into the snapshot.
    connect({tensors, differ, "values", Medium::message, config::unlimited, "", "", differ, tensors});
    connect({snapshotter, differ, "chunks", Medium::message, settings.inflight, "actors.differ.inflight",
             "a free Differ", differ, snapshotter});
    connect({differ, queue, "pieces", Medium::message, settings.inflight, "actors.differ.inflight", "bytes that left",
             queue, snapshotter});
    return queue;
  }

  const config::Topology& topology_;
  Graph graph_;
};

std::string numbered(std::string_view kind, std::uint32_t first, std::uint32_t last) {
  if (first == last)
    return fmt::format("{} {}", kind, first);
  return fmt::format("{}s {}-{}", kind, first, last);
}

} // namespace

std::string_view to_string(Peers peers) noexcept {
  switch (peers) {
  case Peers::root:
    return "root";
  case Peers::ranks:
    return "ranks";
  case Peers::workers:
    break;
  }
  return "workers";
}

std::string_view to_string(Thread thread) noexcept {
  switch (thread) {
  case Thread::pool:
    return "pool";
  case Thread::own:
    return "own";
  case Thread::memory:
    break;
  }
  return "memory";
}

std::string_view to_string(Medium medium) noexcept {
  switch (medium) {
  case Medium::message:
    return "message";
  case Medium::inproc:
    return "inproc";
  case Medium::shm:
    return "shm";
  case Medium::tcp:
    break;
  }
  return "tcp";
}

Medium medium_of(config::TransportKind kind) noexcept {
  switch (kind) {
  case config::TransportKind::inproc:
    return Medium::inproc;
  case config::TransportKind::shm:
    return Medium::shm;
  case config::TransportKind::automatic:
  case config::TransportKind::tcp:
    break;
  }
  return Medium::tcp;
}

std::string id_of(const Node& node) {
  std::string id = fmt::format("{}.{}", to_string(node.peers), node.name);
  std::replace(id.begin(), id.end(), ' ', '_');
  return id;
}

std::uint32_t Graph::count(Peers peers) const noexcept {
  switch (peers) {
  case Peers::root:
    return 1;
  case Peers::ranks:
    return ranks - 1;
  case Peers::workers:
    break;
  }
  return workers;
}

Graph graph_of(const config::Topology& topology) {
  return Builder(topology).build();
}

std::string name_of(const Graph& graph, Peers peers) {
  switch (peers) {
  case Peers::root:
    return "rank 0";
  case Peers::ranks:
    return numbered("rank", 1, graph.ranks - 1);
  case Peers::workers:
    break;
  }
  return numbered("worker", 0, graph.workers - 1);
}

std::uint64_t flush_payload(const config::Topology& topology) noexcept {
  const std::uint64_t cap = topology.actors.flush_bucket.cap;
  if (cap == config::unlimited)
    return cap;
  return cap < wire::header_bytes ? 0 : cap - wire::header_bytes;
}

} // namespace deltawire::plan
