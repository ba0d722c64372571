// TLS over an Asio socket, with OpenSSL working on memory: what it reads and writes is moved here, many records a
// system call. (asio::ssl::stream moves one of 16 KiB, and cannot end one direction while the other goes on.)
#pragma once

#include "transport/tls.hpp"

namespace deltawire::transport {

/// `context` must outlive the call only.
[[nodiscard]] std::shared_ptr<TlsStream> make_tls_stream(SSL_CTX* context, TlsRole role, Socket socket,
                                                         std::uint64_t new_key_after);

} // namespace deltawire::transport
