// A connected socket as a stream of bytes. Used on its connection's thread only, except descriptor(). At most one read
// and one write at a time; their buffers must live until `done`, which never runs inside the call that asked for it.
// close() ends both with an error.
#pragma once

#include "transport/tcp_core.hpp"

#include <array>

namespace deltawire::transport {

class ByteStream {
public:
  using Done = std::function<void(const error_code&, std::size_t)>;
  using Parts = std::array<asio::const_buffer, 2>;

  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  virtual ~ByteStream() = default;

  /// All of the buffer, or an error and what came before it; asio::error::eof where the peer ended its sending.
  virtual void read(asio::mutable_buffer into, Done done) = 0;
  /// What is there, at least one byte.
  virtual void read_some(asio::mutable_buffer into, Done done) = 0;
  /// All of the parts, in order.
  virtual void write(const Parts& parts, Done done) = 0;
  /// Tells the peer that nothing more comes. Reading goes on.
  virtual void end_sending() = 0;
  virtual void close() = 0;

  /// Valid until close(); from any thread.
  [[nodiscard]] virtual int descriptor() = 0;
};

/// The bytes as they are.
[[nodiscard]] std::shared_ptr<ByteStream> make_plain_stream(tcp::socket socket);

} // namespace deltawire::transport
