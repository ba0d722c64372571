// Contract of device/gpu.hpp on the emulated GPU that tests of sessions run on: order within a stream, none between
// streams but what events and waits make, faults that stay, deadlines; and that the emulation finds what it is for.
#include "catch.hpp"
#include "gpu/emulated_gpus.hpp"
#include "random.hpp"
#include "text_matchers.hpp"

#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

using namespace deltawire;
using namespace deltawire::test;
using namespace deltawire::device;

namespace {

std::chrono::steady_clock::time_point soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(20);
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

struct Bench {
  EmulatedGpus gpus{seed()};
  std::shared_ptr<Gpu> gpu = gpus.open(0).value();
  std::unique_ptr<Stream> stream = gpu->open_stream().value();
  std::unique_ptr<Memory> pinned = gpu->allocate(Home::pinned, 4096).value();
  std::unique_ptr<Memory> device = gpu->allocate(Home::device, 4096).value();
};

} // namespace

TEST_CASE("memory of a device is told from the host's, and belongs to one GPU") {
  EmulatedGpus gpus(seed(), 2);
  const std::byte* const first = gpus.allocate(16, 0);
  const std::byte* const second = gpus.allocate(16, 1);
  CHECK(gpus.index_of(first) == 0);
  CHECK(gpus.index_of(second) == 1);
  CHECK_FALSE(gpus.index_of(&gpus));
  CHECK(gpus.open(0).value() != gpus.open(1).value());
  const auto held = gpus.open(1).value();
  CHECK(gpus.open(1).value() == held);
  CHECK_FALSE(gpus.open(2));
}

TEST_CASE("a stream's work is done in order, and not before it was waited for") {
  Bench bench;
  auto* const words = bench.pinned->as<std::uint32_t>();
  words[0] = 17;
  words[1] = 0;
  REQUIRE(bench.stream->copy(bench.device->data(), words, 4));
  REQUIRE(bench.stream->copy(words + 1, bench.device->data(), 4));
  CHECK(words[1] == 0); // late
  REQUIRE(wait_until_idle(*bench.stream, soon()));
  CHECK(words[1] == 17);
}

TEST_CASE("streams meet at events, and with the embedding program's") {
  for (std::uint64_t round = 0; round < 50; ++round) {
    EmulatedGpus gpus(seed() + round);
    const std::shared_ptr<Gpu> gpu = gpus.open(0).value();
    const auto stream = gpu->open_stream().value();
    const auto other = gpu->open_stream().value();
    const auto event = gpu->make_event().value();
    const auto pinned = gpu->allocate(Home::pinned, 64).value();
    std::byte* const weights = gpus.allocate(64);
    void* const trainer = round % 2 == 0 ? gpus.make_stream() : nullptr;
    const std::vector<std::uint32_t> first{1}, second{2};
    gpus.queue_write(trainer, weights, bytes_of(first));
    REQUIRE(stream->wait_for_foreign(trainer));
    REQUIRE(stream->copy(pinned->data(), weights, 4));
    REQUIRE(stream->hold_foreign(trainer));
    gpus.queue_write(trainer, weights, bytes_of(second));
    REQUIRE(stream->record(*event));
    REQUIRE(other->wait_for(*event));
    REQUIRE(other->copy(pinned->data() + 4, pinned->data(), 4));
    REQUIRE(wait_until_idle(*other, soon()));
    CHECK(event->reached().value());
    CHECK(pinned->as<std::uint32_t>()[0] == 1);
    CHECK(pinned->as<std::uint32_t>()[1] == 1);
    gpus.synchronize(trainer);
    CHECK(gpus.read(weights, 4) == std::vector<std::byte>(bytes_of(second).begin(), bytes_of(second).end()));
  }
}

TEST_CASE("without a wait the embedding program's work comes too late in some order") {
  unsigned early = 0;
  for (std::uint64_t round = 0; round < 50; ++round) {
    EmulatedGpus gpus(seed() + round);
    const std::shared_ptr<Gpu> gpu = gpus.open(0).value();
    const auto stream = gpu->open_stream().value();
    const auto pinned = gpu->allocate(Home::pinned, 64).value();
    std::byte* const weights = gpus.allocate(64);
    const std::vector<std::uint32_t> value{1};
    gpus.queue_write(nullptr, weights, bytes_of(value));
    REQUIRE(stream->copy(pinned->data(), weights, 4));
    REQUIRE(wait_until_idle(*stream, soon()));
    early += pinned->as<std::uint32_t>()[0] != 1;
  }
  CHECK(early > 5);
}

TEST_CASE("a fault of work stays, and says what it was") {
  Bench bench;
  const auto faulty = [&] { return wait_until_idle(*bench.stream, soon()); };
  SECTION("pageable memory of the host") {
    std::uint32_t own = 0;
    REQUIRE(bench.stream->copy(bench.device->data(), &own, 4));
  }
  SECTION("past the end") {
    REQUIRE(bench.stream->fill(bench.device->data(), 0, 4097));
  }
  SECTION("memory that was released") {
    std::byte* const gone = bench.device->data();
    bench.device.reset();
    REQUIRE(bench.stream->fill(gone, 0, 16));
  }
  SECTION("a planned one") {
    bench.gpus.fail_after(2, "an illegal memory access was planned");
    REQUIRE(bench.stream->fill(bench.device->data(), 0, 16));
    REQUIRE(bench.stream->fill(bench.device->data(), 0, 16));
  }
  const auto ended = faulty();
  REQUIRE_FALSE(ended);
  CHECK(ended.error().code == Code::peer_failed);
  CHECK_THAT(ended.error().message, contains("an illegal memory access"));
  CHECK_FALSE(bench.stream->copy(bench.device ? bench.device->data() : nullptr, bench.pinned->data(), 1));
  CHECK_FALSE(bench.gpu->allocate(Home::device, 16));
}

TEST_CASE("a GPU that hangs is waited for until the deadline") {
  Bench bench;
  bench.gpus.hang();
  REQUIRE(bench.stream->fill(bench.device->data(), 0, 16));
  const auto ended = wait_until_idle(*bench.stream, std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
  REQUIRE_FALSE(ended);
  CHECK(ended.error().code == Code::timed_out);
}

TEST_CASE("there is as much device memory as there is") {
  EmulatedGpus gpus(seed(), 1, 10'000);
  const std::shared_ptr<Gpu> gpu = gpus.open(0).value();
  auto most = gpu->allocate(Home::device, 9'000);
  REQUIRE(most);
  CHECK(gpu->free_memory().value() == 1'000);
  const auto more = gpu->allocate(Home::device, 1'001);
  REQUIRE_FALSE(more);
  CHECK(more.error().code == Code::limit_exceeded);
  CHECK_THAT(more.error().message, contains("GPU 0 (emulated)"));
  most->reset();
  CHECK(gpu->allocate(Home::device, 10'000));
}

TEST_CASE("a host that touches device memory does not survive it") {
  EmulatedGpus gpus(seed());
  const std::byte* const weights = gpus.allocate(64);
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    std::signal(SIGSEGV, SIG_DFL);
    volatile std::byte seen = *weights;
    (void)seen;
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
}

TEST_CASE("the GPUs that a process asks are CUDA's, unless a test says otherwise") {
  const auto emulated = std::make_shared<EmulatedGpus>(seed());
  set_gpus(emulated);
  CHECK(gpus() == emulated);
  set_gpus(nullptr);
  CHECK(gpus() != emulated);
  CHECK_FALSE(gpus()->index_of(&emulated));
  const auto refused = gpus()->open(1'000);
  REQUIRE_FALSE(refused);
  CHECK_THAT(refused.error().message, contains("GPU 1000 cannot be used: "));
}
