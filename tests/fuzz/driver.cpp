// A fuzz target as an ordinary test: every file of its corpus, which the target accepts where its name starts with
// "good", and refuses where with "bad"; then seeded mutations of them, of which only the target's own checks are asked.
//
//   driver CORPUS [MUTATIONS]
//
// A failure names the seed (DELTAWIRE_TEST_SEED repeats it) and leaves the input as hexadecimal on standard error.
#include "fuzz/target.hpp"
#include "random.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

struct Seed {
  std::string name;
  Bytes bytes;
};

constexpr std::size_t most_bytes = 4096; // of a seed; mutants may be twice as long

const Bytes* current = nullptr;

/// Only what a signal handler may do.
void show_input(int signal) {
  constexpr char digits[] = "0123456789abcdef";
  const auto say = [](const char* text, std::size_t size) { static_cast<void>(!::write(STDERR_FILENO, text, size)); };
  constexpr char title[] = "\nthe input, in hexadecimal:\n";
  say(title, sizeof title - 1);
  for (const std::uint8_t byte : *current) {
    const char pair[] = {digits[byte >> 4], digits[byte & 15]};
    say(pair, sizeof pair);
  }
  say("\n", 1);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

std::vector<Seed> read_corpus(const std::string& folder) {
  std::vector<Seed> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    seeds.push_back({entry.path().filename().string(), Bytes(std::istreambuf_iterator<char>(file), {})});
  }
  std::ranges::sort(seeds, {}, &Seed::name);
  return seeds;
}

void run(const Bytes& bytes) {
  current = &bytes;
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

/// Whether the seed is taken for what its name says.
bool is_right(const Seed& seed) {
  current = &seed.bytes;
  run(seed.bytes);
  const bool accepted = deltawire::fuzz::accepts(std::as_bytes(std::span(seed.bytes)));
  const bool good = seed.name.starts_with("good");
  if (accepted == good && (good || seed.name.starts_with("bad")) && seed.bytes.size() < most_bytes)
    return true;
  std::printf("%s: %s, of %zu bytes; its name must start with good or bad, it must be that and below %zu bytes\n",
              seed.name.c_str(), accepted ? "accepted" : "refused", seed.bytes.size(), most_bytes);
  return false;
}

class Mutator {
public:
  Mutator(const std::vector<Seed>& seeds, std::mt19937_64 random) : seeds_(seeds), random_(random) {}

  Bytes next() {
    Bytes bytes = any();
    for (auto edits = 1 + random_() % 5; edits > 0; --edits)
      edit(bytes);
    if (bytes.size() > 2 * most_bytes)
      bytes.resize(2 * most_bytes);
    return bytes;
  }

private:
  const Bytes& any() { return seeds_[random_() % seeds_.size()].bytes; }
  std::size_t position(const Bytes& bytes) { return random_() % (bytes.size() + 1); }
  static auto at(Bytes& bytes, std::size_t index) { return bytes.begin() + static_cast<std::ptrdiff_t>(index); }

  void edit(Bytes& bytes) {
    const std::size_t where = position(bytes);
    const std::size_t many = std::min<std::size_t>(bytes.size() - where, random_() % 9);
    switch (random_() % 8) {
    case 0:
      if (where < bytes.size())
        bytes[where] ^= static_cast<std::uint8_t>(1 << random_() % 8);
      break;
    case 1:
      if (where < bytes.size())
        bytes[where] = static_cast<std::uint8_t>(random_());
      break;
    case 2:
      bytes.erase(at(bytes, where), at(bytes, where + many));
      break;
    case 3: {
      const Bytes copied(at(bytes, where), at(bytes, where + many));
      const std::size_t to = position(bytes);
      bytes.insert(at(bytes, to), copied.begin(), copied.end());
      break;
    }
    case 4:
      bytes.resize(where);
      break;
    case 5: { // the head of this, the tail of another
      const Bytes& other = any();
      bytes.resize(where);
      const std::size_t from = random_() % (other.size() + 1);
      bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      break;
    }
    case 6: { // a number that limits are near to
      constexpr std::array<std::uint64_t, 8> numbers = {0, 1, 0x7f, 0xff, 0xffff, 0x7fffffff, ~0ull, ~0ull >> 1};
      const std::uint64_t number = numbers[random_() % numbers.size()];
      for (std::size_t i = 0; i < std::size_t{1} << random_() % 4 && where + i < bytes.size(); ++i)
        bytes[where + i] = static_cast<std::uint8_t>(number >> (8 * i));
      break;
    }
    default: { // a number in text
      constexpr std::array<const char*, 8> texts = {"0", "-1", "999999999999999999", "9223372036854775807", "[", "\"",
                                                    ":", "{e}"};
      const std::string text = texts[random_() % texts.size()];
      bytes.insert(at(bytes, where), text.begin(), text.end());
    }
    }
  }

  const std::vector<Seed>& seeds_;
  std::mt19937_64 random_;
};

} // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: %s CORPUS [MUTATIONS]\n", argv[0]);
    return 2;
  }
  const std::vector<Seed> seeds = read_corpus(argv[1]);
  const unsigned long mutations = argc == 3 ? std::strtoul(argv[2], nullptr, 10) : 20000;
  if (seeds.empty()) {
    std::fprintf(stderr, "%s: no seed\n", argv[1]);
    return 2;
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGBUS, SIGILL})
    if (const auto before = std::signal(signal, show_input); before != SIG_DFL)
      std::signal(signal, before); // a sanitizer's, which reports better
  run({});
  const auto wrong = std::ranges::count_if(seeds, [](const Seed& seed) { return !is_right(seed); });
  std::printf("%zu seeds, %lu mutations (seed %llu)\n", seeds.size(), mutations,
              static_cast<unsigned long long>(deltawire::test::seed()));
  std::fflush(stdout);
  Mutator mutator(seeds, deltawire::test::generator(11));
  for (unsigned long i = 0; i < mutations; ++i)
    run(mutator.next());
  return wrong == 0 ? 0 : 1;
}
