#include "sync/worker.hpp"

namespace deltawire::sync {

std::string_view to_string(WorkerState state) noexcept {
  switch (state) {
  case WorkerState::empty:
    return "empty";
  case WorkerState::seeding:
    return "seeding";
  case WorkerState::serving:
    return "serving";
  case WorkerState::staging:
    return "staging";
  case WorkerState::in_doubt:
    return "in_doubt";
  case WorkerState::dirty:
    return "dirty";
  }
  return "unknown";
}

Result<wire::Ready> WorkerProtocol::begin(const wire::Begin& message) {
  if (unsettled_)
    return fail(Code::call_order, "delivery {} begins while delivery {} of a lost root is in doubt", message.delivery,
                delivery_);
  if (running_)
    return fail(Code::call_order, "delivery {} begins while delivery {} is running", message.delivery, delivery_);
  if (message.delivery <= delivery_)
    return fail(Code::call_order, "delivery {} is not newer than delivery {}", message.delivery, delivery_);
  if (!foreign() && message.target <= highest_)
    return fail(Code::call_order, "delivery {} goes to version {}, this worker was at {}: versions never go back",
                message.delivery, message.target, highest_);
  const bool seed = message.kind == wire::DeliveryKind::seed;
  if (!seed && state_ != WorkerState::serving)
    return fail(Code::call_order, "a delta before any seed: this worker is {}", to_string(state_));
  if (!seed && foreign())
    return fail(Code::call_order, "a delta before any seed of session {:x}: this worker has version {} of session {:x}",
                root_session_, version_, session_);
  if (message.kind == wire::DeliveryKind::delta && message.base != version_)
    return fail(Code::call_order, "a delta on version {}, this worker is at version {}", message.base, version_);
  if (message.kind == wire::DeliveryKind::fold && message.base > version_)
    return fail(Code::call_order, "a fold from version {} on, this worker is at version {}", message.base, version_);
  if (foreign()) {
    session_ = root_session_;
    highest_ = 0;
  }
  matches_ = {};
  running_ = true;
  seed_ = seed;
  sealed_ = verified_ = committed_ = applied_ = given_up_ = false;
  flushes_ = bytes_ = sealed_flushes_ = sealed_bytes_ = 0;
  delivery_ = message.delivery;
  target_ = message.target;
  if (seed)
    version_ = 0;
  state_ = seed ? WorkerState::seeding : WorkerState::staging;
  return wire::Ready{delivery_, version_};
}

Result<WorkerProtocol::Fresh> WorkerProtocol::flush(std::uint64_t delivery, std::uint64_t sequence,
                                                    std::uint64_t bytes) {
  if (!running_ || delivery != delivery_)
    return fail(Code::call_order, "flush {} of delivery {}, which is not running", sequence, delivery);
  if (sequence < flushes_)
    return Fresh::duplicate;
  if (sequence > flushes_)
    return fail(Code::invalid_input, "delivery {}: flush {} where flush {} was due", delivery, sequence, flushes_);
  if (sealed_ && sequence >= sealed_flushes_)
    return fail(Code::invalid_input, "delivery {}: flush {} after the manifest announced {}", delivery, sequence,
                sealed_flushes_);
  if (sealed_ && sequence + 1 == sealed_flushes_ && bytes_ + bytes != sealed_bytes_)
    return fail(Code::invalid_input, "delivery {}: {} flushes of {} bytes came, the manifest announced {} bytes",
                delivery, sealed_flushes_, bytes_ + bytes, sealed_bytes_);
  ++flushes_;
  bytes_ += bytes;
  return Fresh::fresh;
}

Result<void> WorkerProtocol::seal(const wire::Seal& message) {
  if (!running_ || message.delivery != delivery_ || sealed_)
    return fail(Code::call_order, "the manifest of delivery {}, which is not being staged", message.delivery);
  if (message.flushes < flushes_ || (message.flushes == flushes_ && message.bytes != bytes_))
    return fail(Code::invalid_input, "delivery {}: {} flushes of {} bytes came, the manifest announces {} of {}",
                message.delivery, flushes_, bytes_, message.flushes, message.bytes);
  sealed_ = true;
  sealed_flushes_ = message.flushes;
  sealed_bytes_ = message.bytes;
  return {};
}

wire::Staged WorkerProtocol::verified() {
  verified_ = true;
  return wire::Staged{delivery_, bytes_};
}

Result<void> WorkerProtocol::commit(const wire::Commit& message) {
  if (!running_ || message.delivery != delivery_ || !verified_ || committed_ || state_ == WorkerState::dirty)
    return fail(Code::call_order, "the commit of delivery {}, which is not staged", message.delivery);
  committed_ = true;
  state_ = WorkerState::in_doubt;
  return {};
}

void WorkerProtocol::applied() {
  applied_ = committed_;
}

Result<wire::Released> WorkerProtocol::release(const wire::Release& message) {
  if (!running_ || message.delivery != delivery_ || !applied_ || state_ == WorkerState::dirty || unsettled_)
    return fail(Code::call_order, "the release of delivery {}, which is not applied", message.delivery);
  serve_target();
  return wire::Released{delivery_, version_, 0};
}

Result<WorkerProtocol::Undoing> WorkerProtocol::undo(const wire::Undo& message) {
  if (!running_ && message.delivery > delivery_) {
    // Its Begin never took effect here: remember the id, so that a late Begin is refused.
    delivery_ = message.delivery;
    return Undoing{false, wire::Undone{message.delivery, foreign() ? 0 : version_}};
  }
  if (!running_ || message.delivery != delivery_ || unsettled_)
    return fail(Code::call_order, "the undo of delivery {}, which is not running", message.delivery);
  const bool exchange_back = end_without_target();
  return Undoing{exchange_back, wire::Undone{delivery_, version_}};
}

bool WorkerProtocol::end_without_target() noexcept {
  running_ = unsettled_ = false;
  if (state_ != WorkerState::dirty)
    state_ = seed_ ? WorkerState::dirty : WorkerState::serving;
  return applied_ && !seed_;
}

void WorkerProtocol::serve_target() noexcept {
  running_ = unsettled_ = false;
  version_ = highest_ = target_;
  state_ = WorkerState::serving;
}

// Audits
// ---------------------------------------------------------------------------------------------------------------

Result<void> WorkerProtocol::audit(const wire::Audit& message) {
  if (running_ || unsettled_)
    return fail(Code::call_order, "audit {} while delivery {} is running", message.audit, delivery_);
  return {};
}

void WorkerProtocol::audited(const wire::Audit& message, bool right) noexcept {
  matches_ = right ? wire::Adopt{message.audit, message.version} : wire::Adopt{};
  if (!right && state_ == WorkerState::serving && !foreign() && version_ == message.version)
    spoiled();
}

Result<void> WorkerProtocol::adopt(const wire::Adopt& message) {
  if (running_ || unsettled_ || message.version == 0 || message.audit != matches_.audit ||
      message.version != matches_.version)
    return fail(Code::call_order, "version {} is to be adopted, and no audit {} just before has found it in memory",
                message.version, message.audit);
  if (!foreign() && message.version < highest_)
    return fail(Code::call_order, "version {} is to be adopted, this worker was at {}: versions never go back",
                message.version, highest_);
  matches_ = {};
  session_ = root_session_;
  version_ = highest_ = message.version;
  state_ = WorkerState::serving;
  return {};
}

// From root to root
// ---------------------------------------------------------------------------------------------------------------

void WorkerProtocol::forget_fence() noexcept {
  if (foreign() && !running_)
    delivery_ = 0;
}

void WorkerProtocol::meet(std::uint64_t session) noexcept {
  root_session_ = session;
  matches_ = {};
  forget_fence();
}

bool WorkerProtocol::root_lost() noexcept {
  if (!running_ || unsettled_)
    return false;
  // A worker that gave up never said that it applied.
  unsettled_ = applied_ && !given_up_ && state_ == WorkerState::in_doubt;
  return !unsettled_ && end_without_target();
}

wire::Agreed WorkerProtocol::standing() const noexcept {
  if (unsettled_)
    return {session_, version_, delivery_, target_};
  return version_ == 0 ? wire::Agreed{} : wire::Agreed{session_, version_, 0, 0};
}

Result<WorkerProtocol::Settled> WorkerProtocol::settle(const wire::Settle& message) {
  if (!unsettled_ || message.session != session_ || message.delivery != delivery_)
    return fail(Code::call_order, "delivery {} of session {:x} is settled, which is not in doubt", message.delivery,
                message.session);
  Settled settled{message.release != 0, false};
  if (settled.released)
    serve_target();
  else
    settled.exchange_back = end_without_target();
  forget_fence();
  return settled;
}

} // namespace deltawire::sync
