#include "transport/shm_address.hpp"

#include "transport/io_core.hpp"

#include <cerrno>
#include <cstddef>
#include <cstring>

#include <unistd.h>

namespace deltawire::transport {

Result<HostPort> shm_host(const std::string& address) {
  auto target = split_address(address);
  if (!target)
    return target;
  if (target->host == "localhost")
    target->host = "127.0.0.1";
  error_code no_number;
  const auto number = asio::ip::make_address(target->host, no_number);
  if (no_number || !number.is_loopback())
    return fail(Code::invalid_argument,
                "\"{}\" is not an address of this host alone: shared memory joins processes of one host, which meet at "
                "a loopback address (127.x.x.x, localhost or [::1]); between hosts, use the transport \"tcp\"",
                address);
  target->host = number.to_string();
  return target;
}

ShmName shm_name(const HostPort& target) {
  ShmName made;
  made.address = target.host.find(':') == std::string::npos ? fmt::format("{}:{}", target.host, target.port)
                                                            : fmt::format("[{}]:{}", target.host, target.port);
  // Abstract: begins with a zero byte. Two users' jobs do not meet by mistake.
  const std::string text = fmt::format("deltawire {} {}", ::geteuid(), made.address);
  made.name.sun_family = AF_UNIX;
  std::memcpy(made.name.sun_path + 1, text.data(), std::min(text.size(), sizeof made.name.sun_path - 1));
  made.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return made;
}

Result<Descriptor> shm_socket() {
  Descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made)
    return fail(Code::unsupported, "no Unix socket for shared memory: {}", std::strerror(errno));
  return made;
}

Result<int> process_of_same_user(int socket, const std::string& peer) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
    return fail(Code::peer_failed, "{}: the system does not tell who it is: {}", peer, std::strerror(errno));
  if (who.uid != ::geteuid())
    return fail(Code::peer_failed,
                "{}: process {} of user {} is at the other end; shared memory joins processes of one user, here {}",
                peer, who.pid, who.uid, ::geteuid());
  return who.pid;
}

} // namespace deltawire::transport
