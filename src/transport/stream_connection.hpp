// A connection over sockets: frames over a stream of bytes, plain, encrypted or through shared memory. It lives on one
// io thread; nothing but the socket's descriptor (abort() shuts it down from any thread) needs a lock.
#pragma once

#include "transport/strangers.hpp"
#include "transport/tls.hpp"

#include <deque>

namespace deltawire::transport {

class StreamConnection final : public Ended, public std::enable_shared_from_this<StreamConnection> {
public:
  /// Over the core's kind of stream; one of TLS must shake_hands() before anything else is asked of it.
  StreamConnection(std::shared_ptr<IoCore> core, TlsRole role, Socket socket, asio::io_context& context,
                   std::string peer);

  /// The rest of what makes a connection, before it is handed over: limits where the peer may be anyone, then the
  /// handshake. `ready` is called on the connection's thread, once, with how it went; plain: at once. A failure names
  /// the peer and has ended the connection.
  void make_ready(std::shared_ptr<Strangers> strangers, std::function<void(const HandshakeEnd&)> ready);

  // From any thread: as in Connection.

  void start(Handlers handlers);
  void send(Outgoing frame, SendDone done);
  void close(std::chrono::milliseconds linger);
  void admit();
  void abort(const Failure& reason);
  void end(const Failure& reason) override { abort(reason); }

  [[nodiscard]] const std::string& peer() const noexcept { return peer_; }
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept { return sent_; }
  [[nodiscard]] std::uint64_t bytes_received() const noexcept { return received_; }

private:
  struct Queued {
    Outgoing frame;
    SendDone done;
  };

  // On the connection's thread.

  void do_make_ready(std::shared_ptr<Strangers>&& strangers, std::function<void(const HandshakeEnd&)>&& ready);
  void shaken(HandshakeEnd end, const std::function<void(const HandshakeEnd&)>& ready);
  void do_admit();
  [[nodiscard]] bool too_much_for_a_stranger(std::uint64_t body);
  void do_start(Handlers&& handlers);
  void do_send(Outgoing&& frame, SendDone&& done);
  void write();
  void written(const error_code& error, std::size_t bytes);
  void read_header();
  void header_read(const error_code& error, std::size_t bytes);
  [[nodiscard]] bool speaks_tls(std::size_t bytes) const;
  [[nodiscard]] Failure tls_met_plain() const;
  void read_body();
  void read_failed(const error_code& error, bool within_frame);
  void do_close(std::chrono::milliseconds linger);
  void half_close();
  void discard();
  [[nodiscard]] Failure closed_here() const;
  void finish(const Failure& why);
  void complete();
  void tell(const SendDone& done, const Result<void>& result);

  const std::shared_ptr<IoCore> core_;
  const std::string peer_;
  asio::io_context& context_;

  std::mutex socket_mutex_; ///< for the descriptor's life, and what follows
  bool open_ = true;
  std::optional<Failure> abort_reason_;

  const std::shared_ptr<TlsStream> tls_; ///< null: plain
  const std::shared_ptr<ByteStream> stream_;
  asio::steady_timer linger_;
  asio::steady_timer patience_;          ///< with a stranger
  std::shared_ptr<Strangers> strangers_; ///< accepted and not closed
  bool stranger_ = false;                ///< accepted and not admitted
  bool shaking_ = false;                 ///< hands
  std::deque<Queued> queue_;             ///< the first is being written while writing_
  Handlers handlers_;
  Incoming incoming_;
  std::uint64_t body_bytes_ = 0;
  bool started_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool closing_ = false;     ///< close() was called
  bool half_closed_ = false; ///< and all is sent
  bool told_ = false;        ///< on_closed was called
  std::optional<Failure> finished_;
  std::atomic<std::uint64_t> sent_ = 0;
  std::atomic<std::uint64_t> received_ = 0;
};

/// What the user holds.
[[nodiscard]] std::shared_ptr<Connection> make_handle(std::shared_ptr<StreamConnection> connection);

} // namespace deltawire::transport
