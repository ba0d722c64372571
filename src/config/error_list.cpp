#include "config/error_list.hpp"

#include <algorithm>

namespace deltawire::config {

void ErrorList::add(Code code, const Place& place, std::string_view key, std::string_view message) {
  std::string text =
    key.empty() ? fmt::format("{}: {}", place.text(), message) : fmt::format("{}: {}: {}", place.text(), key, message);
  entries_.push_back({place.source, place.line, code, std::move(text)});
}

Failure ErrorList::to_failure() const {
  std::vector<const Entry*> sorted;
  for (const Entry& entry : entries_)
    sorted.push_back(&entry);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Entry* a, const Entry* b) {
    return a->source != b->source ? a->source < b->source : a->line < b->line;
  });
  Failure failure{Code::unsupported, ""};
  for (const Entry* entry : sorted) {
    if (entry->code != Code::unsupported)
      failure.code = Code::invalid_topology;
    failure.message += failure.message.empty() ? "" : "\n";
    failure.message += entry->message;
  }
  return failure;
}

} // namespace deltawire::config
