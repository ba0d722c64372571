// The launches: how tables are shared out to warps, and nothing else. What a warp does is in *_steps.hpp.
#include "kernels/cuda/launch.hpp"

#include "kernels/cuda/diff_steps.hpp"
#include "kernels/cuda/outcome.hpp"
#include "kernels/cuda/place_steps.hpp"

#include <algorithm>

namespace deltawire::kernels::cuda {
namespace {

constexpr unsigned block_threads = 256;
constexpr unsigned block_warps = block_threads / lanes;

/// Each warp takes every n-th entry, n being all warps of the launch.
template <class Entry, class Step>
__device__ __forceinline__ void over_table(const Entry* entries, std::size_t count, Step&& step) {
  const std::size_t warps = std::size_t{gridDim.x} * block_warps;
  DeviceWarp warp;
  for (std::size_t index = std::size_t{blockIdx.x} * block_warps + threadIdx.x / lanes; index < count; index += warps) {
    const Entry entry = entries[index]; // a copy: what the step writes cannot change it
    step(warp, entry, index);
  }
}

template <class Source>
__global__ void __launch_bounds__(block_threads)
  compare_kernel(const Part* parts, std::size_t count, std::uint32_t* counts, Workspace workspace) {
  over_table(parts, count, [&](DeviceWarp& warp, const Part& part, std::size_t index) {
    compare_part<Source>(warp, part, index, counts, workspace);
  });
}

__global__ void __launch_bounds__(lanes) place_kernel(std::size_t parts, Workspace workspace, Found* found) {
  DeviceWarp warp;
  place_groups(warp, parts, workspace, found);
}

template <class Source>
__global__ void __launch_bounds__(block_threads)
  save_kernel(const Part* parts, std::size_t count, Workspace workspace, Changes out) {
  over_table(parts, count, [&](DeviceWarp& warp, const Part& part, std::size_t index) {
    save_part<Source>(warp, part, index, workspace, out);
  });
}

template <class Source>
__global__ void __launch_bounds__(block_threads)
  take_kernel(const Part* parts, std::size_t count, std::uint64_t* digests) {
  over_table(parts, count,
             [&](DeviceWarp& warp, const Part& part, std::size_t) { take_part<Source>(warp, part, digests); });
}

template <class Element, bool swap>
__global__ void __launch_bounds__(block_threads)
  places_kernel(const Places* places, std::size_t count, std::uint64_t* digests) {
  over_table(places, count, [&](DeviceWarp& warp, const Places& entry, std::size_t) {
    visit_places<Element, swap>(warp, entry, digests);
  });
}

/// As many thread blocks as the table keeps busy, and no more than the device runs at once: the rest would only queue.
unsigned blocks_for(const Stream& stream, std::size_t entries) {
  constexpr std::size_t resident = 2048 / block_threads;
  const std::size_t wanted = (entries + block_warps - 1) / block_warps;
  return static_cast<unsigned>(std::min(wanted, resident * static_cast<std::size_t>(stream.multiprocessors())));
}

cudaStream_t queue_of(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.handle());
}

Outcome launched(const char* what) {
  return outcome_of(cudaGetLastError(), what);
}

template <class Source>
Outcome diff(Stream& stream, const Part* parts, std::size_t count, const Changes& out, std::byte* memory) {
  if (count == 0)
    return stream.fill(out.found, 0, sizeof(Found));
  if (Outcome chosen = use_device(stream.device()); !chosen)
    return chosen;
  const Workspace workspace = workspace_at(memory, count);
  if (Outcome cleared = stream.fill(workspace.group_sums, 0, groups_of(count) * sizeof(std::uint32_t)); !cleared)
    return cleared;
  const unsigned blocks = blocks_for(stream, count);
  compare_kernel<Source><<<blocks, block_threads, 0, queue_of(stream)>>>(parts, count, out.counts, workspace);
  place_kernel<<<1, lanes, 0, queue_of(stream)>>>(count, workspace, out.found);
  save_kernel<Source><<<blocks, block_threads, 0, queue_of(stream)>>>(parts, count, workspace, out);
  return launched("launching a diff");
}

template <class Source>
Outcome take_as(Stream& stream, const Part* parts, std::size_t count, std::uint64_t* digests) {
  if (count == 0)
    return {};
  if (Outcome chosen = use_device(stream.device()); !chosen)
    return chosen;
  take_kernel<Source><<<blocks_for(stream, count), block_threads, 0, queue_of(stream)>>>(parts, count, digests);
  return launched("launching a first capture");
}

template <bool swap>
Outcome visit(Stream& stream, const Places* places, std::size_t count, std::size_t size, std::uint64_t* digests) {
  if (count == 0)
    return {};
  if (Outcome chosen = use_device(stream.device()); !chosen)
    return chosen;
  const unsigned blocks = blocks_for(stream, count);
  by_size(size, [&](auto element) {
    places_kernel<decltype(element), swap><<<blocks, block_threads, 0, queue_of(stream)>>>(places, count, digests);
  });
  return launched(swap ? "launching an exchange" : "launching a read-back");
}

} // namespace

Outcome diff_and_refresh(Stream& stream, const Part* parts, std::size_t count, std::size_t size, const Changes& out,
                         std::byte* workspace) {
  return by_size(size,
                 [&](auto element) { return diff<AsIs<decltype(element)>>(stream, parts, count, out, workspace); });
}

Outcome cast_diff_and_refresh(Stream& stream, const Part* parts, std::size_t count, Cast cast, const Changes& out,
                              std::byte* workspace) {
  if (cast == Cast::fp32_to_bf16)
    return diff<Rounded<Cast::fp32_to_bf16>>(stream, parts, count, out, workspace);
  return diff<Rounded<Cast::fp32_to_fp16>>(stream, parts, count, out, workspace);
}

Outcome take(Stream& stream, const Part* parts, std::size_t count, std::size_t size, std::uint64_t* digests) {
  return by_size(size, [&](auto element) { return take_as<AsIs<decltype(element)>>(stream, parts, count, digests); });
}

Outcome cast_take(Stream& stream, const Part* parts, std::size_t count, Cast cast, std::uint64_t* digests) {
  if (cast == Cast::fp32_to_bf16)
    return take_as<Rounded<Cast::fp32_to_bf16>>(stream, parts, count, digests);
  return take_as<Rounded<Cast::fp32_to_fp16>>(stream, parts, count, digests);
}

Outcome exchange(Stream& stream, const Places* places, std::size_t count, std::size_t size, std::uint64_t* digests) {
  return visit<true>(stream, places, count, size, digests);
}

Outcome read_back(Stream& stream, const Places* places, std::size_t count, std::size_t size, std::uint64_t* digests) {
  return visit<false>(stream, places, count, size, digests);
}

} // namespace deltawire::kernels::cuda
