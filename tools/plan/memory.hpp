// Memory bounds, from the caps of a topology and, with a checkpoint, from what start-up compiles. Bytes of payload that
// a stage holds at most; the tensors themselves, spare room in buffers and what an operating system holds of a socket
// come on top.
#pragma once

#include "coverage.hpp"
#include "graph.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace deltawire::plan {

/// a + b and a * b of byte caps: "unlimited" stays so.
[[nodiscard]] std::uint64_t add_caps(std::uint64_t a, std::uint64_t b) noexcept;
[[nodiscard]] std::uint64_t multiply_cap(std::uint64_t cap, std::uint64_t factor) noexcept;

/// "64MiB", "1.06GiB", "unlimited": three digits, for people.
[[nodiscard]] std::string cap_text(std::uint64_t bytes);

/// One stage, on each of some peers.
struct Bound {
  std::string stage;       ///< what is held
  std::string key;         ///< of the topology, that bounds it; empty: the tensors do
  std::uint64_t most = 0;  ///< on that peer of them that holds the most
  std::uint64_t total = 0; ///< on all of them
};

struct PeersMemory {
  Peers peers = Peers::root;
  std::uint32_t count = 1;
  std::vector<Bound> bounds;
  std::uint64_t most = 0;  ///< sum on that peer that holds the most
  std::uint64_t total = 0; ///< on all of them
};

/// One process, or several alike. Peers that an in-process transport joins live in one.
struct ProcessMemory {
  std::vector<Peers> holds; ///< all of these peers in one process; a single kind: one process each, unless `together`
  bool together = false;
  std::uint64_t most = 0; ///< of one such process
};

struct Memory {
  std::vector<PeersMemory> peers; ///< root, ranks (where there are others), workers
  std::vector<ProcessMemory> processes;
};

[[nodiscard]] Memory memory_of(const config::Topology& topology, const Graph& graph, const Coverage* coverage);

} // namespace deltawire::plan
