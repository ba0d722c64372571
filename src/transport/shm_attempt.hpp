// One connect() over shared memory: calls until somebody listens, or the deadline passes. Who listens under the name
// but is another user ends the attempt.
#pragma once

#include "transport/shm_address.hpp"
#include "transport/stream_connection.hpp"

namespace deltawire::transport {

class ShmAttempt final : public Ended, public std::enable_shared_from_this<ShmAttempt> {
public:
  ShmAttempt(std::shared_ptr<IoCore> core, asio::io_context& context, std::string address,
             Network::Connected connected);

  void start(const ShmName& target, std::chrono::steady_clock::time_point deadline);
  void end(const Failure& reason) override;

private:
  void call();
  void finish(Result<std::shared_ptr<StreamConnection>> result);

  const std::shared_ptr<IoCore> core_;
  asio::io_context& context_;
  const std::string address_;
  Network::Connected connected_;
  ShmName target_;
  asio::steady_timer pause_;
  asio::steady_timer deadline_;
  std::string last_ = "nothing was tried";
  bool ended_ = false;
};

} // namespace deltawire::transport
