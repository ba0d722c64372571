// A metrics endpoint as a test reads it: GET /metrics by hand, and the series as they are written.
#pragma once

#include <map>
#include <sstream>
#include <string>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace deltawire::test {

/// What 127.0.0.1:port serves; empty where nobody answers.
inline std::string scrape(int port) {
  const int connection = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  std::string answer;
  if (::connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
    (void)::send(connection, request.data(), request.size(), MSG_NOSIGNAL);
    char buffer[65536];
    for (ssize_t count = 0; (count = ::read(connection, buffer, sizeof buffer)) > 0;)
      answer.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(connection);
  const auto head = answer.find("\r\n\r\n");
  return head == std::string::npos || answer.find(" 200 ") > 12 ? "" : answer.substr(head + 4);
}

/// By the series as written: name and labels.
inline std::map<std::string, double> series_of(const std::string& text) {
  std::map<std::string, double> series;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && line[0] != '#')
      series[line.substr(0, line.rfind(' '))] = std::stod(line.substr(line.rfind(' ') + 1));
  return series;
}

/// A port below those that the system hands out, with a few more behind it; other numbers, other ports.
inline int likely_free_port(int number = 0) {
  return 20000 + static_cast<int>(::getpid() * 37 % 12000) + 100 * number;
}

} // namespace deltawire::test
