// Who has connected to a listener: how many at a time, and who has to go for a newcomer. Strangers are those that have
// neither shown the key nor been admitted; anybody may be one. Thread-safe.
#pragma once

#include "transport/transport.hpp"

#include <list>
#include <mutex>

namespace deltawire::transport {

class StreamConnection;

class Strangers {
public:
  explicit Strangers(Admission limits) : limits_(limits) {}

  [[nodiscard]] const Admission& limits() const noexcept { return limits_; }

  struct Entry {
    bool taken = false;                        ///< false: there are too many connections
    std::shared_ptr<StreamConnection> instead; ///< the stranger that has to go, if any; the caller ends it
  };
  /// A connection that was accepted. leave() must follow if it is taken.
  [[nodiscard]] Entry enter(const std::shared_ptr<StreamConnection>& newcomer);

  /// No stranger any more.
  void trust(const StreamConnection& connection);

  /// Closed. Once for each that was taken.
  void leave(const StreamConnection& connection);

private:
  struct Stranger {
    const StreamConnection* who;
    std::weak_ptr<StreamConnection> connection;
  };
  void forget(const StreamConnection& connection);

  const Admission limits_;
  std::mutex mutex_;
  std::list<Stranger> strangers_; ///< by arrival
  std::size_t open_ = 0;
};

} // namespace deltawire::transport
