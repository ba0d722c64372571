#include "delta/compression.hpp"

#include "kernels/planes.hpp"

#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace deltawire::delta {
namespace {

constexpr int level = 1;

/// Room for `bytes`; what was there is not kept.
std::byte* room(std::vector<std::byte>& buffer, std::size_t bytes) {
  if (buffer.size() < bytes) {
    buffer.clear();
    buffer.resize(bytes);
  }
  return buffer.data();
}

} // namespace

bool can_compress() noexcept {
  return true;
}

void Compressor::Free::operator()(ZSTD_CCtx_s* context) const noexcept {
  ZSTD_freeCCtx(context);
}

Compressor::Compressor() : context_(ZSTD_createCCtx()) {
  if (!context_)
    throw std::bad_alloc();
}

Compressor::~Compressor() = default;
Compressor::Compressor(Compressor&&) noexcept = default;
Compressor& Compressor::operator=(Compressor&&) noexcept = default;

std::span<const std::byte> Compressor::compress(std::span<const std::byte> plain, Planes planes, std::size_t limit) {
  if (planes.values > 0 && planes.size > 1) {
    const std::size_t head = plain.size() - planes.values * planes.size;
    std::byte* moved = room(planes_, plain.size());
    std::memcpy(moved, plain.data(), head);
    kernels::to_planes(plain.data() + head, planes.values, planes.size, moved + head);
    plain = {moved, plain.size()};
  }
  const std::size_t most = std::min(limit, ZSTD_compressBound(plain.size()));
  std::byte* frame = room(frame_, most);
  const std::size_t bytes = ZSTD_compressCCtx(context_.get(), frame, most, plain.data(), plain.size(), level);
  if (ZSTD_isError(bytes) != 0 || bytes >= limit) // it does not fit
    return {};
  return {frame, bytes};
}

void Expander::Free::operator()(ZSTD_DCtx_s* context) const noexcept {
  ZSTD_freeDCtx(context);
}

Expander::Expander() = default;
Expander::~Expander() = default;
Expander::Expander(Expander&&) noexcept = default;
Expander& Expander::operator=(Expander&&) noexcept = default;

Result<std::span<const std::byte>> Expander::expand(std::span<const std::byte> frame, Planes planes) {
  std::uint32_t magic = 0;
  if (frame.size() >= sizeof(magic))
    std::memcpy(&magic, frame.data(), sizeof(magic));
  if (magic != ZSTD_MAGICNUMBER) // no older format, which the library may know, and no frame to skip
    return fail(Code::invalid_input, "{} bytes are no zstd frame", frame.size());
  const unsigned long long said = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (said == ZSTD_CONTENTSIZE_ERROR || said == ZSTD_CONTENTSIZE_UNKNOWN)
    return fail(Code::invalid_input, "{} bytes are no zstd frame that says how many it holds", frame.size());
  if (said == 0 || said > most_plain_bytes)
    return fail(Code::invalid_input, "a zstd frame says that it holds {} bytes: 1 to {} are possible", said,
                most_plain_bytes);
  const auto bytes = static_cast<std::size_t>(said);
  if (planes.values > bytes / planes.size)
    return fail(Code::invalid_input, "{} values of {} bytes at the end of {} bytes", planes.values, planes.size, bytes);
  if (ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size())
    return fail(Code::invalid_input, "{} bytes are not one zstd frame", frame.size());
  if (!context_)
    context_.reset(ZSTD_createDCtx());
  if (!context_)
    throw std::bad_alloc();
  const bool moved = planes.values > 0 && planes.size > 1;
  std::byte* out = room(moved ? planes_ : plain_, bytes);
  const std::size_t got = ZSTD_decompressDCtx(context_.get(), out, bytes, frame.data(), frame.size());
  if (ZSTD_isError(got) != 0)
    return fail(Code::invalid_input, "a zstd frame of {} bytes is corrupt: {}", frame.size(), ZSTD_getErrorName(got));
  if (got != bytes)
    return fail(Code::invalid_input, "a zstd frame says that it holds {} bytes and holds {}", bytes, got);
  if (!moved)
    return std::span<const std::byte>(out, bytes);
  const std::size_t head = bytes - planes.values * planes.size;
  std::byte* plain = room(plain_, bytes);
  std::memcpy(plain, out, head);
  kernels::from_planes(out + head, planes.values, planes.size, plain + head);
  return std::span<const std::byte>(plain, bytes);
}

} // namespace deltawire::delta
