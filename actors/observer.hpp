// Telemetry of a session beside its actors: the metrics endpoint, and what the reports of updates say. No CAF.
#pragma once

#include "actors/rank_work.hpp"
#include "config/topology.hpp"
#include "deltawire/deltawire.hpp"
#include "result.hpp"
#include "telemetry/endpoint.hpp"
#include "telemetry/updates.hpp"
#include "wire/messages.hpp"

#include <functional>
#include <memory>
#include <mutex>
#include <optional>

namespace deltawire::actors {

/// Serves the registry at telemetry.prometheus, its port moved by the process's index; null where the key is empty.
/// Logs where, when the process had no such endpoint yet. Fails as Endpoint::open(), and where the port passes 65535.
[[nodiscard]] Result<std::shared_ptr<telemetry::Endpoint>>
serve_metrics(const std::string& address, std::uint32_t index, std::shared_ptr<const telemetry::Registry> registry);

/// The engine's commit hook, counted.
using CommitHook = std::function<void(Version, std::span<const Change>)>;
[[nodiscard]] CommitHook counted(const std::shared_ptr<telemetry::Registry>& registry, CommitHook hook);

/// One trainer rank's. Thread-safe.
class RankObserver {
public:
  RankObserver(std::uint32_t rank, std::shared_ptr<telemetry::Registry> registry);

  [[nodiscard]] Result<void> serve(const std::string& address, std::uint32_t index);

  /// The agreement is made: warnings may be given from now on.
  void connected(const RankWork& work, const config::Actors& actors);

  /// An update has ended. Logs and returns what a user should know; the root also counts.
  [[nodiscard]] std::vector<std::string> update_over(const wire::DeliveryReport& report);

  /// The session has ended: the endpoint goes.
  void end();

private:
  const std::uint32_t rank_;
  const std::shared_ptr<telemetry::Registry> registry_;
  std::mutex mutex_;
  std::shared_ptr<telemetry::Endpoint> endpoint_;
  telemetry::UpdateMeter meter_;
  std::optional<telemetry::WarningWatch> watch_;
};

} // namespace deltawire::actors
