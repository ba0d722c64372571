#include "proof.hpp"

#include "proof/cast.hpp"
#include "proof/comparison.hpp"
#include "proof/topology_text.hpp"

#include <exception>
#include <map>

namespace deltawire::replay {

using proof::Compared;
using proof::Parameter;
using proof::Shape;

namespace {

/// A checkpoint tensor that the worker's parameters come from.
struct Source {
  std::string name;
  DType dtype = DType::bf16;
  Shape shape;
};

/// Tensors of one version as a parameter needs them: as they lie in the file, or cast.
class Truth {
public:
  Truth(const std::vector<Source>& sources, const std::vector<const std::byte*>& data, const Parameter& parameter)
    : data_(data) {
    for (const proof::Piece& piece : parameter.pieces) {
      const Source& source = sources[piece.tensor];
      if (source.dtype == parameter.dtype || cast_.contains(piece.tensor))
        continue;
      const auto elements = static_cast<std::size_t>(proof::count_of(source.shape));
      std::vector<std::byte>& cast = cast_[piece.tensor];
      cast =
        proof::cast_elements({data[piece.tensor], elements * size_of(source.dtype)}, source.dtype, parameter.dtype);
      data_[piece.tensor] = cast.data();
    }
  }

  [[nodiscard]] const std::vector<const std::byte*>& data() const noexcept { return data_; }

private:
  std::vector<const std::byte*> data_;
  std::map<std::size_t, std::vector<std::byte>> cast_;
};

std::string bits_of(const std::byte* element, std::size_t size) {
  std::string text = "0x";
  for (std::size_t i = size; i-- > 0;) // little-endian
    text += fmt::format("{:02x}", std::to_integer<unsigned>(element[i]));
  return text;
}

} // namespace

struct Proof::State {
  std::uint32_t worker = 0;
  std::vector<Source> sources; ///< by number in the first file
  std::vector<Parameter> parameters;
  std::vector<ExpectedTensor> expected; ///< parallel to `parameters`

  [[nodiscard]] Result<std::vector<const std::byte*>> data_of(const checkpoint::Checkpoint& version) const;
  [[nodiscard]] Result<void> check_form(const ExpectedTensor& wanted, const WorkerTensor& tensor) const;
  [[nodiscard]] std::string describe(const Parameter& parameter, const proof::Difference& difference,
                                     const std::byte* held, const std::vector<const std::byte*>& data,
                                     const checkpoint::Checkpoint& version) const;
};

Result<std::vector<const std::byte*>> Proof::State::data_of(const checkpoint::Checkpoint& version) const {
  std::vector<const std::byte*> data;
  for (const Source& source : sources) {
    const checkpoint::TensorView* tensor = version.find(source.name);
    if (tensor == nullptr)
      return fail(Code::invalid_input, "{}: tensor '{}' is missing", version.path(), source.name);
    if (tensor->dtype != source.dtype || tensor->shape != source.shape)
      return fail(Code::invalid_input, "{}: tensor '{}' is {} {}, but was {} {} in the first file", version.path(),
                  source.name, to_string(tensor->dtype), proof::text_of(tensor->shape), to_string(source.dtype),
                  proof::text_of(source.shape));
    data.push_back(tensor->data.data());
  }
  return data;
}

Result<void> Proof::State::check_form(const ExpectedTensor& wanted, const WorkerTensor& tensor) const {
  const std::size_t bytes = static_cast<std::size_t>(proof::count_of(wanted.shape)) * size_of(wanted.dtype);
  if (tensor.dtype == wanted.dtype && tensor.shape == wanted.shape && tensor.data.size() == bytes)
    return {};
  return fail(Code::verification_failed, "worker {}: tensor '{}' is {} {} in {} bytes, and must be {} {}", worker,
              wanted.name, to_string(tensor.dtype), proof::text_of(tensor.shape), tensor.data.size(),
              to_string(wanted.dtype), proof::text_of(wanted.shape));
}

std::string Proof::State::describe(const Parameter& parameter, const proof::Difference& difference,
                                   const std::byte* held, const std::vector<const std::byte*>& data,
                                   const checkpoint::Checkpoint& version) const {
  const std::size_t size = size_of(parameter.dtype);
  Shape full = proof::coordinates_of(parameter.begin + difference.local, parameter.box);
  for (std::size_t d = 0; d < full.size(); ++d)
    full[d] = proof::number_at(parameter.positions[d], full[d]);
  static constexpr std::byte zero[8] = {};
  const std::byte* must = zero;
  std::string origin = "padding";
  if (difference.tensor) {
    const Source& source = sources[*difference.tensor];
    must = data[*difference.tensor] + static_cast<std::size_t>(difference.origin) * size;
    origin = fmt::format("'{}' {} of {}", source.name,
                         proof::text_of(proof::coordinates_of(difference.origin, source.shape)), version.path());
  }
  return fmt::format("worker {}: tensor '{}' differs at local {}, full {}: holds {}, must be {} ({})", worker,
                     parameter.name, proof::text_of(proof::coordinates_of(difference.local, parameter.local_shape)),
                     proof::text_of(full), bits_of(held + static_cast<std::size_t>(difference.local) * size, size),
                     bits_of(must, size), origin);
}

Result<Proof> Proof::make(const config::Topology& topology, const checkpoint::Checkpoint& first, std::uint32_t index) {
  return make(proof::text_of(topology.trainer), proof::text_of(topology.worker), first, index);
}

Result<Proof> Proof::make(const proof::SideText& trainer, const proof::SideText& worker,
                          const checkpoint::Checkpoint& first, std::uint32_t index) {
  try {
    auto parameters = proof::plan(trainer, worker, first, index);
    if (!parameters)
      return fail(parameters.error().code, "proof of worker {}: {}", index, parameters.error().message);
    auto state = std::make_shared<State>();
    state->worker = index;
    for (const checkpoint::TensorView& tensor : first.tensors())
      state->sources.push_back({tensor.name, tensor.dtype, tensor.shape});
    for (const Parameter& parameter : *parameters)
      state->expected.push_back({parameter.name, parameter.dtype, parameter.local_shape, parameter.full_shape});
    state->parameters = std::move(*parameters);
    Proof proof;
    proof.state_ = std::move(state);
    return proof;
  } catch (const std::exception& error) { // no memory
    return fail(Code::limit_exceeded, "proof of worker {}: {}", index, error.what());
  }
}

const std::vector<ExpectedTensor>& Proof::expected() const noexcept {
  return state_->expected;
}

Result<std::uint64_t> Proof::compare(const checkpoint::Checkpoint& version, std::span<const WorkerTensor> held) const {
  const State& state = *state_;
  const auto data = state.data_of(version);
  if (!data)
    return tl::make_unexpected(data.error());
  std::map<std::string, const WorkerTensor*> by_name;
  for (const WorkerTensor& tensor : held)
    if (!by_name.emplace(tensor.name, &tensor).second)
      return fail(Code::verification_failed, "worker {}: tensor '{}' is held twice", state.worker, tensor.name);

  std::uint64_t elements = 0;
  std::uint64_t differing = 0;
  std::uint64_t tensors_differing = 0;
  std::string first_difference;
  for (std::size_t p = 0; p < state.parameters.size(); ++p) {
    const Parameter& parameter = state.parameters[p];
    const auto found = by_name.find(parameter.name);
    if (found == by_name.end())
      return fail(Code::verification_failed, "worker {}: tensor '{}' is missing", state.worker, parameter.name);
    const WorkerTensor& tensor = *found->second;
    if (auto right = state.check_form(state.expected[p], tensor); !right)
      return pass_on(std::move(right));
    by_name.erase(found);
    const Truth truth(state.sources, *data, parameter);
    const Compared compared = proof::compare(parameter, tensor.data.data(), truth.data());
    elements += compared.elements;
    differing += compared.differing;
    if (compared.differing > 0 && ++tensors_differing == 1)
      first_difference = state.describe(parameter, compared.first, tensor.data.data(), truth.data(), version);
  }
  if (!by_name.empty())
    return fail(Code::verification_failed, "worker {}: tensor '{}' is held, but no rule leads to it", state.worker,
                by_name.begin()->first);
  if (differing > 0)
    return fail(Code::verification_failed, "{}; {} of {} elements differ, in {} of {} tensors", first_difference,
                differing, elements, tensors_differing, state.parameters.size());
  return elements;
}

} // namespace deltawire::replay
