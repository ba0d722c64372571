// `deltawire diff` against figures worked out here element by element, over random tensors of every dtype; by hand
// where bits and values part; and what it refuses.

#include "catch.hpp"
#include "checkpoint_files.hpp"
#include "command.hpp"
#include "random.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

using namespace deltawire::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

__extension__ using Wide = __int128;

struct Kind {
  const char* dtype;
  std::size_t size;
  enum class Order { whole, whole_signed, floating } order;
};

constexpr Kind kinds[] = {
  {"BOOL", 1, Kind::Order::whole},       {"U8", 1, Kind::Order::whole},         {"U16", 2, Kind::Order::whole},
  {"U32", 4, Kind::Order::whole},        {"U64", 8, Kind::Order::whole},        {"I8", 1, Kind::Order::whole_signed},
  {"I16", 2, Kind::Order::whole_signed}, {"I32", 4, Kind::Order::whole_signed}, {"I64", 8, Kind::Order::whole_signed},
  {"F16", 2, Kind::Order::floating},     {"BF16", 2, Kind::Order::floating},    {"F32", 4, Kind::Order::floating},
  {"F64", 8, Kind::Order::floating},     {"F8_E4M3", 1, Kind::Order::floating}, {"F8_E5M2", 1, Kind::Order::floating},
};

const Kind& kind_of(const std::string& dtype) {
  for (const Kind& kind : kinds)
    if (dtype == kind.dtype)
      return kind;
  throw std::runtime_error("no such dtype: " + dtype);
}

std::uint64_t bits_at(const std::string& data, std::size_t index, std::size_t size) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, data.data() + index * size, size);
  return bits;
}

void put_bits(std::string& data, std::size_t index, std::size_t size, std::uint64_t bits) {
  std::memcpy(data.data() + index * size, &bits, size);
}

/// An element's rank: floats count up from +0.0 and down from -0.0, which is -1.
Wide rank_of(std::uint64_t bits, const Kind& kind) {
  const std::size_t width = 8 * kind.size;
  const bool top = (bits >> (width - 1)) != 0;
  const Wide half = Wide{1} << (width - 1);
  switch (kind.order) {
  case Kind::Order::whole:
    return bits;
  case Kind::Order::whole_signed:
    return top ? Wide{bits} - 2 * half : Wide{bits};
  case Kind::Order::floating:
    return top ? -1 - (Wide{bits} - half) : Wide{bits};
  }
  return 0;
}

/// What is counted of one tensor or of several.
struct Oracle {
  std::uint64_t elements = 0;
  std::vector<std::uint64_t> gaps;
  std::vector<Wide> differences;
  std::uint64_t dense = 0;
  std::uint64_t bitmap = 0;
  std::uint64_t u32_index = 0;
  std::uint64_t at_most_u8_gaps = 0; ///< all in one piece
  std::uint64_t values = 0;          ///< bytes of changed elements alone

  void add(const FileTensor& before, const FileTensor& after) {
    const Kind& kind = kind_of(before.dtype);
    const std::size_t count = before.data.size() / kind.size;
    std::uint64_t changed = 0;
    std::uint64_t codes = 0;
    std::uint64_t heads = 0;
    std::size_t next = 0;
    std::size_t in_tile = 0; ///< where the codes of a tile stand
    std::size_t first = 0;
    std::size_t last = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (before.data.compare(i * kind.size, kind.size, after.data, i * kind.size, kind.size) == 0)
        continue;
      gaps.push_back(i - next);
      if (changed == 0)
        first = i;
      if (changed == 0 || i / 4096 != last / 4096) {
        heads += 2; // the length of its codes
        in_tile = changed == 0 ? i : i / 4096 * 4096;
      }
      codes += (i - in_tile) / 255 + 1;
      in_tile = i + 1;
      next = i + 1;
      last = i;
      ++changed;
      differences.push_back(rank_of(bits_at(after.data, i, kind.size), kind) -
                            rank_of(bits_at(before.data, i, kind.size), kind));
    }
    elements += count;
    dense += before.data.size();
    if (changed == 0)
      return;
    heads += 2 * (last / 4096 - first / 4096 + 1);
    const auto varint = [](std::uint64_t value) {
      std::uint64_t bytes = 1;
      for (; value >= 128; value >>= 7)
        ++bytes;
      return bytes;
    };
    const std::uint64_t body = heads + codes + changed * kind.size;
    at_most_u8_gaps += 1 + varint(first) + varint(last - first + 1) + varint(changed) + varint(body) + body;
    bitmap += (count + 7) / 8 + changed * kind.size;
    u32_index += changed * (4 + kind.size);
    values += changed * kind.size;
  }

  template <class Symbol>
  static double entropy_bytes(const std::map<Symbol, std::uint64_t>& counts, double plain_bits, double total) {
    double bits = plain_bits;
    for (const auto& [symbol, count] : counts)
      bits -= static_cast<double>(count) * std::log2(static_cast<double>(count) / total);
    return bits / total / 8;
  }

  void check(const json& told) const {
    const auto total = static_cast<double>(gaps.size());
    CHECK(told.at("elements") == elements);
    CHECK(told.at("changed") == gaps.size());
    CHECK(told.at("density").get<double>() == Approx(elements == 0 ? 0 : total / static_cast<double>(elements)));
    const json& bytes = told.at("bytes");
    CHECK(bytes.at("dense") == dense);
    CHECK(bytes.at("bitmap") == bitmap);
    CHECK(bytes.at("u32_index") == u32_index);
    CHECK(bytes.at("pieces_raw") <= at_most_u8_gaps);
    CHECK(bytes.at("u8_gaps") >= values);
    CHECK(bytes.at("pieces_raw") <= bytes.at("u8_gaps"));
    CHECK(bytes.at("pieces") <= bytes.at("pieces_raw"));
    if (gaps.empty()) {
      CHECK(told.at("gaps").is_null());
      CHECK(told.at("differences").is_null());
      return;
    }
    std::vector<std::uint64_t> sorted = gaps;
    std::sort(sorted.begin(), sorted.end());
    const auto quantile = [&](std::size_t percent) { return sorted[(sorted.size() * percent + 99) / 100 - 1]; };
    const json& gap = told.at("gaps");
    CHECK(gap.at("median") == quantile(50));
    CHECK(gap.at("p90") == quantile(90));
    CHECK(gap.at("p99") == quantile(99));
    CHECK(gap.at("largest") == sorted.back());
    CHECK(
      gap.at("u8_share").get<double>() ==
      Approx(static_cast<double>(std::count_if(sorted.begin(), sorted.end(), [](auto g) { return g < 255; })) / total));
    std::map<std::uint64_t, std::uint64_t> gap_counts;
    for (const std::uint64_t value : gaps)
      ++gap_counts[value];
    CHECK(gap.at("entropy_bytes").get<double>() == Approx(entropy_bytes(gap_counts, 0, total)).margin(1e-12));

    std::map<Wide, std::uint64_t> difference_counts;
    double ones = 0;
    double plain_bits = 0;
    for (const Wide value : differences) {
      ones += value == 1 || value == -1 ? 1 : 0;
      Wide symbol = value;
      const Wide size = value < 0 ? -value : value;
      if (size >= 65536) { // by length and direction; the bits below the top one as they are
        int length = 0;
        while (size >> length != 0)
          ++length;
        symbol = (Wide{1} << 100) * length * (value < 0 ? -1 : 1);
        plain_bits += length - 1;
      }
      ++difference_counts[symbol];
    }
    const json& difference = told.at("differences");
    CHECK(difference.at("one_ulp_share").get<double>() == Approx(ones / total));
    CHECK(difference.at("entropy_bytes").get<double>() ==
          Approx(entropy_bytes(difference_counts, plain_bits, total)).margin(1e-12));
  }
};

struct Pair {
  std::vector<FileTensor> before;
  std::vector<FileTensor> after;

  void add(FileTensor tensor, std::string changed) {
    before.push_back(tensor);
    tensor.data = std::move(changed);
    after.push_back(std::move(tensor));
  }
};

/// Elements of 8, 4, 2 and 1 bytes in this order, so that files are aligned; densities from nothing to everything.
Pair random_pair(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  Pair pair;
  for (const std::size_t size : {8, 4, 2, 1})
    for (const Kind& kind : kinds)
      for (int repeat = 0; repeat < (kind.size == size ? 2 : 0); ++repeat) {
        const std::uint64_t count = below(4) == 0 ? below(3) : below(40'000);
        const std::uint64_t one_in = std::uint64_t{1} << below(15);
        const bool nearby = below(2) == 0;
        std::string data(count * size, '\0');
        for (char& c : data)
          c = static_cast<char>(random());
        std::string changed = data;
        for (std::size_t i = 0; i < count; ++i)
          if (below(one_in) == 0)
            put_bits(changed, i, size,
                     nearby ? bits_at(data, i, size) + (below(2) == 0 ? 1 : ~std::uint64_t{0}) : random());
        pair.add({std::string(kind.dtype) + "." + std::to_string(repeat),
                  kind.dtype,
                  {static_cast<std::int64_t>(count)},
                  data},
                 changed);
      }
  return pair;
}

void check_json(const json& told, const Pair& pair) {
  Oracle total;
  std::map<std::string, Oracle> each;
  for (std::size_t i = 0; i < pair.before.size(); ++i) {
    total.add(pair.before[i], pair.after[i]);
    each[pair.before[i].name].add(pair.before[i], pair.after[i]);
  }
  total.check(told.at("total"));
  REQUIRE(told.at("tensors").size() == each.size());
  std::uint64_t most = ~std::uint64_t{0};
  for (const json& tensor : told.at("tensors")) {
    CAPTURE(tensor.dump());
    each.at(tensor.at("name")).check(tensor);
    CHECK(tensor.at("changed") <= most); // top first
    most = tensor.at("changed");
  }
  for (const FileTensor& tensor : pair.before) {
    const auto found = std::find_if(told.at("tensors").begin(), told.at("tensors").end(),
                                    [&](const json& other) { return other.at("name") == tensor.name; });
    REQUIRE(found != told.at("tensors").end());
    CHECK(found->at("dtype") == tensor.dtype);
    CHECK(found->at("shape") == tensor.shape);
  }
}

json diff_of(const Pair& pair) {
  const Scratch scratch;
  const Ended ended = run_command({"diff", scratch.write("before.safetensors", file_of(pair.before)),
                                   scratch.write("after.safetensors", file_of(pair.after)), "--json"});
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  CHECK(ended.err.empty());
  return json::parse(ended.out);
}

std::string words(std::initializer_list<std::uint16_t> values) {
  std::string data;
  for (const std::uint16_t value : values)
    data.append({static_cast<char>(value & 0xff), static_cast<char>(value >> 8)});
  return data;
}

} // namespace

TEST_CASE("diff tells of random tensors what counting element by element tells") {
  CAPTURE(seed());
  auto random = generator(77);
  for (int round = 0; round < 12; ++round) {
    CAPTURE(round);
    const Pair pair = random_pair(random);
    check_json(diff_of(pair), pair);
  }
}

TEST_CASE("diff compares bits, and orders floats by sign and magnitude") {
  Pair pair;
  //        0.0 -> -0.0, NaN kept, 1.0 -> next up, Inf -> NaN, 1.0 -> previous, -1.0 -> next below, 1.0 -> -1.0,
  //        smallest
  pair.add({"w", "BF16", {8}, words({0x0000, 0x7FC0, 0x3F80, 0x7F80, 0x3F80, 0xBF80, 0x3F80, 0x0001})},
           words({0x8000, 0x7FC0, 0x3F81, 0x7F81, 0x3F7F, 0xBF81, 0xBF80, 0x8001}));
  const json total = diff_of(pair).at("total");
  CHECK(total.at("changed") == 7);
  CHECK(total.at("differences").at("one_ulp_share").get<double>() == Approx(5.0 / 7));
  CHECK(total.at("gaps").at("largest") == 1);
}

TEST_CASE("diff counts the bytes of the product's own pieces") {
  Pair pair;
  std::string before(2 * 5000, '\0');
  std::string after = before;
  after[2 * 4095] = 1;
  after[2 * 4097] = 1;
  pair.add({"w", "BF16", {5000}, before}, after);
  const json bytes = diff_of(pair).at("total").at("bytes");
  CHECK(bytes.at("pieces") == 9);
  CHECK(bytes.at("pieces_raw") == 12);
  CHECK(bytes.at("u32_index") == 12);
  CHECK(bytes.at("bitmap") == 625 + 4);
  CHECK(bytes.at("dense") == 10'000);
}

TEST_CASE("diff of a checkpoint with itself, in any number of files, finds nothing") {
  const Scratch scratch;
  const std::string file = source_path("tests/data/trace/trainer/step-00.safetensors");
  const Ended ended = run_command({"diff", file, file});
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  CHECK_THAT(ended.out, Contains("without a change: 21 of 21 tensors"));

  const auto model = small_model(1); // b, a
  (void)scratch.write("1.safetensors", file_of({model[0]}));
  (void)scratch.write("2.safetensors", file_of({model[1]}));
  const std::string index =
    scratch.write("model.safetensors.index.json",
                  R"({"metadata":{"total_size":32},"weight_map":{"a":"2.safetensors","b":"1.safetensors"}})");
  const std::string whole = scratch.write("whole.safetensors", file_of(model));
  const std::string next = scratch.write("next.safetensors", file_of(small_model(3)));
  for (const std::string& one : {index, scratch.path("")}) {
    CAPTURE(one);
    const Ended same = run_command({"diff", one, whole, "--json"});
    INFO(same.err);
    REQUIRE(same.status == 0);
    CHECK(json::parse(same.out).at("total").at("changed") == 0);
    json sharded = json::parse(run_command({"diff", one, next, "--json"}).out);
    json single = json::parse(run_command({"diff", whole, next, "--json"}).out);
    CHECK(sharded.at("total").at("changed") == 4);
    CHECK(sharded.at("before") == one);
    sharded.erase("before");
    single.erase("before");
    CHECK(sharded == single);
  }
}

TEST_CASE("the table of a diff shows the tensors with the most changes within 120 columns") {
  const std::string before = source_path("tests/data/trace/trainer/step-00.safetensors");
  const std::string after = source_path("tests/data/trace/trainer/step-01.safetensors");
  const json told = json::parse(run_command({"diff", before, after, "--json"}).out);
  const Ended ended = run_command({"diff", before, after, "--top", "3"});
  INFO(ended.err << ended.out);
  REQUIRE(ended.status == 0);
  std::istringstream lines(ended.out);
  for (std::string line; std::getline(lines, line);)
    CHECK(line.size() <= 120);
  CHECK_THAT(ended.out, Contains("28489") && Contains("2.41%") && Contains("not shown: "));
  for (std::size_t i = 0; i < 4; ++i) {
    const std::string name = told.at("tensors").at(i).at("name");
    const std::string end = name.substr(name.size() > 12 ? name.size() - 12 : 0); // long names are cut at their start
    CHECK((ended.out.find(end + " ") != std::string::npos) == (i < 3));
  }
}

TEST_CASE("names that fit no row are cut, and do not reach the terminal as they are") {
  Pair pair;
  pair.add({std::string(200, 'n') + "\x1b[2J\xc3\xa9.end", "U8", {1}, "a"}, "b");
  const Scratch scratch;
  const Ended ended = run_command({"diff", scratch.write("1.safetensors", file_of(pair.before)),
                                   scratch.write("2.safetensors", file_of(pair.after))});
  REQUIRE(ended.status == 0);
  CHECK_THAT(ended.out, Contains("...") && Contains("n?[2J??.end"));
  std::istringstream lines(ended.out);
  for (std::string line; std::getline(lines, line);)
    CHECK(line.size() <= 120);
}

TEST_CASE("diff refuses checkpoints of different tensors and names all differences") {
  const Scratch scratch;
  const auto file = [&](const std::string& name, const std::vector<FileTensor>& tensors) {
    return scratch.write(name, file_of(tensors));
  };
  const std::string before = file("before", {{"a", "F32", {2}, "12345678"},
                                             {"b", "F32", {2}, "12345678"},
                                             {"c", "F32", {2}, "12345678"},
                                             {"same", "U8", {1}, "1"}});
  const std::string after = file("after", {{"b", "I32", {2}, "12345678"},
                                           {"c", "F32", {2, 1}, "12345678"},
                                           {"d", "F32", {2}, "12345678"},
                                           {"same", "U8", {1}, "2"}});
  const Ended ended = run_command({"diff", before, after});
  INFO(ended.err);
  CHECK(ended.status == 2);
  CHECK(ended.out.empty());
  CHECK_THAT(ended.err, Contains("\"a\" is missing") && Contains("\"b\" is I32 [2], but F32 [2]") &&
                          Contains("\"c\" is F32 [2, 1], but F32 [2]") && Contains("\"d\" is new") &&
                          !Contains("same\""));
  const Ended gone = run_command({"diff", before, scratch.path("gone")});
  CHECK(gone.status == 2);
  CHECK_THAT(gone.err, Contains(scratch.path("gone")));
  CHECK(run_command({"diff", before}).status == 2);
  CHECK(run_command({"diff", before, before, after}).status == 2);
  for (const char* top : {"-1", "1.5", "many", "99999999999999999999999"}) {
    const Ended ended_at_once = run_command({"diff", before, before, "--top", top});
    CHECK(ended_at_once.status == 2);
    CHECK(ended_at_once.out.empty());
    CHECK_THAT(ended_at_once.err, Contains("--top") && Contains(top));
    CHECK(ended_at_once.err.size() < 120); // no range of 300 digits
  }
}

TEST_CASE("a diff that cannot be shown is an output failure") {
  const std::string file = source_path("tests/data/trace/trainer/step-00.safetensors");
  Running out({"diff", file, file}, "/dev/full");
  const Ended ended = out.wait();
  CHECK(ended.status == 4);
  CHECK_THAT(ended.err, Contains("standard output"));
}
