#include "http_get.hpp"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <string_view>

namespace deltawire::top {

namespace {

namespace asio = boost::asio;

constexpr std::size_t most_bytes = 64u << 20;

Result<std::string> body_of(const std::string& answer, const std::string& address) {
  const std::size_t head = answer.find("\r\n\r\n");
  const std::string_view first = std::string_view(answer).substr(0, answer.find("\r\n"));
  if (head == std::string::npos || !first.starts_with("HTTP/1."))
    return fail(Code::peer_failed, "{}: what answers there does not speak HTTP", address);
  if (first.substr(first.find(' ') + 1, 3) != "200")
    return fail(Code::peer_failed, "{}: answered \"{}\": is it a metrics endpoint of deltawire?", address, first);
  return answer.substr(head + 4);
}

} // namespace

Result<std::string> http_get(const std::string& host, std::uint16_t port, const std::string& path,
                             std::chrono::milliseconds deadline) {
  const std::string address =
    host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
  asio::io_context io;
  asio::ip::tcp::socket socket(io);
  boost::system::error_code failed;
  const auto hosts = asio::ip::tcp::resolver(io).resolve(host, std::to_string(port), failed);
  if (failed)
    return fail(Code::peer_failed, "{}: no such host: {}", address, failed.message());

  const std::string request = "GET " + path + " HTTP/1.0\r\nHost: " + address + "\r\nConnection: close\r\n\r\n";
  std::string answer;
  bool done = false;
  const auto step = [&](auto next) {
    return [&, next](const boost::system::error_code& error, const auto&) {
      failed = error;
      if (!error)
        next();
    };
  };
  const auto read = [&] {
    // 1.0 and "close": the end of the answer is the end of the connection.
    asio::async_read(socket, asio::dynamic_buffer(answer, most_bytes), asio::transfer_all(),
                     [&](const boost::system::error_code& error, std::size_t) {
                       failed = error == asio::error::eof ? boost::system::error_code{} : error;
                       done = !failed && answer.size() < most_bytes;
                     });
  };
  asio::async_connect(socket, hosts, step([&] { asio::async_write(socket, asio::buffer(request), step(read)); }));
  io.run_for(deadline);
  if (!io.stopped())
    return fail(Code::timed_out, "{}: no answer within {:.1f} s", address,
                std::chrono::duration<double>(deadline).count());
  if (failed)
    return fail(Code::peer_failed, "{}: {}", address, failed.message());
  if (!done)
    return fail(Code::peer_failed, "{}: an answer of more than {} MiB", address, most_bytes >> 20);
  return body_of(answer, address);
}

} // namespace deltawire::top
