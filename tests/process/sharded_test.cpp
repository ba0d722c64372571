// Checkpoints in several files: a sharded copy of the small trace, made here, replays to the dumps of the original.

#include "catch.hpp"
#include "checkpoint_files.hpp"
#include "command.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

using namespace deltawire::test;
using Catch::Matchers::Contains;

namespace {

/// Writes `tensors` as `shards` files and an index into a folder of their own; the folder.
std::string write_sharded(const Scratch& scratch, const std::string& name, const std::map<std::string, FileTensor>& all,
                          std::size_t shards) {
  std::filesystem::create_directories(scratch.path(name));
  std::vector<std::vector<FileTensor>> parts(shards);
  nlohmann::json index;
  std::size_t bytes = 0;
  std::size_t next = 0;
  const auto file = [&](std::size_t shard) {
    return "model-0000" + std::to_string(shard + 1) + "-of-0000" + std::to_string(shards) + ".safetensors";
  };
  for (const auto& [tensor_name, tensor] : all) {
    const std::size_t shard = next++ % shards; // neighbours in different files
    parts[shard].push_back(tensor);
    index["weight_map"][tensor_name] = file(shard);
    bytes += tensor.data.size();
  }
  index["metadata"]["total_size"] = bytes;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    // Wider elements first, as writers do: else some would not be aligned.
    std::stable_sort(parts[shard].begin(), parts[shard].end(),
                     [](const FileTensor& a, const FileTensor& b) { return a.dtype == "F32" && b.dtype != "F32"; });
    (void)scratch.write(name + "/" + file(shard), file_of(parts[shard]));
  }
  (void)scratch.write(name + "/model.safetensors.index.json", index.dump(2));
  return scratch.path(name);
}

std::string step(int number) {
  return source_path("tests/data/trace/trainer/step-0" + std::to_string(number) + ".safetensors");
}

} // namespace

TEST_CASE("a sharded copy of the trace replays to the same dumps") {
  const Scratch scratch;
  const std::string topology = source_path("tools/topologies/trace.toml");
  const Ended whole = run_command({"replay", topology, "--dump", scratch.path("whole"), "--dump-each", "--checkpoints",
                                   step(0), step(1), step(2), step(3)});
  INFO(whole.err);
  REQUIRE(whole.status == 0);

  // Every way to name a checkpoint: a folder with an index, an index, a file, and a folder with a file.
  const std::string folder = write_sharded(scratch, "zero", tensors_of(step(0)), 3);
  const std::string index = write_sharded(scratch, "one", tensors_of(step(1)), 2) + "/model.safetensors.index.json";
  std::filesystem::create_directories(scratch.path("three"));
  std::filesystem::copy_file(step(3), scratch.path("three/model.safetensors"));
  for (const std::string mode : {"threads", "processes"}) {
    CAPTURE(mode);
    std::vector<std::string> arguments{
      "replay", topology, "--dump", scratch.path(mode),   "--dump-each", "--checkpoints",
      folder,   index,    step(2),  scratch.path("three")};
    if (mode == "processes")
      arguments.emplace_back("--processes");
    const Ended sharded = run_command(arguments);
    INFO(sharded.err);
    REQUIRE(sharded.status == 0);
    CHECK_THAT(sharded.out, Contains("verified: 4 versions on 2 workers"));
    for (int version = 1; version <= 4; ++version)
      for (int worker = 0; worker < 2; ++worker) {
        const std::string dump = "/v" + std::to_string(version) + "/worker-" + std::to_string(worker) + ".safetensors";
        CAPTURE(dump);
        CHECK((read_file(scratch.path(mode) + dump) == read_file(scratch.path("whole") + dump)));
      }
  }
}

TEST_CASE("an index and files that disagree are refused before anything starts") {
  const Scratch scratch;
  const std::string topology = scratch.write("small.toml", small_topology);
  std::map<std::string, FileTensor> tensors;
  for (const FileTensor& tensor : small_model(1))
    tensors[tensor.name] = tensor;
  const std::string good = write_sharded(scratch, "good", tensors, 2);
  REQUIRE(run_command({"replay", topology, "--checkpoints", good}).status == 0);

  const auto refused = [&](const std::string& path, const std::vector<std::string>& parts) {
    const Ended ended = run_command({"replay", topology, "--checkpoints", good, path});
    CHECK(ended.status == 2);
    CHECK(ended.out.empty());
    for (const std::string& part : parts)
      CHECK_THAT(ended.err, Contains(part));
  };
  const std::string bad = write_sharded(scratch, "bad", tensors, 2);
  std::string text = read_file(bad + "/model.safetensors.index.json");
  text.replace(text.find("\"total_size\": 32"), 16, "\"total_size\": 31");
  (void)scratch.write("bad/model.safetensors.index.json", text);
  refused(bad, {"bad/model.safetensors.index.json", "total_size 31", "32 bytes"});
  (void)scratch.write("bad/model.safetensors.index.json", R"({"weight_map":{"a":"../good/model-00001-of-00002"}})");
  refused(bad, {"'../good/model-00001-of-00002'", "leaves the folder"});
  refused(scratch.path("gone.safetensors.index.json"), {"gone.safetensors.index.json", "No such file"});

  // Another set of tensors than the version before: told by the path that was given.
  tensors.erase("b");
  refused(write_sharded(scratch, "fewer", tensors, 1), {scratch.path("fewer") + ": tensor \"b\" is missing"});
}
