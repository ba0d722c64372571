#include "inputs.hpp"

#include "layout/problems.hpp"
#include "layout/some_elements.hpp"

#include <map>
#include <set>

namespace deltawire::replay {

namespace {

std::string describe(const checkpoint::TensorView& tensor) {
  return fmt::format("{} {}", safetensors_name(tensor.dtype), layout::to_string(tensor.shape));
}

void compare_tensors(const checkpoint::Checkpoint& first, const checkpoint::Checkpoint& file,
                     layout::Problems& problems) {
  for (const checkpoint::TensorView& expected : first.tensors()) {
    const checkpoint::TensorView* found = file.find(expected.name);
    if (found == nullptr)
      problems.add(Code::invalid_input, "{}: tensor \"{}\" is missing; {} has it, and all versions must have the same",
                   file.path(), expected.name, first.path());
    else if (found->dtype != expected.dtype || found->shape != expected.shape)
      problems.add(Code::invalid_input, "{}: tensor \"{}\" is {}, but {} in {}", file.path(), expected.name,
                   describe(*found), describe(expected), first.path());
  }
  for (const checkpoint::TensorView& tensor : file.tensors())
    if (first.find(tensor.name) == nullptr)
      problems.add(Code::invalid_input, "{}: tensor \"{}\" is new; {} lacks it, and all versions must have the same",
                   file.path(), tensor.name, first.path());
}

Result<std::vector<layout::Declaration>> declare_ranks(const Sides& sides, const checkpoint::Checkpoint& first) {
  // The ranks hold the same tensors by the same rules, but for those that `on` leaves out: what is wrong with one is
  // wrong with the others.
  std::vector<layout::Declaration> declarations;
  for (std::uint32_t rank = 0; rank < sides.ranks(); ++rank) {
    std::vector<layout::LocalTensor> tensors;
    for (const checkpoint::TensorView& tensor : first.tensors()) {
      const auto shard = sides.trainer.shard(tensor.name, tensor.shape, rank);
      if (!shard || shard->held) // declaring tells all that is wrong at once
        tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
    }
    auto declaration = sides.trainer.declare_trainer(tensors, rank);
    if (!declaration)
      return pass_on(std::move(declaration));
    declarations.push_back(std::move(*declaration));
  }
  return declarations;
}

Result<layout::Declaration> declare_worker(const Sides& sides, std::span<const layout::SlotSpec> catalogue,
                                           std::uint32_t index) {
  auto parameters = sides.worker.worker_parameters(catalogue, index);
  if (!parameters)
    return pass_on(std::move(parameters));
  std::vector<layout::LocalTensor> tensors;
  for (const layout::ParameterSpec& parameter : *parameters)
    tensors.push_back({parameter.name, parameter.dtype, parameter.local_shape, {}});
  return sides.worker.declare_worker(catalogue, tensors, index);
}

Result<std::vector<layout::Declaration>> declare_workers(const Sides& sides,
                                                         std::span<const layout::SlotSpec> catalogue) {
  std::vector<layout::Declaration> declarations;
  layout::Problems problems;
  std::set<std::string> said; // most of what is wrong with one worker is wrong with the others
  for (std::uint32_t index = 0; index < sides.workers(); ++index) {
    auto declaration = declare_worker(sides, catalogue, index);
    if (declaration)
      declarations.push_back(std::move(*declaration));
    else if (said.insert(declaration.error().message).second)
      problems.add(declaration.error());
  }
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  return declarations;
}

/// Names in the rules of a side that nothing has.
Result<void> check_names(const layout::Side& side, std::span<const layout::Declaration> declarations,
                         std::span<const layout::SlotSpec> catalogue) {
  std::vector<std::string> names;
  for (const layout::Declaration& declaration : declarations)
    for (const layout::ParameterSpec& parameter : declaration.parameters)
      names.push_back(parameter.name);
  return side.check_names(names, catalogue);
}

} // namespace

Result<Sides> open_sides(const std::string& topology, std::span<const std::string> overrides) {
  auto loaded = config::load(topology, overrides);
  if (!loaded)
    return pass_on(std::move(loaded));
  layout::Problems problems;
  auto trainer = layout::Side::compile(loaded->trainer, layout::Side::Role::trainer);
  if (!trainer)
    problems.add(trainer.error());
  auto worker = layout::Side::compile(loaded->worker, layout::Side::Role::worker);
  if (!worker)
    problems.add(worker.error());
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  return Sides{std::move(*loaded), std::move(*trainer), std::move(*worker)};
}

Result<std::vector<checkpoint::Checkpoint>> open_checkpoints(std::span<const std::string> paths) {
  std::map<std::string, std::size_t> opened;
  std::vector<checkpoint::Checkpoint> files;
  layout::Problems problems;
  for (const std::string& path : paths) {
    if (const auto earlier = opened.find(path); earlier != opened.end()) {
      files.push_back(checkpoint::Checkpoint{files[earlier->second]});
      continue;
    }
    auto file = checkpoint::Checkpoint::open(path);
    if (!file) {
      problems.add(std::move(file).error());
      continue;
    }
    if (file->tensors().empty())
      problems.add(Code::invalid_input, "{}: has no tensors, so there is nothing to do", path);
    if (!files.empty())
      compare_tensors(files.front(), *file, problems);
    opened.emplace(path, files.size());
    files.push_back(std::move(*file));
  }
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  return files;
}

Result<AgreedLayout> compile_layout(const Sides& sides, const checkpoint::Checkpoint& first) {
  auto ranks = declare_ranks(sides, first);
  if (!ranks)
    return pass_on(std::move(ranks));
  const auto catalogue = layout::catalogue(*ranks);
  if (!catalogue)
    return tl::make_unexpected(catalogue.error());

  layout::Problems problems;
  if (auto known = check_names(sides.trainer, *ranks, *catalogue); !known)
    problems.add(known.error());
  auto workers = declare_workers(sides, *catalogue);
  if (!workers) {
    problems.add(workers.error());
    return tl::make_unexpected(problems.failure());
  }
  if (auto known = check_names(sides.worker, *workers, *catalogue); !known)
    problems.add(known.error());
  auto plan = layout::some_elements(
    layout::compile_plan(*ranks, *workers, sides.topology.worker.unused, sides.topology.actors.gather_queue.window));
  if (!plan)
    problems.add(plan.error());
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  return AgreedLayout{std::move(*ranks), std::move(*workers), std::move(*plan)};
}

Result<void> check_layout(const Sides& sides, const checkpoint::Checkpoint& first) {
  if (auto agreed = compile_layout(sides, first); !agreed)
    return pass_on(std::move(agreed));
  return {};
}

} // namespace deltawire::replay
