// All trainer ranks and workers of a synthetic model in this process, joined by the facade over the in-process
// transport.
#pragma once

#include "changing_weights.hpp"
#include "deltawire/deltawire.hpp"
#include "synthetic_model.hpp"
#include "update_rounds.hpp"

#include <memory>
#include <string>
#include <vector>

namespace deltawire::bench {

/// Used by one thread.
class UpdateSession {
public:
  /// Connects everybody; the ranks' shards are the rows of `weights`, memory of plan.bytes(). Both are borrowed until
  /// destruction. `topology`: path of the file; `overrides`: "key=value" over it. Fails as the facade does.
  [[nodiscard]] static Result<std::unique_ptr<UpdateSession>> open(const ModelPlan& plan, const std::byte* weights,
                                                                   const std::string& topology,
                                                                   const std::vector<std::string>& overrides);

  UpdateSession(const UpdateSession&) = delete;
  UpdateSession& operator=(const UpdateSession&) = delete;
  ~UpdateSession();

  /// One update, published by all ranks; ends when every worker serves it. Fails where one does not.
  [[nodiscard]] Result<TimedUpdate> update();

  /// What a worker's parameters hold, laid out as plan.held_by(worker). Stable between updates.
  [[nodiscard]] const std::byte* memory_of(std::uint32_t worker) const noexcept { return memories_[worker].data(); }
  /// For those who put back what they write, between updates.
  [[nodiscard]] std::byte* memory_of(std::uint32_t worker) noexcept { return memories_[worker].data(); }

  /// Ends the session; fails as Publisher::close() does. Afterwards there are no updates.
  [[nodiscard]] Result<void> close();

private:
  explicit UpdateSession(const ModelPlan& plan) : plan_(plan) {}
  [[nodiscard]] Result<void> connect(const std::byte* weights, const std::string& topology,
                                     const std::vector<std::string>& overrides);

  const ModelPlan& plan_;
  std::vector<HugeArray> memories_; ///< outlive the subscribers, which write them
  std::vector<Publisher> publishers_;
  std::vector<Subscriber> subscribers_;
  std::uint64_t step_ = 0;
  bool closed_ = false;
};

/// Adds a rank's rows of all matrices to its publisher. `rows_at(matrix)` says where the rank's first row lies.
template <class RowsAt>
void add_rows(const ModelPlan& plan, Publisher& publisher, RowsAt&& rows_at) {
  for (const Matrix& matrix : plan.matrices()) {
    const bool any = plan.rows_of(matrix, publisher.rank()).length() > 0;
    publisher.add({matrix.name,
                   DType::bf16,
                   {static_cast<std::int64_t>(matrix.rows), static_cast<std::int64_t>(matrix.columns)},
                   any ? rows_at(matrix) : nullptr});
  }
}

/// Binds all parameters of a worker, which lie in `memory` as plan.held_by(worker) says.
void bind_all(const ModelPlan& plan, std::uint32_t worker, std::byte* memory, Subscriber& subscriber);

} // namespace deltawire::bench
