// Whose turn the memory is, where an engine commits in its own loop: a pure machine between the Applier, which offers a
// version, and the engine, which polls and commits. A call out of order is an error that names it and changes nothing.
//
//   idle -offer-> offered -poll-> polled -commit-> committing -end-> idle
//
// The Applier may end an offer at any time: the update failed, or took too long. An engine that polled it before hears
// so from its commit().
#pragma once

#include "result.hpp"

#include <cstdint>
#include <optional>

namespace deltawire::sync {

class EngineTurn {
public:
  /// The Applier: a version waits for the engine. Requires that none does.
  void offer(std::uint64_t version) noexcept;
  /// The version is served, or why it is not. Nothing where none waits.
  void served() noexcept;
  void failed(const Failure& why);

  /// The engine: what waits for its commit; nothing where nothing does.
  [[nodiscard]] std::optional<std::uint64_t> poll() noexcept;
  /// The engine lets go of memory for the version that it polled. Fails with call_order, or with why the version was
  /// ended since.
  [[nodiscard]] Result<void> commit(std::uint64_t version);

  [[nodiscard]] bool committing() const noexcept { return step_ == Step::committing; }

private:
  enum class Step : std::uint8_t { idle, offered, polled, committing };
  struct Missed {
    std::uint64_t version = 0;
    Failure why;
  };

  Step step_ = Step::idle;
  std::uint64_t version_ = 0;    ///< that waits
  std::uint64_t served_ = 0;     ///< the last one that commit() brought
  std::optional<Missed> missed_; ///< polled, and ended before its commit
};

} // namespace deltawire::sync
