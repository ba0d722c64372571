// The bodies of compressed pieces (src/wire/FORMAT.md, "Body of kind compressed"): zstd at its fastest level over the
// plain body, whose last values are laid out in planes, a byte of each after the other. It is done where a piece is
// encoded and undone where it is staged: by as many threads as there are, before credit is taken and bytes travel; all
// in between only copies.
// Neither class is thread-safe. They keep what they allocate: at most twice most_plain_bytes each.
#pragma once

#include "result.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace deltawire::delta {

/// Encoders that compress make no larger pieces: so much a reader expands at a time, whatever the caps are.
inline constexpr std::size_t most_plain_bytes = std::size_t{4} << 20;

/// Whether this build has zstd. Without it nothing is compressed, and what is cannot be read.
[[nodiscard]] bool can_compress() noexcept;

/// Values at the end of a body that are laid out in planes.
struct Planes {
  std::size_t values = 0;
  std::size_t size = 1; ///< bytes of a value
};

class Compressor {
public:
  Compressor();
  ~Compressor();
  Compressor(Compressor&&) noexcept;
  Compressor& operator=(Compressor&&) noexcept;

  /// The zstd frame of `plain` if it has fewer than `limit` bytes, else nothing. Valid until the next call.
  [[nodiscard]] std::span<const std::byte> compress(std::span<const std::byte> plain, Planes planes, std::size_t limit);

private:
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const noexcept;
  };
  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
  std::vector<std::byte> planes_;
  std::vector<std::byte> frame_;
};

/// Expands untrusted frames.
class Expander {
public:
  Expander();
  ~Expander();
  Expander(Expander&&) noexcept;
  Expander& operator=(Expander&&) noexcept;

  /// The plain body in `frame`, which must be one zstd frame that says how many bytes it holds: at least one, at most
  /// most_plain_bytes, which is looked at before memory is taken for them. Valid until the next call.
  [[nodiscard]] Result<std::span<const std::byte>> expand(std::span<const std::byte> frame, Planes planes);

private:
  struct Free {
    void operator()(ZSTD_DCtx_s* context) const noexcept;
  };
  std::unique_ptr<ZSTD_DCtx_s, Free> context_;
  std::vector<std::byte> planes_;
  std::vector<std::byte> plain_;
};

} // namespace deltawire::delta
