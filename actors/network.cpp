#include "actors/network.hpp"

#include "config/secret_file.hpp"
#include "wire/framing.hpp"

#include <algorithm>

namespace deltawire::actors {
namespace {

/// Two io threads, connections spread over them: the gather and the sends of a root move at the same time.
constexpr unsigned io_threads = 2;
constexpr const char* io_name = "dw-io";
constexpr const char* shm_name = "dw-shm";

/// What the root grants to who has not said its name. All peers of a job may come at once, with two connections each,
/// and come again before their predecessors are seen to be gone.
transport::Admission admission_of(const config::Topology& topology) {
  const auto peers = static_cast<std::size_t>(topology.trainer.mesh.size() + topology.worker.mesh.size());
  transport::Admission limits;
  limits.strangers += 4 * peers;
  limits.connections += 8 * peers;
  limits.time = std::clamp(std::chrono::duration_cast<std::chrono::milliseconds>(topology.update.connect),
                           std::chrono::milliseconds(100), limits.time);
  return limits;
}

/// Of whatever this process may send over shared memory: flushes to workers, or its share of a round to the root.
std::uint64_t most_shared(const config::Actors& actors) {
  std::uint64_t bytes = 0;
  if (actors.sender.transport == config::TransportKind::shm)
    bytes = config::most_shared(actors.flush_bucket.cap);
  if (actors.gather_queue.transport == config::TransportKind::shm)
    bytes = std::max(bytes, config::most_shared(actors.gather_queue.max_round));
  return bytes;
}

} // namespace

Result<std::shared_ptr<Networks>> Networks::make(const config::Topology& topology,
                                                 std::initializer_list<config::TransportKind> kinds) {
  auto networks = std::make_shared<Networks>();
  networks->settings_.admission = admission_of(topology);
  const auto has = [&](std::initializer_list<config::TransportKind> wanted) {
    return std::find_first_of(kinds.begin(), kinds.end(), wanted.begin(), wanted.end()) != kinds.end();
  };
  // Made at once: what the system lacks is found when a process opens, not when it connects.
  if (has({config::TransportKind::shm})) {
    auto shm = transport::make_shm_network(wire::framing(), shm_name, io_threads,
                                           {admission_of(topology), most_shared(topology.actors)});
    if (!shm)
      return fail(shm.error().code, "{}: transport \"shm\": {}", topology.file, shm.error().message);
    networks->shm_ = std::move(*shm);
  }
  const bool local = !has({config::TransportKind::automatic, config::TransportKind::tcp});
  if (topology.transport.secret_file.empty() || local)
    return networks;
  const auto named = [&](const Failure& failure) {
    return fail(failure.code, "{}: transport.secret_file: {}", topology.file, failure.message);
  };
  const auto secret = config::read_secret(topology.transport.secret_file);
  if (!secret)
    return named(secret.error());
  auto key = transport::SharedKey::derive(*secret);
  if (!key)
    return named(key.error());
  networks->settings_.key = *key;
  auto tcp = transport::make_tcp_network(wire::framing(), io_name, io_threads, networks->settings_);
  if (!tcp)
    return named(tcp.error());
  networks->tcp_ = std::move(*tcp);
  return networks;
}

transport::Network& Networks::of(config::TransportKind kind) {
  if (kind == config::TransportKind::inproc) {
    if (!inproc_)
      inproc_ = transport::make_inproc_network(wire::framing());
    return *inproc_;
  }
  if (kind == config::TransportKind::shm)
    return *shm_; // made with us
  if (!tcp_)
    tcp_ =
      transport::make_tcp_network(wire::framing(), io_name, io_threads, settings_).value(); // fails only with a key
  return *tcp_;
}

void Networks::shutdown() {
  const Failure closed{Code::call_order, "closed"};
  if (tcp_)
    tcp_->shutdown(closed);
  if (shm_)
    shm_->shutdown(closed);
  if (inproc_)
    inproc_->shutdown(closed);
}

} // namespace deltawire::actors
