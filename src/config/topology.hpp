// The topology file (design, section 5) as typed values. load() reads TOML, follows `include`, applies overrides,
// checks every key, and reports all errors with file, line and key. Keys that the design names but this version does
// not have are refused as "not supported yet"; keys that nobody knows are refused as unknown.
#pragma once

#include "layout/rules.hpp"
#include "result.hpp"

#include <chrono>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace deltawire::config {

/// A byte cap: at least 1. "unlimited" is the largest value.
inline constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

using Duration = std::chrono::nanoseconds;

struct Transport {
  std::string master = ""; ///< "host:port" the root listens on; "[::1]:29500" for IPv6; empty: from the environment
  /// Path of the secret that encrypts every TCP connection; empty: none are. As written with --set, otherwise relative
  /// to the file that names it.
  std::string secret_file;
};

/// Deadlines, all longer than 0 and at most a year. stall < timeout and engine < timeout hold after load(): a worker
/// that stands still must be named before the delivery as a whole gives up.
/// What a publish() does about a delivery that still needs the snapshot.
enum class Busy { wait, fold };
/// Whether a worker with nothing whole is sent all values, or its memory is looked at first.
enum class Seed { always, if_different };
/// Whether workers check digests of what they stage and write.
enum class Verify { off, digest };

struct Update {
  Duration connect = std::chrono::seconds{60};
  Duration reconnect{0}; ///< how long a worker whose trainer is gone waits for the next one; 0: not at all
  Duration stall = std::chrono::seconds{20};
  Duration engine = std::chrono::seconds{60};
  Duration timeout = std::chrono::minutes{10};
  Busy busy = Busy::wait;
  Seed seed = Seed::always;
  Verify verify = Verify::digest;
  std::uint64_t audit_every = 0; ///< "audit:K": updates from one audit of all memory to the next; 0: none
  std::uint32_t quorum = 0;      ///< replicas; 0: "all", those that are left of the ones serving at begin, at least one
};

enum class ThreadKind { pool, detached };
enum class TransportKind { automatic, inproc, tcp, shm };

/// What a process shares with its peers over "shm" at most, where `cap` (actors.flush_bucket.cap of the root,
/// actors.gather_queue.max_round of other ranks) bounds what it has on the wire. What finds no room goes through
/// sockets.
[[nodiscard]] std::uint64_t most_shared(std::uint64_t cap) noexcept;

/// Where snapshots of parameters on a GPU are.
enum class Tier { automatic, host, device };

struct Snapshotter {
  Tier tier = Tier::automatic;
  std::uint64_t log = 256ull << 20; ///< cap on the logged positions; beyond it a worker that is behind is seeded
};

struct Differ {
  std::uint32_t count = 2;
  /// Two of them, encoded as large as they can get, fit into the default round.
  std::uint64_t chunk = 16ull << 20;
  std::uint64_t inflight = 256ull << 20;
  ThreadKind thread = ThreadKind::pool;
};

struct GatherQueue {
  TransportKind transport = TransportKind::automatic;
  std::uint64_t window = 256ull << 20;
  std::uint64_t max_round = 64ull << 20;
};

/// How the positions of changes are written: the smallest for each tile, or one wherever it can be.
enum class PositionChoice { automatic, u8, u16, rice, bitmap, run, dense };
/// How their values are: as differences to the last capture where that is smaller, or never.
enum class ValueChoice { automatic, raw, ulp };

/// Whether pieces are compressed where that makes them smaller.
enum class Compression { none, zstd };

struct FlushBucket {
  std::uint64_t cap = 256ull << 20;
  PositionChoice positions = PositionChoice::automatic;
  ValueChoice values = ValueChoice::automatic; ///< ulp says what automatic does
  Compression compression = Compression::none;
};

enum class Route { broadcast, rank_local };

struct Sender {
  Route route = Route::rank_local; ///< "auto": every transport that there is sends to one worker at a time
  TransportKind transport = TransportKind::automatic;
};

struct Applier {
  std::uint64_t stage = 512ull << 20;
};

struct Actors {
  Snapshotter snapshotter;
  Differ differ;
  GatherQueue gather_queue;
  FlushBucket flush_bucket;
  Sender sender;
  Applier applier;
};

struct Telemetry {
  std::string flushes; ///< folder that the root writes every flush to, for `deltawire inspect`; empty: none
  std::string trace;   ///< path of the trace-event file; empty: none
  /// Where metrics are served, "host:port", by the process of index 0: each process adds its index to the port, unless
  /// that is 0, which is any free port. Empty: nowhere.
  std::string prometheus;
};

struct Topology {
  std::string file; ///< as given, for messages
  layout::SideRules trainer;
  layout::SideRules worker;
  Transport transport;
  Update update;
  Actors actors;
  Telemetry telemetry;

  /// workers per replica = worker mesh size / size of its "dp" axis (1 without one)
  [[nodiscard]] layout::Index workers_per_replica() const noexcept;
};

/// Reads the file. `overrides` are "key.path=value" (replay --set): the value is TOML where it parses as such,
/// otherwise a string ("actors.flush_bucket.cap=7B"); errors about one name "--set key=value" instead of file and line.
/// Fails with every error of the topology, one a line, "file:line: key: message": Code::unsupported where all of them
/// are about what this version does not have yet, otherwise Code::invalid_topology (Code::invalid_argument for an
/// override without a key). What patterns, cuts and slices mean is checked by layout::Side::compile.
[[nodiscard]] Result<Topology> load(const std::string& path, std::span<const std::string> overrides = {});

/// A hash over every setting that all processes must share (all but [transport], telemetry, file names and lines),
/// after includes and overrides: peers compare it when they connect.
[[nodiscard]] std::uint64_t fingerprint(const Topology& topology);

} // namespace deltawire::config
