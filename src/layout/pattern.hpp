// Name patterns of the topology file. `*` is anything, also nothing and dots. `{x}` is one whole piece between dots
// where it fills the piece, and decimal digits where it stands inside one ("weight{e}"); `{x=0:8}` is a number of 0
// to 7. The same name twice must agree. A map's slot may compute: `{l + 8*pp}` is a number. Immutable after parse().
#pragma once

#include "layout/linear.hpp"

namespace deltawire::layout {

/// What a match bound: the text of each name, of each star and of each computed number, in order.
struct Bindings {
  std::vector<std::pair<std::string, std::string>> names;
  std::vector<std::string> stars;
  std::vector<std::string> computed;

  /// The text bound to a name; nothing where the pattern lacks it.
  [[nodiscard]] const std::string* find(std::string_view name) const noexcept;
};

class Pattern {
public:
  Pattern() = default;

  /// Fails on a brace without its partner, an empty or malformed name, two neighbours that no text can tell apart
  /// ("{a}{b}", "**"), on computed numbers unless `may_compute`, and where a name comes again after so much of unknown
  /// length (three stars, say) that a match could take for ever.
  [[nodiscard]] static Result<Pattern> parse(std::string_view text, bool may_compute = false);

  /// The first match, shortest stars first; nothing where `name` does not match as a whole.
  [[nodiscard]] std::optional<Bindings> match(std::string_view name) const;

  /// The pattern with what is bound in place of names, stars and computed numbers (the i-th takes the i-th text).
  /// Requires every name of names(), stars() texts and computed().size() numbers to be bound.
  [[nodiscard]] std::string substitute(const Bindings& bindings) const;

  /// Distinct names, in order of appearance.
  [[nodiscard]] const std::vector<std::string>& names() const noexcept { return names_; }
  [[nodiscard]] bool has(std::string_view name) const noexcept;
  [[nodiscard]] std::size_t stars() const noexcept { return stars_; }
  /// What stands in braces and is no name, in order of appearance.
  [[nodiscard]] const std::vector<Linear>& computed() const noexcept { return computed_; }
  /// The numbers that `{name=begin:end}` allows, from begin to end - 1; nothing where no end is told.
  [[nodiscard]] std::optional<std::pair<Index, Index>> limit(std::string_view name) const noexcept;
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

private:
  struct Token {
    enum class Kind { literal, star, piece, digits, computed };
    Kind kind = Kind::literal;
    std::string text;     ///< literal
    std::size_t name = 0; ///< piece, digits: index into names_
    /// Whether it matches depends on what a name before it bound: that name comes again here or later.
    bool name_awaited = false;
  };
  struct Matcher;

  /// Sets name_awaited; the failure is parse()'s for too many open parts.
  Result<void> mark_awaited();
  /// Text and the token after this one do not tell where it ends.
  [[nodiscard]] bool is_open(std::size_t token) const;

  std::string text_;
  std::vector<Token> tokens_;
  std::vector<std::string> names_;
  std::vector<std::optional<std::pair<Index, Index>>> limits_; ///< one a name
  std::vector<Linear> computed_;
  std::size_t stars_ = 0;
};

} // namespace deltawire::layout
