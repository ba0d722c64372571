// How rooms under src report failure: a value or a Failure, never an exception.
// The facade turns a Failure into deltawire::Error.
#pragma once

#include "deltawire/error.hpp"

#include <fmt/format.h>
#include <tl/expected.hpp>

#include <string>
#include <utility>

namespace deltawire {

/// What went wrong: the kind, and a message that says what, where (which tensor, key, rank) and what to do.
struct Failure {
  Code code = Code::internal;
  std::string message;

  friend bool operator==(const Failure&, const Failure&) = default;
};

template <class T>
using Result = tl::expected<T, Failure>;

/// `return fail(Code::invalid_input, "{}: header of {} bytes", file, n);`
template <class... Args>
[[nodiscard]] tl::unexpected<Failure> fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::make_unexpected(Failure{code, fmt::format(format, std::forward<Args>(args)...)});
}

/// Passes a failure on from a Result of another type.
template <class T>
[[nodiscard]] tl::unexpected<Failure> pass_on(Result<T>&& result) {
  return tl::make_unexpected(std::move(result).error());
}

} // namespace deltawire
