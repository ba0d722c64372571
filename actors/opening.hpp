// What opening a Publisher and a Subscriber have in common, and how the facade turns Failures into exceptions.
#pragma once

#include "actors/interfaces.hpp"
#include "config/launch.hpp"
#include "telemetry/trace.hpp"

#include <future>

namespace deltawire::actors {

inline void throw_failure(const Result<void>& result) {
  if (!result)
    throw Error(result.error().code, result.error().message);
}

template <class T>
[[nodiscard]] T value_or_throw(Result<T> result) {
  if (!result)
    throw Error(result.error().code, result.error().message);
  return std::move(*result);
}

/// The process's environment.
[[nodiscard]] config::Environment environment();

/// transport.master, or from the environment.
[[nodiscard]] std::string master_address(const config::Topology& topology);

/// A master without a port can only be found by who made its listening socket: by hand it is an error. Throws.
void require_port(const std::string& master, config::TransportKind kind, bool adopted);

/// Refuses memory of a GPU: sessions read and write with the CPU. `call` as messages name it. Throws.
void require_host_memory(const std::string& call, const void* memory);

/// Enabled when the topology names a trace file. Throws (output_failed) where this process's could not be written: that
/// is known before any work, not after all of it.
[[nodiscard]] std::shared_ptr<telemetry::Recorder> make_recorder(const config::Topology& topology,
                                                                 const std::string& process);

/// Sends a request and waits for its answer. Supervisors answer within their deadlines.
template <class Request, class Supervisor>
[[nodiscard]] Result<void> ask(const Supervisor& supervisor) {
  auto promise = std::make_shared<std::promise<Result<void>>>();
  std::future<Result<void>> answer = promise->get_future();
  caf::anon_send(supervisor, Request{std::make_shared<Answer>(
                               [promise](Result<void> result) { promise->set_value(std::move(result)); })});
  return answer.get();
}

} // namespace deltawire::actors
