// Contract of sync/flush_assembly.hpp: whole pieces, in order, by route, in flushes of at most the cap; one flush on
// the wire while the next is assembled, and no more; sealed at the end of a window while the wire is idle.
#include "catch.hpp"
#include "delta_random_block.hpp"
#include "flat_block.hpp"
#include "random.hpp"
#include "text_matchers.hpp"

#include "delta/piece.hpp"
#include "sync/flush_assembly.hpp"

#include <deque>

namespace {

using namespace deltawire;
using sync::FlushAssembly;
using test::flat_block;
using test::uniform;
using Buffer = FlushAssembly::Buffer;

/// Random pieces, deltas and values, none larger than the limit.
std::vector<Buffer> random_pieces(std::mt19937_64& random, std::size_t limit) {
  delta::PieceEncoder encoder(limit);
  std::vector<Buffer> pieces;
  for (std::uint64_t ranges = uniform(random, 0, 8); ranges > 0; --ranges) {
    const DType dtype = uniform(random, 0, 1) ? DType::bf16 : DType::f32;
    const std::size_t size = size_of(dtype);
    const std::uint64_t elements = uniform(random, 1, 600);
    const layout::Block block = flat_block(static_cast<std::uint32_t>(ranges), dtype, elements);
    std::vector<std::byte> values(elements * size);
    for (std::byte& byte : values)
      byte = static_cast<std::byte>(random());
    if (uniform(random, 0, 1)) {
      encoder.add_values(block, 0, elements, values.data());
    } else {
      std::vector<std::uint16_t> positions;
      const std::uint64_t gap = uniform(random, 1, 40);
      for (std::uint64_t at = uniform(random, 0, gap); at < elements; at += uniform(random, 1, gap))
        positions.push_back(static_cast<std::uint16_t>(at));
      encoder.start_range(block, 0, elements);
      if (!positions.empty())
        encoder.add_changes(0, positions, values.data());
      encoder.finish_range();
    }
    const delta::EncodedPieces encoded = encoder.take();
    std::uint64_t begin = 0;
    for (const std::uint64_t end : encoded.ends) {
      pieces.emplace_back(encoded.bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                          encoded.bytes.begin() + static_cast<std::ptrdiff_t>(end));
      begin = end;
    }
  }
  return pieces;
}

constexpr std::uint32_t block_ids = 9;

std::shared_ptr<const sync::RouteTable> one_route() {
  return std::make_shared<const sync::RouteTable>(sync::broadcast(block_ids, 1, 1));
}

/// Up to four routes, and blocks that nobody wants.
std::shared_ptr<const sync::RouteTable> random_routes(std::mt19937_64& random) {
  auto table = std::make_shared<sync::RouteTable>();
  const std::uint64_t routes = uniform(random, 1, 4);
  table->workers.resize(routes, {0});
  for (std::uint32_t block = 0; block < block_ids; ++block)
    table->route_of_block.push_back(uniform(random, 0, 9) == 0
                                      ? sync::RouteTable::nobody
                                      : static_cast<std::uint32_t>(uniform(random, 0, routes - 1)));
  return table;
}

/// One delivery; every promise is checked after every event. Returns the number of flushes.
std::uint64_t deliver(std::mt19937_64& random, FlushAssembly& assembly, const sync::RouteTable& table,
                      std::uint64_t cap, std::size_t limit) {
  const std::vector<Buffer> pieces = random_pieces(random, limit);
  const auto route_of = [&](std::size_t piece) {
    return table.route_of_block[delta::peek_piece(pieces[piece])->block];
  };
  const auto routed = [&](std::size_t first, std::size_t end) {
    std::uint64_t bytes = 0;
    for (std::size_t piece = first; piece < end; ++piece)
      bytes += route_of(piece) == sync::RouteTable::nobody ? 0 : pieces[piece].size();
    return bytes;
  };
  REQUIRE(assembly.begin() == 0); // the last delivery was taken wholly
  std::size_t given = 0;          // pieces that went in
  std::size_t taken = 0;          // pieces that were copied, or that nobody wants
  std::vector<std::size_t> came(
    table.workers.size()); // a route: pieces up to this one came out, where they are its own
  std::uint64_t bytes_in = 0, bytes_out = 0, consumed = 0;
  std::uint64_t flushes = 0;
  std::uint64_t on_wire = 0;
  bool window_end = false; // the last input was the end of a window
  bool finishing = false;

  const auto settle = [&] {
    while (true) {
      auto step = assembly.advance();
      if (!step)
        FAIL(step.error().message);
      consumed += step->consumed;
      for (std::uint64_t bytes = step->consumed; bytes > 0; ++taken)
        bytes -= pieces[taken].size();
      if (step->flush) {
        const FlushAssembly::Flush& flush = *step->flush;
        REQUIRE(on_wire == 0);
        REQUIRE_FALSE(flush.parts.empty());
        REQUIRE(flush.bytes <= cap);
        REQUIRE(flush.sequence == flushes++);
        on_wire = flush.bytes;
        bytes_out += flush.bytes;
        std::uint64_t bytes = 0;
        for (std::size_t p = 0; p < flush.parts.size(); ++p) {
          const auto& [route, payload, count] = flush.parts[p];
          REQUIRE((p == 0 || flush.parts[p - 1].route < route));
          REQUIRE_FALSE(payload.empty());
          bytes += payload.size();
          std::size_t at = 0;
          std::uint64_t found = 0;
          for (; at < payload.size(); ++found) {
            std::size_t& next = came[route];
            while (next < given && route_of(next) != route)
              ++next;
            REQUIRE(next < given);
            const Buffer& piece = pieces[next++];
            REQUIRE(at + piece.size() <= payload.size());
            REQUIRE(std::equal(piece.begin(), piece.end(), payload.begin() + static_cast<std::ptrdiff_t>(at)));
            at += piece.size();
          }
          REQUIRE(count == found);
        }
        REQUIRE(bytes == flush.bytes);
        // Sealed because it was full, or because there is nothing more for now and that was announced.
        const bool full = taken < given && flush.bytes + pieces[taken].size() > cap;
        REQUIRE((full || ((window_end || finishing) && taken == given)));
      }
      REQUIRE(assembly.held_bytes() <= 2 * cap);
      REQUIRE(assembly.held_bytes() == routed(0, taken) - bytes_out + on_wire);
      if (!step->flush && step->consumed == 0)
        break;
    }
    if (on_wire == 0 && (window_end || finishing))
      REQUIRE(bytes_out == routed(0, given));
    // What is assembled is held back only by a full buffer: input waits for nothing else.
    if (consumed < bytes_in) {
      REQUIRE(on_wire > 0);
    }
    REQUIRE(assembly.finished() == (finishing && bytes_out == routed(0, given) && taken == given));
  };

  while (!assembly.finished() || on_wire > 0) {
    const std::uint64_t choice = uniform(random, 0, 5);
    if (choice <= 1 && !finishing) {
      Buffer round;
      for (std::uint64_t count = uniform(random, 0, 4); count > 0 && given < pieces.size(); --count, ++given)
        round.insert(round.end(), pieces[given].begin(), pieces[given].end());
      bytes_in += round.size();
      window_end = false;
      assembly.add_round(std::move(round));
    } else if (choice == 2 && !finishing) {
      window_end = true;
      assembly.window_ended();
    } else if (choice == 3 && given == pieces.size() && !finishing) {
      finishing = true;
      assembly.finish();
    } else if (choice >= 4 && on_wire > 0) {
      on_wire = 0;
      assembly.wire_free();
    } else {
      continue;
    }
    settle();
  }
  REQUIRE(taken == pieces.size());
  REQUIRE(bytes_out == routed(0, pieces.size()));
  REQUIRE(consumed == bytes_in);
  REQUIRE(assembly.flushes() == flushes);
  REQUIRE(assembly.payload_bytes() == bytes_out);
  return flushes;
}

Buffer values_piece(std::uint64_t elements) {
  delta::PieceEncoder encoder(std::size_t{1} << 20);
  const std::vector<std::byte> values(elements * 2);
  encoder.add_values(flat_block(1, DType::bf16, elements), 0, elements, values.data());
  return encoder.take().bytes;
}

} // namespace

TEST_CASE("pieces leave whole and in order in flushes of at most the cap, two buffers at a time") {
  CAPTURE(test::seed());
  std::uint64_t flushes = 0;
  for (std::uint64_t schedule = 0; schedule < 300; ++schedule) {
    CAPTURE(schedule);
    auto random = test::generator(7300000 + schedule);
    const std::size_t limit = delta::least_piece_limit(4) + uniform(random, 0, 500);
    const std::uint64_t cap = limit + uniform(random, 0, 3) * uniform(random, 0, 700);
    const auto routes = random_routes(random);
    FlushAssembly assembly(cap, routes);
    for (std::uint64_t deliveries = uniform(random, 1, 3); deliveries > 0; --deliveries)
      flushes += deliver(random, assembly, *routes, cap, limit);
  }
  fmt::print("flush assembly: seed {}, 300 schedules, {} flushes\n", test::seed(), flushes);
  REQUIRE(flushes > 1000);
}

TEST_CASE("an update without changes finishes without a flush") {
  FlushAssembly assembly(1000, one_route());
  (void)assembly.begin();
  assembly.add_round({});
  assembly.window_ended();
  REQUIRE_FALSE(assembly.advance()->flush);
  REQUIRE_FALSE(assembly.finished());
  assembly.finish();
  REQUIRE_FALSE(assembly.advance()->flush);
  REQUIRE(assembly.finished());
  REQUIRE(assembly.flushes() == 0);
}

TEST_CASE("the end of a window seals at once while the wire is idle, and later while it is busy") {
  FlushAssembly assembly(1000, one_route());
  (void)assembly.begin();
  assembly.add_round(values_piece(10));
  REQUIRE_FALSE(assembly.advance()->flush);
  assembly.window_ended();
  REQUIRE(assembly.advance()->flush->sequence == 0);
  assembly.add_round(values_piece(10));
  assembly.window_ended();
  const auto busy = assembly.advance();
  REQUIRE(busy->consumed > 0);
  REQUIRE_FALSE(busy->flush);
  assembly.wire_free();
  REQUIRE(assembly.advance()->flush->sequence == 1);
}

TEST_CASE("assembly is blocked while input, or a flush that could go, waits for the wire") {
  FlushAssembly assembly(values_piece(10).size() * 3 / 2, one_route()); // room for one piece
  (void)assembly.begin();
  const auto go_on = [&assembly] {
    for (;;) {
      const auto step = assembly.advance();
      REQUIRE(step);
      if (!step->flush && step->consumed == 0)
        return;
    }
  };
  REQUIRE_FALSE(assembly.blocked());
  assembly.add_round(values_piece(10));
  go_on();
  REQUIRE_FALSE(assembly.blocked()); // more may come into this flush
  assembly.add_round(values_piece(10));
  go_on();
  REQUIRE_FALSE(assembly.blocked()); // one is on the wire, and nothing says that the other is complete
  assembly.add_round(values_piece(10));
  go_on();
  REQUIRE(assembly.blocked()); // input
  assembly.wire_free();
  go_on();
  REQUIRE_FALSE(assembly.blocked());
  assembly.finish();
  go_on();
  REQUIRE(assembly.blocked()); // the last flush
  assembly.wire_free();
  go_on();
  REQUIRE(assembly.finished());
  REQUIRE_FALSE(assembly.blocked());
}

TEST_CASE("a delivery that begins anew keeps nothing of the last one") {
  FlushAssembly assembly(1000, one_route());
  (void)assembly.begin();
  assembly.add_round(values_piece(10));
  assembly.window_ended();
  REQUIRE(assembly.advance()->flush);
  assembly.add_round(values_piece(20));
  REQUIRE_FALSE(assembly.advance()->flush);
  REQUIRE(assembly.begin() == 0); // it was copied out, and its credit given back
  REQUIRE(assembly.held_bytes() == 0);
  REQUIRE(assembly.payload_bytes() == 0);
  assembly.finish();
  REQUIRE_FALSE(assembly.advance()->flush);
  REQUIRE(assembly.finished());
}

TEST_CASE("a delivery that is given up anywhere gives back the credit of every byte that was not copied out") {
  CAPTURE(test::seed());
  std::uint64_t given_up = 0, discarded = 0;
  for (std::uint64_t schedule = 0; schedule < 300; ++schedule) {
    CAPTURE(schedule);
    auto random = test::generator(7310000 + schedule);
    const std::size_t limit = delta::least_piece_limit(4) + uniform(random, 0, 200);
    FlushAssembly assembly(limit + uniform(random, 0, 1) * uniform(random, 0, 300), random_routes(random));
    std::uint64_t bytes_in = 0, bytes_back = 0;
    for (std::uint64_t deliveries = uniform(random, 1, 5); deliveries > 0; --deliveries) {
      bool on_wire = false;
      for (std::uint64_t rounds = uniform(random, 0, 6); rounds > 0; --rounds) {
        Buffer round;
        for (const Buffer& piece : random_pieces(random, limit))
          round.insert(round.end(), piece.begin(), piece.end());
        bytes_in += round.size();
        assembly.add_round(std::move(round));
        for (bool moves = true; moves;) {
          const auto step = assembly.advance();
          REQUIRE(step);
          bytes_back += step->consumed;
          on_wire = on_wire || step->flush.has_value();
          moves = step->flush.has_value() || step->consumed > 0;
        }
        if (on_wire && uniform(random, 0, 2) == 0) {
          on_wire = false;
          assembly.wire_free();
        }
      }
      const std::uint64_t back = assembly.begin();
      discarded += back;
      bytes_back += back;
      ++given_up;
      REQUIRE(bytes_back == bytes_in);
      REQUIRE(assembly.held_bytes() == 0);
      REQUIRE(assembly.begin() == 0);
    }
  }
  fmt::print("flush assembly: {} deliveries given up, {} bytes discarded\n", given_up, discarded);
  REQUIRE(discarded > 10000);
}

TEST_CASE("a piece larger than a flush is refused") {
  FlushAssembly assembly(50, one_route());
  (void)assembly.begin();
  assembly.add_round(values_piece(100));
  const auto step = assembly.advance();
  REQUIRE_FALSE(step);
  REQUIRE(step.error().code == Code::internal);
  REQUIRE_THAT(step.error().message, test::contains("flush of 50"));
}

TEST_CASE("a round that ends inside a piece is refused") {
  FlushAssembly assembly(1000, one_route());
  (void)assembly.begin();
  Buffer round = values_piece(100);
  round.pop_back();
  assembly.add_round(std::move(round));
  REQUIRE_FALSE(assembly.advance());
}
