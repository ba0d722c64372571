#include "view.hpp"

#include "replay/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

namespace deltawire::top {

namespace {

/// Rank or worker, then actor; ranks come before workers, each by number.
struct Who {
  int side = 0; ///< 0: rank, 1: worker
  int index = 0;
  std::string actor;

  friend auto operator<=>(const Who&, const Who&) = default;
};

std::optional<Who> who_is(const Series& series) {
  const bool is_rank = series.labels.count("rank") > 0;
  const std::string& index = series.label(is_rank ? "rank" : "worker");
  if (index.empty() || index.size() > 9 || index.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return Who{is_rank ? 0 : 1, std::stoi(index), series.label("actor")};
}

struct Actor {
  bool running = false;
  double start = 0, busy = 0, mailbox = 0, mailbox_peak = 0, messages = 0, bytes = 0;
  std::optional<double> blocked; ///< seconds; of actors that ever were
  std::optional<double> held, held_peak, cap;
  std::map<double, double> buckets; ///< cumulative, by bound in seconds
};

using Actors = std::map<Who, Actor>;

Actors actors_of(const Scrape& scrape) {
  Actors actors;
  for (const Series& series : scrape.series) {
    const auto who = who_is(series);
    if (!who || who->actor.empty())
      continue;
    Actor& actor = actors[*who];
    const std::string& name = series.name;
    if (name == "deltawire_actor_running")
      actor.running = series.value != 0;
    else if (name == "deltawire_actor_start_time_seconds")
      actor.start = series.value;
    else if (name == "deltawire_actor_busy_seconds_total")
      actor.busy = series.value;
    else if (name == "deltawire_actor_blocked_seconds_total")
      actor.blocked = series.value;
    else if (name == "deltawire_mailbox_length")
      actor.mailbox = series.value;
    else if (name == "deltawire_mailbox_length_high_water")
      actor.mailbox_peak = series.value;
    else if (name == "deltawire_messages_total")
      actor.messages += series.value;
    else if (name == "deltawire_message_bytes_total")
      actor.bytes += series.value;
    else if (name == "deltawire_held_bytes")
      actor.held = series.value;
    else if (name == "deltawire_held_bytes_high_water")
      actor.held_peak = series.value;
    else if (name == "deltawire_cap_bytes")
      actor.cap = series.value;
    else if (name == "deltawire_message_seconds_bucket") {
      const std::string& bound = series.label("le");
      actor.buckets[bound == "+Inf" ? std::numeric_limits<double>::infinity() : std::strtod(bound.c_str(), nullptr)] +=
        series.value;
    }
  }
  // What is held under a name that no actor has (the credit of all Differs) is a line of its own.
  return actors;
}

std::string duration(double seconds) {
  if (std::isinf(seconds))
    return "longer";
  constexpr std::array<std::pair<double, const char*>, 3> units{{{1e-6, "us"}, {1e-3, "ms"}, {1, "s"}}};
  std::size_t unit = 0;
  while (unit + 1 < units.size() && seconds >= 1000 * units[unit].first)
    ++unit;
  return replay::three_digits(seconds / units[unit].first) + units[unit].second;
}

/// "<=2.10ms"; "-" where nothing was timed.
std::string quantile(const Actor& actor, double share) {
  if (actor.buckets.empty() || actor.buckets.rbegin()->second == 0)
    return "-";
  const double wanted = share * actor.buckets.rbegin()->second;
  for (const auto& [bound, count] : actor.buckets)
    if (count >= wanted)
      return duration(bound);
  return "-";
}

std::string bytes(double amount) {
  return replay::short_bytes(static_cast<std::uint64_t>(std::max(0.0, amount)));
}

/// What an actor did in the time that counts.
struct Activity {
  double seconds = 0, busy = 0, blocked = 0, messages = 0, bytes = 0;
};

Activity activity_of(const Who& who, const Actor& actor, const Scrape& now, const Scrape* before,
                     const Actors& earlier) {
  const auto found = earlier.find(who);
  // A session that began since: from its start.
  if (before == nullptr || found == earlier.end() || found->second.start != actor.start)
    return {now.at_s - actor.start, actor.busy, actor.blocked.value_or(0), actor.messages, actor.bytes};
  const Actor& then = found->second;
  return {now.at_s - before->at_s, actor.busy - then.busy, actor.blocked.value_or(0) - then.blocked.value_or(0),
          actor.messages - then.messages, actor.bytes - then.bytes};
}

std::string actor_row(const Who& who, const Actor& actor, const Activity& did) {
  const double seconds = std::max(did.seconds, 1e-9);
  const bool acts = actor.start > 0;
  const double busy = std::clamp(did.busy / seconds, 0.0, 1.0);
  const double blocked = std::clamp(did.blocked / seconds, 0.0, 1.0 - busy);
  std::string held = "-";
  if (actor.held)
    held = fmt::format("{}{}{}", bytes(*actor.held), actor.cap ? fmt::format("/{}", bytes(*actor.cap)) : "",
                       actor.held_peak ? fmt::format(" ({})", bytes(*actor.held_peak)) : "");
  return fmt::format("{:6} {:>3} {:14} {:7} {:>5} {:>7} {:>7} {:>7} {:>8} {:>10} {:>8} {:>8}  {}\n",
                     who.side == 0 ? "rank" : "worker", who.index, who.actor,
                     !acts           ? "-"
                     : actor.running ? "running"
                                     : "ended",
                     acts ? fmt::format("{:.0f}%", 100 * busy) : "-",
                     acts ? fmt::format("{:.0f}%", 100 * (1 - busy - blocked)) : "-",
                     acts && actor.blocked ? fmt::format("{:.0f}%", 100 * blocked) : "-",
                     acts ? fmt::format("{:.0f}/{:.0f}", actor.mailbox, actor.mailbox_peak) : "-",
                     acts ? replay::three_digits(did.messages / seconds) : "-",
                     acts ? bytes(did.bytes / seconds) + "/s" : "-", quantile(actor, 0.5), quantile(actor, 0.99), held);
}

struct Worker {
  std::optional<double> version, lag, pause, digest, served;
  double joins = 0;
  std::string state;
};

std::string workers_table(const Scrape& scrape) {
  std::map<int, Worker> workers;
  for (const Series& series : scrape.series) {
    const std::string& index = series.label("worker");
    if (index.empty() || index.size() > 9 || index.find_first_not_of("0123456789") != std::string::npos)
      continue;
    Worker& worker = workers[std::stoi(index)];
    if (series.name == "deltawire_worker_version")
      worker.version = series.value;
    else if (series.name == "deltawire_worker_lag")
      worker.lag = series.value;
    else if (series.name == "deltawire_worker_pause_seconds")
      worker.pause = series.value;
    else if (series.name == "deltawire_worker_digest_ok")
      worker.digest = series.value;
    else if (series.name == "deltawire_worker_joins_total")
      worker.joins = series.value;
    else if (series.name == "deltawire_served_version")
      worker.served = series.value;
    else if (series.name == "deltawire_worker_state" && series.value == 1)
      worker.state = series.label("state");
  }
  if (workers.empty())
    return "";
  std::string text = fmt::format("\n{:6} {:>8} {:>5} {:10} {:>8} {:6} {:>8}\n", "worker", "version", "lag", "state",
                                 "pause", "digest", "restarts");
  for (const auto& [index, worker] : workers) {
    const auto whole = [](std::optional<double> value) { return value ? fmt::format("{:.0f}", *value) : "-"; };
    text += fmt::format("{:>6} {:>8} {:>5} {:10} {:>8} {:6} {:>8}\n", index,
                        whole(worker.version ? worker.version : worker.served), whole(worker.lag),
                        worker.state.empty() ? "-" : worker.state, worker.pause ? duration(*worker.pause) : "-",
                        !worker.digest        ? "-"
                        : *worker.digest == 1 ? "ok"
                                              : "not ok",
                        worker.version ? whole(worker.joins) : "-");
  }
  return text;
}

/// The value of a series that only the root has.
std::optional<double> of_root(const Scrape& scrape, const std::string& name) {
  for (const Series& series : scrape.series)
    if (series.name == name)
      return series.value;
  return std::nullopt;
}

std::string update_line(const Scrape& scrape) {
  const auto version = of_root(scrape, "deltawire_version");
  if (!version)
    return "no update yet\n\n";
  double warnings = 0;
  for (const Series& series : scrape.series)
    warnings += series.name == "deltawire_warnings_total" ? series.value : 0;
  return fmt::format("version {:.0f}, last update: density {}, {} on the wire{}\n\n", *version,
                     replay::percent(of_root(scrape, "deltawire_update_density").value_or(0), 1),
                     bytes(of_root(scrape, "deltawire_update_wire_bytes").value_or(0)),
                     warnings > 0 ? fmt::format("; {:.0f} warning{} (see the log)", warnings, warnings == 1 ? "" : "s")
                                  : "");
}

} // namespace

std::string view(const Scrape& now, const Scrape* before) {
  const Actors actors = actors_of(now);
  const Actors earlier = before != nullptr ? actors_of(*before) : Actors{};
  std::string text = update_line(now);
  text +=
    fmt::format("{:10} {:14} {:7} {:>5} {:>7} {:>7} {:>7} {:>8} {:>10} {:>8} {:>8}  {}\n", "", "actor", "state", "busy",
                "waiting", "blocked", "mailbox", "msg/s", "bytes in", "p50", "p99", "in flight/cap (most)");
  for (const auto& [who, actor] : actors)
    text += actor_row(who, actor, activity_of(who, actor, now, before, earlier));
  return text + workers_table(now);
}

} // namespace deltawire::top
