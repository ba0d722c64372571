#include "layout/pattern.hpp"

#include <algorithm>

namespace deltawire::layout {
namespace {

/// Parts of unknown length that a pattern may have from a name to its next use.
constexpr std::size_t most_open_parts = 2;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// "e" or "e=0:16".
struct NameText {
  std::string_view name;
  std::optional<std::pair<Index, Index>> limit;
};

std::optional<NameText> read_name(std::string_view text) {
  const std::size_t equals = text.find('=');
  NameText result{text.substr(0, equals), std::nullopt};
  if (equals != std::string_view::npos) {
    const std::string_view range = text.substr(equals + 1);
    const std::size_t colon = range.find(':');
    if (colon == std::string_view::npos)
      return std::nullopt;
    const auto begin = decimal(range.substr(0, colon));
    const auto end = decimal(range.substr(colon + 1));
    if (!begin || !end || *begin >= *end)
      return std::nullopt;
    result.limit = {*begin, *end};
  }
  return is_name(result.name) ? std::optional{result} : std::nullopt;
}

} // namespace

const std::string* Bindings::find(std::string_view name) const noexcept {
  for (const auto& [key, value] : names)
    if (key == name)
      return &value;
  return nullptr;
}

bool Pattern::has(std::string_view name) const noexcept {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

std::optional<std::pair<Index, Index>> Pattern::limit(std::string_view name) const noexcept {
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (names_[i] == name)
      return limits_[i];
  return std::nullopt;
}

Result<Pattern> Pattern::parse(std::string_view text, bool may_compute) {
  if (text.empty())
    return fail(Code::invalid_topology, "a pattern is empty");
  Pattern pattern;
  pattern.text_ = text;
  std::string literal;
  auto end_literal = [&] {
    if (!literal.empty())
      pattern.tokens_.push_back({Token::Kind::literal, literal, 0});
    literal.clear();
  };
  auto after_open_token = [&] {
    return literal.empty() && !pattern.tokens_.empty() && pattern.tokens_.back().kind != Token::Kind::literal;
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '*') {
      if (after_open_token() && pattern.tokens_.back().kind == Token::Kind::star)
        return fail(Code::invalid_topology, "pattern '{}': '**' means no more than '*'; write one", text);
      end_literal();
      pattern.tokens_.push_back({Token::Kind::star, {}, 0});
      ++pattern.stars_;
    } else if (c == '{') {
      const std::size_t close = text.find('}', at);
      if (close == std::string_view::npos)
        return fail(Code::invalid_topology, "pattern '{}': '{{' without '}}'", text);
      const std::string_view inside = text.substr(at + 1, close - at - 1);
      if (after_open_token() && pattern.tokens_.back().kind != Token::Kind::star)
        return fail(Code::invalid_topology, "pattern '{}': no text can tell '{{{}}}' from the name before it", text,
                    inside);
      const bool fills_piece = (at == 0 || text[at - 1] == '.') && (close + 1 == text.size() || text[close + 1] == '.');
      end_literal();
      if (inside.find_first_of("+-* ") != std::string_view::npos && !inside.empty()) {
        if (!may_compute)
          return fail(Code::invalid_topology, "pattern '{}': '{{{}}}': only the slot of a map may compute a name", text,
                      inside);
        auto computed = Linear::parse(inside);
        if (!computed)
          return fail(Code::invalid_topology, "pattern '{}': {}", text, computed.error().message);
        pattern.tokens_.push_back({Token::Kind::computed, {}, pattern.computed_.size()});
        pattern.computed_.push_back(std::move(*computed));
        at = close;
        continue;
      }
      const auto read = read_name(inside);
      if (!read)
        return fail(Code::invalid_topology,
                    "pattern '{}': '{{{}}}' is no name; use letters, digits and '_', a letter first, or name=0:8 for "
                    "the numbers 0 to 7",
                    text, inside);
      const auto known = std::find(pattern.names_.begin(), pattern.names_.end(), read->name);
      const auto index = static_cast<std::size_t>(known - pattern.names_.begin());
      if (known == pattern.names_.end()) {
        pattern.names_.emplace_back(read->name);
        pattern.limits_.push_back(read->limit);
      } else {
        if (read->limit && pattern.limits_[index] && read->limit != pattern.limits_[index])
          return fail(Code::invalid_topology, "pattern '{}': '{}' has two limits", text, read->name);
        if (read->limit)
          pattern.limits_[index] = read->limit;
      }
      pattern.tokens_.push_back({fills_piece ? Token::Kind::piece : Token::Kind::digits, {}, index});
      at = close;
    } else if (c == '}') {
      return fail(Code::invalid_topology, "pattern '{}': '}}' without '{{'", text);
    } else {
      literal += c;
    }
  }
  end_literal();
  if (auto bounded = pattern.mark_awaited(); !bounded)
    return pass_on(std::move(bounded));
  return pattern;
}

Result<void> Pattern::mark_awaited() {
  std::vector<std::size_t> last(names_.size(), 0);
  for (std::size_t t = 0; t < tokens_.size(); ++t)
    if (tokens_[t].kind == Token::Kind::piece || tokens_[t].kind == Token::Kind::digits)
      last[tokens_[t].name] = t;
  std::vector<bool> seen(names_.size(), false);
  std::size_t awaited_until = 0; // the token of the last use of any name that is bound and comes again
  std::size_t open_parts = 0;
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    Token& token = tokens_[t];
    token.name_awaited = t <= awaited_until && t > 0;
    if (!token.name_awaited)
      open_parts = 0;
    bool repeats = false;
    if (token.kind == Token::Kind::piece || token.kind == Token::Kind::digits) {
      repeats = seen[token.name];
      seen[token.name] = true;
      awaited_until = std::max(awaited_until, last[token.name] > t ? last[token.name] : 0);
    }
    open_parts += t < awaited_until && !repeats && is_open(t) ? 1 : 0;
    if (open_parts > most_open_parts)
      return fail(Code::invalid_topology,
                  "pattern '{}': a name is used again after more than {} stars or runs of digits whose ends the text "
                  "leaves open, so that names could not be matched in bounded time; write the text out in place of a "
                  "star, or pieces between dots",
                  text_, most_open_parts);
  }
  return {};
}

bool Pattern::is_open(std::size_t token) const {
  if (tokens_[token].kind == Token::Kind::star)
    return token + 1 < tokens_.size();
  if (tokens_[token].kind != Token::Kind::digits && tokens_[token].kind != Token::Kind::computed)
    return false;
  if (token + 1 == tokens_.size())
    return false;
  const Token& next = tokens_[token + 1];
  return next.kind != Token::Kind::literal || is_digit(next.text.front());
}

// Backtracking over tokens. Where no bound name comes again, whether a token can match from a position does not depend
// on how it was reached, so failures are remembered: that part is quadratic at worst. From a name to its last use they
// are not, and each open part there adds a power of the text's length; parse() bounds those.
struct Pattern::Matcher {
  const Pattern& pattern;
  std::string_view text;
  std::vector<std::string_view> bound;
  std::vector<bool> is_bound;
  std::vector<std::string_view> stars;
  std::vector<std::string_view> computed;
  std::vector<bool> failed;

  Matcher(const Pattern& p, std::string_view name)
    : pattern(p), text(name), bound(p.names_.size()), is_bound(p.names_.size(), false),
      failed(p.tokens_.size() * (name.size() + 1), false) {}

  bool from(std::size_t token, std::size_t at) {
    if (token == pattern.tokens_.size())
      return at == text.size();
    const Token& next = pattern.tokens_[token];
    if (next.name_awaited)
      return try_token(next, token, at);
    const std::size_t memo = token * (text.size() + 1) + at;
    if (failed[memo])
      return false;
    const bool found = try_token(next, token, at);
    failed[memo] = !found;
    return found;
  }

  bool try_token(const Token& token, std::size_t index, std::size_t at) {
    switch (token.kind) {
    case Token::Kind::literal:
      return text.substr(at, token.text.size()) == token.text && from(index + 1, at + token.text.size());
    case Token::Kind::star:
      for (std::size_t end = pattern.is_open(index) ? at : text.size(); end <= text.size(); ++end) {
        stars.push_back(text.substr(at, end - at));
        if (from(index + 1, end))
          return true;
        stars.pop_back();
      }
      return false;
    case Token::Kind::piece: {
      const std::size_t end = std::min(text.find('.', at), text.size());
      return end > at && bind(token.name, index, at, end);
    }
    case Token::Kind::digits:
    case Token::Kind::computed: {
      std::size_t end = at;
      while (end < text.size() && is_digit(text[end]))
        ++end;
      if (token.kind == Token::Kind::digits && is_bound[token.name]) {
        const std::size_t known = at + bound[token.name].size();
        return known <= end && bind(token.name, index, at, known);
      }
      const std::size_t shortest = pattern.is_open(index) ? at + 1 : std::max(end, at + 1);
      for (; end >= shortest; --end)
        if (token.kind == Token::Kind::digits ? bind(token.name, index, at, end) : compute(index, at, end))
          return true;
      return false;
    }
    }
    return false;
  }

  /// Whether a computed number may be what it says is the map's to judge: it knows the coordinates.
  bool compute(std::size_t index, std::size_t at, std::size_t end) {
    computed.push_back(text.substr(at, end - at));
    if (from(index + 1, end))
      return true;
    computed.pop_back();
    return false;
  }

  bool bind(std::size_t name, std::size_t index, std::size_t at, std::size_t end) {
    const std::string_view value = text.substr(at, end - at);
    if (const auto& limit = pattern.limits_[name]) {
      const auto number = decimal(value);
      if (!number || *number < limit->first || *number >= limit->second)
        return false;
    }
    if (is_bound[name])
      return bound[name] == value && from(index + 1, end);
    is_bound[name] = true;
    bound[name] = value;
    if (from(index + 1, end))
      return true;
    is_bound[name] = false;
    return false;
  }
};

std::optional<Bindings> Pattern::match(std::string_view name) const {
  Matcher matcher{*this, name};
  if (!matcher.from(0, 0))
    return std::nullopt;
  Bindings bindings;
  for (std::size_t i = 0; i < names_.size(); ++i)
    bindings.names.emplace_back(names_[i], std::string{matcher.bound[i]});
  bindings.stars.assign(matcher.stars.begin(), matcher.stars.end());
  bindings.computed.assign(matcher.computed.begin(), matcher.computed.end());
  return bindings;
}

std::string Pattern::substitute(const Bindings& bindings) const {
  std::string result;
  std::size_t star = 0;
  for (const Token& token : tokens_) {
    if (token.kind == Token::Kind::literal)
      result += token.text;
    else if (token.kind == Token::Kind::star)
      result += bindings.stars[star++];
    else if (token.kind == Token::Kind::computed)
      result += bindings.computed[token.name];
    else
      result += *bindings.find(names_[token.name]);
  }
  return result;
}

} // namespace deltawire::layout
