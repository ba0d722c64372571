#include "changing_weights.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <utility>

namespace deltawire::bench {
namespace {

std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

template <class Element>
void change_elements(std::byte* now, std::span<const std::uint32_t> positions, std::uint64_t round) {
  for (const std::uint32_t position : positions) {
    Element bits;
    std::memcpy(&bits, now + position * sizeof(Element), sizeof(Element));
    const std::uint64_t dice = scramble(position + (round << 32));
    if (dice % 10 == 0)
      bits = static_cast<Element>(bits ^ (dice >> 8 | 1));
    else
      bits = static_cast<Element>(bits + (dice & 16 ? 1 : -1));
    std::memcpy(now + position * sizeof(Element), &bits, sizeof(Element));
  }
}

} // namespace

HugeArray::HugeArray(std::size_t bytes) : bytes_(bytes) {
  constexpr std::size_t page = std::size_t{2} << 20;
  bytes_ = (bytes + page - 1) / page * page;
  data_ = static_cast<std::byte*>(std::aligned_alloc(page, bytes_));
  if (data_ == nullptr)
    throw std::bad_alloc();
  madvise(data_, bytes_, MADV_HUGEPAGE); // where refused, plain pages do
  bytes_ = bytes;
}

HugeArray::HugeArray(HugeArray&& other) noexcept
  : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HugeArray& HugeArray::operator=(HugeArray&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

HugeArray::~HugeArray() {
  std::free(data_);
}

ChangingWeights::ChangingWeights(std::size_t bytes, std::size_t size, double density)
  : now_(bytes), snapshot_(bytes), size_(size) {
  for (std::size_t at = 0; at + 8 <= bytes; at += 8) {
    const std::uint64_t word = scramble(at);
    std::memcpy(now_.data() + at, &word, sizeof(word));
  }
  std::memcpy(snapshot_.data(), now_.data(), bytes);
  if (density <= 0)
    return;
  std::mt19937_64 random(7);
  std::geometric_distribution<std::uint64_t> gap(density >= 1 ? 0.5 : density);
  positions_.reserve(static_cast<std::size_t>(static_cast<double>(elements()) * density * 1.01) + 64);
  for (std::uint64_t at = density >= 1 ? 0 : gap(random); at < elements(); at += density >= 1 ? 1 : 1 + gap(random))
    positions_.push_back(static_cast<std::uint32_t>(at));
}

void ChangingWeights::change() {
  ++round_;
  switch (size_) {
  case 1:
    return change_elements<std::uint8_t>(now(), positions_, round_);
  case 2:
    return change_elements<std::uint16_t>(now(), positions_, round_);
  case 4:
    return change_elements<std::uint32_t>(now(), positions_, round_);
  default:
    return change_elements<std::uint64_t>(now(), positions_, round_);
  }
}

} // namespace deltawire::bench
