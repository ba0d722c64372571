// A region: memory that processes of one host share, an anonymous file of fixed size (memfd). Whoever made it may
// write; nobody else ever can, and nobody can make it smaller, so that reading it raises no signal.
#pragma once

#include "result.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace deltawire::transport {

/// A descriptor of our own; closed at its end.
class Descriptor {
public:
  Descriptor() = default;
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  [[nodiscard]] int get() const noexcept { return number_; }
  [[nodiscard]] explicit operator bool() const noexcept { return number_ >= 0; }
  [[nodiscard]] int release() noexcept;

private:
  int number_ = -1;
};

/// The largest region that is taken from a peer.
inline constexpr std::uint64_t most_region_bytes = 64ull << 20;

/// A mapping of this process; unmapped at its end.
class Region {
public:
  /// Memory of our own to write into, zeros; pages are taken as they are first written to. Code::unsupported where the
  /// system has no memfd or lacks a seal (Linux before 5.1).
  [[nodiscard]] static Result<Region> make(std::uint64_t bytes);

  /// Somebody else's, to read: refused unless it has the announced size and all seals, and lies in ordinary pages (a
  /// huge page that is missing would raise SIGBUS).
  [[nodiscard]] static Result<Region> map(Descriptor descriptor, std::uint64_t bytes);

  Region(Region&& other) noexcept;
  Region& operator=(Region&&) = delete;
  ~Region();

  [[nodiscard]] std::uint64_t size() const noexcept { return bytes_; }
  /// Of make() only.
  [[nodiscard]] std::byte* data() noexcept { return data_; }
  [[nodiscard]] std::span<const std::byte> view() const noexcept { return {data_, bytes_}; }
  /// To give to peers: of make() only, -1 otherwise.
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }

private:
  Region(Descriptor descriptor, std::byte* data, std::uint64_t bytes) noexcept
    : descriptor_(std::move(descriptor)), data_(data), bytes_(bytes) {}

  Descriptor descriptor_;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

} // namespace deltawire::transport
