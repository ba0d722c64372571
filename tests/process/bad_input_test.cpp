// What the command refuses before it starts anything: exit status, a message that names the culprit, nothing on
// standard output.

#include "catch.hpp"
#include "checkpoint_files.hpp"
#include "command.hpp"

#include <filesystem>

using namespace deltawire::test;
using Catch::Matchers::Contains;

namespace {

/// A good topology and two good checkpoints, to be broken one at a time.
struct Case {
  Scratch scratch;
  std::string topology = scratch.write("small.toml", small_topology);
  std::string first = scratch.write("first.safetensors", file_of(small_model(1)));
  std::string second = scratch.write("second.safetensors", file_of(small_model(2)));

  [[nodiscard]] Ended replay(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"replay", topology, "--checkpoints", first, second};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_command(arguments);
  }

  void second_is(const std::string& content) const { (void)scratch.write("second.safetensors", content); }
};

void require_refused(const Ended& ended, int status) {
  INFO(ended.err);
  CHECK(ended.status == status);
  CHECK(ended.out.empty());
  CHECK_THAT(ended.err, Catch::Matchers::StartsWith("deltawire: "));
}

#define REQUIRE_REFUSED(ended, status, ...)                                                                            \
  do {                                                                                                                 \
    const Ended refused = (ended);                                                                                     \
    require_refused(refused, status);                                                                                  \
    for (const std::string& part : std::vector<std::string>{__VA_ARGS__})                                              \
      CHECK_THAT(refused.err, Contains(part));                                                                         \
  } while (false)

} // namespace

TEST_CASE("a tensor that the second file lacks is named with its file") {
  Case c;
  c.second_is(file_of({small_model(2)[0]}));
  REQUIRE_REFUSED(c.replay(), 2, c.second, "\"a\"", "missing");
}

TEST_CASE("a tensor that only the second file has is named with its file") {
  Case c;
  auto tensors = small_model(2);
  tensors.push_back({"extra", "U8", {2}, "xy"});
  c.second_is(file_of(tensors));
  REQUIRE_REFUSED(c.replay(), 2, c.second, "\"extra\"", "new");
}

TEST_CASE("a tensor whose shape changes is named with both shapes") {
  Case c;
  auto tensors = small_model(2);
  tensors[1].shape = {3, 4};
  c.second_is(file_of(tensors));
  REQUIRE_REFUSED(c.replay(), 2, c.second, "\"a\"", "[3, 4]", "[4, 3]");
}

TEST_CASE("a tensor whose dtype changes is named with both dtypes") {
  Case c;
  auto tensors = small_model(2);
  tensors[1].dtype = "F16";
  c.second_is(file_of(tensors));
  REQUIRE_REFUSED(c.replay(), 2, c.second, "\"a\"", "F16", "BF16");
}

TEST_CASE("all differences between files are named at once") {
  Case c;
  c.second_is(file_of({FileTensor{"b", "F32", {1, 2}, std::string(8, 'x')}}));
  REQUIRE_REFUSED(c.replay(), 2, "\"a\"", "\"b\"");
}

TEST_CASE("a truncated file is refused") {
  Case c;
  const std::string whole = file_of(small_model(2));
  for (const std::size_t length : {std::size_t{0}, std::size_t{5}, std::size_t{40}, whole.size() - 1}) {
    CAPTURE(length);
    c.second_is(whole.substr(0, length));
    REQUIRE_REFUSED(c.replay(), 2, c.second);
  }
}

TEST_CASE("a header that lies is refused") {
  Case c;
  const std::string data(8, 'x');
  for (
    const std::string header : {
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4000]}})",                  // past the end
      R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",                     // shape and range
      R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})", // overflow
      R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})",                    // negative
      R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})",                     // no such dtype
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",                     // hole
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      R"(["a"])",
      R"({"a":)",
    }) {
    CAPTURE(header);
    c.second_is(file_of(header, data));
    REQUIRE_REFUSED(c.replay(), 2, c.second);
  }
  c.second_is(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8) + "{}"); // a length beyond any file
  REQUIRE_REFUSED(c.replay(), 2, c.second);
}

TEST_CASE("files that do not exist are named") {
  Case c;
  REQUIRE_REFUSED(run_command({"replay", c.topology, "--checkpoints", c.first, c.scratch.path("gone")}), 2,
                  c.scratch.path("gone"));
  REQUIRE_REFUSED(run_command({"replay", c.scratch.path("gone.toml"), "--checkpoints", c.first}), 2,
                  c.scratch.path("gone.toml"));
}

TEST_CASE("a checkpoint of nothing, or a device for a topology, is refused: there is nothing to prove") {
  const Case c;
  const std::string none = c.scratch.write("none.safetensors", file_of(std::vector<FileTensor>{}));
  const std::string empty = c.scratch.write("empty.safetensors", file_of({{"a", "F32", {0, 5}, ""}}));
  for (const std::vector<std::string>& mode : {std::vector<std::string>{}, std::vector<std::string>{"--processes"}}) {
    std::vector<std::string> arguments{"replay", c.topology, "--checkpoints", none};
    arguments.insert(arguments.end(), mode.begin(), mode.end());
    REQUIRE_REFUSED(run_command(arguments), 2, none, "no tensors");
    arguments[3] = empty;
    REQUIRE_REFUSED(run_command(arguments), 2, "no rank provides an element", "nothing to deliver");
    arguments[1] = "/dev/null";
    REQUIRE_REFUSED(run_command(arguments), 2, "/dev/null", "a device");
  }
  REQUIRE_REFUSED(run_command({"diff", none, none}), 2, none, "no tensors");
  REQUIRE_REFUSED(run_command({"plan", c.topology, "--checkpoint", empty}), 2, "nothing to deliver");
}

TEST_CASE("a slot that is listed as unused and read all the same is named") {
  Case c;
  const auto with_unused = [&](const char* list) {
    return c.scratch.write("unused.toml", std::string("[worker]\nunused = ") + list +
                                            "\n[[worker.map]]\nparameter = \"mine\"\nslot = \"b\"\n");
  };
  const std::string file = c.scratch.write("one.safetensors", file_of(small_model(1)));
  REQUIRE_REFUSED(run_command({"replay", with_unused("[\"a\", \"b\"]"), "--checkpoints", file}), 2, "worker.unused",
                  "lists slot \"b\"");
  const Ended accepted = run_command({"replay", with_unused("[\"a\"]"), "--quiet", "--checkpoints", file});
  INFO(accepted.err);
  CHECK(accepted.status == 0);
}

TEST_CASE("a folder where a file is expected is refused by every command that reads one") {
  Case c;
  const std::string folder = c.scratch.path("folder");
  std::filesystem::create_directory(folder);
  const std::string run = c.scratch.path("run.json");
  REQUIRE(c.replay({"--quiet", "--report", run}).status == 0);
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
         {"replay", folder, "--checkpoints", c.first},
         {"replay", c.topology, "--checkpoints", folder},
         {"replay", c.topology, "--checkpoints", c.first, "--set", "transport.secret_file=" + folder, "--processes"},
         {"trainer", folder, "--rank", "0", "--checkpoints", c.first},
         {"worker", folder, "--index", "0"},
         {"plan", folder},
         {"plan", c.topology, "--checkpoint", folder},
         {"diff", c.first, folder},
         {"inspect", folder},
         {"report", folder, "-o", c.scratch.path("page.html")},
         {"report", run, "--trace", folder, "-o", c.scratch.path("page.html")}}) {
    CAPTURE(arguments);
    REQUIRE_REFUSED(run_command(arguments), 2, folder);
  }
  REQUIRE_REFUSED(run_command({"report", run, "-o", folder}), 4, folder);
}

TEST_CASE("an unknown key of the topology is named with file and line") {
  Case c;
  (void)c.scratch.write("small.toml", std::string(small_topology) + "[actors]\nflush_buckt = { cap = \"1MiB\" }\n");
  REQUIRE_REFUSED(c.replay(), 2, c.topology + ":18", "flush_buckt");
}

TEST_CASE("a key that this version lacks is refused, not ignored") {
  Case c;
  (void)c.scratch.write("small.toml", std::string(small_topology) + "[actors]\nsnapshotter = { tier = \"pinned\" }\n");
  REQUIRE_REFUSED(c.replay(), 2, c.topology, "actors.snapshotter.tier", "not supported yet");
}

TEST_CASE("a rule that the tensors do not fit is refused before anything starts") {
  Case c;
  SECTION("a cut of a dim that the tensor lacks") {
    (void)c.scratch.write("small.toml", std::string(small_topology) +
                                          "[[worker.placement]]\nparameter = \"b\"\nshard = [\"tp:3\"]\n");
    REQUIRE_REFUSED(c.replay(), 2, "b", "tp");
  }
  SECTION("elements that no map covers") {
    (void)c.scratch.write("small.toml", std::string(small_topology) +
                                          "[[trainer.map]]\nparameter = \"a\"\nslot = \"a\"\nslice = \"[0:3, :]\"\n");
    REQUIRE_REFUSED(c.replay(), 2, "a");
  }
}

TEST_CASE("a rule that names a tensor nobody has is refused") {
  Case c;
  std::string with_typo = small_topology;
  with_typo += "\n[[worker.parameter]]\nname = \"typo\"\npadding = true\n";
  c.topology = c.scratch.write("typo.toml", with_typo);
  REQUIRE_REFUSED(c.replay(), 2, "typo.toml", "no parameter is named 'typo'");
}

TEST_CASE("port 0 is refused where processes are started one by one") {
  Case c;
  const std::vector<std::string> master{"--set", "transport.master=127.0.0.1:0"};
  std::vector<std::string> worker{"worker", c.topology, "--index", "0"};
  worker.insert(worker.end(), master.begin(), master.end());
  REQUIRE_REFUSED(run_command(worker), 2, "transport.master", "port 0");
  std::vector<std::string> trainer{"trainer", c.topology, "--rank", "0"};
  trainer.insert(trainer.end(), master.begin(), master.end());
  trainer.insert(trainer.end(), {"--checkpoints", c.first, c.second});
  REQUIRE_REFUSED(run_command(trainer), 2, "transport.master", "port 0");
}

TEST_CASE("a bad --set is named as it was written") {
  Case c;
  REQUIRE_REFUSED(c.replay({"--set", "actors.flush_bucket.cap"}), 2, "actors.flush_bucket.cap");
  REQUIRE_REFUSED(c.replay({"--set", "actors.flush_bucket.cup=7B"}), 2, "--set actors.flush_bucket.cup=7B");
  REQUIRE_REFUSED(c.replay({"--set", "actors.flush_bucket.cap=7 furlongs"}), 2,
                  "--set actors.flush_bucket.cap=7 furlongs");
}

TEST_CASE("bad usage is refused") {
  Case c;
  REQUIRE_REFUSED(c.replay({"--no-such-option"}), 2, "--no-such-option");
  REQUIRE_REFUSED(run_command({"frobnicate"}), 2, "unknown command \"frobnicate\"");
  REQUIRE_REFUSED(run_command({}), 2);
  REQUIRE_REFUSED(run_command({"replay", c.topology}), 2, "--checkpoints");
  REQUIRE_REFUSED(c.replay({"--dump-each"}), 2, "--dump");
  REQUIRE_REFUSED(run_command({"trainer", c.topology, "--checkpoints", c.first}), 2, "--rank");
  REQUIRE_REFUSED(run_command({"trainer", c.topology, "--rank", "2", "--checkpoints", c.first}), 2, "--rank 2");
  REQUIRE_REFUSED(run_command({"trainer", c.topology, "--rank", "-1", "--checkpoints", c.first}), 2, "--rank");
  REQUIRE_REFUSED(run_command({"worker", c.topology, "--index", "2"}), 2, "--index 2");
}

TEST_CASE("a transport that does not fit the mode is refused") {
  Case c;
  REQUIRE_REFUSED(c.replay({"--set", "actors.sender.transport=tcp"}), 2, "actors.sender.transport", "--processes");
  REQUIRE_REFUSED(c.replay({"--processes", "--set", "actors.sender.transport=inproc"}), 2, "inproc", "--processes");
}

TEST_CASE("a port that is taken is named") {
  Case c;
  const TakenPort taken;
  const std::string master = "127.0.0.1:" + std::to_string(taken.port());
  REQUIRE_REFUSED(c.replay({"--processes", "--set", "transport.master=" + master}), 3, master, "address in use");
}

TEST_CASE("outputs that cannot be written are found before the run") {
  Case c;
  REQUIRE_REFUSED(c.replay({"--dump", c.first + "/dumps"}), 4, c.first + "/dumps");
  REQUIRE_REFUSED(c.replay({"--report", c.scratch.path("none/report.json")}), 4, c.scratch.path("none/report.json"));
}

TEST_CASE("help and version go to standard output") {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
         {"--help"}, {"--version"}, {"replay", "--help"}, {"trainer", "--help"}, {"worker", "--help"}}) {
    const Ended ended = run_command(arguments);
    CHECK(ended.status == 0);
    CHECK(ended.err.empty());
    CHECK_THAT(ended.out, Contains(arguments.back() == "--version" ? "deltawire 0." : "--help"));
  }
}
