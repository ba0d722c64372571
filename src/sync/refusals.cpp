#include "sync/refusals.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace deltawire::sync {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// "127.0.0.1:57220: why" as "127.0.0.1:: why", "[::1]:57220" as "[::1]:"; a caller has another port each time.
std::string without_ports(const std::string& text) {
  std::string rest;
  for (std::size_t i = 0; i < text.size(); ++i) {
    rest += text[i];
    const bool behind_address = text[i] == ':' && i > 0 && (is_digit(text[i - 1]) || text[i - 1] == ']');
    while (behind_address && i + 1 < text.size() && is_digit(text[i + 1]))
      ++i;
  }
  return rest;
}

} // namespace

void Refusals::keep(std::string text) {
  constexpr std::size_t most = 8, longest = 1000;
  text.resize(std::min(text.size(), longest));
  Entry entry{without_ports(text), std::move(text), 1};
  const auto same = std::find_if(last_.begin(), last_.end(), [&](const Entry& each) { return each.key == entry.key; });
  if (same != last_.end()) {
    entry.times += same->times;
    last_.erase(same);
  } else if (last_.size() == most) {
    earlier_ += last_.front().times;
    last_.pop_front();
  }
  last_.push_back(std::move(entry));
}

std::string Refusals::text() const {
  std::string text = earlier_ == 0 ? "" : fmt::format("; refused or lost: {} earlier ones", earlier_);
  for (const Entry& each : last_)
    text += each.times == 1 ? fmt::format("; {}", each.text) : fmt::format("; {} ({} times)", each.text, each.times);
  return text;
}

} // namespace deltawire::sync
