#include "account.hpp"

#include <nlohmann/json.hpp>

namespace deltawire::plan {

namespace {

using Json = nlohmann::ordered_json;

Json cap(std::uint64_t bytes) {
  return bytes == config::unlimited ? Json(nullptr) : Json(bytes);
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

Json mesh_json(const layout::Mesh& mesh) {
  Json axes = Json::array();
  for (const layout::Axis& axis : mesh.axes())
    axes.push_back({axis.name, axis.size});
  return axes;
}

Json actors_json(const Graph& graph) {
  Json actors = Json::array();
  for (const Node& node : graph.nodes)
    actors.push_back({{"id", id_of(node)},
                      {"peers", to_string(node.peers)},
                      {"name", node.name},
                      {"count", node.count},
                      {"thread", node.thread == Thread::memory ? Json(nullptr) : Json(to_string(node.thread))}});
  return actors;
}

Json arrows_json(const Graph& graph) {
  Json arrows = Json::array();
  for (const Arrow& arrow : graph.arrows) {
    Json value = {{"from", id_of(graph.nodes[arrow.from])},
                  {"to", id_of(graph.nodes[arrow.to])},
                  {"carries", arrow.carries},
                  {"over", to_string(arrow.over)},
                  {"at_most_bytes", cap(arrow.at_most)},
                  {"key", text_or_null(arrow.key)},
                  {"waits_for", text_or_null(arrow.waits_for)},
                  {"credit_from", nullptr},
                  {"credit_to", nullptr}};
    if (!arrow.waits_for.empty()) {
      value["credit_from"] = id_of(graph.nodes[arrow.credit_from]);
      value["credit_to"] = id_of(graph.nodes[arrow.credit_to]);
    }
    arrows.push_back(std::move(value));
  }
  return arrows;
}

Json memory_json(const Account& account) {
  Json peers = Json::array();
  for (const PeersMemory& each : account.memory.peers) {
    Json stages = Json::array();
    for (const Bound& bound : each.bounds)
      stages.push_back({{"stage", bound.stage},
                        {"key", text_or_null(bound.key)},
                        {"most_bytes", cap(bound.most)},
                        {"total_bytes", cap(bound.total)}});
    peers.push_back({{"peers", to_string(each.peers)},
                     {"count", each.count},
                     {"stages", std::move(stages)},
                     {"most_bytes", cap(each.most)},
                     {"total_bytes", cap(each.total)}});
  }
  Json processes = Json::array();
  for (const ProcessMemory& each : account.memory.processes) {
    Json holds = Json::array();
    for (const Peers held : each.holds)
      holds.push_back(to_string(held));
    processes.push_back({{"holds", std::move(holds)},
                         {"processes", each.together ? 1 : account.graph.count(each.holds.front())},
                         {"most_bytes", cap(each.most)}});
  }
  return {{"peers", std::move(peers)}, {"processes", std::move(processes)}};
}

Json coverage_json(const Coverage& coverage) {
  Json ranks = Json::array();
  for (std::size_t r = 0; r < coverage.ranks.size(); ++r) {
    const RankCoverage& rank = coverage.ranks[r];
    ranks.push_back({{"rank", r},
                     {"coordinates", rank.coordinates},
                     {"parameters", rank.parameters},
                     {"held_elements", rank.held_elements},
                     {"held_bytes", rank.held_bytes},
                     {"slots", rank.slots},
                     {"elements", rank.elements},
                     {"bytes", rank.bytes},
                     {"blocks", rank.blocks},
                     {"chunks", rank.chunks},
                     {"snapshot_bytes", rank.snapshot_bytes},
                     {"log_bytes", rank.log_bytes},
                     {"encoded_bytes", rank.encoded_bytes}});
  }
  Json workers = Json::array();
  for (std::size_t w = 0; w < coverage.workers.size(); ++w) {
    const WorkerCoverage& worker = coverage.workers[w];
    workers.push_back({{"worker", w},
                       {"replica", worker.replica},
                       {"coordinates", worker.coordinates},
                       {"parameters", worker.parameters},
                       {"slots", worker.slots},
                       {"elements", worker.elements},
                       {"bytes", worker.bytes},
                       {"padding_elements", worker.padding},
                       {"staged_bytes", worker.staged_bytes},
                       {"blocks", worker.blocks}});
  }
  Json casts = Json::array();
  for (const CastParameters& cast : coverage.casts)
    casts.push_back({{"from", to_string(cast.from)}, {"to", to_string(cast.to)}, {"parameters", cast.parameters}});
  Json unused = Json::array();
  for (const Unused& slot : coverage.unused)
    unused.push_back({{"slot", slot.slot}, {"elements", slot.elements}});
  return {{"checkpoint", coverage.checkpoint},
          {"parameters", coverage.parameters},
          {"slots", coverage.slots},
          {"elements", coverage.elements},
          {"bytes", coverage.bytes},
          {"cells", coverage.cells},
          {"blocks", coverage.blocks},
          {"windows", coverage.windows},
          {"largest_window_bytes", coverage.largest_window},
          {"largest_parameter_bytes", coverage.largest_parameter},
          {"piece_limit_bytes", coverage.piece_limit},
          {"largest_piece_bytes", coverage.largest_piece},
          {"largest_chunk_bytes", coverage.largest_chunk},
          {"encoded_bytes", coverage.encoded_bytes},
          {"ranks", std::move(ranks)},
          {"workers", std::move(workers)},
          {"casts", std::move(casts)},
          {"unused", std::move(unused)}};
}

} // namespace

std::string json_of(const Account& account) {
  const Graph& graph = account.graph;
  const Json value = {
    {"topology", account.topology.file},
    {"trainer", {{"ranks", graph.ranks}, {"mesh", mesh_json(account.topology.trainer.mesh)}}},
    {"worker",
     {{"workers", graph.workers}, {"replicas", graph.replicas}, {"mesh", mesh_json(account.topology.worker.mesh)}}},
    {"master", text_or_null(account.topology.transport.master)},
    {"connections", graph.connections()},
    {"actors", actors_json(graph)},
    {"arrows", arrows_json(graph)},
    {"memory", memory_json(account)},
    {"coverage", account.coverage ? coverage_json(*account.coverage) : Json(nullptr)},
    {"remarks", account.remarks},
    {"trusted_planes", account.trusted_planes}};
  // Names come from files: what is no UTF-8 in them must not throw.
  return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

} // namespace deltawire::plan
