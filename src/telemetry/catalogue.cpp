#include "telemetry/catalogue.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace deltawire::telemetry {

namespace family {

constexpr double nanoseconds = 1e-9;
constexpr double millionths = 1e-6;

const Family actor_running{"deltawire_actor_running", Kind::gauge, "actor", "1 while the actor runs, 0 once it ended"};
const Family actor_start_time{"deltawire_actor_start_time_seconds", Kind::gauge, "actor",
                              "When the actor started, since the Unix epoch", nanoseconds};
const Family actor_busy{"deltawire_actor_busy_seconds_total", Kind::counter, "actor",
                        "Time spent in message handlers; what is neither this nor blocked was waiting for work",
                        nanoseconds};
const Family actor_blocked{"deltawire_actor_blocked_seconds_total", Kind::counter, "actor",
                           "Time between messages with work at hand that waited for byte credit: of the snapshotter, "
                           "gather queue and flush bucket",
                           nanoseconds};
const Family actor_errors{"deltawire_actor_errors_total", Kind::counter, "actor",
                          "Handlers that threw, which ends the actor"};
const Family mailbox_length{"deltawire_mailbox_length", Kind::gauge, "actor",
                            "Messages that waited when the last one was handled"};
const Family mailbox_length_high_water{"deltawire_mailbox_length_high_water", Kind::gauge, "actor",
                                       "The most messages that ever waited"};
const Family messages{"deltawire_messages_total", Kind::counter, "actor, message", "Messages handled"};
const Family message_seconds{"deltawire_message_seconds", Kind::histogram, "actor, message",
                             "How long a message was handled, by powers of two", nanoseconds};
const Family message_bytes{"deltawire_message_bytes_total", Kind::counter, "actor, message",
                           "Payload bytes that came to the actor in messages"};
const Family held_bytes{"deltawire_held_bytes", Kind::gauge, "actor", "Bytes in flight that the actor's credit covers"};
const Family held_bytes_high_water{"deltawire_held_bytes_high_water", Kind::gauge, "actor",
                                   "The most bytes in flight at once in the session"};
const Family cap_bytes{"deltawire_cap_bytes", Kind::gauge, "actor",
                       "Credit granted in all: the cap of held bytes by the topology; absent where unlimited"};
const Family connection_sent_bytes{"deltawire_connection_sent_bytes_total", Kind::counter, "channel",
                                   "Bytes handed to connections, framing included"};
const Family connection_received_bytes{"deltawire_connection_received_bytes_total", Kind::counter, "channel",
                                       "Bytes received from connections, framing included"};

const Family captures{"deltawire_captures_total", Kind::counter, "", "Captures that this rank completed"};
const Family captured_changes{"deltawire_captured_changes_total", Kind::counter, "",
                              "Elements that this rank's captures found changed"};
const Family updates{"deltawire_updates_total", Kind::counter, "kind, result",
                     "Updates that ended: kind seed, delta or fold; result committed or failed"};
const Family version{"deltawire_version", Kind::gauge, "", "The newest committed version"};
const Family update_density{"deltawire_update_density", Kind::gauge, "",
                            "Changed elements of the last update, of all elements (0 to 1)", millionths};
const Family update_changed_elements{"deltawire_update_changed_elements", Kind::gauge, "",
                                     "Changed elements of the last update"};
const Family update_wire_bytes{"deltawire_update_wire_bytes", Kind::gauge, "",
                               "Bytes of the last update that left the root for all workers"};
const Family update_gather_bytes{"deltawire_update_gather_bytes", Kind::gauge, "",
                                 "Bytes of the last update that reached the root from other ranks"};
const Family update_phase_seconds{"deltawire_update_phase_seconds", Kind::gauge, "phase",
                                  "Span of a phase of the last update, over all processes", nanoseconds};
const Family update_captured_seconds{"deltawire_update_captured_seconds", Kind::gauge, "",
                                     "From publish() to the last rank's capture, last update", nanoseconds};
const Family update_committed_seconds{"deltawire_update_committed_seconds", Kind::histogram, "",
                                      "From publish() to the last worker's release", nanoseconds};
const Family update_pause_seconds{"deltawire_update_pause_seconds", Kind::histogram, "",
                                  "The longest pause of any worker in an update", nanoseconds};
const Family changed_elements{"deltawire_changed_elements_total", Kind::counter, "",
                              "Changed elements of all updates; all elements for a seed"};
const Family wire_bytes{"deltawire_wire_bytes_total", Kind::counter, "", "Bytes that left the root for all workers"};
const Family gather_bytes{"deltawire_gather_bytes_total", Kind::counter, "",
                          "Bytes that reached the root from other ranks"};
const Family worker_version{"deltawire_worker_version", Kind::gauge, "worker", "What the worker holds, by the root"};
const Family worker_lag{"deltawire_worker_lag", Kind::gauge, "worker",
                        "Committed versions that the worker has not got yet, by the root"};
const Family worker_state{"deltawire_worker_state", Kind::gauge, "worker, state",
                          "1 for the state that the worker is in, by the root"};
const Family worker_pause_seconds{"deltawire_worker_pause_seconds", Kind::gauge, "worker",
                                  "The worker's pause in the last update", nanoseconds};
const Family worker_digest_ok{"deltawire_worker_digest_ok", Kind::gauge, "worker",
                              "1 where the digests read back in the last update were the trainer's"};
const Family worker_joins{"deltawire_worker_joins_total", Kind::counter, "worker",
                          "Times that the worker came (back) into the running session: restarted, or reconnected"};
const Family served_version{"deltawire_served_version", Kind::gauge, "", "What this worker serves, by itself"};
const Family commits{"deltawire_commits_total", Kind::counter, "", "Versions that this worker has committed"};
const Family reconnects{"deltawire_reconnects_total", Kind::counter, "",
                        "Times that this worker met a trainer again after it had lost one"};
const Family warnings{"deltawire_warnings_total", Kind::counter, "kind", "Warnings, each also a line of the log"};

} // namespace family

std::span<const Family* const> all_families() noexcept {
  namespace f = family;
  static const auto families = [] {
    std::array all{&f::actor_running,
                   &f::actor_start_time,
                   &f::actor_busy,
                   &f::actor_blocked,
                   &f::actor_errors,
                   &f::mailbox_length,
                   &f::mailbox_length_high_water,
                   &f::messages,
                   &f::message_seconds,
                   &f::message_bytes,
                   &f::held_bytes,
                   &f::held_bytes_high_water,
                   &f::cap_bytes,
                   &f::connection_sent_bytes,
                   &f::connection_received_bytes,
                   &f::captures,
                   &f::captured_changes,
                   &f::updates,
                   &f::version,
                   &f::update_density,
                   &f::update_changed_elements,
                   &f::update_wire_bytes,
                   &f::update_gather_bytes,
                   &f::update_phase_seconds,
                   &f::update_captured_seconds,
                   &f::update_committed_seconds,
                   &f::update_pause_seconds,
                   &f::changed_elements,
                   &f::wire_bytes,
                   &f::gather_bytes,
                   &f::worker_version,
                   &f::worker_lag,
                   &f::worker_state,
                   &f::worker_pause_seconds,
                   &f::worker_digest_ok,
                   &f::worker_joins,
                   &f::served_version,
                   &f::commits,
                   &f::reconnects,
                   &f::warnings};
    std::sort(all.begin(), all.end(), [](const Family* a, const Family* b) { return a->name < b->name; });
    return all;
  }();
  return families;
}

std::string families_table() {
  std::string text = "| metric | type | labels | what |\n|---|---|---|---|\n";
  for (const Family* family : all_families()) {
    const char* kind = family->kind == Kind::counter ? "counter" : family->kind == Kind::gauge ? "gauge" : "histogram";
    text += "| `" + std::string(family->name) + "` | " + kind + " | " + std::string(family->labels) + " | " +
            std::string(family->help) + " |\n";
  }
  return text;
}

} // namespace deltawire::telemetry
