// The index of a checkpoint in several files.
#include "checkpoint/index.hpp"

#include "target.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>

namespace deltawire::fuzz {
namespace {

/// A path that stays in its folder and is spelled in one way only, by the standard library's rules.
bool stays_inside(const std::string& name) {
  const std::filesystem::path path(name);
  return !name.empty() && path.is_relative() && path.lexically_normal() == path && *path.begin() != ".." &&
         *path.begin() != "." && path.has_filename();
}

std::string text_of(const checkpoint::Index& index) {
  nlohmann::json json;
  for (const checkpoint::IndexedFile& file : index.files)
    for (const std::string& tensor : file.tensors)
      json["weight_map"][tensor] = file.name;
  if (index.total_size)
    json["metadata"]["total_size"] = *index.total_size;
  return json.dump();
}

} // namespace

bool accepts(std::span<const std::byte> input) {
  Result<checkpoint::Index> index;
  {
    const AllocationBound bound(16384 + 512 * input.size());
    index = checkpoint::parse_index(as_text(input));
  }
  if (!index) {
    require(index.error().code == Code::invalid_input, "a bad index has the code of bad input");
    return false;
  }
  for (const checkpoint::IndexedFile& file : index->files) {
    require(stays_inside(file.name), "files lie in the index's folder");
    require(!file.tensors.empty(), "files have tensors");
  }
  const std::string text = text_of(*index);
  const auto again = checkpoint::parse_index(text);
  require(again.has_value(), "an index that was read can be written and read");
  require(text_of(*again) == text && again->files.size() == index->files.size(), "an index comes back as it was");
  return true;
}

} // namespace deltawire::fuzz
