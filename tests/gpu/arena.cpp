#include "machine.hpp"

#include "catch.hpp"

namespace deltawire::test {
namespace {

constexpr std::size_t alignment = 256;

std::byte* aligned(std::byte* at) {
  return at + (alignment - reinterpret_cast<std::uintptr_t>(at) % alignment) % alignment;
}

} // namespace

Arena::Arena(std::size_t room)
  : memory_(std::make_unique_for_overwrite<std::byte[]>(room + alignment)), begin_(aligned(memory_.get())),
    room_(room) {}

std::byte* Arena::take(std::size_t count, std::size_t size, std::size_t shift) {
  constexpr std::size_t gap = 16;
  const std::size_t at = (used_ + gap + 15) / 16 * 16 + shift * size;
  used_ = at + count * size;
  REQUIRE(used_ + gap <= room_);
  return begin_ + at;
}

} // namespace deltawire::test
