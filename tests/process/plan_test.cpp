// `deltawire plan`: its numbers against ones counted by hand, against the scenarios' lists of elements, and against
// what a real run does; what it refuses; the three ways to say it.

#include "../pipeline/scenario.hpp"
#include "catch.hpp"
#include "checkpoint_files.hpp"
#include "command.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

using namespace deltawire::test;
using Catch::Matchers::Contains;
using Json = nlohmann::json;

namespace {

constexpr std::uint64_t mib = 1 << 20;
constexpr std::uint64_t header = 72; // of a frame: src/wire/FORMAT.md

struct Case {
  Scratch scratch;
  std::string topology = scratch.write("small.toml", small_topology);
  std::string checkpoint = scratch.write("first.safetensors", file_of(small_model(1)));

  [[nodiscard]] Ended plan(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"plan", topology};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_command(arguments);
  }

  [[nodiscard]] Json json(std::vector<std::string> more = {}) const {
    more.emplace_back("--json");
    const Ended ended = plan(more);
    INFO(ended.err);
    REQUIRE(ended.status == 0);
    CHECK(ended.err.empty());
    return Json::parse(ended.out);
  }
};

void require_refused(const Ended& ended, const std::vector<std::string>& parts) {
  INFO(ended.err);
  CHECK(ended.status == 2);
  CHECK(ended.out.empty());
  CHECK_THAT(ended.err, Catch::Matchers::StartsWith("deltawire: "));
  for (const std::string& part : parts)
    CHECK_THAT(ended.err, Contains(part));
}

const Json& peers_memory(const Json& plan, const std::string& peers) {
  for (const Json& each : plan.at("memory").at("peers"))
    if (each.at("peers") == peers)
      return each;
  FAIL("no memory of " << peers);
  return plan;
}

std::map<std::string, Json> stages_by_key(const Json& plan, const std::string& peers) {
  std::map<std::string, Json> stages;
  for (const Json& stage : peers_memory(plan, peers).at("stages"))
    stages[stage.at("key").is_null() ? stage.at("stage").get<std::string>() : stage.at("key").get<std::string>()] =
      stage.at("most_bytes");
  return stages;
}

const Json* find_arrow(const Json& plan, const std::string& from, const std::string& to) {
  for (const Json& arrow : plan.at("arrows"))
    if (arrow.at("from") == from && arrow.at("to") == to)
      return &arrow;
  return nullptr;
}

const Json& arrow(const Json& plan, const std::string& from, const std::string& to) {
  const Json* found = find_arrow(plan, from, to);
  INFO(from << " -> " << to);
  REQUIRE(found != nullptr);
  return *found;
}

bool mentions(const Json& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const Json& line) { return line.get<std::string>().find(part) != std::string::npos; });
}

/// Braces and quotes of a dot file: nodes declared, edges between them, everything closed. Far from a parser, but it
/// knows what the real one would refuse of what plan may get wrong: quoting, nesting, a node that nobody declared.
void check_dot(const std::string& text) {
  std::string bare; // without comments and with quoted strings numbered
  std::vector<std::string> names;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "//") == 0) {
      i = text.find('\n', i);
      REQUIRE(i != std::string::npos);
    } else if (text[i] == '"') {
      std::string name;
      for (++i; i < text.size() && text[i] != '"'; ++i) {
        REQUIRE(text[i] != '\n');
        if (text[i] == '\\')
          ++i;
        name += text[i];
      }
      REQUIRE(i < text.size());
      bare += fmt::format("#{} ", names.size());
      names.push_back(name);
    } else {
      bare += text[i];
    }
  }
  int depth = 0;
  for (const char c : bare) {
    depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    REQUIRE(depth >= 0);
  }
  CHECK(depth == 0);
  CHECK(std::count(bare.begin(), bare.end(), '[') == std::count(bare.begin(), bare.end(), ']'));

  std::set<std::string> declared, used;
  std::istringstream lines(bare);
  for (std::string line; std::getline(lines, line);) {
    const auto number = [&](std::size_t at) { return names[std::stoul(line.substr(line.find('#', at) + 1))]; };
    const auto start = line.find_first_not_of(' ');
    if (start == std::string::npos)
      continue;
    if (line[start] != '#') { // what is no statement of the language is no line of ours
      const std::string word = line.substr(start, line.find_first_of(" =;", start) - start);
      CAPTURE(line);
      CHECK(std::set<std::string>{"digraph", "rankdir", "node", "edge", "subgraph", "label", "}"}.contains(word));
      continue;
    }
    CHECK(line.back() == ';');
    if (const auto edge = line.find("->"); edge != std::string::npos) {
      used.insert(number(start));
      used.insert(number(edge));
    } else {
      declared.insert(number(start));
    }
  }
  CHECK_FALSE(used.empty());
  CHECK(std::includes(declared.begin(), declared.end(), used.begin(), used.end()));
}

const char* file_dtype(deltawire::DType dtype) {
  constexpr const char* names[] = {"BOOL", "U8",  "U16",  "U32", "U64", "I8",      "I16",    "I32",
                                   "I64",  "F16", "BF16", "F32", "F64", "F8_E4M3", "F8_E5M2"};
  return names[static_cast<std::size_t>(dtype)];
}

/// A checkpoint with the trainer's parameters of a scenario; their values do not matter here.
std::string checkpoint_of(const Scenario& scenario) {
  std::vector<FileTensor> tensors;
  std::set<std::string> written;
  for (const std::vector<Held>& rank : scenario.ranks)
    for (const Held& held : rank) {
      if (!written.insert(held.parameter).second)
        continue;
      std::size_t bytes = size_of(held.dtype);
      for (const std::int64_t extent : held.full_shape)
        bytes *= static_cast<std::size_t>(extent);
      tensors.push_back({held.parameter, file_dtype(held.dtype), held.full_shape, std::string(bytes, '\0')});
    }
  // Larger elements first, so that all are aligned.
  std::stable_sort(tensors.begin(), tensors.end(), [&](const FileTensor& a, const FileTensor& b) {
    const auto alignment = [](const FileTensor& tensor) {
      return tensor.dtype.find("64") != std::string::npos   ? 8
             : tensor.dtype.find("32") != std::string::npos ? 4
             : tensor.dtype.find("16") != std::string::npos ? 2
                                                            : 1;
    };
    return alignment(a) > alignment(b);
  });
  return file_of(tensors);
}

std::vector<std::string> scenarios() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("tests/scenarios")))
    if (entry.path().extension() == ".toml")
      paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

} // namespace

TEST_CASE("the plan of a small model has the numbers that one counts by hand") {
  // "a" [4, 3] BF16 and "b" [2] F32; ranks cut dim 0 in two; worker 0 and 1 each read half of "a" and all of "b".
  const Case c;
  const Json coverage = c.json({"--checkpoint", c.checkpoint}).at("coverage");
  CHECK(coverage.at("parameters") == 2);
  CHECK(coverage.at("slots") == 2);
  CHECK(coverage.at("elements") == 14);
  CHECK(coverage.at("bytes") == 32);
  CHECK(coverage.at("cells") == 3); // two halves of "a", and "b"
  CHECK(coverage.at("blocks") == 4);
  CHECK(coverage.at("windows") == 1);
  CHECK(coverage.at("largest_window_bytes") == 32);
  CHECK(coverage.at("largest_parameter_bytes") == 24);
  CHECK(coverage.at("unused").empty());
  REQUIRE(coverage.at("ranks").size() == 2);
  for (std::size_t r = 0; r < 2; ++r) {
    const Json& rank = coverage.at("ranks").at(r);
    CHECK(rank.at("coordinates") == Json({r}));
    CHECK(rank.at("parameters") == 2);
    CHECK(rank.at("held_elements") == 7);
    CHECK(rank.at("held_bytes") == 16);
    CHECK(rank.at("slots") == 2);
    CHECK(rank.at("elements") == 7);
    CHECK(rank.at("bytes") == 16);
    CHECK(rank.at("blocks") == 2);
    CHECK(rank.at("chunks") == 1);
    CHECK(rank.at("snapshot_bytes") == 128); // two blocks, each from a multiple of 64 on
    CHECK(rank.at("log_bytes") == 8 + 2 * 6 + 8 + 2 * 1);
  }
  REQUIRE(coverage.at("workers").size() == 2);
  for (const Json& worker : coverage.at("workers")) {
    CHECK(worker.at("replica") == 0);
    CHECK(worker.at("parameters") == 2);
    CHECK(worker.at("slots") == 2);
    CHECK(worker.at("elements") == 8);
    CHECK(worker.at("bytes") == 20);
    CHECK(worker.at("padding_elements") == 0);
    CHECK(worker.at("blocks") == 3); // one of "a", and those of both owners of "b"
  }
}

TEST_CASE("a plan tells what is cast, and counts slots and snapshots by what is sent") {
  const Case c;
  const std::vector<std::string> more{"--checkpoint", c.checkpoint, "--set", "update.wire_dtype=bfloat16"};
  const Json coverage = c.json(more).at("coverage");
  CHECK(coverage.at("casts") == Json::parse(R"([{"from": "float32", "to": "bfloat16", "parameters": 1}])"));
  CHECK(coverage.at("bytes") == 28);
  CHECK(coverage.at("largest_window_bytes") == 32); // of what the trainer holds
  CHECK(coverage.at("ranks").at(0).at("held_bytes") == 16);
  CHECK(coverage.at("ranks").at(0).at("bytes") == 14);
  CHECK(coverage.at("workers").at(0).at("bytes") == 16);
  CHECK_THAT(c.plan(more).out, Contains("wire_dtype: 1 parameter of float32 is compared and sent as bfloat16"));
  CHECK(c.json({"--checkpoint", c.checkpoint}).at("coverage").at("casts").empty());
  CHECK_THAT(c.plan({"--set", "update.wire_dtype=bfloat16"}).out, Contains("are cast to bfloat16"));
}

TEST_CASE("what several ranks hold is counted for one owner, and a replica for each") {
  const Case c;
  // "b" is replicated now, and there are three replicas of the two workers.
  const Json plan = c.json({"--checkpoint", c.checkpoint, "--set", "trainer.mesh=[[\"dp\", 3], [\"fsdp\", 2]]", "--set",
                            "trainer.placement=[{parameter = \"a\", shard = [\"fsdp:0\"]}]", "--set",
                            "worker.mesh=[[\"dp\", 3], [\"tp\", 2]]"});
  CHECK(plan.at("worker").at("replicas") == 3);
  CHECK(plan.at("connections") == 2 * (5 + 6));
  const Json& ranks = plan.at("coverage").at("ranks");
  REQUIRE(ranks.size() == 6);
  for (std::size_t r = 0; r < 6; ++r) {
    CAPTURE(r);
    CHECK(ranks.at(r).at("held_elements") == 8);
    CHECK(ranks.at(r).at("held_bytes") == 20);
    CHECK(ranks.at(r).at("elements") == (r == 0 ? 8 : r == 1 ? 6 : 0));
    CHECK(ranks.at(r).at("snapshot_bytes") == (r == 0 ? 128 : r == 1 ? 64 : 0));
  }
  for (std::size_t w = 0; w < 6; ++w)
    CHECK(plan.at("coverage").at("workers").at(w).at("replica") == w / 2);
  // The two blocks of rank 0 are more than what any of the other five has.
  CHECK(stages_by_key(plan, "root").at("snapshot") == 128);
  CHECK(stages_by_key(plan, "ranks").at("snapshot") == 64);
  CHECK(peers_memory(plan, "ranks").at("stages").back().at("total_bytes") == 64);
}

TEST_CASE("memory bounds follow from the caps") {
  const Case c;
  const Json plan = c.json({"--set", "actors.differ.inflight=10MiB", "--set", "actors.gather_queue.max_round=5MiB",
                            "--set", "actors.flush_bucket.cap=7MiB", "--set", "actors.snapshotter.log=3MiB", "--set",
                            "actors.applier.stage=11MiB"});
  const auto root = stages_by_key(plan, "root"), ranks = stages_by_key(plan, "ranks"),
             workers = stages_by_key(plan, "workers");
  CHECK(root.at("actors.differ.inflight") == 10 * mib);
  CHECK(root.at("actors.gather_queue.max_round") == 5 * mib);
  CHECK(root.at("actors.flush_bucket.cap") == 2 * (7 * mib - header));
  CHECK(root.at("actors.snapshotter.log") == 3 * mib);
  CHECK(root.size() == 4);
  CHECK(peers_memory(plan, "root").at("most_bytes") == 32 * mib - 2 * header);
  CHECK(ranks.size() == 2);
  CHECK(peers_memory(plan, "ranks").at("most_bytes") == 13 * mib);
  CHECK(workers.at("actors.applier.stage") == 11 * mib);
  CHECK(workers.at("actors.flush_bucket.cap") == 7 * mib - header);
  CHECK(peers_memory(plan, "workers").at("most_bytes") == 18 * mib - header);
  CHECK(peers_memory(plan, "workers").at("total_bytes") == 2 * (18 * mib - header));
  REQUIRE(plan.at("memory").at("processes").size() == 3); // nobody shares one
}

TEST_CASE("an unlimited cap makes a sum unlimited, and nothing else") {
  const Case c;
  const Json plan = c.json({"--set", "actors.flush_bucket.cap=unlimited"});
  CHECK(stages_by_key(plan, "root").at("actors.flush_bucket.cap").is_null());
  CHECK(peers_memory(plan, "root").at("most_bytes").is_null());
  CHECK(peers_memory(plan, "workers").at("most_bytes").is_null());
  CHECK(peers_memory(plan, "ranks").at("most_bytes") == 512 * mib);
  CHECK_THAT(c.plan({"--set", "actors.flush_bucket.cap=unlimited"}).out, Contains("unlimited"));
}

TEST_CASE("shared memory is drawn, counted and named as a trusted plane") {
  const Case c;
  const std::vector<std::string> shm{"--set", "actors.gather_queue.transport=shm", "--set",
                                     "actors.sender.transport=shm"};
  const Json tcp = c.json();
  const Json plan = c.json(shm);
  CHECK(arrow(plan, "ranks.gather_queue", "root.gather_queue").at("over") == "shm");
  CHECK(arrow(plan, "root.sender", "workers.applier").at("over") == "shm");
  CHECK(plan.at("connections") == tcp.at("connections"));
  CHECK(plan.at("memory").at("processes").size() == tcp.at("memory").at("processes").size());
  const auto most = [](const Json& of, const char* peers) {
    return peers_memory(of, peers).at("most_bytes").get<std::uint64_t>();
  };
  CHECK(most(plan, "root") == most(tcp, "root") + (256u << 20));
  CHECK(most(plan, "ranks") == most(tcp, "ranks") + (64u << 20));
  CHECK(most(plan, "workers") == most(tcp, "workers"));
  REQUIRE(plan.at("trusted_planes").size() == 2);
  for (const Json& plane : plan.at("trusted_planes"))
    CHECK_THAT(plane.get<std::string>(), Contains("over shm") && Contains("runs as this user"));
}

TEST_CASE("peers that an in-process transport joins share a process") {
  const Case c;
  const auto sum = [](const Json& plan, const char* peers, const char* which) {
    return peers_memory(plan, peers).at(which).get<std::uint64_t>();
  };
  const std::vector<std::string> gather{"--set", "actors.gather_queue.transport=inproc"};
  const std::vector<std::string> sender{"--set", "actors.sender.transport=inproc"};
  std::vector<std::string> both = gather;
  both.insert(both.end(), sender.begin(), sender.end());

  CHECK(c.json(both).at("connections") == 0);
  CHECK(c.json(gather).at("connections") == 2 * 2);
  CHECK_THAT(c.plan(both).out, Contains("nobody listens"));
  CHECK_THAT(c.plan(gather).out, Contains("for 4 connections: control and data of each worker."));
  CHECK_THAT(c.plan(sender).out, Contains("for 2 connections: control and data of each other rank."));

  const Json ranks = c.json(gather);
  REQUIRE(ranks.at("memory").at("processes").size() == 2);
  CHECK(ranks.at("memory").at("processes").at(0).at("holds") == Json({"root", "ranks"}));
  CHECK(ranks.at("memory").at("processes").at(0).at("most_bytes") ==
        sum(ranks, "root", "total_bytes") + sum(ranks, "ranks", "total_bytes"));
  CHECK(ranks.at("memory").at("processes").at(1).at("processes") == 2);
  CHECK(arrow(ranks, "ranks.gather_queue", "root.gather_queue").at("over") == "inproc");
  CHECK(arrow(ranks, "root.sender", "workers.applier").at("over") == "tcp");
  CHECK(ranks.at("trusted_planes").size() == 1);

  const Json workers = c.json(sender);
  CHECK(workers.at("memory").at("processes").at(0).at("holds") == Json({"root", "workers"}));
  const Json all = c.json(both);
  REQUIRE(all.at("memory").at("processes").size() == 1);
  CHECK(all.at("memory").at("processes").at(0).at("most_bytes") ==
        sum(all, "root", "total_bytes") + sum(all, "ranks", "total_bytes") + sum(all, "workers", "total_bytes"));
  CHECK(all.at("trusted_planes").empty());
}

TEST_CASE("plan names what is encrypted, and needs no secret for that") {
  const Case c;
  const Json plain = c.json({});
  for (const Json& plane : plain.at("trusted_planes"))
    CHECK_THAT(plane.get<std::string>(), Contains("neither encrypted"));
  const Json plan =
    c.json({"--set", "transport.secret_file=/no/such/file", "--set", "transport.master=10.0.0.1:29500"});
  REQUIRE(plan.at("trusted_planes").size() == 2);
  for (const Json& plane : plan.at("trusted_planes"))
    CHECK_THAT(plane.get<std::string>(), Contains("encrypted and authenticated both ways") && Contains("TLS 1.3"));
}

TEST_CASE("the graph says what runs where and what holds an arrow back") {
  const Case c;
  const Json plan = c.json({"--set", "actors.differ.count=5", "--set", "actors.differ.thread=detached"});
  std::map<std::string, Json> actors;
  for (const Json& actor : plan.at("actors"))
    actors[actor.at("id")] = actor;
  for (const char* peers : {"root", "ranks"}) {
    const std::string at = peers;
    CHECK(actors.at(at + ".differ").at("count") == 5);
    CHECK(actors.at(at + ".differ").at("thread") == "own");
    CHECK(actors.at(at + ".snapshotter").at("thread") == "pool");
    CHECK(actors.at(at + ".gather_queue").at("thread") == "own");
    CHECK(arrow(plan, at + ".differ", at + ".gather_queue").at("credit_to") == at + ".snapshotter");
  }
  CHECK(actors.at("root.flush_bucket").at("thread") == "pool");
  CHECK(actors.at("root.sender").at("thread") == "own");
  CHECK(actors.at("workers.applier").at("thread") == "own");
  CHECK_FALSE(actors.contains("ranks.sender"));
  CHECK(arrow(plan, "root.flush_bucket", "root.sender").at("credit_to") == "root.flush_bucket");
  CHECK(arrow(plan, "root.sender", "workers.applier").at("at_most_bytes") == 256 * mib);
}

TEST_CASE("a trainer of one rank has nobody to gather from") {
  const Case c;
  const std::vector<std::string> one{"--set", "trainer.mesh=[[\"fsdp\", 1]]", "--checkpoint", c.checkpoint};
  const Json plan = c.json(one);
  CHECK(find_arrow(plan, "ranks.gather_queue", "root.gather_queue") == nullptr);
  CHECK(find_arrow(plan, "root.gather_queue", "root.flush_bucket") != nullptr);
  CHECK(plan.at("memory").at("peers").size() == 2);
  CHECK(plan.at("trusted_planes").size() == 1);
  CHECK_THAT(c.plan(one).out, Contains("rank 0, the root"));
}

TEST_CASE("remarks tell which cap binds and where stages wait for each other") {
  const Case c;
  const auto remarks = [&](const std::vector<std::string>& more) { return c.json(more).at("remarks"); };
  CHECK(mentions(remarks({"--set", "actors.flush_bucket.cap=1MiB"}), "actors.flush_bucket.cap less a header"));
  CHECK(mentions(remarks({"--set", "actors.differ.inflight=1MiB"}), "at most 1MiB (actors.differ.inflight)"));
  CHECK(mentions(remarks({"--set", "actors.differ.inflight=1MiB"}), "is cut to"));
  CHECK(mentions(remarks({"--set", "actors.differ.chunk=1GiB"}), "a chunk is at most 256MiB"));
  CHECK(mentions(remarks({"--set", "actors.differ.inflight=30MiB"}), "room for 1 of the 4 chunks"));
  CHECK_FALSE(mentions(remarks({}), "room for"));
  CHECK(mentions(remarks({"--set", "actors.snapshotter.tier=device"}), "each of the 2 Differs takes"));
  CHECK_FALSE(mentions(remarks({}), "actors.snapshotter.tier"));
  CHECK(mentions(remarks({"--set", "actors.differ.chunk=32MiB"}), "gathered one by one"));
  CHECK_FALSE(mentions(remarks({}), "gathered one by one")); // the defaults go together
  CHECK(mentions(remarks({"--set", "actors.flush_bucket.cap=10MiB"}), "the gather waits for the workers"));
  CHECK_FALSE(mentions(remarks({}), "the gather waits for the workers"));
  CHECK(mentions(remarks({"--set", "actors.applier.stage=1MiB"}), "less than one flush"));
  CHECK(mentions(remarks({"--set", "actors.applier.stage=20B", "--checkpoint", c.checkpoint}), "more than 20B"));
  CHECK(mentions(remarks({"--checkpoint", c.checkpoint}), "Every update fits"));
  CHECK(
    mentions(remarks({"--set", "actors.gather_queue.window=1B", "--checkpoint", c.checkpoint}), "the largest has 24B"));
  // The least that holds a byte, as the refusal tells it, holds no 8 bytes.
  const std::string refusal = c.plan({"--set", "actors.gather_queue.max_round=1B"}).err;
  const std::string least = refusal.substr(refusal.find("at least ") + 9);
  CHECK(mentions(remarks({"--set", fmt::format("actors.gather_queue.max_round={}B", std::stoul(least))}),
                 "-byte elements will be refused"));
}

TEST_CASE("whatever the scenarios say about where elements lie, the plan counts the same") {
  Scratch scratch;
  std::size_t planned = 0, refused = 0;
  for (const std::string& path : scenarios()) {
    const Scenario scenario = read_scenario(path);
    CAPTURE(path);
    const std::string topology = scratch.write("topology.toml", scenario.topology);
    for (const auto& [name, content] : scenario.files)
      (void)scratch.write(name, content);
    const std::string checkpoint = scratch.write("checkpoint.safetensors", checkpoint_of(scenario));
    const Ended ended = run_command({"plan", topology, "--json", "--checkpoint", checkpoint});
    if (!scenario.refused.empty()) {
      // What an engine binds and no topology tells is nothing that a plan can refuse.
      if (scenario.topology.find("[[trainer.map]]") != std::string::npos) {
        require_refused(ended, {});
        ++refused;
      }
      continue;
    }
    INFO(ended.err);
    REQUIRE(ended.status == 0);
    const Json coverage = Json::parse(ended.out).at("coverage");

    std::set<std::pair<std::uint32_t, std::uint64_t>> provided, read;
    std::uint64_t owned = 0;
    REQUIRE(coverage.at("ranks").size() == scenario.ranks.size());
    for (std::size_t r = 0; r < scenario.ranks.size(); ++r) {
      std::uint64_t held = 0;
      for (const Held& each : scenario.ranks[r]) {
        held += each.elements.size();
        for (const Place& place : each.elements)
          if (place.tensor != Place::padding)
            provided.insert({place.tensor, place.flat});
      }
      if (path.find("flat_buffer") == std::string::npos) // what the facade declares there no topology tells
        CHECK(coverage.at("ranks").at(r).at("held_elements") == held);
      owned += coverage.at("ranks").at(r).at("elements").get<std::uint64_t>();
    }

    REQUIRE(coverage.at("workers").size() == scenario.workers.size());
    for (std::size_t w = 0; w < scenario.workers.size(); ++w) {
      std::uint64_t elements = 0, padding = 0, bytes = 0;
      for (const Held& each : scenario.workers[w])
        for (const Place& place : each.elements) {
          (place.tensor == Place::padding ? padding : elements) += 1;
          if (place.tensor != Place::padding) {
            bytes += size_of(each.dtype);
            read.insert({place.tensor, place.flat});
          }
        }
      CHECK(coverage.at("workers").at(w).at("elements") == elements);
      CHECK(coverage.at("workers").at(w).at("bytes") == bytes);
      CHECK(coverage.at("workers").at(w).at("padding_elements") == padding);
    }
    // Padding on the trainer is elements of a tensor like others to the scenario; what workers read is what is left.
    if (scenario.topology.find("[[trainer.parameter]]") != std::string::npos)
      provided = read;
    CHECK(coverage.at("elements") == provided.size());
    CHECK(owned == provided.size());
    std::uint64_t unused = 0;
    for (const Json& slot : coverage.at("unused"))
      unused += slot.at("elements").get<std::uint64_t>();
    // Of a slot that some worker reads a part of, the rest is not listed.
    std::set<std::uint32_t> read_tensors;
    for (const auto& [tensor, flat] : read)
      read_tensors.insert(tensor);
    const auto never = std::count_if(provided.begin(), provided.end(),
                                     [&](const auto& place) { return !read_tensors.contains(place.first); });
    CHECK(unused == static_cast<std::uint64_t>(never));
    ++planned;

    check_dot(run_command({"plan", topology, "--dot"}).out);
    const Ended text = run_command({"plan", topology, "--checkpoint", checkpoint});
    CHECK(text.status == 0);
    CHECK_THAT(text.out, Contains("every element of every slot has exactly one owner"));
  }
  CHECK(planned >= 18);
  CHECK(refused >= 1);
}

TEST_CASE("a real run has the actors of the plan and stays under its bounds") {
  const Case c;
  const std::vector<std::string> caps{
    "--set", "actors.differ.inflight=64KiB",  "--set", "actors.gather_queue.max_round=32KiB",
    "--set", "actors.flush_bucket.cap=20KiB", "--set", "actors.differ.count=3"};
  const std::string trace = source_path("tools/topologies/trace.toml");
  const auto checkpoint = [](int step) {
    return source_path(fmt::format("tests/data/trace/trainer/step-0{}.safetensors", step));
  };
  const auto with_caps = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), caps.begin(), caps.end());
    return run_command(arguments);
  };
  const Ended planned = with_caps({"plan", trace, "--json", "--checkpoint", checkpoint(0)});
  INFO(planned.err);
  REQUIRE(planned.status == 0);
  const Json plan = Json::parse(planned.out);
  const Ended ended =
    with_caps({"replay", trace, "--quiet", "--json", "--set", "telemetry.trace=" + c.scratch.path("trace.json"),
               "--checkpoints", checkpoint(0), checkpoint(1)});
  INFO(ended.err);
  REQUIRE(ended.status == 0);

  const Json report = Json::parse(ended.out);
  const auto root = stages_by_key(plan, "root"), workers = stages_by_key(plan, "workers");
  const Json& high = report.at("high_water_bytes");
  CHECK(high.at("differ") > 0);
  CHECK(high.at("differ") <= root.at("actors.differ.inflight"));
  CHECK(high.at("gather_queue") <= root.at("actors.gather_queue.max_round"));
  CHECK(high.at("flush_bucket") <= root.at("actors.flush_bucket.cap"));
  CHECK(high.at("applier") <= workers.at("actors.applier.stage"));
  CHECK(report.at("updates").at(0).at("elements") == plan.at("coverage").at("elements"));
  CHECK(report.at("updates").at(0).at("slots") == plan.at("coverage").at("slots"));
  CHECK(high.at("flush_bucket") > 2 * 1024);

  // The lanes that worked: "rank 0: differ 2", "worker 1: applier".
  std::set<std::string> lanes;
  for (const auto& entry : std::filesystem::directory_iterator(c.scratch.path(""))) {
    if (!entry.path().filename().string().starts_with("trace"))
      continue;
    const Json file = Json::parse(read_file(entry.path().string()));
    for (const Json& event : file.is_array() ? file : file.at("traceEvents"))
      if (event.value("name", "") == "thread_name") {
        const Json& names = event.at("args"); // with "lane": one more of that lane, for spans at the same time
        lanes.insert(names.value("lane", names.at("name").get<std::string>()));
      }
  }
  std::set<std::string> expected;
  for (const Json& actor : plan.at("actors")) {
    const std::string name = actor.at("name"), peers = actor.at("peers");
    if (actor.at("thread").is_null() || name == "supervisor") // it has no lane
      continue;
    const std::uint32_t first = peers == "ranks" ? 1 : 0;
    const std::uint32_t end = peers == "root" ? 1 : peers == "ranks" ? 4 : 2;
    for (std::uint32_t i = first; i < end; ++i)
      for (std::uint32_t n = 0; n < actor.at("count"); ++n)
        expected.insert(fmt::format("{} {}: {}{}", peers == "workers" ? "worker" : "rank", i, name,
                                    name == "differ" ? fmt::format(" {}", n) : ""));
  }
  CHECK(lanes == expected);
}

TEST_CASE("the dot file has clusters for those who exist, and survives odd names") {
  const Case c;
  const Ended two = c.plan({"--dot", "--checkpoint", c.checkpoint});
  REQUIRE(two.status == 0);
  check_dot(two.out);
  for (const char* part : {"digraph", "cluster_root", "cluster_ranks", "cluster_workers", "ranks", "tcp"})
    CHECK_THAT(two.out, Contains(part));
  const Ended one = c.plan({"--dot", "--set", "trainer.mesh=[[\"fsdp\", 1]]"});
  check_dot(one.out);
  CHECK_THAT(one.out, !Contains("cluster_ranks"));
  const std::string odd = c.scratch.write("odd \"\\\n name.toml", small_topology);
  check_dot(run_command({"plan", odd, "--dot"}).out);
}

TEST_CASE("what does not fit is refused, all of it at once, with tensor, rank or worker, and range") {
  Case c;
  std::string extra;
  std::vector<std::string> parts;
  SECTION("a hole on the trainer") {
    extra = "[[trainer.map]]\nparameter = \"a\"\nslot = \"a\"\nslice = \"[0:3, :]\"\n";
    parts = {"'a'", "[3:4, 0:3]"};
  }
  SECTION("two parameters for one slot") {
    extra = "[[trainer.map]]\nparameter = \"a\"\nslot = \"c\"\nslice = \"[0:2, 0]\"\n"
            "[[trainer.map]]\nparameter = \"a\"\nslot = \"d\"\nslice = \"[0:4, :]\"\n";
    parts = {"'a'"};
  }
  SECTION("names that nothing has, on both sides, and a slot that nobody reads") {
    extra = "[[trainer.parameter]]\nname = \"typo\"\npadding = true\n"
            "[[worker.parameter]]\nname = \"mistake\"\npadding = true\n"
            "[[worker.map]]\nparameter = \"p\"\nslot = \"a\"\nslice = \"[0:4, :]\"\n"
            "[[worker.map]]\nparameter = \"q\"\nslot = \"nowhere\"\nslice = \"[0:4, :]\"\n";
    parts = {"typo", "mistake", "nowhere"};
  }
  SECTION("half of a slot that nobody reads, and caps that hold no element") {
    extra = "[[worker.map]]\nparameter = \"b\"\nslot = \"b\"\nslice = \"[0:2]\"\n"
            "[[worker.parameter]]\nname = \"mistake\"\npadding = true\n[actors]\nflush_bucket = { cap = \"80B\" }\n";
    parts = {"mistake", "actors.flush_bucket.cap", "element of 4 bytes"};
  }
  SECTION("a cut of a dim that the tensor lacks") {
    extra = "[[worker.placement]]\nparameter = \"b\"\nshard = [\"tp:3\"]\n";
    parts = {"'b'", "tp"};
  }
  c.topology = c.scratch.write("small.toml", std::string(small_topology) + extra);
  for (const char* way : {"", "--dot", "--json"}) {
    std::vector<std::string> arguments{"--checkpoint", c.checkpoint};
    if (*way != '\0')
      arguments.emplace_back(way);
    require_refused(c.plan(arguments), parts);
  }
}

TEST_CASE("bad usage, topologies and files are refused") {
  const Case c;
  require_refused(c.plan({"--dot", "--json"}), {"--json"});
  require_refused(run_command({"plan"}), {"topology"});
  require_refused(run_command({"plan", c.scratch.path("gone.toml")}), {"gone.toml"});
  require_refused(c.plan({"--checkpoint", c.scratch.path("gone.safetensors")}), {"gone.safetensors"});
  require_refused(c.plan({"--checkpoint", c.topology}), {c.topology});
  require_refused(c.plan({"--set", "actors.flush_bucket.cap=7B"}), {"actors.flush_bucket.cap: 7 bytes", "at least"});
  require_refused(c.plan({"--set", "actors.flush_bucket.cup=7B"}), {"actors.flush_bucket.cup"});
  require_refused(c.plan({"--set", "worker.placement=[{parameter=\"*\", shard=[\"nope:0\"]}]"}), {"nope"});
  const std::string other = c.scratch.write("other.safetensors", file_of({small_model(1)[0]}));
  require_refused(c.plan({"--checkpoint", c.checkpoint, other}), {"other.safetensors", "\"a\"", "missing"});
}

TEST_CASE("output that cannot be written is status 4") {
  const Case c;
  Running running({"plan", c.topology}, "/dev/full");
  const Ended ended = running.wait();
  CHECK(ended.status == 4);
  CHECK_THAT(ended.err, Contains("standard output"));
}

TEST_CASE("the text fits 120 columns and names what binds") {
  const std::string trace = source_path("tools/topologies/trace.toml");
  const std::string checkpoint = source_path("tests/data/trace/trainer/step-00.safetensors");
  const Ended ended = run_command({"plan", trace, "--checkpoint", checkpoint});
  REQUIRE(ended.status == 0);
  CHECK(ended.err.empty());
  std::istringstream lines(ended.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(trace) != std::string::npos || line.find(checkpoint) != std::string::npos)
      continue;
    CAPTURE(line);
    CHECK(line.size() <= 120);
    CHECK((line.empty() || line.back() != ' '));
  }
  for (const char* part : {"4 trainer ranks", "2 workers in 1 replica", "differ x2", "ep 1, fsdp 0",
                           "every slot is read by a worker", "1183432", "118", "actors.gather_queue.max_round"})
    CHECK_THAT(ended.out, Contains(part));
}
