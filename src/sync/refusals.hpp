// Who was turned away or lost last before a session began, and why: for the message that says who is missing. Anybody
// may knock, and knock again: what differs only by the caller's port is one entry with a count, and only so many are
// kept. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace deltawire::sync {

class Refusals {
public:
  void note(const std::string& who_and_why) { keep("refused: " + who_and_why); }
  void note_lost(const std::string& who_and_why) { keep("lost: " + who_and_why); }
  /// "; refused: a; lost: b (12 times)", the newest last; empty where nobody was.
  [[nodiscard]] std::string text() const;

private:
  struct Entry {
    std::string key;  ///< the text without ports
    std::string text; ///< as it was the last time
    std::uint64_t times = 0;
  };
  void keep(std::string text);

  std::deque<Entry> last_;
  std::uint64_t earlier_ = 0; ///< that are not kept
};

} // namespace deltawire::sync
