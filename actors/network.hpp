// Which transport a side uses, by the topology: one Network a kind and process side.
#pragma once

#include "config/topology.hpp"
#include "transport/transport.hpp"

#include <memory>
#include <string>
#include <vector>

namespace deltawire::actors {

class Networks {
public:
  /// The network of a kind, made when first asked for. "auto" is tcp: what works between any two processes.
  [[nodiscard]] transport::Network& of(config::TransportKind kind);

  /// Ends all of them; no callback runs afterwards. Not from a callback.
  void shutdown();

private:
  std::unique_ptr<transport::Network> tcp_;
  std::unique_ptr<transport::Network> inproc_;
};

} // namespace deltawire::actors
