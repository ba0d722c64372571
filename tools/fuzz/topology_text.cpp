#include "topology_text.hpp"

#include "config/units.hpp"

namespace deltawire::fuzz {
namespace {

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '"' || c == '\\')
      result += fmt::format("\\u{:04x}", static_cast<unsigned>(byte));
    else
      result += c;
  }
  return result + "\"";
}

template <class List, class Show>
std::string list(const List& items, Show&& show) {
  std::string text = "[";
  for (const auto& item : items)
    text += (text.size() == 1 ? "" : ", ") + show(item);
  return text + "]";
}

std::string texts(const std::vector<std::string>& items) {
  return list(items, quoted);
}

std::string axes_text(const std::vector<layout::JoinedAxis>& axes) {
  std::string text;
  for (const layout::JoinedAxis& axis : axes)
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", quoted(axis.name), texts(axis.axes));
  return fmt::format("axes = {{ {} }}\n", text);
}

std::string numbers_text(std::string_view key, const std::vector<layout::AxisNumbers>& numbers) {
  std::string text;
  for (const layout::AxisNumbers& one : numbers)
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", quoted(one.axis), layout::to_string(one.numbers));
  return fmt::format("{} = {{ {} }}\n", key, text);
}

std::string options_text(const layout::CutOptions& options, bool may_leave_out) {
  std::string text = numbers_text("sizes", options.sizes) + axes_text(options.axes);
  return may_leave_out ? text + numbers_text("on", options.on) : text;
}

std::string text_unless_empty(std::string_view key, std::string_view value) {
  return value.empty() ? "" : fmt::format("{} = {}\n", key, quoted(value));
}

std::string map_text(const layout::MapRule& rule) {
  std::string text = text_unless_empty("parameter", rule.parameter) + text_unless_empty("slot", rule.slot) +
                     text_unless_empty("view", rule.view) + text_unless_empty("slice", rule.slice) +
                     text_unless_empty("slot_view", rule.slot_view) + text_unless_empty("slot_slice", rule.slot_slice);
  if (rule.transpose)
    text += "transpose = true\n";
  if (!rule.permute.empty())
    text += fmt::format("permute = {}\n", layout::to_string(rule.permute));
  if (rule.shard)
    text += fmt::format("shard = {}\n", texts(*rule.shard)) + options_text(rule.options, false);
  return text;
}

std::string side_text(std::string_view name, const layout::SideRules& side, bool is_worker) {
  std::string text = fmt::format("[{}]\nmesh = {}\n", name, list(side.mesh.axes(), [](const layout::Axis& axis) {
                                   return fmt::format("[{}, {}]", quoted(axis.name), axis.size);
                                 }));
  text += axes_text(side.axes);
  if (is_worker)
    text += fmt::format("unused = {}\n", texts(side.unused));
  for (const layout::PlacementRule& rule : side.placements)
    text += fmt::format("[[{}.placement]]\nparameter = {}\nshard = {}\n{}", name, quoted(rule.parameter),
                        texts(rule.shard), options_text(rule.options, true));
  for (const layout::MapRule& rule : side.maps)
    text += fmt::format("[[{}.map]]\n{}", name, map_text(rule));
  for (const layout::ParameterRule& rule : side.parameters) {
    text += fmt::format("[[{}.parameter]]\nname = {}\npadding = {}\n", name, quoted(rule.name), rule.padding);
    if (rule.shape)
      text += fmt::format("shape = {}\n", layout::to_string(*rule.shape));
  }
  return text;
}

std::string cap(std::uint64_t bytes) {
  return bytes == config::unlimited ? "\"unlimited\"" : quoted(config::byte_size_text(bytes));
}

std::string actors_text(const config::Actors& actors) {
  constexpr const char* tiers[] = {"auto", "host", "device"};
  constexpr const char* transports[] = {"auto", "inproc", "tcp", "shm"};
  constexpr const char* positions[] = {"auto", "u8", "u16", "rice", "bitmap", "run", "dense"};
  constexpr const char* values[] = {"auto", "raw", "ulp"};
  const auto transport = [&](config::TransportKind kind) { return transports[static_cast<std::size_t>(kind)]; };
  return fmt::format("[actors]\n"
                     "snapshotter = {{ tier = \"{}\", log = {} }}\n"
                     "differ = {{ count = {}, chunk = {}, inflight = {}, thread = \"{}\" }}\n"
                     "gather_queue = {{ transport = \"{}\", window = {}, max_round = {} }}\n"
                     "flush_bucket = {{ cap = {}, positions = \"{}\", values = \"{}\" }}\n"
                     "sender = {{ route = \"{}\", transport = \"{}\" }}\n"
                     "applier = {{ stage = {} }}\n",
                     tiers[static_cast<std::size_t>(actors.snapshotter.tier)], cap(actors.snapshotter.log),
                     actors.differ.count, cap(actors.differ.chunk), cap(actors.differ.inflight),
                     actors.differ.thread == config::ThreadKind::pool ? "pool" : "detached",
                     transport(actors.gather_queue.transport), cap(actors.gather_queue.window),
                     cap(actors.gather_queue.max_round), cap(actors.flush_bucket.cap),
                     positions[static_cast<std::size_t>(actors.flush_bucket.positions)],
                     values[static_cast<std::size_t>(actors.flush_bucket.values)],
                     actors.sender.route == config::Route::broadcast ? "broadcast" : "rank-local",
                     transport(actors.sender.transport), cap(actors.applier.stage));
}

std::string verify_text(const config::Update& update) {
  if (update.verify == config::Verify::off)
    return "off";
  return update.audit_every == 0 ? "digest" : fmt::format("audit:{}", update.audit_every);
}

} // namespace

std::string topology_text(const config::Topology& topology) {
  const config::Update& update = topology.update;
  const auto duration = [](config::Duration length) { return quoted(config::duration_text(length)); };
  return side_text("trainer", topology.trainer, false) + side_text("worker", topology.worker, true) +
         fmt::format("[transport]\nmaster = {}\n", quoted(topology.transport.master)) +
         text_unless_empty("secret_file", topology.transport.secret_file) +
         fmt::format("[update]\nconnect = {}\nstall = {}\nengine = {}\ntimeout = {}\nbusy = \"{}\"\nquorum = {}\nseed "
                     "= \"{}\"\nverify = \"{}\"\n",
                     duration(update.connect), duration(update.stall), duration(update.engine),
                     duration(update.timeout), update.busy == config::Busy::fold ? "fold" : "wait",
                     update.quorum == 0 ? std::string("\"all\"") : std::to_string(update.quorum),
                     update.seed == config::Seed::always ? "always" : "if-different", verify_text(update)) +
         actors_text(topology.actors);
}

} // namespace deltawire::fuzz
