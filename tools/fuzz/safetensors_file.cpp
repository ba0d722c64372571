// A whole safetensors file.
#include "checkpoint/safetensors.hpp"

#include "scratch_file.hpp"
#include "target.hpp"

#include <algorithm>

namespace deltawire::fuzz {

bool accepts(std::span<const std::byte> input) {
  const std::string path = scratch_file("in.safetensors", input);
  Result<checkpoint::File> file;
  {
    const AllocationBound bound(16384 + 512 * input.size());
    file = checkpoint::File::open(path);
  }
  if (!file) {
    require(file.error().code == Code::invalid_input, "a bad file has the code of bad input");
    require(file.error().message.starts_with(path), "the error names the file");
    return false;
  }
  std::vector<checkpoint::TensorToWrite> tensors;
  std::size_t bytes = 0;
  for (const checkpoint::TensorView& tensor : file->tensors()) {
    require(file->find(tensor.name) == &tensor, "a tensor is found by its name");
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data});
    bytes += tensor.data.size();
  }
  require(bytes <= input.size(), "tensors lie in the file");
  const std::string copy = scratch_folder() + "/out.safetensors";
  require(checkpoint::write(copy, tensors).has_value(), "what was read can be written");
  const auto again = checkpoint::File::open(copy);
  require(again && again->tensors().size() == tensors.size(), "what was written can be read");
  for (const checkpoint::TensorToWrite& tensor : tensors) {
    const checkpoint::TensorView* found = again->find(tensor.name);
    require(found != nullptr && found->dtype == tensor.dtype && found->shape == tensor.shape &&
              std::ranges::equal(found->data, tensor.data),
            "tensors come back as they were");
  }
  return true;
}

} // namespace deltawire::fuzz
