#include "transport/byte_stream.hpp"

namespace deltawire::transport {
namespace {

/// Asio's own condition caps a system call at 64 KiB.
auto all_of_it(std::uint64_t total) {
  return [total](const error_code& error, std::size_t done) -> std::size_t {
    return error ? 0 : static_cast<std::size_t>(total - done);
  };
}

/// Operations refer to the socket, which whoever waits for them keeps: `done` owns the connection, and it the stream.
class PlainStream final : public ByteStream {
public:
  explicit PlainStream(Socket socket) : socket_(std::move(socket)) { prepare(socket_); }

  void read(asio::mutable_buffer into, Done done) override {
    asio::async_read(socket_, into, all_of_it(into.size()), std::move(done));
  }
  void read_some(asio::mutable_buffer into, Done done) override { socket_.async_read_some(into, std::move(done)); }
  void write(const Outgoing& frame, Done done) override {
    const Parts parts = parts_of(frame);
    asio::async_write(socket_, parts, all_of_it(asio::buffer_size(parts)), std::move(done));
  }
  void end_sending() override {
    error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }
  void close() override {
    error_code ignored;
    socket_.close(ignored);
  }
  [[nodiscard]] int descriptor() override { return socket_.native_handle(); }

private:
  Socket socket_;
};

} // namespace

std::shared_ptr<ByteStream> make_plain_stream(Socket socket) {
  return std::make_shared<PlainStream>(std::move(socket));
}

} // namespace deltawire::transport
