// Collects failures, so that one answer names all of them.
#pragma once

#include "result.hpp"

#include <string>
#include <vector>

namespace deltawire::layout {

class Problems {
public:
  void add(const Failure& failure) {
    if (count_++ == 0)
      code_ = failure.code;
    else if (code_ == Code::unsupported) // a mixture is not just a missing feature
      code_ = failure.code;
    if (count_ <= listed)
      text_ += (text_.empty() ? "" : "\n") + failure.message;
  }

  template <class... Args>
  void add(Code code, fmt::format_string<Args...> format, Args&&... args) {
    add(Failure{code, fmt::format(format, std::forward<Args>(args)...)});
  }

  [[nodiscard]] bool any() const noexcept { return count_ > 0; }

  /// One message a line, in the order added; past the first `listed` only their number. Requires any().
  [[nodiscard]] Failure failure() const {
    if (count_ <= listed)
      return {code_, text_};
    return {code_, fmt::format("{}\n... and {} more", text_, count_ - listed)};
  }

private:
  static constexpr std::size_t listed = 100;

  Code code_ = Code::internal;
  std::string text_;
  std::size_t count_ = 0;
};

} // namespace deltawire::layout
