// NCCL on the first device, as its stream's owner drives it: one rank, which sends to itself. What takes more than one
// device is not tested here: other ranks, an abort while a peer is gone, launch windows beside a trainer's collectives.
#include "catch.hpp"

#include "kernels/cuda/execution.hpp"
#include "sync/stream_owner.hpp"
#include "transport/nccl_communicator.hpp"

#include <chrono>
#include <thread>

using namespace deltawire;
using kernels::cuda::Home;
using kernels::cuda::Memory;
using kernels::cuda::Outcome;
using sync::StreamOwner;

namespace {

void done(const Outcome& outcome) {
  INFO(outcome.fault);
  REQUIRE(outcome);
}

/// Ticks of a millisecond until `told` has what it waits for; the owner's deadlines end it otherwise.
template <class T>
T wait_for(StreamOwner& owner) {
  for (int ticks = 0; ticks < 70'000; ++ticks) {
    for (const StreamOwner::Notice& notice : owner.notices())
      if (const auto* told = std::get_if<T>(&notice))
        return *told;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    owner.tick();
  }
  FAIL("nothing was told");
  return {};
}

} // namespace

TEST_CASE("bytes go from a device to itself, by communicators one after the other, and an abort leaves it quiet") {
  const transport::Nccl nccl = transport::find_nccl();
  if (nccl.version.empty()) {
    WARN("no NCCL: " << nccl.why_none);
    return;
  }
  auto communicator = transport::make_nccl_communicator({.device = 0, .slots = 2, .most_blocks = 8});
  INFO((communicator ? std::string() : communicator.error().message));
  REQUIRE(communicator);
  StreamOwner owner(**communicator, 2, {60'000, 30'000, 30'000});
  owner.open_window();

  constexpr std::size_t bytes = 1'000'003; // no multiple of anything
  std::vector<std::byte> sent(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    sent[i] = static_cast<std::byte>(i * 7 + i / 251);
  kernels::cuda::Stream stream;
  Memory from, to;
  done(kernels::cuda::use_device(0));
  done(stream.open());
  done(from.allocate(Home::device, bytes));
  done(to.allocate(Home::device, bytes));
  done(stream.copy(from.data(), sent.data(), bytes));

  for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) {
    CAPTURE(epoch);
    done(stream.fill(to.data(), 0xEE, bytes));
    done(stream.wait());
    const auto hold = owner.hold();
    REQUIRE(hold);
    const auto id = owner.make_id();
    REQUIRE(id);
    REQUIRE(owner.begin(*hold, epoch, *id, 1, 0));
    const auto begun = wait_for<StreamOwner::Begun>(owner);
    INFO((begun.how ? std::string() : begun.how.error().message));
    REQUIRE(begun.how);
    const auto slot = owner.take_slot();
    REQUIRE(slot);
    REQUIRE(owner.launch(
      *hold, {epoch, "a round to itself", *slot, {{true, 0, {from.data(), bytes}}, {false, 0, {to.data(), bytes}}}}));
    const auto ended = wait_for<StreamOwner::Ended>(owner);
    INFO((ended.how ? std::string() : ended.how.error().message));
    REQUIRE(ended.how);
    std::vector<std::byte> received(bytes);
    done(stream.copy(received.data(), to.data(), bytes));
    done(stream.wait());
    REQUIRE(received == sent);
    owner.give_slot(*slot);
    owner.release(*hold);
    owner.abort({Code::superseded, "the next one is to begin"});
    for (int ticks = 0; ticks < 70'000 && owner.state() == StreamOwner::State::aborting; ++ticks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      owner.tick();
    }
    REQUIRE(owner.state() == StreamOwner::State::idle);
  }
}
