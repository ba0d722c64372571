// The actors of a topology and the arrows between them: what runs where, what flows, what holds it back. The actors
// are those that actors/trainer_supervisor.cpp and actors/worker_supervisor.cpp spawn; a process test compares this
// graph with the lanes of a real run.
#pragma once

#include "config/topology.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::plan {

/// Peers that hold the same actors. The root is rank 0; `ranks` are the others.
enum class Peers : std::uint8_t { root, ranks, workers };

/// "root", "ranks", "workers".
[[nodiscard]] std::string_view to_string(Peers peers) noexcept;

/// Where an actor runs: on the process's pool, or on a thread of its own. Memory is no actor.
enum class Thread : std::uint8_t { pool, own, memory };

/// "pool", "own", "memory".
[[nodiscard]] std::string_view to_string(Thread thread) noexcept;

struct Node {
  Peers peers = Peers::root;
  std::string name;        ///< "gather queue"
  std::uint32_t count = 1; ///< on each peer
  Thread thread = Thread::pool;
};

/// "root.gather_queue": unique in a graph.
[[nodiscard]] std::string id_of(const Node& node);

/// What an arrow goes over: a message within the process, or a transport.
enum class Medium : std::uint8_t { message, inproc, shm, tcp };

/// "message", "inproc", "shm", "tcp".
[[nodiscard]] std::string_view to_string(Medium medium) noexcept;

/// The medium of a topology's transport: "auto" is tcp, what works between any two processes.
[[nodiscard]] Medium medium_of(config::TransportKind kind) noexcept;

/// Indices are into Graph::nodes.
struct Arrow {
  std::size_t from = 0;
  std::size_t to = 0;
  std::string carries;
  Medium over = Medium::message;
  std::uint64_t at_most = config::unlimited; ///< payload bytes on it at a time
  std::string key;                           ///< of the topology, which sets at_most
  std::string waits_for;                     ///< what holds it back; empty: nothing
  std::size_t credit_from = 0;               ///< who says so to whom
  std::size_t credit_to = 0;
};

struct Graph {
  std::uint32_t ranks = 1;
  std::uint32_t workers = 1;
  std::uint32_t replicas = 1;
  std::vector<Node> nodes;
  std::vector<Arrow> arrows; ///< in the order of the flow
  /// Who connects to the root over a socket: those that are not in its process.
  std::uint32_t connecting_ranks = 0;
  std::uint32_t connecting_workers = 0;

  /// That the root accepts: each has one for control and one for data.
  [[nodiscard]] std::uint32_t connections() const noexcept { return 2 * (connecting_ranks + connecting_workers); }
  [[nodiscard]] std::uint32_t count(Peers peers) const noexcept;
};

[[nodiscard]] Graph graph_of(const config::Topology& topology);

/// "rank 0", "ranks 1-3", "worker 0", "workers 0-1".
[[nodiscard]] std::string name_of(const Graph& graph, Peers peers);

/// Bytes of payload that a flush holds at most: the cap counts its header too.
[[nodiscard]] std::uint64_t flush_payload(const config::Topology& topology) noexcept;

} // namespace deltawire::plan
