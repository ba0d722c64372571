// Device threads one after the other, on the arena's memory.
#include "machine.hpp"

#include "emulated_launch.hpp"
#include "random.hpp"

namespace deltawire::test {
namespace {

using namespace kernels::cuda;
using kernels::Cast;

class EmulatedMachine : public Machine {
public:
  void diff(Arena&, std::span<const Part> parts, std::size_t size, std::optional<Cast> cast,
            const Changes& out) override {
    std::vector<std::uint64_t> memory(workspace_bytes(parts.size()) / 8 + 2);
    launches_.diff(parts, size, cast, out, reinterpret_cast<std::byte*>(memory.data()));
  }

  void take(Arena&, std::span<const Part> parts, std::size_t size, std::optional<Cast> cast,
            std::uint64_t* digests) override {
    launches_.take(parts, size, cast, digests);
  }

  void exchange(Arena&, std::span<const Places> places, std::size_t size, std::uint64_t* digests) override {
    launches_.visit<true>(places, size, digests);
  }

  void read_back(Arena&, std::span<const Places> places, std::size_t size, std::uint64_t* digests) override {
    launches_.visit<false>(places, size, digests);
  }

private:
  EmulatedLaunches launches_{generator(900)};
};

} // namespace

Machine& machine() {
  static EmulatedMachine emulated;
  return emulated;
}

} // namespace deltawire::test
