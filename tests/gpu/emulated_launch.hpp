// Launches of the kernels on this processor: device threads one after the other. Warps take entries of a table as on a
// device, from a grid of random size; warps and lanes have their turns in random order.
#pragma once

#include "kernels/cuda/diff_steps.hpp"
#include "kernels/cuda/place_steps.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <vector>

namespace deltawire::test {

class EmulatedLaunches {
public:
  explicit EmulatedLaunches(std::mt19937_64 random) : random_(random) {}

  void diff(std::span<const kernels::cuda::Part> parts, std::size_t size, std::optional<kernels::Cast> cast,
            const kernels::cuda::Changes& out, std::byte* memory) {
    using namespace kernels::cuda;
    as(size, cast, [&](auto source) {
      using Source = decltype(source);
      const Workspace workspace = workspace_at(memory, parts.size());
      // What was in the workspace before means nothing, but for the sums.
      std::fill_n(memory, workspace_bytes(parts.size()), std::byte{0xA5});
      std::fill_n(workspace.group_sums, groups_of(parts.size()), 0u);
      launch(parts.size(), [&](EmulatedWarp& warp, std::size_t index) {
        compare_part<Source>(warp, parts[index], index, out.counts, workspace);
      });
      EmulatedWarp warp(static_cast<unsigned>(random_()));
      place_groups(warp, parts.size(), workspace, out.found);
      launch(parts.size(), [&](EmulatedWarp& each, std::size_t index) {
        save_part<Source>(each, parts[index], index, workspace, out);
      });
    });
  }

  void take(std::span<const kernels::cuda::Part> parts, std::size_t size, std::optional<kernels::Cast> cast,
            std::uint64_t* digests) {
    using namespace kernels::cuda;
    as(size, cast, [&](auto source) {
      launch(parts.size(),
             [&](EmulatedWarp& warp, std::size_t index) { take_part<decltype(source)>(warp, parts[index], digests); });
    });
  }

  template <bool swap>
  void visit(std::span<const kernels::cuda::Places> places, std::size_t size, std::uint64_t* digests) {
    using namespace kernels::cuda;
    kernels::by_size(size, [&](auto element) {
      launch(places.size(), [&](EmulatedWarp& warp, std::size_t index) {
        visit_places<decltype(element), swap>(warp, places[index], digests);
      });
    });
  }

private:
  template <class Body>
  static void as(std::size_t size, std::optional<kernels::Cast> cast, Body&& body) {
    using namespace kernels::cuda;
    if (cast == kernels::Cast::fp32_to_bf16)
      body(Rounded<kernels::Cast::fp32_to_bf16>());
    else if (cast == kernels::Cast::fp32_to_fp16)
      body(Rounded<kernels::Cast::fp32_to_fp16>());
    else
      kernels::by_size(size, [&](auto element) { body(AsIs<decltype(element)>()); });
  }

  template <class Step>
  void launch(std::size_t entries, Step&& step) {
    constexpr std::size_t block_warps = 8;
    std::vector<std::size_t> warps(block_warps * (1 + random_() % (entries / block_warps + 2)));
    std::iota(warps.begin(), warps.end(), std::size_t{0});
    std::shuffle(warps.begin(), warps.end(), random_);
    for (const std::size_t first : warps) {
      kernels::cuda::EmulatedWarp warp(static_cast<unsigned>(random_()));
      for (std::size_t index = first; index < entries; index += warps.size())
        step(warp, index);
    }
  }

  std::mt19937_64 random_;
};

} // namespace deltawire::test
