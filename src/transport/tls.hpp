// TLS 1.3 with a pre-shared key: the settings of both ends, and what a failed handshake is called.
//
// External PSK with an ephemeral key exchange (psk_dhe_ke, X25519 or P-256), TLS_AES_128_GCM_SHA256, no certificates,
// no tickets, no early data. Whoever completes a handshake has proven that it holds the key, the listener included.
#pragma once

#include "transport/byte_stream.hpp"
#include "transport/shared_key.hpp"

typedef struct ssl_ctx_st SSL_CTX; // NOLINT(modernize-use-using): as OpenSSL's own header has it

namespace deltawire::transport {

/// What both ends call the key: a constant of the protocol.
inline constexpr std::string_view psk_identity = "deltawire psk 1";

enum class TlsRole : std::uint8_t { client, server };

/// How a handshake ended.
struct HandshakeEnd {
  std::optional<Failure> failure; ///< none: both ends hold the key. The message does not name the peer
  bool hopeless = false;          ///< trying again would end the same
};

/// A byte stream whose bytes are encrypted once the handshake is done.
class TlsStream : public ByteStream {
public:
  /// First of all, once; `done` may run inside the call that asked only if the socket is closed already. At most
  /// `most_bytes` are taken from the peer until it ends.
  virtual void shake_hands(std::uint64_t most_bytes, std::function<void(HandshakeEnd)> done) = 0;
};

/// Both ends' settings, shared by all connections of a network. Thread-safe.
class TlsContext {
public:
  /// `new_key_after`: records under one key of a connection. 2^24.5 full ones are safe (RFC 8446, 5.5).
  [[nodiscard]] static Result<std::shared_ptr<const TlsContext>> make(const SharedKey& key,
                                                                      std::uint64_t new_key_after);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  [[nodiscard]] std::shared_ptr<TlsStream> make_stream(TlsRole role, Socket socket) const;

private:
  TlsContext(const SharedKey& key, std::uint64_t new_key_after);
  [[nodiscard]] bool set_up();

  SharedKey key_;
  std::uint64_t new_key_after_;
  SSL_CTX* client_;
  SSL_CTX* server_;
};

} // namespace deltawire::transport
