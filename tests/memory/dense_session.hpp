// All ranks and workers of a DenseModel in this process, through the facade, over the in-process transport. Used by one
// thread. After connect(), nothing here allocates beyond what the facade's calls do.
#pragma once

#include "dense_model.hpp"

namespace deltawire::test {

class DenseSession {
public:
  /// Every member with its memory at version 1, connected.
  DenseSession(const DenseModel& model, const std::vector<std::string>& overrides);
  ~DenseSession();
  DenseSession(const DenseSession&) = delete;
  DenseSession& operator=(const DenseSession&) = delete;

  /// Changes the trainer's memory to the next version; not for the first, which it has.
  void train();
  /// Publishes on every rank and waits; the root's outcome. Throws when it was not committed.
  Outcome update();

  /// Elements in which any worker differs from the trainer.
  [[nodiscard]] std::uint64_t differences() const;

private:
  Version version_ = 1; ///< of the trainer's memory
  std::vector<DenseShards> trained_;
  std::vector<DenseShards> served_;
  std::vector<Publisher> publishers_;
  std::vector<Subscriber> subscribers_;
};

} // namespace deltawire::test
