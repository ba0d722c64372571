#include "transport/shared_key.hpp"

#include <memory>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>

namespace deltawire::transport {
namespace {

constexpr std::string_view salt = "deltawire";
constexpr std::string_view info = "transport psk 1";

struct FreeContext {
  void operator()(EVP_PKEY_CTX* context) const noexcept { ::EVP_PKEY_CTX_free(context); }
};

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

} // namespace

Result<SharedKey> SharedKey::derive(std::string_view secret) {
  if (secret.size() < shortest_secret)
    return fail(Code::invalid_argument, "a secret of {} bytes; the least is {}", secret.size(), shortest_secret);
  SharedKey key;
  std::size_t size = key.bytes_.size();
  const std::unique_ptr<EVP_PKEY_CTX, FreeContext> context(::EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr));
  if (!context || ::EVP_PKEY_derive_init(context.get()) != 1 ||
      ::EVP_PKEY_CTX_set_hkdf_md(context.get(), ::EVP_sha256()) != 1 ||
      ::EVP_PKEY_CTX_set1_hkdf_salt(context.get(), bytes_of(salt), static_cast<int>(salt.size())) != 1 ||
      ::EVP_PKEY_CTX_set1_hkdf_key(context.get(), bytes_of(secret), static_cast<int>(secret.size())) != 1 ||
      ::EVP_PKEY_CTX_add1_hkdf_info(context.get(), bytes_of(info), static_cast<int>(info.size())) != 1 ||
      ::EVP_PKEY_derive(context.get(), key.bytes_.data(), &size) != 1 || size != key.bytes_.size())
    return fail(Code::internal, "OpenSSL cannot derive a key (HKDF-SHA256)");
  return key;
}

SharedKey::~SharedKey() {
  ::OPENSSL_cleanse(bytes_.data(), bytes_.size());
}

} // namespace deltawire::transport
