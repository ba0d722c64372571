// The key that both ends of an encrypted connection hold, derived from a secret that somebody made up.
#pragma once

#include "result.hpp"

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace deltawire::transport {

/// A secret has at least so many bytes.
inline constexpr std::size_t shortest_secret = 32;

/// 32 bytes: HKDF-SHA256 of the secret (RFC 5869) with the salt "deltawire" and the info "transport psk 1". Wiped at
/// its end.
class SharedKey {
public:
  /// Fails on a secret of fewer than shortest_secret bytes.
  [[nodiscard]] static Result<SharedKey> derive(std::string_view secret);

  SharedKey(const SharedKey&) = default;
  SharedKey& operator=(const SharedKey&) = default;
  ~SharedKey();

  [[nodiscard]] std::span<const unsigned char> bytes() const noexcept { return bytes_; }

private:
  SharedKey() = default;

  std::array<unsigned char, 32> bytes_{};
};

} // namespace deltawire::transport
