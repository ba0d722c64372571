// Contract: src/config/units.hpp.
#include "config/units.hpp"

#include "catch.hpp"
#include "random.hpp"

namespace deltawire::config {

using namespace std::chrono_literals;

TEST_CASE("byte sizes are exact in every unit") {
  struct Case {
    const char* text;
    std::uint64_t bytes;
  };
  for (const Case& c : {Case{"7B", 7},
                        {"0B", 0},
                        {"2KiB", 2048},
                        {"100KB", 100'000},
                        {"3MB", 3'000'000},
                        {"64MiB", 67'108'864},
                        {"64 MiB", 67'108'864},
                        {"5GB", 5'000'000'000},
                        {"1GiB", 1'073'741'824},
                        {"1.5GiB", 1'610'612'736},
                        {"0.000001MB", 1},
                        {"2TB", 2'000'000'000'000},
                        {"1TiB", 1'099'511'627'776},
                        {"9223372036854775807B", 9'223'372'036'854'775'807ull}}) {
    CAPTURE(c.text);
    auto parsed = parse_byte_size(c.text);
    REQUIRE(parsed);
    CHECK(*parsed == c.bytes);
  }
}

TEST_CASE("durations are exact in every unit") {
  struct Case {
    const char* text;
    std::chrono::nanoseconds duration;
  };
  for (const Case& c : {Case{"20s", 20s},
                        {"500ms", 500ms},
                        {"10min", 10min},
                        {"1h", 1h},
                        {"1.5s", 1500ms},
                        {"0.25ms", 250us},
                        {"17us", 17us},
                        {"3ns", 3ns},
                        {"0s", 0s},
                        {"8760h", 8760h}}) {
    CAPTURE(c.text);
    auto parsed = parse_duration(c.text);
    REQUIRE(parsed);
    CHECK(*parsed == c.duration);
  }
}

TEST_CASE("byte sizes that cannot be right are refused with the reason") {
  struct Case {
    const char* text;
    const char* message;
  };
  for (const Case& c :
       {Case{"", "\"\" does not start with a number; write it like \"64MiB\""},
        {"-1B", "\"-1B\" is negative"},
        {"MiB", "\"MiB\" does not start with a number; write it like \"64MiB\""},
        {".5MiB", "\".5MiB\" does not start with a number; write it like \"64MiB\""},
        {"64", "\"64\" has no unit; write it like \"64MiB\" (units: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB)"},
        {"64mib", "\"64mib\" has the unknown unit \"mib\"; known: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"},
        {"64MiB ", "\"64MiB \" has the unknown unit \"MiB \"; known: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"},
        {"1.GiB", "\"1.GiB\" has no digit after the point"},
        {"1.2345678GiB", "\"1.2345678GiB\" has more than 6 decimals"},
        {"0.3KiB", "\"0.3KiB\" is not a whole number of bytes"},
        {"1.5B", "\"1.5B\" is not a whole number of bytes"},
        {"9223372036854775808B", "\"9223372036854775808B\" is too large"},
        {"9223372.9TB", "\"9223372.9TB\" is too large"},
        {"8388608TiB", "\"8388608TiB\" is too large"},
        {"99999999999999999999999999KiB", "\"99999999999999999999999999KiB\" is too large"}}) {
    CAPTURE(c.text);
    auto parsed = parse_byte_size(c.text);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().message == c.message);
  }
}

TEST_CASE("durations that cannot be right are refused with the reason") {
  struct Case {
    const char* text;
    const char* message;
  };
  for (const Case& c : {Case{"20", "\"20\" has no unit; write it like \"20s\" (units: ns, us, ms, s, min, h)"},
                        {"-5s", "\"-5s\" is negative"},
                        {"10m", "\"10m\" has the unknown unit \"m\"; known: ns, us, ms, s, min, h"},
                        {"0.5ns", "\"0.5ns\" is not a whole number of nanoseconds"},
                        {"8761h", "\"8761h\" is too large"},
                        {"8760.5h", "\"8760.5h\" is too large"}}) {
    CAPTURE(c.text);
    auto parsed = parse_duration(c.text);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().message == c.message);
  }
}

TEST_CASE("the shortest text of a size or duration reads back to the same value") {
  CHECK(byte_size_text(64u << 20) == "64MiB");
  CHECK(byte_size_text(1500) == "1500B");
  CHECK(byte_size_text(0) == "0B");
  CHECK(duration_text(90s) == "90s");
  CHECK(duration_text(1500ms) == "1500ms");
  CHECK(duration_text(10min) == "10min");

  CAPTURE(test::seed());
  auto random = test::generator(1);
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t bytes = random() >> (1 + random() % 63);
    CAPTURE(bytes);
    auto size = parse_byte_size(byte_size_text(bytes));
    REQUIRE(size);
    CHECK(*size == bytes);

    const auto ns = static_cast<std::int64_t>(random() % 31'536'000'000'000'000ull);
    auto duration = parse_duration(duration_text(std::chrono::nanoseconds{ns}));
    REQUIRE(duration);
    CHECK(duration->count() == ns);
  }
}

TEST_CASE("random decimals of a binary unit are accepted exactly where they are whole bytes") {
  CAPTURE(test::seed());
  auto random = test::generator(2);
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t whole = random() % 1000;
    const std::uint64_t thousandths = random() % 1000;
    const std::string text = fmt::format("{}.{:03}MiB", whole, thousandths);
    CAPTURE(text);
    const std::uint64_t thousand_times = (whole * 1000 + thousandths) * 1'048'576; // independent: one multiplication
    auto parsed = parse_byte_size(text);
    REQUIRE(parsed.has_value() == (thousand_times % 1000 == 0));
    if (parsed)
      CHECK(*parsed == thousand_times / 1000);
  }
}

} // namespace deltawire::config
