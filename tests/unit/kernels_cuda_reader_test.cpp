// Contract of kernels/cuda/vectors.hpp: vectors are the elements that they stand for, and nothing outside the stretch
// is read, wherever it begins and ends.
#include "catch.hpp"
#include "random.hpp"

#include "kernels/cuda/vectors.hpp"

#include <sys/mman.h>

#include <cstring>
#include <memory>

namespace {

using namespace deltawire;
using namespace deltawire::kernels::cuda;

constexpr std::size_t page = 4096;

/// A page between two that must not be touched.
class LonelyPage {
public:
  LonelyPage() {
    void* mapped = mmap(nullptr, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(mapped != MAP_FAILED);
    begin_ = static_cast<std::byte*>(mapped);
    REQUIRE(mprotect(data(), page, PROT_READ | PROT_WRITE) == 0);
  }
  ~LonelyPage() { munmap(begin_, 3 * page); }
  LonelyPage(const LonelyPage&) = delete;
  LonelyPage& operator=(const LonelyPage&) = delete;
  [[nodiscard]] std::byte* data() const { return begin_ + page; }

private:
  std::byte* begin_ = nullptr;
};

template <class T>
void check_reader(const std::byte* first, std::int64_t stride, std::uint32_t count) {
  const Reader<T> reader(first, stride, count);
  for (std::uint32_t v = 0; (v + 1) * vector_elements<T> <= count; ++v) {
    const Vector vector = reader.template vector<false>(v);
    T elements[vector_elements<T>];
    std::memcpy(elements, &vector, sizeof(vector));
    for (unsigned i = 0; i < vector_elements<T>; ++i) {
      T expected;
      std::memcpy(&expected,
                  first + static_cast<std::int64_t>(v * vector_elements<T> + i) * stride *
                            static_cast<std::int64_t>(sizeof(T)),
                  sizeof(T));
      REQUIRE(elements[i] == expected);
      REQUIRE(element_of<T>(vector, i) == expected);
      REQUIRE(reader.element(v * vector_elements<T> + i) == expected);
    }
  }
}

template <class T>
void check_at_both_ends(const LonelyPage& memory) {
  for (std::uint32_t count = 0; count < 5 * vector_elements<T>; ++count)
    for (std::size_t shift = 0; shift < 16; shift += sizeof(T)) {
      CAPTURE(sizeof(T), count, shift);
      const std::size_t bytes = count * sizeof(T);
      check_reader<T>(memory.data() + shift, 1, count);                // the stretch begins near the page
      check_reader<T>(memory.data() + page - bytes, 1, count);         // ends with it
      check_reader<T>(memory.data() + page - bytes - shift, 1, count); // and near its end
      check_reader<T>(memory.data(), 1, count);
      check_reader<T>(memory.data(), 3, count);
      if (count > 0)
        check_reader<T>(memory.data() + page - sizeof(T), -2, count);
      const auto exact = std::make_unique<std::byte[]>(shift + bytes);
      std::memcpy(exact.get(), memory.data(), shift + bytes);
      check_reader<T>(exact.get() + shift, 1, count);
    }
}

} // namespace

TEST_CASE("a vector is its elements and reads nothing past the end, at every alignment and length") {
  auto random = test::generator(920);
  CAPTURE(test::seed());
  const LonelyPage memory;
  for (std::size_t i = 0; i < page; ++i)
    memory.data()[i] = static_cast<std::byte>(random());
  check_at_both_ends<std::uint8_t>(memory);
  check_at_both_ends<std::uint16_t>(memory);
  check_at_both_ends<std::uint32_t>(memory);
  check_at_both_ends<std::uint64_t>(memory);
}
