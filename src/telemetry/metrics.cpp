#include "telemetry/metrics.hpp"

#include <algorithm>
#include <cassert>

namespace deltawire::telemetry {

template <class Metric>
Metric& Registry::find_or_make(const Family& family, const Labels& labels, Storage storage,
                               std::deque<Metric>& metrics) {
  const std::lock_guard lock{mutex_};
  const auto [series, added] = series_.try_emplace(Key{family.name, labels}, Series{storage, metrics.size()});
  if (added) {
    families_.emplace(family.name, &family);
    metrics.emplace_back();
  }
  assert(series->second.storage == storage);
  return metrics[series->second.index];
}

Counter& Registry::counter(const Family& family, const Labels& labels) {
  assert(family.kind == Kind::counter);
  return find_or_make(family, labels, Storage::counter, counters_);
}

Stopwatch& Registry::stopwatch(const Family& family, const Labels& labels) {
  assert(family.kind == Kind::counter);
  return find_or_make(family, labels, Storage::stopwatch, stopwatches_);
}

Gauge& Registry::gauge(const Family& family, const Labels& labels) {
  assert(family.kind == Kind::gauge);
  return find_or_make(family, labels, Storage::gauge, gauges_);
}

Histogram& Registry::histogram(const Family& family, const Labels& labels) {
  assert(family.kind == Kind::histogram);
  return find_or_make(family, labels, Storage::histogram, histograms_);
}

namespace {

Sample sample_of(const Histogram& histogram, double scale) {
  Sample sample;
  for (std::size_t b = 0; b < Histogram::bounds; ++b) {
    sample.count += histogram.count(b);
    sample.counts.push_back(sample.count);
  }
  sample.count += histogram.count(Histogram::bounds);
  sample.sum = static_cast<double>(histogram.sum()) * scale;
  return sample;
}

} // namespace

std::vector<Listing> Registry::list() const {
  std::vector<Listing> listings;
  const std::lock_guard lock{mutex_};
  for (const auto& [key, series] : series_) { // by family, then labels
    const Family& family = *families_.at(key.first);
    Sample sample;
    switch (series.storage) {
    case Storage::counter:
      sample.value = static_cast<double>(counters_[series.index].value()) * family.scale;
      break;
    case Storage::stopwatch:
      sample.value = static_cast<double>(stopwatches_[series.index].value()) * family.scale;
      break;
    case Storage::gauge:
      sample.value = static_cast<double>(gauges_[series.index].value()) * family.scale;
      break;
    case Storage::histogram:
      sample = sample_of(histograms_[series.index], family.scale);
      break;
    }
    // Of each kind of message that an actor might get there are series, most of which nobody will ever count in. All
    // others are there from 0 on, so that the first event is seen as an increase.
    const bool idle = family.kind == Kind::histogram ? sample.count == 0 : sample.value == 0;
    const bool of_a_message =
      std::any_of(key.second.begin(), key.second.end(), [](const auto& label) { return label.first == "message"; });
    if (idle && (family.kind == Kind::histogram || of_a_message))
      continue;
    sample.labels = own_;
    sample.labels.insert(sample.labels.end(), key.second.begin(), key.second.end());
    if (listings.empty() || listings.back().family->name != family.name)
      listings.push_back({&family, {}});
    listings.back().samples.push_back(std::move(sample));
  }
  return listings;
}

std::vector<Listing> merge(std::vector<std::vector<Listing>> lists) {
  std::map<std::string_view, Listing> merged;
  for (std::vector<Listing>& list : lists)
    for (Listing& listing : list) {
      Listing& into = merged.try_emplace(listing.family->name, Listing{listing.family, {}}).first->second;
      std::move(listing.samples.begin(), listing.samples.end(), std::back_inserter(into.samples));
    }
  std::vector<Listing> out;
  for (auto& [name, listing] : merged) {
    std::sort(listing.samples.begin(), listing.samples.end(),
              [](const Sample& a, const Sample& b) { return a.labels < b.labels; });
    out.push_back(std::move(listing));
  }
  return out;
}

} // namespace deltawire::telemetry
