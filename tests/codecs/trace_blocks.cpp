#include "codecs/trace_blocks.hpp"

#include "replay/shard_copy.hpp"

#include <cmath>
#include <cstring>
#include <map>

namespace deltawire::test {
namespace {

std::uint64_t bits_at(const std::vector<std::byte>& memory, std::uint64_t element, std::size_t size) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, memory.data() + element * size, size);
  return bits;
}

/// The element's place among all values of its width, for the dtypes of traces (floating point).
std::int64_t place(std::uint64_t bits, std::size_t size) {
  const std::uint64_t sign = std::uint64_t{1} << (8 * size - 1);
  return (bits & sign) != 0 ? -1 - static_cast<std::int64_t>(bits & ~sign) : static_cast<std::int64_t>(bits);
}

double entropy_of(const std::map<std::int64_t, std::uint64_t>& counts) {
  double total = 0;
  for (const auto& [value, count] : counts)
    total += static_cast<double>(count);
  double bits = 0;
  for (const auto& [value, count] : counts)
    bits -= static_cast<double>(count) / total * std::log2(static_cast<double>(count) / total);
  return bits;
}

} // namespace

Result<TraceBlocks> TraceBlocks::make(const replay::Sides& sides, const checkpoint::Checkpoint& first) {
  TraceBlocks trace;
  trace.ranks_.resize(sides.ranks());
  std::vector<layout::LocalTensor> tensors;
  for (const checkpoint::TensorView& tensor : first.tensors()) {
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
    trace.names_.push_back(tensor.name);
    trace.sizes_.push_back(size_of(tensor.dtype));
  }
  std::vector<layout::Declaration> trainer;
  for (std::size_t rank = 0; rank < trace.ranks_.size(); ++rank) {
    auto declared = sides.trainer.declare_trainer(tensors, static_cast<layout::Index>(rank));
    if (!declared)
      return pass_on(std::move(declared));
    trainer.push_back(std::move(*declared));
    for (const layout::LocalTensor& tensor : tensors) {
      auto shard = sides.trainer.shard(tensor.name, tensor.shape, static_cast<layout::Index>(rank));
      if (!shard)
        return pass_on(std::move(shard));
      std::size_t bytes = size_of(tensor.dtype);
      for (const layout::Index extent : shard->local_shape)
        bytes *= static_cast<std::size_t>(extent);
      trace.ranks_[rank].memory.emplace_back(bytes);
      trace.ranks_[rank].shards.push_back(std::move(*shard));
    }
  }
  auto catalogue = layout::catalogue(trainer);
  if (!catalogue)
    return pass_on(std::move(catalogue));
  std::vector<layout::Declaration> workers;
  for (std::uint32_t worker = 0; worker < sides.workers(); ++worker) {
    auto parameters = sides.worker.worker_parameters(*catalogue, worker);
    if (!parameters)
      return pass_on(std::move(parameters));
    std::vector<layout::LocalTensor> bound;
    for (const layout::ParameterSpec& parameter : *parameters)
      bound.push_back({parameter.name, parameter.dtype, parameter.local_shape, {}});
    auto declared = sides.worker.declare_worker(*catalogue, bound, worker);
    if (!declared)
      return pass_on(std::move(declared));
    workers.push_back(std::move(*declared));
  }
  auto plan =
    layout::compile_plan(trainer, workers, sides.topology.worker.unused, sides.topology.actors.gather_queue.window);
  if (!plan)
    return pass_on(std::move(plan));
  for (std::size_t rank = 0; rank < trace.ranks_.size(); ++rank) {
    trace.ranks_[rank].blocks = std::move(plan->ranks[rank]);
    for (const layout::Block& block : trace.ranks_[rank].blocks)
      trace.ranks_[rank].snapshots.emplace_back(static_cast<std::size_t>(layout::element_count(block)) *
                                                size_of(block.dtype));
  }
  trace.take_values(first);
  trace.refresh();
  return trace;
}

void TraceBlocks::take_values(const checkpoint::Checkpoint& file) {
  for (Rank& rank : ranks_)
    for (std::size_t t = 0; t < names_.size(); ++t)
      if (!rank.memory[t].empty())
        replay::copy_shard(rank.shards[t], sizes_[t], file.find(names_[t])->data.data(), rank.memory[t].data());
}

TraceBlocks::Sizes TraceBlocks::encode(const delta::Encoding& encoding) const {
  Sizes sizes;
  for (const Rank& rank : ranks_) {
    delta::PieceEncoder encoder(encoding.compress ? delta::most_plain_bytes : std::size_t{64} << 20, encoding);
    std::vector<std::vector<std::byte>> snapshots = rank.snapshots;
    for (std::size_t b = 0; b < rank.blocks.size(); ++b) {
      const layout::Block& block = rank.blocks[b];
      delta::PositionLog log;
      sizes.changes += delta::capture_changes({&block, rank.memory[block.parameter].data(), snapshots[b].data()}, 0,
                                              static_cast<std::uint64_t>(layout::element_count(block)), &encoder, log)
                         .changed;
    }
    const delta::EncodedPieces encoded = encoder.take();
    sizes.pieces += encoded.ends.size();
    sizes.bytes += encoded.bytes.size();
    std::size_t begin = 0;
    for (const std::uint64_t end : encoded.ends) {
      const auto piece = delta::peek_piece(std::span(encoded.bytes).subspan(begin));
      sizes.framing += piece->bytes - piece->body.size();
      begin = end;
    }
  }
  return sizes;
}

TraceBlocks::Entropy TraceBlocks::entropy() const {
  std::map<std::int64_t, std::uint64_t> gaps;
  std::map<std::int64_t, std::uint64_t> differences;
  for (const Rank& rank : ranks_)
    for (std::size_t b = 0; b < rank.blocks.size(); ++b) {
      const layout::Block& block = rank.blocks[b];
      const std::size_t size = size_of(block.dtype);
      std::vector<std::byte> now = rank.snapshots[b];
      (void)delta::capture_all({&block, rank.memory[block.parameter].data(), now.data()}, 0,
                               static_cast<std::uint64_t>(layout::element_count(block)));
      std::int64_t gap = 0;
      for (std::uint64_t element = 0; element < now.size() / size; ++element) {
        const std::uint64_t before = bits_at(rank.snapshots[b], element, size);
        const std::uint64_t after = bits_at(now, element, size);
        if (before == after) {
          ++gap;
          continue;
        }
        ++gaps[gap];
        ++differences[place(after, size) - place(before, size)];
        gap = 0;
      }
    }
  return {entropy_of(gaps), entropy_of(differences)};
}

void TraceBlocks::refresh() {
  for (Rank& rank : ranks_)
    for (std::size_t b = 0; b < rank.blocks.size(); ++b) {
      const layout::Block& block = rank.blocks[b];
      (void)delta::capture_all({&block, rank.memory[block.parameter].data(), rank.snapshots[b].data()}, 0,
                               static_cast<std::uint64_t>(layout::element_count(block)));
    }
}

} // namespace deltawire::test
