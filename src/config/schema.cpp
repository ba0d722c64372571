#include "config/schema.hpp"

#include <algorithm>
#include <array>

namespace deltawire::config {

namespace {

using Kind = ValueKind;
using enum Reader;

constexpr std::array<std::string_view, 2> seeds{"always", "if-different"};
constexpr std::array<std::string_view, 2> busies{"wait", "fold"};
constexpr std::array<std::string_view, 3> tiers{"auto", "host", "device"};
constexpr std::array<std::string_view, 2> threads{"pool", "detached"};
constexpr std::array<std::string_view, 4> transports{"auto", "inproc", "tcp", "shm"};
constexpr std::array<std::string_view, 7> positions{"auto", "u8", "u16", "rice", "bitmap", "run", "dense"};
constexpr std::array<std::string_view, 3> values{"auto", "raw", "ulp"};
constexpr std::array<std::string_view, 2> compressions{"none", "zstd"};
constexpr std::array<std::string_view, 3> routes{"auto", "broadcast", "rank-local"};
constexpr std::array<std::string_view, 1> overflows{"fail"};
constexpr std::array<std::string_view, 4> wire_dtypes{"keep", "bfloat16", "float16", "float32"};

constexpr std::array<Later, 1> later_tiers{
  {{"pinned", "snapshots are in the host's pageable memory, or in the GPU's", "0.1.0"}}};
constexpr std::array<Later, 2> later_transports{{
  {"nccl", "trainers' changes are in host memory and go over tcp", "0.1.0"},
  {"cuda-ipc", "workers' weights are in host memory", "0.1.0"},
}};
constexpr std::array<Later, 1> later_compressions{{{"lz4", "zstd is the one compressor", "0.1.0"}}};
constexpr std::array<Later, 1> later_overflows{
  {{"in-place", "an update that does not fit actors.applier.stage is refused", "0.1.0"}}};

constexpr Refusal no_affinity{Code::unsupported, "not supported yet: Differs run where the system schedules them",
                              "0.1.0"};
constexpr Refusal no_map_on{Code::unsupported,
                            "not supported yet: `on` belongs to a placement, and holds for all maps of its parameter",
                            "0.1.0"};
constexpr Refusal trainers_wire_dtype{Code::invalid_topology,
                                      "belongs to a [[trainer.placement]]: it says what the trainer sends", ""};

constexpr std::string_view axis_lists = "`{ ep = [\"dp\", \"tp\"] }`";
constexpr std::string_view axis_numbers = "`{ tp = [2, 3] }`";

// In a row: table, key, what it is set to (and how that is written), default, who acts on it, meaning.
constexpr Key keys[] = {
  {"", "include", Kind::other, "`[\"other.toml\"]`", "[]", all,
   "Files that are read too, relative to this one; tables merge, and arrays of tables go on"},

  {"*", "mesh", Kind::other, "`[[\"fsdp\", 4]]`", "[]", all,
   "Axes of the side's processes, outermost first; a worker axis \"dp\" in front counts replicas"},
  {"*", "axes", Kind::other, axis_lists, "{}", side, "Joined axes for all placements and maps of the side"},
  {"worker", "unused", Kind::texts, "", "[]", root_and_workers,
   "Patterns of slots that no worker reads; the name of one that is read is an error"},

  {"*.placement", "parameter", Kind::text, "", "", side, "Pattern; the first placement that matches counts", true},
  {"*.placement", "shard", Kind::texts, "", "", side, "Cuts in order, see below; `[]`: whole on every process", true},
  {"*.placement", "sizes", Kind::other, axis_numbers, "{}", side, "Declared pieces of an axis, in place of equal ones"},
  {"*.placement", "axes", Kind::other, axis_lists, "{}", side, "Joined axes for this rule"},
  {"*.placement", "on", Kind::other, "`{ pp = [0] }`", "{}", side,
   "Coordinates that hold the parameter; an axis that is not named: all"},
  {"trainer.placement", "wire_dtype", Kind::choice, "", "", ranks, "In place of `update.wire_dtype`", false, false,
   wire_dtypes},
  {.table = "worker.placement", .key = "wire_dtype", .refusal = &trainers_wire_dtype},

  {"*.map", "parameter", Kind::text, "", "", side, "Pattern; all maps that match a parameter apply together", true},
  {"*.map", "slot", Kind::text, "", "", side, "The slot, which may compute; none: of the parameter's name"},
  {"*.map", "view", Kind::text, "", "", side, "Splits dims of the parameter"},
  {"*.map", "slice", Kind::text, "", "", side, "Takes a part of each viewed dim"},
  {"*.map", "transpose", Kind::flag, "", "false", side, "Swaps the last two dims"},
  {"*.map", "permute", Kind::other, "`[1, 2, 0]`", "", side, "Reorders kept dims"},
  {"*.map", "slot_view", Kind::text, "", "", side, "As `view`, of the slot"},
  {"*.map", "slot_slice", Kind::text, "", "", side, "As `slice`, of the slot; items may compute"},
  {"*.map", "shard", Kind::texts, "", "", side, "Cuts of the map's own, in place of the parameter's by-slice cuts"},
  {"*.map", "sizes", Kind::other, axis_numbers, "{}", side, "As in a placement, of the map's own `shard`"},
  {"*.map", "axes", Kind::other, axis_lists, "{}", side, "As in a placement, of the map's own `shard`"},
  {.table = "*.map", .key = "on", .refusal = &no_map_on},

  {"*.parameter", "name", Kind::text, "", "", side, "Pattern", true},
  {"*.parameter", "shape", Kind::other, "`[152064, 1024]`", "", side,
   "Full shape; on a worker where maps do not tell it, on a trainer checked"},
  {"*.parameter", "padding", Kind::flag, "", "false", side,
   "Elements that no map covers never travel and keep their bits"},

  {"transport", "master", Kind::other, "\"host:port\"", "\"\"", all,
   "Where rank 0 listens; `\"\"`: `DELTAWIRE_MASTER`, else `MASTER_ADDR` with port 29717", false, true},
  {"transport", "secret_file", Kind::other, "path", "\"\"", all,
   "Encrypts every TCP connection; required where `master` is not loopback; not used by `\"shm\"`", false, true},

  {"update", "wire_dtype", Kind::choice, "", "\"keep\"", ranks,
   "What the trainer's floating-point parameters are cast to before they are compared and sent", false, false,
   wire_dtypes},
  {"update", "seed", Kind::choice, "", "\"always\"", root,
   "`\"if-different\"`: a worker that holds the values already is not sent them", false, false, seeds},
  {"update", "verify", Kind::other, "`\"off\"`, `\"digest\"` or `\"audit:K\"`", "\"digest\"", all,
   "`\"audit:K\"`: digests, and all memory read again every K updates"},
  {"update", "connect", Kind::duration, "", "\"60s\"", all, "For every rank and worker to be there"},
  {"update", "reconnect", Kind::duration, "", "", workers,
   "How long a worker whose trainer is gone waits for the next one; none: it fails with it", false, true},
  {"update", "stall", Kind::duration, "", "\"20s\"", all,
   "How long a peer may make no progress: a worker is left out, a rank ends the session"},
  {"update", "engine", Kind::duration, "", "\"60s\"", root,
   "For an engine to pause, or to poll and commit; where it is shorter than `stall`, that holds"},
  {"update", "timeout", Kind::duration, "", "\"10min\"", ranks, "A whole update; longer than `stall` and `engine`"},
  {"update", "busy", Kind::choice, "", "\"wait\"", ranks,
   "What a `publish()` does while the snapshot is still needed: wait, or fold that update into its own", false, false,
   busies},
  {"update", "quorum", Kind::other, "`\"all\"` or a number", "\"all\"", root,
   "Replicas that must have staged an update before its commit; all: those that do not fail, at least one"},

  {"actors.snapshotter", "tier", Kind::choice, "", "\"auto\"", ranks,
   "Where snapshots of parameters on a GPU are: its memory or the host's; auto: the GPU's where it has room", false,
   false, tiers, later_tiers},
  {"actors.snapshotter", "log", Kind::cap, "", "\"256MiB\"", ranks,
   "Positions of earlier captures, for workers that are behind; beyond it they are seeded"},
  {"actors.differ", "count", Kind::other, "1 to 1024", "2", ranks, "Differs on each rank"},
  {"actors.differ", "chunk", Kind::size, "", "\"16MiB\"", ranks, "What a Differ compares at a time"},
  {"actors.differ", "inflight", Kind::cap, "", "\"256MiB\"", ranks,
   "Encoded changes that a rank holds; the rest is encoded from its log as these leave"},
  {"actors.differ", "thread", Kind::choice, "", "\"pool\"", ranks,
   "The process's pool, or a thread of its own for each Differ", false, false, threads},
  {.table = "actors.differ", .key = "affinity", .refusal = &no_affinity},
  {"actors.gather_queue", "transport", Kind::choice, "", "\"auto\"", ranks,
   "Between ranks; `\"inproc\"`: they share a process, `\"shm\"`: a host; auto: tcp", false, false, transports,
   later_transports},
  {"actors.gather_queue", "window", Kind::cap, "", "\"256MiB\"", root,
   "Source bytes of parameters that are gathered in one go; a flush may end with it"},
  {"actors.gather_queue", "max_round", Kind::cap, "", "\"64MiB\"", ranks, "A gather's bytes, over all ranks"},
  {"actors.flush_bucket", "cap", Kind::cap, "", "\"256MiB\"", ranks, "The largest flush, header included"},
  {"actors.flush_bucket", "positions", Kind::choice, "", "\"auto\"", ranks,
   "How positions are written wherever it can be; auto: the smallest for each tile", false, false, positions},
  {"actors.flush_bucket", "values", Kind::choice, "", "\"auto\"", ranks,
   "`\"raw\"`: never as differences; `\"ulp\"` is what auto does: where that is smaller", false, false, values},
  {"actors.flush_bucket", "compression", Kind::choice, "", "\"none\"", ranks,
   "zstd: seeds of bf16 weights get a fifth smaller and raw values some, differences do not", false, false,
   compressions, later_compressions},
  {"actors.sender", "transport", Kind::choice, "", "\"auto\"", root_and_workers,
   "From the root to workers; `\"inproc\"`: they share a process, `\"shm\"`: a host; auto: tcp", false, false,
   transports, later_transports},
  {"actors.sender", "route", Kind::choice, "", "\"auto\"", root,
   "`\"rank-local\"`: a worker is sent what its shards meet; `\"broadcast\"`: everything; auto: rank-local", false,
   false, routes},
  {"actors.applier", "stage", Kind::cap, "", "\"512MiB\"", workers,
   "Decoded changes that a worker holds until the commit; an update of more is refused"},
  {"actors.applier", "overflow", Kind::choice, "", "\"fail\"", workers,
   "What becomes of an update of more than `stage`: it is refused", false, false, overflows, later_overflows},

  {"telemetry", "trace", Kind::text, "", "", all, "File for trace events", false, true},
  {"telemetry", "flushes", Kind::text, "", "", root, "Folder for every flush, for `deltawire inspect`", false, true},
  {"telemetry", "prometheus", Kind::other, "\"host:port\"", "", all,
   "Where metrics are served; each process adds its index to the port", false, true},
};

/// "`"a"`, `"b"` or `"c"`"
std::string or_list(std::span<const std::string_view> names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += fmt::format("{}`\"{}\"`", i == 0 ? "" : i + 1 == names.size() ? " or " : ", ", names[i]);
  return text;
}

constexpr std::array<std::string_view, 2> sides{"trainer", "worker"};

/// The tables that a row's table stands for.
std::vector<std::string> tables_of(std::string_view row) {
  if (!row.starts_with('*'))
    return {std::string(row)};
  std::vector<std::string> tables;
  for (const std::string_view side : sides)
    tables.push_back(fmt::format("{}{}", side, row.substr(1)));
  return tables;
}

std::string markdown_row(const Key& key) {
  const std::string fallback = key.required           ? "required"
                               : key.fallback.empty() ? ""
                                                      : fmt::format("`{}`", key.fallback);
  return fmt::format("| `{}` | {} | {} | {} | {} |\n", full_name(key), value_text(key), fallback, to_string(key.reader),
                     key.meaning);
}

std::string refused_row(const std::string& what, std::string_view why, std::string_view since) {
  return fmt::format("| {} | {} | {} |\n", what, since, why);
}

} // namespace

std::string_view to_string(Reader reader) noexcept {
  switch (reader) {
  case Reader::all:
    return "all";
  case Reader::side:
    return "its side";
  case Reader::ranks:
    return "ranks";
  case Reader::root:
    return "root";
  case Reader::workers:
    return "workers";
  case Reader::root_and_workers:
    break;
  }
  return "root, workers";
}

std::span<const Key> all_keys() noexcept {
  return keys;
}

bool is_table(std::string_view row, std::string_view path) noexcept {
  if (!row.starts_with('*'))
    return row == path;
  return std::any_of(sides.begin(), sides.end(), [&](std::string_view side) {
    return path.starts_with(side) && path.substr(side.size()) == row.substr(1);
  });
}

const Key* find_key(std::string_view path, std::string_view key) noexcept {
  const auto found = std::find_if(std::begin(keys), std::end(keys),
                                  [&](const Key& row) { return row.key == key && is_table(row.table, path); });
  return found == std::end(keys) ? nullptr : &*found;
}

std::vector<std::string> known_in(std::string_view path) {
  std::vector<std::string> known;
  for (const Key& row : keys)
    if (is_table(row.table, path))
      known.emplace_back(row.key);
  const std::string inside = path.empty() ? "" : fmt::format("{}.", path);
  for (const Key& row : keys)
    for (const std::string& table : tables_of(row.table)) {
      if (!table.starts_with(inside) || table.size() == inside.size())
        continue;
      std::string child = table.substr(inside.size(), table.find('.', inside.size()) - inside.size());
      if (std::find(known.begin(), known.end(), child) == known.end())
        known.push_back(std::move(child));
    }
  return known;
}

std::string full_name(const Key& key) {
  return key.table.empty() ? std::string(key.key) : fmt::format("{}.{}", key.table, key.key);
}

std::string value_text(const Key& key) {
  switch (key.kind) {
  case ValueKind::size:
    return "size";
  case ValueKind::cap:
    return "size or `\"unlimited\"`";
  case ValueKind::duration:
    return "duration";
  case ValueKind::text:
    return "text";
  case ValueKind::texts:
    return "list of texts";
  case ValueKind::flag:
    return "`true` or `false`";
  case ValueKind::choice:
    return or_list(key.choices);
  case ValueKind::other:
    break;
  }
  return std::string(key.form);
}

std::string keys_markdown() {
  std::string text = "| key | value | default | for | what |\n|---|---|---|---|---|\n";
  std::string own;
  for (const Key& key : keys) {
    if (key.refusal != nullptr)
      continue;
    text += markdown_row(key);
    if (key.own)
      own += fmt::format("{}`{}`", own.empty() ? "" : ", ", full_name(key));
  }
  text += fmt::format("\nAll processes of a session must agree on every key but these: {}.\n", own);
  text += "\n| refused by name | since | why |\n|---|---|---|\n";
  for (const Key& key : keys) {
    if (key.refusal != nullptr)
      text += refused_row(fmt::format("`{}`", full_name(key)), key.refusal->message, key.refusal->since);
    for (const Later& later : key.later)
      text += refused_row(fmt::format("`{} = \"{}\"`", full_name(key), later.value), later.why, later.since);
  }
  return text;
}

} // namespace deltawire::config
