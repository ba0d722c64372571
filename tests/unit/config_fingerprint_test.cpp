// Contract: fingerprint() of src/config/topology.hpp: every setting that processes share counts, nothing else does.
#include "config_files.hpp"

#include "catch.hpp"

#include <map>

namespace deltawire::config {

TEST_CASE("the fingerprint changes with every setting that all processes must share") {
  const std::vector<std::string> texts = {
    "",
    "trainer.mesh = [[\"tp\", 2]]",
    "trainer.mesh = [[\"ep\", 2]]",
    "trainer.mesh = [[\"tp\", 3]]",
    "worker.mesh = [[\"tp\", 2]]",
    "[[trainer.placement]]\nparameter = \"*\"\nshard = [\"a:0\"]",
    "[[trainer.placement]]\nparameter = \"*\"\nshard = [\"a:0\", \"b:1\"]",
    "[[trainer.placement]]\nparameter = \"*\"\nshard = [\"a:0\\n-=3:b:1\"]",
    "[[trainer.placement]]\nparameter = \"**\"\nshard = [\"a:0\"]",
    "[[worker.placement]]\nparameter = \"*\"\nshard = [\"a:0\"]",
    "trainer.axes = { ep = [\"dp\", \"tp\"] }",
    "trainer.axes = { ep = [\"tp\", \"dp\"] }",
    "[[trainer.placement]]\nparameter = \"*\"\nshard = [\"a:0\"]\nsizes = { a = [1, 2] }",
    "[[trainer.placement]]\nparameter = \"*\"\nshard = [\"a:0\"]\nsizes = { a = [2, 1] }",
    "[[trainer.placement]]\nparameter = \"*\"\nshard = [\"a:0\"]\non = { a = [1, 2] }",
    "[[trainer.placement]]\nparameter = \"*\"\nshard = [\"a:0\"]\naxes = { b = [\"c\"] }",
    "[[trainer.map]]\nparameter = \"*\"",
    "[[trainer.map]]\nparameter = \"*\"\nshard = []",
    "[[trainer.map]]\nparameter = \"*\"\nshard = [\"a:0\"]",
    "[[trainer.map]]\nparameter = \"*\"\nshard = [\"a:0\"]\nsizes = { a = [1] }",
    "[[trainer.map]]\nparameter = \"*\"\nshard = [\"a:0\"]\naxes = { b = [\"c\"] }",
    "[[trainer.map]]\nparameter = \"*\"\nslot = \"x\"",
    "[[trainer.map]]\nparameter = \"*\"\nview = \"x\"",
    "[[trainer.map]]\nparameter = \"*\"\nslice = \"x\"",
    "[[trainer.map]]\nparameter = \"*\"\ntranspose = true",
    "[[trainer.map]]\nparameter = \"*\"\npermute = [1, 0]",
    "[[trainer.map]]\nparameter = \"*\"\npermute = [0, 1]",
    "[[trainer.map]]\nparameter = \"*\"\nslot_view = \"x\"",
    "[[trainer.map]]\nparameter = \"*\"\nslot_slice = \"x\"",
    "[[worker.parameter]]\nname = \"*\"",
    "[[worker.parameter]]\nname = \"*\"\nshape = []",
    "[[worker.parameter]]\nname = \"*\"\nshape = [1]",
    "[[worker.parameter]]\nname = \"*\"\npadding = true",
    "worker.unused = [\"x\"]",
    "update.wire_dtype = \"bfloat16\"",
    "update.wire_dtype = \"float16\"",
    "[[trainer.placement]]\nparameter = \"*\"\nshard = []\nwire_dtype = \"keep\"",
    "[[trainer.placement]]\nparameter = \"*\"\nshard = []\nwire_dtype = \"bfloat16\"",
    "update.connect = \"1s\"",
    "update.stall = \"1s\"",
    "update.engine = \"1s\"",
    "update.timeout = \"1h\"",
    "update.busy = \"fold\"",
    "worker.mesh = [[\"dp\", 2]]",
    "worker.mesh = [[\"dp\", 2]]\nupdate.quorum = 1",
    "worker.mesh = [[\"dp\", 2]]\nupdate.quorum = 2",
    "update.seed = \"if-different\"",
    "update.verify = \"off\"",
    "update.verify = \"audit:1\"",
    "update.verify = \"audit:2\"",
    "actors.snapshotter.log = 1",
    "actors.differ.count = 1",
    "actors.differ.chunk = 1",
    "actors.differ.inflight = 1",
    "actors.differ.thread = \"detached\"",
    "actors.gather_queue.transport = \"tcp\"",
    "actors.gather_queue.window = 1",
    "actors.gather_queue.max_round = 1",
    "actors.flush_bucket.cap = 1",
    "actors.flush_bucket.positions = \"rice\"",
    "actors.flush_bucket.values = \"raw\"",
#ifdef DELTAWIRE_HAS_ZSTD
    "actors.flush_bucket.compression = \"zstd\"",
#endif
    "actors.sender.transport = \"tcp\"",
    "actors.sender.route = \"broadcast\"",
    "actors.applier.stage = 1",
  };
  std::map<std::uint64_t, std::string> seen;
  for (const std::string& text : texts) {
    CAPTURE(text);
    auto t = load_text(text);
    if (!t)
      FAIL(t.error().message);
    const auto [at, is_new] = seen.emplace(fingerprint(*t), text);
    if (!is_new)
      FAIL("same as " << at->second);
  }
}

TEST_CASE("the fingerprint ignores names of files, lines, comments, master, trace and how a value is spelled") {
  const auto base = fingerprint(*load_text("[actors]\nflush_bucket.cap = 1024\n[[trainer.map]]\nparameter = \"*\"\n"));
  CHECK(base == fingerprint(*load_text("# comment\n[transport]\nmaster = \"127.0.0.1:5\"\n[telemetry]\ntrace = \"x\"\n"
                                       "[[trainer.map]]\nparameter = '*'\n",
                                       {"actors.flush_bucket.cap=1KiB"})));
  TopologyFiles files;
  files.write("t.toml", "include = [\"a.toml\"]\nactors.flush_bucket.cap = 1024\n");
  files.write("a.toml", "[[trainer.map]]\nparameter = \"*\"\n");
  CHECK(base == fingerprint(*files.load()));
}

} // namespace deltawire::config
