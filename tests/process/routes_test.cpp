// Rank-local routes against broadcast, on the small trace under two layouts of the workers: the same bits arrive, and
// each worker is sent its share of what changed instead of all of it. What a worker's share is, is counted here, from
// the trainer's files and the known shapes.

#include "catch.hpp"
#include "checkpoint_files.hpp"
#include "command.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <functional>

using namespace deltawire::test;
using nlohmann::json;

namespace {

constexpr std::size_t workers = 4;
constexpr int versions = 4;

std::string step(int number) {
  return source_path("tests/data/trace/trainer/step-0" + std::to_string(number) + ".safetensors");
}

/// Where an element of a tensor lies: its last three indices, 0 for those that the tensor does not have.
struct Coordinates {
  std::int64_t expert = 0, row = 0, column = 0;
};

/// Whether worker `w` holds an element of the trainer's tensor `name`.
using Holds = std::function<bool(std::size_t w, const std::string& name, const Coordinates& at)>;

bool ep4(std::size_t w, const std::string& name, const Coordinates& at) {
  return name.find(".experts.") == std::string::npos || static_cast<std::size_t>(at.expert / 2) == w;
}

bool tp2_ep2(std::size_t w, const std::string& name, const Coordinates& at) {
  const auto tp = static_cast<std::int64_t>(w / 2);
  const auto ep = static_cast<std::int64_t>(w % 2);
  const auto ends_with = [&](const char* end) { return name.ends_with(end); };
  if (ends_with("experts.gate_up_proj")) // gate's 128 rows, then up's
    return at.expert / 4 == ep && at.row % 128 / 64 == tp;
  if (ends_with("experts.down_proj"))
    return at.expert / 4 == ep && at.column / 64 == tp;
  if (ends_with("qkv.weight")) // a half of q, k and v is one key/value group
    return at.row / 160 == tp;
  if (ends_with("gate_up.weight"))
    return at.row % 512 / 256 == tp;
  if (ends_with("o_proj.weight"))
    return at.column / 96 == tp;
  if (ends_with("mlp.down_proj.weight"))
    return at.column / 256 == tp;
  if (ends_with("embed_tokens.weight") || ends_with("lm_head.weight"))
    return at.row / 130 == tp;
  return true;
}

/// Elements that differ between two files, or all of the second one's, by worker that holds them; and all together.
struct Share {
  std::array<std::uint64_t, workers> elements{}; ///< of each worker
  std::array<std::uint64_t, workers> bytes{};    ///< of their values
  std::uint64_t all_elements = 0, all_bytes = 0;
};

Share share_of(const std::string& before, const std::string& after, const Holds& holds) {
  Share share;
  const auto old_tensors = before.empty() ? std::map<std::string, FileTensor>{} : tensors_of(before);
  for (const auto& [name, tensor] : tensors_of(after)) {
    const std::size_t width = tensor.dtype == "F32" ? 4 : 2;
    std::array<std::int64_t, 3> shape{1, 1, 1};
    std::copy_backward(tensor.shape.begin(), tensor.shape.end(), shape.end());
    std::size_t at = 0;
    for (std::int64_t e = 0; e < shape[0]; ++e)
      for (std::int64_t row = 0; row < shape[1]; ++row)
        for (std::int64_t column = 0; column < shape[2]; ++column, at += width) {
          if (!before.empty() && tensor.data.compare(at, width, old_tensors.at(name).data, at, width) == 0)
            continue;
          share.all_elements += 1;
          share.all_bytes += width;
          for (std::size_t w = 0; w < workers; ++w)
            if (holds(w, name, {e, row, column})) {
              share.elements.at(w) += 1;
              share.bytes.at(w) += width;
            }
        }
  }
  return share;
}

json replay(const std::string& topology, const std::string& route, const std::string& dumps) {
  std::vector<std::string> arguments{"replay",       source_path("tests/data/topologies/" + topology),
                                     "--set",        "actors.sender.route=" + route,
                                     "--dump",       dumps,
                                     "--dump-each",  "--json",
                                     "--checkpoints"};
  for (int version = 0; version < versions; ++version)
    arguments.push_back(step(version));
  const Ended ended = run_command(arguments);
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  return json::parse(ended.out);
}

std::uint64_t number(const json& update, std::size_t worker, const char* key) {
  return update.at("workers").at(worker).at(key).get<std::uint64_t>();
}

} // namespace

TEST_CASE("rank-local routes carry each worker's share, broadcast carries everything to all, and both the same bits") {
  for (const auto& [topology, holds] : {std::pair{"trace_ep4.toml", Holds(ep4)}, {"trace_tp2_ep2.toml", tp2_ep2}}) {
    CAPTURE(topology);
    const Scratch scratch;
    const json local = replay(topology, "rank-local", scratch.path("local"));
    const json broadcast = replay(topology, "broadcast", scratch.path("broadcast"));
    for (int v = 0; v < versions; ++v) {
      CAPTURE(v);
      const json& own = local.at("updates").at(static_cast<std::size_t>(v));
      const json& all = broadcast.at("updates").at(static_cast<std::size_t>(v));
      const Share share = share_of(v == 0 ? "" : step(v - 1), step(v), holds);
      CHECK(own.at("changed") == share.all_elements);
      CHECK(all.at("changed") == share.all_elements);
      for (std::size_t w = 0; w < workers; ++w) {
        CAPTURE(w, own.at("workers").dump(), all.at("workers").dump(), share.elements.at(w), share.all_elements);
        REQUIRE(share.elements.at(w) > 0);
        // A worker is sent as many bytes a change as any other: of the values, positions and headers of its share.
        const double per_change =
          static_cast<double>(number(own, w, "bytes")) / static_cast<double>(share.elements.at(w));
        const double of_first =
          static_cast<double>(number(own, 0, "bytes")) / static_cast<double>(share.elements.at(0));
        CHECK(per_change > 0.95 * of_first);
        CHECK(per_change < 1.05 * of_first);
        if (v == 0) { // all values, and next to nothing besides
          CHECK(number(own, w, "bytes") > share.bytes.at(w));
          CHECK(static_cast<double>(number(own, w, "bytes")) < 1.01 * static_cast<double>(share.bytes.at(w)));
        }
        // Everything to all, and so more than its share, by as much as it lacks.
        CHECK(number(all, w, "bytes") == number(all, 0, "bytes"));
        CHECK(number(all, w, "pieces") == number(all, 0, "pieces"));
        CHECK(number(all, w, "flushes") == all.at("flushes"));
        const double of_all =
          static_cast<double>(number(own, w, "bytes")) / static_cast<double>(number(all, w, "bytes"));
        const double held = static_cast<double>(share.elements.at(w)) / static_cast<double>(share.all_elements);
        CHECK(of_all > 0.95 * held);
        CHECK(of_all < 1.1 * held);
        CHECK(number(own, w, "pieces") < number(all, w, "pieces"));
        CHECK(number(own, w, "flushes") >= own.at("flushes").get<std::uint64_t>()); // one a route
        const std::string dump = fmt::format("/v{}/worker-{}.safetensors", v + 1, w);
        const std::string bits = read_file(scratch.path("local") + dump);
        CHECK(!bits.empty());
        CHECK((bits == read_file(scratch.path("broadcast") + dump)));
      }
    }
  }
}
