// Contract of kernels/values.hpp: elements move bit for bit between strided memory and dense arrays, and nothing else
// is touched.
#include "catch.hpp"
#include "random.hpp"

#include "kernels/values.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace {

using namespace deltawire;

std::vector<std::byte> random_bytes(std::mt19937_64& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random());
  return bytes;
}

/// Strided memory with exactly the bytes that `count` elements reach, at an odd alignment.
struct Memory {
  std::vector<std::byte> bytes;
  std::ptrdiff_t stride = 1;
  std::size_t size = 1;
  std::size_t first = 0; ///< byte offset of element 0

  Memory(std::mt19937_64& random, std::size_t count, std::size_t size_, std::ptrdiff_t stride_)
    : stride(stride_), size(size_) {
    const std::size_t shift = random() % 8;
    const auto reach = static_cast<std::size_t>(std::abs(stride)) * (count == 0 ? 0 : count - 1);
    bytes = random_bytes(random, shift + (count == 0 ? 0 : (reach + 1) * size));
    first = shift + (stride < 0 ? reach * size : 0);
  }
  std::size_t offset(std::size_t element) const {
    return static_cast<std::size_t>(static_cast<std::ptrdiff_t>(first) +
                                    static_cast<std::ptrdiff_t>(element * size) * stride);
  }
};

} // namespace

TEST_CASE("pack, unpack and exchange_run agree with a copy element by element") {
  auto random = test::generator(3);
  for (const std::size_t size : {1u, 2u, 4u, 8u})
    for (std::size_t count = 0; count <= 513; count += 1 + random() % 3)
      for (const std::ptrdiff_t stride : {1, 2, 3, 17, -1, -5}) {
        CAPTURE(test::seed(), size, count, stride);
        Memory memory(random, count, size, stride);
        const auto before = memory.bytes;
        std::vector<std::byte> expected(count * size);
        for (std::size_t i = 0; i < count; ++i)
          std::memcpy(expected.data() + i * size, before.data() + memory.offset(i), size);

        std::vector<std::byte> dense(count * size);
        kernels::pack(memory.bytes.data() + memory.first, stride, count, size, dense.data());
        REQUIRE(dense == expected);

        const auto values = random_bytes(random, count * size);
        auto written = before;
        for (std::size_t i = 0; i < count; ++i)
          std::memcpy(written.data() + memory.offset(i), values.data() + i * size, size);
        auto staged = values;
        kernels::exchange_run(memory.bytes.data() + memory.first, stride, count, size, staged.data());
        REQUIRE(memory.bytes == written);
        REQUIRE(staged == expected);
        kernels::exchange_run(memory.bytes.data() + memory.first, stride, count, size, staged.data());
        REQUIRE(memory.bytes == before);
        kernels::unpack(memory.bytes.data() + memory.first, stride, count, size, values.data());
        REQUIRE(memory.bytes == written);
      }
}

TEST_CASE("gather, scatter and exchange reach exactly the given positions") {
  auto random = test::generator(4);
  for (const std::size_t size : {1u, 2u, 4u, 8u})
    for (const std::ptrdiff_t stride : {1, 2, 7, -3})
      for (const double density : {0.0, 0.01, 0.3, 1.0})
        for (int repeat = 0; repeat < 8; ++repeat) {
          const std::size_t count = 1 + random() % 600;
          const auto origin = static_cast<std::ptrdiff_t>(random() % 300); // position of element 0
          CAPTURE(test::seed(), size, stride, density, count, origin);
          Memory memory(random, count, size, stride);
          std::bernoulli_distribution taken(density);
          std::vector<std::uint16_t> positions;
          std::vector<std::size_t> elements;
          for (std::size_t i = 0; i < count; ++i)
            if (taken(random)) {
              positions.push_back(static_cast<std::uint16_t>(i + static_cast<std::size_t>(origin)));
              elements.push_back(i);
            }
          const auto before = memory.bytes;
          const auto values = random_bytes(random, positions.size() * size);
          std::vector<std::byte> old(values.size());
          auto written = before;
          for (std::size_t i = 0; i < elements.size(); ++i) {
            std::memcpy(old.data() + i * size, before.data() + memory.offset(elements[i]), size);
            std::memcpy(written.data() + memory.offset(elements[i]), values.data() + i * size, size);
          }
          std::byte* start = memory.bytes.data() + memory.first;
          std::vector<std::byte> gathered(values.size());
          kernels::gather(start, {stride, origin}, positions, size, gathered.data());
          REQUIRE(gathered == old);
          auto staged = values;
          kernels::exchange(start, {stride, origin}, positions, size, staged.data());
          REQUIRE(memory.bytes == written);
          REQUIRE(staged == old);
          kernels::exchange(start, {stride, origin}, positions, size, staged.data());
          REQUIRE(memory.bytes == before);
          kernels::scatter(start, {stride, origin}, positions, size, values.data());
          REQUIRE(memory.bytes == written);
        }
}

TEST_CASE("a stretch may begin before position 0") {
  std::vector<std::uint16_t> memory = {10, 11, 12, 13, 14};
  const std::vector<std::uint16_t> positions = {0, 2};
  std::vector<std::uint16_t> out(2);
  kernels::gather(reinterpret_cast<const std::byte*>(memory.data()), {1, -2}, positions, 2,
                  reinterpret_cast<std::byte*>(out.data()));
  REQUIRE(out == std::vector<std::uint16_t>{12, 14});
}
