// Trainers whose parameters are a GPU's, on an emulated one: what is refused where it is handed over, what a publish
// waits for, where snapshots go, that the wire carries what it does for memory of the host, and what a GPU that fails
// or hangs comes to. That sessions as a whole work there is for the other tests, which run on it too (meson.build).
#include "calls.hpp"
#include "random.hpp"
#include "unit/text_matchers.hpp"

#include "device/gpus.hpp"
#include "gpu/emulated_gpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>

using namespace deltawire;
using namespace deltawire::test;

namespace {

constexpr std::size_t elements = 20'000;

/// GPUs that sessions find while this lives.
class Installed {
public:
  explicit Installed(int count = 1, std::size_t memory = std::size_t{1} << 32)
    : before_(trainer_gpus()), gpus_(std::make_shared<EmulatedGpus>(seed(), count, memory)) {
    device::set_gpus(gpus_);
    set_log([this](std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~Installed() {
    set_log(nullptr);
    device::set_gpus(before_);
  }
  Installed(const Installed&) = delete;
  Installed& operator=(const Installed&) = delete;

  EmulatedGpus* operator->() { return gpus_.get(); }
  [[nodiscard]] bool said(const std::string& text) {
    const std::lock_guard lock(mutex_);
    return std::any_of(lines_.begin(), lines_.end(),
                       [&](const std::string& line) { return line.find(text) != std::string::npos; });
  }

private:
  std::shared_ptr<EmulatedGpus> before_;
  std::shared_ptr<EmulatedGpus> gpus_;
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// One rank with `w` of bf16 and `m`, held as fp32 and sent as bf16, and a worker on the host.
class Pair {
public:
  using Words = std::vector<std::uint16_t>;
  using Wide = std::vector<std::uint32_t>;

  /// `gpus`: trainer memory is there; null: on the host.
  explicit Pair(EmulatedGpus* gpus, std::vector<std::string> more = {}) : gpus_(gpus) {
    const std::string topology = folder_.write(
      "topology.toml", "[trainer]\nmesh = [[\"dp\", 1]]\n[worker]\nmesh = [[\"dp\", 1]]\n[[trainer.placement]]\n"
                       "parameter = \"m\"\nshard = []\nwire_dtype = \"bfloat16\"\n");
    std::vector<std::string> overrides = inproc_overrides();
    overrides.insert(overrides.end(), more.begin(), more.end());
    TrainerOptions options;
    options.rank = 0;
    options.world = 1;
    options.overrides = overrides;
    publisher = Publisher::open(topology, options);
    subscriber = Subscriber::open(topology, WorkerOptions{0, overrides});
    for (std::size_t i = 0; i < elements; ++i) {
      words.push_back(static_cast<std::uint16_t>(i * 7));
      wide.push_back(static_cast<std::uint32_t>(i * 2654435761u) & 0x7F7FFFFFu);
    }
    if (gpus_ != nullptr) {
      words_on_gpu = gpus_->allocate(elements * 2);
      wide_on_gpu = gpus_->allocate(elements * 4);
      store();
    }
  }

  void add() {
    publisher->add({"w", DType::bf16, {elements}, gpus_ ? static_cast<const void*>(words_on_gpu) : words.data()});
    publisher->add({"m", DType::f32, {elements}, gpus_ ? static_cast<const void*>(wide_on_gpu) : wide.data()});
  }

  /// What each threw.
  std::string connect() {
    std::string thrown;
    std::thread worker([this] {
      try {
        subscriber->bind({"w", DType::bf16, {elements}, got_words.data()});
        subscriber->bind({"m", DType::bf16, {elements}, got_wide.data()});
        subscriber->start();
      } catch (const Error&) { // the trainer says why
      }
    });
    try {
      publisher->connect();
    } catch (const Error& error) {
      thrown = error.what();
      publisher->close();
    }
    worker.join();
    return thrown;
  }

  /// At once.
  void store() {
    gpus_->write(words_on_gpu, std::as_bytes(std::span(words)));
    gpus_->write(wide_on_gpu, std::as_bytes(std::span(wide)));
  }

  /// Late, on a stream.
  void queue(void* stream) {
    gpus_->queue_write(stream, words_on_gpu, std::as_bytes(std::span(words)));
    gpus_->queue_write(stream, wide_on_gpu, std::as_bytes(std::span(wide)));
  }

  void change(std::mt19937_64& random, unsigned one_in) {
    for (std::size_t i = 0; i < elements; ++i) {
      if (random() % one_in == 0)
        words[i] = static_cast<std::uint16_t>(words[i] ^ (1u << random() % 16));
      if (random() % one_in == 0)
        wide[i] = (wide[i] ^ (1u << random() % 23)) & 0x7F7FFFFFu;
    }
  }

  [[nodiscard]] bool arrived() const {
    const auto rounded = [](std::uint32_t bits) {
      return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16); // finite numbers
    };
    for (std::size_t i = 0; i < elements; ++i)
      if (got_words[i] != words[i] || got_wide[i] != rounded(wide[i]))
        return false;
    return true;
  }

  std::optional<Publisher> publisher;
  std::optional<Subscriber> subscriber;
  Words words;
  Wide wide;
  Words got_words = Words(elements);
  Words got_wide = Words(elements);
  std::byte* words_on_gpu = nullptr;
  std::byte* wide_on_gpu = nullptr;

private:
  EmulatedGpus* gpus_;
  ScratchFolder folder_;
};

Outcome published(Pair& pair, PublishOptions options = {}) {
  Ticket ticket = pair.publisher->publish(1, options);
  ticket.captured();
  return ticket.wait();
}

} // namespace

TEST_CASE("GPU memory that a session cannot read is refused where it is handed over, and changes nothing") {
  Installed gpus(2);
  Pair pair(gpus.operator->());
  const void* const other = gpus->allocate(64, 1);
  pair.publisher->add({"w", DType::bf16, {elements}, pair.words_on_gpu});
  CHECK_THAT(error_of(Code::unsupported,
                      [&] {
                        pair.publisher->add({"m", DType::f32, {4}, other});
                      }),
             contains("add('m'): its memory is of GPU 1, and that of 'w' is of GPU 0"));
  CHECK_THAT(error_of(Code::invalid_argument,
                      [&] {
                        pair.publisher->add({"m", DType::f32, {4}, pair.wide_on_gpu + 2});
                      }),
             contains("add('m'): GPU memory of float32 begins at a multiple of 4 bytes"));
  pair.publisher->add({"m", DType::f32, {elements}, pair.wide_on_gpu});
  REQUIRE(pair.connect() == "");
  CHECK_THAT(error_of(Code::unsupported, [&] { pair.publisher->rebind("w", pair.words.data()); }),
             contains("rebind('w'): its memory is of the host, and was of GPU 0"));
  CHECK_THAT(error_of(Code::unsupported, [&] { pair.publisher->rebind("w", other); }), contains("'m' is of GPU 0"));
  CHECK(published(pair).committed);
  CHECK(pair.arrived());
}

TEST_CASE(
  "a publish reads weights after the stream that it is told of, and a publish that is not told reads too early") {
  unsigned early = 0;
  for (const bool told : {true, false})
    for (const char* tier : {"host", "device"})
      for (unsigned round = 0; round < 8; ++round) {
        Installed gpus;
        auto random = generator(8000 + round);
        Pair pair(gpus.operator->(), {fmt::format("actors.snapshotter.tier={}", tier)});
        pair.add();
        REQUIRE(pair.connect() == "");
        CHECK(published(pair).committed);
        void* const stream = round % 2 == 0 ? gpus->make_stream() : nullptr;
        for (unsigned update = 0; update < 3; ++update) {
          pair.change(random, 10);
          pair.queue(stream);
          CHECK(published(pair, told ? PublishOptions{stream} : PublishOptions{}).committed);
          if (told)
            REQUIRE(pair.arrived());
          else
            early += !pair.arrived();
        }
      }
  CHECK(early > 0);
}

TEST_CASE("a stream is refused where no parameter is on a GPU") {
  Installed gpus;
  Pair pair(nullptr);
  pair.add();
  REQUIRE(pair.connect() == "");
  void* const stream = gpus->make_stream();
  CHECK_THAT(error_of(Code::invalid_argument, [&] { (void)pair.publisher->publish(1, {.after = stream}); }),
             contains("no parameter of rank 0 is on one"));
  CHECK(published(pair).committed); // and was no publish
  CHECK(pair.arrived());
}

TEST_CASE("snapshots go where the tier says, or where there is room, and a line says where") {
  const auto kernels_of_an_update = [](const char* tier, std::size_t memory, const char* said) {
    Installed gpus(1, memory);
    Pair pair(gpus.operator->(), tier == nullptr
                                   ? std::vector<std::string>{}
                                   : std::vector<std::string>{fmt::format("actors.snapshotter.tier={}", tier)});
    pair.add();
    REQUIRE(pair.connect() == "");
    if (said != nullptr)
      CHECK(gpus.said(said));
    auto random = generator(8100);
    CHECK(published(pair).committed);
    pair.change(random, 100);
    pair.store();
    CHECK(published(pair).committed);
    CHECK(pair.arrived());
    return gpus->taken();
  };
  constexpr std::size_t ample = std::size_t{4} << 30;
  const auto on_gpu =
    kernels_of_an_update("device", ample, "rank 0: snapshots of its parameters on GPU 0 (emulated) are in its memory");
  CHECK(kernels_of_an_update(nullptr, ample, "are in its memory") == on_gpu);
  (void)kernels_of_an_update("host", ample, nullptr);
  (void)kernels_of_an_update(nullptr, std::size_t{1} << 30, "are in the host's memory");
  (void)kernels_of_an_update("device", std::size_t{1} << 30, "are in its memory"); // the reserve is auto's
}

TEST_CASE("a GPU without room for the snapshots is told at connect, with what to do") {
  Installed gpus(1, elements * 6 + 1000);
  Pair pair(gpus.operator->(), {"actors.snapshotter.tier=device"});
  pair.add();
  const std::string thrown = pair.connect();
  CHECK_THAT(thrown, contains("GPU 0 (emulated)"));
  CHECK_THAT(thrown, contains("out of memory"));
  CHECK_THAT(thrown, contains("actors.snapshotter.tier = \"host\""));
}

TEST_CASE("the wire carries what it does for memory of the host") {
  const auto flushes = [](EmulatedGpus* gpus, const char* tier) {
    ScratchFolder kept;
    std::vector<Outcome> outcomes;
    {
      Pair pair(gpus, {fmt::format("actors.snapshotter.tier={}", tier), "actors.differ.count=1",
                       fmt::format("telemetry.flushes=\"{}\"", kept.path(""))});
      pair.add();
      REQUIRE(pair.connect() == "");
      auto random = generator(8200);
      for (const unsigned one_in : {1u, 100u, 2u, 1000u, 1u}) {
        outcomes.push_back(published(pair));
        pair.change(random, one_in);
        if (gpus != nullptr)
          pair.store();
      }
    }
    std::string bytes;
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(kept.path("")))
      if (entry.is_regular_file())
        files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) {
      std::ifstream in(file, std::ios::binary);
      bytes.append(std::istreambuf_iterator<char>(in), {});
    }
    REQUIRE(files.size() >= 5);
    for (const Outcome& outcome : outcomes)
      bytes += fmt::format("{} {} {};", outcome.changed, outcome.wire_bytes, outcome.flushes);
    return bytes;
  };
  const std::string on_host = flushes(nullptr, "host");
  Installed gpus;
  CHECK((flushes(gpus.operator->(), "device") == on_host));
  CHECK((flushes(gpus.operator->(), "host") == on_host));
}

TEST_CASE("a GPU that fails or hangs ends the session by name, within the deadline") {
  for (const bool hangs : {false, true})
    for (const char* tier : {"host", "device"}) {
      CAPTURE(hangs, tier);
      Installed gpus;
      Pair pair(gpus.operator->(), {fmt::format("actors.snapshotter.tier={}", tier), "update.timeout=2400ms",
                                    "update.stall=1600ms", "update.engine=1s"});
      pair.add();
      REQUIRE(pair.connect() == "");
      REQUIRE(published(pair).committed);
      auto random = generator(8300);
      pair.change(random, 10);
      pair.store();
      if (hangs)
        gpus->hang();
      else
        gpus->fail_after(4, "an uncorrectable ECC error");
      const auto begin = std::chrono::steady_clock::now();
      const Outcome outcome = published(pair);
      CHECK_FALSE(outcome.committed);
      CHECK(outcome.error_message != "");
      if (!hangs) {
        CHECK_THAT(outcome.error_message, contains("rank 0: slot '"));
        CHECK_THAT(outcome.error_message, contains("GPU 0 (emulated): work of a stream: an uncorrectable ECC error"));
      }
      CHECK_THAT(error_of(hangs ? Code::timed_out : Code::peer_failed,
                          [&] {
                            for (;;) // the first that finds the session over
                              (void)published(pair);
                          }),
                 contains("GPU 0 (emulated)"));
      CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
    }
}

TEST_CASE("a GPU that fails under an update in parts, or an audit, holds nobody up") {
  for (const bool audits : {false, true}) {
    CAPTURE(audits);
    Installed gpus;
    Pair pair(gpus.operator->(), {"actors.snapshotter.tier=device"});
    pair.add();
    REQUIRE(pair.connect() == "");
    REQUIRE(published(pair).committed);
    gpus->fail_after(1, "an uncorrectable ECC error");
    const auto begin = std::chrono::steady_clock::now();
    if (audits) {
      const Outcome outcome = pair.publisher->audit();
      CHECK_FALSE(outcome.committed);
      CHECK_THAT(outcome.error_message, contains("an uncorrectable ECC error"));
    } else {
      Update update = pair.publisher->begin(2);
      update.send({"w"});
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    CHECK_THAT(error_of(Code::peer_failed,
                        [&] {
                          for (;;) // the first that finds the session over
                            (void)published(pair);
                        }),
               contains("GPU 0 (emulated)"));
    pair.publisher->close();
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));
  }
}
