// The commented topologies in tools/topologies do what their comments say: each can be planned, two of them replay the
// small trace, and the one for many hosts covers the model that it names.

#include "catch.hpp"
#include "checkpoint_files.hpp"
#include "command.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <map>

using namespace deltawire::test;
using Catch::Matchers::Contains;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

Json planned(const std::string& topology, std::vector<std::string> more) {
  more.insert(more.begin(), {"plan", topology, "--json"});
  const Ended ended = run_command(more);
  INFO(topology << "\n" << ended.err);
  REQUIRE(ended.status == 0);
  return Json::parse(ended.out);
}

/// A checkpoint with Qwen3-1.7B's names and shapes, `layers` of its 28. Its data is a hole: `plan` reads headers only.
std::uint64_t write_qwen3(const std::string& path, int layers) {
  constexpr std::int64_t hidden = 2048, inter = 6144, q = 16 * 128, kv = 8 * 128, vocabulary = 151936;
  std::map<std::string, std::vector<std::int64_t>> shapes{{"model.embed_tokens.weight", {vocabulary, hidden}},
                                                          {"model.norm.weight", {hidden}}};
  for (int layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    shapes[prefix + "input_layernorm.weight"] = {hidden};
    shapes[prefix + "post_attention_layernorm.weight"] = {hidden};
    shapes[prefix + "self_attn.q_proj.weight"] = {q, hidden};
    shapes[prefix + "self_attn.k_proj.weight"] = {kv, hidden};
    shapes[prefix + "self_attn.v_proj.weight"] = {kv, hidden};
    shapes[prefix + "self_attn.o_proj.weight"] = {hidden, q};
    shapes[prefix + "self_attn.q_norm.weight"] = {128};
    shapes[prefix + "self_attn.k_norm.weight"] = {128};
    shapes[prefix + "mlp.gate_proj.weight"] = {inter, hidden};
    shapes[prefix + "mlp.up_proj.weight"] = {inter, hidden};
    shapes[prefix + "mlp.down_proj.weight"] = {hidden, inter};
  }
  Json header;
  std::uint64_t end = 0;
  for (const auto& [name, shape] : shapes) {
    std::uint64_t bytes = 2;
    for (const std::int64_t extent : shape)
      bytes *= static_cast<std::uint64_t>(extent);
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::ofstream(path, std::ios::binary) << file_of(text, "");
  fs::resize_file(path, fs::file_size(path) + end);
  return end / 2;
}

} // namespace

TEST_CASE("every example topology has a plan, in words and as a picture") {
  int examples = 0;
  for (const auto& entry : fs::directory_iterator(source_path("tools/topologies"))) {
    CAPTURE(entry.path().string());
    const Json plan = planned(entry.path().string(), {});
    CHECK(plan.at("arrows").size() > 0);
    CHECK_THAT(run_command({"plan", entry.path().string(), "--dot"}).out, Contains("digraph deltawire {"));
    ++examples;
  }
  CHECK(examples >= 3);
}

TEST_CASE("the plan of each example says what its comments promise") {
  const auto plan_of = [](const std::string& name) {
    const Ended ended = run_command({"plan", source_path("tools/topologies/" + name)});
    INFO(ended.err);
    REQUIRE(ended.status == 0);
    return ended.out;
  };
  const std::string one = plan_of("one_process.toml");
  for (const char* part : {"2 trainer ranks (fsdp 2), 2 workers in 1 replica (tp 2)", "(inproc)",
                           "All of them meet in one process: nobody listens.", "one process holds rank 0, rank 1"})
    CHECK_THAT(one, Contains(part));
  CHECK_THAT(one, !Contains("trusted planes"));
  const std::string trace = plan_of("trace.toml");
  for (const char* part : {"4 trainer ranks (ep 2 x fsdp 2), 2 workers in 1 replica (tp 2)", "each of ranks 0-3",
                           "for 10 connections", "neither encrypted nor authenticated; only loopback addresses"})
    CHECK_THAT(trace, Contains(part));
  const std::string many = plan_of("many_hosts.toml");
  for (const char* part : {"16 trainer ranks (host 2 x fsdp 8), 8 workers in 4 replicas (dp 4 x tp 2)",
                           "Rank 0 listens at DELTAWIRE_MASTER", "encrypted and authenticated both ways (TLS 1.3"})
    CHECK_THAT(many, Contains(part));
}

TEST_CASE("the example of one process replays the small trace") {
  std::vector<std::string> arguments{"replay", source_path("tools/topologies/one_process.toml"), "--json",
                                     "--checkpoints"};
  for (const char* step : {"0", "1"})
    arguments.push_back(source_path("tests/data/trace/trainer/step-0" + std::string(step) + ".safetensors"));
  const Ended ended = run_command(arguments);
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  CHECK(Json::parse(ended.out).at("verified") == true);
}

TEST_CASE("the example of many hosts covers the model that it names") {
  const Scratch scratch;
  const std::string checkpoint = scratch.path("qwen3.safetensors");
  const std::uint64_t elements = write_qwen3(checkpoint, 3);
  const Json plan = planned(source_path("tools/topologies/many_hosts.toml"), {"--checkpoint", checkpoint});
  const Json& coverage = plan.at("coverage");
  CHECK(coverage.at("elements") == elements);
  // The second host replicates: only ranks 0 to 7 own elements, all of them together.
  std::uint64_t owned = 0;
  for (const Json& rank : coverage.at("ranks")) {
    owned += rank.at("elements").get<std::uint64_t>();
    if (rank.at("rank") >= 8)
      CHECK(rank.at("elements") == 0);
  }
  CHECK(owned == elements);
  // A worker holds half of every matrix, and all of the norms: 2 of the hidden size and 2 of a head's a layer, and one.
  const std::uint64_t norms = 3 * (2 * 2048 + 2 * 128) + 2048;
  for (const Json& worker : coverage.at("workers"))
    CHECK(worker.at("elements") == (elements - norms) / 2 + norms);
}
