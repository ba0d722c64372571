// Control messages and manifests: every type that wire/encode.hpp decodes. Input: u16 type, payload.
#include "wire/encode.hpp"

#include "layout/declaration_check.hpp"
#include "target.hpp"

#include <algorithm>
#include <tuple>

namespace deltawire::fuzz {
namespace {

using namespace wire;

using Messages = std::tuple<Hello, Welcome, Refused, DeclareRank, Catalogue, DeclareWorker, Agreement, Agreed,
                            Connected, CaptureReport, Offer, Grant, DeliveryReport, Drop, NextUpdate, Abandon,
                            AuditReport, Begin, Ready, FlushStaged, Seal, Staged, Commit, Applied, Release, Released,
                            Undo, Undone, Settle, Audit, Audited, Adopt, Failed, Goodbye, Heartbeat>;

/// Calls visit.operator()<Message>() for every message.
template <class Visit>
void for_each_message(Visit&& visit) {
  [&]<class... Message>(std::type_identity<std::tuple<Message...>>) {
    (visit.template operator()<Message>(), ...);
  }(std::type_identity<Messages>{});
}

/// Fails when a message was added to the protocol and not to the list above.
bool list_is_complete() {
  for (std::uint16_t type = 0; type < 1000; ++type) {
    bool listed = false;
    for_each_message([&]<class Message>() { listed = listed || Message::type == type; });
    require(listed == !type_name(type).starts_with("unknown"), "every message of the protocol is in the target's list");
  }
  return true;
}

/// Goes through what only the contents tell.
template <class Message>
void look_into(const Message& message) {
  if constexpr (requires { message.declaration; }) {
    layout::Problems problems;
    layout::check_declaration(message.declaration, layout::Of::rank, "rank 0", problems);
  }
}

template <class Message>
bool check(std::span<const std::byte> payload) {
  Result<Message> message;
  {
    // Nested lists: FORMAT.md, "Control messages".
    const AllocationBound bound(2048 + 16 * payload.size());
    message = decode<Message>(payload);
  }
  if (!message) {
    require(message.error().code == Code::invalid_input, "a bad message has the code of bad input");
    require(message.error().message.starts_with(type_name(Message::type)), "the error names the message");
    return false;
  }
  require(std::ranges::equal(encode(*message), payload), "a message has one encoding, and it is what was read");
  look_into(*message);
  return true;
}

} // namespace

bool accepts(std::span<const std::byte> bytes) {
  [[maybe_unused]] static const bool complete = list_is_complete();
  Input input(bytes);
  const std::uint16_t type = input.u16();
  bool accepted = false;
  for_each_message([&]<class Message>() {
    if (Message::type == type)
      accepted = check<Message>(input.rest());
  });
  return accepted;
}

} // namespace deltawire::fuzz
