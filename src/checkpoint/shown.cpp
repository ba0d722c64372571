#include "checkpoint/shown.hpp"

#include <fmt/format.h>

namespace deltawire::checkpoint {

std::string shown(std::string_view name) {
  constexpr std::size_t longest = 200;
  std::string text = "'";
  for (char c : name.substr(0, longest)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      text += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    else
      text += c;
  }
  return text + (name.size() > longest ? "...'" : "'");
}

} // namespace deltawire::checkpoint
