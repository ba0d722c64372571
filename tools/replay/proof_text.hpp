// The proof's own reading of the topology's rules: patterns, views, slices and cuts, from text to plain values. It
// shares nothing with src/layout, on purpose: what the product misreads, this must not misread the same way.
// Design, section 4. Pure functions; not fast.
#pragma once

#include "result.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::replay::proof {

/// A decimal number: no sign, no leading zero, at most 18 digits.
[[nodiscard]] std::optional<std::int64_t> number(std::string_view text);

/// What a name gave to a pattern.
struct Match {
  std::map<std::string, std::string> names;
  std::vector<std::string> stars;
};

/// A pattern of names: `*` anything, `{x}` a whole piece between dots, or digits inside one.
class NamePattern {
public:
  [[nodiscard]] static Result<NamePattern> parse(const std::string& text);

  /// Nothing where the name does not match as a whole.
  [[nodiscard]] std::optional<Match> match(const std::string& name) const;

  /// The pattern with what the match holds in place of braces and stars. Fails where the match lacks one.
  [[nodiscard]] Result<std::string> fill(const Match& match) const;

private:
  struct Part {
    enum class Kind { literal, star, name } kind;
    std::string text; ///< the literal, or the name
  };
  std::string text_;
  std::vector<Part> parts_;
  std::vector<std::string> groups_; ///< what each group of the expression stands for: a name, or "*"
  std::regex expression_;
};

struct SliceItem {
  enum class Kind { all, range, index, name };
  Kind kind = Kind::all;
  std::int64_t begin = 0; ///< range; index: the number
  std::int64_t end = 0;   ///< range
  std::string name;       ///< name
  bool limited = false;   ///< name=a:b, with begin and end
};

/// "[8, 4, 64]"
[[nodiscard]] Result<std::vector<std::int64_t>> parse_view(std::string_view text);

/// "[e, 0:768, :]"
[[nodiscard]] Result<std::vector<SliceItem>> parse_slice(std::string_view text);

struct Cut {
  std::string axis;
  std::size_t dim = 0;
  bool by_slice = false;
};

/// "tp:0" or "tp:0 by slice"
[[nodiscard]] Result<Cut> parse_cut(std::string_view text);

} // namespace deltawire::replay::proof
