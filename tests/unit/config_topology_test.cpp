// Contract: src/config/topology.hpp. Each rule by an accepted and a refused file; refusals by their whole text, so that
// file, line and key are part of the contract.
#include "config_files.hpp"

#include "catch.hpp"
#include "text_matchers.hpp"

#ifndef DELTAWIRE_TOPOLOGIES
#error "the directory of tools/topologies"
#endif

namespace deltawire::config {

using test::contains;
using test::starts_with;

using namespace std::chrono_literals;

namespace {

constexpr const char* every_supported_key = R"([trainer]
mesh = [["pp", 1], ["fsdp", 4]]
[[trainer.placement]]
parameter = "*.experts.gate_up_proj"
shard = ["fsdp:1"]
[[trainer.placement]]
parameter = "*"
shard = ["fsdp:0"]
[[trainer.map]]
parameter = "layers.{l}.qkv"
view = "[8, 4, 64, 512]"
slot = "model.layers.{l}.self_attn.q_proj.weight"
slice = "[:, 0:2, :, :]"
[[trainer.map]]
parameter = "w2"
transpose = true
permute = [1, 0]
slot_view = "[2, 3]"
slot_slice = "[e + 4*pp, :]"
[[trainer.parameter]]
name = "lm_head.weight"
shape = [152064, 1024]
padding = true

[worker]
mesh = [["dp", 2], ["tp", 3]]
unused = ["model.vision.*", "mtp.*"]
[[worker.placement]]
parameter = "*.qkv_proj.weight"
shard = ["tp:0 by slice"]
[[worker.parameter]]
name = "scale"
shape = []

[transport]
master = "127.0.0.1:29500"
secret_file = ""

[update]
wire_dtype = "keep"
seed = "if-different"
verify = "audit:12"
connect = "30s"
reconnect = "15min"
stall = "1.5s"
engine = "500ms"
timeout = "1h"
busy = "fold"
quorum = 2

[actors]
snapshotter  = { tier = "host", log = "1GiB" }
differ       = { count = 3, chunk = 1000, inflight = "unlimited", thread = "detached" }
gather_queue = { transport = "inproc", window = "2KiB", max_round = "100KB" }
flush_bucket = { cap = "7B", positions = "rice", values = "raw", compression = "none" }
sender       = { transport = "tcp", route = "broadcast" }
applier      = { stage = "1.5GiB", overflow = "fail" }

[telemetry]
trace = "trace.json"
prometheus = "0.0.0.0:9464"
)";

} // namespace

TEST_CASE("every supported key arrives typed") {
  TopologyFiles files;
  files.write("t.toml", every_supported_key);
  auto loaded = files.load();
  if (!loaded)
    FAIL(loaded.error().message);
  const Topology& t = *loaded;
  CHECK(t.file == files.path("t.toml"));

  CHECK(t.trainer.mesh.axes() == std::vector<layout::Axis>{{"pp", 1}, {"fsdp", 4}});
  REQUIRE(t.trainer.placements.size() == 2);
  CHECK(t.trainer.placements[0].parameter == "*.experts.gate_up_proj");
  CHECK(t.trainer.placements[0].shard == std::vector<std::string>{"fsdp:1"});
  CHECK(t.trainer.placements[0].where == files.path("t.toml") + ":3");
  CHECK(t.trainer.placements[1].parameter == "*");
  CHECK(t.trainer.placements[1].where == files.path("t.toml") + ":6");
  REQUIRE(t.trainer.maps.size() == 2);
  CHECK(t.trainer.maps[0].parameter == "layers.{l}.qkv");
  CHECK(t.trainer.maps[0].slot == "model.layers.{l}.self_attn.q_proj.weight");
  CHECK(t.trainer.maps[0].view == "[8, 4, 64, 512]");
  CHECK(t.trainer.maps[0].slice == "[:, 0:2, :, :]");
  CHECK_FALSE(t.trainer.maps[0].transpose);
  CHECK(t.trainer.maps[0].where == files.path("t.toml") + ":9");
  CHECK(t.trainer.maps[1].slot.empty());
  CHECK(t.trainer.maps[1].transpose);
  CHECK(t.trainer.maps[1].permute == std::vector<layout::Index>{1, 0});
  CHECK(t.trainer.maps[1].slot_view == "[2, 3]");
  CHECK(t.trainer.maps[1].slot_slice == "[e + 4*pp, :]");
  REQUIRE(t.trainer.parameters.size() == 1);
  CHECK(t.trainer.parameters[0].name == "lm_head.weight");
  CHECK(t.trainer.parameters[0].shape == layout::Shape{152064, 1024});
  CHECK(t.trainer.parameters[0].padding);
  CHECK(t.trainer.parameters[0].where == files.path("t.toml") + ":20");

  CHECK(t.worker.mesh.size() == 6);
  CHECK(t.workers_per_replica() == 3);
  CHECK(t.worker.unused == std::vector<std::string>{"model.vision.*", "mtp.*"});
  REQUIRE(t.worker.placements.size() == 1);
  CHECK(t.worker.placements[0].shard == std::vector<std::string>{"tp:0 by slice"});
  REQUIRE(t.worker.parameters.size() == 1);
  CHECK(t.worker.parameters[0].shape == layout::Shape{});
  CHECK_FALSE(t.worker.parameters[0].padding);

  CHECK(t.transport.master == "127.0.0.1:29500");
  CHECK(t.update.connect == 30s);
  CHECK(t.update.reconnect == 15min);
  CHECK(t.update.stall == 1500ms);
  CHECK(t.update.engine == 500ms);
  CHECK(t.update.timeout == 1h);
  CHECK(t.update.busy == Busy::fold);
  CHECK(t.update.quorum == 2);
  CHECK(t.update.seed == config::Seed::if_different);
  CHECK(t.update.verify == config::Verify::digest);
  CHECK(t.update.audit_every == 12);
  CHECK(t.actors.snapshotter.log == 1ull << 30);
  CHECK(t.actors.differ.count == 3);
  CHECK(t.actors.differ.chunk == 1000);
  CHECK(t.actors.differ.inflight == unlimited);
  CHECK(t.actors.differ.thread == ThreadKind::detached);
  CHECK(t.actors.gather_queue.transport == TransportKind::inproc);
  CHECK(t.actors.gather_queue.window == 2048);
  CHECK(t.actors.gather_queue.max_round == 100'000);
  CHECK(t.actors.flush_bucket.cap == 7);
  CHECK(t.actors.flush_bucket.positions == PositionChoice::rice);
  CHECK(t.actors.flush_bucket.values == ValueChoice::raw);
  CHECK(t.actors.sender.transport == TransportKind::tcp);
  CHECK(t.actors.applier.stage == 3ull << 29);
  CHECK(t.telemetry.trace == "trace.json");
  CHECK(t.telemetry.prometheus == "0.0.0.0:9464"); // any address: what it shows is public, and plan says so
}

TEST_CASE("an empty file is one rank, one worker and the defaults") {
  auto t = load_text("");
  REQUIRE(t);
  CHECK(t->trainer.mesh.size() == 1);
  CHECK(t->worker.mesh.size() == 1);
  CHECK(t->workers_per_replica() == 1);
  CHECK(t->trainer.placements.empty());
  CHECK(t->transport.master.empty());
  CHECK(t->update.stall == 20s);
  CHECK(t->update.busy == Busy::wait);
  CHECK(t->update.quorum == 0);
  CHECK(t->update.seed == config::Seed::always);
  CHECK(t->update.verify == config::Verify::digest);
  CHECK(t->update.audit_every == 0);
  CHECK(t->actors.differ.chunk == 16ull << 20);
  CHECK(t->actors.flush_bucket.cap == 256ull << 20);
  CHECK(t->actors.flush_bucket.positions == PositionChoice::automatic);
  CHECK(t->actors.flush_bucket.values == ValueChoice::automatic);
}

TEST_CASE("encodings go by these names") {
  const std::pair<const char*, PositionChoice> positions[] = {
    {"auto", PositionChoice::automatic}, {"u8", PositionChoice::u8},         {"u16", PositionChoice::u16},
    {"rice", PositionChoice::rice},      {"bitmap", PositionChoice::bitmap}, {"run", PositionChoice::run},
    {"dense", PositionChoice::dense}};
  for (const auto& [name, choice] : positions) {
    const auto topology = load_text(fmt::format("[actors]\nflush_bucket = {{ positions = \"{}\" }}\n", name));
    REQUIRE(topology);
    CHECK(topology->actors.flush_bucket.positions == choice);
  }
  const auto ulp = load_text("[actors]\nflush_bucket = { values = \"ulp\" }\n");
  REQUIRE(ulp);
  CHECK(ulp->actors.flush_bucket.values == ValueChoice::ulp);
}

TEST_CASE("values that mean the default are accepted") {
  CHECK(load_text("[actors]\nsnapshotter = { tier = \"auto\" }\nsender = { transport = \"auto\", route = \"auto\" }\n"
                  "flush_bucket = { values = \"auto\", cap = \"unlimited\" }\n"
                  "[trainer]\nmesh = []\n[worker]\nunused = []\nplacement = []\n[transport]\nmaster = \"\"\n"));
  CHECK(load_text("[actors.differ]\ncount = 1\nthread = \"pool\"\n"));
}

TEST_CASE("a file without dp is one replica, and dp must be outermost") {
  CHECK(load_text("worker.mesh = [[\"tp\", 4]]")->workers_per_replica() == 4);
  CHECK(load_text("worker.mesh = [[\"dp\", 4]]")->workers_per_replica() == 1);
  CHECK(errors_of("[worker]\nmesh = [[\"tp\", 2], [\"dp\", 2]]") ==
        "t.toml:2: worker.mesh: \"dp\" counts replicas and must be the outermost (first) axis");
  CHECK(load_text("[trainer]\nmesh = [[\"tp\", 2], [\"dp\", 2]]"));
}

TEST_CASE("shared memory is for a loopback master, and for one that the environment names") {
  for (const char* master : {"127.0.0.1:29500", "localhost:0", "[::1]:29500", ""})
    for (const char* key : {"gather_queue", "sender"}) {
      CAPTURE(master, key);
      TopologyFiles files;
      files.write("t.toml", fmt::format("[transport]\nmaster = \"{}\"\n[actors]\n{}.transport = \"shm\"", master, key));
      const auto topology = files.load();
      REQUIRE(topology);
      const bool sends = std::string_view(key) == "sender";
      CHECK((topology->actors.sender.transport == TransportKind::shm) == sends);
      CHECK((topology->actors.gather_queue.transport == TransportKind::shm) == !sends);
    }
}

TEST_CASE("what is shared is bounded by what is on the wire, and by a GiB") {
  CHECK(most_shared(1) == 32u << 20);
  CHECK(most_shared(256u << 20) == 256u << 20);
  CHECK(most_shared(unlimited) == 1u << 30);
}

TEST_CASE("what the design has for later is refused as not supported yet") {
  struct Case {
    const char* text;
    const char* error;
  };
  for (const Case& c : {
         Case{"[[worker.map]]\nparameter = \"*\"\nshard = []\non = { pp = [0] }",
              "t.toml:4: worker.map.on: not supported yet: `on` belongs to a placement, and holds for all maps of its "
              "parameter"},
         {"[actors]\nsnapshotter.tier = \"pinned\"",
          "t.toml:2: actors.snapshotter.tier: \"pinned\" is not supported yet; use \"auto\", \"host\" or \"device\" "
          "(snapshots are in the host's pageable memory, or in the GPU's)"},
         {"[actors.differ]\naffinity = [2, 3]",
          "t.toml:2: actors.differ.affinity: not supported yet: Differs run where the system schedules them"},
         {"[actors]\ngather_queue = { transport = \"nccl\" }",
          "t.toml:2: actors.gather_queue.transport: \"nccl\" is not supported yet; use \"auto\", \"inproc\", \"tcp\" "
          "or \"shm\" (trainers' changes are in host memory and go over tcp)"},
         {"[actors]\nsender = { transport = \"cuda-ipc\" }",
          "t.toml:2: actors.sender.transport: \"cuda-ipc\" is not supported yet; use \"auto\", \"inproc\", \"tcp\" or "
          "\"shm\" (workers' weights are in host memory)"},
         {"[actors]\nflush_bucket = { compression = \"lz4\" }",
          "t.toml:2: actors.flush_bucket.compression: \"lz4\" is not supported yet; use \"none\" or \"zstd\" (zstd is "
          "the one compressor)"},
#ifndef DELTAWIRE_HAS_ZSTD
         {"[actors]\nflush_bucket = { compression = \"zstd\" }",
          "t.toml:2: actors.flush_bucket.compression: this deltawire was built without zstd: build it where "
          "libzstd-dev is installed, or use \"none\""},
#endif
         {"[actors]\napplier = { overflow = \"in-place\" }",
          "t.toml:2: actors.applier.overflow: \"in-place\" is not supported yet; use \"fail\" (an update that does "
          "not fit actors.applier.stage is refused)"},
       }) {
    CAPTURE(c.text);
    CHECK(errors_of(c.text) == c.error);
    auto loaded = load_text(c.text);
    REQUIRE_FALSE(loaded);
    CHECK(loaded.error().code == Code::unsupported);
  }
}

TEST_CASE("what cannot be right is refused with file, line and key") {
  struct Case {
    const char* text;
    const char* error;
  };
  for (const Case& c : {
         // unknown keys and values
         Case{"\n[actors]\nflush_bukket = { cap = 1 }",
              "t.toml:3: actors.flush_bukket: unknown key; did you mean \"flush_bucket\"?"},
         {"[trainr]\n", "t.toml:1: trainr: unknown key; did you mean \"trainer\"?"},
         {"[update]\nstal = \"1s\"", "t.toml:2: update.stal: unknown key; did you mean \"stall\"?"},
         {"[telemetry]\npromethius = \"\"", "t.toml:2: telemetry.promethius: unknown key; did you mean "
                                            "\"prometheus\"?"},
         {"[telemetry]\ncolour = 1", "t.toml:2: telemetry.colour: unknown key; known here: trace, flushes, "
                                     "prometheus"},
         {"[trainer]\nunused = []",
          "t.toml:2: trainer.unused: unknown key; known here: mesh, axes, placement, map, parameter"},
         {"[[trainer.map]]\nparameter = \"*\"\nsclice = \"[:]\"",
          "t.toml:3: trainer.map.sclice: unknown key; did you mean \"slice\"?"},
         {"[update]\nbusy = \"later\"", "t.toml:2: update.busy: \"later\" is not \"wait\" or \"fold\""},
         {"[update]\nwire_dtype = \"bf17\"",
          "t.toml:2: update.wire_dtype: \"bf17\" is not \"keep\", \"bfloat16\", \"float16\" or "
          "\"float32\""},
         {"[[trainer.placement]]\nparameter = \"*\"\nshard = []\nwire_dtype = \"float8_e4m3\"",
          "t.toml:4: trainer.placement.wire_dtype: \"float8_e4m3\" is not \"keep\", \"bfloat16\", \"float16\" or "
          "\"float32\""},
         {"[[worker.placement]]\nparameter = \"*\"\nshard = []\nwire_dtype = \"keep\"",
          "t.toml:4: worker.placement.wire_dtype: belongs to a [[trainer.placement]]: it says what the trainer sends"},
         {"[update]\nseed = \"never\"", "t.toml:2: update.seed: \"never\" is not \"always\" or \"if-different\""},
         {"[update]\nverify = \"audit:1.5\"",
          "t.toml:2: update.verify: \"audit:1.5\" is not \"off\", \"digest\" or \"audit:K\" with K of 1 and more"},
         {"[update]\nverify = \"audit:\"",
          "t.toml:2: update.verify: \"audit:\" is not \"off\", \"digest\" or \"audit:K\" with K of 1 and more"},
         {"[update]\nverify = \"audit:0\"",
          "t.toml:2: update.verify: \"audit:0\" is not \"off\", \"digest\" or \"audit:K\" with K of 1 and more"},
         {"[update]\nquorum = 0", "t.toml:2: update.quorum: must be \"all\" or a number of replicas of 1 and more"},
         {"[update]\nquorum = 2", "t.toml:2: update.quorum: 2 replicas, and the worker mesh has 1"},
         {"[worker]\nmesh = [[\"dp\", 3], [\"tp\", 2]]\n[update]\nquorum = 4",
          "t.toml:4: update.quorum: 4 replicas, and the worker mesh has 3"},
         {"[update]\nquorum = \"most\"",
          "t.toml:2: update.quorum: must be \"all\" or a number of replicas of 1 and more"},
         {"[actors]\nsender.transport = \"udp\"",
          "t.toml:2: actors.sender.transport: \"udp\" is not \"auto\", \"inproc\", \"tcp\" or \"shm\""},
         {"[transport]\nmaster = \"10.0.0.1:29500\"\nsecret_file = \"s\"\n[actors]\nsender.transport = \"shm\"",
          "t.toml:5: actors.sender.transport: \"shm\" joins processes of one host, and transport.master, "
          "\"10.0.0.1:29500\", is not a loopback address: use \"tcp\", or 127.x.x.x, localhost or [::1] where all run "
          "on this host"},
         // types
         {"trainer = 3", "t.toml:1: trainer: must be a table, not an integer"},
         {"[[update]]\n", "t.toml:1: update: must be a table, not an array"},
         {"[actors]\ndiffer = 2", "t.toml:2: actors.differ: must be a table, not an integer"},
         {"[actors.differ]\ncount = 2.0",
          "t.toml:2: actors.differ.count: must be an integer, not a number with a fraction"},
         {"[actors.differ]\nthread = true", "t.toml:2: actors.differ.thread: must be a string, not true or false"},
         {"[trainer.placement]\nparameter = \"*\"",
          "t.toml:1: trainer.placement: must be an array of tables, written as [[trainer.placement]], not a table"},
         {"[trainer]\nplacement = [1]", "t.toml:2: trainer.placement: must be an array of tables, not an integer"},
         {"[[trainer.map]]\nparameter = 1979-05-27",
          "t.toml:2: trainer.map.parameter: must be a string, not a date or time"},
         {"[[trainer.map]]\nparameter = \"*\"\ntranspose = 1",
          "t.toml:3: trainer.map.transpose: must be true or false, not an integer"},
         {"[[trainer.placement]]\nparameter = \"*\"\nshard = \"tp:0\"",
          "t.toml:3: trainer.placement.shard: must be an array of strings, not a string"},
         {"[[trainer.placement]]\nparameter = \"*\"\nshard = [\n  \"tp:0\",\n  1]",
          "t.toml:5: trainer.placement.shard: must be an array of strings, not an integer"},
         {"[worker]\nunused = [\"\"]", "t.toml:2: worker.unused: has an empty string"},
         {"[telemetry]\ntrace = \"\"", "t.toml:2: telemetry.trace: must not be empty"},
         {"[telemetry]\nprometheus = \"9464\"",
          "t.toml:2: telemetry.prometheus: \"9464\" is not an address: it has no port; write \"host:port\", e.g. "
          "\"127.0.0.1:29500\""},
         // required keys
         {"\n[[trainer.placement]]\nshard = []", "t.toml:2: trainer.placement.parameter: is missing"},
         {"[[worker.placement]]\nparameter = \"*\"", "t.toml:1: worker.placement.shard: is missing"},
         {"[[worker.map]]\nslot = \"x\"", "t.toml:1: worker.map.parameter: is missing"},
         {"[[worker.map]]\nparameter = \"\"", "t.toml:2: worker.map.parameter: must not be empty"},
         {"[[worker.parameter]]\npadding = true", "t.toml:1: worker.parameter.name: is missing"},
         // shapes
         {"[[worker.parameter]]\nname = \"a\"\nshape = [2, -1]",
          "t.toml:3: worker.parameter.shape: must be an array of extents of 0 and more, e.g. [152064, 1024]"},
         {"[[worker.parameter]]\nname = \"a\"\nshape = [2, \"3\"]",
          "t.toml:3: worker.parameter.shape: must be an array of extents of 0 and more, e.g. [152064, 1024]"},
         {"[[worker.parameter]]\nname = \"a\"\nshape = [4611686018427387904, 4]",
          "t.toml:3: worker.parameter.shape: shape [4611686018427387904, 4] has more than 2^62 elements"},
         // meshes
         {"[trainer]\nmesh = 4", "t.toml:2: trainer.mesh: must be an array, not an integer"},
         {"[trainer]\nmesh = [\"tp\", 2]",
          "t.toml:2: trainer.mesh: axis 0: must be a name and a size, e.g. [\"tp\", 2]\n"
          "t.toml:2: trainer.mesh: axis 1: must be a name and a size, e.g. [\"tp\", 2]"},
         {"[trainer]\nmesh = [[\"tp\", 2], [\"tp\", 2]]", "t.toml:2: trainer.mesh: axis 1: \"tp\" is named twice"},
         {"[trainer]\nmesh = [[\"\", 2]]", "t.toml:2: trainer.mesh: axis 0: has no name"},
         {"[trainer]\nmesh = [[\"tp\", 0]]", "t.toml:2: trainer.mesh: axis 0: \"tp\" has size 0; the least is 1"},
         // sizes and counts
         {"[actors.differ]\ncount = 0", "t.toml:2: actors.differ.count: 0 is not between 1 and 1024"},
         {"[actors.differ]\ncount = 5000000000", "t.toml:2: actors.differ.count: 5000000000 is not between 1 and 1024"},
         {"[actors.flush_bucket]\ncap = 0", "t.toml:2: actors.flush_bucket.cap: 0 bytes hold nothing; the least is 1"},
         {"[actors.flush_bucket]\ncap = \"0B\"",
          "t.toml:2: actors.flush_bucket.cap: 0 bytes hold nothing; the least is 1"},
         {"[actors.flush_bucket]\ncap = -5", "t.toml:2: actors.flush_bucket.cap: -5 is negative"},
         {"[actors.flush_bucket]\ncap = 1.5",
          "t.toml:2: actors.flush_bucket.cap: must be a byte size, e.g. \"64MiB\", not a number with a fraction"},
         {"[actors.applier]\nstage = \"5 apples\"",
          "t.toml:2: actors.applier.stage: \"5 apples\" has the unknown unit \"apples\"; known: B, KB, MB, GB, TB, "
          "KiB, MiB, GiB, TiB"},
         {"[actors.differ]\nchunk = \"unlimited\"",
          "t.toml:2: actors.differ.chunk: cannot be unlimited: this is a size, not a cap"},
         // deadlines
         {"[update]\nstall = 20",
          "t.toml:2: update.stall: must be a duration with a unit, e.g. \"20s\", not an integer"},
         {"[update]\nstall = \"-1s\"", "t.toml:2: update.stall: \"-1s\" is negative"},
         {"[update]\nconnect = \"0s\"", "t.toml:2: update.connect: must be longer than 0"},
         {"[update]\nstall = \"10min\"", "t.toml:2: update.stall: deadlines nest: update.stall (10min) must be shorter "
                                         "than update.timeout (10min by default)"},
         {"[update]\n\ntimeout = \"30s\"", "t.toml:3: update.timeout: deadlines nest: update.engine (1min by default) "
                                           "must be shorter than update.timeout (30s)"},
         {"[update]\nengine = \"90s\"\ntimeout = \"1min\"",
          "t.toml:2: update.engine: deadlines nest: update.engine (90s) must be shorter than update.timeout (1min)"},
         // addresses
         {"[transport]\nmaster = \"localhost\"",
          "t.toml:2: transport.master: \"localhost\" is not an address: it has no port; write \"host:port\", e.g. "
          "\"127.0.0.1:29500\""},
       }) {
    CAPTURE(c.text);
    CHECK(errors_of(c.text) == c.error);
    auto loaded = load_text(c.text);
    REQUIRE_FALSE(loaded);
    CHECK(loaded.error().code == Code::invalid_topology);
  }
}

TEST_CASE("placements and a map's own cuts take sizes, joined axes and the coordinates that hold them") {
  const auto topology = load_text(R"([trainer]
mesh = [["pp", 2], ["dp", 2], ["tp", 2]]
axes = { all = ["dp", "tp"], back = ["tp", "dp"] }
[[trainer.placement]]
parameter = "a"
shard = ["ep:0"]
sizes = { ep = [1, 2, 3, 0] }
axes = { ep = ["dp", "tp"] }
on = { pp = [0, 1] }
[[trainer.map]]
parameter = "b"
shard = []
[[trainer.map]]
parameter = "b"
shard = ["both:0"]
sizes = { both = [1, 1, 1, 1] }
axes = { both = ["tp", "dp"] }
[[trainer.map]]
parameter = "c"
)");
  REQUIRE(topology);
  using layout::AxisNumbers;
  using layout::JoinedAxis;
  const layout::SideRules& side = topology->trainer;
  CHECK(side.axes == std::vector<JoinedAxis>{{"all", {"dp", "tp"}}, {"back", {"tp", "dp"}}});
  REQUIRE(side.placements.size() == 1);
  CHECK(side.placements[0].options.sizes == std::vector<AxisNumbers>{{"ep", {1, 2, 3, 0}}});
  CHECK(side.placements[0].options.axes == std::vector<JoinedAxis>{{"ep", {"dp", "tp"}}});
  CHECK(side.placements[0].options.on == std::vector<AxisNumbers>{{"pp", {0, 1}}});
  REQUIRE(side.maps.size() == 3);
  CHECK(side.maps[0].shard == std::vector<std::string>{});
  CHECK(side.maps[1].shard == std::vector<std::string>{"both:0"});
  CHECK(side.maps[1].options.sizes == std::vector<AxisNumbers>{{"both", {1, 1, 1, 1}}});
  CHECK(side.maps[1].options.axes == std::vector<JoinedAxis>{{"both", {"tp", "dp"}}});
  CHECK(!side.maps[2].shard);
}

TEST_CASE("sizes, axes and on of the wrong kind are refused with their key") {
  const std::string placement = "[[trainer.placement]]\nparameter = \"*\"\nshard = []\n";
  CHECK(errors_of(placement + "sizes = [1]") == "t.toml:4: trainer.placement.sizes: must be a table, not an array");
  CHECK(errors_of(placement + "sizes = { tp = [1, -1] }") ==
        "t.toml:4: trainer.placement.sizes: \"tp\" must be an array of whole numbers from 0, e.g. { tp = [2, 3] }");
  CHECK(errors_of(placement + "on = { pp = 0 }") ==
        "t.toml:4: trainer.placement.on: \"pp\" must be an array of whole numbers from 0, e.g. { tp = [2, 3] }");
  CHECK(errors_of(placement + "axes = { ep = \"dp\" }") ==
        "t.toml:4: trainer.placement.axes: \"ep\" must be an array of axes of the mesh, e.g. { ep = [\"dp\", \"tp\"] "
        "}");
  CHECK(errors_of("[worker]\naxes = { ep = [] }") ==
        "t.toml:2: worker.axes: \"ep\" must be an array of axes of the mesh, e.g. { ep = [\"dp\", \"tp\"] }");
  CHECK(errors_of("[[worker.map]]\nparameter = \"*\"\nsizes = { tp = [1] }") ==
        "t.toml:3: worker.map.sizes: belongs to the map's own \"shard\", which is not given");
}

TEST_CASE("memory is audited every K updates, and K of more than can be counted is refused") {
  const auto update = [](const std::string& verify) {
    TopologyFiles files;
    files.write("t.toml", "[update]\nverify = \"" + verify + "\"");
    return files.load()->update;
  };
  CHECK(update("off").verify == config::Verify::off);
  CHECK(update("off").audit_every == 0);
  CHECK(update("audit:1").verify == config::Verify::digest);
  CHECK(update("audit:1").audit_every == 1);
  CHECK(update("audit:003").audit_every == 3);
  CHECK(update("audit:18446744073709551615").audit_every == std::numeric_limits<std::uint64_t>::max());
  CHECK(errors_of("[update]\nverify = \"audit:18446744073709551616\"") ==
        "t.toml:2: update.verify: \"audit:18446744073709551616\" would never audit: more updates than can be counted "
        "(the most is 18446744073709551615); use \"digest\" to have no audits");
}

TEST_CASE("a mesh of too many ranks is refused") {
  CHECK_THAT(errors_of("[trainer]\nmesh = [[\"a\", 1048576], [\"b\", 2]]"), starts_with("t.toml:2: trainer.mesh: "));
}

TEST_CASE("all errors are reported at once, in the order of the file") {
  const auto* text = R"([update]
wire_dtype = "int8"
stal = "1s"
[telemetry]
trace = 3
[actors]
differ = { count = 0, affinity = [1] }
[trainer]
mesh = [["tp", 0]]
)";
  CHECK(errors_of(text, {"actors.applier.overflow=in-place", "nonsense.key=1"}) ==
        "t.toml:2: update.wire_dtype: \"int8\" is not \"keep\", \"bfloat16\", \"float16\" or \"float32\"\n"
        "t.toml:3: update.stal: unknown key; did you mean \"stall\"?\n"
        "t.toml:5: telemetry.trace: must be a string, not an integer\n"
        "t.toml:7: actors.differ.count: 0 is not between 1 and 1024\n"
        "t.toml:7: actors.differ.affinity: not supported yet: Differs run where the system schedules them\n"
        "t.toml:9: trainer.mesh: axis 0: \"tp\" has size 0; the least is 1\n"
        "--set actors.applier.overflow=in-place: actors.applier.overflow: \"in-place\" is not supported yet; use "
        "\"fail\" (an update that does not fit actors.applier.stage is refused)\n"
        "--set nonsense.key=1: nonsense: unknown key; known here: include, trainer, worker, transport, update, "
        "actors, telemetry");
  CHECK(load_text(text).error().code == Code::invalid_topology);
}

TEST_CASE("a file that is no TOML is refused at its line") {
  CHECK_THAT(errors_of("[update]\nstall = 20s\n"), starts_with("t.toml:2: not valid TOML: "));
  CHECK_THAT(errors_of("[update]\n[update]\n"), starts_with("t.toml:2: not valid TOML: "));
  CHECK_THAT(errors_of("a = \"\xff\"\n"), starts_with("t.toml:1: not valid TOML: "));
}

TEST_CASE("a table header without a key is refused, although toml++ 3.3.0 assumes that there is one") {
  for (const char* header : {"[=]", "[[=]]", "[.a]", "[#]", "[ \n]", "[]", "[\xc3\xa9]", "[a.=]"}) {
    CAPTURE(header);
    CHECK_THAT(errors_of(header), starts_with("t.toml:1: not valid TOML: "));
  }
}

TEST_CASE("letters that are not ASCII are refused in bare text, where toml++ 3.3.0 takes them for unreachable") {
  for (const char* line :
       {"a =\xef\xbb\xbe\n", "\xc3\xa9 = 1", "a = 1\xc3\xa9", "a = [1, \xff]", "a = 1[\"\xc3\xa9\"]"}) {
    CAPTURE(line);
    CHECK_THAT(errors_of(std::string("# \xc3\xa9\n") + line), starts_with("t.toml:2: not valid TOML: "));
  }
  CHECK(
    load_text("\xef\xbb\xbf[worker] # \xc3\xa9\nunused = [\"\xc3\xa9\", '\xef\xbb\xbe', \"\"\"\n\xc3\xa9\"\"\"]\n"));
}

TEST_CASE("a device is no topology, however empty it is") {
  for (const char* device : {"/dev/null", "/dev/zero"}) {
    const auto loaded = load(device);
    REQUIRE_FALSE(loaded);
    CHECK(loaded.error().message == fmt::format("{}: is a device, not a file that has a topology", device));
  }
}

TEST_CASE("a file that cannot be read is named") {
  TopologyFiles files;
  CHECK(files.errors("missing.toml") == "missing.toml: cannot be read: No such file or directory");
  files.write("directory/x.toml", "");
  CHECK(files.errors("directory") == "directory: is a directory");
  files.write("large.toml", std::string((4u << 20) + 1, '\n'));
  CHECK(files.errors("large.toml") == "large.toml: is larger than 4194304 bytes, which no topology file is");
  CHECK(files.load("missing.toml").error().code == Code::invalid_topology);
}

TEST_CASE("keys nested without end are refused before they can exhaust the stack") {
  std::string dots = "a";
  for (int i = 0; i < 200'000; ++i)
    dots += ".a";
  CHECK(errors_of("\n" + dots + " = 1\n") == "t.toml:2: a key with more dots than any key has");
  CHECK(errors_of("[" + dots + "]\n") == "t.toml:1: a key with more dots than any key has");
  CHECK(errors_of("x = \"\"\"\n\"quoted\" \"\"\"\n" + dots + " = 1\n") ==
        "t.toml:3: a key with more dots than any key has");
  CHECK_THAT(errors_of("a = " + std::string(100'000, '[')), starts_with("t.toml:1: not valid TOML: "));
  CHECK_THAT(errors_of("", {dots + "=1"}), contains("must be KEY=VALUE"));
  // dots in strings and comments are no keys
  CHECK(load_text("[worker]\nunused = [\"" + dots + "\", '" + dots + "'] # " + dots));
}

TEST_CASE("overrides replace, create and win over each other in order") {
  const auto* text = "[actors]\nflush_bucket = { cap = \"1MiB\" }\n[trainer]\nmesh = [[\"tp\", 2]]\n";
  auto t = load_text(text, {"actors.flush_bucket.cap=7B", "actors.applier.stage=100", "update.stall=500ms",
                            "actors.differ.count=3", "actors.differ.count=4", "trainer.mesh=[[\"fsdp\", 4]]",
                            "transport.master=127.0.0.1:0", "telemetry.trace=out=1.json",
                            "worker.placement=[{parameter = \"*\", shard = [\"tp:0\"]}]"});
  if (!t)
    FAIL(t.error().message);
  CHECK(t->actors.flush_bucket.cap == 7);
  CHECK(t->actors.applier.stage == 100);
  CHECK(t->update.stall == 500ms);
  CHECK(t->actors.differ.count == 4);
  CHECK(t->trainer.mesh.axes() == std::vector<layout::Axis>{{"fsdp", 4}});
  CHECK(t->transport.master == "127.0.0.1:0");
  CHECK(t->telemetry.trace == "out=1.json");
  REQUIRE(t->worker.placements.size() == 1);
  CHECK_THAT(t->worker.placements[0].where, starts_with("--set worker.placement="));
}

TEST_CASE("an override takes quoted strings, and text that is more than one value stays text") {
  CHECK(load_text("", {"telemetry.trace=\"a b\""})->telemetry.trace == "a b");
  CHECK(load_text("", {"telemetry.trace=a\nb = 1"})->telemetry.trace == "a\nb = 1");
  CHECK(load_text("", {"telemetry.trace=1\nb = 1"})->telemetry.trace == "1\nb = 1");
}

TEST_CASE("overrides that cannot be right are refused and named") {
  for (const char* text : {"", "x", "=1", ".a=1", "a.=1", "a..b=1", "=", "actors.differ"}) {
    CAPTURE(text);
    auto loaded = load_text("", {text});
    REQUIRE_FALSE(loaded);
    CHECK(loaded.error().code == Code::invalid_argument);
    CHECK(loaded.error().message ==
          fmt::format("--set {}: must be KEY=VALUE, e.g. actors.flush_bucket.cap=64MiB", text));
  }
  CHECK(errors_of("", {"actors.flush_bucket.cap="}) ==
        "--set actors.flush_bucket.cap=: actors.flush_bucket.cap: \"\" does not start with a number; write it like "
        "\"64MiB\"");
  CHECK(errors_of("[actors]\ndiffer = 3\n", {"actors.differ.count=2"}) ==
        "t.toml:2: actors.differ: must be a table, not an integer\n"
        "--set actors.differ.count=2: actors.differ.count: actors.differ is an integer, and only tables have keys to "
        "set; set actors.differ as a whole");
  CHECK(errors_of("[[trainer.map]]\nparameter = \"*\"", {"trainer.map.slot=x"}) ==
        "--set trainer.map.slot=x: trainer.map.slot: trainer.map is an array, and only tables have keys to set; set "
        "trainer.map as a whole");
  CHECK(errors_of("", {"include=[\"a.toml\"]"}) ==
        "--set include=[\"a.toml\"]: include: only a file can include files");
}

TEST_CASE("the topology of the small trace loads") {
  auto t = load(DELTAWIRE_TOPOLOGIES "/trace.toml");
  if (!t)
    FAIL(t.error().message);
  CHECK(t->trainer.mesh.axes() == std::vector<layout::Axis>{{"ep", 2}, {"fsdp", 2}});
  CHECK(t->worker.mesh.axes() == std::vector<layout::Axis>{{"tp", 2}});
  CHECK(t->transport.master == "127.0.0.1:0");
  CHECK(t->trainer.maps.size() == 8);
  CHECK(t->worker.maps.size() == 8);
}

} // namespace deltawire::config
