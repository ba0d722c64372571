#include "sync/update_parts.hpp"

#include "layout/pattern.hpp"
#include "layout/problems.hpp"
#include "layout/shape.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace deltawire::sync {
namespace {

/// Adds elements that the patch does not have yet; fails with the first that it has.
tl::expected<delta::BlockPatch, std::uint64_t> joined(const delta::BlockPatch& a, const delta::BlockPatch& b,
                                                      std::size_t size) {
  delta::BlockPatch out;
  out.elements.reserve(a.elements.size() + b.elements.size());
  out.values.reserve(a.values.size() + b.values.size());
  const auto take = [&](const delta::BlockPatch& from, std::size_t& at) {
    out.elements.push_back(from.elements[at]);
    const auto begin = from.values.begin() + static_cast<std::ptrdiff_t>(at * size);
    out.values.insert(out.values.end(), begin, begin + static_cast<std::ptrdiff_t>(size));
    ++at;
  };
  std::size_t i = 0, j = 0;
  while (i < a.elements.size() || j < b.elements.size()) {
    if (j == b.elements.size() || (i < a.elements.size() && a.elements[i] < b.elements[j]))
      take(a, i);
    else if (i == a.elements.size() || b.elements[j] < a.elements[i])
      take(b, j);
    else
      return tl::make_unexpected(b.elements[j]);
  }
  return out;
}

} // namespace

UpdateParts::UpdateParts(std::uint64_t version, const PartsOf& of, std::vector<bool> captured)
  : version_(version), of_(of), captured_(std::move(captured)), patched_(of.parameters.size()) {
  captured_.resize(of.parameters.size());
  parts_.sent.resize(of.parameters.size());
}

Result<std::vector<std::uint32_t>> UpdateParts::send(std::span<const std::string> patterns) {
  layout::Problems problems;
  std::vector<bool> chosen(of_.parameters.size());
  for (const std::string& text : patterns) {
    const auto pattern = layout::Pattern::parse(text);
    if (!pattern) {
      problems.add(Code::invalid_argument, "send(\"{}\"): {}", text, pattern.error().message);
      continue;
    }
    bool found = false;
    for (std::size_t p = 0; p < of_.parameters.size(); ++p)
      if (pattern->match(of_.parameters[p])) {
        chosen[p] = true;
        found = true;
      }
    if (!found)
      problems.add(Code::invalid_argument, "send(\"{}\"): no parameter of rank {} matches", text, of_.rank);
  }
  std::vector<std::uint32_t> parameters;
  for (std::uint32_t p = 0; p < chosen.size(); ++p) {
    if (!chosen[p])
      continue;
    parameters.push_back(p);
    if (parts_.sent[p])
      problems.add(Code::call_order, "send(): '{}' was sent already in the update to version {}", of_.parameters[p],
                   version_);
    if (patched_[p])
      problems.add(Code::call_order,
                   "send(): '{}' was patched in the update to version {}: a parameter is sent or patched, not both",
                   of_.parameters[p], version_);
  }
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  for (const std::uint32_t p : parameters)
    parts_.sent[p] = true;
  return parameters;
}

/// The slot's number, when the patch fits it.
Result<std::uint32_t> UpdateParts::check(const SlotPatch& patch) const {
  const auto slot = std::find_if(of_.slots.begin(), of_.slots.end(),
                                 [&](const layout::SlotSpec& spec) { return spec.name == patch.slot; });
  if (slot == of_.slots.end())
    return fail(Code::invalid_argument, "patch(\"{}\"): the checkpoint has no such slot", patch.slot);
  if (patch.dtype != slot->dtype)
    return fail(Code::invalid_argument, "patch(\"{}\"): values of {} for a slot of {}", patch.slot,
                to_string(patch.dtype), to_string(slot->dtype));
  const std::size_t size = size_of(slot->dtype);
  if (patch.values.size() != patch.indices.size() * size)
    return fail(Code::invalid_argument, "patch(\"{}\"): {} indices of {} take {} bytes of values, and {} are given",
                patch.slot, patch.indices.size(), to_string(slot->dtype), patch.indices.size() * size,
                patch.values.size());
  const auto elements = static_cast<std::uint64_t>(layout::element_count(slot->shape).value_or(0));
  for (const std::uint64_t index : patch.indices)
    if (index >= elements)
      return fail(Code::invalid_argument, "patch(\"{}\"): index {} of a slot of {} elements", patch.slot, index,
                  elements);
  return static_cast<std::uint32_t>(slot - of_.slots.begin());
}

Result<void> UpdateParts::patch(const SlotPatch& patch, const OwnerOf& owner_of) {
  const auto slot = check(patch);
  if (!slot)
    return tl::make_unexpected(slot.error());
  const std::size_t size = size_of(patch.dtype);

  std::vector<std::size_t> order(patch.indices.size()); // ascending positions
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return patch.indices[a] < patch.indices[b]; });
  for (std::size_t i = 1; i < order.size(); ++i)
    if (patch.indices[order[i]] == patch.indices[order[i - 1]])
      return fail(Code::invalid_argument, "patch(\"{}\"): index {} is there twice", patch.slot,
                  patch.indices[order[i]]);

  // Each block takes what it has; what is left belongs to other ranks.
  std::map<std::uint32_t, delta::BlockPatch> found;
  std::vector<std::size_t> left = std::move(order);
  for (std::uint32_t b = 0; b < of_.blocks.size() && !left.empty(); ++b) {
    if (of_.blocks[b].slot != *slot)
      continue;
    const delta::BlockIndex index(of_.blocks[b]);
    std::vector<std::pair<std::uint64_t, std::size_t>> own; // (element, which of the patch)
    std::erase_if(left, [&](std::size_t i) {
      const auto element = index.element_at(patch.indices[i]);
      if (element)
        own.emplace_back(*element, i);
      return element.has_value();
    });
    if (own.empty())
      continue;
    std::sort(own.begin(), own.end());
    delta::BlockPatch& taken = found[b];
    for (const auto& [element, i] : own) {
      taken.elements.push_back(element);
      const auto value = patch.values.begin() + static_cast<std::ptrdiff_t>(i * size);
      taken.values.insert(taken.values.end(), value, value + static_cast<std::ptrdiff_t>(size));
    }
  }
  if (!left.empty()) {
    const std::uint64_t first = patch.indices[left.front()];
    return fail(
      Code::invalid_argument,
      "patch(\"{}\"): rank {} does not own {} of the {} elements; the first of them, index {}, belongs to {}: "
      "patch it there",
      patch.slot, of_.rank, left.size(), patch.indices.size(), first, owner_of(*slot, first));
  }

  for (auto& [b, taken] : found) {
    const std::uint32_t parameter = of_.blocks[b].parameter;
    if (parts_.sent[parameter])
      return fail(Code::call_order,
                  "patch(\"{}\"): '{}' was sent in the update to version {}: a parameter is sent or patched, not both",
                  patch.slot, of_.parameters[parameter], version_);
    if (!captured_[parameter])
      return fail(Code::call_order, "patch(\"{}\"): '{}' has never been sent: there is nothing to patch", patch.slot,
                  of_.parameters[parameter]);
    const auto earlier = parts_.patches.find(b);
    if (earlier == parts_.patches.end())
      continue;
    auto both = joined(earlier->second, taken, size);
    if (!both)
      return fail(Code::invalid_argument, "patch(\"{}\"): an element was patched already in the update to version {}",
                  patch.slot, version_);
    taken = std::move(*both);
  }
  for (auto& [b, taken] : found) {
    patched_[of_.blocks[b].parameter] = true;
    parts_.patches.insert_or_assign(b, std::move(taken));
  }
  return {};
}

std::vector<bool> UpdateParts::captured() const {
  std::vector<bool> all = captured_;
  for (std::size_t p = 0; p < all.size(); ++p)
    all[p] = all[p] || parts_.sent[p];
  return all;
}

Result<CaptureParts> UpdateParts::finish() const {
  layout::Problems problems;
  const std::vector<bool> captured = this->captured();
  for (std::size_t p = 0; p < captured.size(); ++p)
    if (!captured[p])
      problems.add(Code::call_order,
                   "finish(): '{}' was never sent: the first update of a session holds every parameter",
                   of_.parameters[p]);
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  return parts_;
}

ChunkParts::ChunkParts(std::span<const Chunk> chunks, std::span<const layout::Block> blocks)
  : chunks_with_(blocks.size()), parameters_in_(chunks.size()) {
  for (std::uint32_t c = 0; c < chunks.size(); ++c)
    for (const ChunkRange& range : chunks[c].ranges) {
      const std::uint32_t parameter = blocks[range.block].parameter;
      if (parameter >= chunks_of_.size())
        chunks_of_.resize(parameter + 1);
      if (chunks_of_[parameter].empty() || chunks_of_[parameter].back() != c) {
        chunks_of_[parameter].push_back(c);
        ++parameters_in_[c];
      }
      if (chunks_with_[range.block].empty() || chunks_with_[range.block].back() != c)
        chunks_with_[range.block].push_back(c);
    }
  start();
}

void ChunkParts::start() {
  missing_ = parameters_in_;
}

std::vector<std::uint32_t> ChunkParts::sent(std::span<const std::uint32_t> parameters) {
  std::vector<std::uint32_t> complete;
  for (const std::uint32_t parameter : parameters) {
    if (parameter >= chunks_of_.size())
      continue; // nothing of it is this rank's
    for (const std::uint32_t chunk : chunks_of_[parameter])
      if (--missing_[chunk] == 0)
        complete.push_back(chunk);
  }
  std::sort(complete.begin(), complete.end());
  return complete;
}

std::vector<std::uint32_t> ChunkParts::patched(const CaptureParts& parts) const {
  std::vector<std::uint32_t> chunks;
  for (const auto& [block, patch] : parts.patches)
    chunks.insert(chunks.end(), chunks_with_[block].begin(), chunks_with_[block].end());
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  return chunks;
}

} // namespace deltawire::sync
