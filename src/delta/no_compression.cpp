// For builds without zstd: `actors.flush_bucket.compression` is refused, and so is what another build compressed.
#include "delta/compression.hpp"

namespace deltawire::delta {

bool can_compress() noexcept {
  return false;
}

void Compressor::Free::operator()(ZSTD_CCtx_s*) const noexcept {}

Compressor::Compressor() = default;
Compressor::~Compressor() = default;
Compressor::Compressor(Compressor&&) noexcept = default;
Compressor& Compressor::operator=(Compressor&&) noexcept = default;

std::span<const std::byte> Compressor::compress(std::span<const std::byte>, Planes, std::size_t) {
  return {};
}

void Expander::Free::operator()(ZSTD_DCtx_s*) const noexcept {}

Expander::Expander() = default;
Expander::~Expander() = default;
Expander::Expander(Expander&&) noexcept = default;
Expander& Expander::operator=(Expander&&) noexcept = default;

Result<std::span<const std::byte>> Expander::expand(std::span<const std::byte>, Planes) {
  return fail(Code::invalid_input, "compressed by zstd, which this build of deltawire lacks");
}

} // namespace deltawire::delta
