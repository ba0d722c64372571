// The index of a checkpoint in several files, as Hugging Face libraries write it (model.safetensors.index.json, by
// huggingface_hub's save_torch_state_dict and transformers' save_pretrained): JSON text in, checked entries out. Opens
// no file.
//
//   {"metadata": {"total_size": 4538376},
//    "weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors", ...}}
//
// weight_map MUST be there and name at least one tensor; each maps to a file relative to the index's folder.
// total_size, where it is given, is the sum of the bytes of all tensors. Other keys are for others and are ignored.
#pragma once

#include "result.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::checkpoint {

/// The longest index that is read, in bytes: the format's limit on a header, which holds more for each tensor.
inline constexpr std::uint64_t max_index_bytes = 100'000'000;

/// A file of the checkpoint and the tensors that the index says it holds.
struct IndexedFile {
  std::string name;                 ///< relative to the index's folder, inside it
  std::vector<std::string> tensors; ///< in the order of the index
};

struct Index {
  std::vector<IndexedFile> files; ///< sorted by name
  std::optional<std::uint64_t> total_size;
};

/// Parses and checks the text of an index. Afterwards no tensor repeats, and every file name is relative, stays inside
/// the folder and is the only spelling of its path ('.', '..' and empty parts are refused). Fails with
/// Code::invalid_input, naming key, tensor or file, but not the index; all bad file names at once.
[[nodiscard]] Result<Index> parse_index(std::string_view text);

} // namespace deltawire::checkpoint
