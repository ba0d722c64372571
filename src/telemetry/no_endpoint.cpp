// In place of endpoint.cpp where the build has no prometheus-cpp.
#include "telemetry/endpoint.hpp"

namespace deltawire::telemetry {

std::string exposition(const std::vector<Listing>&) {
  return "";
}

bool can_serve() noexcept {
  return false;
}

Result<std::shared_ptr<Endpoint>> Endpoint::open(const std::string&, std::uint16_t, std::shared_ptr<const Registry>) {
  return fail(Code::unsupported, "telemetry.prometheus: this build has no metrics endpoint: it was made without "
                                 "prometheus-cpp (on Debian 12: prometheus-cpp-dev)");
}

} // namespace deltawire::telemetry
