// The main job on real input: the small trace in tests/data through the whole pipeline, in one process and across
// processes.

#include "catch.hpp"
#include "checkpoint_files.hpp"
#include "command.hpp"

#include <nlohmann/json.hpp>

using namespace deltawire::test;
using nlohmann::json;

namespace {

constexpr int versions = 4;
constexpr int workers = 2;

std::vector<std::string> replay_of_trace(const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments{"replay", source_path("tools/topologies/trace.toml")};
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.push_back("--checkpoints");
  for (int step = 0; step < versions; ++step)
    arguments.push_back(source_path("tests/data/trace/trainer/step-0" + std::to_string(step) + ".safetensors"));
  return arguments;
}

std::string dump_of(const std::string& directory, int worker) {
  return directory + "/worker-" + std::to_string(worker) + ".safetensors";
}

/// Elements whose bytes differ, over all tensors of two files.
std::size_t changed_elements(const std::string& before, const std::string& after) {
  const auto old_tensors = tensors_of(before);
  std::size_t changed = 0;
  for (const auto& [name, tensor] : tensors_of(after)) {
    const std::size_t width = tensor.dtype == "F32" ? 4 : 2;
    const std::string& old_data = old_tensors.at(name).data;
    for (std::size_t at = 0; at < tensor.data.size(); at += width)
      changed += tensor.data.compare(at, width, old_data, at, width) != 0 ? 1 : 0;
  }
  return changed;
}

/// Rows and columns of a matrix of 2-byte elements.
std::string part(const std::string& data, std::size_t all_columns, std::size_t first_row, std::size_t rows,
                 std::size_t first_column, std::size_t columns) {
  std::string out;
  for (std::size_t row = first_row; row < first_row + rows; ++row)
    out += data.substr((row * all_columns + first_column) * 2, columns * 2);
  return out;
}

/// What worker `w` of two must hold, from the Hugging Face file: by plain slicing of the trace's known shapes.
std::string expected_bytes(const std::string& name, const std::map<std::string, FileTensor>& hf, std::size_t w) {
  const auto rows = [&](const std::string& slot, std::size_t count) {
    return part(hf.at(slot).data, 192, w * count, count, 0, 192);
  };
  const auto ends_with = [&](const std::string& end) { return name.size() >= end.size() && name.ends_with(end); };
  const std::string layer = name.substr(0, name.find('.', std::string("model.layers.").size()) + 1);
  if (ends_with("qkv_proj.weight"))
    return rows(layer + "self_attn.q_proj.weight", 96) + rows(layer + "self_attn.k_proj.weight", 32) +
           rows(layer + "self_attn.v_proj.weight", 32);
  if (ends_with("gate_up_proj.weight"))
    return rows(layer + "mlp.gate_proj.weight", 256) + rows(layer + "mlp.up_proj.weight", 256);
  if (ends_with("o_proj.weight"))
    return part(hf.at(name).data, 192, 0, 192, w * 96, 96);
  if (ends_with("mlp.down_proj.weight"))
    return part(hf.at(name).data, 512, 0, 192, w * 256, 256);
  if (ends_with("embed_tokens.weight") || ends_with("lm_head.weight"))
    return part(hf.at(name).data, 192, w * 130, w == 0 ? 130 : 129, 0, 192);
  std::string out;
  if (ends_with("w13_weight") || ends_with("w2_weight")) {
    for (int e = 0; e < 8; ++e) {
      const std::string expert = layer + "mlp.experts." + std::to_string(e) + ".";
      if (ends_with("w13_weight"))
        out += rows(expert + "gate_proj.weight", 64) + rows(expert + "up_proj.weight", 64);
      else
        out += part(hf.at(expert + "down_proj.weight").data, 128, 0, 192, w * 64, 64);
    }
    return out;
  }
  return hf.at(name).data; // norms, the router and its fp32 bias are replicated
}

void check_report(const json& report) {
  CHECK(report.at("verified") == true);
  CHECK(report.at("updates").size() == versions);
  for (const char* stage : {"differ", "gather_queue", "flush_bucket", "applier"})
    CHECK(report.at("high_water_bytes").at(stage).is_number_unsigned());
  int version = 0;
  for (const json& update : report.at("updates")) {
    ++version;
    CAPTURE(version, update.dump());
    CHECK(update.at("version") == version);
    CHECK(update.at("base") == version - 1);
    CHECK(update.at("kind") == (version == 1 ? "seed" : "delta"));
    const auto step = [](int file) {
      return source_path("tests/data/trace/trainer/step-0" + std::to_string(file) + ".safetensors");
    };
    const std::uint64_t elements = update.at("elements");
    CHECK(elements > 1'000'000);
    CHECK(update.at("changed") == (version == 1 ? elements : changed_elements(step(version - 2), step(version - 1))));
    CHECK(update.at("slots") == tensors_of(source_path("tests/data/trace/hf/step-03.safetensors")).size());
    CHECK(update.at("wire_bytes").get<std::uint64_t>() > 0);
    CHECK(update.at("gather_bytes").get<std::uint64_t>() > 0);
    CHECK(update.at("flushes").get<std::uint64_t>() >= 1);
    CHECK(update.at("rounds").get<std::uint64_t>() >= 1);
    CHECK(update.at("captured_s").get<double>() > 0);
    CHECK(update.at("committed_s").get<double>() >= update.at("captured_s").get<double>());
    CHECK(update.at("pause_s").get<double>() >= 0);
    for (const char* phase : {"diff", "gather", "assemble", "send", "stage", "commit"})
      CHECK(update.at("phase_s").at(phase).get<double>() >= 0);
    REQUIRE(update.at("workers").size() == workers);
    for (int worker = 0; worker < workers; ++worker) {
      const json& told = update.at("workers").at(static_cast<std::size_t>(worker));
      CHECK(told.at("index") == worker);
      CHECK(told.at("version") == version);
      CHECK(told.at("state") == "serving");
      CHECK(told.at("bytes").get<std::uint64_t>() > 0);
      CHECK(told.at("digest_ok") == true);
      CHECK(told.at("error").is_null());
    }
  }
  const json& updates = report.at("updates");
  CHECK(updates.at(1).at("wire_bytes").get<double>() < 0.5 * updates.at(0).at("wire_bytes").get<double>());
}

} // namespace

TEST_CASE("replay proves what is cast, by arithmetic of its own") {
  const Scratch scratch;
  const std::string topology = scratch.write("small.toml", small_topology);
  const std::string first = scratch.write("first.safetensors", file_of(small_model(1)));
  const std::string second = scratch.write("second.safetensors", file_of(small_model(2)));
  for (const char* processes : {"--quiet", "--processes"}) {
    const Ended ended =
      run_command({"replay", topology, processes, "--set", "update.wire_dtype=float16", "--set",
                   "trainer.placement=[{parameter = \"a\", shard = [\"fsdp:0\"], wire_dtype = \"float32\"}]", "--dump",
                   scratch.path("out"), "--checkpoints", first, second});
    INFO(ended.err);
    REQUIRE(ended.status == 0);
    const auto held = tensors_of(dump_of(scratch.path("out"), 0));
    CHECK(held.at("a").dtype == "F32"); // widened bf16
    CHECK(held.at("b").dtype == "F16");
  }
}

TEST_CASE("the trace replays in one process and across processes, to the same bits") {
  const Scratch scratch;
  for (const std::string mode : {"threads", "processes"}) {
    CAPTURE(mode);
    std::vector<std::string> options{"--dump", scratch.path(mode), "--dump-each", "--report",
                                     scratch.path(mode + ".json")};
    if (mode == "processes")
      options.emplace_back("--processes");
    const Ended ended = run_command(replay_of_trace(options));
    INFO(ended.err);
    REQUIRE(ended.status == 0);
    CHECK(ended.err.empty()); // no progress bar where standard error is no terminal
    CHECK_THAT(ended.out, Catch::Matchers::Contains("verified: 4 versions on 2 workers"));
    std::istringstream lines(ended.out);
    for (std::string line; std::getline(lines, line);)
      CHECK(line.size() <= 120);
    check_report(json::parse(read_file(scratch.path(mode + ".json"))));
  }

  const auto hf = tensors_of(source_path("tests/data/trace/hf/step-03.safetensors"));
  for (int worker = 0; worker < workers; ++worker) {
    CAPTURE(worker);
    for (int version = 1; version <= versions; ++version) {
      const std::string folder = "/v" + std::to_string(version);
      CHECK(read_file(dump_of(scratch.path("threads") + folder, worker)) ==
            read_file(dump_of(scratch.path("processes") + folder, worker)));
    }
    const std::string last = dump_of(scratch.path("processes"), worker);
    CHECK(read_file(last) == read_file(dump_of(scratch.path("processes") + "/v4", worker)));
    CHECK(read_file(last) == read_file(dump_of(scratch.path("threads"), worker)));
    for (const auto& [name, tensor] : tensors_of(last)) {
      CAPTURE(name);
      CHECK((tensor.data == expected_bytes(name, hf, static_cast<std::size_t>(worker))));
      CHECK(tensor.dtype == (name.ends_with("e_score_correction_bias") ? "F32" : "BF16"));
    }
  }
}

TEST_CASE("--json puts the report, and nothing else, on standard output") {
  const Scratch scratch;
  const Ended ended = run_command(replay_of_trace({"--json", "--report", scratch.path("report.json")}));
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  CHECK(ended.out == read_file(scratch.path("report.json")));
  check_report(json::parse(ended.out));
}

TEST_CASE("caps change the flushes, not the bits") {
  const Scratch scratch;
  const Ended ended =
    run_command(replay_of_trace({"--json", "--set", "actors.flush_bucket.cap=8KiB", "--set",
                                 "actors.gather_queue.max_round=16KiB", "--set", "actors.differ.count=1"}));
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  const json report = json::parse(ended.out);
  check_report(report);
  CHECK(report.at("updates").at(0).at("flushes").get<int>() > 1);
  CHECK(report.at("updates").at(0).at("rounds").get<int>() > 1);
  CHECK(report.at("high_water_bytes").at("flush_bucket").get<std::uint64_t>() <= 2 * 8192);
}

TEST_CASE("compression makes a seed smaller and no update larger, to the same bits") {
  const std::string zstd = "actors.flush_bucket.compression=zstd";
  const Ended ended = run_command(replay_of_trace({"--processes", "--json", "--set", zstd}));
  INFO(ended.err);
  if (ended.err.find("built without zstd") != std::string::npos)
    return;
  REQUIRE(ended.status == 0);
  const json compressed = json::parse(ended.out);
  check_report(compressed);
  const Ended without = run_command(replay_of_trace({"--json"}));
  REQUIRE(without.status == 0);
  const json plain = json::parse(without.out);
  for (const char* bytes : {"wire_bytes", "gather_bytes"}) {
    CAPTURE(bytes);
    const auto of = [&](const json& report, std::size_t update) {
      return report.at("updates").at(update).at(bytes).get<double>();
    };
    CHECK(of(compressed, 0) < 0.85 * of(plain, 0));
    for (std::size_t update = 1; update < versions; ++update)
      CHECK(of(compressed, update) <= of(plain, update));
  }
}

TEST_CASE("how positions and values are written changes bytes, and no bit") {
  const auto bytes_with = [](const std::vector<std::string>& options) {
    std::vector<std::string> arguments{"--json"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Ended ended = run_command(replay_of_trace(arguments));
    INFO(ended.err);
    REQUIRE(ended.status == 0);
    const json report = json::parse(ended.out);
    CHECK(report.at("verified") == true);
    return report.at("updates").at(1).at("wire_bytes").get<std::uint64_t>();
  };
  const std::uint64_t smallest = bytes_with({});
  for (const char* positions : {"u16", "bitmap", "dense"}) {
    CAPTURE(positions);
    CHECK(bytes_with({"--set", "actors.flush_bucket.positions=" + std::string(positions)}) > smallest);
  }
  CHECK(bytes_with({"--set", "actors.flush_bucket.values=raw"}) > smallest);
  CHECK(bytes_with({"--set", "actors.flush_bucket.values=ulp"}) == smallest);
}

TEST_CASE("each rank sends its parameters in parts, in an order of its own, to the same bits") {
  for (const std::vector<std::string>& caps :
       {std::vector<std::string>{}, std::vector<std::string>{"--set", "actors.flush_bucket.cap=2KiB", "--set",
                                                             "actors.gather_queue.max_round=2KiB"}}) {
    std::vector<std::string> options{"--processes", "--parts", "7", "--json"};
    options.insert(options.end(), caps.begin(), caps.end());
    const Ended ended = run_command(replay_of_trace(options));
    INFO(ended.err);
    REQUIRE(ended.status == 0);
    check_report(json::parse(ended.out));
  }
}

TEST_CASE("one checkpoint is one seed") {
  const Scratch scratch;
  const std::string topology = scratch.write("small.toml", small_topology);
  const std::string file = scratch.write("one.safetensors", file_of(small_model(1)));
  const Ended ended = run_command({"replay", topology, "--json", "--checkpoints", file});
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  CHECK(json::parse(ended.out).at("updates").size() == 1);
}

TEST_CASE("an update without a change commits its version") {
  const Scratch scratch;
  const std::string topology = scratch.write("small.toml", small_topology);
  const std::string file = scratch.write("one.safetensors", file_of(small_model(1)));
  const Ended ended = run_command({"replay", topology, "--json", "--checkpoints", file, file, file});
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  const json report = json::parse(ended.out);
  CHECK(report.at("updates").at(2).at("version") == 3);
  CHECK(report.at("updates").at(2).at("changed") == 0);
}

TEST_CASE("a report or standard output that turns out to be full is an output failure") {
  const Scratch scratch;
  const std::string topology = scratch.write("small.toml", small_topology);
  const std::string file = scratch.write("one.safetensors", file_of(small_model(1)));
  const Ended report = run_command({"replay", topology, "--report", "/dev/full", "--checkpoints", file});
  CHECK(report.status == 4);
  CHECK_THAT(report.err, Catch::Matchers::Contains("--report /dev/full: cannot be written"));
  Running out({"replay", topology, "--checkpoints", file}, "/dev/full");
  const Ended ended = out.wait();
  CHECK(ended.status == 4);
  CHECK_THAT(ended.err, Catch::Matchers::Contains("deltawire: standard output: cannot be written"));
  Running json_out({"replay", topology, "--json", "--checkpoints", file}, "/dev/full");
  const Ended json_ended = json_out.wait();
  CHECK(json_ended.status == 4);
  CHECK_THAT(json_ended.err, Catch::Matchers::Contains("--json: standard output: cannot be written"));
}

TEST_CASE("a trace cut in every way replays: stages, dealt experts, flat and uneven shards, joined axes, replicas") {
  const Scratch scratch;
  // Placements of the including file come first, and the first that matches counts.
  const std::string topology =
    scratch.write("every_placement.toml", "include = [\"" + source_path("tools/topologies/trace.toml") + R"("]
[trainer]
axes = { all = ["fsdp", "dp"] }
[[trainer.placement]]
parameter = "model.layers.{l}.mlp.experts.*"
shard = ["ep:0 cyclic", "all:flat"]
on = { pp = [1] }
[[trainer.placement]]
parameter = "model.layers.0.*"
shard = ["fsdp:flat"]
on = { pp = [0] }
[[trainer.placement]]
parameter = "model.layers.2.self_attn.o_proj.weight"
shard = ["all:0"]
sizes = { all = [100, 0, 50, 42] }
on = { pp = [1] }
[[worker.placement]]
parameter = "model.embed_tokens.weight"
shard = ["tp:0 cyclic"]
[[worker.placement]]
parameter = "lm_head.weight"
shard = ["tp:flat"]
)");
  std::vector<std::string> arguments{"replay",       topology,
                                     "--set",        R"(trainer.mesh=[["pp", 2], ["dp", 2], ["ep", 2], ["fsdp", 2]])",
                                     "--set",        R"(worker.mesh=[["dp", 2], ["tp", 2]])",
                                     "--checkpoints"};
  for (int step = 0; step < versions; ++step)
    arguments.push_back(source_path("tests/data/trace/trainer/step-0" + std::to_string(step) + ".safetensors"));
  const Ended ended = run_command(arguments);
  INFO(ended.err);
  CHECK(ended.status == 0);
  CHECK(ended.out.find("verified: 4 versions on 4 workers") != std::string::npos);
}
