#include "top_command.hpp"

#include "config/address.hpp"
#include "http_get.hpp"
#include "replay/message.hpp"
#include "view.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <unistd.h>

namespace deltawire::top {

namespace {

constexpr std::chrono::milliseconds patience{3000};

/// All endpoints' series; those that do not answer are noted. Fails where none does.
Result<Scrape> scrape(const std::vector<config::Address>& addresses, std::string& missing) {
  Scrape out;
  std::string reasons;
  std::size_t answered = 0;
  for (const config::Address& address : addresses) {
    auto body = http_get(address.host, address.port, "/metrics", patience);
    auto series = body ? parse_metrics(*body) : Result<std::vector<Series>>(pass_on(std::move(body)));
    if (!series) {
      reasons += (reasons.empty() ? "" : "; ") + series.error().message;
      missing += (missing.empty() ? "" : ", ") + config::to_string(address);
      continue;
    }
    ++answered;
    std::move(series->begin(), series->end(), std::back_inserter(out.series));
  }
  if (answered == 0)
    return fail(Code::peer_failed, "nothing answers: {}; the run must have telemetry.prometheus set, and be running",
                reasons);
  out.at_s = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return out;
}

} // namespace

replay::ExitStatus top_command(const TopOptions& options) {
  std::vector<config::Address> addresses;
  for (const std::string& text : options.addresses) {
    auto address = config::parse_address(text);
    if (!address)
      return replay::report_failure({Code::invalid_argument, address.error().message});
    addresses.push_back(std::move(*address));
  }
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  Scrape before;
  for (bool first = true;; first = false) {
    std::string missing;
    auto now = scrape(addresses, missing);
    if (!now && !first)
      return replay::print_out("the session has ended\n") ? replay::ExitStatus::verified
                                                          : replay::ExitStatus::output_failed;
    if (!now)
      return replay::report_failure(now.error());
    std::string frame = view(*now, first ? nullptr : &before);
    if (!missing.empty())
      frame += "\nno answer from " + missing + "\n";
    if (terminal && !options.once)
      frame = "\x1b[H\x1b[2J" + frame;
    else if (!first)
      frame = "\n" + frame;
    if (auto shown = replay::print_out(frame); !shown)
      return replay::report_failure(shown.error());
    if (options.once)
      return replay::ExitStatus::verified;
    before = std::move(*now);
    std::this_thread::sleep_for(std::chrono::duration<double>(options.interval_s));
  }
}

} // namespace deltawire::top
