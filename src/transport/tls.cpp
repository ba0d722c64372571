#include "transport/tls_stream.hpp"

#include <openssl/ssl.h>

namespace deltawire::transport {
namespace {

constexpr const char* suite = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char suite_number[] = {0x13, 0x01};
constexpr const char* groups = "X25519:P-256";

const SharedKey& key_of(SSL* ssl) {
  return *static_cast<const SharedKey*>(SSL_CTX_get_app_data(::SSL_get_SSL_CTX(ssl)));
}

/// The key as OpenSSL takes it: a session to resume that never was. Null when memory ran out.
SSL_SESSION* session_of(SSL* ssl) {
  const auto key = key_of(ssl).bytes();
  SSL_SESSION* session = ::SSL_SESSION_new();
  if (session != nullptr && ::SSL_SESSION_set1_master_key(session, key.data(), key.size()) == 1 &&
      ::SSL_SESSION_set_cipher(session, ::SSL_CIPHER_find(ssl, suite_number)) == 1 &&
      ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
    return session;
  ::SSL_SESSION_free(session);
  return nullptr;
}

/// Server: finds the key by the identity that a client names.
int find_session(SSL* ssl, const unsigned char* identity, std::size_t size, SSL_SESSION** session) {
  *session = nullptr;
  if (std::string_view(reinterpret_cast<const char*>(identity), size) != psk_identity)
    return 1; // no such key: the handshake fails for want of a certificate
  *session = session_of(ssl);
  return *session != nullptr ? 1 : 0;
}

/// Client: offers the key.
int use_session(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, std::size_t* size,
                SSL_SESSION** session) {
  *session = nullptr;
  if (digest != nullptr && ::EVP_MD_type(digest) != NID_sha256)
    return 0;
  *identity = reinterpret_cast<const unsigned char*>(psk_identity.data());
  *size = psk_identity.size();
  *session = session_of(ssl);
  return *session != nullptr ? 1 : 0;
}

bool set_up_end(SSL_CTX* context, const SharedKey& key) {
  if (context == nullptr || ::SSL_CTX_set_ciphersuites(context, suite) != 1 ||
      SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set1_groups_list(context, const_cast<char*>(groups)) != 1 || ::SSL_CTX_set_num_tickets(context, 0) != 1)
    return false;
  SSL_CTX_set_app_data(context, const_cast<SharedKey*>(&key));
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  return true;
}

} // namespace

TlsContext::TlsContext(const SharedKey& key, std::uint64_t new_key_after)
  : key_(key), new_key_after_(new_key_after), client_(::SSL_CTX_new(::TLS_client_method())),
    server_(::SSL_CTX_new(::TLS_server_method())) {}

TlsContext::~TlsContext() {
  ::SSL_CTX_free(client_);
  ::SSL_CTX_free(server_);
}

bool TlsContext::set_up() {
  if (!set_up_end(client_, key_) || !set_up_end(server_, key_))
    return false;
  ::SSL_CTX_set_psk_use_session_callback(client_, use_session);
  // A server that answers with a certificate instead of the key has none that anybody trusts.
  ::SSL_CTX_set_verify(client_, SSL_VERIFY_PEER, nullptr);
  ::SSL_CTX_set_psk_find_session_callback(server_, find_session);
  return true;
}

Result<std::shared_ptr<const TlsContext>> TlsContext::make(const SharedKey& key, std::uint64_t new_key_after) {
  std::shared_ptr<TlsContext> context(new TlsContext(key, new_key_after));
  if (!context->set_up())
    return fail(Code::internal, "OpenSSL cannot set up TLS 1.3 with {}", suite);
  return context;
}

std::shared_ptr<TlsStream> TlsContext::make_stream(TlsRole role, Socket socket) const {
  return make_tls_stream(role == TlsRole::client ? client_ : server_, role, std::move(socket), new_key_after_);
}

} // namespace deltawire::transport
