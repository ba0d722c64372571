// Random maps of the whole grammar, on both sides at once. The oracle knows full tensors only: it lists, by loops over
// explicit coordinates, the flat elements that each map takes of a parameter and of a slot, and pairs the two lists
// element by element. Every rank's and worker's regions must say the same, and the plan must accept them.

#include "catch.hpp"
#include "counting.hpp"
#include "layout/plan.hpp"
#include "layout/side.hpp"
#include "random.hpp"

#include <algorithm>
#include <iostream>
#include <map>
#include <numeric>
#include <set>

using namespace deltawire;
using namespace deltawire::layout;
using test::advance;
using test::product;

namespace {

/// One viewed dim of a tensor, as the oracle sees it.
struct Factor {
  Index extent = 1;
  std::size_t dim = 0; // of the tensor
  int target = -1;     // the dim of what is kept that it is a part of; -1: the dim that tells pieces apart
  bool open = false;   // written ':' in the view
};

enum class Apart { no, index, range, step }; // how the pieces of one tensor lie in it

/// A tensor that holds the elements of one piece, or of all pieces.
struct Holder {
  std::vector<Factor> factors;    // in the tensor's order
  std::vector<std::size_t> order; // kept factors, in the order of what is kept
  Shape shape;
  Apart apart = Apart::no;
  std::size_t told_by = 0;   // index, range, step: the factor that tells pieces apart
  std::vector<Index> begins; // range: of each piece
  Index length = 0;          // range, step: of each piece
};

/// The flat elements of a piece, in the order of what is kept.
std::vector<Index> elements_of(const Holder& holder, Index piece) {
  Shape kept;
  for (const std::size_t f : holder.order)
    kept.push_back(holder.apart != Apart::no && holder.apart != Apart::index && f == holder.told_by
                     ? holder.length
                     : holder.factors[f].extent);
  std::vector<Index> result, at(kept.size(), 0);
  const Index pieces = static_cast<Index>(holder.begins.size());
  do {
    std::vector<Index> digit(holder.factors.size(), 0);
    for (std::size_t i = 0; i < kept.size(); ++i)
      digit[holder.order[i]] = at[i];
    if (holder.apart == Apart::index)
      digit[holder.told_by] = piece;
    if (holder.apart == Apart::range)
      digit[holder.told_by] += holder.begins[static_cast<std::size_t>(piece)];
    if (holder.apart == Apart::step)
      digit[holder.told_by] = digit[holder.told_by] * pieces + piece;
    Index flat = 0;
    for (std::size_t f = 0; f < digit.size(); ++f)
      flat = flat * holder.factors[f].extent + digit[f];
    result.push_back(flat);
  } while (advance(at, kept));
  return result;
}

using Element = std::pair<std::string, Index>; // slot, flat

/// Local offset -> elements, as the regions say; fails the test on a malformed region.
std::map<Index, Element> read_regions(const Declaration& declaration, std::uint32_t parameter) {
  std::map<Index, Element> result;
  bool sound = true;
  for (const Region& region : declaration.regions) {
    if (region.parameter != parameter)
      continue;
    const SlotSpec& slot = declaration.slots.at(region.slot);
    REQUIRE(region.dims.size() == slot.shape.size());
    auto walk = [&](auto& self, std::size_t d, Index offset, Index flat) -> void {
      if (d == region.dims.size()) {
        sound = result.emplace(offset, Element{slot.name, flat}).second && sound;
        return;
      }
      Index end = 0;
      for (const Segment& segment : region.dims[d]) {
        sound = sound && segment.slot >= end && segment.length > 0;
        end = segment.slot + segment.length;
        sound = sound && end <= slot.shape[d];
        for (Index i = 0; i < segment.length; ++i)
          self(self, d + 1, offset + segment.local + i * segment.stride, flat * slot.shape[d] + segment.slot + i);
      }
    };
    walk(walk, 0, region.base, 0);
  }
  REQUIRE(sound);
  return result;
}

/// What one side holds under one name, on one process.
struct Expected {
  std::string name;
  Shape shape;
  std::vector<Element> elements; // by flat element of the full parameter; an empty name: padding
};

/// A side's parameters: maps, and what every process holds by the oracle.
struct RandomSide {
  SideRules rules;
  std::vector<std::pair<std::string, std::size_t>> cuts; // parameter, dim cut over axis "t"; none: whole
  std::vector<std::vector<Expected>> processes;
};

class Case {
public:
  explicit Case(std::mt19937_64& random) : random_(random) {
    pieces_ = 1 + below(4);
    const Index dims = 1 + below(3);
    for (Index d = 0; d < dims; ++d)
      target_.push_back(1 + below(5));
    slot_ = holder(false, pieces_ > 1 && below(2) == 0);
    for (Index k = 0; k < pieces_; ++k) {
      const std::string name = slot_.apart == Apart::no ? "s." + std::to_string(k) + ".w" : "fused";
      if (catalogue.empty() || slot_.apart == Apart::no)
        catalogue.push_back({name, DType::f32, slot_.shape});
    }
    trainer = side(false);
    worker = side(true);
  }

  std::vector<SlotSpec> catalogue;
  RandomSide trainer, worker;
  std::set<std::string> features;

private:
  Index below(Index n) { return static_cast<Index>(random_() % static_cast<std::uint64_t>(n)); }
  void used(const char* feature) { features.insert(feature); }

  /// A tensor that gives target_ when a piece of it is taken, by trial.
  Holder holder(bool may_permute, bool all_pieces) {
    for (;;) {
      Holder h;
      std::vector<Factor> kept; // in the order of what is kept
      for (std::size_t t = 0; t < target_.size(); ++t) {
        Index rest = target_[t];
        for (Index n : {Index{2}, Index{3}})
          if (rest % n == 0 && rest > n && below(2) == 0) {
            kept.push_back({n, 0, static_cast<int>(t), false});
            rest /= n;
          }
        kept.push_back({rest, 0, static_cast<int>(t), false});
      }
      std::vector<std::size_t> places(kept.size()); // of the kept factors in the tensor's order
      std::iota(places.begin(), places.end(), std::size_t{0});
      if (may_permute && below(2) == 0)
        std::shuffle(places.begin(), places.end(), random_);
      for (std::size_t p : places)
        h.factors.push_back(kept[p]);
      h.apart = all_pieces ? static_cast<Apart>(1 + below(3)) : Apart::no;
      if (h.apart == Apart::index) {
        h.told_by = static_cast<std::size_t>(below(static_cast<Index>(h.factors.size()) + 1));
        h.factors.insert(h.factors.begin() + static_cast<std::ptrdiff_t>(h.told_by), Factor{pieces_, 0, -1, false});
      } else if (h.apart != Apart::no) {
        h.told_by = static_cast<std::size_t>(below(static_cast<Index>(h.factors.size())));
      }
      h.begins.assign(static_cast<std::size_t>(all_pieces ? pieces_ : 1), 0);
      if (h.apart == Apart::range || h.apart == Apart::step) {
        Factor& factor = h.factors[h.told_by];
        h.length = factor.extent;
        std::vector<std::size_t> sequence(h.begins.size());
        std::iota(sequence.begin(), sequence.end(), std::size_t{0});
        std::shuffle(sequence.begin(), sequence.end(), random_);
        for (std::size_t i = 0; i < sequence.size(); ++i)
          h.begins[sequence[i]] = static_cast<Index>(i) * h.length;
        factor.extent *= pieces_;
      }
      // dims: neighbours in the tensor's order are parts of one dim, or not
      for (std::size_t f = 0; f < h.factors.size(); ++f)
        h.factors[f].dim = f == 0 ? 0 : h.factors[f - 1].dim + (below(2) == 0 ? 1 : 0);
      h.shape.assign(h.factors.back().dim + 1, 1);
      for (const Factor& factor : h.factors)
        h.shape[factor.dim] *= factor.extent;
      h.order.assign(kept.size(), 0);
      std::vector<std::size_t> nth(h.factors.size(), 0), in_tensor; // among the kept parts of its dim
      for (std::size_t f = 0; f < h.factors.size(); ++f)
        if (h.factors[f].target >= 0)
          in_tensor.push_back(f);
      for (std::size_t i = 0; i < in_tensor.size(); ++i) {
        h.order[places[i]] = in_tensor[i];
        nth[in_tensor[i]] =
          i > 0 && h.factors[in_tensor[i - 1]].dim == h.factors[in_tensor[i]].dim ? nth[in_tensor[i - 1]] + 1 : 0;
      }
      // what merges must be what has one target
      Shape merged;
      for (std::size_t i = 0; i < h.order.size(); ++i) {
        const std::size_t f = h.order[i];
        const Index extent =
          h.apart != Apart::index && h.apart != Apart::no && f == h.told_by ? h.length : h.factors[f].extent;
        const bool joins =
          i > 0 && h.factors[h.order[i - 1]].dim == h.factors[f].dim && nth[f] == nth[h.order[i - 1]] + 1;
        if (joins)
          merged.back() *= extent;
        else
          merged.push_back(extent);
      }
      if (merged == target_)
        return h;
    }
  }

  /// The view: parentheses around each dim, or bare numbers where they can only be read as meant.
  std::string view_text(const Holder& h, bool must_group) {
    std::string text = "[";
    const bool bare = std::all_of(h.factors.begin(), h.factors.end(), [](const Factor& f) { return f.extent > 1; }) &&
                      !must_group && below(2) == 0;
    for (std::size_t f = 0; f < h.factors.size();) {
      std::size_t end = f;
      while (end < h.factors.size() && h.factors[end].dim == h.factors[f].dim)
        ++end;
      const std::size_t open = below(3) == 0 ? f + static_cast<std::size_t>(below(static_cast<Index>(end - f))) : end;
      text += f == 0 ? "" : ", ";
      if (!bare && end > f + 1)
        text += "(", used("parentheses in a view");
      for (std::size_t i = f; i < end; ++i) {
        const bool is_open = !bare && i == open;
        if (is_open)
          used("':' in a view");
        text += (i == f ? "" : ", ") + (is_open ? ":" : std::to_string(h.factors[i].extent));
      }
      if (!bare && end > f + 1)
        text += ")";
      f = end;
    }
    return text + "]";
  }

  std::string slice_text(const Holder& h, Index piece, const std::string& bound) {
    std::string text = "[";
    for (std::size_t f = 0; f < h.factors.size(); ++f) {
      text += f == 0 ? "" : ", ";
      if (h.apart == Apart::no || f != h.told_by)
        text += ":";
      else if (h.apart == Apart::index)
        text += bound.empty() ? std::to_string(piece) : bound;
      else if (h.apart == Apart::range)
        text += std::to_string(h.begins[static_cast<std::size_t>(piece)]) + ":" +
                std::to_string(h.begins[static_cast<std::size_t>(piece)] + h.length);
      else
        text +=
          std::to_string(piece) + ":" + std::to_string(h.factors[f].extent) + ":" + std::to_string(h.begins.size());
    }
    if (h.apart == Apart::range)
      used("slice a:b");
    if (h.apart == Apart::step)
      used("slice a:b:step");
    if (h.apart == Apart::index)
      used(bound.empty() ? "slice index" : "slice bound name");
    return text + "]";
  }

  RandomSide side(bool is_worker) {
    RandomSide result;
    // Each coordinate of "ep" holds `local` pieces, by sums in the slot's name or slice.
    const bool may_bind = slot_.apart == Apart::no || slot_.apart == Apart::index;
    const bool computed = may_bind && pieces_ > 1 && below(3) == 0;
    std::vector<Index> divisors;
    for (Index n = 1; n <= pieces_; ++n)
      if (pieces_ % n == 0)
        divisors.push_back(n);
    const Index local =
      computed ? divisors[static_cast<std::size_t>(below(static_cast<Index>(divisors.size())))] : pieces_;
    const Index groups = pieces_ / local;
    const Index cuts = 1 + below(3);
    const Index replicas = 1 + below(2);
    result.rules.mesh = *Mesh::make({{"ep", groups}, {"t", cuts}, {"r", replicas}});
    result.processes.resize(static_cast<std::size_t>(groups * cuts * replicas));

    const Index all = pieces_;
    pieces_ = local; // of one parameter
    const bool fused = local > 1 && below(2) == 0;
    const Holder held = holder(true, fused);
    pieces_ = all;
    if (fused && slot_.apart == Apart::no)
      used("one parameter, several slots");
    if (!fused && local > 1 && slot_.apart != Apart::no)
      used("several parameters, one slot");
    if (fused && slot_.apart != Apart::no)
      used("parts of a parameter, parts of a slot");
    const bool bind = computed || (may_bind && (!fused || held.apart == Apart::index) && pieces_ > 1 && below(2) == 0);
    const bool tied = is_worker && below(4) == 0;
    const Index copies =
      is_worker && !fused && !bind && below(4) == 0 ? 2 + below(2) : 1; // one slot read several times
    write(result, held, "p", bind, computed, fused, local, is_worker, copies);
    if (tied) {
      used("tie");
      write(result, held, "tied", bind, computed, fused, local, is_worker, 1);
    }
    return result;
  }

  void write(RandomSide& side, const Holder& given, const std::string& stem, bool bind, bool computed, bool fused,
             Index local, bool is_worker, Index copies) {
    Holder held = given;
    // Only an index can be bound, so other ways to lie in a tensor are written piece by piece.
    const bool one_rule = bind && (!fused || held.apart == Apart::index);
    const std::string multiple = std::to_string(local) + "*ep";
    const bool prefix_names = below(2) == 0;
    const auto parameter_name = [&](const std::string& number) {
      return fused ? stem : prefix_names ? stem + number : stem + "." + number + ".w";
    };
    const std::size_t rules = one_rule ? 1 : static_cast<std::size_t>(local);
    // padding: rows of dim 0
    const bool padded = below(4) == 0 && held.factors.front().dim == 0 &&
                        (held.factors.size() == 1 || held.factors[1].dim == 1) && held.factors[0].target >= 0 &&
                        (held.apart == Apart::no || held.told_by != 0) && copies == 1;
    const Index pad = padded ? 1 + below(2) : 0;
    bool dims_viewed = false;
    for (std::size_t d = 0, f = 0; f < held.factors.size(); ++f) {
      dims_viewed = dims_viewed || (f > 0 && held.factors[f].dim == d);
      d = held.factors[f].dim;
    }
    for (std::size_t rule_number = 0; rule_number < rules; ++rule_number) {
      MapRule rule;
      rule.where = "t:" + std::to_string(rule_number);
      const auto piece = static_cast<Index>(rule_number);
      const std::string literal = std::to_string(piece);
      // the name `e`, and who tells its values
      const bool limited_pattern = one_rule && !fused && is_worker && (computed || below(3) == 0);
      const bool limited_slice = one_rule && fused && (is_worker ? computed || below(2) == 0 : below(2) == 0);
      const std::string limits = "=0:" + std::to_string(local);
      const std::string e = one_rule ? "{e" + (limited_pattern ? limits : "") + "}" : literal;
      rule.parameter = parameter_name(e);
      if (limited_pattern)
        used("name with limits");
      const std::string sum = one_rule ? "e + " + multiple : literal + " + " + multiple;
      if (slot_.apart == Apart::no) {
        rule.slot = computed ? "s.{" + sum + "}.w" : one_rule ? "s.{e}.w" : "s." + literal + ".w";
        if (computed)
          used("computed slot name");
      } else {
        rule.slot = "fused";
        rule.slot_view = view_text(slot_, slot_.factors.size() != slot_.shape.size());
        rule.slot_slice = slice_text(slot_, piece, computed ? sum : one_rule ? "e" : "");
        used("slot_slice");
        if (computed)
          used("computed slot_slice");
      }
      if (slot_.apart == Apart::no && below(3) == 0)
        rule.slot_view = view_text(slot_, slot_.factors.size() != slot_.shape.size());
      if (!rule.slot_view.empty())
        used("slot_view");
      if (copies > 1) {
        rule.view = view_text(held, false);
        rule.view = "[" + std::to_string(copies) + ", " + rule.view.substr(1);
        rule.slice = slice_text(held, piece, "");
        rule.slice = "[c=0:" + std::to_string(copies) + ", " + rule.slice.substr(1);
        used("replicated read");
      } else {
        if (dims_viewed || below(3) == 0) {
          rule.view = padded ? "" : view_text(held, false);
          if (!rule.view.empty())
            used("view");
        }
        rule.slice = slice_text(held, piece, one_rule && fused ? "e" + (limited_slice ? limits : "") : "");
        if (one_rule && fused && limited_slice)
          used("slice name with limits");
      }
      if (padded) {
        std::string text = view_text(held, true);
        // dim 0 is one factor; its range is what is kept
        const auto comma = text.find_first_of(",]");
        rule.view = "[:" + text.substr(comma);
        const auto slice_comma = rule.slice.find_first_of(",]");
        rule.slice = "[0:" + std::to_string(held.factors[0].extent) + rule.slice.substr(slice_comma);
        used("padding");
      }
      // the order
      std::vector<std::size_t> kept;
      for (std::size_t f = 0; f < held.factors.size(); ++f)
        if (held.factors[f].target >= 0)
          kept.push_back(f);
      std::vector<Index> permute;
      for (std::size_t f : held.order)
        permute.push_back(std::find(kept.begin(), kept.end(), f) - kept.begin());
      std::vector<Index> straight(permute.size());
      std::iota(straight.begin(), straight.end(), Index{0});
      if (permute != straight) {
        std::vector<Index> swapped = straight;
        std::swap(swapped[swapped.size() - 1], swapped[swapped.size() - 2]);
        if (permute == swapped && below(2) == 0) {
          rule.transpose = true;
          used("transpose");
        } else {
          rule.permute = permute;
          used("permute");
          std::vector<Index> inverse(permute.size());
          for (std::size_t i = 0; i < permute.size(); ++i)
            inverse[static_cast<std::size_t>(permute[i])] = static_cast<Index>(i);
          if (inverse != permute)
            used("permute that is not its inverse");
        }
      }
      if (target_.size() < held.order.size())
        used("parts merge back");
      side.rules.maps.push_back(rule);
    }
    if (padded)
      held.factors[0].extent += pad, held.shape[0] += pad;

    // what each process holds
    Shape shape = held.shape;
    if (copies > 1)
      shape.insert(shape.begin(), copies);
    const std::size_t names = fused ? 1 : static_cast<std::size_t>(local);
    std::size_t number_of_process = 0;
    const auto& axes = side.rules.mesh.axes();
    for (Index group = 0; group < axes[0].size; ++group)
      for (Index member = 0; member < axes[1].size * axes[2].size; ++member, ++number_of_process)
        for (std::size_t n = 0; n < names; ++n) {
          Expected expected{parameter_name(std::to_string(n)), shape, {}};
          expected.elements.resize(static_cast<std::size_t>(product(shape)));
          for (Index k = 0; k < local; ++k) {
            if (!fused && static_cast<std::size_t>(k) != n)
              continue;
            Holder padded_holder = held;
            if (padded)
              padded_holder.factors[0].extent -= pad;
            const auto own = elements_of(padded_holder, fused ? k : 0); // dim 0 is outermost: flat numbers stay
            const Index global = k + group * local;
            const auto theirs = elements_of(slot_, slot_.apart == Apart::no ? 0 : global);
            REQUIRE(own.size() == theirs.size());
            const std::string slot = slot_.apart == Apart::no ? "s." + std::to_string(global) + ".w" : "fused";
            for (Index c = 0; c < copies; ++c)
              for (std::size_t i = 0; i < own.size(); ++i)
                expected.elements[static_cast<std::size_t>(c * product(held.shape) + own[i])] = {slot, theirs[i]};
          }
          side.processes[number_of_process].push_back(std::move(expected));
        }
    for (std::size_t n = 0; n < names; ++n) {
      const std::string name = parameter_name(std::to_string(n));
      if (axes[1].size > 1 && below(3) != 0) {
        const auto dim = static_cast<std::size_t>(below(static_cast<Index>(shape.size())));
        side.rules.placements.push_back({name, {"t:" + std::to_string(dim)}, "t:cut"});
        side.cuts.emplace_back(name, dim);
        used("cut");
      }
      ParameterRule rule;
      rule.name = name;
      rule.where = "t:fact";
      rule.padding = padded;
      if (is_worker)
        rule.shape = shape; // taken away for the try without it
      side.rules.parameters.push_back(rule);
    }
  }

  std::mt19937_64& random_;
  Index pieces_ = 1;
  Shape target_; // what is kept of a piece
  Holder slot_;
};

/// The local offsets of a parameter and their elements, cut by dealing positions out.
struct Local {
  Shape shape;
  std::map<Index, Element> elements;
};

Local local_of(const Expected& expected, std::optional<std::size_t> dim, Index world, Index coordinate,
               std::vector<Index>& strides, std::mt19937_64& random) {
  std::vector<std::vector<Index>> held;
  for (std::size_t d = 0; d < expected.shape.size(); ++d) {
    held.emplace_back();
    Index size = expected.shape[d];
    if (dim == d)
      for (size = 0; size * world < expected.shape[d];)
        ++size;
    for (Index p = 0; p < expected.shape[d]; ++p)
      if (dim != d || p / size == coordinate)
        held.back().push_back(p);
  }
  Local local;
  for (const auto& positions : held)
    local.shape.push_back(static_cast<Index>(positions.size()));
  strides.clear();
  if (random() % 3 == 0) { // another order of dims, with gaps
    std::vector<std::size_t> order(local.shape.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    strides.resize(order.size());
    Index next = 1;
    for (std::size_t d : order) {
      strides[d] = next;
      next = next * std::max<Index>(local.shape[d], 1) + static_cast<Index>(random() % 2);
    }
  }
  if (product(local.shape) == 0)
    return local;
  std::vector<Index> at(local.shape.size(), 0);
  do {
    Index flat = 0, packed = 0, strided = 0;
    for (std::size_t d = 0; d < at.size(); ++d) {
      flat = flat * expected.shape[d] + held[d][static_cast<std::size_t>(at[d])];
      packed = packed * local.shape[d] + at[d];
      strided += strides.empty() ? 0 : at[d] * strides[d];
    }
    if (const Element& element = expected.elements[static_cast<std::size_t>(flat)]; !element.first.empty())
      local.elements.emplace(strides.empty() ? packed : strided, element);
  } while (advance(at, local.shape));
  return local;
}

template <class T>
void require(const Result<T>& result) {
  INFO((result ? "" : result.error().message));
  REQUIRE(result);
}

} // namespace

TEST_CASE("random maps of the whole grammar equal loops over full tensors, on both sides") {
  constexpr int cases = 2500;
  std::map<std::string, int> counts;
  auto random = test::generator(14);
  int open_shapes = 0;
  for (int n = 0; n < cases; ++n) {
    CAPTURE(test::seed(), n);
    Case one(random);
    std::vector<Declaration> ranks, workers;
    for (const bool is_worker : {false, true}) {
      RandomSide& side = is_worker ? one.worker : one.trainer;
      for (const MapRule& rule : side.rules.maps)
        UNSCOPED_INFO((is_worker ? "worker " : "trainer ")
                      << rule.parameter << " " << rule.view << " " << rule.slice << " " << to_string(rule.permute)
                      << rule.transpose << " <-> " << rule.slot << " " << rule.slot_view << " " << rule.slot_slice);
      for (const SlotSpec& slot : one.catalogue)
        UNSCOPED_INFO(slot.name << " " << to_string(slot.shape));
      auto compiled = Side::compile(side.rules, is_worker ? Side::Role::worker : Side::Role::trainer);
      require(compiled);
      if (is_worker) { // shapes follow from the maps, or the message says that they are left open
        SideRules without = side.rules;
        for (ParameterRule& rule : without.parameters)
          rule.shape.reset();
        const auto bare = Side::compile(without, Side::Role::worker);
        require(bare);
        const auto implied = bare->worker_parameters(one.catalogue, 0);
        const bool padded = std::any_of(without.parameters.begin(), without.parameters.end(),
                                        [](const ParameterRule& rule) { return rule.padding; });
        if (!implied) {
          INFO(implied.error().message);
          REQUIRE((implied.error().message.find("leave open") != std::string::npos ||
                   implied.error().message.find("no shape") != std::string::npos));
          ++open_shapes;
        } else if (!padded) {
          for (const ParameterSpec& spec : *implied)
            for (const Expected& expected : side.processes[0])
              if (spec.name == expected.name)
                CHECK(spec.full_shape == expected.shape);
          ++counts["worker shape follows from the maps"];
        }
      }
      const auto& axes = compiled->mesh().axes();
      for (Index process = 0; process < compiled->mesh().size(); ++process) {
        CAPTURE(is_worker, process);
        const Index coordinate = process / axes[2].size % axes[1].size;
        std::vector<LocalTensor> tensors;
        std::vector<Local> locals;
        std::vector<bool> owns;
        for (const Expected& expected : side.processes[static_cast<std::size_t>(process)]) {
          const auto cut =
            std::find_if(side.cuts.begin(), side.cuts.end(), [&](const auto& c) { return c.first == expected.name; });
          const bool is_cut = cut != side.cuts.end();
          std::vector<Index> strides;
          locals.push_back(local_of(expected, is_cut ? std::optional{cut->second} : std::nullopt, axes[1].size,
                                    coordinate, strides, random));
          if (!strides.empty())
            one.features.insert("strided memory");
          owns.push_back(process % axes[2].size == 0 && (is_cut || coordinate == 0));
          tensors.push_back({expected.name, DType::f32, is_worker ? locals.back().shape : expected.shape, strides});
        }
        auto declared = is_worker ? compiled->declare_worker(one.catalogue, tensors, process)
                                  : compiled->declare_trainer(tensors, process);
        require(declared);
        for (const SlotSpec& slot : declared->slots) {
          CAPTURE(slot.name, to_string(slot.shape));
          CHECK(std::count(one.catalogue.begin(), one.catalogue.end(), slot) == 1);
        }
        for (std::size_t p = 0; p < tensors.size(); ++p) {
          CAPTURE(tensors[p].name);
          CHECK(declared->parameters[p].local_shape == locals[p].shape);
          const auto said = read_regions(*declared, static_cast<std::uint32_t>(p));
          const bool right = said == (is_worker || owns[p] ? locals[p].elements : std::map<Index, Element>{});
          REQUIRE(right);
        }
        (is_worker ? workers : ranks).push_back(std::move(*declared));
      }
    }
    require(compile_plan(ranks, workers, {}, 1 << 20));
    for (const std::string& feature : one.features)
      ++counts[feature];
  }
  std::cout << "random maps: seed " << test::seed() << ", " << cases << " cases on both sides; used:";
  for (const auto& [feature, count] : counts)
    std::cout << " [" << feature << " " << count << "]";
  std::cout << " (worker shape left open: " << open_shapes << ")\n";
  for (const char* feature : {"view",
                              "parentheses in a view",
                              "':' in a view",
                              "slice a:b",
                              "slice a:b:step",
                              "slice index",
                              "slice bound name",
                              "slice name with limits",
                              "name with limits",
                              "transpose",
                              "permute",
                              "permute that is not its inverse",
                              "parts merge back",
                              "slot_view",
                              "slot_slice",
                              "computed slot name",
                              "computed slot_slice",
                              "one parameter, several slots",
                              "several parameters, one slot",
                              "parts of a parameter, parts of a slot",
                              "tie",
                              "replicated read",
                              "padding",
                              "cut",
                              "strided memory",
                              "worker shape follows from the maps"}) {
    CAPTURE(feature);
    CHECK(counts[feature] >= 50);
  }
}
