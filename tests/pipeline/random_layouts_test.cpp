// Random meshes, cuts and packings, end to end against a full copy. Where each element lies is found by loops over
// lists of positions; nothing is taken from src/layout but what the topology says in words.

#include "cast_oracle.hpp"
#include "catch.hpp"
#include "random.hpp"
#include "session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <numeric>

using namespace deltawire;
using namespace deltawire::test;

namespace {

using Index = std::int64_t;
using Shape = std::vector<Index>;
using Positions = std::vector<Index>;

struct Axis {
  std::string name;
  Index size = 1;
};

struct Cut {
  std::size_t axis = 0;
  std::size_t dim = 0;
  bool by_slice = false;
};

/// A parameter of one side: full shape, what each element is, how it is cut.
struct Full {
  std::string name;
  DType dtype = DType::bf16;
  Shape shape;
  std::vector<Place> places;   // row-major over the full shape
  std::vector<Index> row_cuts; // boundaries on dim 0 of what the maps keep: segments of a by-slice cut
  std::string maps;            // TOML, "SIDE" for the side's name
  std::vector<Cut> cuts;
  std::optional<DType> wire{}; // trainer: what it is cast to
};

Index product(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), Index{1}, std::multiplies<>());
}

class Generator {
public:
  explicit Generator(std::mt19937_64& random) : random_(random) {}

  Scenario make() {
    trainer_mesh_ = mesh({"ep", "fsdp", "tp"}, 6, false);
    worker_mesh_ = mesh({"tp", "cp"}, 4, below(3) == 0);
    const Index groups = 1 + below(3);
    for (Index g = 0; g < groups; ++g)
      add_group(fmt::format("g{}", g));
    // Some orders of adding mix parameters of different groups.
    if (below(2) == 0)
      std::shuffle(trainer_.begin(), trainer_.end(), random_);
    scenario_.topology = side("trainer", trainer_mesh_, trainer_) + side("worker", worker_mesh_, worker_);
    hold(trainer_mesh_, trainer_, scenario_.ranks);
    hold(worker_mesh_, worker_, scenario_.workers);
    add_updates();
    return std::move(scenario_);
  }

private:
  Index below(Index n) { return static_cast<Index>(random_() % static_cast<std::uint64_t>(n)); }

  std::vector<Axis> mesh(const std::vector<std::string>& names, Index most, bool replicas) {
    std::vector<Axis> axes;
    Index size = 1;
    if (replicas) {
      axes.push_back({"dp", 2});
      size = 2;
    }
    for (const std::string& name : names) {
      const Index extent = 1 + below(4);
      if (below(3) != 0 && size * extent <= most) {
        axes.push_back({name, extent});
        size *= extent;
      }
    }
    return axes;
  }

  std::uint64_t random_bits(DType dtype) {
    const std::size_t bits = 8 * size_of(dtype);
    return bits == 64 ? random_() : random_() & ((1ull << bits) - 1);
  }

  std::uint32_t add_tensor(const std::string& name, DType dtype, Index count) {
    Values values{name, dtype, {}};
    for (Index i = 0; i < count; ++i)
      values.bits.push_back(random_bits(dtype));
    scenario_.tensors.push_back(std::move(values));
    return static_cast<std::uint32_t>(scenario_.tensors.size() - 1);
  }

  static std::vector<Place> all_of(std::uint32_t tensor, Index count) {
    std::vector<Place> places;
    for (Index i = 0; i < count; ++i)
      places.push_back({tensor, static_cast<std::uint64_t>(i)});
    return places;
  }

  /// A few slots that either side holds one by one, packed by rows, or stacked.
  void add_group(const std::string& name) {
    const DType dtype = below(3) == 0 ? DType::f32 : static_cast<DType>(below(dtype_count));
    const std::size_t trainer_before = trainer_.size();
    const std::size_t worker_before = worker_.size();
    const Index kind = below(3);
    if (kind == 0)
      add_plain(name, dtype);
    else if (kind == 1)
      add_packed(name, dtype);
    else
      add_stack(name, dtype);
    const DType wire = wire_dtype(dtype);
    wires_.resize(scenario_.tensors.size(), wire);
    if (wire == dtype)
      return;
    for (std::size_t i = trainer_before; i < trainer_.size(); ++i)
      trainer_[i].wire = wire;
    for (std::size_t i = worker_before; i < worker_.size(); ++i)
      worker_[i].dtype = wire;
  }

  DType wire_dtype(DType dtype) {
    if (dtype == DType::f32 && below(4) != 0)
      return below(2) == 0 ? DType::bf16 : DType::f16;
    return (dtype == DType::bf16 || dtype == DType::f16) && below(2) == 0 ? DType::f32 : dtype;
  }

  void add_plain(const std::string& name, DType dtype) {
    Shape shape;
    const Index dims = below(4);
    for (Index d = 0; d < dims; ++d)
      shape.push_back(below(12) == 0 ? 0 : 1 + below(d == 0 ? 9 : 6));
    const std::uint32_t tensor = add_tensor(name, dtype, product(shape));
    const Full full{name, dtype, shape, all_of(tensor, product(shape)), {}, "", {}};
    trainer_.push_back(full);
    worker_.push_back(full);
  }

  /// Slots with rows of their own and equal columns: packed one behind the other, or apart.
  void add_packed(const std::string& name, DType dtype) {
    const Index parts = 2 + below(2), columns = 1 + below(5);
    std::vector<std::string> slots;
    std::vector<Index> rows;
    std::vector<std::uint32_t> tensors;
    for (Index p = 0; p < parts; ++p) {
      slots.push_back(fmt::format("{}.part{}", name, p));
      rows.push_back(1 + below(7));
      tensors.push_back(add_tensor(slots.back(), dtype, rows.back() * columns));
    }
    for (std::vector<Full>* held : {&trainer_, &worker_}) {
      if (below(2) == 0) {
        for (Index p = 0; p < parts; ++p)
          held->push_back({slots[static_cast<std::size_t>(p)],
                           dtype,
                           {rows[static_cast<std::size_t>(p)], columns},
                           all_of(tensors[static_cast<std::size_t>(p)], rows[static_cast<std::size_t>(p)] * columns),
                           {},
                           "",
                           {}});
        continue;
      }
      // Packed in an order of its own.
      std::vector<std::size_t> order(static_cast<std::size_t>(parts));
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random_);
      Full full{name + ".packed", dtype, {0, columns}, {}, {0}, "", {}};
      for (const std::size_t p : order) {
        const auto part = all_of(tensors[p], rows[p] * columns);
        full.places.insert(full.places.end(), part.begin(), part.end());
        full.maps += fmt::format("[[SIDE.map]]\nparameter = \"{}\"\nslice = \"[{}:{}, :]\"\nslot = \"{}\"\n", full.name,
                                 full.shape[0], full.shape[0] + rows[p], slots[p]);
        full.shape[0] += rows[p];
        full.row_cuts.push_back(full.shape[0]);
      }
      held->push_back(std::move(full));
    }
  }

  /// Matrices under numbered names: stacked on the trainer, stacked or apart, perhaps transposed, on the worker.
  void add_stack(const std::string& name, DType dtype) {
    const Index count = 2 + below(4), rows = 1 + below(4), columns = 1 + below(4);
    std::vector<std::uint32_t> tensors;
    for (Index e = 0; e < count; ++e)
      tensors.push_back(add_tensor(fmt::format("{}.{}.weight", name, e), dtype, rows * columns));
    const auto stacked = [&](const std::string& parameter, bool transposed) {
      Full full{parameter, dtype, {count, rows, columns}, {}, {}, "", {}};
      if (transposed)
        std::swap(full.shape[1], full.shape[2]);
      for (const std::uint32_t tensor : tensors)
        for (Index i = 0; i < full.shape[1]; ++i)
          for (Index j = 0; j < full.shape[2]; ++j)
            full.places.push_back({tensor, static_cast<std::uint64_t>(transposed ? j * columns + i : i * columns + j)});
      full.maps = fmt::format("[[SIDE.map]]\nparameter = \"{}\"\nslice = \"[e, :, :]\"\nslot = \"{}.{{e}}.weight\"\n{}",
                              parameter, name, transposed ? "transpose = true\n" : "");
      return full;
    };
    trainer_.push_back(stacked(name + ".stack", below(3) == 0));
    if (below(2) == 0) {
      worker_.push_back(stacked(name + ".experts", below(2) == 0));
      return;
    }
    for (Index e = 0; e < count; ++e)
      worker_.push_back({scenario_.tensors[tensors[static_cast<std::size_t>(e)]].name,
                         dtype,
                         {rows, columns},
                         all_of(tensors[static_cast<std::size_t>(e)], rows * columns),
                         {},
                         "",
                         {}});
  }

  /// Chooses cuts and writes the side's TOML.
  std::string side(const std::string& name, const std::vector<Axis>& axes, std::vector<Full>& held) {
    std::string mesh_text;
    for (const Axis& axis : axes)
      mesh_text += fmt::format("{}[\"{}\", {}]", mesh_text.empty() ? "" : ", ", axis.name, axis.size);
    std::string text = fmt::format("[{}]\nmesh = [{}]\n", name, mesh_text);
    for (Full& full : held) {
      std::vector<std::size_t> order(axes.size());
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random_);
      std::string shard;
      std::vector<bool> whole(full.shape.size(), false);
      for (const std::size_t axis : order) {
        if (axes[axis].name == "dp" || full.shape.empty() || below(4) == 0)
          continue;
        Cut cut{axis, static_cast<std::size_t>(below(static_cast<Index>(full.shape.size()))), false};
        cut.by_slice = cut.dim == 0 && !full.row_cuts.empty() && !whole[0] && below(3) != 0;
        whole[cut.dim] = whole[cut.dim] || !cut.by_slice;
        full.cuts.push_back(cut);
        shard += fmt::format("{}\"{}:{}{}\"", shard.empty() ? "" : ", ", axes[axis].name, cut.dim,
                             cut.by_slice ? " by slice" : "");
      }
      text += fmt::format("[[{}.placement]]\nparameter = \"{}\"\nshard = [{}]\n", name, full.name, shard);
      if (full.wire)
        text += fmt::format("wire_dtype = \"{}\"\n", to_string(*full.wire));
      std::string maps = full.maps;
      for (auto at = maps.find("SIDE"); at != std::string::npos; at = maps.find("SIDE"))
        maps.replace(at, 4, name);
      text += maps;
    }
    return text;
  }

  /// torch.chunk by dealing out `size` positions at a time.
  static Positions chunk(const Positions& positions, Index world, Index coordinate) {
    Index size = 0;
    while (size * world < static_cast<Index>(positions.size()))
      ++size;
    Positions kept;
    for (std::size_t i = 0; i < positions.size(); ++i)
      if (static_cast<Index>(i) / size == coordinate)
        kept.push_back(positions[i]);
    return kept;
  }

  static Positions held_of(const Full& full, std::size_t dim, const std::vector<Axis>& axes,
                           const std::vector<Index>& coordinates) {
    std::vector<Positions> pieces(1);
    const bool sliced =
      std::any_of(full.cuts.begin(), full.cuts.end(), [&](const Cut& cut) { return cut.by_slice && cut.dim == dim; });
    for (Index p = 0; p < full.shape[dim]; ++p) {
      if (sliced && p > 0 && std::count(full.row_cuts.begin(), full.row_cuts.end(), p) > 0)
        pieces.emplace_back();
      pieces.back().push_back(p);
    }
    const auto pack = [&pieces] {
      Positions all;
      for (const Positions& piece : pieces)
        all.insert(all.end(), piece.begin(), piece.end());
      return all;
    };
    for (const Cut& cut : full.cuts) {
      if (cut.dim != dim)
        continue;
      if (!cut.by_slice)
        pieces = {pack()};
      for (Positions& piece : pieces)
        piece = chunk(piece, axes[cut.axis].size, coordinates[cut.axis]);
    }
    return pack();
  }

  void hold(const std::vector<Axis>& axes, const std::vector<Full>& held, std::vector<std::vector<Held>>& members) {
    Index size = 1;
    for (const Axis& axis : axes)
      size *= axis.size;
    for (Index member = 0; member < size; ++member) {
      std::vector<Index> coordinates(axes.size());
      Index rest = member;
      for (std::size_t a = axes.size(); a-- > 0; rest /= axes[a].size)
        coordinates[a] = rest % axes[a].size;
      auto& parameters = members.emplace_back();
      for (const Full& full : held) {
        Held one{full.name, full.dtype, full.shape, {}, {}, 0, {}};
        std::vector<Positions> dims;
        for (std::size_t d = 0; d < full.shape.size(); ++d) {
          dims.push_back(held_of(full, d, axes, coordinates));
          one.local_shape.push_back(static_cast<Index>(dims.back().size()));
        }
        std::vector<Index> at(dims.size(), 0);
        for (Index i = 0; i < product(one.local_shape); ++i) {
          Index rest_of = i, flat = 0;
          for (std::size_t d = dims.size(); d-- > 0; rest_of /= one.local_shape[d])
            at[d] = rest_of % one.local_shape[d];
          for (std::size_t d = 0; d < dims.size(); ++d)
            flat = flat * full.shape[d] + dims[d][static_cast<std::size_t>(at[d])];
          one.elements.push_back(full.places[static_cast<std::size_t>(flat)]);
        }
        maybe_strided(one);
        parameters.push_back(std::move(one));
      }
    }
  }

  /// Memory in another order of dims, with gaps and an offset.
  void maybe_strided(Held& held) {
    if (below(3) != 0 || held.local_shape.empty() || held.elements.empty())
      return;
    std::vector<std::size_t> order(held.local_shape.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    held.strides.resize(order.size());
    Index stride = 1 + below(2);
    for (const std::size_t d : order) {
      held.strides[d] = stride;
      stride = stride * held.local_shape[d] + below(3);
    }
    held.offset = below(4);
  }

  void add_updates() {
    scenario_.updates.emplace_back(); // the seed
    const Index count = 1 + below(3);
    std::vector<Values> now = scenario_.tensors;
    for (Index u = 0; u < count; ++u) {
      ScenarioUpdate update;
      update.changed = 0;
      for (std::uint32_t t = 0; t < now.size(); ++t) {
        if (below(4) == 0)
          continue;
        const Index one_in = Index{1} << below(6);
        Edit edit{t, {}, {}};
        for (std::uint64_t i = 0; i < now[t].bits.size(); ++i) {
          if (below(one_in) != 0)
            continue;
          edit.at.push_back(i);
          // Of what is rounded, often only bits that rounding may not show.
          edit.bits.push_back(below(2) == 0 && wires_[t] != now[t].dtype
                                ? now[t].bits[i] ^ static_cast<std::uint64_t>(below(1 << 14))
                                : random_bits(now[t].dtype));
          update.changed +=
            on_wire(edit.bits.back(), now[t].dtype, wires_[t]) != on_wire(now[t].bits[i], now[t].dtype, wires_[t]) ? 1
                                                                                                                   : 0;
          now[t].bits[i] = edit.bits.back();
        }
        update.edits.push_back(std::move(edit));
      }
      scenario_.updates.push_back(std::move(update));
    }
  }

  std::mt19937_64& random_;
  Scenario scenario_;
  std::vector<Axis> trainer_mesh_, worker_mesh_;
  std::vector<Full> trainer_, worker_;
  std::vector<DType> wires_; ///< by tensor
};

} // namespace

TEST_CASE("random layouts end up in the right places, whatever the caps") {
  constexpr int cases = 200;
  std::cout << "random layouts: seed " << seed() << ", " << cases << " cases\n";
  for (int number = 0; number < cases; ++number) {
    auto random = generator(1000 + static_cast<std::uint64_t>(number));
    const Scenario scenario = Generator(random).make();
    std::vector<std::string> overrides;
    switch (number % 4) {
    case 0:
      break;
    case 1:
      overrides = {"actors.differ.count=1",
                   "actors.differ.chunk=64B",
                   "actors.differ.inflight=256B",
                   "actors.gather_queue.window=100B",
                   "actors.gather_queue.max_round=160B",
                   "actors.flush_bucket.cap=200B"};
      break;
    case 2:
      overrides = {
        "actors.differ.count=3",           "actors.differ.chunk=300B",           "actors.differ.inflight=1KiB",
        "actors.gather_queue.window=1KiB", "actors.gather_queue.max_round=1KiB", "actors.flush_bucket.cap=1KiB"};
      break;
    default:
      overrides = {"actors.differ.chunk=64KiB", "actors.gather_queue.max_round=unlimited",
                   "actors.flush_bucket.cap=unlimited", "actors.gather_queue.window=50B"};
      break;
    }
    INFO("case " << number << " of seed " << seed());
    INFO(scenario.topology);
    const bool nothing = std::all_of(scenario.tensors.begin(), scenario.tensors.end(),
                                     [](const Values& each) { return each.bits.empty(); });
    REQUIRE(run(scenario, overrides) ==
            (nothing ? "no rank provides an element of any slot: there is nothing to deliver" : ""));
  }
}
