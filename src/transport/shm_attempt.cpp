#include "transport/shm_attempt.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

namespace deltawire::transport {
namespace {

constexpr auto retry_pause = std::chrono::milliseconds(50); // between calls

} // namespace

ShmAttempt::ShmAttempt(std::shared_ptr<IoCore> core, asio::io_context& context, std::string address,
                       Network::Connected connected)
  : core_(std::move(core)), context_(context), address_(std::move(address)), connected_(std::move(connected)),
    pause_(context), deadline_(context) {}

void ShmAttempt::start(const ShmName& target, std::chrono::steady_clock::time_point deadline) {
  core_->post(context_, [self = shared_from_this(), target, deadline] {
    self->target_ = target;
    self->deadline_.expires_at(deadline);
    self->deadline_.async_wait([self](const error_code& error) {
      if (!error)
        self->finish(
          fail(Code::timed_out, "shm:{}: no connection before the deadline; last: {}", self->address_, self->last_));
    });
    self->call();
  });
}

void ShmAttempt::end(const Failure& reason) {
  core_->post(context_, [self = shared_from_this(), reason] { self->finish(tl::make_unexpected(reason)); });
}

void ShmAttempt::call() {
  if (ended_)
    return;
  auto made = shm_socket();
  if (!made)
    return finish(pass_on(std::move(made)));
  // Done at once, or never: where the listener's queue is full there is nothing to wait for but its end.
  if (::connect(made->get(), reinterpret_cast<const sockaddr*>(&target_.name), target_.size) != 0) {
    last_ = errno == ECONNREFUSED ? "nobody listens" : std::strerror(errno);
    pause_.expires_after(retry_pause);
    pause_.async_wait([self = shared_from_this()](const error_code&) { self->call(); });
    return;
  }
  const std::string peer = "shm:" + target_.address;
  if (auto process = process_of_same_user(made->get(), peer); !process)
    return finish(pass_on(std::move(process)));
  const auto connection = std::make_shared<StreamConnection>(
    core_, TlsRole::client, Socket(context_, {AF_UNIX, 0}, made->get()), context_, peer);
  (void)made->release();      // the connection's
  if (core_->add(connection)) // else shutdown has begun, and ends this attempt
    finish(connection);
}

void ShmAttempt::finish(Result<std::shared_ptr<StreamConnection>> result) {
  if (std::exchange(ended_, true))
    return;
  error_code ignored;
  pause_.cancel(ignored);
  deadline_.cancel(ignored);
  const Network::Connected callback = std::exchange(connected_, {});
  const auto thrown = guarded(address_, [&] {
    if (result)
      callback(make_handle(*result));
    else
      callback(tl::make_unexpected(result.error()));
  });
  if (thrown && result)
    (*result)->abort(*thrown);
  core_->remove(shared_from_this());
}

} // namespace deltawire::transport
