// The metrics of this process over HTTP, as Prometheus scrapes them: GET /metrics. One endpoint an address, shared by
// every rank and worker in the process; read-only, neither encrypted nor authenticated. Serving runs on threads of
// prometheus-cpp, which start here. No header of that library leaks out.
#pragma once

#include "result.hpp"
#include "telemetry/metrics.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace deltawire::telemetry {

/// The exposition of these families: Prometheus text format 0.0.4.
[[nodiscard]] std::string exposition(const std::vector<Listing>& listings);

/// Whether this build can serve metrics (Meson option `prometheus`).
[[nodiscard]] bool can_serve() noexcept;

/// Holds the process's endpoint open, with the metrics of one registry. Both end with it.
class Endpoint {
public:
  /// `host` without brackets, "127.0.0.1", "localhost" or "::1"; port 0 is any that is free. Opens the address or joins
  /// who has it open in this process. Fails with Code::address_in_use, naming the address, where another process
  /// listens there; with Code::invalid_argument where it cannot be listened at; with Code::unsupported in a build
  /// without Prometheus.
  [[nodiscard]] static Result<std::shared_ptr<Endpoint>> open(const std::string& host, std::uint16_t port,
                                                              std::shared_ptr<const Registry> registry);
  virtual ~Endpoint() = default;

  /// "127.0.0.1:9464", with the port that was chosen.
  [[nodiscard]] virtual const std::string& address() const noexcept = 0;
  /// Whether open() made it: false for who joined.
  [[nodiscard]] virtual bool made() const noexcept = 0;

protected:
  Endpoint() = default;
};

} // namespace deltawire::telemetry
