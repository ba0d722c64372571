// Contract of kernels/mask.hpp: a mask says, bit for bit, which elements differ; positions and masks convert both ways.
#include "catch.hpp"
#include "instruction_set.hpp"
#include "random.hpp"

#include "kernels/mask.hpp"

#include <cstring>
#include <vector>

namespace {

using namespace deltawire;

/// One byte loop an element: the reference.
std::vector<std::size_t> differing_elements(const std::byte* a, const std::byte* b, std::size_t count,
                                            std::size_t size) {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < count; ++i)
    if (std::memcmp(a + i * size, b + i * size, size) != 0)
      result.push_back(i);
  return result;
}

void check_compare(std::mt19937_64& random, std::size_t count, std::size_t size, double density) {
  const std::size_t a_shift = random() % 16;
  const std::size_t b_shift = random() % 16;
  CAPTURE(test::seed(), count, size, density, a_shift, b_shift);
  // Vectors of exactly the bytes needed, so that a sanitizer sees a read past the end.
  std::vector<std::byte> a(a_shift + count * size);
  for (std::byte& byte : a)
    byte = static_cast<std::byte>(random());
  std::vector<std::byte> b(b_shift + count * size);
  if (count != 0)
    std::memcpy(b.data() + b_shift, a.data() + a_shift, count * size);
  std::bernoulli_distribution changes(density);
  for (std::size_t i = 0; i < count; ++i)
    if (changes(random))
      b[b_shift + i * size + random() % size] ^= static_cast<std::byte>(1u << (random() % 8));

  const auto expected = differing_elements(a.data() + a_shift, b.data() + b_shift, count, size);
  std::vector<std::uint64_t> mask(kernels::mask_words(count) + 1, 0xABCDABCDABCDABCDull);
  const std::size_t differ = kernels::compare(a.data() + a_shift, b.data() + b_shift, count, size, mask.data());
  REQUIRE(differ == expected.size());
  REQUIRE(mask.back() == 0xABCDABCDABCDABCDull); // wrote its words and no more
  mask.pop_back();

  std::vector<std::uint16_t> positions(64 * mask.size());
  REQUIRE(kernels::mask_to_positions(mask, positions.data()) == differ);
  positions.resize(differ);
  REQUIRE(std::equal(positions.begin(), positions.end(), expected.begin(), expected.end()));

  std::vector<std::uint64_t> again(mask.size());
  kernels::set_positions(positions, again);
  REQUIRE(again == mask);
}

} // namespace

TEST_CASE("compare marks exactly the elements that differ, at every length up to 513") {
  ON_EVERY_INSTRUCTION_SET();
  auto random = test::generator(1);
  for (const std::size_t size : {1u, 2u, 4u, 8u})
    for (std::size_t count = 0; count <= 513; ++count)
      check_compare(random, count, size, std::vector{0.0, 0.01, 0.5, 1.0}[random() % 4]);
}

TEST_CASE("compare marks exactly the elements that differ in whole tiles, at every density") {
  ON_EVERY_INSTRUCTION_SET();
  auto random = test::generator(2);
  for (const std::size_t size : {1u, 2u, 4u, 8u})
    for (const double density : {0.0, 0.0003, 0.01, 0.1, 0.5, 0.99, 1.0})
      for (int repeat = 0; repeat < 5; ++repeat)
        check_compare(random, 4096, size, density);
}

TEST_CASE("every single bit of an element counts") {
  ON_EVERY_INSTRUCTION_SET();
  for (const std::size_t size : {1u, 2u, 4u, 8u})
    for (std::size_t element = 0; element < 64; ++element)
      for (std::size_t bit = 0; bit < 8 * size; ++bit) {
        CAPTURE(size, element, bit);
        std::vector<std::byte> a(64 * size, std::byte{0x80});
        std::vector<std::byte> b = a;
        b[element * size + bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
        std::uint64_t mask = 0;
        REQUIRE(kernels::compare(a.data(), b.data(), 64, size, &mask) == 1);
        REQUIRE(mask == std::uint64_t{1} << element);
      }
}
