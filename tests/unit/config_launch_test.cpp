// Contracts: src/config/address.hpp and src/config/launch.hpp.
#include "config/launch.hpp"

#include "catch.hpp"
#include "text_matchers.hpp"

#include <map>

namespace deltawire::config {

using test::contains;

namespace {

using Variables = std::map<std::string, std::string>;

Environment environment(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional{found->second};
  };
}

Topology topology_with(const std::string& master, layout::Index ranks) {
  Topology topology;
  topology.file = "t.toml";
  topology.transport.master = master;
  topology.trainer.mesh = *layout::Mesh::make({{"fsdp", ranks}});
  return topology;
}

} // namespace

TEST_CASE("addresses are read and written with their brackets") {
  struct Case {
    const char* text;
    Address address;
  };
  for (const Case& c : {Case{"127.0.0.1:29500", {"127.0.0.1", 29500}},
                        {"localhost:0", {"localhost", 0}},
                        {"node-7.cluster_a:65535", {"node-7.cluster_a", 65535}},
                        {"[::1]:29500", {"::1", 29500}},
                        {"[fe80::1%eth0]:29500", {"fe80::1%eth0", 29500}}}) {
    CAPTURE(c.text);
    auto address = parse_address(c.text);
    REQUIRE(address);
    CHECK(*address == c.address);
    CHECK(to_string(*address) == c.text);
  }
}

TEST_CASE("texts that are no address are refused with the reason") {
  struct Case {
    const char* text;
    const char* reason;
  };
  for (const Case& c : {Case{"", "it has no host"},
                        {":29500", "it has no host"},
                        {"localhost", "it has no port"},
                        {"localhost:", "the port is not a number"},
                        {"localhost:+1", "the port is not a number"},
                        {"localhost:12a", "the port is not a number"},
                        {"localhost:65536", "the port is past 65535"},
                        {"localhost:99999999999999999999", "the port is past 65535"},
                        {"::1", "an IPv6 host needs brackets"},
                        {"::1:29500", "an IPv6 host needs brackets"},
                        {"[::1", "the bracket is not closed"},
                        {"[::1]", "it has no port"},
                        {"[::1]29500", "a colon must follow the bracket"},
                        {"[localhost]:1", "no IPv6 address between the brackets"},
                        {"[]:1", "no IPv6 address between the brackets"},
                        {"tcp//host:1", "the host has a character that no host has"},
                        {"ho st:1", "the host has a character that no host has"}}) {
    CAPTURE(c.text);
    auto address = parse_address(c.text);
    REQUIRE_FALSE(address);
    CHECK(address.error().code == Code::invalid_topology);
    CHECK_THAT(address.error().message, contains(c.reason));
  }
}

TEST_CASE("the process of an index serves its metrics at the port and the index, as far as there are ports") {
  CHECK(*metrics_address("127.0.0.1:9464", 0) == Address{"127.0.0.1", 9464});
  CHECK(*metrics_address("[::1]:9464", 5) == Address{"::1", 9469});
  CHECK(*metrics_address("localhost:0", 5) == Address{"localhost", 0});
  CHECK(*metrics_address("node7:65530", 5) == Address{"node7", 65535});
  const auto past = metrics_address("node7:65530", 6);
  REQUIRE_FALSE(past);
  CHECK(past.error().code == Code::invalid_topology);
  CHECK_THAT(past.error().message,
             contains("telemetry.prometheus: node7:65530") && contains("index 6") && contains("port 65536"));
  CHECK_FALSE(metrics_address("node7:65535", 4'294'967'295));
  CHECK_FALSE(metrics_address("node7", 0));
}

TEST_CASE("loopback is decided by the text alone") {
  for (const char* host : {"127.0.0.1", "127.255.255.255", "127.1.2.3", "localhost", "::1", "[::1]"}) {
    CAPTURE(host);
    CHECK(is_loopback(host));
  }
  for (const char* host : {"",
                           "126.0.0.1",
                           "128.0.0.1",
                           "0.0.0.0",
                           "::",
                           "127.0.0.1.evil.example",
                           "127.evil.example",
                           "127.0.0",
                           "127.0.0.",
                           "127.0.0.256",
                           "127.0.0.0001",
                           "127..0.1",
                           "1270.0.0.1",
                           "0127.0.0.1",
                           "localhost.evil.example",
                           "Localhost ",
                           "10.0.0.1",
                           "node7",
                           "::1%eth0",
                           "127"}) {
    CAPTURE(host);
    CHECK_FALSE(is_loopback(host));
  }
}

TEST_CASE("the rank comes from the first launcher that set one") {
  struct Case {
    Variables variables;
    Seat seat;
  };
  const Case cases[] = {
    {{{"RANK", "3"}, {"WORLD_SIZE", "4"}}, {3, 4}},
    {{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}, {0, 1}},
    {{{"SLURM_PROCID", "7"}, {"SLURM_NTASKS", "8"}}, {7, 8}},
    // torchrun inside a job of the batch system
    {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}, {1, 2}},
    // set but empty counts as not set
    {{{"RANK", ""}, {"WORLD_SIZE", ""}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}, {0, 2}},
  };
  for (const Case& c : cases) {
    auto seat = seat_from_environment(environment(c.variables));
    REQUIRE(seat);
    CHECK(*seat == c.seat);
  }
}

TEST_CASE("a rank that cannot be right is refused and the variables are named") {
  struct Case {
    Variables variables;
    const char* message;
  };
  const Case cases[] = {
    {{}, "set RANK and WORLD_SIZE"},
    {{{"RANK", "3"}}, "RANK is set but WORLD_SIZE is not"},
    {{{"WORLD_SIZE", "3"}}, "WORLD_SIZE is set but RANK is not"},
    {{{"RANK", "3"}, {"WORLD_SIZE", "3"}}, "RANK=3 must be below WORLD_SIZE=3"},
    {{{"RANK", "-1"}, {"WORLD_SIZE", "3"}}, "RANK=\"-1\" is not a number"},
    {{{"RANK", "1"}, {"WORLD_SIZE", "3x"}}, "WORLD_SIZE=\"3x\" is not a number"},
    {{{"SLURM_PROCID", "99999999999"}, {"SLURM_NTASKS", "1"}}, "SLURM_PROCID=\"99999999999\" is not a number"},
  };
  for (const Case& c : cases) {
    auto seat = seat_from_environment(environment(c.variables));
    REQUIRE_FALSE(seat);
    CHECK(seat.error().code == Code::invalid_argument);
    CHECK_THAT(seat.error().message, contains(c.message));
  }
}

TEST_CASE("the root's address comes from the file, then DELTAWIRE_MASTER, then MASTER_ADDR with a port of our own") {
  const Variables all{{"DELTAWIRE_MASTER", "127.0.0.2:2"}, {"MASTER_ADDR", "127.0.0.3"}, {"MASTER_PORT", "3"}};
  CHECK(*master_from_environment(topology_with("127.0.0.1:1", 1), environment(all)) == Address{"127.0.0.1", 1});
  CHECK(*master_from_environment(topology_with("", 1), environment(all)) == Address{"127.0.0.2", 2});
  CHECK(*master_from_environment(topology_with("", 1), environment({{"MASTER_ADDR", "127.0.0.3"}})) ==
        Address{"127.0.0.3", 29717});
  CHECK(*master_from_environment(topology_with("", 1), environment({{"MASTER_ADDR", "::1"}})) == Address{"::1", 29717});
}

TEST_CASE("whoever shares a process needs no address of the root, and may have one") {
  Topology shared = topology_with("", 1);
  shared.actors.gather_queue.transport = TransportKind::inproc;
  CHECK_FALSE(master_from_environment(shared, environment({})));
  shared.actors.sender.transport = TransportKind::inproc;
  CHECK(*master_from_environment(shared, environment({})) == Address{"127.0.0.1", 29717});
  CHECK(*master_from_environment(shared, environment({{"DELTAWIRE_MASTER", "127.0.0.2:2"}})) ==
        Address{"127.0.0.2", 2});
}

TEST_CASE("an address of the root that cannot be right names where it came from") {
  auto missing = master_from_environment(topology_with("", 1), environment({}));
  REQUIRE_FALSE(missing);
  CHECK_THAT(missing.error().message,
             contains("t.toml: transport.master") && contains("DELTAWIRE_MASTER") && contains("MASTER_ADDR"));

  auto remote = master_from_environment(topology_with("", 1), environment({{"MASTER_ADDR", "node7"}}));
  REQUIRE_FALSE(remote);
  CHECK(remote.error().code == Code::invalid_topology);
  CHECK_THAT(remote.error().message,
             contains("MASTER_ADDR") && contains("not a loopback address") && contains("transport.secret_file"));
  Topology encrypted = topology_with("", 1);
  encrypted.transport.secret_file = "key";
  CHECK(*master_from_environment(encrypted, environment({{"MASTER_ADDR", "node7"}})) == Address{"node7", 29717});

  auto garbled = master_from_environment(topology_with("", 1), environment({{"DELTAWIRE_MASTER", "nowhere"}}));
  REQUIRE_FALSE(garbled);
  CHECK(garbled.error().code == Code::invalid_topology);
  CHECK_THAT(garbled.error().message, contains("DELTAWIRE_MASTER") && contains("it has no port"));
}

TEST_CASE("a launch needs as many processes as the mesh has") {
  const auto four = environment({{"RANK", "3"}, {"WORLD_SIZE", "4"}});
  const Topology topology = topology_with("127.0.0.1:0", 4);
  auto launch = launch_from_environment(topology, topology.trainer.mesh, four);
  REQUIRE(launch);
  CHECK(*launch == Launch{{3, 4}, {"127.0.0.1", 0}});

  auto wrong = launch_from_environment(topology, topology.worker.mesh, four);
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().message ==
        "t.toml: the mesh has 1 processes but the launcher started 4; make the mesh and the launch agree");
}

} // namespace deltawire::config
