// Contract of sync/exported_memory.hpp, in random runs against an oracle that keeps the whole story: memory is written
// only when every importer has returned every loan or is gone, freed only when none has it mapped, and who is late is
// named once.
#include "catch.hpp"
#include "random.hpp"
#include "refusal.hpp"
#include "text_matchers.hpp"

#include "sync/exported_memory.hpp"

#include <fmt/format.h>

#include <set>

using namespace deltawire;
using sync::ExportedMemory;

TEST_CASE("memory is kept for as long as anybody may read it, whatever importers do") {
  CAPTURE(test::seed());
  std::uint64_t loans = 0, late = 0, freed = 0, refused = 0;
  for (std::uint64_t run = 0; run < 1000; ++run) {
    CAPTURE(run);
    auto random = test::generator(9400000 + run);
    const auto upto = [&](std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(0, most)(random); };
    const std::uint64_t limit = 1 + upto(20);
    ExportedMemory memory("the memory", limit);
    // The oracle: pairs (importer, loan) that are out, who has it mapped, and ticks since the last question to all.
    std::set<std::pair<std::uint32_t, std::uint64_t>> out;
    std::set<std::uint32_t> mapped;
    std::uint64_t loan = 0, waited = 0;
    bool freeing = false, told = false;
    for (int step = 0; step < 300; ++step) {
      const auto importer = static_cast<std::uint32_t>(upto(4));
      const bool is_mapped = mapped.contains(importer);
      switch (upto(9)) {
      case 0: {
        const bool may = !freeing && !is_mapped;
        REQUIRE(memory.exported_to(importer).has_value() == may);
        if (may)
          mapped.insert(importer);
        break;
      }
      case 1: {
        const auto lent = memory.lend();
        REQUIRE(lent.has_value() == (!freeing && out.empty()));
        if (!lent) {
          ++refused;
          break;
        }
        REQUIRE(*lent == ++loan);
        for (const std::uint32_t one : mapped)
          out.emplace(one, loan);
        waited = 0;
        told = false;
        ++loans;
        break;
      }
      case 2:
      case 3:
      case 4: {
        // Mostly the newest one; answers may come twice, or be of a loan that never was.
        const std::uint64_t number = upto(9) == 0 ? upto(loan + 1) : loan;
        REQUIRE(memory.returned(importer, number).has_value() == (is_mapped && number > 0 && number <= loan));
        out.erase({importer, number});
        break;
      }
      case 5:
        if (upto(5) == 0) {
          memory.gone(importer);
          mapped.erase(importer);
          std::erase_if(out, [importer](const auto& one) { return one.first == importer; });
        }
        break;
      case 6:
        if (upto(25) == 0) {
          if (!freeing) {
            waited = 0;
            told = false;
          }
          memory.begin_free();
          freeing = true;
        }
        break;
      case 7: {
        const bool may = freeing && is_mapped;
        REQUIRE(memory.unmapped(importer).has_value() == may);
        if (may) {
          mapped.erase(importer);
          std::erase_if(out, [importer](const auto& one) { return one.first == importer; });
        }
        break;
      }
      default: {
        ++waited;
        std::set<std::uint32_t> holding;
        for (const auto& one : out)
          holding.insert(one.first);
        if (freeing)
          holding = mapped;
        const auto failure = memory.tick();
        REQUIRE(failure.has_value() == (!told && !holding.empty() && waited > limit));
        if (!failure)
          break;
        told = true;
        ++late;
        CHECK(failure->code == Code::timed_out);
        for (std::uint32_t one = 0; one < 5; ++one)
          REQUIRE((failure->message.find(fmt::format("importer {}", one)) != std::string::npos) ==
                  holding.contains(one));
      }
      }
      REQUIRE(memory.may_write() == (!freeing && out.empty()));
      REQUIRE(memory.may_free() == (freeing && mapped.empty()));
    }
    freed += memory.may_free() ? 1 : 0;
  }
  fmt::print("exported memory: seed {}, {} loans, {} refused, {} times late, {} freed\n", test::seed(), loans, refused,
             late, freed);
  REQUIRE(loans > 5000);
  REQUIRE(refused > 1000);
  REQUIRE(late > 500);
  REQUIRE(freed > 100);
}

TEST_CASE("refusals name the memory and the importer") {
  ExportedMemory memory("the staging memory of worker 3", 5);
  REQUIRE(memory.exported_to(1));
  REQUIRE(memory.lend());
  test::check_refused(memory.lend(), Code::call_order, {"the staging memory of worker 3", "before it was returned"});
  test::check_refused(memory.returned(2, 1), Code::invalid_input, {"worker 3", "importer 2"});
  test::check_refused(memory.returned(1, 2), Code::invalid_input, {"importer 1", "loan 2"});
  test::check_refused(memory.unmapped(1), Code::invalid_input, {"importer 1", "not asked"});
  test::check_refused(memory.exported_to(1), Code::call_order, {"importer 1", "twice"});
  memory.begin_free();
  test::check_refused(memory.exported_to(2), Code::call_order, {"importer 2", "freed"});
  test::check_refused(memory.lend(), Code::call_order, {"while it is freed"});
}
