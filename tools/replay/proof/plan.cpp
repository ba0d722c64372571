#include "plan.hpp"

namespace deltawire::replay::proof {
namespace {

/// One bit an element.
class Marks {
public:
  explicit Marks(Index count) : marks_(static_cast<std::size_t>(count), false) {}

  void add(const Walk& walk, Index begin, Index end) {
    for_each_run(walk, begin, end, [&](const Run& run) {
      for (Index i = 0; i < run.count; ++i)
        marks_[static_cast<std::size_t>(run.left + i * run.left_step - begin)] = true;
    });
  }

  /// Begin and end of the stretches without a mark.
  [[nodiscard]] std::vector<std::pair<Index, Index>> gaps() const {
    std::vector<std::pair<Index, Index>> result;
    for (std::size_t i = 0; i < marks_.size(); ++i) {
      if (marks_[i])
        continue;
      const auto number = static_cast<Index>(i);
      if (result.empty() || result.back().second != number)
        result.emplace_back(number, number);
      ++result.back().second;
    }
    return result;
  }

private:
  std::vector<bool> marks_;
};

/// A read, applied to shapes.
struct Part {
  const Read* read = nullptr;
  Kept of_parameter;
  Kept of_slot;
};

/// Works out one parameter.
class Planner {
public:
  Planner(const std::string& name, const std::vector<Read>& reads, const Rules& worker,
          const checkpoint::Checkpoint& file)
    : name_(name), reads_(reads), worker_(worker), file_(file), fact_(worker.fact_of(name)) {}

  Result<Parameter> run(const Shape& coordinates) {
    Parameter parameter;
    parameter.name = name_;
    parameter.dtype = reads_.front().slot->dtype;
    for (const Read& read : reads_)
      if (read.slot->dtype != parameter.dtype)
        return fail(Code::disagreement, "worker parameter '{}': slots '{}' and '{}' differ in dtype", name_,
                    reads_.front().slot->name, read.slot->name);
    auto shape = full_shape_of(name_, reads_, fact_);
    if (!shape)
      return pass_on(std::move(shape));
    parameter.full_shape = std::move(*shape);
    if (auto valid = find_parts(parameter.full_shape); !valid)
      return pass_on(std::move(valid));

    auto holding = holding_of(name_, parameter.full_shape, reads_, worker_, coordinates);
    if (!holding)
      return pass_on(std::move(holding));
    parameter.local_shape = holding->local_shape;
    parameter.box = holding->box;
    parameter.begin = holding->begin;
    parameter.end = holding->end;
    for (const Shape& positions : holding->positions)
      parameter.positions.push_back(runs_of(positions));
    const Relation box = relate_box(holding->positions, parameter.full_shape);
    if (size_of(box) > 0)
      if (auto added = add_pieces(box, parameter); !added)
        return pass_on(std::move(added));
    return parameter;
  }

private:
  /// Each element of the full parameter must be read once, or be padding.
  Result<void> find_parts(const Shape& shape) {
    Index read_elements = 0;
    for (const Read& read : reads_) {
      auto of_parameter = keep(read.of_parameter, shape);
      auto of_slot = keep(read.of_slot, read.slot->shape);
      for (const Result<Kept>* side : {&of_parameter, &of_slot})
        if (!*side)
          return at(fmt::format("worker parameter '{}', slot '{}'", name_, read.slot->name), *side);
      if (of_parameter->result() != of_slot->result())
        return fail(Code::disagreement, "worker parameter '{}' {} takes {} from slot '{}', which is {}", name_,
                    text_of(shape), text_of(of_parameter->result()), read.slot->name, text_of(of_slot->result()));
      for (const Part& part : parts_)
        if (!surely_disjoint(part.of_parameter, *of_parameter))
          if (const Relation shared =
                join(relate(part.of_parameter, part.of_parameter), relate(*of_parameter, *of_parameter));
              size_of(shared) > 0)
            return fail(Code::invalid_topology,
                        "worker parameter '{}': element {} is given by two slots, '{}' and '{}'", name_,
                        text_of(coordinates_of(walk_of(shared).levels.front().front().left, shape)),
                        part.read->slot->name, read.slot->name);
      read_elements += count_of(of_parameter->result());
      parts_.push_back({&read, std::move(*of_parameter), std::move(*of_slot)});
    }
    if (read_elements == count_of(shape) || (fact_ != nullptr && fact_->padding))
      return {};
    Marks marks(count_of(shape));
    for (const Part& part : parts_)
      if (count_of(part.of_parameter.result()) > 0)
        marks.add(walk_of(relate(part.of_parameter, part.of_parameter)), 0, count_of(shape));
    return fail(Code::invalid_topology, "worker parameter '{}': no slot gives element {}", name_,
                text_of(coordinates_of(marks.gaps().front().first, shape)));
  }

  Result<void> add_pieces(const Relation& box, Parameter& parameter) const {
    Index covered = 0;
    for (const Part& part : parts_) {
      const Relation to_slot = join(box, relate(part.of_parameter, part.of_slot));
      if (size_of(to_slot) == 0)
        continue;
      for (const Filling& filling : part.read->slot->fillings) {
        const auto filled = keep(filling.of_slot, part.read->slot->shape);
        const auto from = keep(filling.of_tensor, file_.tensors()[filling.tensor].shape);
        if (!filled || !from)
          return fail(Code::internal, "slot '{}' is filled in no way", part.read->slot->name);
        if (surely_disjoint(part.of_slot, *filled))
          continue;
        const Relation to_tensor = join(to_slot, relate(*filled, *from));
        if (size_of(to_tensor) == 0)
          continue;
        parameter.pieces.push_back({filling.tensor, walk_of(to_tensor)});
        covered += size_of(to_tensor);
      }
    }
    const bool may_be_padded = fact_ != nullptr && fact_->padding;
    if (may_be_padded ? covered > size_of(box) : covered != size_of(box))
      return fail(Code::internal, "worker parameter '{}': {} of {} elements have an origin", name_, covered,
                  size_of(box));
    if (covered == size_of(box))
      return {};
    Marks marks(parameter.end - parameter.begin);
    for (const Piece& piece : parameter.pieces)
      marks.add(piece.walk, parameter.begin, parameter.end);
    for (const auto& [begin, end] : marks.gaps())
      parameter.padding.emplace_back(parameter.begin + begin, parameter.begin + end);
    return {};
  }

  const std::string& name_;
  const std::vector<Read>& reads_;
  const Rules& worker_;
  const checkpoint::Checkpoint& file_;
  const Fact* fact_;
  std::vector<Part> parts_;
};

} // namespace

Result<std::vector<Parameter>> plan(const SideText& trainer_text, const SideText& worker_text,
                                    const checkpoint::Checkpoint& file, std::uint32_t index) {
  const auto trainer = read_rules(trainer_text);
  if (!trainer)
    return tl::make_unexpected(trainer.error());
  const auto worker = read_rules(worker_text);
  if (!worker)
    return tl::make_unexpected(worker.error());
  Index workers = 1;
  for (const auto& axis : worker->mesh)
    workers *= axis.second;
  if (static_cast<Index>(index) >= workers)
    return fail(Code::invalid_argument, "worker {} is not in the worker's mesh of {}", index, workers);
  const Shape coordinates = worker->coordinates(index);
  const auto slots = slots_of(*trainer, file);
  if (!slots)
    return tl::make_unexpected(slots.error());
  const auto reads = reads_of(*worker, *slots, coordinates);
  if (!reads)
    return tl::make_unexpected(reads.error());
  std::vector<Parameter> parameters;
  for (const auto& [name, of_name] : *reads) {
    auto parameter = Planner(name, of_name, *worker, file).run(coordinates);
    if (!parameter)
      return pass_on(std::move(parameter));
    parameters.push_back(std::move(*parameter));
  }
  return parameters;
}

} // namespace deltawire::replay::proof
