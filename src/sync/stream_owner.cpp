#include "sync/stream_owner.hpp"

#include <algorithm>

namespace deltawire::sync {

using transport::Progress;

StreamOwner::StreamOwner(transport::Communicator& communicator, std::uint32_t slots, Limits limits)
  : communicator_(communicator), limits_(limits), slots_(slots) {}

std::string StreamOwner::here() const {
  return fmt::format("communicator {}", epoch_);
}

Failure StreamOwner::named(const std::string& attempt, const Failure& failure) const {
  return {failure.code, fmt::format("{}: {}: {}", here(), attempt, failure.message)};
}

// ------------------------------------------------------------------------------------------------------- windows

Result<void> StreamOwner::close_window(std::uint64_t waiter) {
  if (windows_ == 0)
    return fail(Code::call_order, "a launch window is closed, and none is open");
  --windows_;
  closing_.push_back({waiter, last_hold_, {}});
  if (state_ == State::aborting)
    closing_.back().why = why_;
  settle_windows();
  return {};
}

std::optional<StreamOwner::Hold> StreamOwner::hold() {
  if (windows_ == 0 || state_ == State::aborting || state_ == State::lost)
    return std::nullopt;
  holds_.insert(++last_hold_);
  return last_hold_;
}

void StreamOwner::release(Hold hold) {
  holds_.erase(hold);
  settle_windows();
}

void StreamOwner::settle_windows() {
  std::erase_if(closing_, [this](const Closing& closing) {
    if (state_ == State::lost) {
      notices_.emplace_back(WindowClosed{closing.waiter, tl::make_unexpected(why_)});
      return true;
    }
    if (state_ == State::aborting || held_up_to(closing.last))
      return false;
    Result<void> how;
    if (closing.why)
      how = tl::make_unexpected(*closing.why);
    notices_.emplace_back(WindowClosed{closing.waiter, std::move(how)});
    return true;
  });
}

// --------------------------------------------------------------------------------------------------------- slots

std::optional<std::uint32_t> StreamOwner::take_slot() {
  for (std::uint32_t i = 0; i < slots_.size(); ++i)
    if (!slots_[i].taken && !slots_[i].launched) {
      slots_[i].taken = true;
      return i;
    }
  return std::nullopt;
}

// -------------------------------------------------------------------------------------------------- communicator

Result<void> StreamOwner::begin(Hold hold, std::uint64_t epoch, const transport::UniqueId& id, std::uint32_t ranks,
                                std::uint32_t rank) {
  if (!holds_.contains(hold))
    return fail(Code::call_order, "communicator {} would begin outside a launch window", epoch);
  if (state_ == State::lost)
    return tl::make_unexpected(why_);
  if (state_ != State::idle)
    return fail(Code::call_order, "communicator {} would begin before {} has ended", epoch, here());
  if (epoch <= epoch_)
    return fail(Code::call_order, "communicator {} would begin after {}", epoch, here());
  epoch_ = epoch;
  state_ = State::beginning;
  since_ = now_;
  if (const auto begun = communicator_.begin(id, ranks, rank); !begun)
    abort(named("joining it", begun.error()));
  // Also where it is done: the next tick asks, and tells.
  return {};
}

Result<void> StreamOwner::launch(Hold hold, Operation operation) {
  if (!holds_.contains(hold))
    return fail(Code::call_order, "{} would be launched outside a launch window", operation.what);
  if (state_ == State::lost)
    return tl::make_unexpected(why_);
  if (state_ != State::ready)
    return fail(Code::call_order, "{} would be launched without a communicator", operation.what);
  if (operation.slot >= slots_.size() || !slots_[operation.slot].taken || slots_[operation.slot].launched)
    return fail(Code::internal, "{} would be launched in slot {}, which is not its own", operation.what,
                operation.slot);
  if (operation.transfers.empty() || std::any_of(operation.transfers.begin(), operation.transfers.end(),
                                                 [](const Transfer& transfer) { return transfer.memory.empty(); }))
    return fail(Code::internal, "{} would transfer nothing", operation.what);
  slots_[operation.slot].launched = true;
  if (operations_.empty())
    since_ = now_;
  operations_.push_back(std::move(operation));
  enqueue_next();
  return {};
}

/// One group. It is ended whatever happens inside it: the next communicator's calls would belong to it otherwise.
Result<void> StreamOwner::enqueue(const Operation& operation) {
  if (auto begun = communicator_.group_begin(); !begun)
    return begun;
  Result<void> transfers;
  for (const Transfer& transfer : operation.transfers) {
    transfers = transfer.sends ? communicator_.send(transfer.memory, transfer.peer)
                               : communicator_.receive(transfer.memory, transfer.peer);
    if (!transfers)
      break;
  }
  const auto ended = communicator_.group_end();
  if (!transfers)
    return transfers;
  if (!ended)
    return tl::make_unexpected(ended.error());
  enqueueing_ = true;
  if (*ended == Progress::under_way)
    return {}; // the stream is not touched before it is over
  enqueueing_ = false;
  ++running_;
  return communicator_.record(operation.slot);
}

void StreamOwner::enqueue_next() {
  while (state_ == State::ready && !enqueueing_ && running_ < operations_.size()) {
    const Operation& next = operations_[running_];
    if (const auto enqueued = enqueue(next); !enqueued)
      return abort(named(next.what, enqueued.error()));
  }
}

void StreamOwner::abort(const Failure& why) {
  if (state_ != State::beginning && state_ != State::ready)
    return;
  const bool was_beginning = state_ == State::beginning;
  state_ = State::aborting;
  since_ = now_;
  why_ = why;
  communicator_.abort();
  if (was_beginning)
    notices_.emplace_back(Begun{epoch_, tl::make_unexpected(why)});
  for (const Operation& operation : operations_)
    notices_.emplace_back(Ended{epoch_, operation.tag, tl::make_unexpected(why)});
  operations_.clear();
  running_ = 0;
  enqueueing_ = false;
  for (Closing& closing : closing_)
    closing.why = why;
  notices_.emplace_back(Aborted{epoch_, why});
}

// ---------------------------------------------------------------------------------------------------------- time

void StreamOwner::tick() {
  ++now_;
  if (state_ == State::beginning) {
    const auto polled = communicator_.poll();
    if (!polled)
      return abort(named("joining it", polled.error()));
    if (*polled == Progress::done) {
      state_ = State::ready;
      notices_.emplace_back(Begun{epoch_, {}});
    } else if (now_ - since_ > limits_.begin) {
      abort(
        Failure{Code::timed_out, fmt::format("{}: not all ranks joined it within {} ticks", here(), limits_.begin)});
    }
    return;
  }
  if (state_ == State::ready)
    return advance();
  if (state_ == State::aborting)
    become_quiet();
}

void StreamOwner::advance() {
  std::size_t reached = 0;
  for (; reached < running_; ++reached) {
    const auto asked = communicator_.reached(operations_[reached].slot);
    if (!asked)
      return abort(named(operations_[reached].what, asked.error()));
    if (*asked == Progress::under_way)
      break;
  }
  // After the events, not before: an event may be reached because of an error.
  const auto polled = communicator_.poll();
  if (!polled)
    return abort(named(operations_.empty() ? "nothing under way" : operations_.front().what, polled.error()));
  for (std::size_t i = 0; i < reached; ++i) {
    slots_[operations_.front().slot].launched = false;
    notices_.emplace_back(Ended{epoch_, operations_.front().tag, {}});
    operations_.pop_front();
    since_ = now_;
  }
  running_ -= reached;
  if (enqueueing_ && *polled == Progress::done) {
    enqueueing_ = false;
    since_ = now_;
    if (const auto recorded = communicator_.record(operations_[running_].slot); !recorded)
      return abort(named(operations_[running_].what, recorded.error()));
    ++running_;
  }
  enqueue_next();
  if (state_ == State::ready && !operations_.empty() && now_ - since_ > limits_.operation)
    abort(Failure{Code::timed_out, fmt::format("{}: {}: no progress for {} ticks", here(), operations_.front().what,
                                               limits_.operation)});
}

void StreamOwner::become_quiet() {
  const auto quiet = communicator_.quiet();
  if (!quiet)
    return lose(quiet.error());
  if (*quiet == Progress::under_way) {
    if (now_ - since_ > limits_.quiet)
      lose({Code::timed_out, fmt::format("work is still on it {} ticks after the abort", limits_.quiet)});
    return;
  }
  state_ = State::idle;
  for (Slot& slot : slots_)
    slot.launched = false;
  settle_windows();
}

void StreamOwner::lose(const Failure& why) {
  state_ = State::lost;
  why_ = {why.code, fmt::format("the device of {} is lost, and this process must be started again: {}; aborted for: {}",
                                here(), why.message, why_.message)};
  notices_.emplace_back(Lost{why_});
  settle_windows();
}

} // namespace deltawire::sync
