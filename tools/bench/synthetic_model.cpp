#include "synthetic_model.hpp"

#include "parallel.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>

namespace deltawire::bench {
namespace {

constexpr std::size_t element_bytes = 2;
constexpr std::size_t line = 64; // bytes

std::size_t up_to_line(std::size_t bytes) {
  return (bytes + line - 1) / line * line;
}

/// What part `index` of `parts` gets of `length` indices: ceil(length / parts) each, as far as they go.
Range cut(std::size_t length, std::size_t parts, std::size_t index) {
  const std::size_t each = (length + parts - 1) / parts;
  return {std::min(length, index * each), std::min(length, (index + 1) * each)};
}

/// SplitMix64: a random sequence of its own for every seed, at a nanosecond a number.
class Random {
public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept {
    std::uint64_t x = state_ += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
  }

  /// In (0, 1].
  double share() noexcept { return static_cast<double>((next() >> 11) + 1) * 0x1p-53; }

private:
  std::uint64_t state_;
};

/// How many elements are passed over before the next that changes, where each changes with the same probability.
class Gaps {
public:
  explicit Gaps(double probability) noexcept
    : all_(probability >= 1), none_(probability <= 0), scale_(all_ || none_ ? 0 : 1 / std::log1p(-probability)) {}

  /// At most `length`, which is past the end of what is walked.
  std::size_t next(Random& random, std::size_t length) const noexcept {
    if (all_ || none_)
      return all_ ? 0 : length;
    const double gap = std::log(random.share()) * scale_;
    return gap < static_cast<double>(length) ? static_cast<std::size_t>(gap) : length;
  }

private:
  bool all_;
  bool none_;
  double scale_;
};

/// Of two rows, on average, the one has nine tenths of the changes, as far as it has elements.
constexpr double busy_share = 0.9;

std::uint16_t changed_bits(std::uint16_t bits, std::uint64_t dice) {
  if (dice % 10 == 0)
    return static_cast<std::uint16_t>(bits ^ (dice >> 8 | 1));
  return static_cast<std::uint16_t>(bits + (dice & 16 ? 1 : -1));
}

/// Changes one matrix, row by row.
class MatrixChange {
public:
  /// `places`: null, or what is changed is added to it.
  MatrixChange(const Matrix& matrix, std::byte* weights, Random random, Places* places)
    : matrix_(matrix), start_(weights + matrix.offset), random_(random), places_(places),
      last_lines_(matrix.held.size(), none) {}

  Changes run(double density, Spread spread) {
    const double busy = std::min(1.0, 2 * busy_share * density);
    const std::array<Gaps, 2> clustered{Gaps(2 * density - busy), Gaps(busy)};
    const Gaps uniform(density);
    // A gap may reach over the ends of rows where all rows are alike.
    std::size_t at = 0;
    const std::size_t elements = matrix_.rows * matrix_.columns;
    if (spread == Spread::uniform) {
      for (at = uniform.next(random_, elements); at < elements; at += 1 + uniform.next(random_, elements))
        change(at);
      return changes_;
    }
    for (std::size_t row = 0; row < matrix_.rows; ++row) {
      const Gaps& gaps = clustered[random_.next() >> 63];
      const std::size_t columns = matrix_.columns;
      for (std::size_t column = gaps.next(random_, columns); column < columns;
           column += 1 + gaps.next(random_, columns))
        change(row * columns + column);
    }
    return changes_;
  }

private:
  static constexpr std::size_t none = ~std::size_t{0};

  void change(std::size_t at) {
    std::uint16_t bits;
    std::memcpy(&bits, start_ + at * element_bytes, element_bytes);
    bits = changed_bits(bits, random_.next());
    std::memcpy(start_ + at * element_bytes, &bits, element_bytes);
    ++changes_.elements;
    if (places_ != nullptr)
      places_->push_back(static_cast<std::uint32_t>(at));
    const std::size_t trainer_line = at * element_bytes / line;
    changes_.trainer_lines += trainer_line == last_trainer_line_ ? 0 : 1;
    last_trainer_line_ = trainer_line;
    count_worker_line(at / matrix_.columns, at % matrix_.columns);
  }

  void count_worker_line(std::size_t row, std::size_t column) {
    const std::size_t worker =
      matrix_.cut_by_columns ? column / matrix_.held[0].columns.length() : row / matrix_.held[0].rows.length();
    const HeldBox& box = matrix_.held[worker];
    const std::size_t element = (row - box.rows.first) * box.columns.length() + column - box.columns.first;
    const std::size_t worker_line = (box.offset + element * element_bytes) / line;
    changes_.worker_lines += worker_line == last_lines_[worker] ? 0 : 1;
    last_lines_[worker] = worker_line;
  }

  const Matrix& matrix_;
  std::byte* start_;
  Random random_;
  Places* places_;
  std::size_t last_trainer_line_ = none;
  std::vector<std::size_t> last_lines_; ///< by worker
  Changes changes_;
};

/// Calls visit(matrix's bytes, worker's bytes, count, row) for each stretch of a box that both hold without a gap.
template <class Visit>
void for_each_stretch(const Matrix& matrix, const HeldBox& box, Visit&& visit) {
  const std::size_t width = box.columns.length() * element_bytes;
  for (std::size_t row = box.rows.first; row < box.rows.end; ++row)
    visit(matrix.offset + (row * matrix.columns + box.columns.first) * element_bytes,
          box.offset + (row - box.rows.first) * width, width, row);
}

} // namespace

ModelPlan::ModelPlan(const ModelShape& shape) : shape_(shape) {
  const std::uint64_t each = std::max<std::uint64_t>(64, shape.bytes / shape.tensors / element_bytes);
  columns_ = std::bit_floor(static_cast<std::size_t>(std::sqrt(static_cast<double>(each))));
  rows_ = std::max<std::size_t>(8, (each / columns_ + 4) / 8 * 8);
  for (std::uint32_t i = 0; i < shape.tensors; ++i) {
    Matrix matrix{{}, rows_, columns_, bytes_, false, {}};
    const std::uint32_t layer = i / 4;
    if (layer == shape.tensors / 4) { // fewer than four are left
      matrix.name = fmt::format("extra.{}.weight", i);
    } else {
      constexpr std::array names{"q", "k", "o", "up"};
      matrix.name = fmt::format("layers.{}.{}.weight", layer, names[i % 4]);
      matrix.cut_by_columns = i % 4 == 2;
    }
    bytes_ += up_to_line(rows_ * columns_ * element_bytes);
    elements_ += rows_ * columns_;
    matrices_.push_back(std::move(matrix));
  }
  for (std::uint32_t worker = 0; worker < shape.workers; ++worker)
    held_.push_back(hold(worker));
}

HeldParameters ModelPlan::hold(std::uint32_t worker) {
  HeldParameters held;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    Matrix& matrix = matrices_[i];
    HeldBox box{{0, rows_}, {0, columns_}, 0};
    (matrix.cut_by_columns ? box.columns : box.rows) =
      cut(matrix.cut_by_columns ? columns_ : rows_, shape_.workers, worker);
    const std::size_t bytes = box.rows.length() * box.columns.length() * element_bytes;
    const bool first_of_pack = matrix.name.ends_with(".q.weight");
    if (matrix.name.ends_with(".k.weight")) { // behind q, in the parameter that q began
      HeldParameter& pack = held.parameters.back();
      box.offset = pack.offset + bytes;
      pack.shape[0] *= 2;
      held.bytes = up_to_line(box.offset + bytes);
    } else {
      box.offset = held.bytes;
      const std::string name = first_of_pack ? fmt::format("layers.{}.qk.weight", i / 4) : matrix.name;
      held.parameters.push_back(
        {name,
         {static_cast<std::int64_t>(box.rows.length()), static_cast<std::int64_t>(box.columns.length())},
         box.offset});
      held.bytes += up_to_line(bytes);
    }
    matrix.held.push_back(box);
  }
  return held;
}

Range ModelPlan::rows_of(const Matrix& matrix, std::uint32_t rank) const noexcept {
  return cut(matrix.rows, shape_.ranks, rank);
}

std::string ModelPlan::topology() const {
  std::string text = fmt::format(R"([trainer]
mesh = [["fsdp", {}]]
[[trainer.placement]]
parameter = "*"
shard = ["fsdp:0"]

[worker]
mesh = [["tp", {}]]
[[worker.placement]]
parameter = "layers.{{l}}.qk.weight"
shard = ["tp:0 by slice"]
[[worker.placement]]
parameter = "layers.{{l}}.o.weight"
shard = ["tp:1"]
[[worker.placement]]
parameter = "*"
shard = ["tp:0"]
)",
                                 shape_.ranks, shape_.workers);
  if (shape_.tensors >= 4)
    text += fmt::format(R"([[worker.map]]
parameter = "layers.{{l}}.qk.weight"
slice = "[0:{0}, :]"
slot = "layers.{{l}}.q.weight"
[[worker.map]]
parameter = "layers.{{l}}.qk.weight"
slice = "[{0}:{1}, :]"
slot = "layers.{{l}}.k.weight"
)",
                        rows_, 2 * rows_);
  // At 100 % a worker stages all that it holds.
  return text + R"(
[transport]
master = "127.0.0.1:0"

[actors.applier]
stage = "unlimited"
)";
}

void fill_with_weights(const ModelPlan& plan, std::byte* weights) {
  in_parallel(plan.matrices().size(), usable_cores(), [&](std::size_t index, std::size_t) {
    const Matrix& matrix = plan.matrices()[index];
    Random random(index << 40);
    for (std::size_t i = 0; i < matrix.rows * matrix.columns; ++i) {
      const std::uint64_t dice = random.next();
      // 2^-9 .. 2^-3, either sign.
      const auto bits = static_cast<std::uint16_t>((dice >> 63) << 15 | (118 + (dice >> 16) % 6) << 7 | (dice & 127));
      std::memcpy(weights + matrix.offset + i * element_bytes, &bits, element_bytes);
    }
  });
}

Changes change_weights(const ModelPlan& plan, std::byte* weights, double density, Spread spread, std::uint64_t round,
                       std::vector<Places>* places) {
  Changes all;
  std::mutex mutex;
  if (places != nullptr)
    places->assign(plan.matrices().size(), {});
  in_parallel(plan.matrices().size(), usable_cores(), [&](std::size_t index, std::size_t) {
    MatrixChange change(plan.matrices()[index], weights, Random((round + 1) << 48 ^ std::uint64_t{index} << 20),
                        places == nullptr ? nullptr : &(*places)[index]);
    const Changes some = change.run(density, spread);
    const std::lock_guard lock(mutex);
    all.elements += some.elements;
    all.trainer_lines += some.trainer_lines;
    all.worker_lines += some.worker_lines;
  });
  return all;
}

void copy_to_worker(const ModelPlan& plan, const std::byte* weights, std::uint32_t worker, std::byte* memory) {
  in_parallel(plan.matrices().size(), usable_cores(), [&](std::size_t index, std::size_t) {
    const Matrix& matrix = plan.matrices()[index];
    for_each_stretch(matrix, matrix.held[worker],
                     [&](std::size_t from, std::size_t to, std::size_t bytes, std::size_t) {
                       std::memcpy(memory + to, weights + from, bytes);
                     });
  });
}

Result<void> compare_worker(const ModelPlan& plan, const std::byte* weights, std::uint32_t worker,
                            const std::byte* memory) {
  std::mutex mutex;
  std::optional<Failure> first;
  in_parallel(plan.matrices().size(), usable_cores(), [&](std::size_t index, std::size_t) {
    const Matrix& matrix = plan.matrices()[index];
    for_each_stretch(matrix, matrix.held[worker],
                     [&](std::size_t from, std::size_t to, std::size_t bytes, std::size_t row) {
                       if (std::memcmp(memory + to, weights + from, bytes) == 0)
                         return;
                       const std::lock_guard lock(mutex);
                       if (!first)
                         first = Failure{Code::verification_failed,
                                         fmt::format("verification failed: worker {}: row {} of tensor \"{}\" is not "
                                                     "the trainer's",
                                                     worker, row, matrix.name)};
                     });
  });
  if (first)
    return tl::make_unexpected(std::move(*first));
  return {};
}

} // namespace deltawire::bench
