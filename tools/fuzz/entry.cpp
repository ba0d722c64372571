// A target as libFuzzer calls it (https://llvm.org/docs/LibFuzzer.html, "Fuzz Target").
#include "target.hpp"

#include <exception>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace deltawire::fuzz;
  try {
    static_cast<void>(accepts(std::as_bytes(std::span(data, size))));
  } catch (const std::exception& leaked) {
    require(false, leaked.what());
  } catch (...) {
    require(false, "an exception got out that is none of the standard's");
  }
  return 0;
}
