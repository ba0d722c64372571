#include "telemetry/endpoint.hpp"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

namespace deltawire::telemetry {

namespace {

prometheus::MetricType type_of(Kind kind) {
  switch (kind) {
  case Kind::counter:
    return prometheus::MetricType::Counter;
  case Kind::gauge:
    return prometheus::MetricType::Gauge;
  case Kind::histogram:
    return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

prometheus::ClientMetric metric_of(const Family& family, const Sample& sample) {
  prometheus::ClientMetric metric;
  for (const auto& [name, value] : sample.labels)
    metric.label.push_back({name, value});
  switch (family.kind) {
  case Kind::counter:
    metric.counter.value = sample.value;
    break;
  case Kind::gauge:
    metric.gauge.value = sample.value;
    break;
  case Kind::histogram:
    metric.histogram.sample_count = sample.count;
    metric.histogram.sample_sum = sample.sum;
    for (std::size_t b = 0; b < sample.counts.size(); ++b)
      metric.histogram.bucket.push_back({sample.counts[b], static_cast<double>(Histogram::bound(b)) * family.scale});
    break;
  }
  return metric;
}

std::vector<prometheus::MetricFamily> families_of(const std::vector<Listing>& listings) {
  std::vector<prometheus::MetricFamily> families;
  for (const Listing& listing : listings) {
    prometheus::MetricFamily family{
      std::string(listing.family->name), std::string(listing.family->help), type_of(listing.family->kind), {}};
    for (const Sample& sample : listing.samples)
      family.metric.push_back(metric_of(*listing.family, sample));
    families.push_back(std::move(family));
  }
  return families;
}

/// What is scraped: everybody's registry, a family once.
class Registries : public prometheus::Collectable {
public:
  void add(std::weak_ptr<const Registry> registry) {
    const std::lock_guard lock{mutex_};
    std::erase_if(registries_, [](const auto& each) { return each.expired(); });
    registries_.push_back(std::move(registry));
  }

  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<std::vector<Listing>> lists;
    {
      const std::lock_guard lock{mutex_};
      for (const auto& each : registries_)
        if (const auto registry = each.lock())
          lists.push_back(registry->list());
    }
    return families_of(merge(std::move(lists)));
  }

private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<const Registry>> registries_;
};

/// The listening server of one address. The exposer ends first: its threads read the registries.
struct Server {
  std::shared_ptr<Registries> registries = std::make_shared<Registries>();
  std::string address;
  std::unique_ptr<prometheus::Exposer> exposer;
};

std::string written(const std::string& host, std::uint16_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

struct FreeAddresses {
  void operator()(addrinfo* list) const noexcept { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0)
    return fail(Code::invalid_argument, "telemetry.prometheus: {}: no such address: {}", written(host, port),
                ::gai_strerror(error));
  return Addresses(found);
}

/// The server library says only that it could not listen: this finds out why.
Failure why_not(const Addresses& addresses, const std::string& named) {
  const int probe = ::socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int reuse = 1;
  ::setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  errno = 0;
  const bool free =
    probe >= 0 && ::bind(probe, addresses->ai_addr, addresses->ai_addrlen) == 0 && ::listen(probe, 1) == 0;
  const int error = errno;
  if (probe >= 0)
    ::close(probe);
  if (error == EADDRINUSE || free)
    return {Code::address_in_use,
            fmt::format("telemetry.prometheus: {}: address in use: another process listens there; "
                        "choose another port, or 0 to let the system choose",
                        named)};
  return {Code::invalid_argument,
          fmt::format("telemetry.prometheus: {}: cannot listen there: {}", named, std::strerror(error))};
}

/// Civetweb, the library's server, wants a number for a host.
std::string numeric_host(const Addresses& addresses) {
  std::array<char, NI_MAXHOST> host{};
  ::getnameinfo(addresses->ai_addr, addresses->ai_addrlen, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  return host.data();
}

Result<std::shared_ptr<Server>> listen(const std::string& host, std::uint16_t port) {
  auto addresses = resolve(host, port);
  if (!addresses)
    return pass_on(std::move(addresses));
  auto server = std::make_shared<Server>();
  try {
    server->exposer = std::make_unique<prometheus::Exposer>(written(numeric_host(*addresses), port), 1);
    server->exposer->RegisterCollectable(server->registries);
    const std::vector<int> ports = server->exposer->GetListeningPorts();
    server->address = written(host, ports.empty() ? port : static_cast<std::uint16_t>(ports.front()));
  } catch (const std::exception&) {
    return tl::make_unexpected(why_not(*addresses, written(host, port)));
  }
  return server;
}

class OpenEndpoint final : public Endpoint {
public:
  OpenEndpoint(std::shared_ptr<Server> server, std::shared_ptr<const Registry> registry, bool made)
    : server_(std::move(server)), registry_(std::move(registry)), made_(made) {
    server_->registries->add(registry_);
  }
  [[nodiscard]] const std::string& address() const noexcept override { return server_->address; }
  [[nodiscard]] bool made() const noexcept override { return made_; }

private:
  std::shared_ptr<Server> server_;
  std::shared_ptr<const Registry> registry_;
  const bool made_;
};

} // namespace

std::string exposition(const std::vector<Listing>& listings) {
  return prometheus::TextSerializer().Serialize(families_of(listings));
}

bool can_serve() noexcept {
  return true;
}

Result<std::shared_ptr<Endpoint>> Endpoint::open(const std::string& host, std::uint16_t port,
                                                 std::shared_ptr<const Registry> registry) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Server>> servers; // by address as asked for: of port 0 there is one, too
  const std::lock_guard lock{mutex};
  std::weak_ptr<Server>& known = servers[written(host, port)];
  std::shared_ptr<Server> server = known.lock();
  const bool made = server == nullptr;
  if (made) {
    auto listening = listen(host, port);
    if (!listening)
      return pass_on(std::move(listening));
    server = std::move(*listening);
    known = server;
  }
  return std::make_shared<OpenEndpoint>(std::move(server), std::move(registry), made);
}

} // namespace deltawire::telemetry
