// Contract: src/config/schema.hpp. Every key of the schema is one of the parser's and has an effect or is refused; the
// parser has no other; README's tables are the schema. What a key does in a running session is shown elsewhere: each
// example below says where, and must be right about that.
#include "config/schema.hpp"

#include "catch.hpp"
#include "config_files.hpp"
#include "layout/wire_dtype.hpp"
#include "text_matchers.hpp"

#include <map>
#include <set>
#include <sstream>

namespace deltawire::config {

using test::contains;

namespace {

/// `value` in a table of its own has another meaning than `other`, or than nothing where that is empty. `beside` are
/// lines that the table needs besides.
struct Example {
  std::string key;
  std::string beside;
  std::string value;
  std::string other;
  std::string shown_in; ///< a file of tests/
  std::string as;       ///< what that file says
};

const std::string whole = "parameter = \"*\"\nshard = []\n";
const std::string cut = "parameter = \"*\"\nshard = [\"a:0\"]\n";
const std::string any = "parameter = \"*\"\n";
const std::string named = "name = \"*\"\n";

// clang-format off: a table
const std::vector<Example> examples{
  {"include", "", R"(["other.toml"])", "", "unit/config_include_test.cpp",
   "includes are relative to the including file"},
  {"*.mesh", "", R"([["a", 2]])", "", "scenarios/trainer_replicas.toml", "mesh = "},
  {"*.axes", "", R"({ a = ["b", "c"] })", "", "scenarios/joined_axes.toml", "axes = "},
  {"worker.unused", "", R"(["a"])", "", "scenarios/unused_slots.toml", "unused = "},
  {"*.placement.parameter", "shard = []\n", R"("a")", R"("b")", "scenarios/inner_dims.toml", "placement]]"},
  {"*.placement.shard", any, R"(["a:0"])", "[]", "scenarios/inner_dims.toml", "shard = "},
  {"*.placement.sizes", cut, "{ a = [1, 2] }", "", "scenarios/uneven_sizes.toml", "sizes = "},
  {"*.placement.axes", cut, R"({ a = ["b"] })", "", "scenarios/joined_axes.toml", "axes = "},
  {"*.placement.on", cut, "{ a = [1] }", "", "scenarios/pipeline_stages.toml", "on = "},
  {"trainer.placement.wire_dtype", whole, R"("bfloat16")", "", "scenarios/drifting_master.toml", "wire_dtype = "},
  {"*.map.parameter", "", R"("a")", R"("b")", "scenarios/grouped_qkv.toml", "parameter = "},
  {"*.map.slot", any, R"("a")", "", "scenarios/grouped_qkv.toml", "slot = "},
  {"*.map.view", any, R"("[2, 3]")", "", "scenarios/grouped_qkv.toml", "view = "},
  {"*.map.slice", any, R"("[0:1]")", "", "scenarios/grouped_qkv.toml", "slice = "},
  {"*.map.transpose", any, "true", "", "scenarios/interleaved_gate_up.toml", "transpose = true"},
  {"*.map.permute", any, "[1, 0]", "", "scenarios/local_experts_of_a_stack.toml", "permute = "},
  {"*.map.slot_view", any, R"("[2, 3]")", "", "scenarios/fused_slot.toml", "slot_view = "},
  {"*.map.slot_slice", any, R"("[0:1]")", "", "scenarios/fused_slot.toml", "slot_slice = "},
  {"*.map.shard", any, R"(["a:0"])", "", "scenarios/own_cuts.toml", "shard = "},
  {"*.map.sizes", cut, "{ a = [1, 2] }", "", "unit/layout_placement_oracle_test.cpp", "sizes"},
  {"*.map.axes", cut, R"({ a = ["b"] })", "", "scenarios/own_cuts.toml", "axes = "},
  {"*.parameter.name", "", R"("a")", R"("b")", "scenarios/vocabulary_padding.toml", "name = "},
  {"*.parameter.shape", named, "[2, 3]", "", "scenarios/vocabulary_padding.toml", "shape = [16, 2]"},
  {"*.parameter.padding", named, "true", "", "scenarios/vocabulary_padding.toml", "padding = true"},
  {"transport.master", "", R"("127.0.0.1:29500")", "", "process/bad_input_test.cpp", "a port that is taken is named"},
  {"transport.secret_file", "", R"("job.secret")", "", "process/secret_test.cpp",
   "verified over encrypted connections"},
  {"update.wire_dtype", "", R"("bfloat16")", "", "scenarios/drifting_master.toml", "wire_dtype = "},
  {"update.seed", "", R"("if-different")", "", "pipeline/modes_test.cpp",
   "workers that start with the trainer's checkpoint are sent no values"},
  {"update.verify", "", R"("audit:3")", "", "pipeline/modes_test.cpp",
   "with audit:3 every third update reads everything"},
  {"update.connect", "", R"("7s")", "", "process/faults_test.cpp",
   "a worker that never comes is named by everybody when the connect deadline passes"},
  {"update.reconnect", "", R"("7s")", "", "sessions/sessions_test.cpp",
   "a worker that waits in vain says what it waited for"},
  {"update.stall", "", R"("7s")", "", "process/peers_test.cpp", "is named when the stall deadline passes"},
  {"update.engine", "", R"("7s")", "", "pipeline/poll_test.cpp",
   "an engine that stops polling is left out by that name"},
  {"update.timeout", "", R"("7min")", "", "actor/gather_test.cpp",
   "a rank that never captures the version is named at the update's deadline"},
  {"update.busy", "", R"("fold")", "", "pipeline/faults_test.cpp", "with busy = fold a publish does not wait"},
  {"update.quorum", "", "1", "", "pipeline/faults_test.cpp",
   "a quorum that is not reached undoes the update everywhere"},
  {"actors.snapshotter.tier", "", R"("device")", "", "pipeline/gpu_test.cpp",
   "snapshots go where the tier says, or where there is room, and a line says where"},
  {"actors.snapshotter.log", "", "7", "", "pipeline/faults_test.cpp",
   "logs that were cut short make a catch-up bring all values"},
  {"actors.differ.count", "", "7", "", "process/plan_test.cpp", "a real run has the actors of the plan"},
  {"actors.differ.chunk", "", "7", "", "pipeline/caps_test.cpp",
   "bits depend neither on caps nor on how many Differs work"},
  {"actors.differ.inflight", "", "7", "", "pipeline/caps_test.cpp", "no stage holds more than its cap"},
  {"actors.differ.thread", "", R"("detached")", "", "pipeline/scenarios_test.cpp", "Differs on threads of their own"},
  {"actors.gather_queue.transport", "", R"("inproc")", "", "process/bad_input_test.cpp",
   "a transport that does not fit the mode is refused"},
  {"actors.gather_queue.window", "", "7", "", "pipeline/scenarios_test.cpp", "actors.gather_queue.window=30B"},
  {"actors.gather_queue.max_round", "", "7", "", "pipeline/caps_test.cpp", "no stage holds more than its cap"},
  {"actors.flush_bucket.cap", "", "7", "", "pipeline/caps_test.cpp", "no stage holds more than its cap"},
  {"actors.flush_bucket.positions", "", R"("dense")", "", "process/replay_test.cpp",
   "how positions and values are written changes bytes, and no bit"},
  {"actors.flush_bucket.values", "", R"("raw")", "", "process/replay_test.cpp",
   "how positions and values are written changes bytes, and no bit"},
  {"actors.flush_bucket.compression", "", R"("zstd")", "", "process/replay_test.cpp",
   "compression makes a seed smaller"},
  {"actors.sender.transport", "", R"("inproc")", "", "process/bad_input_test.cpp",
   "a transport that does not fit the mode is refused"},
  {"actors.sender.route", "", R"("broadcast")", "", "process/routes_test.cpp",
   "rank-local routes carry each worker's share, broadcast carries everything"},
  {"actors.applier.stage", "", "7", "", "pipeline/caps_test.cpp", "a delivery larger than the stage is refused"},
  {"actors.applier.overflow", "", "", "", "", ""},
  {"telemetry.trace", "", R"("trace.json")", "", "process/telemetry_test.cpp",
   "every arrow of a trace that leaves a span enters one"},
  {"telemetry.flushes", "", R"("flushes")", "", "process/inspect_test.cpp", "every part of every flush is kept"},
  {"telemetry.prometheus", "", R"("127.0.0.1:0")", "", "process/telemetry_test.cpp",
   "a scrape during a replay agrees with its report"},
};
// clang-format on

bool is_array_of_tables(std::string_view table) {
  return table.ends_with(".placement") || table.ends_with(".map") || table.ends_with(".parameter");
}

/// The tables that a row is about: both sides' for "*".
std::vector<std::string> tables_of(const Key& key) {
  if (!key.table.starts_with('*'))
    return {std::string(key.table)};
  return {"trainer" + std::string(key.table.substr(1)), "worker" + std::string(key.table.substr(1))};
}

std::string heading_of(const std::string& table) {
  return table.empty() ? "" : is_array_of_tables(table) ? "[[" + table + "]]\n" : "[" + table + "]\n";
}

Result<Topology> load_with(const std::string& table, const std::string& lines) {
  TopologyFiles files;
  files.write("other.toml", "[update]\nstall = \"3s\"\n");
  files.write("t.toml", heading_of(table) + lines);
  return files.load();
}

/// Everything that a topology says.
std::string meaning_of(const Topology& t) {
  const std::string secret = t.transport.secret_file.empty() ? "" : "a secret"; // in a folder of the test's
  return fmt::format("{} {} {} {} {} {} {}", fingerprint(t), t.transport.master, secret, t.update.reconnect.count(),
                     t.telemetry.trace, t.telemetry.flushes, t.telemetry.prometheus);
}

std::string meaning_with(const std::string& table, const std::string& lines) {
  const auto loaded = load_with(table, lines);
  INFO("[" << table << "]\n" << lines);
  if (!loaded)
    FAIL(loaded.error().message);
  return meaning_of(*loaded);
}

const Example* example_of(const Key& key) {
  for (const Example& example : examples)
    if (example.key == full_name(key))
      return &example;
  return nullptr;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string line(const Key& key, std::string_view value) {
  return value.empty() ? "" : fmt::format("{} = {}\n", key.key, value);
}

bool is_refused(const Key& key, const std::string& table, const std::string& value) {
  const Example* example = example_of(key);
  const auto loaded = load_with(table, (example == nullptr ? "" : example->beside) + line(key, value));
  if (!loaded)
    CHECK_THAT(loaded.error().message, contains(std::string(key.key)));
  return !loaded;
}

} // namespace

TEST_CASE("every key of the schema changes what a topology means, on each table that has it") {
  std::set<std::string> seen;
  for (const Key& key : all_keys()) {
    CAPTURE(full_name(key));
    CHECK(seen.insert(full_name(key)).second);
    if (key.refusal != nullptr)
      continue;
    const Example* example = example_of(key);
    REQUIRE(example != nullptr);
    if (example->value.empty()) // it has one effect: see below
      continue;
    for (const std::string& table : tables_of(key)) {
#ifndef DELTAWIRE_HAS_ZSTD
      if (key.key == "compression")
        continue;
#endif
      CHECK(meaning_with(table, example->beside + line(key, example->value)) !=
            meaning_with(table, example->beside + line(key, example->other)));
    }
  }
  for (const Example& example : examples) {
    CAPTURE(example.key);
    CHECK(seen.contains(example.key));
  }
}

TEST_CASE("what a key does in a session is shown by a test") {
  for (const Example& example : examples) {
    CAPTURE(example.key, example.shown_in);
    if (!example.shown_in.empty())
      CHECK_THAT(text_of(std::string(DELTAWIRE_SOURCE_ROOT) + "/tests/" + example.shown_in), contains(example.as));
  }
}

TEST_CASE("a key that can be set to one thing only says the same whatever it is set to, and refuses the rest") {
  std::vector<std::string> found;
  for (const Key& key : all_keys()) {
    if (key.refusal != nullptr || !example_of(key)->value.empty())
      continue;
    found.push_back(full_name(key));
    CHECK_FALSE(key.later.empty()); // else it would not be there
    for (const std::string_view choice : key.choices)
      CHECK(meaning_with(tables_of(key).front(), line(key, fmt::format("\"{}\"", choice))) ==
            meaning_with(tables_of(key).front(), ""));
  }
  CHECK(found == std::vector<std::string>{"actors.applier.overflow"});
}

TEST_CASE("defaults are what a file without the key means") {
  for (const Key& key : all_keys()) {
    if (key.refusal != nullptr || key.fallback.empty())
      continue;
    CAPTURE(full_name(key), key.fallback);
    CHECK_FALSE(key.required);
    for (const std::string& table : tables_of(key))
      CHECK(meaning_with(table, example_of(key)->beside + line(key, key.fallback)) ==
            meaning_with(table, example_of(key)->beside));
  }
}

TEST_CASE("required keys are missed, and no others") {
  for (const Key& key : all_keys()) {
    if (key.refusal != nullptr)
      continue;
    CAPTURE(full_name(key));
    for (const std::string& table : tables_of(key)) {
      std::string rest = example_of(key)->beside;
      const auto loaded = load_with(table, rest);
      CHECK(loaded.has_value() == !key.required);
      if (!loaded)
        CHECK_THAT(loaded.error().message, contains(table + "." + std::string(key.key) + ": is missing"));
    }
  }
}

TEST_CASE("processes may differ in the keys that the schema says, and in no other") {
  for (const Key& key : all_keys()) {
    const Example* example = key.refusal == nullptr ? example_of(key) : nullptr;
    if (example == nullptr || example->value.empty())
      continue;
    CAPTURE(full_name(key));
    for (const std::string& table : tables_of(key)) {
#ifndef DELTAWIRE_HAS_ZSTD
      if (key.key == "compression")
        continue;
#endif
      const auto with = load_with(table, example->beside + line(key, example->value));
      const auto without = load_with(table, example->beside + line(key, example->other));
      REQUIRE(with);
      REQUIRE(without);
      CHECK((fingerprint(*with) == fingerprint(*without)) == key.own);
    }
  }
}

TEST_CASE("every key takes what its kind says, and refuses the rest by name") {
  const std::map<ValueKind, std::vector<std::string>> refused{
    {ValueKind::size, {"0", "-1", "\"0B\"", "\"unlimited\"", "\"7\"", "true", "[]"}},
    {ValueKind::cap, {"0", "-1", "\"0B\"", "\"7\"", "true", "[]"}},
    {ValueKind::duration, {"7", "\"7\"", "\"0s\"", "\"-1s\"", "\"500d\"", "true"}},
    {ValueKind::text, {"\"\"", "7", "[]", "true"}},
    {ValueKind::texts, {"\"a\"", "[\"\"]", "[7]"}},
    {ValueKind::flag, {"\"true\"", "1"}},
    {ValueKind::choice, {"\"\"", "\"nonsense\"", "7", "[\"auto\"]"}},
    {ValueKind::other, {"true", "\"nonsense\"", "0", "{ a = 1 }"}},
  };
  for (const Key& key : all_keys()) {
    if (key.refusal != nullptr || full_name(key) == "transport.secret_file") // any text may be a path
      continue;
    CAPTURE(full_name(key));
    CHECK((key.kind == ValueKind::other) == !key.form.empty());
    CHECK((key.kind == ValueKind::choice) == !key.choices.empty());
    for (const std::string& table : tables_of(key)) {
      for (const std::string& value : refused.at(key.kind)) {
        CAPTURE(value);
        CHECK(is_refused(key, table, value));
      }
      if (key.kind == ValueKind::cap)
        CHECK_FALSE(is_refused(key, table, "\"unlimited\""));
      for (const std::string_view choice : key.choices) {
#ifndef DELTAWIRE_HAS_ZSTD
        if (choice == "zstd")
          continue;
#endif
        CHECK_FALSE(is_refused(key, table, fmt::format("\"{}\"", choice)));
      }
    }
  }
  CHECK_FALSE(is_refused(*find_key("actors.differ", "count"), "actors.differ", "1024"));
  CHECK(is_refused(*find_key("actors.differ", "count"), "actors.differ", "1025"));
}

TEST_CASE("what is refused by name says why and what to use, with a code of its own") {
  int refused = 0;
  for (const Key& key : all_keys())
    for (const std::string& table : tables_of(key)) {
      CAPTURE(table, full_name(key));
      const Example* example = example_of(key);
      const std::string beside = key.refusal == nullptr ? example->beside : is_table("*.map", table) ? any : whole;
      if (key.refusal != nullptr) {
        const auto loaded = load_with(table, (is_array_of_tables(table) ? beside : "") + line(key, "[1]"));
        REQUIRE_FALSE(loaded);
        CHECK(loaded.error().code == key.refusal->code);
        CHECK_THAT(loaded.error().message, contains(fmt::format("{}.{}: {}", table, key.key, key.refusal->message)));
        CHECK((key.refusal->code == Code::unsupported) == !key.refusal->since.empty());
        ++refused;
      }
      for (const Later& later : key.later) {
        const auto loaded = load_with(table, beside + line(key, fmt::format("\"{}\"", later.value)));
        REQUIRE_FALSE(loaded);
        CHECK(loaded.error().code == Code::unsupported);
        CHECK_THAT(loaded.error().message, contains(fmt::format("\"{}\" is not supported yet; use", later.value)));
        CHECK_THAT(loaded.error().message, contains(std::string(later.why)));
        CHECK_FALSE(later.since.empty());
        ++refused;
      }
    }
  CHECK(refused >= 10);
}

TEST_CASE("a key that no table of the schema has is refused in every table") {
  std::set<std::string> tables;
  for (const Key& key : all_keys())
    for (const std::string& table : tables_of(key))
      tables.insert(table);
  CHECK(tables.size() >= 17);
  for (const std::string& table : tables) {
    CAPTURE(table);
    const std::string beside = table.ends_with(".parameter") ? named : is_array_of_tables(table) ? whole : "";
    const auto loaded = load_with(table, beside + "nonsense_of_ours = 1\n");
    REQUIRE_FALSE(loaded);
    CHECK(loaded.error().code == Code::invalid_topology);
    CHECK_THAT(loaded.error().message,
               contains((table.empty() ? "" : table + ".") + std::string("nonsense_of_ours: unknown key")));
  }
}

TEST_CASE("a cast goes by the names of the schema") {
  for (const std::string_view name : find_key("update", "wire_dtype")->choices)
    CHECK(layout::wire_dtype_from_name(name).has_value());
}

TEST_CASE("README's tables of keys are the schema") {
  const std::string readme = text_of(std::string(DELTAWIRE_SOURCE_ROOT) + "/README.md");
  INFO("README.md must hold, as `deltawire keys --markdown` prints it:\n" << keys_markdown());
  CHECK(readme.find(keys_markdown()) != std::string::npos);
}

} // namespace deltawire::config
