// Which transport a side uses, by the topology: one Network a kind and process side.
#pragma once

#include "config/topology.hpp"
#include "transport/transport.hpp"

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

namespace deltawire::actors {

class Networks {
public:
  /// Reads transport.secret_file if one of `kinds`, those that will be asked for, goes over TCP: the others do not
  /// leave this host's kernel. Fails as config::read_secret, transport::make_tcp_network and
  /// transport::make_shm_network do.
  [[nodiscard]] static Result<std::shared_ptr<Networks>> make(const config::Topology& topology,
                                                              std::initializer_list<config::TransportKind> kinds);

  /// The network of a kind; tcp and inproc are made when first asked for. "auto" is tcp: what works between any two
  /// processes.
  [[nodiscard]] transport::Network& of(config::TransportKind kind);

  /// Ends all of them; no callback runs afterwards. Not from a callback.
  void shutdown();

private:
  transport::TcpSettings settings_;
  std::unique_ptr<transport::Network> tcp_;
  std::unique_ptr<transport::Network> inproc_;
  std::unique_ptr<transport::Network> shm_;
};

} // namespace deltawire::actors
