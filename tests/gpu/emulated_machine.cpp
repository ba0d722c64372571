// Device threads one after the other. Warps take entries of a table as on a device, from a grid of random size; warps
// and lanes have their turns in random order.
#include "machine.hpp"

#include "random.hpp"

#include "kernels/cuda/diff_steps.hpp"
#include "kernels/cuda/place_steps.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace deltawire::test {
namespace {

using namespace kernels::cuda;
using kernels::Cast;

class EmulatedMachine : public Machine {
public:
  void diff(Arena&, std::span<const Part> parts, std::size_t size, std::optional<Cast> cast,
            const Changes& out) override {
    as(size, cast, [&](auto source) {
      using Source = decltype(source);
      // What was in the workspace before means nothing, but for the sums.
      std::vector<std::uint64_t> memory(workspace_bytes(parts.size()) / 8 + 2, 0xA5A5A5A5A5A5A5A5ull);
      const Workspace workspace = workspace_at(reinterpret_cast<std::byte*>(memory.data()), parts.size());
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

  void take(Arena&, std::span<const Part> parts, std::size_t size, std::optional<Cast> cast,
            std::uint64_t* digests) override {
    as(size, cast, [&](auto source) {
      launch(parts.size(),
             [&](EmulatedWarp& warp, std::size_t index) { take_part<decltype(source)>(warp, parts[index], digests); });
    });
  }

  void exchange(Arena&, std::span<const Places> places, std::size_t size, std::uint64_t* digests) override {
    visit<true>(places, size, digests);
  }

  void read_back(Arena&, std::span<const Places> places, std::size_t size, std::uint64_t* digests) override {
    visit<false>(places, size, digests);
  }

private:
  template <class Body>
  static void as(std::size_t size, std::optional<Cast> cast, Body&& body) {
    if (cast == Cast::fp32_to_bf16)
      body(Rounded<Cast::fp32_to_bf16>());
    else if (cast == Cast::fp32_to_fp16)
      body(Rounded<Cast::fp32_to_fp16>());
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
      EmulatedWarp warp(static_cast<unsigned>(random_()));
      for (std::size_t index = first; index < entries; index += warps.size())
        step(warp, index);
    }
  }

  template <bool swap>
  void visit(std::span<const Places> places, std::size_t size, std::uint64_t* digests) {
    kernels::by_size(size, [&](auto element) {
      launch(places.size(), [&](EmulatedWarp& warp, std::size_t index) {
        visit_places<decltype(element), swap>(warp, places[index], digests);
      });
    });
  }

  std::mt19937_64 random_ = generator(900);
};

} // namespace

Machine& machine() {
  static EmulatedMachine emulated;
  return emulated;
}

} // namespace deltawire::test
