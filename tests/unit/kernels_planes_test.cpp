// Contract of kernels/planes.hpp: byte by byte, and back.
#include "catch.hpp"
#include "random.hpp"

#include "kernels/planes.hpp"

#include <vector>

using namespace deltawire;

TEST_CASE("byte b of value i comes to plane b, and back, at every length up to 300") {
  auto random = test::generator(55);
  for (const std::size_t size : {1u, 2u, 4u, 8u})
    for (std::size_t count = 0; count <= 300; ++count) {
      CAPTURE(test::seed(), size, count);
      std::vector<std::byte> values(1 + count * size);
      for (std::byte& byte : values)
        byte = static_cast<std::byte>(random());
      std::vector<std::byte> planes(3 + count * size);
      kernels::to_planes(values.data() + 1, count, size, planes.data() + 3);
      for (std::size_t i = 0; i < count; ++i)
        for (std::size_t b = 0; b < size; ++b)
          REQUIRE(planes[3 + b * count + i] == values[1 + i * size + b]);
      std::vector<std::byte> back(1 + count * size, values[0]);
      kernels::from_planes(planes.data() + 3, count, size, back.data() + 1);
      REQUIRE(back == values);
    }
}
