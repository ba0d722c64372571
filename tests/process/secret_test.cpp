// Encrypted connections between real processes: transport.secret_file, and an address that is not loopback.

#include "catch.hpp"
#include "checkpoint_files.hpp"
#include "command.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

using namespace deltawire::test;
using Catch::Matchers::Contains;

namespace {

/// An IPv4 address of this machine that is not loopback, if it has one.
std::optional<std::string> own_address() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0)
    return std::nullopt;
  std::optional<std::string> found;
  for (const ifaddrs* each = all; each != nullptr && !found; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET || (each->ifa_flags & IFF_UP) == 0 ||
        (each->ifa_flags & IFF_LOOPBACK) != 0)
      continue;
    std::array<char, NI_MAXHOST> host{};
    if (::getnameinfo(each->ifa_addr, sizeof(sockaddr_in), host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) == 0)
      found = host.data();
  }
  ::freeifaddrs(all);
  return found;
}

struct Job {
  Scratch scratch;
  std::string topology = scratch.write("small.toml", small_topology);
  std::string first = scratch.write("1.safetensors", file_of(small_model(1)));
  std::string second = scratch.write("2.safetensors", file_of(small_model(2)));
  std::string secret = make_secret("secret", 'a');

  [[nodiscard]] std::string make_secret(const std::string& name, char letter,
                                        std::filesystem::perms mode = std::filesystem::perms::owner_read) const {
    std::string path = scratch.write(name, std::string(40, letter) + "\n");
    std::filesystem::permissions(path, mode);
    return path;
  }
  [[nodiscard]] Ended replay(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments{"replay", topology, "--processes", "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), {"--checkpoints", first, second});
    return run_command(arguments);
  }
};

std::vector<std::string> set(const std::vector<std::string>& keys) {
  std::vector<std::string> arguments;
  for (const std::string& key : keys)
    arguments.insert(arguments.end(), {"--set", key});
  return arguments;
}

} // namespace

TEST_CASE("a replay across processes is verified over encrypted connections") {
  const Job job;
  const Ended ended = job.replay(set({"transport.master=127.0.0.1:0", "transport.secret_file=" + job.secret}));
  INFO(ended.err);
  CHECK(ended.status == 0);
  CHECK_THAT(ended.out, Contains("verified: 2 versions on 2 workers"));
}

TEST_CASE("an address that is not loopback works with a secret, and is refused without") {
  const Job job;
  const Ended refused = job.replay(set({"transport.master=192.0.2.1:0"}));
  CHECK(refused.status == 2);
  CHECK_THAT(refused.err,
             Contains("transport.master") && Contains("not a loopback address") && Contains("transport.secret_file"));
  const auto address = own_address();
  if (!address) {
    WARN("skipped: this machine has no IPv4 address but loopback");
    return;
  }
  const Ended ended = job.replay(set({"transport.secret_file=" + job.secret, "transport.master=" + *address + ":0"}));
  INFO(ended.err);
  CHECK(ended.status == 0);
  CHECK_THAT(ended.out, Contains("verified: 2 versions on 2 workers"));
}

TEST_CASE("a secret file that others can read is refused once, before anything starts") {
  const Job job;
  const std::string open = job.make_secret("open", 'a', std::filesystem::perms(0644));
  const Ended ended = job.replay(set({"transport.secret_file=" + open}));
  CHECK(ended.status == 2);
  CHECK_THAT(ended.err, Contains("transport.secret_file") && Contains("chmod 600 " + open));
  CHECK(std::count(ended.err.begin(), ended.err.end(), '\n') == 1);
}

TEST_CASE("a worker with another secret, or none, ends with status 3 and names the root; the root names it") {
  const Job job;
  const int port = reserve_port();
  const std::string root_address = "127.0.0.1:" + std::to_string(port);
  const auto start = [&](const std::vector<std::string>& side, const std::vector<std::string>& keys,
                         const std::vector<std::string>& more) {
    std::vector<std::string> arguments{side[0], job.topology};
    arguments.insert(arguments.end(), side.begin() + 1, side.end());
    const auto settings = set(keys);
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<Running>(arguments);
  };
  const std::string master = "transport.master=" + root_address;
  const std::string connect = "update.connect=8s";
  const std::string secret = "transport.secret_file=" + job.secret;
  const std::vector<std::string> files{"--checkpoints", job.first, job.second};
  const auto root = start({"trainer", "--rank", "0"}, {master, connect, secret}, files);
  const auto rank = start({"trainer", "--rank", "1"}, {master, connect, secret}, files);
  const auto worker = start({"worker", "--index", "0"}, {master, connect, secret}, {});
  const auto stranger =
    start({"worker", "--index", "1"}, {master, connect, "transport.secret_file=" + job.make_secret("other", 'b')}, {});
  const Ended told = stranger->wait(30);
  CHECK(told.status == 3);
  CHECK_THAT(told.err, Contains(root_address) && Contains("it has another secret"));
  const auto open = start({"worker", "--index", "1"}, {master, connect}, {});
  const Ended plain = open->wait(30);
  CHECK(plain.status == 3);
  CHECK_THAT(plain.err, Contains(root_address));
  const Ended waited = root->wait(40);
  CHECK(waited.status == 3);
  CHECK_THAT(waited.err, Contains("worker 1") && Contains("refused: 127.0.0.1:") && Contains("it has another secret") &&
                           Contains("it does not speak TLS"));
  CHECK(rank->wait(30).status == 3);
  CHECK(worker->wait(30).status == 3);
}
