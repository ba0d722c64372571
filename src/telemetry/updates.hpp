// What became of updates, as metrics, and what in it a user should know: warnings, each said once. Pure state machine;
// the actors feed it with the report of each update.
#pragma once

#include "telemetry/metrics.hpp"
#include "telemetry/phases.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace deltawire::telemetry {

/// "4.0 MiB"
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

/// One update's end.
struct UpdateFacts {
  std::uint64_t version = 0;
  std::uint64_t step = 0;
  enum class Kind : std::uint8_t { seed, delta, fold } kind = Kind::delta;
  bool committed = false;
  std::uint64_t elements = 0;
  std::uint64_t changed = 0;
  std::uint64_t wire_bytes = 0;
  std::uint64_t gather_bytes = 0;
  std::uint64_t flushes = 0;
  std::uint64_t rounds = 0;
  std::int64_t captured_ns = 0;
  std::int64_t committed_ns = 0;
  std::int64_t pause_ns = 0;
  PhaseSpans phases{};
  std::uint64_t gather_queue_peak = 0; ///< bytes
  std::uint64_t flush_bucket_peak = 0; ///< bytes
  struct Worker {
    std::uint32_t index = 0;
    std::uint64_t version = 0;
    std::string state;
    bool digest_ok = false;
    std::int64_t pause_ns = 0;
    bool matched = false; ///< it held the values of a version, and was not sent them
  };
  std::vector<Worker> workers;
};

/// Puts an update's end into the root's metrics.
class UpdateMeter {
public:
  explicit UpdateMeter(std::shared_ptr<Registry> registry) : registry_(std::move(registry)) {}

  void update_over(const UpdateFacts& facts);

private:
  void worker_fared(const UpdateFacts::Worker& worker);

  std::shared_ptr<Registry> registry_;
  std::uint64_t committed_version_ = 0;
  std::map<std::uint32_t, std::string> states_; ///< by worker: the last one
};

/// What warnings relate an update to; bytes.
struct Caps {
  std::uint32_t rank = 0;
  std::uint64_t own_elements = 0; ///< that the rank contributes
  std::uint64_t chunks = 0;
  std::uint32_t differs = 1;
  std::uint64_t largest_chunk = 0; ///< encoded, at worst
  std::uint64_t largest_piece = 0; ///< the same
  std::uint64_t inflight = 0;      ///< actors.differ.inflight
  std::uint64_t max_round = 0;     ///< actors.gather_queue.max_round
  std::uint64_t flush_cap = 0;     ///< actors.flush_bucket.cap
  std::uint64_t flush_payload = 0; ///< the same less a header: what a flush holds
};

struct Warning {
  std::string kind; ///< label of a metric: few and fixed
  std::string text; ///< what, how much, and what to do

  friend bool operator==(const Warning&, const Warning&) = default;
};

/// One rank's watch. A warning comes once, and again only after what it is about was over, which of a worker that was
/// behind is said too; about caps once.
class WarningWatch {
public:
  static constexpr std::uint32_t patience = 10;    ///< updates until nothing changing is worth a word
  static constexpr std::uint32_t lag_patience = 3; ///< updates until a worker that is behind is

  explicit WarningWatch(Caps caps) : caps_(caps) {}

  /// `own_changes`: changed elements that this rank has captured so far, in all. The root warns about everything, other
  /// ranks about their own shards.
  [[nodiscard]] std::vector<Warning> update_over(const UpdateFacts& facts, std::uint64_t own_changes);

private:
  void about_empty_deltas(const UpdateFacts& facts, std::vector<Warning>& out);
  void about_own_shard(const UpdateFacts& facts, std::uint64_t own_changes, std::vector<Warning>& out);
  void about_density(const UpdateFacts& facts, std::vector<Warning>& out);
  void about_workers(const UpdateFacts& facts, std::vector<Warning>& out);
  void about_caps(const UpdateFacts& facts, std::vector<Warning>& out);

  const Caps caps_;
  std::uint64_t last_step_ = 0;
  std::uint32_t empty_deltas_ = 0;
  std::uint64_t own_changes_ = 0;
  std::uint32_t idle_updates_ = 0;
  std::uint64_t dense_bytes_ = 0; ///< on the wire for the first seed
  bool all_served_ = false;       ///< every worker held the version before
  bool dense_said_ = false;
  std::uint64_t committed_version_ = 0;
  std::map<std::uint32_t, std::uint32_t> behind_; ///< by worker: updates in a row
  bool differ_said_ = false, round_said_ = false, flush_said_ = false;
};

} // namespace deltawire::telemetry
