// The kernels of kernels/cpu on a device, over tables: queued on a stream, in a few launches whatever the number of
// tensors, none of which waits for the host. Only in builds with CUDA. Results are those of kernels/cpu bit for bit.
//
// Tables and all that they point to is device memory, borrowed until the stream has done the work. Elements have
// 1, 2, 4 or 8 bytes, and lie at multiples of that. An Outcome says whether the work could be queued; what goes wrong
// in it comes out of Stream::wait(). Each call makes the stream's device the calling thread's.
#pragma once

#include "kernels/cuda/execution.hpp"
#include "kernels/cuda/parts.hpp"

namespace deltawire::kernels::cuda {

/// diff_and_refresh() of kernels/diff.hpp over `count` parts, with the digest of the changes. Copy out.found to the
/// host, wait, and copy as many counts, positions and values as it tells. Parts past found->taken had no room: they
/// are as before, and the next call takes the table from there. With room for part_elements each call takes a part.
/// `workspace` has workspace_bytes(count) bytes and begins at a multiple of 16.
Outcome diff_and_refresh(Stream& stream, const Part* parts, std::size_t count, std::size_t size, const Changes& out,
                         std::byte* workspace);

/// cast_diff_and_refresh() of kernels/diff.hpp: `now` holds fp32.
Outcome cast_diff_and_refresh(Stream& stream, const Part* parts, std::size_t count, Cast cast, const Changes& out,
                              std::byte* workspace);

/// A first capture: copies each part into the snapshot where it has one, and adds digest_run() of all its elements to
/// digests[cell]; null: nobody asks.
Outcome take(Stream& stream, const Part* parts, std::size_t count, std::size_t size, std::uint64_t* digests);
Outcome cast_take(Stream& stream, const Part* parts, std::size_t count, Cast cast, std::uint64_t* digests);

/// Swaps the values of each entry with memory, and adds what memory held to digests[cell]; null: nobody asks. The
/// second call undoes the first.
Outcome exchange(Stream& stream, const Places* places, std::size_t count, std::size_t size, std::uint64_t* digests);

/// Adds what memory holds at the places to digests[cell].
Outcome read_back(Stream& stream, const Places* places, std::size_t count, std::size_t size, std::uint64_t* digests);

} // namespace deltawire::kernels::cuda
