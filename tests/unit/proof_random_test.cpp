// The proof on random maps and placements of small shapes, against explicit coordinates: here every element is taken by
// the hand, one by one, with nothing but row-major counting.
#include "catch.hpp"
#include "proof_values.hpp"
#include "random.hpp"

#include <algorithm>

using namespace deltawire;
using namespace deltawire::replay;
using layout::Index;
using layout::Shape;
using proof::MapText;
using proof::SideText;
using test::ScratchFolder;

namespace {

/// A tensor with a number at each place.
struct Array {
  Shape shape;
  std::vector<Index> values;
};

Array counting(const Shape& shape, Index from = 0) {
  Array array{shape, std::vector<Index>(static_cast<std::size_t>(proof::count_of(shape)))};
  std::iota(array.values.begin(), array.values.end(), from);
  return array;
}

Index& element(Array& array, const Shape& coordinates) {
  Index flat = 0;
  for (std::size_t d = 0; d < coordinates.size(); ++d)
    flat = flat * array.shape[d] + coordinates[d];
  return array.values[static_cast<std::size_t>(flat)];
}

/// What `coordinate_of` gives for each place of a new array: the coordinates in the old one.
template <class F>
Array gathered(Array from, const Shape& shape, const F& coordinate_of) {
  Array result = counting(shape);
  for (Index& value : result.values)
    value = element(from, coordinate_of(proof::coordinates_of(value, shape)));
  return result;
}

Array taken(const Array& array, std::size_t dim, const Shape& positions) {
  Shape shape = array.shape;
  shape[dim] = static_cast<Index>(positions.size());
  return gathered(array, shape, [&](Shape c) {
    c[dim] = positions[static_cast<std::size_t>(c[dim])];
    return c;
  });
}

Array permuted(const Array& array, const Shape& order) {
  Shape shape;
  for (Index dim : order)
    shape.push_back(array.shape[static_cast<std::size_t>(dim)]);
  return gathered(array, shape, [&](const Shape& c) {
    Shape old(c.size());
    for (std::size_t i = 0; i < c.size(); ++i)
      old[static_cast<std::size_t>(order[i])] = c[i];
    return old;
  });
}

class Dice {
public:
  explicit Dice(std::uint64_t stream) : generator_(test::generator(stream)) {}
  Index roll(Index least, Index most) {
    return least + static_cast<Index>(generator_() % static_cast<std::uint64_t>(most - least + 1));
  }
  bool coin() { return roll(0, 1) == 0; }
  template <class T>
  void shuffle(std::vector<T>& list) {
    std::shuffle(list.begin(), list.end(), generator_);
  }

private:
  std::mt19937_64 generator_;
};

/// A random view, in text, and what it splits.
struct RandomView {
  Shape shape;                   ///< unviewed
  Shape extents;                 ///< viewed
  std::vector<std::size_t> dims; ///< of each viewed dim
  std::string text;
};

RandomView random_view(Dice& dice, const Shape& fixed = {}) {
  RandomView view;
  std::vector<std::string> words;
  const Index dims = fixed.empty() ? dice.roll(1, 3) : static_cast<Index>(fixed.size());
  for (Index d = 0; d < dims; ++d) {
    Shape parts;
    if (fixed.empty()) {
      for (Index i = dice.roll(1, 3); i > 0; --i)
        parts.push_back(dice.roll(1, 4));
    } else {
      Index rest = fixed[static_cast<std::size_t>(d)];
      for (Index factor : {2, 3})
        if (rest % factor == 0 && rest > factor && dice.coin()) {
          parts.push_back(factor);
          rest /= factor;
        }
      parts.push_back(rest);
    }
    view.shape.push_back(proof::count_of(parts));
    const Index rest = dice.roll(0, static_cast<Index>(2 * parts.size()));
    std::vector<std::string> inside;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      inside.push_back(static_cast<Index>(i) == rest ? ":" : std::to_string(parts[i]));
      view.extents.push_back(parts[i]);
      view.dims.push_back(static_cast<std::size_t>(d));
    }
    words.push_back(fmt::format("({})", fmt::join(inside, ", ")));
  }
  view.text = fmt::format("[{}]", fmt::join(words, ", "));
  return view;
}

/// A way to share the positions of a viewed dim among maps.
std::vector<std::pair<std::string, Shape>> shares(Dice& dice, Index extent) {
  std::vector<std::pair<std::string, Shape>> result;
  const Index kind = extent == 1 ? 0 : dice.roll(0, 3);
  if (kind == 0) {
    Shape all(static_cast<std::size_t>(extent));
    std::iota(all.begin(), all.end(), Index{0});
    result.emplace_back(":", all);
  } else if (kind == 1) { // one number each
    for (Index i = 0; i < extent; ++i)
      result.emplace_back(std::to_string(i), Shape{i});
  } else if (kind == 2) { // every second one
    for (Index first : {0, 1}) {
      Shape positions;
      for (Index i = first; i < extent; i += 2)
        positions.push_back(i);
      result.emplace_back(fmt::format("{}:{}:2", first, extent), positions);
    }
  } else {
    const Index middle = dice.roll(1, extent - 1);
    for (const auto& [begin, end] : {std::pair(Index{0}, middle), std::pair(middle, extent)}) {
      Shape positions;
      for (Index i = begin; i < end; ++i)
        positions.push_back(i);
      result.emplace_back(fmt::format("{}:{}", begin, end), positions);
    }
  }
  return result;
}

/// Random maps that share parameter "p" among slots, and which element of it is which element of a slot.
struct RandomMaps {
  Shape shape;
  std::vector<MapText> maps;
  std::vector<Array> places; ///< of each slot: for each element its place in the parameter
};

RandomMaps random_maps(Dice& dice, const std::string& parameter) {
  const RandomView view = random_view(dice);
  RandomMaps result;
  result.shape = view.shape;
  const std::size_t shared = static_cast<std::size_t>(dice.roll(0, static_cast<Index>(view.extents.size()) - 1));
  Shape full_order; // of the viewed dims
  for (std::size_t v = 0; v < view.extents.size(); ++v)
    full_order.push_back(static_cast<Index>(v));
  if (dice.coin())
    dice.shuffle(full_order);
  for (const auto& [word, positions] : shares(dice, view.extents[shared])) {
    const bool drops = word.find(':') == std::string::npos;
    std::vector<std::string> items(view.extents.size(), ":");
    items[shared] = word;
    Array kept = counting(view.extents);
    kept = taken(kept, shared, positions);
    MapText map;
    map.parameter = parameter;
    map.slot = "slot" + std::to_string(result.maps.size());
    map.view = view.text;
    map.slice = fmt::format("[{}]", fmt::join(items, ", "));
    map.where = "f.toml:7";
    std::vector<std::size_t> left; // viewed dims that are kept
    for (std::size_t v = 0; v < view.extents.size(); ++v)
      if (!drops || v != shared)
        left.push_back(v);
    Shape order; // as the map states it: of those
    std::vector<std::size_t> ordered;
    for (Index v : full_order) {
      const auto at = std::find(left.begin(), left.end(), static_cast<std::size_t>(v));
      if (at == left.end())
        continue;
      order.push_back(at - left.begin());
      ordered.push_back(static_cast<std::size_t>(at - left.begin()));
    }
    map.permute = order;
    if (drops) {
      Shape shape = kept.shape;
      shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(shared));
      kept.shape = shape; // one position: the elements are the same
    }
    kept = permuted(kept, order);
    Shape merged;
    for (std::size_t i = 0; i < ordered.size(); ++i)
      if (i > 0 && ordered[i] == ordered[i - 1] + 1 && view.dims[left[ordered[i]]] == view.dims[left[ordered[i - 1]]])
        merged.back() *= kept.shape[i];
      else
        merged.push_back(kept.shape[i]);
    kept.shape = merged;
    result.maps.push_back(std::move(map));
    result.places.push_back(std::move(kept));
  }
  return result;
}

/// Cuts an array as the worker at `coordinates` would, and adds the text of the cuts.
Array cut(Dice& shape_dice, const Array& full, const std::vector<std::pair<std::string, Index>>& mesh,
          const Shape& coordinates, proof::CutsText& text) {
  Array held = full;
  for (std::size_t a = 0; a < mesh.size(); ++a) {
    const Index world = mesh[a].second;
    const Index mine = coordinates[a];
    const Index kind = shape_dice.roll(0, 5);
    if (kind == 0) // replicates
      continue;
    if (kind == 5 && a + 1 == mesh.size()) {
      text.shard.push_back(mesh[a].first + ":flat");
      if (full.shape.empty())
        continue;
      const auto count = static_cast<Index>(held.values.size());
      std::vector<Index> left;
      for (Index i = 0; i < count; ++i)
        if (i / std::max(Index{1}, (count + world - 1) / world) == mine)
          left.push_back(held.values[static_cast<std::size_t>(i)]);
      held = {{static_cast<Index>(left.size())}, left};
      continue;
    }
    if (full.shape.empty())
      continue;
    const std::size_t dim = static_cast<std::size_t>(shape_dice.roll(0, static_cast<Index>(full.shape.size()) - 1));
    const Index extent = held.shape[dim];
    Shape positions;
    if (kind == 1) {
      for (Index i = 0; i < extent; ++i)
        if (i % world == mine)
          positions.push_back(i);
      text.shard.push_back(fmt::format("{}:{} cyclic", mesh[a].first, dim));
    } else {
      for (Index i = 0; i < extent; ++i)
        if (i / std::max(Index{1}, (extent + world - 1) / world) == mine)
          positions.push_back(i);
      text.shard.push_back(fmt::format("{}:{}", mesh[a].first, dim));
    }
    held = taken(held, dim, positions);
  }
  return held;
}

struct Bound {
  std::string name;
  Shape shape;
  std::vector<std::uint32_t> values;
};

/// The worker must hold just these, and a random flipped bit of each must be found where it is.
void check(Dice& dice, const Result<Proof>& proof, const checkpoint::Checkpoint& file, std::vector<Bound> bound) {
  INFO((proof ? "" : proof.error().message));
  REQUIRE(proof);
  std::vector<WorkerTensor> held;
  std::size_t elements = 0;
  for (const Bound& tensor : bound) {
    held.push_back({tensor.name, DType::u32, tensor.shape, std::as_bytes(std::span(tensor.values))});
    elements += tensor.values.size();
  }
  const auto compared = proof->compare(file, held);
  INFO((compared ? "" : compared.error().message));
  REQUIRE(compared);
  REQUIRE(*compared == elements);
  for (Bound& tensor : bound) {
    if (tensor.values.empty())
      continue;
    const Index at = dice.roll(0, static_cast<Index>(tensor.values.size()) - 1);
    std::uint32_t& value = tensor.values[static_cast<std::size_t>(at)];
    value ^= 1U << dice.roll(0, 31);
    const auto found = proof->compare(file, held);
    REQUIRE(!found);
    REQUIRE_THAT(found.error().message, test::contains("tensor '" + tensor.name + "' differs at local " +
                                                       proof::text_of(proof::coordinates_of(at, tensor.shape))));
    REQUIRE_THAT(found.error().message, test::contains("; 1 of"));
    value = tensor.values.size() > 1 ? tensor.values[static_cast<std::size_t>(at == 0 ? 1 : 0)] : ~value; // swapped
    REQUIRE(!proof->compare(file, held));
    return;
  }
}

checkpoint::Checkpoint file_of(const ScratchFolder& folder, const std::vector<std::pair<std::string, Array>>& tensors) {
  std::vector<std::vector<std::uint32_t>> storage(tensors.size());
  std::vector<checkpoint::TensorToWrite> to_write;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    storage[t].assign(tensors[t].second.values.begin(), tensors[t].second.values.end());
    to_write.push_back({tensors[t].first, DType::u32, tensors[t].second.shape, std::as_bytes(std::span(storage[t]))});
  }
  REQUIRE(checkpoint::write(folder.path("random"), to_write));
  auto file = checkpoint::Checkpoint::open(folder.path("random"));
  REQUIRE(file);
  return *file;
}

} // namespace

TEST_CASE("random maps of a worker, cut at random, hold what explicit coordinates say") {
  CAPTURE(test::seed());
  const ScratchFolder folder;
  for (std::uint64_t round = 0; round < 400; ++round) {
    CAPTURE(round);
    Dice dice(1000 + round);
    const RandomMaps worker_maps = random_maps(dice, "p");
    // The slots come from tensors of their own, or from parts of them: in each, the slot lies somewhere.
    std::vector<std::pair<std::string, Array>> tensors;
    Array full = counting(worker_maps.shape);
    SideText trainer;
    SideText worker;
    worker.maps = worker_maps.maps;
    Index next = 1;
    for (std::size_t s = 0; s < worker_maps.maps.size(); ++s) {
      const Array& places = worker_maps.places[s];
      const std::string name = worker_maps.maps[s].slot;
      Array tensor = counting(places.shape, next);
      next += static_cast<Index>(tensor.values.size());
      for (std::size_t i = 0; i < places.values.size(); ++i) // the slot is the tensor, and this is where it goes
        full.values[static_cast<std::size_t>(places.values[i])] = tensor.values[i];
      if (!places.shape.empty() && dice.coin()) { // the trainer holds it with its dims in another order
        Shape order(places.shape.size());
        std::iota(order.begin(), order.end(), Index{0});
        dice.shuffle(order);
        MapText map;
        map.parameter = "t." + name;
        map.slot = name;
        map.where = "f.toml:3";
        map.permute = Shape(order.size()); // back again
        for (std::size_t i = 0; i < order.size(); ++i)
          map.permute[static_cast<std::size_t>(order[i])] = static_cast<Index>(i);
        trainer.maps.push_back(map);
        tensors.emplace_back("t." + name, permuted(tensor, order));
      } else if (!places.shape.empty() && dice.coin()) { // two tensors fill it, through another view of the slot
        const RandomView view = random_view(dice, places.shape);
        const auto dim = static_cast<std::size_t>(dice.roll(0, static_cast<Index>(view.extents.size()) - 1));
        for (const auto& [word, positions] : shares(dice, view.extents[dim])) {
          if (positions.empty())
            continue;
          Array part = tensor;
          part.shape = view.extents;
          part = taken(part, dim, positions);
          std::vector<std::string> items(view.extents.size(), ":");
          items[dim] = word;
          Shape merged;
          std::size_t last = view.dims.size();
          for (std::size_t v = 0; v < view.extents.size(); ++v) {
            if (v == dim && word.find(':') == std::string::npos)
              continue;
            if (view.dims[v] == last)
              merged.back() *= part.shape[v];
            else
              merged.push_back(part.shape[v]);
            last = view.dims[v];
          }
          part.shape = merged;
          MapText map;
          map.parameter = fmt::format("t.{}.{}", name, tensors.size());
          map.slot = name;
          map.slot_view = fmt::format("[{}]", fmt::join(view.extents, ", "));
          std::vector<std::string> words; // with parentheses: bare numbers may leave the slot's shape open
          for (std::size_t v = 0; v < view.extents.size();) {
            Shape inside;
            for (const std::size_t d = view.dims[v]; v < view.extents.size() && view.dims[v] == d; ++v)
              inside.push_back(view.extents[v]);
            words.push_back(fmt::format("({})", fmt::join(inside, ", ")));
          }
          map.slot_view = fmt::format("[{}]", fmt::join(words, ", "));
          map.slot_slice = fmt::format("[{}]", fmt::join(items, ", "));
          map.where = "f.toml:4";
          trainer.maps.push_back(map);
          tensors.emplace_back(map.parameter, part);
        }
      } else {
        tensors.emplace_back(name, tensor);
      }
    }
    worker.parameters = {{"p", worker_maps.shape, false}};
    const auto file = file_of(folder, tensors);

    for (Index a = dice.roll(0, 3); a > 0; --a)
      worker.mesh.emplace_back("axis" + std::to_string(a), dice.roll(1, 3));
    Index workers = 1;
    for (const auto& axis : worker.mesh)
      workers *= axis.second;
    for (Index w = 0; w < workers; ++w) {
      CAPTURE(w, workers);
      Shape mesh;
      for (const auto& axis : worker.mesh)
        mesh.push_back(axis.second);
      Dice cuts(5000 + round); // the same cuts for each worker
      proof::CutsText text;
      const Array held = cut(cuts, full, worker.mesh, proof::coordinates_of(w, mesh), text);
      worker.placements = {{"p", text, "f.toml:9"}};
      CAPTURE(text.shard, worker.maps.front().view, worker.maps.front().slice, worker.maps.front().permute);
      check(dice, Proof::make(trainer, worker, file, static_cast<std::uint32_t>(w)), file,
            {{"p", held.shape, {held.values.begin(), held.values.end()}}});
    }
  }
}

TEST_CASE("a large transposed part at an offset is compared element by element, wherever a bit flips") {
  CAPTURE(test::seed());
  Dice dice(9);
  const ScratchFolder folder;
  const Array a = counting({70, 130}, 1);
  const Array b = counting({3, 130}, 100'000);
  const auto file = file_of(folder, {{"a", a}, {"b", b}});
  SideText worker; // p is [130, 73]: three columns of b, then a
  for (const auto& [slot, slice] : {std::pair("b", "[0:130, 0:3]"), std::pair("a", "[:, 3:73]")}) {
    MapText map;
    map.parameter = "p";
    map.slot = slot;
    map.slice = slice;
    map.transpose = true;
    worker.maps.push_back(map);
  }
  Array p = counting({130, 73});
  for (Index& value : p.values) {
    const Index row = value / 73;
    const Index column = value % 73;
    value = column < 3 ? 100'000 + column * 130 + row : 1 + (column - 3) * 130 + row;
  }
  const auto proof = Proof::make({}, worker, file, 0);
  for (int round = 0; round < 200; ++round)
    check(dice, proof, file, {{"p", p.shape, {p.values.begin(), p.values.end()}}});
}
