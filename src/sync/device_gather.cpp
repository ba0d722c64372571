#include "sync/device_gather.hpp"

#include <algorithm>

namespace deltawire::sync {
namespace {

using State = StreamOwner::State;

std::string hexadecimal(const DeviceUuid& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i)
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", static_cast<unsigned>(uuid[i]));
  return text;
}

bool is_running(const StreamOwner& owner) {
  return owner.state() == State::beginning || owner.state() == State::ready;
}

} // namespace

// ----------------------------------------------------------------------------------------------------------- root

DeviceGatherRoot::DeviceGatherRoot(StreamOwner& owner, Slots slots, DeviceHello own, std::uint32_t ranks, Limits limits)
  : owner_(owner), slots_(std::move(slots)), ranks_(ranks), limits_(limits) {
  hellos_.emplace(0, std::move(own));
}

std::string DeviceGatherRoot::name_of(std::uint32_t rank) const {
  const auto known = hellos_.find(rank);
  return known == hellos_.end() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, known->second.name);
}

/// Of the members for whom `missing` is true.
template <class Missing>
std::string DeviceGatherRoot::names(const Step& step, Missing missing) const {
  std::string text;
  for (const Member& member : step.members)
    if (missing(member))
      text += (text.empty() ? "" : ", ") + name_of(member.rank);
  return text;
}

DeviceGatherRoot::Step* DeviceGatherRoot::find(std::uint64_t number) {
  const auto found =
    std::find_if(steps_.begin(), steps_.end(), [number](const Step& step) { return step.number == number; });
  return found == steps_.end() ? nullptr : &*found;
}

void DeviceGatherRoot::remove(std::uint64_t number) {
  std::erase_if(steps_, [number](const Step& step) { return step.number == number; });
}

Result<void> DeviceGatherRoot::on(std::uint32_t rank, const ToRoot& message) {
  if (rank == 0 || rank >= ranks_)
    return fail(Code::invalid_input, "rank {} of {} speaks to the root's gather between devices", rank, ranks_);
  const auto unknown = [&](std::uint64_t step, std::uint64_t epoch) -> Result<void> {
    if (step > last_step_ || epoch > epoch_)
      return fail(Code::invalid_input, "{} speaks of step {} of communicator {}, which nobody proposed", name_of(rank),
                  step, epoch);
    return {};
  };
  Result<void> taken;
  if (const auto* hello = std::get_if<DeviceHello>(&message)) {
    taken = on_hello(rank, *hello);
  } else if (const auto* answer = std::get_if<StepAnswered>(&message)) {
    if (taken = unknown(answer->step, answer->epoch); taken)
      on_answer(rank, *answer);
  } else if (const auto* ended = std::get_if<StepEnded>(&message)) {
    if (taken = unknown(ended->step, ended->epoch); taken)
      on_ended(rank, *ended);
  } else if (const auto* aborted = std::get_if<EpochAborted>(&message)) {
    if (taken = unknown(0, aborted->epoch); taken)
      on_aborted(rank, *aborted);
  }
  settle();
  return taken;
}

Result<void> DeviceGatherRoot::on_hello(std::uint32_t rank, const DeviceHello& hello) {
  const auto [at, added] = hellos_.try_emplace(rank, hello);
  if (!added)
    return fail(Code::invalid_input, "{} says twice which device it has", name_of(rank));
  for (const auto& [other, known] : hellos_)
    if (other != rank && known.device == hello.device) {
      refused_ = Failure{Code::disagreement,
                         fmt::format("{} and {} have the same GPU, {}: a communicator takes a device once; give each "
                                     "rank one of its own, e.g. by CUDA_VISIBLE_DEVICES",
                                     name_of(other), name_of(rank), hexadecimal(hello.device))};
      if (connecting_)
        connect_failed(*refused_);
      return tl::make_unexpected(*refused_);
    }
  return {};
}

Result<void> DeviceGatherRoot::connect(std::uint64_t waiter) {
  if (connecting_ || ready_)
    return fail(Code::call_order, "ranks are connected {}", ready_ ? "already" : "at this time");
  if (const std::size_t least = (ranks_ - 1) * warm_up_bytes;
      std::any_of(slots_.begin(), slots_.end(), [least](const auto& slot) { return slot.size() < least; }))
    return fail(Code::limit_exceeded, "memory for a round of {} ranks must have at least {} bytes", ranks_, least);
  connecting_ = waiter;
  connecting_since_ = now_;
  busy_.clear();
  if (refused_)
    connect_failed(*refused_);
  else if (ranks_ == 1) { // with nobody to talk to
    notices_.emplace_back(Connected{waiter, {}, {0}});
    connecting_.reset();
    ready_ = true;
  } else {
    propose_communicator();
  }
  settle();
  return {};
}

void DeviceGatherRoot::connect_failed(const Failure& why) {
  if (!connecting_)
    return;
  why_apart_ = why.message;
  notices_.emplace_back(Connected{*connecting_, tl::make_unexpected(why), {}});
  connecting_.reset();
  for (Step& step : steps_)
    if (step.begins && !step.went) {
      cancel(step, why.message);
      remove(step.number);
      break;
    }
}

/// Tries; the next tick tries again where something is missing.
void DeviceGatherRoot::propose_communicator() {
  if (!connecting_ || !steps_.empty() || hellos_.size() < ranks_ || owner_.state() != State::idle)
    return;
  Step step;
  const auto hold = owner_.hold();
  if (!hold) {
    busy_ = "the root is outside a launch window";
    return;
  }
  const auto slot = owner_.take_slot();
  if (!slot) {
    owner_.release(*hold);
    busy_ = "the root's memory for rounds is in use";
    return;
  }
  ++epoch_;
  step.begins = true;
  step.hold = *hold;
  step.slot = *slot;
  for (std::uint32_t rank = 1; rank < ranks_; ++rank)
    step.members.push_back({rank, slots_[*slot].subspan((rank - 1) * warm_up_bytes, warm_up_bytes)});
  propose(std::move(step));
}

void DeviceGatherRoot::propose(Step step) {
  step.number = ++last_step_;
  step.proposed = now_;
  for (const Member& member : step.members)
    messages_.push_back(
      {member.rank, StepProposed{epoch_, step.number, step.begins, step.round, member.memory.size()}});
  steps_.push_back(std::move(step));
}

/// Of a step that nobody was told to begin. The caller removes it.
void DeviceGatherRoot::cancel(Step& step, const std::string& why) {
  for (const Member& member : step.members)
    messages_.push_back({member.rank, StepCancelled{epoch_, step.number, why}});
  owner_.give_slot(step.slot);
  owner_.release(step.hold);
  if (step.begins)
    busy_ = why;
  else
    notices_.emplace_back(ThroughHost{step.round, why});
}

Result<void> DeviceGatherRoot::gather(std::uint64_t round, const std::vector<Share>& shares) {
  std::vector<Share> some;
  std::uint32_t last = 0;
  for (const Share& share : shares) {
    if (share.rank <= last || share.rank >= ranks_)
      return fail(Code::internal, "round {} asks rank {} of {} after rank {}", round, share.rank, ranks_, last);
    last = share.rank;
    if (share.bytes > 0)
      some.push_back(share);
  }
  if (some.empty()) {
    notices_.emplace_back(Gathered{round, {}, {}});
    return {};
  }
  const auto through_host = [&](std::string why) {
    notices_.emplace_back(ThroughHost{round, std::move(why)});
    return Result<void>{};
  };
  if (!ready_)
    return through_host(why_apart_);
  const auto hold = owner_.hold();
  if (!hold)
    return through_host("the root is outside a launch window");
  const auto slot = owner_.take_slot();
  if (!slot) {
    owner_.release(*hold);
    return through_host("the root's memory for rounds is in use");
  }
  Step step;
  step.round = round;
  step.hold = *hold;
  step.slot = *slot;
  std::span<std::byte> left = slots_[*slot];
  for (const Share& share : some) {
    if (share.bytes > left.size()) {
      owner_.give_slot(*slot);
      owner_.release(*hold);
      settle();
      return through_host(fmt::format("its shares do not fit into {} bytes", slots_[*slot].size()));
    }
    step.members.push_back({share.rank, left.first(share.bytes)});
    left = left.subspan(share.bytes);
  }
  propose(std::move(step));
  return {};
}

void DeviceGatherRoot::on_answer(std::uint32_t rank, const StepAnswered& answer) {
  Step* step = find(answer.step);
  if (step == nullptr || step->went || answer.epoch != epoch_)
    return; // cancelled meanwhile
  if (!answer.holds) {
    cancel(*step, fmt::format("{}: {}", name_of(rank), answer.why_not));
    remove(answer.step);
  } else {
    for (Member& member : step->members)
      if (member.rank == rank)
        member.answered = true;
  }
  go();
}

/// In the order of steps: what was proposed later waits for what was proposed earlier.
void DeviceGatherRoot::go() {
  for (Step& step : steps_) {
    if (step.went)
      continue;
    if (!std::all_of(step.members.begin(), step.members.end(), [](const Member& member) { return member.answered; }))
      return;
    if (step.begins)
      return go(step); // there is no other, and it may be gone now
    if (owner_.state() != State::ready)
      return; // aborted: settle() ends the step
    go(step);
  }
}

void DeviceGatherRoot::go(Step& step) {
  step.went = true;
  StepGo message{epoch_, step.number, {}};
  Result<void> begun;
  if (step.begins) {
    connecting_since_ = now_;
    const auto id = owner_.make_id();
    const auto memory = owner_.free_memory();
    if (!id || !memory) {
      step.went = false;
      return connect_failed(!id ? id.error() : memory.error());
    }
    message.id = *id;
    memory_before_ = *memory;
    begun = owner_.begin(step.hold, epoch_, *id, ranks_, 0);
  } else {
    StreamOwner::Operation operation;
    operation.tag = step.number;
    operation.what = fmt::format("round {} from {}", step.round, names(step, [](const Member&) { return true; }));
    operation.slot = step.slot;
    for (const Member& member : step.members)
      operation.transfers.push_back({false, member.rank, member.memory});
    begun = owner_.launch(step.hold, std::move(operation));
  }
  if (!begun) {
    step.went = false;
    if (step.begins)
      return connect_failed(begun.error());
    return owner_.abort(begun.error());
  }
  if (!is_running(owner_))
    return; // it failed at once: ranks hear of the abort instead
  for (const Member& member : step.members)
    messages_.push_back({member.rank, message});
}

void DeviceGatherRoot::on_ended(std::uint32_t rank, const StepEnded& ended) {
  Step* step = find(ended.step);
  if (step == nullptr || !step->went || ended.epoch != epoch_)
    return;
  for (Member& member : step->members)
    if (member.rank == rank) {
      member.ended = true;
      member.took = ended.memory;
    }
  connected_if_all_are();
}

void DeviceGatherRoot::on_aborted(std::uint32_t rank, const EpochAborted& aborted) {
  if (aborted.epoch != epoch_)
    return;
  const Failure why{aborted.why.code, fmt::format("{}: {}", name_of(rank), aborted.why.message)};
  if (owner_.epoch() == epoch_)
    return owner_.abort(why);
  if (!steps_.empty()) { // it no longer waits for a communicator that nobody has begun
    cancel(steps_.front(), why.message);
    remove(steps_.front().number);
  }
}

Result<void> DeviceGatherRoot::close_window(std::uint64_t waiter) {
  auto closed = owner_.close_window(waiter);
  settle();
  return closed;
}

void DeviceGatherRoot::abort(const Failure& why) {
  owner_.abort(why);
  settle();
  connect_failed(why);
  settle();
}

void DeviceGatherRoot::tick() {
  ++now_;
  owner_.tick();
  settle();
  std::vector<std::uint64_t> late;
  for (Step& step : steps_)
    if (!step.begins && !step.went && now_ - step.proposed > limits_.agree) {
      const std::string who = names(step, [](const Member& member) { return !member.answered; });
      cancel(step, who.empty() ? "a round before it was not agreed in time"
                               : fmt::format("no answer from {} within {} ticks", who, limits_.agree));
      late.push_back(step.number);
    }
  for (const std::uint64_t number : late)
    remove(number);
  go();
  if (connecting_)
    propose_communicator();
  if (connecting_ && now_ - connecting_since_ > limits_.connect) {
    const Step* step = steps_.empty() ? nullptr : &steps_.front();
    std::string waiting = busy_.empty() ? "the last communicator has not ended" : busy_;
    if (hellos_.size() < ranks_) {
      waiting.clear();
      for (std::uint32_t rank = 1; rank < ranks_; ++rank)
        if (!hellos_.contains(rank))
          waiting += fmt::format("{}rank {}", waiting.empty() ? "not heard of: " : ", ", rank);
    } else if (step != nullptr) {
      const bool went = step->went;
      const std::string who =
        names(*step, [went](const Member& member) { return went ? !member.ended : !member.answered; });
      waiting = (went ? "not connected: " : "no answer from ") + (who.empty() ? std::string("the root") : who);
      if (!went && !busy_.empty())
        waiting += "; before that: " + busy_;
    }
    const Failure why{Code::timed_out,
                      fmt::format("ranks were not connected within {} ticks: {}", limits_.connect, waiting)};
    if (step != nullptr && step->went)
      owner_.abort(why);
    else
      connect_failed(why);
  }
  settle();
}

void DeviceGatherRoot::settle() {
  for (auto heard = owner_.notices(); !heard.empty(); heard = owner_.notices())
    for (StreamOwner::Notice& notice : heard)
      std::visit([this](auto& told) { hear(told); }, notice);
}

void DeviceGatherRoot::hear(StreamOwner::Begun& begun) {
  if (begun.how && !steps_.empty() && steps_.front().begins)
    warm_up(steps_.front());
}

void DeviceGatherRoot::warm_up(Step& step) {
  StreamOwner::Operation operation{step.number, "the first bytes from all ranks", step.slot, {}};
  for (const Member& member : step.members)
    operation.transfers.push_back({false, member.rank, member.memory});
  if (const auto launched = owner_.launch(step.hold, std::move(operation)); !launched)
    owner_.abort(launched.error());
}

void DeviceGatherRoot::hear(StreamOwner::Ended& ended) {
  Step* step = find(ended.tag);
  if (step == nullptr)
    return;
  if (step->begins) {
    if (ended.how) {
      step->own_ended = true;
      connected_if_all_are();
    }
    return;
  }
  owner_.release(step->hold);
  if (ended.how) {
    Gathered gathered{step->round, step->slot, {}};
    for (const Member& member : step->members)
      gathered.parts.push_back({member.rank, member.memory});
    notices_.emplace_back(std::move(gathered));
  } else {
    owner_.give_slot(step->slot);
    Failure why = ended.how.error();
    if (why.code == Code::timed_out)
      if (const std::string who = names(*step, [](const Member& member) { return !member.ended; }); !who.empty())
        why.message += fmt::format("; not sent, or not told yet: {}", who);
    notices_.emplace_back(RoundFailed{step->round, std::move(why)});
  }
  remove(ended.tag);
}

void DeviceGatherRoot::connected_if_all_are() {
  if (steps_.empty() || !steps_.front().begins || !steps_.front().own_ended)
    return;
  Step& step = steps_.front();
  if (!std::all_of(step.members.begin(), step.members.end(), [](const Member& member) { return member.ended; }))
    return;
  const auto memory = owner_.free_memory();
  if (!memory)
    return owner_.abort(memory.error());
  std::vector<std::uint64_t> took{memory_before_ - std::min(*memory, memory_before_)};
  for (const Member& member : step.members)
    took.push_back(member.took);
  owner_.give_slot(step.slot);
  owner_.release(step.hold);
  steps_.pop_front();
  ready_ = true;
  notices_.emplace_back(Connected{*connecting_, {}, std::move(took)});
  connecting_.reset();
}

void DeviceGatherRoot::hear(StreamOwner::Aborted& aborted) {
  ready_ = false;
  why_apart_ = aborted.why.message;
  for (std::uint32_t rank = 1; rank < ranks_; ++rank)
    messages_.push_back({rank, EpochAborted{aborted.epoch, aborted.why}});
  for (const Step& step : steps_) {
    owner_.give_slot(step.slot);
    owner_.release(step.hold);
    if (!step.begins)
      notices_.emplace_back(ThroughHost{step.round, aborted.why.message});
  }
  steps_.clear();
  connect_failed(aborted.why);
}

void DeviceGatherRoot::hear(StreamOwner::Lost& lost) {
  refused_ = lost.why;
  why_apart_ = lost.why.message;
  connect_failed(lost.why);
}

void DeviceGatherRoot::hear(StreamOwner::WindowClosed& closed) {
  notices_.emplace_back(std::move(closed));
}

// ----------------------------------------------------------------------------------------------------------- rank

DeviceGatherRank::DeviceGatherRank(StreamOwner& owner, Slots slots, DeviceHello own, std::uint32_t rank,
                                   std::uint32_t ranks, Limits limits)
  : owner_(owner), slots_(std::move(slots)), name_(own.name), rank_(rank), ranks_(ranks), limits_(limits) {
  messages_.emplace_back(std::move(own));
}

Result<void> DeviceGatherRank::on(const ToRank& message) {
  Result<void> taken;
  if (const auto* proposed = std::get_if<StepProposed>(&message)) {
    taken = on_proposed(*proposed);
  } else if (const auto* go = std::get_if<StepGo>(&message)) {
    if (steps_.contains(go->step) || go->epoch <= finished_)
      on_go(*go);
    else
      taken =
        fail(Code::invalid_input, "the root says go for step {} of communicator {}, which this rank does not hold",
             go->step, go->epoch);
  } else if (const auto* cancelled = std::get_if<StepCancelled>(&message)) {
    on_cancelled(*cancelled);
  } else if (const auto* aborted = std::get_if<EpochAborted>(&message)) {
    on_aborted(*aborted);
  }
  settle();
  return taken;
}

Result<void> DeviceGatherRank::on_proposed(const StepProposed& proposed) {
  if (proposed.epoch <= finished_)
    return {}; // the root is being told
  const bool fits_now = proposed.begins ? proposed.epoch > owner_.epoch()
                                        : proposed.epoch == owner_.epoch() && owner_.state() == State::ready;
  if (!fits_now || proposed.bytes == 0 || (!steps_.empty() && proposed.step <= steps_.rbegin()->first))
    return fail(Code::invalid_input,
                "the root proposes step {} with {} bytes for communicator {}, and this rank has {}", proposed.step,
                proposed.bytes, proposed.epoch, owner_.epoch());
  const auto answer = [&](std::string why_not) {
    messages_.emplace_back(StepAnswered{proposed.epoch, proposed.step, why_not.empty(), why_not});
  };
  if (lost_) {
    answer(lost_->message);
    return {};
  }
  if (proposed.begins && owner_.state() != State::idle) {
    answer("its last communicator has not ended");
    return {};
  }
  const auto hold = owner_.hold();
  if (!hold) {
    answer("it is outside a launch window");
    return {};
  }
  const auto slot = owner_.take_slot();
  if (!slot || slots_[*slot].size() < proposed.bytes) {
    if (slot)
      owner_.give_slot(*slot);
    owner_.release(*hold);
    answer(slot ? fmt::format("{} bytes do not fit into {}", proposed.bytes, slots_[*slot].size())
                : std::string("its memory for rounds is in use"));
    return {};
  }
  Step step;
  step.proposed = proposed;
  step.hold = *hold;
  step.slot = *slot;
  step.since = now_;
  if (!proposed.begins)
    notices_.emplace_back(Fill{proposed.step, proposed.round, slots_[*slot].first(proposed.bytes)});
  steps_.emplace(proposed.step, std::move(step));
  answer("");
  return {};
}

void DeviceGatherRank::on_go(const StepGo& go) {
  const auto found = steps_.find(go.step);
  if (found == steps_.end() || found->second.went)
    return;
  Step& step = found->second;
  step.went = true;
  step.since = now_;
  if (!step.proposed.begins)
    return launch_ready();
  const auto memory = owner_.free_memory();
  Result<void> begun;
  if (memory) {
    memory_before_ = *memory;
    begun = owner_.begin(step.hold, go.epoch, go.id, ranks_, rank_);
  } else {
    begun = tl::make_unexpected(memory.error());
  }
  if (begun)
    return; // the owner tells how it goes
  finished_ = go.epoch;
  messages_.emplace_back(EpochAborted{go.epoch, begun.error()});
  end(found);
}

void DeviceGatherRank::filled(std::uint64_t step) {
  const auto found = steps_.find(step);
  if (found == steps_.end())
    return; // cancelled meanwhile
  found->second.filled = true;
  launch_ready();
  settle();
}

/// In the order of steps, which is the root's.
void DeviceGatherRank::launch_ready() {
  for (auto& [number, step] : steps_) {
    if (step.launched)
      continue;
    if (!step.went || !step.filled || step.proposed.begins || owner_.state() != State::ready)
      return;
    launch(step);
  }
}

void DeviceGatherRank::launch(Step& step) {
  StreamOwner::Operation operation;
  operation.tag = step.proposed.step;
  operation.what = step.proposed.begins ? std::string("the first bytes to the root")
                                        : fmt::format("round {} to the root", step.proposed.round);
  operation.slot = step.slot;
  operation.transfers.push_back({true, 0, slots_[step.slot].first(step.proposed.bytes)});
  step.launched = true;
  if (const auto launched = owner_.launch(step.hold, std::move(operation)); !launched)
    owner_.abort(launched.error());
}

void DeviceGatherRank::on_cancelled(const StepCancelled& cancelled) {
  const auto found = steps_.find(cancelled.step);
  if (found == steps_.end() || found->second.went)
    return;
  if (!found->second.proposed.begins)
    notices_.emplace_back(Cancelled{found->second.proposed.round, cancelled.why});
  end(found);
  launch_ready();
}

void DeviceGatherRank::on_aborted(const EpochAborted& aborted) {
  if (aborted.epoch <= finished_ || owner_.epoch() != aborted.epoch || !is_running(owner_))
    return;
  root_knows_ = true;
  owner_.abort({aborted.why.code, fmt::format("the root: {}", aborted.why.message)});
}

void DeviceGatherRank::end(std::map<std::uint64_t, Step>::iterator step) {
  owner_.give_slot(step->second.slot);
  owner_.release(step->second.hold);
  steps_.erase(step);
}

Result<void> DeviceGatherRank::close_window(std::uint64_t waiter) {
  auto closed = owner_.close_window(waiter);
  settle();
  return closed;
}

void DeviceGatherRank::abort(const Failure& why) {
  owner_.abort(why);
  settle();
}

void DeviceGatherRank::tick() {
  ++now_;
  owner_.tick();
  settle();
  for (auto at = steps_.begin(); at != steps_.end();) {
    const auto step = at++;
    if (step->second.launched || now_ - step->second.since <= limits_.held)
      continue;
    const StepProposed& proposed = step->second.proposed;
    if (!step->second.went) {
      const Failure why{Code::timed_out, fmt::format("the root did not say go for step {} within {} ticks",
                                                     proposed.step, limits_.held)};
      if (!proposed.begins) {
        owner_.abort(why);
        break;
      }
      finished_ = proposed.epoch;
      messages_.emplace_back(EpochAborted{proposed.epoch, why});
      end(step);
    } else if (!proposed.begins && !step->second.filled) {
      owner_.abort({Code::timed_out,
                    fmt::format("the bytes of round {} were not there within {} ticks", proposed.round, limits_.held)});
      break;
    }
  }
  settle();
}

void DeviceGatherRank::settle() {
  for (auto heard = owner_.notices(); !heard.empty(); heard = owner_.notices())
    for (StreamOwner::Notice& notice : heard)
      std::visit([this](auto& told) { hear(told); }, notice);
}

void DeviceGatherRank::hear(StreamOwner::Begun& begun) {
  if (begun.how)
    for (auto& [number, step] : steps_)
      if (step.proposed.begins && step.went)
        return launch(step);
}

void DeviceGatherRank::hear(StreamOwner::Ended& ended) {
  const auto found = steps_.find(ended.tag);
  if (found == steps_.end())
    return;
  const StepProposed proposed = found->second.proposed;
  if (!ended.how) {
    end(found);
    if (!proposed.begins)
      notices_.emplace_back(SendFailed{proposed.round, ended.how.error()});
    return;
  }
  std::uint64_t took = 0;
  if (proposed.begins) {
    const auto memory = owner_.free_memory();
    if (!memory)
      return owner_.abort(memory.error()); // which ends the step, still in its window
    took = memory_before_ - std::min(*memory, memory_before_);
  } else {
    notices_.emplace_back(Sent{proposed.round});
  }
  end(found);
  messages_.emplace_back(StepEnded{ended.epoch, ended.tag, took});
}

void DeviceGatherRank::hear(StreamOwner::Aborted& aborted) {
  finished_ = aborted.epoch;
  for (auto at = steps_.begin(); at != steps_.end();) {
    const auto step = at++;
    if (step->second.proposed.epoch > aborted.epoch)
      continue;
    if (!step->second.proposed.begins)
      notices_.emplace_back(Cancelled{step->second.proposed.round, aborted.why.message});
    end(step);
  }
  if (!std::exchange(root_knows_, false))
    messages_.emplace_back(EpochAborted{aborted.epoch, aborted.why});
  notices_.emplace_back(Disconnected{aborted.epoch, aborted.why});
}

void DeviceGatherRank::hear(StreamOwner::Lost& lost) {
  lost_ = lost.why;
}

void DeviceGatherRank::hear(StreamOwner::WindowClosed& closed) {
  notices_.emplace_back(std::move(closed));
}

} // namespace deltawire::sync
