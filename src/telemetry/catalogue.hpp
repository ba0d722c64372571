// Every family of metrics that deltawire exports. README's table is made of it, and a test keeps the two equal.
#pragma once

#include "telemetry/metrics.hpp"

#include <span>
#include <string>

namespace deltawire::telemetry::family {

// actors
extern const Family actor_running;
extern const Family actor_start_time;
extern const Family actor_busy;
extern const Family actor_blocked;
extern const Family actor_errors;
extern const Family mailbox_length;
extern const Family mailbox_length_high_water;
extern const Family messages;
extern const Family message_seconds;
extern const Family message_bytes;
extern const Family held_bytes;
extern const Family held_bytes_high_water;
extern const Family cap_bytes;
extern const Family connection_sent_bytes;
extern const Family connection_received_bytes;

// updates
extern const Family captures;
extern const Family captured_changes;
extern const Family updates;
extern const Family version;
extern const Family update_density;
extern const Family update_changed_elements;
extern const Family update_wire_bytes;
extern const Family update_gather_bytes;
extern const Family update_phase_seconds;
extern const Family update_captured_seconds;
extern const Family update_committed_seconds;
extern const Family update_pause_seconds;
extern const Family changed_elements;
extern const Family wire_bytes;
extern const Family gather_bytes;
extern const Family worker_version;
extern const Family worker_lag;
extern const Family worker_state;
extern const Family worker_pause_seconds;
extern const Family worker_digest_ok;
extern const Family worker_joins;
extern const Family served_version;
extern const Family commits;
extern const Family reconnects;
extern const Family warnings;

} // namespace deltawire::telemetry::family

namespace deltawire::telemetry {

/// All of the above, sorted by name.
[[nodiscard]] std::span<const Family* const> all_families() noexcept;

/// The README's table, in Markdown: a row a family.
[[nodiscard]] std::string families_table();

} // namespace deltawire::telemetry
