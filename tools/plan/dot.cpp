#include "account.hpp"

namespace deltawire::plan {

namespace {

/// A quoted identifier or label; `\n` stays a line break.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\')
      out += '\\';
    out += c;
  }
  return out + '"';
}

std::string node_text(const Node& node) {
  if (node.thread == Thread::memory)
    return fmt::format("    {} [label={}, shape=cylinder];\n", quoted(id_of(node)), quoted(node.name));
  const std::string count = node.count == 1 ? "" : fmt::format(" x{}", node.count);
  return fmt::format("    {} [label={}{}];\n", quoted(id_of(node)), quoted(node.name + count),
                     node.thread == Thread::own ? ", penwidth=2" : "");
}

std::string arrow_text(const Graph& graph, const Arrow& arrow) {
  const auto id = [&](std::size_t node) { return quoted(id_of(graph.nodes[node])); };
  std::string label = arrow.carries;
  if (!arrow.key.empty())
    label += fmt::format("\nat most {}", cap_text(arrow.at_most));
  if (arrow.over != Medium::message)
    label += fmt::format("\n{}", to_string(arrow.over));
  std::string text = fmt::format("  {} -> {} [label={}{}];\n", id(arrow.from), id(arrow.to), quoted(label),
                                 arrow.over == Medium::message ? "" : ", penwidth=2");
  if (!arrow.waits_for.empty())
    text += fmt::format("  {} -> {} [label={}, style=dashed, constraint=false, fontcolor=gray40, color=gray40];\n",
                        id(arrow.credit_from), id(arrow.credit_to), quoted(arrow.waits_for));
  return text;
}

} // namespace

std::string dot_of(const Account& account) {
  const Graph& graph = account.graph;
  std::string text =
    fmt::format("// deltawire plan {}: thick frames have a thread of their own; dashed arrows say what "
                "the arrow the other way waits for\n",
                quoted(account.topology.file));
  text += "digraph deltawire {\n"
          "  rankdir=LR;\n"
          "  node [shape=box, fontname=\"sans-serif\"];\n"
          "  edge [fontname=\"sans-serif\", fontsize=10];\n";
  for (const PeersMemory& peers : account.memory.peers) {
    const std::string label =
      fmt::format("{}{}: at most {} of payload{}", name_of(graph, peers.peers),
                  peers.peers == Peers::root ? ", the root" : "", cap_text(peers.most), peers.count > 1 ? " each" : "");
    text += fmt::format("  subgraph {} {{\n    label={};\n", quoted(fmt::format("cluster_{}", to_string(peers.peers))),
                        quoted(label));
    for (const Node& node : graph.nodes)
      if (node.peers == peers.peers)
        text += node_text(node);
    text += "  }\n";
  }
  for (const Arrow& arrow : graph.arrows)
    text += arrow_text(graph, arrow);
  return text + "}\n";
}

} // namespace deltawire::plan
