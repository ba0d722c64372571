// What the tests of messages know about them, without their encoder: the members of any of our plain structs in order
// (counted by the compiler, so that none is forgotten), random contents, and the bytes that FORMAT.md asks for.
#pragma once

#include "wire/messages.hpp"

#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace deltawire::test {

using Bytes = std::vector<std::byte>;

/// Every message, for tests over all of them.
using Messages =
  std::tuple<wire::Hello, wire::Welcome, wire::Refused, wire::DeclareRank, wire::Catalogue, wire::DeclareWorker,
             wire::Agreement, wire::Agreed, wire::Connected, wire::CaptureReport, wire::Offer, wire::Grant,
             wire::DeliveryReport, wire::Drop, wire::NextUpdate, wire::Abandon, wire::AuditReport, wire::Begin,
             wire::Ready, wire::FlushStaged, wire::Seal, wire::Staged, wire::Commit, wire::Applied, wire::Release,
             wire::Released, wire::Undo, wire::Undone, wire::Settle, wire::Audit, wire::Audited, wire::Adopt,
             wire::Failed, wire::Goodbye, wire::Heartbeat>;

/// Calls visit(Message{}) for each.
template <class Visit>
void for_each_message(Visit visit) {
  std::apply([&](auto... messages) { (visit(messages), ...); }, Messages{});
}

struct Anything {
  template <class T>
  operator T() const; // NOLINT: converts to whatever member it stands for
};

/// The number of members of an aggregate.
template <class T, class... Members>
constexpr std::size_t member_count() {
  if constexpr (requires { T{Members{}..., Anything{}}; })
    return member_count<T, Members..., Anything>();
  else
    return sizeof...(Members);
}

/// Calls visit(member) in declaration order.
template <class T, class Visit>
void each_member(T& value, Visit visit) {
  constexpr std::size_t count = member_count<std::remove_const_t<T>>();
  static_assert(count <= 12);
  [[maybe_unused]] const auto all = [&](auto&... members) { (visit(members), ...); };
  if constexpr (count == 1) {
    auto& [a] = value;
    all(a);
  } else if constexpr (count == 2) {
    auto& [a, b] = value;
    all(a, b);
  } else if constexpr (count == 3) {
    auto& [a, b, c] = value;
    all(a, b, c);
  } else if constexpr (count == 4) {
    auto& [a, b, c, d] = value;
    all(a, b, c, d);
  } else if constexpr (count == 5) {
    auto& [a, b, c, d, e] = value;
    all(a, b, c, d, e);
  } else if constexpr (count == 6) {
    auto& [a, b, c, d, e, f] = value;
    all(a, b, c, d, e, f);
  } else if constexpr (count == 7) {
    auto& [a, b, c, d, e, f, g] = value;
    all(a, b, c, d, e, f, g);
  } else if constexpr (count == 8) {
    auto& [a, b, c, d, e, f, g, h] = value;
    all(a, b, c, d, e, f, g, h);
  } else if constexpr (count == 9) {
    auto& [a, b, c, d, e, f, g, h, i] = value;
    all(a, b, c, d, e, f, g, h, i);
  } else if constexpr (count == 10) {
    auto& [a, b, c, d, e, f, g, h, i, j] = value;
    all(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (count == 11) {
    auto& [a, b, c, d, e, f, g, h, i, j, k] = value;
    all(a, b, c, d, e, f, g, h, i, j, k);
  } else if constexpr (count == 12) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l] = value;
    all(a, b, c, d, e, f, g, h, i, j, k, l);
  }
}

template <class T>
struct is_list : std::false_type {};
template <class T>
struct is_list<std::vector<T>> : std::true_type {};
template <class T>
struct is_pair : std::false_type {};
template <class A, class B>
struct is_pair<std::pair<A, B>> : std::true_type {};

/// Least and greatest enumerator.
constexpr std::pair<int, int> limits(wire::Role) {
  return {0, 1};
}
constexpr std::pair<int, int> limits(wire::Channel) {
  return {0, 1};
}
constexpr std::pair<int, int> limits(wire::DeliveryKind) {
  return {0, 2};
}
constexpr std::pair<int, int> limits(Code) {
  return {1, 14};
}
constexpr std::pair<int, int> limits(DType) {
  return {0, 14};
}

template <class T>
void fill(T& value, std::mt19937_64& random) {
  if constexpr (std::is_integral_v<T>) {
    value = static_cast<T>(random() >> (random() % 64));
  } else if constexpr (std::is_enum_v<T>) {
    const auto [least, greatest] = limits(value);
    value = static_cast<T>(std::uniform_int_distribution<int>(least, greatest)(random));
  } else if constexpr (std::is_same_v<T, std::string>) {
    value.resize(random() % 20);
    for (char& c : value)
      c = static_cast<char>(random());
  } else if constexpr (is_list<T>::value) {
    value.resize(random() % 5);
    for (auto& element : value)
      fill(element, random);
  } else if constexpr (is_pair<T>::value) {
    fill(value.first, random);
    fill(value.second, random);
  } else {
    each_member(value, [&](auto& member) { fill(member, random); });
  }
}

/// The encoding by FORMAT.md.
template <class T>
void append(Bytes& bytes, const T& value) {
  if constexpr (std::is_integral_v<T>) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      bytes.push_back(static_cast<std::byte>(static_cast<std::make_unsigned_t<T>>(value) >> (8 * i)));
  } else if constexpr (std::is_enum_v<T>) {
    append(bytes, static_cast<std::underlying_type_t<T>>(value));
  } else if constexpr (std::is_same_v<T, std::string>) {
    append(bytes, static_cast<std::uint64_t>(value.size()));
    for (const char c : value)
      bytes.push_back(static_cast<std::byte>(c));
  } else if constexpr (is_list<T>::value) {
    append(bytes, static_cast<std::uint64_t>(value.size()));
    for (const auto& element : value)
      append(bytes, element);
  } else if constexpr (is_pair<T>::value) {
    append(bytes, value.first);
    append(bytes, value.second);
  } else {
    each_member(value, [&](const auto& member) { append(bytes, member); });
  }
}

template <class T>
Bytes by_format(const T& value) {
  Bytes bytes;
  append(bytes, value);
  return bytes;
}

/// "ff00 12" to bytes; blanks are skipped.
inline Bytes from_hex(std::string_view text) {
  Bytes bytes;
  int digits = 0;
  unsigned value = 0;
  for (const char c : text) {
    if (c == ' ')
      continue;
    value = value * 16 + static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10);
    if (++digits % 2 == 0) {
      bytes.push_back(static_cast<std::byte>(value));
      value = 0;
    }
  }
  return bytes;
}

} // namespace deltawire::test
