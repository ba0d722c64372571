#include "actors/port.hpp"

#include "sync/naming.hpp"

namespace deltawire::actors {

void Routes::set_supervisor(caf::actor actor) {
  const std::lock_guard lock(mutex_);
  supervisor_ = std::move(actor);
}

void Routes::set_gather(caf::actor actor) {
  const std::lock_guard lock(mutex_);
  gather_ = std::move(actor);
}

void Routes::set_delivery(caf::actor actor) {
  const std::lock_guard lock(mutex_);
  delivery_ = std::move(actor);
}

void Routes::clear() {
  caf::actor supervisor, gather, delivery; // released outside the lock
  const std::lock_guard lock(mutex_);
  std::swap(supervisor, supervisor_);
  std::swap(gather, gather_);
  std::swap(delivery, delivery_);
}

caf::actor Routes::find(std::uint16_t type) const {
  const std::lock_guard lock(mutex_);
  if ((type >= wire::CaptureReport::type && type <= wire::Grant::type) || type == wire::Drop::type ||
      type == static_cast<std::uint16_t>(wire::FrameType::round))
    return gather_;
  if ((type >= wire::Begin::type && type <= wire::Adopt::type) ||
      type == static_cast<std::uint16_t>(wire::FrameType::flush))
    return delivery_;
  return supervisor_;
}

caf::actor Routes::supervisor() const {
  const std::lock_guard lock(mutex_);
  return supervisor_;
}

void Port::start() {
  transport::Handlers handlers;
  handlers.on_frame = [self = shared_from_this()](transport::Incoming&& incoming) {
    self->on_frame(std::move(incoming));
  };
  handlers.on_closed = [self = shared_from_this()](const Failure& reason) {
    if (const caf::actor supervisor = self->routes_->supervisor())
      caf::anon_send(supervisor, PortClosed{self, reason});
  };
  connection_->start(std::move(handlers));
}

void Port::identify(wire::Role role, std::uint32_t index, wire::Channel channel) {
  role_ = role;
  index_ = index;
  channel_ = channel;
  connection_->admit();
  identified_.store(true, std::memory_order_release);
}

std::string Port::name() const {
  if (!identified())
    return fmt::format("peer {}", connection_->peer());
  return fmt::format("{} ({})", sync::peer_name(role_, index_), connection_->peer());
}

Failure Port::naming(const Failure& reason) const {
  if (identified())
    return sync::naming(role_, index_, reason, connection_->peer());
  // Nobody knows who it is: its address is its name, and the transport's reasons begin with that.
  const std::string address = connection_->peer();
  if (reason.message.starts_with(address) || reason.message.starts_with(name()))
    return reason;
  return {reason.code, fmt::format("{}: {}", name(), reason.message)};
}

std::uint64_t Port::send_encoded(std::uint16_t type, std::shared_ptr<const Bytes> payload, std::uint64_t delivery) {
  wire::FrameHeader header;
  header.type = type;
  header.delivery = delivery;
  return send_data(header, std::move(payload));
}

std::uint64_t Port::send_data(wire::FrameHeader header, std::shared_ptr<const Bytes> payload,
                              transport::SendDone done) {
  wire::describe_payload(header, *payload);
  return send_described(header, std::move(payload), std::move(done));
}

std::uint64_t Port::send_described(wire::FrameHeader header, std::shared_ptr<const Bytes> payload,
                                   transport::SendDone done) {
  header.session = session_.load(std::memory_order_acquire);
  const wire::HeaderBytes bytes = wire::write_header(header);
  transport::Outgoing outgoing;
  outgoing.header.assign(bytes.begin(), bytes.end());
  outgoing.body = std::move(payload);
  connection_->send(std::move(outgoing), std::move(done));
  if (auto* traffic = this->traffic())
    traffic->sent.add(bytes.size() + header.payload_bytes);
  return bytes.size() + header.payload_bytes;
}

telemetry::Traffic::Channel* Port::traffic() const noexcept {
  telemetry::Traffic* traffic = routes_->traffic();
  if (traffic == nullptr)
    return nullptr;
  return identified() && channel_ == wire::Channel::data ? &traffic->data : &traffic->control;
}

void Port::close() {
  connection_->close(std::chrono::milliseconds(2000));
}

void Port::on_frame(transport::Incoming&& incoming) {
  frames_.fetch_add(1, std::memory_order_relaxed);
  if (auto* traffic = this->traffic())
    traffic->received.add(incoming.header.size() + incoming.body.size());
  const auto refuse = [this](const Failure& failure) { connection_->abort(naming(failure)); };
  if (incoming.header.size() != wire::header_bytes)
    return refuse(Failure{Code::internal, "the transport delivered a header of another length"});
  const auto header = wire::read_header(std::span<const std::byte, wire::header_bytes>(incoming.header));
  if (!header)
    return refuse(header.error());
  const std::uint64_t session = session_.load(std::memory_order_acquire);
  if (session != 0 && header->session != session)
    return refuse(Failure{Code::invalid_input,
                          fmt::format("a frame of session {:x}, this is session {:x}", header->session, session)});
  // Data payloads are checked by the actor that uses them: the transport's thread only moves bytes.
  if (header->type < static_cast<std::uint16_t>(wire::FrameType::round)) {
    if (const auto checked = wire::check_payload(*header, incoming.body); !checked)
      return refuse(checked.error());
  }
  const caf::actor target = identified() ? routes_->find(header->type) : routes_->supervisor();
  if (!target)
    return refuse(Failure{Code::call_order,
                          fmt::format("{} before the agreement or after the end", wire::type_name(header->type))});
  caf::anon_send(target, FrameArrived{shared_from_this(), *header, std::make_shared<Bytes>(std::move(incoming.body))});
}

} // namespace deltawire::actors
