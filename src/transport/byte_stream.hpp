// A connection as a stream of bytes that come in and frames that go out. Used on its connection's thread only, except
// descriptor(). At most one read and one write at a time; their buffers must live until `done`, which never runs inside
// the call that asked for it. close() ends both with an error.
#pragma once

#include "transport/io_core.hpp"

#include <array>

namespace deltawire::transport {

class ByteStream {
public:
  using Done = std::function<void(const error_code&, std::size_t)>;

  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  virtual ~ByteStream() = default;

  /// All of the buffer, or an error and what came before it; asio::error::eof where the peer ended its sending.
  virtual void read(asio::mutable_buffer into, Done done) = 0;
  /// What is there, at least one byte.
  virtual void read_some(asio::mutable_buffer into, Done done) = 0;
  /// As many bytes as read() would, at the end of the body, which has room for them and must live as long.
  virtual void append(Buffer& body, std::size_t bytes, Done done) {
    const std::size_t have = body.size();
    body.resize(have + bytes);
    read(asio::buffer(body.data() + have, bytes), std::move(done));
  }
  /// All of the frame, which must live until `done`; counts its bytes.
  virtual void write(const Outgoing& frame, Done done) = 0;
  /// Tells the peer that nothing more comes. Reading goes on.
  virtual void end_sending() = 0;
  virtual void close() = 0;

  /// What an error that `done` told means, without the peer's name.
  [[nodiscard]] virtual std::string explain(const error_code& error) const { return error.message(); }

  /// Valid until close(); from any thread.
  [[nodiscard]] virtual int descriptor() = 0;
};

/// Header and body of a frame, in order.
using Parts = std::array<asio::const_buffer, 2>;
[[nodiscard]] inline Parts parts_of(const Outgoing& frame) {
  return {asio::buffer(frame.header), frame.body ? asio::buffer(*frame.body) : asio::const_buffer()};
}

/// The bytes as they are.
[[nodiscard]] std::shared_ptr<ByteStream> make_plain_stream(Socket socket);

} // namespace deltawire::transport
