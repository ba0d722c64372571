#include "telemetry/metrics.hpp"

#include <algorithm>
#include <cassert>

namespace deltawire::telemetry {

namespace {

[[maybe_unused]] bool is_metric_name(std::string_view name) {
  return name.starts_with("deltawire_") && std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

template <class Entries>
auto& find_or_make(Entries& entries, std::string_view name, std::string_view description) {
  auto found = entries.find(name);
  if (found == entries.end()) {
    auto entry = std::make_unique<typename Entries::mapped_type::element_type>();
    entry->description = description;
    found = entries.emplace(std::string{name}, std::move(entry)).first;
  }
  return found->second->metric;
}

} // namespace

Counter& Registry::counter(std::string_view name, std::string_view description) {
  assert(is_metric_name(name) && name.ends_with("_total"));
  const std::lock_guard lock{mutex_};
  return find_or_make(counters_, name, description);
}

HighWater& Registry::high_water(std::string_view name, std::string_view description) {
  assert(is_metric_name(name) && !name.ends_with("_total") && !name.ends_with("_high_water"));
  const std::lock_guard lock{mutex_};
  return find_or_make(high_waters_, name, description);
}

std::vector<Sample> Registry::snapshot() const {
  std::vector<Sample> samples;
  {
    const std::lock_guard lock{mutex_};
    for (const auto& [name, entry] : counters_)
      samples.push_back({name, Sample::Kind::counter, entry->description, entry->metric.value()});
    for (const auto& [name, entry] : high_waters_) {
      samples.push_back({name, Sample::Kind::gauge, entry->description, entry->metric.now()});
      samples.push_back(
        {name + "_high_water", Sample::Kind::gauge, entry->description + " (the most so far)", entry->metric.peak()});
    }
  }
  std::sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.name < b.name; });
  return samples;
}

} // namespace deltawire::telemetry
