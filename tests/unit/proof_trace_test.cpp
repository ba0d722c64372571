// The proof on the small real trace: what it expects of the two workers at the last step must be slices of the hf/ file
// of that step, cut here by plain rows and columns.
#include "catch.hpp"
#include "config/topology.hpp"
#include "random.hpp"
#include "replay/proof.hpp"
#include "text_matchers.hpp"

#include <cstring>
#include <map>

using namespace deltawire;
using namespace deltawire::replay;
using test::contains;

namespace {

checkpoint::Checkpoint open(const std::string& name) {
  auto file = checkpoint::Checkpoint::open(DELTAWIRE_TEST_DATA "/trace/" + name);
  INFO((file ? "" : file.error().message));
  REQUIRE(file);
  return *file;
}

config::Topology trace_topology() {
  auto topology = config::load(DELTAWIRE_TOPOLOGIES "/trace.toml");
  INFO((topology ? "" : topology.error().message));
  REQUIRE(topology);
  return *topology;
}

using Bytes = std::vector<std::byte>;

/// Builds a worker's memory from slices of matrices.
class Slices {
public:
  explicit Slices(const checkpoint::Checkpoint& file) : file_(file) {}

  /// Appends rows begin..end of columns left..right of a matrix; what passes the end is cut off.
  void append(Bytes& to, const std::string& name, std::size_t begin, std::size_t end, std::size_t left,
              std::size_t right) const {
    CAPTURE(name);
    const checkpoint::TensorView* tensor = file_.find(name);
    REQUIRE(tensor != nullptr);
    REQUIRE(tensor->shape.size() == 2);
    const std::size_t size = size_of(tensor->dtype);
    const auto columns = static_cast<std::size_t>(tensor->shape[1]);
    end = std::min(end, static_cast<std::size_t>(tensor->shape[0]));
    right = std::min(right, columns);
    for (std::size_t row = begin; row < end; ++row) {
      const auto part = tensor->data.subspan((row * columns + left) * size, (right - left) * size);
      to.insert(to.end(), part.begin(), part.end());
    }
  }
  void rows(Bytes& to, const std::string& name, std::size_t begin, std::size_t end) const {
    append(to, name, begin, end, 0, SIZE_MAX);
  }
  void columns(Bytes& to, const std::string& name, std::size_t left, std::size_t right) const {
    append(to, name, 0, SIZE_MAX, left, right);
  }
  void whole(Bytes& to, const std::string& name) const {
    CAPTURE(name);
    const checkpoint::TensorView* tensor = file_.find(name);
    REQUIRE(tensor != nullptr);
    to.insert(to.end(), tensor->data.begin(), tensor->data.end());
  }

private:
  const checkpoint::Checkpoint& file_;
};

/// What worker `w` of two holds.
std::map<std::string, Bytes> worker_memory(const checkpoint::Checkpoint& hf, std::size_t w) {
  const Slices slices(hf);
  std::map<std::string, Bytes> memory;
  slices.rows(memory["model.embed_tokens.weight"], "model.embed_tokens.weight", w * 130, (w + 1) * 130);
  slices.rows(memory["lm_head.weight"], "lm_head.weight", w * 130, (w + 1) * 130);
  slices.whole(memory["model.norm.weight"], "model.norm.weight");
  for (const std::string layer : {"model.layers.0.", "model.layers.2."}) {
    Bytes& qkv = memory[layer + "self_attn.qkv_proj.weight"];
    slices.rows(qkv, layer + "self_attn.q_proj.weight", w * 96, (w + 1) * 96);
    slices.rows(qkv, layer + "self_attn.k_proj.weight", w * 32, (w + 1) * 32);
    slices.rows(qkv, layer + "self_attn.v_proj.weight", w * 32, (w + 1) * 32);
    slices.columns(memory[layer + "self_attn.o_proj.weight"], layer + "self_attn.o_proj.weight", w * 96, (w + 1) * 96);
    for (const std::string name : {"input_layernorm.weight", "post_attention_layernorm.weight",
                                   "self_attn.q_norm.weight", "self_attn.k_norm.weight"})
      slices.whole(memory[layer + name], layer + name);
  }
  const std::string dense = "model.layers.0.mlp.";
  slices.rows(memory[dense + "gate_up_proj.weight"], dense + "gate_proj.weight", w * 256, (w + 1) * 256);
  slices.rows(memory[dense + "gate_up_proj.weight"], dense + "up_proj.weight", w * 256, (w + 1) * 256);
  slices.columns(memory[dense + "down_proj.weight"], dense + "down_proj.weight", w * 256, (w + 1) * 256);
  const std::string sparse = "model.layers.2.mlp.";
  slices.whole(memory[sparse + "gate.weight"], sparse + "gate.weight");
  slices.whole(memory[sparse + "gate.e_score_correction_bias"], sparse + "gate.e_score_correction_bias");
  for (int e = 0; e < 8; ++e) {
    const std::string expert = sparse + "experts." + std::to_string(e) + ".";
    Bytes& w13 = memory[sparse + "experts.w13_weight"];
    slices.rows(w13, expert + "gate_proj.weight", w * 64, (w + 1) * 64);
    slices.rows(w13, expert + "up_proj.weight", w * 64, (w + 1) * 64);
    slices.columns(memory[sparse + "experts.w2_weight"], expert + "down_proj.weight", w * 64, (w + 1) * 64);
  }
  return memory;
}

/// In the shapes and dtypes that the proof expects.
std::vector<WorkerTensor> held(const Proof& proof, const std::map<std::string, Bytes>& memory) {
  std::vector<WorkerTensor> tensors;
  for (const ExpectedTensor& expected : proof.expected()) {
    CAPTURE(expected.name);
    REQUIRE(memory.contains(expected.name));
    tensors.push_back({expected.name, expected.dtype, expected.shape, memory.at(expected.name)});
  }
  CHECK(tensors.size() == memory.size());
  return tensors;
}

} // namespace

TEST_CASE("the trace's workers hold packed parameters of these shapes") {
  const auto proof = Proof::make(trace_topology(), open("trainer/step-00.safetensors"), 1);
  INFO((proof ? "" : proof.error().message));
  REQUIRE(proof);
  std::map<std::string, ExpectedTensor> expected;
  for (const ExpectedTensor& tensor : proof->expected())
    expected[tensor.name] = tensor;
  const auto is = [&](const std::string& name, const layout::Shape& local, const layout::Shape& full,
                      DType dtype = DType::bf16) {
    CAPTURE(name);
    REQUIRE(expected.contains(name));
    CHECK(expected[name].shape == local);
    CHECK(expected[name].full_shape == full);
    CHECK(expected[name].dtype == dtype);
  };
  CHECK(expected.size() == 21);
  is("model.embed_tokens.weight", {129, 192}, {259, 192});
  is("lm_head.weight", {129, 192}, {259, 192});
  is("model.norm.weight", {192}, {192});
  is("model.layers.2.self_attn.qkv_proj.weight", {160, 192}, {320, 192});
  is("model.layers.2.self_attn.o_proj.weight", {192, 96}, {192, 192});
  is("model.layers.0.mlp.gate_up_proj.weight", {512, 192}, {1024, 192});
  is("model.layers.0.mlp.down_proj.weight", {192, 256}, {192, 512});
  is("model.layers.2.mlp.experts.w13_weight", {8, 128, 192}, {8, 256, 192});
  is("model.layers.2.mlp.experts.w2_weight", {8, 192, 64}, {8, 192, 128});
  is("model.layers.2.mlp.gate.weight", {8, 192}, {8, 192});
  is("model.layers.2.mlp.gate.e_score_correction_bias", {8}, {8}, DType::f32);
}

TEST_CASE("what the proof expects at the last step are slices of the hf file of that step") {
  const auto topology = trace_topology();
  const auto first = open("trainer/step-00.safetensors");
  const auto last = open("trainer/step-03.safetensors");
  const auto hf = open("hf/step-03.safetensors");
  for (std::uint32_t worker : {0U, 1U}) {
    CAPTURE(worker);
    const auto proof = Proof::make(topology, first, worker);
    REQUIRE(proof);
    const auto memory = worker_memory(hf, worker);
    const auto tensors = held(*proof, memory);
    const auto compared = proof->compare(last, tensors);
    INFO((compared ? "" : compared.error().message));
    REQUIRE(compared);
    std::size_t elements = 0;
    for (const WorkerTensor& tensor : tensors)
      elements += tensor.data.size() / size_of(tensor.dtype);
    CHECK(*compared == elements);
    CHECK(elements > 590'000);

    // An older step is not this one, and the other worker's memory is not this worker's.
    const auto older = proof->compare(open("trainer/step-02.safetensors"), tensors);
    REQUIRE(!older);
    CHECK(older.error().code == Code::verification_failed);
    if (worker == 1)
      continue; // its shapes differ from worker 0's in the embedding alone
    auto others = memory;
    const auto neighbour = worker_memory(hf, 1);
    others["model.layers.0.self_attn.qkv_proj.weight"] = neighbour.at("model.layers.0.self_attn.qkv_proj.weight");
    const auto swapped = proof->compare(last, held(*proof, others));
    REQUIRE(!swapped);
    CHECK_THAT(swapped.error().message, contains("model.layers.0.self_attn.qkv_proj.weight"));
  }
}

TEST_CASE("a flipped bit anywhere in a worker's memory is found") {
  CAPTURE(test::seed());
  auto random = test::generator(6);
  const auto last = open("trainer/step-03.safetensors");
  const auto proof = Proof::make(trace_topology(), open("trainer/step-00.safetensors"), 1);
  REQUIRE(proof);
  auto memory = worker_memory(open("hf/step-03.safetensors"), 1);
  const auto tensors = held(*proof, memory);
  for (int round = 0; round < 20; ++round)
    for (const WorkerTensor& tensor : tensors) {
      const std::size_t at = random() % tensor.data.size();
      const auto bit = static_cast<std::byte>(1U << random() % 8);
      CAPTURE(tensor.name, at, bit);
      std::byte& byte = memory.at(tensor.name)[at]; // the views see it: nothing was moved
      byte ^= bit;
      const auto compared = proof->compare(last, tensors);
      byte ^= bit;
      REQUIRE(!compared);
      REQUIRE_THAT(compared.error().message, contains("tensor '" + tensor.name + "'"));
      REQUIRE_THAT(compared.error().message, contains("; 1 of"));
    }
  CHECK(proof->compare(last, tensors));
}
