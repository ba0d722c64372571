// The shape of a simulated job: one-dimensional parameters, cut among trainer ranks one way and read by the workers of
// a replica in another. Each is one slot of bf16; its elements are numbered through all parameters.
#pragma once

#include "oracle.hpp"

#include "layout/region.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <random>
#include <vector>

namespace deltawire::simulation {

/// begin..end of a parameter's elements.
struct Piece {
  std::uint32_t parameter = 0;
  layout::Index begin = 0, end = 0;
};

struct Job {
  std::vector<layout::Index> lengths; ///< by parameter
  std::uint32_t replicas = 1, per_replica = 1;
  std::vector<std::vector<Piece>>
    reads; ///< by place in the replica: what lies in the worker's memory, one after the other

  [[nodiscard]] std::uint32_t workers() const noexcept { return replicas * per_replica; }
  [[nodiscard]] std::uint32_t parameters() const noexcept { return static_cast<std::uint32_t>(lengths.size()); }
  [[nodiscard]] std::uint32_t number_of(std::uint32_t parameter, layout::Index index) const {
    for (std::uint32_t p = 0; p < parameter; ++p)
      index += lengths[p];
    return static_cast<std::uint32_t>(index);
  }
  [[nodiscard]] std::size_t elements() const { return number_of(parameters(), 0); }

  static Job make(std::mt19937_64& random) {
    const auto below = [&](std::uint64_t end) { return random() % end; };
    Job job;
    job.lengths.resize(1 + below(3));
    for (layout::Index& length : job.lengths)
      length = static_cast<layout::Index>(1 + below(12));
    job.replicas = static_cast<std::uint32_t>(1 + below(3));
    job.per_replica = static_cast<std::uint32_t>(1 + below(3));
    job.reads.resize(job.per_replica);
    for (std::uint32_t p = 0; p < job.parameters(); ++p) {
      if (below(3) == 0) { // everywhere
        for (auto& place : job.reads)
          place.push_back({p, 0, job.lengths[p]});
        continue;
      }
      layout::Index begin = 0;
      for (std::uint32_t place = 0; place < job.per_replica; ++place) {
        const layout::Index left = job.lengths[p] - begin;
        const layout::Index end =
          place + 1 == job.per_replica ? job.lengths[p] : begin + static_cast<layout::Index>(below(left + 1));
        if (begin < end)
          job.reads[place].push_back({p, begin, end});
        begin = end;
      }
    }
    return job;
  }

  /// How one session's ranks cut the parameters, by rank.
  [[nodiscard]] std::vector<std::vector<Piece>> cut(std::mt19937_64& random) const {
    std::vector<std::vector<Piece>> ranks(1 + random() % 3);
    for (std::uint32_t p = 0; p < parameters(); ++p)
      for (layout::Index begin = 0; begin < lengths[p];) {
        const layout::Index end = begin + 1 + static_cast<layout::Index>(random() % (lengths[p] - begin));
        ranks[random() % ranks.size()].push_back({p, begin, end});
        begin = end;
      }
    return ranks;
  }

  /// What a process declares that holds these pieces: a parameter a piece, whose buffers are its memory in that order.
  [[nodiscard]] layout::Declaration declare(const std::vector<Piece>& pieces) const {
    layout::Declaration declaration;
    for (std::uint32_t p = 0; p < parameters(); ++p)
      declaration.slots.push_back({fmt::format("p{}", p), DType::bf16, {lengths[p]}});
    for (const Piece& piece : pieces) {
      const auto parameter = static_cast<std::uint32_t>(declaration.parameters.size());
      const layout::Index length = piece.end - piece.begin;
      declaration.parameters.push_back(
        {fmt::format("p{}.{}", piece.parameter, piece.begin), DType::bf16, {length}, {length}, {1}});
      declaration.regions.push_back({parameter, piece.parameter, 0, {{{piece.begin, length, 0, 1}}}});
    }
    return declaration;
  }

  /// Numbers of the elements of these pieces, in the order of memory.
  [[nodiscard]] std::vector<std::uint32_t> numbers(const std::vector<Piece>& pieces) const {
    std::vector<std::uint32_t> numbers;
    for (const Piece& piece : pieces)
      for (layout::Index i = piece.begin; i < piece.end; ++i)
        numbers.push_back(number_of(piece.parameter, i));
    return numbers;
  }
};

} // namespace deltawire::simulation
