// The replay command's own parts: the verdict over a run's events, their way between processes, the table, and the
// cutting of shards. The command as a whole: tests/process.

#include "catch.hpp"
#include "random.hpp"
#include "tools/replay/memory_speed.hpp"
#include "tools/replay/missed_versions.hpp"
#include "tools/replay/record.hpp"
#include "tools/replay/shard_copy.hpp"
#include "tools/replay/table.hpp"

#include <limits>
#include <sstream>

using namespace deltawire;
using namespace deltawire::replay;

namespace {

Outcome committed(Version version) {
  Outcome outcome;
  outcome.version = version;
  outcome.base = version - 1;
  outcome.seed = version == 1;
  outcome.committed = true;
  for (std::uint32_t index = 0; index < 2; ++index) {
    WorkerOutcome& worker = outcome.workers.emplace_back();
    worker.index = index;
    worker.version = version;
    worker.state = "serving";
    worker.digest_ok = true;
  }
  return outcome;
}

VersionHeld held(std::uint32_t worker, Version version, VersionHeld::Proof proof = VersionHeld::Proof::equal) {
  VersionHeld event;
  event.worker = worker;
  event.version = version;
  event.proof = proof;
  event.difference = proof == VersionHeld::Proof::different ? "tensor 'a' differs" : "";
  return event;
}

PeerEnded ended(Peer::Side side, std::uint32_t index, Code code, const std::string& message) {
  return {{side, index}, Failure{code, message}};
}

/// Two versions on two workers, all well.
void note_good_run(Record& record) {
  for (Version version = 1; version <= 2; ++version) {
    record.note(held(0, version));
    record.note(held(1, version));
    record.note(UpdateEnded{committed(version)});
  }
}

} // namespace

TEST_CASE("a worker that updates do not reach is said when that begins, changes and ends, and otherwise rarely") {
  MissedVersions missed;
  Version version = 0;
  const auto update = [&](bool reached, const std::string& state) {
    Outcome outcome = committed(++version);
    if (!reached) {
      outcome.workers[1].version = 1;
      outcome.workers[1].state = state;
      outcome.workers[1].error = fmt::format("no progress on version {}", version); // never the same text twice
    }
    return missed.update_over(outcome);
  };
  CHECK(update(true, "").empty());
  CHECK(missed.first().empty());
  for (int round = 0; round < 2; ++round) {
    const auto begins = update(false, "lagging");
    REQUIRE(begins.size() == 1);
    CHECK_THAT(begins[0],
               Catch::Matchers::Contains(fmt::format("version {} did not reach worker 1, which is lagging at "
                                                     "version 1: no progress on version {}",
                                                     version, version)));
    CHECK(update(false, "lagging").empty());
    CHECK(update(false, "lost").size() == 1);
    std::vector<Version> said;
    const Version before = version;
    for (int i = 0; i < 1200; ++i)
      if (const auto lines = update(false, "lost"); !lines.empty()) {
        CHECK(lines.size() == 1);
        said.push_back(version - before + 3); // versions in a row, the three above included
        CHECK_THAT(lines[0], Catch::Matchers::Contains(fmt::format("({} in a row that it has not got)", said.back())));
      }
    CHECK(said == std::vector<Version>{10, 100, 1000});
    const auto ends = update(true, "");
    REQUIRE(ends.size() == 1);
    CHECK(ends[0] == fmt::format("worker 1 has version {} again, after 1203 that did not reach it", version));
    CHECK(update(true, "").empty());
  }
  CHECK_THAT(missed.first(), Catch::Matchers::StartsWith("version 2 did not reach worker 1"));
}

TEST_CASE("the speed of memory is of arrays as large as the parameters, within bounds") {
  constexpr std::uint64_t mib = 1u << 20;
  for (const auto& [asked, got] :
       {std::pair{std::uint64_t{0}, mib}, {3 * mib + 1, 3 * mib + 1}, {1000 * mib, 64 * mib}}) {
    const MemorySpeed speed = measure_memory_speed(asked);
    CHECK(speed.array_bytes == got);
    CHECK(speed.cores >= 1);
    CHECK(speed.compare > 1e7); // any machine's
    CHECK(speed.compare < 1e14);
    CHECK(speed.copy > 1e7);
    CHECK(speed.copy < 1e14);
  }
}

TEST_CASE("a run is verified when every worker proved every version and every digest is right") {
  Record record(2, 2);
  CHECK(record.cause());
  note_good_run(record);
  CHECK_FALSE(record.cause());
  CHECK_FALSE(record.failed());
  CHECK(record.versions_held() == 2);
}

TEST_CASE("a run is not verified when anything is missing") {
  Record record(2, 2);
  SECTION("a worker skipped a version") {
    record.note(held(0, 1));
    record.note(held(0, 2));
    record.note(held(1, 2));
    record.note(UpdateEnded{committed(1)});
    record.note(UpdateEnded{committed(2)});
  }
  SECTION("a worker compared nothing") {
    for (const Version version : {1, 2}) {
      record.note(held(0, version));
      record.note(held(1, version, VersionHeld::Proof::none));
      record.note(UpdateEnded{committed(version)});
    }
  }
  SECTION("the root told of one update only") {
    for (const Version version : {1, 2}) {
      record.note(held(0, version));
      record.note(held(1, version));
    }
    record.note(UpdateEnded{committed(1)});
  }
  SECTION("a digest is wrong, and they are checked") {
    for (const Version version : {1, 2}) {
      record.note(held(0, version));
      record.note(held(1, version));
    }
    record.note(UpdateEnded{committed(1)});
    Outcome outcome = committed(2);
    outcome.workers[1].digest_ok = false;
    record.note(UpdateEnded{outcome});
  }
  REQUIRE(record.cause());
  CHECK(record.cause()->code == Code::verification_failed);
}

TEST_CASE("digests that nobody checks are not missed: the files prove the run") {
  Record record(1, 2, false);
  record.note(held(0, 1));
  Outcome outcome = committed(1);
  for (WorkerOutcome& worker : outcome.workers)
    worker.digest_ok = false;
  record.note(UpdateEnded{outcome});
  CHECK(record.cause()); // worker 1 has proven nothing yet
  record.note(held(1, 1));
  CHECK_FALSE(record.cause());
}

TEST_CASE("a worker that fails after the first update is not waited for, and is the cause in the end") {
  Record record(3, 2);
  record.note(held(0, 1));
  record.note(held(1, 1));
  record.note(UpdateEnded{committed(1)});
  record.note(held(0, 2));
  Outcome second = committed(2);
  record.note(UpdateEnded{second});
  CHECK(record.versions_held() == 1); // worker 1 has it, and may still prove it
  record.note_death({Peer::Side::worker, 1}, "was killed by signal 9 (Killed)");
  CHECK(record.versions_held() == 2);
  CHECK_FALSE(record.failed()); // the others go on
  CHECK_THAT(record.cause()->message, Catch::Matchers::Contains("worker 1"));
  Outcome third = committed(3);
  third.workers[1].version = 1;
  third.workers[1].state = "lost";
  record.note(UpdateEnded{third});
  CHECK(record.versions_held() == 2);
  record.note(held(0, 3));
  CHECK(record.versions_held() == 3);
}

TEST_CASE("a version that did not reach a worker is no verified run, and is told with the reason") {
  Record record(2, 2);
  record.note(held(0, 1));
  record.note(held(1, 1));
  record.note(UpdateEnded{committed(1)});
  record.note(held(0, 2));
  Outcome second = committed(2);
  second.workers[1].version = 1;
  second.workers[1].state = "lagging";
  second.workers[1].error = "worker 1 made no progress";
  record.note(UpdateEnded{second});
  CHECK(record.versions_held() == 2);
  REQUIRE(record.cause());
  CHECK(record.cause()->code == Code::peer_failed);
  CHECK_THAT(record.cause()->message, Catch::Matchers::Contains("version 2 did not reach worker 1") &&
                                        Catch::Matchers::Contains("made no progress"));
}

TEST_CASE("a trainer that fails, or any peer before the first update, ends the run") {
  Record record(2, 2);
  SECTION("a worker that cannot start") {
    record.note(ended(Peer::Side::worker, 1, Code::invalid_topology, "no such file"));
  }
  SECTION("a trainer, later") {
    record.note(UpdateEnded{committed(1)});
    record.note_death({Peer::Side::trainer, 1}, "was killed by signal 9 (Killed)");
  }
  SECTION("an update that nobody took") {
    Outcome outcome = committed(1);
    outcome.committed = false;
    outcome.error_message = "no replica";
    record.note(UpdateEnded{outcome});
  }
  CHECK(record.failed());
  CHECK(record.cause());
}

TEST_CASE("bits that differ come before every other cause") {
  Record record(2, 2);
  record.note(ended(Peer::Side::trainer, 0, Code::internal, "broken"));
  record.note(held(1, 1, VersionHeld::Proof::different));
  record.note_death({Peer::Side::worker, 0}, "was killed by signal 9 (Killed)");
  CHECK(record.cause()->code == Code::verification_failed);
  CHECK_THAT(record.cause()->message, Catch::Matchers::Contains("version 1") && Catch::Matchers::Contains("'a'"));
}

TEST_CASE("a death is not hidden by the failures that follow from it, even where they are told first") {
  Record record(2, 2);
  record.note(held(1, 1));
  record.note(ended(Peer::Side::trainer, 0, Code::peer_failed, "worker 1 hung up"));
  record.note(ended(Peer::Side::worker, 0, Code::peer_failed, "the root hung up"));
  CHECK(record.cause()->message == "trainer rank 0: worker 1 hung up");
  record.note_death({Peer::Side::worker, 1}, "was killed by signal 9 (Killed)");
  CHECK(record.cause()->code == Code::peer_failed);
  CHECK(record.cause()->message ==
        "worker 1: its process was killed by signal 9 (Killed); version 1 of 2 was its last that was proven");
}

TEST_CASE("a failure of its own comes before hang-ups and deadlines") {
  Record record(2, 2);
  record.note(ended(Peer::Side::trainer, 0, Code::timed_out, "worker 1 did not connect"));
  record.note(ended(Peer::Side::worker, 1, Code::limit_exceeded, "stage too small"));
  CHECK(record.cause()->code == Code::limit_exceeded);
  CHECK(record.cause()->message == "worker 1: stage too small");
}

TEST_CASE("events cross a pipe unchanged, whatever text they carry") {
  Outcome outcome = committed(7);
  outcome.error = Code::timed_out;
  outcome.error_message = "line\nbreak \"quote\" \x01";
  outcome.changed = std::numeric_limits<std::uint64_t>::max();
  outcome.committed_s = 0.1 + 0.2;
  outcome.phase_s = {1, 2, 3, 4, 5, 6};
  outcome.high_water = {10, 20, 30, 40};
  outcome.workers[1].error = "why";
  outcome.workers[1].flushes = 3;
  outcome.workers[1].pieces = 44;
  outcome.workers[1].delivery = "fold";
  outcome.workers[1].matched = true;
  outcome.workers[1].audited = true;
  const std::string line = to_line(UpdateEnded{outcome});
  CHECK(line.find('\n') == std::string::npos);
  const auto event = event_from_line(line);
  REQUIRE(event);
  const Outcome& back = std::get<UpdateEnded>(*event).outcome;
  CHECK(to_line(UpdateEnded{back}) == line);
  CHECK(back.error_message == outcome.error_message);
  CHECK(back.changed == outcome.changed);
  CHECK(back.committed_s == outcome.committed_s);
  CHECK(back.phase_s.commit == 6);
  CHECK(back.high_water.applier == 40);
  CHECK(back.workers[1].error == "why");
  CHECK(back.workers[1].flushes == 3);
  CHECK(back.workers[1].pieces == 44);
  CHECK(back.workers[1].delivery == "fold");
  CHECK(back.workers[1].matched);
  CHECK(back.workers[1].audited);

  const auto end = event_from_line(to_line(ended(Peer::Side::worker, 3, Code::output_failed, "bad \xff byte")));
  REQUIRE(end);
  CHECK(std::get<PeerEnded>(*end).peer == Peer{Peer::Side::worker, 3});
  CHECK(std::get<PeerEnded>(*end).failure->code == Code::output_failed);

  for (const char* nonsense : {"", "{", "[]", "{}", R"({"event":"update"})", R"({"event":"version","worker":-1})"})
    CHECK_FALSE(event_from_line(nonsense));
}

TEST_CASE("the table fits 120 plain columns, also with large numbers") {
  std::vector<Outcome> updates{committed(1), committed(2), committed(1000)};
  for (Outcome& update : updates) {
    update.elements = 700'000'000'000;
    update.changed = update.seed ? update.elements : 12'345'678'901;
    update.wire_bytes = 1'400'000'000'000;
    update.gather_bytes = 1'023ull << 30;
    update.captured_s = 9.999;
    update.committed_s = 599.4;
    update.pause_s = 0.0123;
    update.phase_s = {12.5, 99.96, 0.000012, 1234.5, 9.9994, 0.5};
  }
  std::istringstream lines(table_text(updates));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    CAPTURE(line);
    CHECK(line.size() <= 120);
    CHECK(line.find_first_not_of(
            " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz|~") ==
          std::string::npos);
  }
  CHECK(count == 7);
}

TEST_CASE("bytes are told in three digits") {
  CHECK(short_bytes(0) == "0B");
  CHECK(short_bytes(999) == "999B");
  CHECK(short_bytes(1024) == "1.00KiB");
  CHECK(short_bytes(120345) == "118KiB");
  CHECK(short_bytes(9123456) == "8.70MiB");
}

TEST_CASE("a shard takes the elements that its intervals, steps and flat interval name") {
  CAPTURE(test::seed());
  auto random = test::generator(0x5a4d);
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
  };
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    layout::Shard shard;
    std::vector<std::vector<std::int64_t>> taken; // a dim: global index of each local one
    for (std::int64_t dim = below(4); dim > 0; --dim) {
      const std::int64_t extent = below(6) + (round % 7 == 0 ? 0 : 1);
      shard.full_shape.push_back(extent);
      auto& intervals = shard.dims.emplace_back();
      auto& globals = taken.emplace_back();
      for (std::int64_t at = 0; at < extent;) {
        const std::int64_t length = 1 + below(extent - at);
        if (below(3) > 0) {
          const std::int64_t step = below(3) == 0 ? 1 + below(3) : 1; // dealt
          const std::int64_t count = (length - 1) / step + 1;
          intervals.push_back({at, static_cast<std::int64_t>(globals.size()), count, count == 1 ? 1 : step});
          for (std::int64_t i = 0; i < count; ++i)
            globals.push_back(at + i * step);
        }
        at += length;
      }
      shard.local_shape.push_back(static_cast<std::int64_t>(globals.size()));
    }
    const std::size_t width = std::size_t{1} << below(4);
    const auto elements = [](const layout::Shape& shape) {
      std::size_t count = 1;
      for (const auto extent : shape)
        count *= static_cast<std::size_t>(extent);
      return count;
    };
    std::vector<std::byte> full(elements(shard.full_shape) * width);
    for (std::byte& byte : full)
      byte = static_cast<std::byte>(random());
    std::vector<std::byte> expected(elements(shard.local_shape) * width);
    for (std::size_t local = 0; local < elements(shard.local_shape); ++local) {
      std::size_t rest = local, global = 0, stride = 1;
      for (std::size_t dim = taken.size(); dim-- > 0;) {
        const auto extent = static_cast<std::size_t>(shard.local_shape[dim]);
        global += static_cast<std::size_t>(taken[dim][rest % extent]) * stride;
        rest /= extent;
        stride *= static_cast<std::size_t>(shard.full_shape[dim]);
      }
      std::copy_n(full.begin() + static_cast<std::ptrdiff_t>(global * width), width,
                  expected.begin() + static_cast<std::ptrdiff_t>(local * width));
    }
    if (round % 3 == 0) { // an interval of the elements
      const auto count = static_cast<std::int64_t>(elements(shard.local_shape));
      const std::int64_t begin = below(count + 1);
      const std::int64_t end = begin + below(count - begin + 1);
      shard.flat = layout::FlatRange{begin, end};
      shard.local_shape = {end - begin};
      expected = {expected.begin() + begin * static_cast<std::int64_t>(width),
                  expected.begin() + end * static_cast<std::int64_t>(width)};
    }
    std::vector<std::byte> local(expected.size());
    copy_shard(shard, width, full.data(), local.data());
    CHECK(local == expected);
  }
}
