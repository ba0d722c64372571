#include "worker.hpp"

#include "delta/apply.hpp"
#include "wire/encode.hpp"

#include <array>
#include <map>

namespace deltawire::simulation {
namespace {

std::string text(const wire::Begin& m) {
  constexpr std::array<const char*, 3> kinds{"seed", "delta", "fold"};
  return fmt::format("Begin of delivery {}, a {} from {} to {}", m.delivery, kinds[static_cast<std::size_t>(m.kind)],
                     m.base, m.target);
}
std::string text(const wire::Settle& m) {
  return fmt::format("Settle of session {}, delivery {}: {}", m.session, m.delivery, m.release ? "serve" : "undo");
}
std::string text(const wire::Undo& m) {
  return fmt::format("Undo of delivery {}: {}", m.delivery, m.reason);
}
std::string text(const wire::Failed& m) {
  return fmt::format("Failed in delivery {}: {}", m.delivery, m.message);
}
std::string text(const wire::Agreed& m) {
  return fmt::format("Agreed, with version {} of session {}, delivery {} to {} in doubt", m.version, m.session,
                     m.delivery, m.target);
}
std::string text(const auto& m) {
  if constexpr (requires { m.audit; })
    return fmt::format("{} of audit {}", wire::type_name(m.type), m.audit);
  else
    return fmt::format("{} of delivery {}", wire::type_name(m.type), m.delivery);
}

} // namespace

std::string describe(const sync::RootDelivery::Message& message) {
  return std::visit([](const auto& each) { return text(each); }, message);
}

std::string describe(const Answer& answer) {
  return std::visit([](const auto& each) { return text(each); }, answer);
}

sync::Digests digests_of(const Compiled& compiled, const std::vector<std::size_t>& offsets, std::span<Bits> memory) {
  std::map<std::uint32_t, std::uint64_t> cells;
  for (const layout::Block& own : compiled.own)
    cells[own.cell] += delta::digest_of({&own, reinterpret_cast<std::byte*>(memory.data() + offsets[own.parameter])});
  return {cells.begin(), cells.end()};
}

Worker::Worker(std::uint32_t index, const Job& job, Surroundings surroundings)
  : index_(index), around_(surroundings), declaration_(job.declare(job.reads[index % job.per_replica])) {
  for (const layout::ParameterSpec& parameter : declaration_.parameters) {
    offsets_.push_back(memory_.size());
    memory_.resize(memory_.size() + static_cast<std::size_t>(parameter.local_shape.front()));
  }
}

// Its connection
// ---------------------------------------------------------------------------------------------------------------

void Worker::agree(Link& link, std::uint64_t session, std::shared_ptr<const Compiled> compiled) {
  if (&link != link_)
    return;
  protocol_.meet(session);
  next_compiled_ = std::move(compiled);
  if (!protocol_.unsettled())
    take_compiled();
  say(protocol_.standing());
}

void Worker::take_compiled() {
  const auto compiled = std::exchange(next_compiled_, nullptr);
  if (!compiled || (!protocol_.foreign() && stage_))
    return;
  compiled_ = compiled;
  std::vector<delta::BoundBlock> blocks;
  for (std::uint32_t b = 0; b < compiled_->own.size(); ++b)
    blocks.push_back(bound(b));
  stage_.emplace(blocks, std::uint64_t{1} << 30);
}

delta::BoundBlock Worker::bound(std::uint32_t block) {
  const layout::Block& own = compiled_->own[block];
  return {&own, reinterpret_cast<std::byte*>(memory_.data() + offsets_[own.parameter])};
}

void Worker::lost(Link& link) {
  if (&link != link_)
    return;
  around_.tell("worker {} loses its root", index_);
  link_ = nullptr;
  const bool applied = applied_;
  if (protocol_.root_lost())
    put_back();
  if (around_.planted == Planted::forgets_doubt && applied && protocol_.unsettled()) {
    const wire::Agreed doubt = protocol_.standing();
    if (const auto settled = protocol_.settle({doubt.session, doubt.delivery, 0}); settled && settled->exchange_back)
      put_back();
  }
  if (protocol_.unsettled()) {
    version_ = 0;
  } else {
    forget_delivery();
    paused_ = false;
  }
  show();
}

void Worker::restart() {
  ++incarnation_;
  link_ = nullptr;
  protocol_ = {};
  stage_.reset();
  compiled_ = next_compiled_ = nullptr;
  if (around_.network.one_in(2)) // else it was loaded with what the last process had
    memory_.assign(memory_.size(), static_cast<Bits>(around_.network.below(1 << 16)));
  version_ = 0;
  paused_ = applied_ = pause_fails_ = flush_fails_ = memory_changes_ = found_wrong_ = false;
  around_.oracle.restarted(index_);
}

void Worker::say(Answer answer) {
  if (link_ == nullptr || link_->cut)
    return;
  link_->up.post([link = link_, answer = std::move(answer)] { link->to_root(answer); });
}

void Worker::refuse(const Failure& failure, std::uint64_t delivery) {
  if (around_.planted == Planted::none && !found_wrong_)
    throw Violation(Clause::refused, fmt::format("worker {} must refuse: {}", index_, failure.message));
  say(wire::Failed{failure.code, failure.message, delivery});
}

void Worker::fail_delivery(const Failure& failure, std::uint64_t delivery) {
  if (delivery == protocol_.delivery())
    protocol_.give_up();
  say(wire::Failed{failure.code, failure.message, delivery});
}

void Worker::show() {
  around_.oracle.serves(
    index_, version_ == 0 || paused_ ? std::nullopt : std::optional(Oracle::Version{protocol_.session(), version_}));
  around_.oracle.look(index_);
}

// Deliveries
// ---------------------------------------------------------------------------------------------------------------

void Worker::receive(Link& link, const sync::RootDelivery::Message& message) {
  if (&link != link_)
    return;
  around_.tell("worker {} takes {}", index_, describe(message));
  std::visit([this](const auto& each) { take(each); }, message);
  show();
}

void Worker::forget_delivery() {
  if (stage_)
    stage_->clear();
  applied_ = false;
}

void Worker::put_back() {
  if (around_.planted != Planted::does_not_undo)
    stage_->exchange({});
  around_.oracle.undone(index_);
}

bool Worker::pause() {
  paused_ = true;
  if (!std::exchange(pause_fails_, false))
    return true;
  around_.struck(Fault::engine_fails);
  return false;
}

void Worker::take(const wire::Begin& message) {
  const auto ready = protocol_.begin(message);
  if (!ready)
    return refuse(ready.error(), message.delivery);
  found_wrong_ = false;
  forget_delivery();
  begun_ = message;
  if (protocol_.in_place()) {
    version_ = 0;
    if (!pause())
      return fail_delivery({Code::peer_failed, "on_pause threw"}, message.delivery);
  }
  say(*ready);
}

void Worker::take_pieces(std::span<const std::byte> rest) {
  const auto need = [](const auto& result) {
    if (!result)
      throw Violation(Clause::refused, result.error().message);
  };
  while (!rest.empty()) {
    const auto header = delta::peek_piece(rest);
    need(header);
    const std::span<const std::byte> bytes = rest.first(header->bytes);
    rest = rest.subspan(header->bytes);
    for (std::uint32_t b = 0; b < compiled_->own.size(); ++b) {
      if (compiled_->own[b].id != header->block)
        continue;
      const auto piece = delta::read_piece(bytes, compiled_->own[b]);
      need(piece);
      if (!protocol_.in_place())
        need(stage_->add(b, *piece));
      else if (piece->kind == delta::PieceKind::ulp_delta)
        throw Violation(Clause::base, fmt::format("worker {} is seeded with differences to a base", index_));
      else
        delta::write_values(bound(b), *piece, piece->values);
    }
  }
}

void Worker::flush(Link& link, std::uint64_t delivery, std::uint64_t sequence, const Payload& payload) {
  if (&link != link_ || protocol_.over(delivery) || protocol_.gave_up())
    return;
  const auto fresh = protocol_.flush(delivery, sequence, payload->size());
  if (!fresh)
    return refuse(fresh.error(), delivery);
  if (*fresh == sync::WorkerProtocol::Fresh::fresh) {
    if (std::exchange(flush_fails_, false)) {
      around_.struck(Fault::staging_fails);
      if (protocol_.in_place())
        protocol_.spoiled();
      return fail_delivery({Code::limit_exceeded, "the stage is full"}, delivery);
    }
    take_pieces(*payload);
  }
  say(wire::FlushStaged{delivery, sequence, payload->size()});
  staged_if_complete();
  show();
}

void Worker::staged_if_complete() {
  if (!protocol_.complete())
    return;
  around_.oracle.staged(protocol_.session(), protocol_.delivery(), index_);
  say(protocol_.verified());
}

void Worker::take(const wire::Seal& message) {
  if (const auto sealed = protocol_.seal(message); !sealed)
    return refuse(sealed.error(), message.delivery);
  staged_if_complete();
}

void Worker::take(const wire::Commit& message) {
  const bool in_place = protocol_.in_place();
  if (const auto committed = protocol_.commit(message); !committed)
    return refuse(committed.error(), message.delivery);
  if (!in_place) {
    if (!pause())
      return fail_delivery({Code::peer_failed, "on_pause threw"}, message.delivery);
    around_.oracle.applies(index_, begun_.kind == wire::DeliveryKind::delta ? Oracle::Kind::delta : Oracle::Kind::fold,
                           protocol_.session(), begun_.base);
    stage_->exchange({});
  }
  protocol_.applied();
  applied_ = true;
  around_.oracle.applied(index_, protocol_.session(), message.delivery, protocol_.target());
  wire::Applied answer;
  answer.delivery = message.delivery;
  answer.version = protocol_.target();
  say(answer);
}

void Worker::serve() {
  forget_delivery();
  version_ = protocol_.version();
  paused_ = false;
}

void Worker::take(const wire::Release& message) {
  const auto released = protocol_.release(message);
  if (!released)
    return refuse(released.error(), message.delivery);
  serve();
  ++around_.counts.released;
  say(*released);
}

void Worker::take(const wire::Undo& message) {
  const auto undoing = protocol_.undo(message);
  if (!undoing)
    return refuse(undoing.error(), message.delivery);
  if (undoing->exchange_back) {
    put_back();
    ++around_.counts.undone;
  }
  forget_delivery();
  paused_ = false;
  say(undoing->answer);
}

void Worker::take(const wire::Audit& message) {
  if (const auto auditing = protocol_.audit(message); !auditing)
    return refuse(auditing.error(), 0);
  // An audit tells of what is served only where that is the version it compares with.
  const bool comparable = version_ == 0 || (!protocol_.foreign() && version_ == message.version);
  if (comparable && !memory_.empty() && std::exchange(memory_changes_, false)) {
    around_.struck(Fault::memory_changes);
    memory_[around_.network.below(memory_.size())] ^= static_cast<Bits>(1U << around_.network.below(16));
  }
  const sync::Digests found =
    around_.planted == Planted::audits_unread ? message.digests : digests_of(*compiled_, offsets_, memory_);
  const bool right = found == message.digests;
  protocol_.audited(message, right);
  if (protocol_.state() == sync::WorkerState::dirty) {
    version_ = 0;
    found_wrong_ = true;
    ++around_.counts.found_wrong;
  }
  wire::Audited answer;
  answer.audit = message.audit;
  answer.version = protocol_.foreign() ? 0 : protocol_.version();
  answer.digests = found;
  answer.error = right ? "" : "its memory is another";
  say(answer);
}

void Worker::take(const wire::Adopt& message) {
  if (const auto adopted = protocol_.adopt(message); !adopted)
    return refuse(adopted.error(), 0);
  serve();
  ++around_.counts.adopted;
  wire::Audited answer;
  answer.audit = message.audit;
  answer.version = message.version;
  say(answer);
}

void Worker::take(const wire::Settle& message) {
  const auto settled = protocol_.settle(message);
  if (!settled)
    return refuse(settled.error(), 0);
  ++around_.counts.settled;
  if (settled->released) {
    serve();
  } else {
    if (settled->exchange_back)
      put_back();
    forget_delivery();
    version_ = protocol_.version();
    paused_ = false;
  }
  take_compiled();
}

} // namespace deltawire::simulation
