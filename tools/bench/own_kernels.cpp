#include "own_kernels.hpp"

#include "parallel.hpp"

#include "config/topology.hpp"
#include "delta/capture.hpp"
#include "layout/side.hpp"
#include "replay/inputs.hpp"
#include "wire/frame.hpp"

#include <chrono>
#include <cstring>
#include <limits>
#include <numeric>

namespace deltawire::bench {
namespace {

constexpr std::uint32_t not_met = std::numeric_limits<std::uint32_t>::max();

template <class Work>
double seconds_of(Work&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// What the topology lets encoders choose from: PositionChoice lists `automatic` and then the codecs as they are
/// numbered.
delta::Encoding encoding_of(const config::FlushBucket& choices) {
  static_assert(static_cast<int>(config::PositionChoice::u8) == static_cast<int>(delta::PositionCodec::gaps_u8) + 1 &&
                static_cast<int>(config::PositionChoice::dense) == static_cast<int>(delta::PositionCodec::dense) + 1);
  delta::Encoding encoding;
  encoding.ulp = choices.values != config::ValueChoice::raw;
  encoding.compress = choices.compression == config::Compression::zstd;
  if (choices.positions != config::PositionChoice::automatic)
    encoding.positions = static_cast<delta::PositionCodec>(static_cast<int>(choices.positions) - 1);
  return encoding;
}

std::vector<layout::LocalTensor> tensors_of(const ModelPlan& plan) {
  std::vector<layout::LocalTensor> tensors;
  for (const Matrix& matrix : plan.matrices())
    tensors.push_back({matrix.name,
                       DType::bf16,
                       {static_cast<layout::Index>(matrix.rows), static_cast<layout::Index>(matrix.columns)},
                       {}});
  return tensors;
}

std::vector<layout::LocalTensor> tensors_of(const HeldParameters& held) {
  std::vector<layout::LocalTensor> tensors;
  for (const HeldParameter& parameter : held.parameters)
    tensors.push_back({parameter.name, DType::bf16, parameter.shape, {}});
  return tensors;
}

} // namespace

Result<std::unique_ptr<OwnKernels>> OwnKernels::make(const ModelPlan& plan, const std::byte* weights,
                                                     const std::string& topology,
                                                     const std::vector<std::string>& overrides) {
  std::unique_ptr<OwnKernels> made(new OwnKernels(plan));
  if (auto compiled = made->compile(topology, overrides); !compiled)
    return pass_on(std::move(compiled));
  made->place(weights);
  return made;
}

Result<void> OwnKernels::compile(const std::string& topology, const std::vector<std::string>& overrides) {
  auto sides = replay::open_sides(topology, overrides);
  if (!sides)
    return pass_on(std::move(sides));
  std::vector<layout::Declaration> ranks;
  for (std::uint32_t rank = 0; rank < sides->ranks(); ++rank) {
    auto declared = sides->trainer.declare_trainer(tensors_of(plan_), rank);
    if (!declared)
      return pass_on(std::move(declared));
    ranks.push_back(std::move(*declared));
  }
  const auto catalogue = layout::catalogue(ranks);
  if (!catalogue)
    return tl::make_unexpected(catalogue.error());
  std::vector<layout::Declaration> workers;
  for (std::uint32_t worker = 0; worker < sides->workers(); ++worker) {
    auto declared = sides->worker.declare_worker(*catalogue, tensors_of(plan_.held_by(worker)), worker);
    if (!declared)
      return pass_on(std::move(declared));
    workers.push_back(std::move(*declared));
  }
  const config::Actors& actors = sides->topology.actors;
  auto compiled = layout::compile_plan(ranks, workers, {}, actors.gather_queue.window);
  if (!compiled)
    return pass_on(std::move(compiled));
  layout_ = std::move(*compiled);
  const auto limit =
    sync::piece_limit(actors.differ.inflight, actors.gather_queue.max_round, actors.flush_bucket.cap,
                      size_of(DType::bf16), actors.flush_bucket.compression == config::Compression::zstd);
  if (!limit)
    return tl::make_unexpected(limit.error());
  piece_limit_ = *limit;
  encoding_ = encoding_of(actors.flush_bucket);
  for (const std::vector<layout::Block>& blocks : layout_.ranks)
    chunks_.push_back(sync::cut_chunks(blocks, actors.differ.chunk, actors.differ.inflight, piece_limit_));
  return {};
}

void OwnKernels::place(const std::byte* weights) {
  for (std::uint32_t rank = 0; rank < chunks_.size(); ++rank) {
    std::vector<const std::byte*>& parameters = parameters_.emplace_back();
    for (const Matrix& matrix : plan_.matrices())
      parameters.push_back(weights + matrix.offset + plan_.rows_of(matrix, rank).first * matrix.columns * 2);
    snapshots_.emplace_back(chunks_[rank].snapshot_bytes);
    for (const sync::Chunk& chunk : chunks_[rank].chunks)
      items_.push_back({rank, &chunk, {}});
  }
  in_parallel(items_.size(), usable_cores(), [&](std::size_t index, std::size_t) {
    const Item& item = items_[index];
    for (const sync::ChunkRange& range : item.chunk->ranges) {
      const layout::Block& block = layout_.ranks[item.rank][range.block];
      (void)delta::capture_all({&block, parameters_[item.rank][block.parameter],
                                snapshots_[item.rank].data() + chunks_[item.rank].snapshot_offsets[range.block]},
                               range.first, range.count);
    }
  });
  for (std::uint32_t worker = 0; worker < layout_.workers.size(); ++worker) {
    memories_.emplace_back(plan_.held_by(worker).bytes);
    copy_to_worker(plan_, weights, worker, memories_.back().data());
    std::vector<std::uint32_t>& by_id = bound_.emplace_back(layout_.blocks, not_met);
    std::vector<delta::BoundBlock> bound;
    for (const layout::Block& block : layout_.workers[worker]) {
      by_id[block.id] = static_cast<std::uint32_t>(bound.size());
      bound.push_back({&block, memories_.back().data() + plan_.held_by(worker).parameters[block.parameter].offset});
    }
    stages_.emplace_back(bound, ~std::uint64_t{0});
  }
  received_.resize(layout_.workers.size() * items_.size());
  for (std::size_t thread = 0; thread < usable_cores(); ++thread)
    encoders_.push_back(std::make_unique<delta::PieceEncoder>(piece_limit_, encoding_));
}

/// Every worker gets a copy of the pieces that it meets, as a transport would leave it.
void OwnKernels::receive() {
  in_parallel(received_.size(), usable_cores(), [&](std::size_t index, std::size_t) {
    const std::vector<std::uint32_t>& met = bound_[index / items_.size()];
    const Item& item = items_[index % items_.size()];
    std::vector<std::byte>& received = received_[index];
    received.clear();
    std::uint64_t begin = 0;
    for (const std::uint64_t end : item.pieces.ends) {
      const auto piece = std::span<const std::byte>(item.pieces.bytes).subspan(begin, end - begin);
      const auto header = delta::peek_piece(piece);
      if (header && met[header->block] != not_met)
        received.insert(received.end(), piece.begin(), piece.end());
      begin = end;
    }
  });
}

Result<delta::Digest> OwnKernels::decode(std::uint32_t worker) {
  stages_[worker].clear();
  delta::Digest change = 0;
  delta::Expander expander;
  for (std::size_t item = 0; item < items_.size(); ++item) {
    std::span<const std::byte> rest(received_[worker * items_.size() + item]);
    while (!rest.empty()) {
      const auto header = delta::peek_piece(rest);
      if (!header)
        return tl::make_unexpected(header.error());
      const std::uint32_t number = bound_[worker][header->block];
      const auto piece = delta::read_piece(rest.first(header->bytes), layout_.workers[worker][number], &expander);
      if (!piece)
        return tl::make_unexpected(piece.error());
      const auto added = stages_[worker].add(number, *piece);
      if (!added)
        return added;
      change += *added;
      rest = rest.subspan(header->bytes);
    }
  }
  return change;
}

Result<KernelSeconds> OwnKernels::run() {
  const std::size_t threads = usable_cores();
  KernelSeconds seconds;
  seconds.capture = seconds_of([&] {
    in_parallel(items_.size(), threads, [&](std::size_t index, std::size_t thread) {
      Item& item = items_[index];
      for (const sync::ChunkRange& range : item.chunk->ranges) {
        const layout::Block& block = layout_.ranks[item.rank][range.block];
        delta::PositionLog log;
        (void)delta::capture_changes({&block, parameters_[item.rank][block.parameter],
                                      snapshots_[item.rank].data() + chunks_[item.rank].snapshot_offsets[range.block]},
                                     range.first, range.count, encoders_[thread].get(), log);
      }
      item.pieces = encoders_[thread]->take();
    });
  });
  receive();
  std::vector<std::uint64_t> sums(items_.size() + received_.size());
  seconds.checksum = seconds_of([&] {
    in_parallel(sums.size(), threads, [&](std::size_t index, std::size_t) {
      sums[index] =
        wire::checksum(index < items_.size() ? items_[index].pieces.bytes : received_[index - items_.size()]);
    });
  });
  // As in a session, each worker's changes are one thread's.
  const std::size_t workers = stages_.size();
  const auto each_worker = [&](auto&& work) {
    return seconds_of([&] {
      in_parallel(workers, threads, [&](std::size_t index, std::size_t) { work(static_cast<std::uint32_t>(index)); });
    });
  };
  std::vector<Result<delta::Digest>> changes(workers);
  std::vector<delta::Digest> taken(workers), found(workers);
  const auto sum_of = [](const std::vector<delta::Digest>& digests) {
    return std::accumulate(digests.begin(), digests.end(), delta::Digest{0});
  };
  seconds.decode = each_worker([&](std::uint32_t worker) { changes[worker] = decode(worker); });
  for (const auto& change : changes)
    if (!change)
      return tl::make_unexpected(change.error());
  seconds.exchange = each_worker([&](std::uint32_t worker) {
    std::vector<delta::Digest> digests(layout_.workers[worker].size());
    stages_[worker].exchange(digests);
    taken[worker] = sum_of(digests);
  });
  seconds.read_back = each_worker([&](std::uint32_t worker) {
    std::vector<delta::Digest> digests(layout_.workers[worker].size());
    stages_[worker].read_back(digests);
    found[worker] = sum_of(digests);
  });
  for (std::size_t worker = 0; worker < workers; ++worker)
    if (found[worker] - taken[worker] != *changes[worker])
      return fail(Code::internal, "own kernels: the digest read back from memory is not the one that was staged");
  return seconds;
}

} // namespace deltawire::bench
