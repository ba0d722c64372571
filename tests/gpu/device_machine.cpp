// The first device. Its copy of an arena lies elsewhere: tables are moved there, and the arena is copied back.
#include "machine.hpp"

#include "catch.hpp"

#include "kernels/cuda/launch.hpp"

#include <cstdint>
#include <functional>
#include <vector>

namespace deltawire::test {
namespace {

using namespace kernels::cuda;
using kernels::Cast;

void require(const Outcome& outcome) {
  INFO(outcome.fault);
  REQUIRE(outcome);
}

class DeviceMachine : public Machine {
public:
  DeviceMachine() { require(stream_.open()); }

  void diff(Arena& arena, std::span<const Part> parts, std::size_t size, std::optional<Cast> cast,
            const Changes& out) override {
    Memory workspace;
    require(workspace.allocate(Home::device, workspace_bytes(parts.size()) + 16));
    require(stream_.fill(workspace.data(), 0xA5, workspace.bytes()));
    on_copy(arena, parts, [&](const Part* table, auto&& there) {
      Changes moved = out;
      there(moved.counts);
      there(moved.positions);
      there(moved.before);
      there(moved.after);
      there(moved.digests);
      there(moved.found);
      require(cast ? cast_diff_and_refresh(stream_, table, parts.size(), *cast, moved, workspace.data())
                   : diff_and_refresh(stream_, table, parts.size(), size, moved, workspace.data()));
    });
  }

  void take(Arena& arena, std::span<const Part> parts, std::size_t size, std::optional<Cast> cast,
            std::uint64_t* digests) override {
    on_copy(arena, parts, [&](const Part* table, auto&& there) {
      there(digests);
      require(cast ? cast_take(stream_, table, parts.size(), *cast, digests)
                   : kernels::cuda::take(stream_, table, parts.size(), size, digests));
    });
  }

  void exchange(Arena& arena, std::span<const Places> places, std::size_t size, std::uint64_t* digests) override {
    on_copy(arena, places, [&](const Places* table, auto&& there) {
      there(digests);
      require(kernels::cuda::exchange(stream_, table, places.size(), size, digests));
    });
  }

  void read_back(Arena& arena, std::span<const Places> places, std::size_t size, std::uint64_t* digests) override {
    on_copy(arena, places, [&](const Places* table, auto&& there) {
      there(digests);
      require(kernels::cuda::read_back(stream_, table, places.size(), size, digests));
    });
  }

private:
  template <class Move>
  static void move(Part& part, Move&& there) {
    there(part.now);
    there(part.snapshot);
  }

  template <class Move>
  static void move(Places& places, Move&& there) {
    there(places.start);
    there(places.values);
    there(places.positions);
    there(places.addresses);
    there(places.slots);
  }

  template <class Entry, class Work>
  void on_copy(Arena& arena, std::span<const Entry> entries, Work&& work) {
    const std::span<std::byte> here = arena.used();
    Memory copy;
    Memory table;
    require(copy.allocate(Home::device, here.size() + 16));
    require(table.allocate(Home::device, entries.size() * sizeof(Entry) + 16));
    const auto there = [&](auto*& pointer) {
      if (pointer == nullptr)
        return;
      const std::ptrdiff_t offset = reinterpret_cast<const std::byte*>(pointer) - here.data();
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(copy.data() + offset);
    };
    std::vector<Entry> moved(entries.begin(), entries.end());
    for (Entry& entry : moved)
      move(entry, there);
    require(stream_.copy(copy.data(), here.data(), here.size()));
    require(stream_.copy(table.data(), moved.data(), moved.size() * sizeof(Entry)));
    work(table.as<const Entry>(), there);
    require(stream_.copy(here.data(), copy.data(), here.size()));
    require(stream_.wait());
  }

  Stream stream_;
};

} // namespace

Machine& machine() {
  static DeviceMachine device;
  return device;
}

} // namespace deltawire::test
