// A model to measure whole updates with: bf16 matrices cut over trainer ranks by rows and over tensor-parallel workers
// by rows, by columns and packed in pairs, which change as those of a real run do. Its cuts are written out here in
// plain arithmetic, so that comparing a worker with the trainer's weights needs no layout code of the product.
#pragma once

#include "result.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace deltawire::bench {

/// Where changes fall.
enum class Spread : std::uint8_t {
  uniform,   ///< every element alike
  clustered, ///< rows differ: half of the rows have nine tenths of the changes, as in traces
};

struct ModelShape {
  std::uint64_t bytes = 1ull << 30; ///< of all matrices together, about
  std::uint32_t tensors = 300;
  std::uint32_t ranks = 4;
  std::uint32_t workers = 2;
};

/// Indices of one dim: [first, end).
struct Range {
  std::size_t first = 0;
  std::size_t end = 0;

  [[nodiscard]] std::size_t length() const noexcept { return end - first; }
};

/// The box of a matrix that one worker holds, in the worker's memory: row-major, without gaps.
struct HeldBox {
  Range rows;
  Range columns;
  std::size_t offset = 0; ///< of its first element in the worker's memory, bytes
};

/// One matrix of the trainer, which is also a tensor of the checkpoint. Row-major.
struct Matrix {
  std::string name;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t offset = 0;      ///< of its first element in the model's memory, bytes; a multiple of a cache line
  bool cut_by_columns = false; ///< over the workers
  std::vector<HeldBox> held;   ///< by worker
};

/// A parameter as one worker holds it.
struct HeldParameter {
  std::string name;
  std::vector<std::int64_t> shape; ///< of the worker's shard
  std::size_t offset = 0;          ///< in the worker's memory, bytes; a multiple of a cache line
};

/// All parameters of one worker, in the order of the model's matrices.
struct HeldParameters {
  std::vector<HeldParameter> parameters;
  std::size_t bytes = 0; ///< of the memory that holds them
};

/// What a change of the weights touched.
struct Changes {
  std::uint64_t elements = 0;
  std::uint64_t trainer_lines = 0; ///< cache lines of the trainer's memory, which a snapshot has to refresh
  std::uint64_t worker_lines = 0;  ///< cache lines of all workers' memory
};

/// Shapes and cuts; holds no weights. Immutable.
class ModelPlan {
public:
  explicit ModelPlan(const ModelShape& shape);

  [[nodiscard]] const ModelShape& shape() const noexcept { return shape_; }
  [[nodiscard]] const std::vector<Matrix>& matrices() const noexcept { return matrices_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; } ///< of the memory that holds all matrices
  [[nodiscard]] std::uint64_t elements() const noexcept { return elements_; }

  /// The rows of a matrix that a trainer rank holds.
  [[nodiscard]] Range rows_of(const Matrix& matrix, std::uint32_t rank) const noexcept;
  [[nodiscard]] const HeldParameters& held_by(std::uint32_t worker) const noexcept { return held_[worker]; }

  /// The topology file, TOML.
  [[nodiscard]] std::string topology() const;

private:
  [[nodiscard]] HeldParameters hold(std::uint32_t worker);

  ModelShape shape_;
  std::size_t rows_ = 0; ///< of each matrix, a multiple of 8
  std::size_t columns_ = 0;
  std::vector<Matrix> matrices_;
  std::size_t bytes_ = 0;
  std::uint64_t elements_ = 0;
  std::vector<HeldParameters> held_; ///< by worker
};

/// Fills memory of plan.bytes() with bf16 values as large as those of a trained model, the same at every call.
void fill_with_weights(const ModelPlan& plan, std::byte* weights);

/// Elements of one matrix, ascending.
using Places = std::vector<std::uint32_t>;

/// Changes about a share `density` (0 .. 1; 1: all) of the elements, at new positions for each `round`; nine of ten to
/// a neighbouring value, none to the one it had. `places`, if given, becomes the list of what changed, by matrix.
[[nodiscard]] Changes change_weights(const ModelPlan& plan, std::byte* weights, double density, Spread spread,
                                     std::uint64_t round, std::vector<Places>* places = nullptr);

/// Copies what a worker holds from the trainer's weights.
void copy_to_worker(const ModelPlan& plan, const std::byte* weights, std::uint32_t worker, std::byte* memory);

/// Compares a worker's memory with the trainer's weights, bit by bit. Fails with Code::verification_failed, naming the
/// first parameter and row that differ.
[[nodiscard]] Result<void> compare_worker(const ModelPlan& plan, const std::byte* weights, std::uint32_t worker,
                                          const std::byte* memory);

} // namespace deltawire::bench
