#include "sync/exported_memory.hpp"

namespace deltawire::sync {

Result<ExportedMemory::Importer*> ExportedMemory::known(std::uint32_t importer) {
  const auto found = importers_.find(importer);
  if (found == importers_.end())
    return fail(Code::invalid_input, "{}: importer {} speaks of memory that it does not have", what_, importer);
  return &found->second;
}

Result<void> ExportedMemory::exported_to(std::uint32_t importer) {
  if (freeing_)
    return fail(Code::call_order, "{} would be exported to importer {} while it is freed", what_, importer);
  if (!importers_.try_emplace(importer).second)
    return fail(Code::call_order, "{} would be exported to importer {} twice", what_, importer);
  return {};
}

Result<std::uint64_t> ExportedMemory::lend() {
  if (!may_write())
    return fail(Code::call_order, "{} would be lent {}", what_,
                freeing_ ? "while it is freed" : "before it was returned by all who read it");
  for (auto& [number, importer] : importers_)
    importer.holds = true;
  holders_ = importers_.size();
  since_ = now_;
  told_ = false;
  return ++loan_;
}

Result<void> ExportedMemory::returned(std::uint32_t importer, std::uint64_t loan) {
  const auto found = known(importer);
  if (!found)
    return tl::make_unexpected(found.error());
  if (loan == 0 || loan > loan_)
    return fail(Code::invalid_input, "{}: importer {} returns loan {}, and there were {}", what_, importer, loan,
                loan_);
  if (loan == loan_ && (*found)->holds) {
    (*found)->holds = false;
    --holders_;
  }
  return {};
}

void ExportedMemory::begin_free() {
  if (freeing_)
    return;
  freeing_ = true;
  since_ = now_;
  told_ = false;
}

Result<void> ExportedMemory::unmapped(std::uint32_t importer) {
  const auto found = known(importer);
  if (!found)
    return tl::make_unexpected(found.error());
  if (!freeing_)
    return fail(Code::invalid_input, "{}: importer {} has unmapped it, and was not asked to", what_, importer);
  gone(importer);
  return {};
}

void ExportedMemory::gone(std::uint32_t importer) {
  const auto found = importers_.find(importer);
  if (found == importers_.end())
    return;
  if (found->second.holds)
    --holders_;
  importers_.erase(found);
}

std::vector<std::uint32_t> ExportedMemory::holders() const {
  std::vector<std::uint32_t> held;
  for (const auto& [number, importer] : importers_)
    if (freeing_ || importer.holds)
      held.push_back(number);
  return held;
}

std::optional<Failure> ExportedMemory::tick() {
  ++now_;
  const std::vector<std::uint32_t> held = holders();
  if (held.empty() || told_ || now_ - since_ <= limit_)
    return std::nullopt;
  told_ = true;
  std::string names;
  for (const std::uint32_t importer : held)
    names += fmt::format("{}importer {}", names.empty() ? "" : ", ", importer);
  return Failure{Code::timed_out, fmt::format("{} was not {} within {} ticks by {}", what_,
                                              freeing_ ? "unmapped" : "returned", limit_, names)};
}

} // namespace deltawire::sync
