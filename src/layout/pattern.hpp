// Name patterns of the topology file. `*` is anything, also nothing and dots. `{x}` is one whole piece between dots
// where it fills the piece, and decimal digits where it stands inside one ("weight{e}"). The same name twice must
// agree. Immutable after parse().
#pragma once

#include "result.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deltawire::layout {

/// What a match bound: the text of each name and of each star, in order.
struct Bindings {
  std::vector<std::pair<std::string, std::string>> names;
  std::vector<std::string> stars;

  /// The text bound to a name; nothing where the pattern lacks it.
  [[nodiscard]] const std::string* find(std::string_view name) const noexcept;
};

class Pattern {
public:
  Pattern() = default;

  /// Fails on a brace without its partner, an empty or malformed name, or two neighbours that no text can tell apart
  /// ("{a}{b}", "**"). Computed names ("{l + 8*pp}") are not supported yet.
  [[nodiscard]] static Result<Pattern> parse(std::string_view text);

  /// The first match, shortest stars first; nothing where `name` does not match as a whole.
  [[nodiscard]] std::optional<Bindings> match(std::string_view name) const;

  /// The pattern with what is bound in place of names and stars (the i-th star takes the i-th text).
  /// Requires every name of names() and stars() texts to be bound.
  [[nodiscard]] std::string substitute(const Bindings& bindings) const;

  /// Distinct names, in order of appearance.
  [[nodiscard]] const std::vector<std::string>& names() const noexcept { return names_; }
  [[nodiscard]] bool has(std::string_view name) const noexcept;
  [[nodiscard]] std::size_t stars() const noexcept { return stars_; }
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

private:
  struct Token {
    enum class Kind { literal, star, piece, digits };
    Kind kind = Kind::literal;
    std::string text;     ///< literal
    std::size_t name = 0; ///< piece, digits: index into names_
  };
  struct Matcher;

  std::string text_;
  std::vector<Token> tokens_;
  std::vector<std::string> names_;
  std::size_t stars_ = 0;
  bool repeats_ = false; ///< a name appears twice
};

} // namespace deltawire::layout
