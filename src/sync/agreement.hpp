// The start-up agreement on the root, as a pure machine: who is there, what each declares, what is compiled, who has
// agreed.
#pragma once

#include "layout/plan.hpp"
#include "result.hpp"
#include "wire/messages.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace deltawire::sync {

class AgreementRoot {
public:
  AgreementRoot(std::uint32_t ranks, std::uint32_t workers, std::vector<std::string> unused, std::uint64_t window_bytes,
                std::uint64_t fingerprint);

  enum class Welcome : std::uint8_t {
    first,    ///< of its peer, or its process's other connection
    in_place, ///< another process of the same worker: what its predecessor said and its connections are no more
  };
  /// A peer introduces a connection. Fails when it does not belong here: wrong index or counts, other settings, there
  /// already (a rank), or a process in whose place another one has come (a worker).
  [[nodiscard]] Result<Welcome> hello(const wire::Hello& hello);

  /// A worker hung up: it, or another process of it, may come again, and says everything anew.
  void left(std::uint32_t worker);

  /// A worker's process introduces itself to a running session. Fails when it does not belong there.
  [[nodiscard]] Result<void> rejoin(const wire::Hello& hello) const;

  /// After the plan was made, a worker that comes again declares too. It must be what it was: the caller compares.
  [[nodiscard]] Result<void> declare(wire::Role role, std::uint32_t index, layout::Declaration declaration);
  [[nodiscard]] bool planned() const noexcept { return planned_; }

  /// The catalogue, once every rank has declared.
  [[nodiscard]] std::optional<Result<std::vector<layout::SlotSpec>>> catalogue();

  /// Names of the parameters of all ranks that have declared, each once. Empty after the plan was made.
  [[nodiscard]] std::vector<std::string> rank_parameters() const;

  /// The plan, once everyone is connected on both channels and has declared. Fails with all disagreements.
  [[nodiscard]] std::optional<Result<layout::Plan>> plan();

  [[nodiscard]] Result<void> agreed(wire::Role role, std::uint32_t index, const wire::Agreed& message = {});
  [[nodiscard]] bool all_agreed() const noexcept;
  /// What the workers said with their consent, by worker.
  [[nodiscard]] std::vector<wire::Agreed> standing() const;

  /// "rank 2 (not connected), worker 0 (has not declared its parameters)": for the message when the deadline passes.
  [[nodiscard]] std::string missing() const;

private:
  struct Peer {
    bool control = false;
    bool data = false;
    std::uint64_t incarnation = 0;
    std::deque<std::uint64_t> replaced; ///< incarnations that are no more, the last of them
    std::optional<layout::Declaration> declaration;
    bool declared = false;
    bool agreed = false;
    wire::Agreed standing;
  };
  static void forget(Peer& peer);
  [[nodiscard]] Peer* find(wire::Role role, std::uint32_t index) noexcept;
  [[nodiscard]] Result<void> check_membership(const wire::Hello& hello) const;
  [[nodiscard]] static std::vector<layout::Declaration> take(std::vector<Peer>& peers);

  std::vector<Peer> ranks_;
  std::vector<Peer> workers_;
  std::vector<std::string> unused_;
  std::uint64_t window_bytes_;
  std::uint64_t fingerprint_;
  bool catalogue_made_ = false;
  bool planned_ = false;
};

} // namespace deltawire::sync
