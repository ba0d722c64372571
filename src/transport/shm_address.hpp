// Where processes of one host meet for shared memory: a Unix socket of the abstract namespace, named after the address
// that everybody has anyway. It has no file that could be left behind, and is seen where the address's loopback is: in
// one network namespace. Anybody may call it, or take its name; so both sides ask the kernel who the other one is.
#pragma once

#include "transport/host_port.hpp"
#include "transport/shm_region.hpp"

#include <sys/socket.h>
#include <sys/un.h>

namespace deltawire::transport {

/// The name of a socket.
struct ShmName {
  std::string address; ///< "127.0.0.1:29500"
  sockaddr_un name{};
  socklen_t size = 0;
};

/// "localhost" and "127.0.0.1" are the same; what is not loopback is refused.
[[nodiscard]] Result<HostPort> shm_host(const std::string& address);
[[nodiscard]] ShmName shm_name(const HostPort& target);

/// A socket of messages that never blocks.
[[nodiscard]] Result<Descriptor> shm_socket();

/// The process at the other end; refused where it is not of our user. `peer`: its name.
[[nodiscard]] Result<int> process_of_same_user(int socket, const std::string& peer);

} // namespace deltawire::transport
