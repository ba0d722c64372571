#include "progress.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <unistd.h>

namespace deltawire::replay {

Progress::Progress(bool wanted) : enabled_(wanted && ::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (!drawn_.empty())
    std::fputs("\r\033[K", stderr);
}

void Progress::show(std::size_t done, std::size_t all) {
  if (!enabled_ || all == 0)
    return;
  constexpr std::size_t width = 40;
  const std::size_t filled = done * width / all;
  std::string text = fmt::format("[{}{}] {} of {} versions on every worker", std::string(filled, '#'),
                                 std::string(width - filled, '.'), done, all);
  if (text == drawn_)
    return;
  drawn_ = std::move(text);
  fmt::print(stderr, "\r\033[K{}", drawn_);
  std::fflush(stderr);
}

} // namespace deltawire::replay
