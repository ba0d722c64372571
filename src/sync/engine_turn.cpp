#include "sync/engine_turn.hpp"

namespace deltawire::sync {

void EngineTurn::offer(std::uint64_t version) noexcept {
  step_ = Step::offered;
  version_ = version;
}

void EngineTurn::served() noexcept {
  if (step_ == Step::idle)
    return;
  step_ = Step::idle;
  served_ = version_;
  missed_.reset();
}

void EngineTurn::failed(const Failure& why) {
  if (step_ == Step::polled)
    missed_ = Missed{version_, why};
  step_ = Step::idle;
}

std::optional<std::uint64_t> EngineTurn::poll() noexcept {
  if (step_ != Step::offered && step_ != Step::polled)
    return std::nullopt;
  step_ = Step::polled;
  missed_.reset();
  return version_;
}

Result<void> EngineTurn::commit(std::uint64_t version) {
  if (step_ == Step::committing)
    return fail(Code::call_order, "commit({}) while commit({}) runs", version, version_);
  if (step_ == Step::polled && version == version_) {
    step_ = Step::committing;
    return {};
  }
  if (step_ == Step::polled)
    return fail(Code::call_order, "commit({}): poll() returned {}", version, version_);
  if (missed_ && missed_->version == version) {
    const Failure why = missed_->why;
    missed_.reset();
    return tl::make_unexpected(why);
  }
  if (version != 0 && version == served_)
    return fail(Code::call_order, "commit({}) twice: it is served already", version);
  return fail(Code::call_order, "commit({}) before a poll() that returned it", version);
}

} // namespace deltawire::sync
