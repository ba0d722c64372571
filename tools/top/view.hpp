// What `deltawire top` shows: a table of actors and one of workers, made of one scrape of all endpoints and the one
// before. Pure: text in, text out.
#pragma once

#include "metrics_text.hpp"

#include <string>
#include <vector>

namespace deltawire::top {

struct Scrape {
  double at_s = 0; ///< since the Unix epoch
  std::vector<Series> series;
};

/// Lines that end with a newline, plain ASCII. Rates and shares of time are of the time between the scrapes; with a
/// `before` that is null, of the time since each actor started. Latencies are of all messages since then, read from
/// their histograms: the bound of the bucket that holds the quantile.
[[nodiscard]] std::string view(const Scrape& now, const Scrape* before);

} // namespace deltawire::top
