#include "actors/network.hpp"

#include "wire/framing.hpp"

namespace deltawire::actors {

transport::Network& Networks::of(config::TransportKind kind) {
  if (kind == config::TransportKind::inproc) {
    if (!inproc_)
      inproc_ = transport::make_inproc_network(wire::framing());
    return *inproc_;
  }
  // Two io threads, connections spread over them: the gather and the sends of a root move at the same time.
  if (!tcp_)
    tcp_ = transport::make_tcp_network(wire::framing(), "dw-io", 2);
  return *tcp_;
}

void Networks::shutdown() {
  const Failure closed{Code::call_order, "closed"};
  if (tcp_)
    tcp_->shutdown(closed);
  if (inproc_)
    inproc_->shutdown(closed);
}

} // namespace deltawire::actors
