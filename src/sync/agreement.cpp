#include "sync/agreement.hpp"

#include "layout/some_elements.hpp"
#include "sync/naming.hpp"

#include <algorithm>
#include <set>

namespace deltawire::sync {

AgreementRoot::AgreementRoot(std::uint32_t ranks, std::uint32_t workers, std::vector<std::string> unused,
                             std::uint64_t window_bytes, std::uint64_t fingerprint)
  : ranks_(ranks), workers_(workers), unused_(std::move(unused)), window_bytes_(window_bytes),
    fingerprint_(fingerprint) {
  // The root is here by definition: it needs no connection to itself.
  ranks_[0].control = ranks_[0].data = true;
}

AgreementRoot::Peer* AgreementRoot::find(wire::Role role, std::uint32_t index) noexcept {
  std::vector<Peer>& peers = role == wire::Role::rank ? ranks_ : workers_;
  return index < peers.size() ? &peers[index] : nullptr;
}

Result<void> AgreementRoot::check_membership(const wire::Hello& hello) const {
  const std::string name = peer_name(hello.role, hello.index);
  const std::size_t count = hello.role == wire::Role::rank ? ranks_.size() : workers_.size();
  if (hello.index >= count || hello.count != count)
    return fail(Code::disagreement, "{} of {}: the root's topology has {} {}s", name, hello.count, count,
                hello.role == wire::Role::rank ? "rank" : "worker");
  if (hello.fingerprint != fingerprint_)
    return fail(Code::disagreement,
                "{} has other settings than the root: give every process the same topology file and "
                "overrides",
                name);
  return {};
}

Result<void> AgreementRoot::rejoin(const wire::Hello& hello) const {
  if (hello.role == wire::Role::rank)
    return fail(Code::disagreement,
                "{} comes too late: the session is running, and only workers may join it. Restart all ranks",
                peer_name(hello.role, hello.index));
  return check_membership(hello);
}

void AgreementRoot::forget(Peer& peer) {
  // A frame of a process that is no more may still come in, and two that are started as the same worker must not take
  // turns for ever. Anybody may knock: only so many are kept.
  constexpr std::size_t most = 64;
  std::deque<std::uint64_t> replaced = std::move(peer.replaced);
  if (peer.incarnation != 0)
    replaced.push_back(peer.incarnation);
  if (replaced.size() > most)
    replaced.pop_front();
  peer = Peer{};
  peer.replaced = std::move(replaced);
}

void AgreementRoot::left(std::uint32_t worker) {
  if (worker < workers_.size())
    forget(workers_[worker]);
}

Result<AgreementRoot::Welcome> AgreementRoot::hello(const wire::Hello& hello) {
  if (auto member = check_membership(hello); !member)
    return pass_on(std::move(member));
  const std::string name = peer_name(hello.role, hello.index);
  Peer& peer = *find(hello.role, hello.index);
  Welcome welcome = Welcome::first;
  if (hello.role == wire::Role::worker) {
    if (std::find(peer.replaced.begin(), peer.replaced.end(), hello.incarnation) != peer.replaced.end())
      return fail(Code::disagreement,
                  "{}: another process has taken its place: it was restarted, or two processes have the same index",
                  name);
    if (peer.incarnation != 0 && peer.incarnation != hello.incarnation) {
      forget(peer);
      welcome = Welcome::in_place;
    }
  }
  bool& channel = hello.channel == wire::Channel::control ? peer.control : peer.data;
  if (channel || (peer.incarnation != 0 && peer.incarnation != hello.incarnation))
    return fail(Code::disagreement, "{} is connected already: two processes have the same index", name);
  channel = true;
  peer.incarnation = hello.incarnation;
  return welcome;
}

Result<void> AgreementRoot::declare(wire::Role role, std::uint32_t index, layout::Declaration declaration) {
  Peer* peer = find(role, index);
  if (peer == nullptr)
    return fail(Code::disagreement, "{} declares its parameters: the root's topology has no such {}",
                peer_name(role, index), role == wire::Role::rank ? "rank" : "worker");
  if (peer->declared)
    return fail(Code::call_order, "{} declares its parameters twice", peer_name(role, index));
  peer->declared = true;
  if (!planned_)
    peer->declaration = std::move(declaration);
  return {};
}

std::optional<Result<std::vector<layout::SlotSpec>>> AgreementRoot::catalogue() {
  if (catalogue_made_ || planned_ ||
      !std::all_of(ranks_.begin(), ranks_.end(), [](const Peer& peer) { return peer.declared; }))
    return std::nullopt;
  catalogue_made_ = true;
  std::vector<layout::Declaration> declarations;
  for (const Peer& peer : ranks_)
    declarations.push_back(*peer.declaration);
  return layout::catalogue(declarations);
}

std::vector<std::string> AgreementRoot::rank_parameters() const {
  std::set<std::string> names;
  for (const Peer& peer : ranks_)
    if (peer.declaration)
      for (const layout::ParameterSpec& parameter : peer.declaration->parameters)
        names.insert(parameter.name);
  return {names.begin(), names.end()};
}

std::vector<layout::Declaration> AgreementRoot::take(std::vector<Peer>& peers) {
  std::vector<layout::Declaration> declarations;
  declarations.reserve(peers.size());
  for (Peer& peer : peers) {
    declarations.push_back(std::move(*peer.declaration));
    peer.declaration.reset();
  }
  return declarations;
}

std::optional<Result<layout::Plan>> AgreementRoot::plan() {
  // Both connections too: what is spawned for the plan sends on either of them.
  const auto declared = [](const Peer& peer) { return peer.declared && peer.control && peer.data; };
  if (planned_ || !std::all_of(ranks_.begin(), ranks_.end(), declared) ||
      !std::all_of(workers_.begin(), workers_.end(), declared))
    return std::nullopt;
  planned_ = true;
  const std::vector<layout::Declaration> ranks = take(ranks_);
  const std::vector<layout::Declaration> workers = take(workers_);
  return layout::some_elements(layout::compile_plan(ranks, workers, unused_, window_bytes_));
}

Result<void> AgreementRoot::agreed(wire::Role role, std::uint32_t index, const wire::Agreed& message) {
  Peer* peer = find(role, index);
  if (!planned_ || peer == nullptr || !peer->declared || peer->agreed)
    return fail(Code::call_order, "{} agrees out of order", peer_name(role, index));
  peer->agreed = true;
  peer->standing = message;
  return {};
}

std::vector<wire::Agreed> AgreementRoot::standing() const {
  std::vector<wire::Agreed> standing;
  for (const Peer& worker : workers_)
    standing.push_back(worker.standing);
  return standing;
}

bool AgreementRoot::all_agreed() const noexcept {
  const auto agreed = [](const Peer& peer) { return peer.agreed && peer.control && peer.data; };
  return std::all_of(ranks_.begin(), ranks_.end(), agreed) && std::all_of(workers_.begin(), workers_.end(), agreed);
}

std::string AgreementRoot::missing() const {
  std::string text;
  const auto list = [&](const std::vector<Peer>& peers, wire::Role role) {
    for (std::uint32_t i = 0; i < peers.size(); ++i) {
      const Peer& peer = peers[i];
      const char* why = !peer.control || !peer.data ? "not connected"
                        : !peer.declared            ? "has not declared its parameters"
                        : !peer.agreed              ? "has not agreed"
                                                    : nullptr;
      if (why != nullptr)
        text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", peer_name(role, i), why);
    }
  };
  list(ranks_, wire::Role::rank);
  list(workers_, wire::Role::worker);
  return text;
}

} // namespace deltawire::sync
