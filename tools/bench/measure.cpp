#include "measure.hpp"

#include <algorithm>
#include <ctime>
#include <thread>

namespace deltawire::bench {

namespace {

/// Processor time of the calling thread, seconds.
double thread_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// One turn: the processor time of the slowest thread.
double turn(const std::function<void(std::size_t)>& work, std::size_t threads) {
  std::vector<double> seconds(threads);
  const auto timed = [&](std::size_t thread) {
    const double begin = thread_seconds();
    work(thread);
    seconds[thread] = thread_seconds() - begin;
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t thread = 1; thread < threads; ++thread)
      others.emplace_back(timed, thread);
    timed(0);
  }
  return *std::max_element(seconds.begin(), seconds.end());
}

} // namespace

Turns take_turns(std::span<const Contender> contenders, std::size_t threads, std::size_t rounds) {
  Turns turns(contenders.size());
  for (std::size_t round = 0; round <= rounds; ++round)
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      if (contenders[i].prepare)
        contenders[i].prepare();
      const double seconds = turn(contenders[i].work, threads);
      if (round != 0) // the first one warms up
        turns[i].push_back(seconds);
    }
  return turns;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double median_ratio(const std::vector<double>& own, const std::vector<double>& reference) {
  std::vector<double> ratios(own.size());
  std::transform(own.begin(), own.end(), reference.begin(), ratios.begin(),
                 [](double mine, double other) { return other / mine; });
  return median(std::move(ratios));
}

void keep(std::size_t value) noexcept {
  [[maybe_unused]] static thread_local volatile std::size_t kept; // contenders run on threads of their own
  kept = value;
}

} // namespace deltawire::bench
