#include "account.hpp"

#include <algorithm>

namespace deltawire::plan {

namespace {

using Row = std::vector<std::string>;
using Table = std::vector<Row>;

constexpr std::size_t widest = 120;
/// Slots that are listed by name; JSON has them all.
constexpr std::size_t unused_named = 20;

/// Columns as wide as their widest cell, two spaces apart; the first `left` of them to the left, the others to the
/// right. The first row is the heading.
std::string aligned(const Table& table, std::size_t left) {
  std::vector<std::size_t> widths;
  for (const Row& row : table) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c)
      widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const Row& row : table) {
    std::string line = " ";
    for (std::size_t c = 0; c < row.size(); ++c)
      line += c < left ? fmt::format(" {:<{}} ", row[c], widths[c]) : fmt::format(" {:>{}} ", row[c], widths[c]);
    text.append(line, 0, line.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

/// Words of `text`, in lines of at most `widest` columns, the first after `first`, the others indented.
std::string wrapped(const std::string& text, const std::string& first, const std::string& next) {
  std::string out = first;
  std::size_t column = first.size();
  bool fresh = true;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    if (!fresh && column + 1 + (end - begin) > widest) {
      out += "\n" + next;
      column = next.size();
      fresh = true;
    }
    if (!fresh) {
      out += ' ';
      ++column;
    }
    out.append(text, begin, end - begin);
    column += end - begin;
    fresh = false;
    begin = end + 1;
  }
  return out + "\n";
}

std::string mesh_text(const layout::Mesh& mesh) {
  std::string text;
  for (const layout::Axis& axis : mesh.axes())
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis.name, axis.size);
  return text.empty() ? "no axes" : text;
}

std::string coordinates_text(const layout::Mesh& mesh, const std::vector<layout::Index>& coordinates) {
  std::string text;
  for (std::size_t a = 0; a < coordinates.size(); ++a)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", mesh.axes()[a].name, coordinates[a]);
  return text;
}

std::string plural(std::uint64_t count, std::string_view one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

class Text {
public:
  explicit Text(const Account& account)
    : account_(account), topology_(account.topology), graph_(account.graph), arrows_(distinct_arrows()) {}

  std::string make() {
    out_ = fmt::format("{}: {} ({}), {} in {} ({})\n", topology_.file, plural(graph_.ranks, "trainer rank"),
                       mesh_text(topology_.trainer.mesh), plural(graph_.workers, "worker"),
                       plural(graph_.replicas, "replica"), mesh_text(topology_.worker.mesh));
    draw();
    list_arrows();
    list_memory();
    list_coverage();
    list("remarks", account_.remarks);
    list("trusted planes", account_.trusted_planes);
    return std::move(out_);
  }

private:
  struct Listed {
    const Arrow* arrow = nullptr;
    bool on_every_rank = false; ///< the same arrow exists on the root and on the other ranks
  };

  [[nodiscard]] const Node& node(std::size_t index) const { return graph_.nodes[index]; }

  [[nodiscard]] bool within(const Arrow& arrow, Peers peers) const {
    return node(arrow.from).peers == peers && node(arrow.to).peers == peers;
  }

  /// Each arrow once, whoever has it; what every rank has comes first. Reading memory is no arrow to wait on.
  [[nodiscard]] std::vector<Listed> distinct_arrows() const {
    std::vector<Listed> listed;
    for (const Arrow& arrow : graph_.arrows) {
      if (within(arrow, Peers::ranks) || node(arrow.from).thread == Thread::memory)
        continue;
      const bool also_on_others = std::any_of(graph_.arrows.begin(), graph_.arrows.end(), [&](const Arrow& other) {
        return within(other, Peers::ranks) && node(other.from).name == node(arrow.from).name &&
               node(other.to).name == node(arrow.to).name;
      });
      listed.push_back({&arrow, also_on_others});
    }
    return listed;
  }

  /// "--3-->" for the arrow between the two actors of these names; `peers` = where it ends.
  [[nodiscard]] std::string number(std::string_view from, std::string_view to, Peers peers) const {
    for (std::size_t i = 0; i < arrows_.size(); ++i)
      if (const Arrow& arrow = *arrows_[i].arrow;
          node(arrow.from).name == from && node(arrow.to).name == to && node(arrow.to).peers == peers)
        return std::to_string(i + 1);
    return {};
  }

  void draw() {
    const std::string left =
      fmt::format("    snapshotter --{}--> differ x{} --{}--> ", number("snapshotter", "differ", Peers::root),
                  topology_.actors.differ.count, number("differ", "gather queue", Peers::root));
    const std::string right =
      fmt::format("gather queue --{}--> flush bucket --{}--> ", number("gather queue", "flush bucket", Peers::root),
                  number("flush bucket", "sender", Peers::root));
    const std::string to_memory = number("applier", "bound memory", Peers::workers);
    const std::string root = "rank 0, the root";

    out_ += "\nactors\n";
    if (graph_.ranks == 1) {
      out_ += fmt::format("  {}\n{}{}sender\n", root, left, right);
    } else {
      out_ += fmt::format("  each of ranks 0-{}\n{}gather queue\n", graph_.ranks - 1, left);
      draw_down(left.size(), number("gather queue", "gather queue", Peers::root));
      out_ += fmt::format("  {:<{}}{}sender\n", root, left.size() - 2, right);
    }
    draw_down(left.size() + right.size(), number("sender", "applier", Peers::workers));
    out_ += fmt::format("  {:<{}}applier --{}--> bound memory\n",
                        (graph_.workers == 1 ? "" : "each of ") + name_of(graph_, Peers::workers),
                        left.size() + right.size() - 2, to_memory);
    say_threads();
    say_connections();
  }

  /// The arrow of this number, down from one kind of peer to another.
  void draw_down(std::size_t column, const std::string& number) {
    const std::string indent(column + 2, ' '); // under the third letter of the actor
    const Arrow& arrow = *arrows_[std::stoul(number) - 1].arrow;
    out_ += fmt::format("{0}|{1} ({2})\n{0}v\n", indent, number, to_string(arrow.over));
  }

  void say_connections() {
    if (graph_.connections() == 0) {
      out_ += "  All of them meet in one process: nobody listens.\n";
      return;
    }
    const std::string& master = topology_.transport.master;
    std::vector<std::string_view> peers;
    if (graph_.connecting_ranks > 0)
      peers.emplace_back("of each other rank");
    if (graph_.connecting_workers > 0)
      peers.emplace_back("of each worker");
    out_ += wrapped(fmt::format("Rank 0 listens at {} for {}: control and data {}.",
                                master.empty() ? "DELTAWIRE_MASTER (transport.master is not set)" : master,
                                plural(graph_.connections(), "connection"), fmt::join(peers, " and ")),
                    "  ", "  ");
  }

  void say_threads() {
    std::string own;
    for (const Node& each : graph_.nodes)
      if (each.thread == Thread::own && own.find(each.name) == std::string::npos)
        own += fmt::format("{}{}", own.empty() ? "" : ", ", each.name);
    out_ += wrapped(fmt::format("A supervisor on each spawns and watches them. With a thread of their own: {}; the "
                                "others share the pool of their process (a thread a processor, at least 2).",
                                own),
                    "  ", "  ");
  }

  [[nodiscard]] std::string where(const Listed& listed) const {
    if (listed.on_every_rank)
      return "each rank";
    const Peers from = node(listed.arrow->from).peers;
    const Peers to = node(listed.arrow->to).peers;
    const auto name = [&](Peers peers) {
      return peers == Peers::workers ? std::string("each worker") : name_of(graph_, peers);
    };
    return from == to ? name(from) : fmt::format("{} to {}", name(from), name(to));
  }

  void list_arrows() {
    Table table{{"", "where", "carries", "over", "at most", "bounded by", "waits for"}};
    for (std::size_t i = 0; i < arrows_.size(); ++i) {
      const Arrow& arrow = *arrows_[i].arrow;
      table.push_back({std::to_string(i + 1), where(arrows_[i]), arrow.carries, std::string(to_string(arrow.over)),
                       cap_text(arrow.at_most), arrow.key, arrow.waits_for});
    }
    out_ += "\narrows\n" + aligned(table, 7);
  }

  void list_memory() {
    const std::vector<PeersMemory>& peers = account_.memory.peers;
    Table table{{"stage", "bounded by"}};
    for (const PeersMemory& each : peers)
      table.front().push_back(name_of(graph_, each.peers) + (each.count > 1 ? ", each" : ""));
    for (std::size_t p = 0; p < peers.size(); ++p)
      for (const Bound& bound : peers[p].bounds) {
        auto row = std::find_if(table.begin() + 1, table.end(), [&](const Row& r) { return r[0] == bound.stage; });
        if (row == table.end()) {
          table.push_back({bound.stage, bound.key.empty() ? "the tensors" : bound.key});
          table.back().resize(2 + peers.size(), "-");
          row = table.end() - 1;
        }
        (*row)[2 + p] = cap_text(bound.most);
      }
    table.push_back({"together", ""});
    for (const PeersMemory& each : peers)
      table.back().push_back(cap_text(each.most));
    out_ += "\nmemory, payload at most; tensors and spare room in buffers come on top\n" + aligned(table, 2);
    for (const ProcessMemory& process : account_.memory.processes)
      if (process.together) {
        std::string names;
        for (const Peers each : process.holds)
          names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(graph_, each));
        out_ += fmt::format("  one process holds {} (inproc): {}\n", names, cap_text(process.most));
      }
  }

  void list_coverage() {
    if (!account_.coverage)
      return;
    const Coverage& coverage = *account_.coverage;
    out_ += fmt::format("\n{}: {}, {}, {}, {}\n", coverage.checkpoint, plural(coverage.parameters, "parameter"),
                        plural(coverage.slots, "slot"), plural(coverage.elements, "element"), cap_text(coverage.bytes));
    out_ += fmt::format("  {}, {}, {} (the largest has {})\n", plural(coverage.cells, "cell"),
                        plural(coverage.blocks, "block"), plural(coverage.windows, "window"),
                        cap_text(coverage.largest_window));
    list_ranks(coverage);
    list_workers(coverage);
    list_unused(coverage);
  }

  void list_ranks(const Coverage& coverage) {
    Table table{
      {"rank", "", "parameters", "holds", "|", "owns slots", "elements", "bytes", "blocks", "chunks", "snapshot"}};
    RankCoverage sum;
    for (std::size_t r = 0; r < coverage.ranks.size(); ++r) {
      const RankCoverage& rank = coverage.ranks[r];
      table.push_back(rank_row(std::to_string(r), coordinates_text(topology_.trainer.mesh, rank.coordinates), rank));
      sum.held_bytes += rank.held_bytes;
      sum.elements += rank.elements;
      sum.bytes += rank.bytes;
      sum.blocks += rank.blocks;
      sum.chunks += rank.chunks;
      sum.snapshot_bytes += rank.snapshot_bytes;
    }
    sum.parameters = coverage.parameters;
    sum.slots = coverage.slots;
    table.push_back(rank_row("all", "", sum));
    out_ += "\ntrainer: every element of every slot has exactly one owner\n" + aligned(table, 2);
    for (const CastParameters& cast : coverage.casts)
      out_ += wrapped(fmt::format("wire_dtype: {} of {} {} compared and sent as {}, and so snapshots hold them",
                                  plural(cast.parameters, "parameter"), to_string(cast.from),
                                  cast.parameters == 1 ? "is" : "are", to_string(cast.to)),
                      "  ", "    ");
  }

  static Row rank_row(std::string name, std::string coordinates, const RankCoverage& rank) {
    return {std::move(name),
            std::move(coordinates),
            std::to_string(rank.parameters),
            cap_text(rank.held_bytes),
            "|",
            std::to_string(rank.slots),
            std::to_string(rank.elements),
            cap_text(rank.bytes),
            std::to_string(rank.blocks),
            std::to_string(rank.chunks),
            cap_text(rank.snapshot_bytes)};
  }

  void list_workers(const Coverage& coverage) {
    Table table{{"worker", "", "replica", "parameters", "|", "reads slots", "elements", "bytes", "blocks", "padding"}};
    for (std::size_t w = 0; w < coverage.workers.size(); ++w) {
      const WorkerCoverage& worker = coverage.workers[w];
      table.push_back({std::to_string(w), coordinates_text(topology_.worker.mesh, worker.coordinates),
                       std::to_string(worker.replica), std::to_string(worker.parameters), "|",
                       std::to_string(worker.slots), std::to_string(worker.elements), cap_text(worker.bytes),
                       std::to_string(worker.blocks), std::to_string(worker.padding)});
    }
    out_ += "\nworkers: everything that a worker reads has an owner\n" + aligned(table, 2);
  }

  void list_unused(const Coverage& coverage) {
    if (coverage.unused.empty()) {
      out_ += "  every slot is read by a worker\n";
      return;
    }
    std::string names;
    for (std::size_t i = 0; i < std::min(coverage.unused.size(), unused_named); ++i)
      names += fmt::format("{}{}", names.empty() ? "" : ", ", coverage.unused[i].slot);
    if (coverage.unused.size() > unused_named)
      names += fmt::format(" and {} more", coverage.unused.size() - unused_named);
    out_ += wrapped(fmt::format("read by no worker, and listed as unused: {}", names), "  ", "    ");
  }

  void list(std::string_view heading, const std::vector<std::string>& lines) {
    if (lines.empty())
      return;
    out_ += fmt::format("\n{}\n", heading);
    for (const std::string& line : lines)
      out_ += wrapped(line, "  - ", "    ");
  }

  const Account& account_;
  const config::Topology& topology_;
  const Graph& graph_;
  std::vector<Listed> arrows_;
  std::string out_;
};

} // namespace

std::string text_of(const Account& account) {
  return Text(account).make();
}

} // namespace deltawire::plan
