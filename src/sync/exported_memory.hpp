// Who may still read a piece of memory that other processes have mapped (CUDA IPC, shared memory): a pure machine on
// the side that owns it. Time is a number of ticks. No session uses it yet.
//
// The memory is written, lent to the importers, and not written again before each of them has returned it: an answer
// means that the importer's work on the device is done too. It is freed only when each importer has unmapped it. An
// importer whose process is gone has returned and unmapped everything: its mappings went with it. One that merely says
// nothing is named when its deadline has passed, and goes on holding the memory: nobody can tell what it reads.
#pragma once

#include "result.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace deltawire::sync {

class ExportedMemory {
public:
  using Ticks = std::uint64_t;

  /// `what` for messages: "the staging memory of worker 3". `limit`: ticks for each answer.
  ExportedMemory(std::string what, Ticks limit) : what_(std::move(what)), limit_(limit) {}

  /// A handle goes out to it. Not while the memory is being freed, and an importer once at a time.
  [[nodiscard]] Result<void> exported_to(std::uint32_t importer);

  /// Whether nobody reads it.
  [[nodiscard]] bool may_write() const noexcept { return !freeing_ && holders_ == 0; }

  /// To all importers that there are; returns the number of the loan, from 1 on.
  [[nodiscard]] Result<std::uint64_t> lend();

  /// An importer has read the loan, and its device has. An older loan's answer, which was given already, changes
  /// nothing.
  [[nodiscard]] Result<void> returned(std::uint32_t importer, std::uint64_t loan);

  /// Asks for it back, for good: importers are to unmap it.
  void begin_free();
  [[nodiscard]] Result<void> unmapped(std::uint32_t importer);
  [[nodiscard]] bool may_free() const noexcept { return freeing_ && importers_.empty(); }

  /// Its process has ended, or its connection, which ends it. Others are not touched.
  void gone(std::uint32_t importer);

  /// Once for each loan, and once for the freeing: who has not answered in time.
  [[nodiscard]] std::optional<Failure> tick();

  [[nodiscard]] std::vector<std::uint32_t> holders() const; ///< ascending; of the loan, or of the mapping while freeing

private:
  struct Importer {
    bool holds = false; ///< the loan
  };

  [[nodiscard]] Result<Importer*> known(std::uint32_t importer);

  std::string what_;
  Ticks limit_;
  std::map<std::uint32_t, Importer> importers_;
  std::uint64_t loan_ = 0;
  std::size_t holders_ = 0;
  bool freeing_ = false;
  Ticks now_ = 0;
  Ticks since_ = 0;
  bool told_ = false;
};

} // namespace deltawire::sync
