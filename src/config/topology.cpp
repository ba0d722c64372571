#include "config/topology.hpp"

#include "config/address.hpp"
#include "config/document.hpp"
#include "config/section.hpp"
#include "config/units.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace deltawire::config {

namespace {

constexpr std::uint32_t most_differs = 1024;

void read_mesh(Section& side, layout::Mesh& out) {
  const Value* mesh = side.take("mesh", Value::Kind::array);
  if (mesh == nullptr)
    return;
  std::vector<layout::Axis> axes;
  bool complete = true;
  const auto refuse_axis = [&](std::size_t number, std::string_view message) {
    side.refuse(Code::invalid_topology, "mesh", fmt::format("axis {}: {}", number, message));
    complete = false;
  };
  for (std::size_t i = 0; i < mesh->items.size(); ++i) {
    const Value& pair = mesh->items[i];
    if (pair.kind != Value::Kind::array || pair.items.size() != 2 || pair.items[0].kind != Value::Kind::text ||
        pair.items[1].kind != Value::Kind::integer) {
      refuse_axis(i, "must be a name and a size, e.g. [\"tp\", 2]");
      continue;
    }
    layout::Axis axis{pair.items[0].text, pair.items[1].integer};
    const auto repeats = [&](const layout::Axis& other) { return other.name == axis.name; };
    if (axis.name.empty())
      refuse_axis(i, "has no name");
    else if (axis.size < 1)
      refuse_axis(i, fmt::format("\"{}\" has size {}; the least is 1", axis.name, axis.size));
    else if (std::any_of(axes.begin(), axes.end(), repeats))
      refuse_axis(i, fmt::format("\"{}\" is named twice", axis.name));
    else
      axes.push_back(std::move(axis));
  }
  if (!complete)
    return;
  auto made = layout::Mesh::make(std::move(axes));
  if (made)
    out = std::move(*made);
  else
    side.refuse(Code::invalid_topology, "mesh", made.error().message);
}

/// `axes = { ep = ["dp", "tp"] }`
void read_axes(Section& section, std::vector<layout::JoinedAxis>& out) {
  const Value* table = section.take("axes", Value::Kind::table);
  if (table == nullptr)
    return;
  for (std::size_t i = 0; i < table->keys.size(); ++i) {
    layout::JoinedAxis joined{table->keys[i], {}};
    const Value& list = table->items[i];
    const bool are_names = list.kind == Value::Kind::array && !list.items.empty() &&
                           std::all_of(list.items.begin(), list.items.end(),
                                       [](const Value& item) { return item.kind == Value::Kind::text; });
    if (!are_names) {
      section.refuse(
        Code::invalid_topology, "axes",
        fmt::format("\"{}\" must be an array of axes of the mesh, e.g. {{ ep = [\"dp\", \"tp\"] }}", joined.name));
      continue;
    }
    for (const Value& item : list.items)
      joined.axes.push_back(item.text);
    out.push_back(std::move(joined));
  }
}

/// `sizes = { tp = [2, 3] }`, `on = { pp = [0] }`
void read_axis_numbers(Section& section, std::string_view key, std::vector<layout::AxisNumbers>& out) {
  const Value* table = section.take(key, Value::Kind::table);
  if (table == nullptr)
    return;
  for (std::size_t i = 0; i < table->keys.size(); ++i) {
    layout::AxisNumbers numbers{table->keys[i], {}};
    const Value& list = table->items[i];
    const bool are_numbers = list.kind == Value::Kind::array && !list.items.empty() &&
                             std::all_of(list.items.begin(), list.items.end(), [](const Value& item) {
                               return item.kind == Value::Kind::integer && item.integer >= 0;
                             });
    if (!are_numbers) {
      section.refuse(
        Code::invalid_topology, key,
        fmt::format("\"{}\" must be an array of whole numbers from 0, e.g. {{ tp = [2, 3] }}", numbers.axis));
      continue;
    }
    for (const Value& item : list.items)
      numbers.numbers.push_back(item.integer);
    out.push_back(std::move(numbers));
  }
}

/// Nothing where it is not given, or wrong.
std::optional<layout::WireDType> read_wire_dtype(Section& section) {
  const Value* value = section.take("wire_dtype", Value::Kind::text);
  if (value == nullptr)
    return std::nullopt;
  const auto wire = layout::wire_dtype_from_name(value->text);
  if (!wire)
    section.refuse(Code::invalid_topology, "wire_dtype",
                   fmt::format("\"{}\" is not \"keep\", \"bfloat16\", \"float16\" or \"float32\"", value->text));
  return wire;
}

layout::PlacementRule read_placement(const Value& table, const std::string& path, bool is_worker, ErrorList& errors) {
  layout::PlacementRule rule;
  rule.where = table.place.text();
  Section section{&table, path, errors};
  section.read_text("parameter", rule.parameter, true);
  section.read_texts("shard", rule.shard, true);
  read_axis_numbers(section, "sizes", rule.options.sizes);
  read_axes(section, rule.options.axes);
  read_axis_numbers(section, "on", rule.options.on);
  if (!is_worker)
    rule.wire_dtype = read_wire_dtype(section);
  section.finish();
  return rule;
}

/// Numbers of kept dims; what they must be among each other is checked where the map is compiled.
std::vector<layout::Index> read_permute(Section& section) {
  const Value* array = section.take("permute", Value::Kind::array);
  std::vector<layout::Index> permute;
  if (array == nullptr)
    return permute;
  for (const Value& item : array->items) {
    if (item.kind != Value::Kind::integer || item.integer < 0) {
      section.refuse(Code::invalid_topology, "permute", "must be an array of the kept dims' numbers, e.g. [1, 0, 2]");
      return {};
    }
    permute.push_back(item.integer);
  }
  if (permute.empty())
    section.refuse(Code::invalid_topology, "permute", "names no dim; leave it out where the order stays");
  return permute;
}

layout::MapRule read_map(const Value& table, const std::string& path, ErrorList& errors) {
  layout::MapRule rule;
  rule.where = table.place.text();
  Section section{&table, path, errors};
  section.read_text("parameter", rule.parameter, true);
  section.read_text("slot", rule.slot);
  section.read_text("view", rule.view);
  section.read_text("slice", rule.slice);
  section.read_flag("transpose", rule.transpose);
  rule.permute = read_permute(section);
  section.read_text("slot_view", rule.slot_view);
  section.read_text("slot_slice", rule.slot_slice);
  if (section.has("shard"))
    section.read_texts("shard", rule.shard.emplace());
  else
    for (const std::string_view key : {"sizes", "axes"})
      if (section.has(key))
        section.refuse(Code::invalid_topology, key, "belongs to the map's own \"shard\", which is not given");
  section.take("shard");
  read_axis_numbers(section, "sizes", rule.options.sizes);
  read_axes(section, rule.options.axes);
  section.finish();
  return rule;
}

std::optional<layout::Shape> read_shape(Section& section) {
  const Value* array = section.take("shape", Value::Kind::array);
  if (array == nullptr)
    return std::nullopt;
  layout::Shape shape;
  for (const Value& item : array->items) {
    if (item.kind != Value::Kind::integer || item.integer < 0) {
      section.refuse(Code::invalid_topology, "shape", "must be an array of extents of 0 and more, e.g. [152064, 1024]");
      return std::nullopt;
    }
    shape.push_back(item.integer);
  }
  if (auto count = layout::element_count(shape); !count) {
    section.refuse(Code::invalid_topology, "shape", count.error().message);
    return std::nullopt;
  }
  return shape;
}

layout::ParameterRule read_parameter(const Value& table, const std::string& path, ErrorList& errors) {
  layout::ParameterRule rule;
  rule.where = table.place.text();
  Section section{&table, path, errors};
  section.read_text("name", rule.name, true);
  rule.shape = read_shape(section);
  section.read_flag("padding", rule.padding);
  section.finish();
  return rule;
}

layout::SideRules read_side(const Value* table, const std::string& path, bool is_worker, ErrorList& errors) {
  layout::SideRules side;
  Section section{table, path, errors};
  read_mesh(section, side.mesh);
  for (const Value* item : section.tables("placement"))
    side.placements.push_back(read_placement(*item, path + ".placement", is_worker, errors));
  for (const Value* item : section.tables("map"))
    side.maps.push_back(read_map(*item, path + ".map", errors));
  for (const Value* item : section.tables("parameter"))
    side.parameters.push_back(read_parameter(*item, path + ".parameter", errors));
  read_axes(section, side.axes);
  if (is_worker) {
    section.read_texts("unused", side.unused);
    if (const auto dp = side.mesh.find("dp"); dp && *dp != 0)
      section.refuse(Code::invalid_topology, "mesh", "\"dp\" counts replicas and must be the outermost (first) axis");
  }
  section.finish();
  return side;
}

void read_transport(const Value* table, Transport& out, ErrorList& errors) {
  Section section{table, "transport", errors};
  if (const Value* secret = section.take("secret_file", Value::Kind::text);
      secret != nullptr && !secret->text.empty()) {
    const std::filesystem::path path(secret->text);
    const bool in_a_file = secret->place.line != 0;
    out.secret_file = in_a_file && path.is_relative()
                        ? (std::filesystem::path(secret->place.file).parent_path() / path).lexically_normal().string()
                        : secret->text;
  }
  if (const Value* master = section.take("master", Value::Kind::text); master != nullptr && !master->text.empty()) {
    if (auto address = parse_master(master->text, !out.secret_file.empty()))
      out.master = master->text;
    else
      section.refuse(address.error().code, "master", address.error().message);
  }
  section.finish();
}

void read_verify(Section& section, Update& out) {
  const Value* value = section.take("verify", Value::Kind::text);
  if (value == nullptr || value->text == "digest")
    return;
  const std::string_view text = value->text;
  const std::string_view interval = text.starts_with("audit:") ? text.substr(6) : "";
  const bool is_audit = !interval.empty() && interval.find_first_not_of("0123456789") == std::string_view::npos &&
                        interval.find_first_not_of('0') != std::string_view::npos;
  if (text == "off")
    out.verify = Verify::off;
  else if (is_audit &&
           std::from_chars(interval.data(), interval.data() + interval.size(), out.audit_every).ec != std::errc())
    section.refuse(Code::invalid_topology, "verify",
                   fmt::format("\"{}\" would never audit: more updates than can be counted (the most is {}); use "
                               "\"digest\" to have no audits",
                               text, std::numeric_limits<std::uint64_t>::max()));
  else if (!is_audit)
    section.refuse(Code::invalid_topology, "verify",
                   fmt::format("\"{}\" is not \"off\", \"digest\" or \"audit:K\" with K of 1 and more", text));
}

void read_quorum(Section& section, std::uint32_t& out, layout::Index replicas) {
  const Value* value = section.take("quorum");
  if (value == nullptr || (value->kind == Value::Kind::text && value->text == "all"))
    return;
  if (value->kind == Value::Kind::integer && value->integer >= 1)
    out = static_cast<std::uint32_t>(std::min<std::int64_t>(value->integer, std::numeric_limits<std::uint32_t>::max()));
  else
    section.refuse(Code::invalid_topology, "quorum", "must be \"all\" or a number of replicas of 1 and more");
  if (out > replicas)
    section.refuse(Code::invalid_topology, "quorum",
                   fmt::format("{} replicas, and the worker mesh has {}", out, replicas));
}

/// `inner` must end before `outer`. The error is at whichever of the two the user wrote, the inner one first.
void check_nesting(Section& section, std::string_view inner, Duration inner_length, std::string_view outer,
                   Duration outer_length) {
  if (inner_length < outer_length)
    return;
  const bool inner_was_given = section.has(inner);
  const bool outer_was_given = section.has(outer);
  const auto described = [&](std::string_view key, Duration length, bool given) {
    return fmt::format("update.{} ({}{})", key, duration_text(length), given ? "" : " by default");
  };
  section.refuse(Code::invalid_topology, inner_was_given ? inner : outer,
                 fmt::format("deadlines nest: {} must be shorter than {}",
                             described(inner, inner_length, inner_was_given),
                             described(outer, outer_length, outer_was_given)));
}

void read_update(const Value* table, Update& out, layout::WireDType& wire_dtype, layout::Index replicas,
                 ErrorList& errors) {
  Section section{table, "update", errors};
  wire_dtype = read_wire_dtype(section).value_or(layout::WireDType{});
  if (const auto seed = section.read_choice("seed"))
    out.seed = *seed == 1 ? Seed::if_different : Seed::always;
  read_verify(section, out);
  section.read_duration("connect", out.connect);
  section.read_duration("reconnect", out.reconnect);
  section.read_duration("stall", out.stall);
  section.read_duration("engine", out.engine);
  section.read_duration("timeout", out.timeout);
  check_nesting(section, "stall", out.stall, "timeout", out.timeout);
  check_nesting(section, "engine", out.engine, "timeout", out.timeout);
  if (const auto busy = section.read_choice("busy"))
    out.busy = *busy == 1 ? Busy::fold : Busy::wait;
  read_quorum(section, out.quorum, replicas);
  section.finish();
}

/// `master`: transport.master, empty where the environment says it, which is looked at when a process opens.
TransportKind read_transport_kind(Section& section, const std::string& master) {
  const auto choice = section.read_choice("transport");
  constexpr TransportKind kinds[] = {TransportKind::automatic, TransportKind::inproc, TransportKind::tcp,
                                     TransportKind::shm};
  const TransportKind kind = kinds[choice.value_or(0)];
  if (const auto address = parse_address(master);
      kind == TransportKind::shm && !master.empty() && address && !is_loopback(address->host))
    section.refuse(Code::invalid_topology, "transport",
                   fmt::format("\"shm\" joins processes of one host, and transport.master, \"{}\", is not a loopback "
                               "address: use \"tcp\", or 127.x.x.x, localhost or [::1] where all run on this host",
                               master));
  return kind;
}

void read_actors(const Value* table, const std::string& master, Actors& out, ErrorList& errors) {
  Section actors{table, "actors", errors};
  {
    Section section{actors.table("snapshotter"), "actors.snapshotter", errors};
    constexpr Tier tiers[] = {Tier::automatic, Tier::host, Tier::device};
    out.snapshotter.tier = tiers[section.read_choice("tier").value_or(0)];
    section.read_cap("log", out.snapshotter.log);
    section.finish();
  }
  {
    Section section{actors.table("differ"), "actors.differ", errors};
    section.read_count("count", out.differ.count, most_differs);
    section.read_size("chunk", out.differ.chunk);
    section.read_cap("inflight", out.differ.inflight);
    if (const auto choice = section.read_choice("thread"))
      out.differ.thread = *choice == 0 ? ThreadKind::pool : ThreadKind::detached;
    section.finish();
  }
  {
    Section section{actors.table("gather_queue"), "actors.gather_queue", errors};
    out.gather_queue.transport = read_transport_kind(section, master);
    section.read_cap("window", out.gather_queue.window);
    section.read_cap("max_round", out.gather_queue.max_round);
    section.finish();
  }
  {
    Section section{actors.table("flush_bucket"), "actors.flush_bucket", errors};
    section.read_cap("cap", out.flush_bucket.cap);
    if (const auto choice = section.read_choice("positions"))
      out.flush_bucket.positions = static_cast<PositionChoice>(*choice);
    if (const auto choice = section.read_choice("values"))
      out.flush_bucket.values = static_cast<ValueChoice>(*choice);
    if (section.read_choice("compression").value_or(0) == 1) {
      out.flush_bucket.compression = Compression::zstd;
#ifndef DELTAWIRE_HAS_ZSTD
      section.refuse(Code::unsupported, "compression",
                     "this deltawire was built without zstd: build it where libzstd-dev is installed, or use \"none\"");
#endif
    }
    section.finish();
  }
  {
    Section section{actors.table("sender"), "actors.sender", errors};
    out.sender.transport = read_transport_kind(section, master);
    if (const auto route = section.read_choice("route"))
      out.sender.route = *route == 1 ? Route::broadcast : Route::rank_local;
    section.finish();
  }
  {
    Section section{actors.table("applier"), "actors.applier", errors};
    section.read_cap("stage", out.applier.stage);
    section.read_choice("overflow"); // each that is not refused says what a worker does
    section.finish();
  }
  actors.finish();
}

void read_telemetry(const Value* table, Telemetry& out, ErrorList& errors) {
  Section section{table, "telemetry", errors};
  section.read_text("trace", out.trace);
  section.read_text("flushes", out.flushes);
  if (const Value* prometheus = section.take("prometheus", Value::Kind::text)) {
    if (auto address = parse_address(prometheus->text))
      out.prometheus = prometheus->text;
    else
      section.refuse(address.error().code, "prometheus", address.error().message);
  }
  section.finish();
}

} // namespace

std::uint64_t most_shared(std::uint64_t cap) noexcept {
  return std::clamp<std::uint64_t>(cap, 32ull << 20, 1ull << 30);
}

layout::Index Topology::workers_per_replica() const noexcept {
  const auto dp = worker.mesh.find("dp");
  return dp ? worker.mesh.size() / worker.mesh.axes()[*dp].size : worker.mesh.size();
}

Result<Topology> load(const std::string& path, std::span<const std::string> overrides) {
  ErrorList errors;
  Value root = read_document(path, errors);
  if (root.place.file.empty())
    return tl::make_unexpected(errors.to_failure()); // not read at all: nothing else can be said about it
  for (std::size_t i = 0; i < overrides.size(); ++i) {
    constexpr std::uint32_t after_all_files = 1u << 16;
    auto applied = apply_override(root, overrides[i], after_all_files + static_cast<std::uint32_t>(i), errors);
    if (!applied)
      return pass_on<void>(std::move(applied));
  }

  Topology topology;
  topology.file = path;
  Section section{&root, "", errors};
  topology.trainer = read_side(section.table("trainer"), "trainer", false, errors);
  topology.worker = read_side(section.table("worker"), "worker", true, errors);
  read_transport(section.table("transport"), topology.transport, errors);
  read_update(section.table("update"), topology.update, topology.trainer.wire_dtype,
              topology.worker.mesh.size() / topology.workers_per_replica(), errors);
  read_actors(section.table("actors"), topology.transport.master, topology.actors, errors);
  read_telemetry(section.table("telemetry"), topology.telemetry, errors);
  section.take("include"); // followed by read_document
  section.finish();
  if (!errors.empty())
    return tl::make_unexpected(errors.to_failure());
  return topology;
}

} // namespace deltawire::config
