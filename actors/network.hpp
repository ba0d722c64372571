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
  /// Reads transport.secret_file, unless `kinds`, those that will be asked for, are all in-process. Fails as
  /// config::read_secret and transport::make_tcp_network do.
  [[nodiscard]] static Result<std::shared_ptr<Networks>> make(const config::Topology& topology,
                                                              std::initializer_list<config::TransportKind> kinds);

  /// The network of a kind, made when first asked for. "auto" is tcp: what works between any two processes.
  [[nodiscard]] transport::Network& of(config::TransportKind kind);

  /// Ends all of them; no callback runs afterwards. Not from a callback.
  void shutdown();

private:
  transport::TcpSettings settings_;
  std::unique_ptr<transport::Network> tcp_;
  std::unique_ptr<transport::Network> inproc_;
};

} // namespace deltawire::actors
