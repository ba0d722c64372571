// Contract of sync/silence.hpp: who has not been heard of for too long is told once, and once more when it is heard
// again; time in which this process did not run is nobody's silence. In random runs against an oracle that keeps every
// tick.
#include "catch.hpp"
#include "random.hpp"

#include "sync/silence.hpp"

#include <fmt/format.h>

#include <map>
#include <vector>

namespace {

using namespace deltawire;
using sync::SilenceWatch;
using News = SilenceWatch::News;

std::uint64_t uniform(std::mt19937_64& random, std::uint64_t low, std::uint64_t high) {
  return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
}

constexpr SilenceWatch::Nanoseconds limit = 1000;
constexpr SilenceWatch::Nanoseconds longest_step = 100;

} // namespace

TEST_CASE("silence and its end are told once each, as soon as the limit has passed, whatever peers do") {
  CAPTURE(test::seed());
  std::uint64_t silent = 0, again = 0, looks = 0;
  for (std::uint64_t run = 0; run < 300; ++run) {
    CAPTURE(run);
    auto random = test::generator(7500000 + run);
    SilenceWatch watch(limit, longest_step);
    struct Peer {
      std::uint64_t frames = 0;
      bool seen = false;              ///< looked at before
      std::uint64_t known_frames = 0; ///< at the last look
      std::size_t heard_tick = 0;     ///< the tick of the look at which it was last known to have spoken
      bool silent = false;
    };
    std::vector<Peer> peers(uniform(random, 1, 4));
    std::vector<SilenceWatch::Nanoseconds> steps; // what each tick counts for
    SilenceWatch::Nanoseconds now = static_cast<SilenceWatch::Nanoseconds>(uniform(random, 1, 1'000'000'000));
    watch.tick(now);
    const std::uint64_t talkative = uniform(random, 0, 40);
    for (std::uint64_t ticks = 200; ticks > 0; --ticks) {
      // Now and then the process stands still for long.
      const auto step = static_cast<SilenceWatch::Nanoseconds>(
        uniform(random, 0, 15) == 0 ? uniform(random, 1, 50 * limit) : uniform(random, 1, longest_step));
      now += step;
      steps.push_back(std::min(step, longest_step));
      watch.tick(now);
      for (std::size_t p = 0; p < peers.size(); ++p) {
        Peer& peer = peers[p];
        if (uniform(random, 0, 40) < talkative)
          peer.frames += uniform(random, 0, 3);
        if (uniform(random, 0, 9) == 0)
          continue; // not every peer is looked at each time
        News expected = News::none;
        if (!peer.seen || peer.frames != peer.known_frames) {
          expected = peer.seen && peer.silent ? News::heard_again : News::none;
          peer.silent = false;
          peer.heard_tick = steps.size();
        } else {
          SilenceWatch::Nanoseconds unheard = 0;
          for (std::size_t t = peer.heard_tick; t < steps.size(); ++t)
            unheard += steps[t];
          if (unheard > limit && !peer.silent) {
            peer.silent = true;
            expected = News::silent;
          }
        }
        peer.seen = true;
        peer.known_frames = peer.frames;
        REQUIRE(watch.look(p, peer.frames) == expected);
        ++looks;
        silent += expected == News::silent ? 1 : 0;
        again += expected == News::heard_again ? 1 : 0;
      }
    }
  }
  fmt::print("silence: seed {}, {} looks, {} times silent, {} times heard again\n", test::seed(), looks, silent, again);
  REQUIRE(silent > 200);
  REQUIRE(again > 100);
}

TEST_CASE("a process that was stopped takes its own absence for nobody's silence") {
  SilenceWatch watch(limit, longest_step);
  watch.tick(5);
  REQUIRE(watch.look(1, 7) == News::none);
  watch.tick(5 + 1000 * limit);
  REQUIRE(watch.look(1, 7) == News::none);
  // From here on it runs, and its peer does not.
  SilenceWatch::Nanoseconds now = 5 + 1000 * limit;
  News news = News::none;
  SilenceWatch::Nanoseconds waited = 0;
  while (news == News::none) {
    now += longest_step;
    waited += longest_step;
    watch.tick(now);
    news = watch.look(1, 7);
    REQUIRE(waited <= limit + longest_step);
  }
  REQUIRE(news == News::silent);
  REQUIRE(watch.look(1, 7) == News::none); // told already
  REQUIRE(watch.look(1, 8) == News::heard_again);
  REQUIRE(watch.look(1, 8) == News::none);
}

TEST_CASE("a peer that is met late has the whole limit from then on") {
  SilenceWatch watch(limit, longest_step);
  SilenceWatch::Nanoseconds now = 1;
  watch.tick(now);
  REQUIRE(watch.look(1, 1) == News::none);
  for (int ticks = 0; ticks < 11; ++ticks)
    watch.tick(now += longest_step);
  REQUIRE(watch.look(1, 1) == News::silent);
  REQUIRE(watch.look(2, 0) == News::none);
  for (int ticks = 0; ticks < 10; ++ticks) {
    watch.tick(now += longest_step);
    REQUIRE(watch.look(2, 0) == News::none);
  }
  watch.tick(now += longest_step);
  REQUIRE(watch.look(2, 0) == News::silent);
}
