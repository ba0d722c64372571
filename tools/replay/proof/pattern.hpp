// Patterns of names, and what a name gives to one. Design, section 4: `*` is anything, `{x}` one piece between dots or
// the digits inside one, `{x=0:8}` a number of 0 to 7, and a slot's name may compute: `{l + 8*pp}`.
#pragma once

#include "sum.hpp"

namespace deltawire::replay::proof {

/// What a name gave to a pattern.
struct Match {
  Names names;
  std::vector<std::string> stars;
  std::vector<Equation> computed;
};

class NamePattern {
public:
  [[nodiscard]] static Result<NamePattern> parse(const std::string& text);

  /// Nothing where the name does not match as a whole. Stars take as little as they can, names as much as they can.
  [[nodiscard]] std::optional<Match> match(std::string_view name) const;

  /// The pattern with what is known in place of braces and stars. Fails where something is not known.
  [[nodiscard]] Result<std::string> fill(const Names& names, const std::vector<std::string>& stars) const;

  /// Every name in braces.
  [[nodiscard]] std::vector<std::string> names() const;

private:
  struct Part {
    enum class Kind { literal, star, piece, digits, sum };
    Kind kind = Kind::literal;
    std::string text;                                ///< the literal, or the name
    std::optional<std::pair<Index, Index>> limits{}; ///< of a name: at least, and less than
    Sum sum{};
  };

  static Result<Part> parse_braces(const std::string& inside, bool is_piece);
  bool match_rest(std::size_t part, std::string_view rest, Match& found) const;

  std::string text_;
  std::vector<Part> parts_;
};

} // namespace deltawire::replay::proof
