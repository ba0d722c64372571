#include "transport/tls_stream.hpp"

#include <boost/asio/ssl/error.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

#include <openssl/err.h>
#include <openssl/ssl.h>

namespace deltawire::transport {
namespace {

constexpr std::size_t record_bytes = SSL3_RT_MAX_PLAIN_LENGTH;
constexpr std::size_t batch_bytes = 16 * record_bytes; ///< encrypted, or received, at a time
constexpr unsigned char handshake_record = 22;
constexpr unsigned char alert_record = 21;

struct FreeSsl {
  void operator()(SSL* ssl) const noexcept { ::SSL_free(ssl); }
};

error_code error_of(unsigned long code) {
  return code == 0 ? error_code(asio::error::connection_aborted)
                   : error_code(static_cast<int>(code), asio::error::get_ssl_category());
}

/// Why OpenSSL failed, in the words of this handshake. Keys of the topology are named: there is nothing else to turn.
HandshakeEnd describe(unsigned long code, TlsRole role, std::optional<unsigned char> first_byte) {
  const auto because = [](bool hopeless, std::string_view what) {
    return HandshakeEnd{Failure{Code::peer_failed, std::string(what)}, hopeless};
  };
  const int reason = ERR_GET_REASON(code);
  if (first_byte && *first_byte != handshake_record && *first_byte != alert_record)
    return because(true, "it does not speak TLS: give it the same transport.secret_file");
  if (ERR_GET_LIB(code) == ERR_LIB_SSL)
    switch (reason) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
    case SSL_R_SSLV3_ALERT_BAD_RECORD_MAC:
      return because(true, "it has another secret than this process: give both the same transport.secret_file");
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
      return because(true, "it does not know the secret, and answered with a certificate: it is not deltawire's root");
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_VERSION_TOO_LOW:
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
      return because(true, "it does not speak TLS 1.3");
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_NO_SUITABLE_KEY_SHARE:
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
      return because(true, "it does not use deltawire's secret: it is another program, or another version");
    default:
      break;
    }
  const char* text = ::ERR_reason_error_string(code);
  return because(true, fmt::format("TLS handshake failed ({}, as {})", text != nullptr ? text : "no reason given",
                                   role == TlsRole::client ? "client" : "server"));
}

class Stream final : public TlsStream, public std::enable_shared_from_this<Stream> {
public:
  Stream(SSL_CTX* context, TlsRole role, Socket socket, std::uint64_t new_key_after)
    : socket_(std::move(socket)), role_(role), new_key_after_(new_key_after), ssl_(::SSL_new(context)) {
    prepare(socket_);
    BIO* from_peer = ::BIO_new(::BIO_s_mem());
    BIO* to_peer = ::BIO_new(::BIO_s_mem());
    if (!ssl_ || from_peer == nullptr || to_peer == nullptr) {
      ::BIO_free(from_peer);
      ::BIO_free(to_peer);
      throw std::bad_alloc();
    }
    ::SSL_set_bio(ssl_.get(), from_peer, to_peer); // which owns them now
    from_peer_ = from_peer;
    to_peer_ = to_peer;
    if (role == TlsRole::client)
      ::SSL_set_connect_state(ssl_.get());
    else
      ::SSL_set_accept_state(ssl_.get());
  }

  void shake_hands(std::uint64_t most_bytes, std::function<void(HandshakeEnd)> done) override {
    most_bytes_ = most_bytes;
    shaken_ = std::move(done);
    go_on_shaking();
  }

  void read(asio::mutable_buffer into, Done done) override { begin_read(into, true, std::move(done)); }
  void read_some(asio::mutable_buffer into, Done done) override { begin_read(into, false, std::move(done)); }

  void write(const Outgoing& frame, Done done) override {
    parts_ = parts_of(frame);
    encrypted_ = 0;
    written_ = std::move(done);
    asking_ = true;
    go_on_writing();
    asking_ = false;
  }

  void end_sending() override {
    ending_ = true;
    if (!failed_)
      ::SSL_shutdown(ssl_.get()); // only says so: the peer may go on
    go_on_writing();
  }

  void close() override {
    error_code ignored;
    socket_.close(ignored);
  }

  [[nodiscard]] int descriptor() override { return socket_.native_handle(); }

private:
  // Handshake

  void go_on_shaking() {
    ::ERR_clear_error();
    const int result = ::SSL_do_handshake(ssl_.get());
    const unsigned long code = ::ERR_peek_error();
    const int state = ::SSL_get_error(ssl_.get(), result);
    if (result != 1 && state != SSL_ERROR_WANT_READ)
      failed_ = true;
    go_on_writing(); // an alert, too
    if (result == 1)
      // Resumed: with the key, that is. A certificate would do for OpenSSL.
      return shaken(::SSL_session_reused(ssl_.get()) == 1
                      ? HandshakeEnd{}
                      : describe(ERR_PACK(ERR_LIB_SSL, 0, SSL_R_CERTIFICATE_VERIFY_FAILED), role_, {}));
    if (failed_)
      return shaken(describe(code, role_, first_byte_));
    if (bytes_from_peer_ > most_bytes_)
      return shaken({Failure{Code::limit_exceeded, fmt::format("more than {} bytes of a TLS handshake", most_bytes_)}});
    receive([self = shared_from_this()](const error_code& error) {
      if (!error)
        return self->go_on_shaking();
      self->shaken({Failure{
        Code::peer_failed,
        fmt::format("{} during the TLS handshake{}",
                    error == asio::error::eof ? "it closed the connection" : "receiving failed: " + error.message(),
                    self->role_ == TlsRole::client ? ": it is busy, or not deltawire with a transport.secret_file"
                                                   : "")}});
    });
  }

  void shaken(HandshakeEnd end) {
    const auto done = std::exchange(shaken_, {});
    done(std::move(end));
  }

  // Receiving

  /// More of what the peer sent into OpenSSL's hands.
  void receive(std::function<void(const error_code&)> done) {
    if (received_.empty())
      received_.resize(4096); // little for whom we do not know
    socket_.async_read_some(asio::buffer(received_), [self = shared_from_this(), done = std::move(done)](
                                                       const error_code& error, std::size_t bytes) {
      if (!error && bytes != 0) {
        if (!self->first_byte_)
          self->first_byte_ = self->received_[0];
        self->bytes_from_peer_ += bytes;
        ::BIO_write(self->from_peer_, self->received_.data(), static_cast<int>(bytes));
        if (self->received_.size() < batch_bytes && !self->shaken_)
          self->received_.resize(batch_bytes);
      }
      done(error);
    });
  }

  void begin_read(asio::mutable_buffer into, bool all, Done done) {
    into_ = into;
    have_ = 0;
    all_ = all;
    read_ = std::move(done);
    asking_ = true;
    go_on_reading();
    asking_ = false;
  }

  void go_on_reading() {
    while (have_ < into_.size() && (all_ || have_ == 0)) {
      std::size_t bytes = 0;
      ::ERR_clear_error();
      const int result =
        ::SSL_read_ex(ssl_.get(), static_cast<char*>(into_.data()) + have_, into_.size() - have_, &bytes);
      if (result == 1) {
        have_ += bytes;
        continue;
      }
      const unsigned long code = ::ERR_peek_error();
      switch (::SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        go_on_writing(); // what TLS itself has to say
        return receive([self = shared_from_this()](const error_code& error) {
          // Without the peer's goodbye in TLS: what ends a session is said in frames, so there is no difference to
          // tell.
          error ? self->complete_read(error) : self->go_on_reading();
        });
      case SSL_ERROR_ZERO_RETURN:
        return complete_read(asio::error::eof);
      default:
        failed_ = true;
        go_on_writing(); // the alert
        return complete_read(error_of(code));
      }
    }
    complete_read({});
  }

  void complete_read(const error_code& error) { complete(read_, error, have_); }

  // Sending

  /// Encrypts and sends until nothing is left to send, a batch at a time.
  void go_on_writing() {
    while (!sending_) {
      const std::size_t pending = ::BIO_ctrl_pending(to_peer_);
      if (pending != 0) {
        send(pending);
        return;
      }
      if (!written_)
        break;
      const std::size_t total = asio::buffer_size(parts_);
      if (encrypted_ == total) {
        complete(written_, {}, total);
        continue; // a write that came meanwhile
      }
      if (!encrypt()) {
        failed_ = true;
        complete(written_, error_of(::ERR_peek_error()), 0);
        return;
      }
    }
    if (ending_ && !sending_ && !written_) {
      error_code ignored;
      socket_.shutdown(Socket::shutdown_send, ignored);
    }
  }

  /// The next batch of what is to be written. A frame's header does not get a record of its own: it shares one with the
  /// beginning of the body, which is copied for that.
  bool encrypt() {
    ::ERR_clear_error();
    const std::size_t header = parts_[0].size();
    const auto* body = static_cast<const std::byte*>(parts_[1].data());
    const void* from = body + (encrypted_ - std::min(encrypted_, header));
    std::size_t bytes = std::min(header + parts_[1].size() - encrypted_, batch_bytes);
    if (encrypted_ < header) {
      const std::size_t left = header - encrypted_;
      bytes = std::min(bytes, std::max(record_bytes, left));
      first_.resize(bytes);
      std::memcpy(first_.data(), static_cast<const std::byte*>(parts_[0].data()) + encrypted_, std::min(left, bytes));
      if (bytes > left)
        std::memcpy(first_.data() + left, body, bytes - left);
      from = first_.data();
    }
    records_ += (bytes + record_bytes - 1) / record_bytes;
    if (records_ >= new_key_after_) {
      records_ = 0;
      if (::SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1)
        return false;
    }
    std::size_t taken = 0;
    if (::SSL_write_ex(ssl_.get(), from, bytes, &taken) != 1)
      return false;
    encrypted_ += taken;
    return true;
  }

  void send(std::size_t pending) {
    sending_ = true;
    to_send_.resize(pending);
    const int moved = ::BIO_read(to_peer_, to_send_.data(), static_cast<int>(pending));
    to_send_.resize(static_cast<std::size_t>(std::max(moved, 0)));
    asio::async_write(
      socket_, asio::buffer(to_send_),
      [total = to_send_.size()](const error_code& error, std::size_t done) -> std::size_t {
        return error ? 0 : total - done; // Asio's own condition caps a system call at 64 KiB
      },
      [self = shared_from_this()](const error_code& error, std::size_t) {
        self->sending_ = false;
        if (!error)
          return self->go_on_writing();
        self->failed_ = true;
        if (self->written_)
          self->complete(self->written_, error, 0);
      });
  }

  /// In a turn of its own where the operation has only been asked for.
  void complete(Done& kept, const error_code& error, std::size_t bytes) {
    Done done = std::exchange(kept, {});
    if (asking_)
      asio::post(socket_.get_executor(), [done = std::move(done), error, bytes] { done(error, bytes); });
    else
      done(error, bytes);
  }

  Socket socket_;
  const TlsRole role_;
  const std::uint64_t new_key_after_;
  const std::unique_ptr<SSL, FreeSsl> ssl_;
  BIO* from_peer_ = nullptr;
  BIO* to_peer_ = nullptr;
  bool failed_ = false; ///< OpenSSL's state is of no use any more
  bool asking_ = false; ///< within a call that asks for an operation
  bool ending_ = false; ///< nothing more is sent

  std::function<void(HandshakeEnd)> shaken_;
  std::uint64_t most_bytes_ = 0;
  std::optional<unsigned char> first_byte_; ///< of the peer
  std::uint64_t bytes_from_peer_ = 0;

  std::vector<unsigned char> received_;
  asio::mutable_buffer into_; ///< of the read under way
  std::size_t have_ = 0;
  bool all_ = false;
  Done read_;

  Parts parts_; ///< of the write under way
  std::size_t encrypted_ = 0;
  std::uint64_t records_ = 0; ///< under this key
  std::vector<std::byte> first_;
  std::vector<unsigned char> to_send_; ///< being sent while sending_
  bool sending_ = false;
  Done written_;
};

} // namespace

std::shared_ptr<TlsStream> make_tls_stream(SSL_CTX* context, TlsRole role, Socket socket, std::uint64_t new_key_after) {
  return std::make_shared<Stream>(context, role, std::move(socket), new_key_after);
}

} // namespace deltawire::transport
