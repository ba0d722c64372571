#include "oracle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace deltawire::simulation {

const char* name_of(Clause clause) noexcept {
  constexpr std::array<const char*, static_cast<std::size_t>(Clause::count)> names{"bits",  "base", "whole",
                                                                                   "order", "end",  "refused"};
  return names[static_cast<std::size_t>(clause)];
}

Oracle::Oracle(std::size_t elements, std::uint32_t per_replica, std::vector<std::vector<std::uint32_t>> reads)
  : per_replica_(per_replica), reads_(std::move(reads)), workers_(reads_.size()), published_(elements) {}

// The trainer
// ---------------------------------------------------------------------------------------------------------------

void Oracle::session_begins(std::uint64_t session) {
  session_ = session;
  history_[session].resize(published_.size());
  published_.assign(published_.size(), std::nullopt);
  captured_.clear();
  aborted_.clear();
  last_delivery_ = 0;
  begun_.clear();
  frames_.clear();
}

void Oracle::captured(std::uint64_t version, std::uint32_t element, Bits bits) {
  History& history = history_[session_][element];
  if (!history.empty() && history.back().first >= version)
    throw Violation(Clause::order, fmt::format("element {} is captured for version {} after version {}", element,
                                               version, history.back().first));
  history.emplace_back(version, bits);
}

void Oracle::capture_over(std::uint32_t rank, std::uint64_t version, std::span<const std::uint32_t> elements) {
  std::uint64_t& last = captured_[rank];
  if (version != last + 1)
    throw Violation(Clause::order, fmt::format("rank {} captures version {} after version {}", rank, version, last));
  last = version;
  if (aborted_.contains(version))
    return;
  for (const std::uint32_t element : elements)
    if (const auto& published = published_[element]; published && bits_of({session_, version}, element) != *published)
      throw Violation(Clause::bits, fmt::format("rank {} says that version {} is captured, and element {} is not what "
                                                "was published",
                                                rank, version, element));
}

std::optional<Bits> Oracle::bits_of(Version version, std::uint32_t element) const {
  const auto session = history_.find(version.session);
  if (session == history_.end())
    return std::nullopt;
  const History& history = session->second[element];
  for (auto entry = history.rbegin(); entry != history.rend(); ++entry)
    if (entry->first <= version.number)
      return entry->second;
  return std::nullopt;
}

std::optional<std::size_t> Oracle::differs(std::uint32_t worker, Version version) const {
  for (std::size_t i = 0; i < memory_[worker].size(); ++i)
    if (bits_of(version, reads_[worker][i]) != memory_[worker][i])
      return i;
  return std::nullopt;
}

std::vector<Bits> Oracle::memory_at(std::uint32_t worker, Version version) const {
  std::vector<Bits> memory;
  for (const std::uint32_t element : reads_[worker])
    memory.push_back(bits_of(version, element).value_or(0));
  return memory;
}

// The root
// ---------------------------------------------------------------------------------------------------------------

void Oracle::begins(std::uint64_t delivery, std::uint32_t worker) {
  if (delivery < last_delivery_ || !begun_.emplace(delivery, worker).second)
    throw Violation(Clause::order, fmt::format("delivery {} begins for worker {} a second time, or after delivery {}",
                                               delivery, worker, last_delivery_));
  last_delivery_ = delivery;
}

void Oracle::sends(std::uint64_t delivery, std::uint32_t worker, std::uint64_t sequence) {
  if (!frames_.emplace(delivery, worker, sequence).second)
    throw Violation(Clause::order,
                    fmt::format("frame {} of delivery {} goes to worker {} twice", sequence, delivery, worker));
}

void Oracle::commits(std::uint64_t delivery, std::uint64_t version, std::uint32_t worker) {
  if (aborted_.contains(version))
    throw Violation(Clause::whole, fmt::format("version {} is committed, which a rank left half done", version));
  for (std::uint32_t w = first_of(worker); w < first_of(worker) + per_replica_; ++w)
    if (workers_[w].staged != std::pair{session_, delivery})
      throw Violation(Clause::whole, fmt::format("version {} is committed on worker {} before worker {} of its replica "
                                                 "has staged it",
                                                 version, worker, w));
  committed_.insert({session_, version});
}

void Oracle::releases(std::uint64_t delivery, std::uint32_t worker) {
  for (std::uint32_t w = first_of(worker); w < first_of(worker) + per_replica_; ++w)
    if (workers_[w].applied != std::pair{session_, delivery})
      throw Violation(Clause::whole,
                      fmt::format("worker {} is released before worker {} of its replica has applied", worker, w));
}

// Workers
// ---------------------------------------------------------------------------------------------------------------

void Oracle::staged(std::uint64_t session, std::uint64_t delivery, std::uint32_t worker) {
  workers_[worker].staged = {session, delivery};
}

void Oracle::applies(std::uint32_t w, Kind kind, std::uint64_t session, std::uint64_t base) {
  Worker& worker = workers_[w];
  worker.before.assign(memory_[w].begin(), memory_[w].end());
  if (kind == Kind::seed)
    return;
  // A fold may go to any version from its base on.
  const bool right = kind == Kind::delta
                       ? !differs(w, {session, base})
                       : std::any_of(committed_.begin(), committed_.end(), [&](Version version) {
                           return version.session == session && version.number >= base && !differs(w, version);
                         });
  if (!right)
    throw Violation(Clause::base,
                    fmt::format("worker {} applies a {} from version {} to a memory that holds another one", w,
                                kind == Kind::delta ? "delta" : "fold", base));
}

void Oracle::applied(std::uint32_t w, std::uint64_t session, std::uint64_t delivery, std::uint64_t target) {
  workers_[w].applied = {session, delivery};
  if (const auto at = differs(w, {session, target}))
    throw Violation(Clause::bits, fmt::format("worker {} has applied version {} of session {}, and element {} of its "
                                              "memory is not what was captured",
                                              w, target, session, *at));
}

void Oracle::undone(std::uint32_t w) {
  Worker& worker = workers_[w];
  if (!std::equal(memory_[w].begin(), memory_[w].end(), worker.before.begin(), worker.before.end()))
    throw Violation(Clause::base, fmt::format("worker {} has undone, and its memory is not what it was", w));
  worker.applied.reset();
}

void Oracle::serves(std::uint32_t w, std::optional<Version> version) {
  Worker& worker = workers_[w];
  if (worker.serves == version)
    return;
  worker.serves = version;
  if (!version)
    return;
  if (!committed_.contains(*version))
    throw Violation(Clause::whole, fmt::format("worker {} serves version {} of session {}, which was never committed",
                                               w, version->number, version->session));
  if (*version < worker.newest)
    throw Violation(Clause::order,
                    fmt::format("worker {} goes back from version {} of session {} to {} of {}", w,
                                worker.newest.number, worker.newest.session, version->number, version->session));
  worker.newest = *version;
}

void Oracle::restarted(std::uint32_t worker) {
  // What the process before it has staged and applied it has, though it is gone.
  workers_[worker].serves.reset();
  workers_[worker].newest = {};
}

void Oracle::look(std::uint32_t w) const {
  const auto& version = workers_[w].serves;
  if (!version)
    return;
  if (const auto at = differs(w, *version))
    throw Violation(Clause::bits, fmt::format("worker {} serves version {} of session {}, and element {} of its memory "
                                              "is not what was captured",
                                              w, version->number, version->session, *at));
  for (std::uint32_t other = first_of(w); other < first_of(w) + per_replica_; ++other)
    // Two names of the same bits, as while a replica that holds them already is told of the newer one, are no mix.
    if (workers_[other].serves && workers_[other].serves != version && differs(other, *version))
      throw Violation(Clause::whole,
                      fmt::format("a replica serves two versions: worker {} has {} of session {}, worker {} {} of {}",
                                  w, version->number, version->session, other, workers_[other].serves->number,
                                  workers_[other].serves->session));
}

void Oracle::all_serve(std::uint64_t version) const {
  for (std::uint32_t w = 0; w < workers_.size(); ++w) {
    const auto& serves = workers_[w].serves;
    if (serves != Version{session_, version})
      throw Violation(
        Clause::end,
        fmt::format("faults have stopped, and worker {} serves {}, not version {}", w,
                    serves ? fmt::format("version {} of session {}", serves->number, serves->session) : "nothing",
                    version));
    look(w);
  }
}

} // namespace deltawire::simulation
