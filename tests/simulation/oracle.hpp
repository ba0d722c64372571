// The books of a simulated job: what was promised, written apart from what keeps it. It knows no machine and no message
// of the product, only what is seen of them: what a trainer's memory held when a version was captured, what each
// worker's memory holds element by element and which version it says it serves, and the order in which deliveries
// begin, are committed, applied and released.
//
// Clauses, each a Violation where it does not hold:
//   bits      what is served equals the captured version, bit for bit; a capture reads what the trainer published
//   base      a delta is applied where memory holds its base, a fold where it holds its base or a later version; the
//             result is the target; an undo brings back what was there
//   whole     a replica never serves two versions of different bits; nothing is released before all its members have
//             applied; nothing is committed before all have staged it; a version that was left half done never exists
//   order     versions of a session are captured once each and never served back; delivery numbers are never reused,
//             nor a frame's for another payload
//   end       everything ends, and once faults stop the next updates heal everybody (the world reports these)
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace deltawire::simulation {

enum class Clause : std::uint8_t { bits, base, whole, order, end, refused, count };
[[nodiscard]] const char* name_of(Clause clause) noexcept;

struct Violation : std::runtime_error {
  Violation(Clause which, const std::string& message) : std::runtime_error(message), clause(which) {}
  Clause clause;
};

using Bits = std::uint16_t;

class Oracle {
public:
  enum class Kind : std::uint8_t { seed, delta, fold };
  struct Version {
    std::uint64_t session = 0, number = 0;
    friend auto operator<=>(const Version&, const Version&) = default;
  };

  /// `reads`: by worker, the element of the model that each element of its memory is.
  Oracle(std::size_t elements, std::uint32_t per_replica, std::vector<std::vector<std::uint32_t>> reads);
  /// By worker: what it holds, for as long as the books are kept.
  void watch(std::vector<std::span<const Bits>> memory) { memory_ = std::move(memory); }

  // The trainer.
  void session_begins(std::uint64_t session);
  /// The program publishes (or sends, or patches) this element with the version.
  void published(std::uint32_t element, Bits bits) { published_[element] = bits; }
  /// It left the update that sent this element: whether the element was read is anybody's guess.
  void left(std::uint32_t element) { published_[element].reset(); }
  /// A rank left the update to the version.
  void aborted(std::uint64_t version) { aborted_.insert(version); }
  /// The element was read for a capture; said whether its bits changed or not.
  void captured(std::uint64_t version, std::uint32_t element, Bits bits);
  /// A rank says that it has captured the version of these elements.
  void capture_over(std::uint32_t rank, std::uint64_t version, std::span<const std::uint32_t> elements);

  // The root.
  void begins(std::uint64_t delivery, std::uint32_t worker);
  void sends(std::uint64_t delivery, std::uint32_t worker, std::uint64_t sequence);
  void commits(std::uint64_t delivery, std::uint64_t version, std::uint32_t worker);
  void releases(std::uint64_t delivery, std::uint32_t worker);

  // Workers. `session`: the one that counts the delivery and its target.
  void staged(std::uint64_t session, std::uint64_t delivery, std::uint32_t worker);
  void applies(std::uint32_t worker, Kind kind, std::uint64_t session, std::uint64_t base); ///< before it is written
  void applied(std::uint32_t worker, std::uint64_t session, std::uint64_t delivery, std::uint64_t target);
  void undone(std::uint32_t worker);
  /// It serves this version from now on; nothing: it does not serve.
  void serves(std::uint32_t worker, std::optional<Version> version);
  /// A new process with an empty memory.
  void restarted(std::uint32_t worker);

  /// Looks at what a worker serves now.
  void look(std::uint32_t worker) const;
  /// Everybody serves this version.
  void all_serve(std::uint64_t version) const;
  /// What its memory holds where it is at a version that was captured.
  [[nodiscard]] std::vector<Bits> memory_at(std::uint32_t worker, Version version) const;
  [[nodiscard]] std::optional<Version> served(std::uint32_t worker) const { return workers_[worker].serves; }

private:
  struct Worker {
    std::optional<Version> serves;
    Version newest;
    std::vector<Bits> before; ///< what memory held before the delivery that was applied last
    std::optional<std::pair<std::uint64_t, std::uint64_t>> staged, applied; ///< (session, delivery)
  };
  using History = std::vector<std::pair<std::uint64_t, Bits>>; ///< of an element: (version, bits), ascending

  [[nodiscard]] std::optional<Bits> bits_of(Version version, std::uint32_t element) const;
  /// The first element of a worker's memory that is not the version's; nothing where it all is.
  [[nodiscard]] std::optional<std::size_t> differs(std::uint32_t worker, Version version) const;
  [[nodiscard]] std::uint32_t first_of(std::uint32_t worker) const { return worker - worker % per_replica_; }

  std::uint32_t per_replica_;
  std::vector<std::vector<std::uint32_t>> reads_;
  std::vector<std::span<const Bits>> memory_;
  std::vector<Worker> workers_;
  std::uint64_t session_ = 0;
  std::map<std::uint64_t, std::vector<History>> history_; ///< by session, by element
  std::vector<std::optional<Bits>> published_;
  std::map<std::uint32_t, std::uint64_t> captured_; ///< by rank: the last version
  std::set<std::uint64_t> aborted_;
  std::set<Version> committed_;
  std::uint64_t last_delivery_ = 0;
  std::set<std::pair<std::uint64_t, std::uint32_t>> begun_;
  std::set<std::tuple<std::uint64_t, std::uint32_t, std::uint64_t>> frames_; ///< (delivery, worker, sequence)
};

} // namespace deltawire::simulation
