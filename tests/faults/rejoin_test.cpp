// A worker whose connections break again while it comes back, to the running session or to the next trainer, at each
// message of that: it comes back all the same, soon, with the right bits, and is nobody else's failure. By default each
// message meets a reset or a damaged frame, in turns; DELTAWIRE_FAULTS=all takes both.

#include "catch.hpp"
#include "proxy.hpp"
#include "random.hpp"
#include "sessions/job.hpp"
#include "wire/encode.hpp"
#include "wire/messages.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace wire = deltawire::wire;
using namespace deltawire::test;

namespace {

struct Message {
  std::uint16_t type;
  bool to_root;
};

const std::vector<Message> all_messages{
  {wire::Hello::type, true},         {wire::Welcome::type, false},   {wire::Catalogue::type, false},
  {wire::DeclareWorker::type, true}, {wire::Agreement::type, false}, {wire::Agreed::type, true},
  {wire::Connected::type, false},
};

/// Two workers that serve a first version, and worker 1's connections at hand.
class Breaking {
public:
  Breaking() {
    job_.start_trainer();
    job_.update();
  }

  template <class ComeBack>
  void at_each(const std::vector<Message>& messages, ComeBack&& come_back) {
    const char* asked = std::getenv("DELTAWIRE_FAULTS");
    const bool both = asked != nullptr && std::string(asked) == "all";
    for (std::size_t i = 0; i < messages.size(); ++i)
      for (const bool damage : {false, true}) {
        if (!both && damage != (i % 2 == 0))
          continue;
        CAPTURE(wire::type_name(messages[i].type), damage);
        proxy_.stop_at({"worker 1", messages[i].to_root, {messages[i].type}});
        come_back();
        job_.until("worker 1 comes back", [&] { return proxy_.stopped(); });
        if (damage)
          proxy_.damage("worker 1", messages[i].to_root);
        else
          proxy_.reset("worker 1");
        proxy_.go_on(!damage);
        damaged_ += damage ? 1 : 0;
        job_.until("a frame is damaged", [&] { return proxy_.damaged() == damaged_; });
        heal();
      }
    job_.close();
    job_.check_engines();
  }

  [[nodiscard]] Job& job() { return job_; }
  [[nodiscard]] Proxy& proxy() { return proxy_; }

private:
  void heal() {
    job_.until_connected();
    const auto begin = std::chrono::steady_clock::now();
    for (;;) {
      job_.update();
      const FaredWorker worker = job_.fared().at(1);
      if (worker.state == "serving" && worker.version == job_.version())
        break;
      // Less than update.connect, when an attempt ends that nobody answers.
      REQUIRE(std::chrono::steady_clock::now() - begin < std::chrono::seconds(50));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    job_.until_all_stand(fmt::format("{} serving yes", job_.version()));
    for (const int worker : {0, 1})
      CHECK(job_.memory(worker) == fmt::format("{} {}", job_.run(), job_.version()));
  }

  int port_ = reserve_port();
  Proxy proxy_{port_, {"rank 1", "worker 0", "worker 1"}, seed()};
  Job job_{{.replicas = 2,
            .workers_per_replica = 1,
            .overrides = {"update.reconnect=5min"},
            .address = [this](const std::string& peer) { return proxy_.address(peer); }},
           port_};
  int damaged_ = 0;
};

} // namespace

TEST_CASE("a worker whose connections break at any message of its coming back comes back all the same") {
  INFO("seed " << seed());
  Breaking breaking;
  breaking.at_each(all_messages, [&] { breaking.proxy().reset("worker 1"); });
}

TEST_CASE("a worker whose connections break while it meets the next trainer is waited for") {
  INFO("seed " << seed());
  Breaking breaking;
  breaking.at_each(all_messages, [&] {
    breaking.job().kill_trainer();
    breaking.job().start_root();
    breaking.job().start_rank();
  });
}

TEST_CASE("a worker meets the next trainer over a slow encrypted connection too") {
  const Scratch scratch;
  const std::string secret = scratch.write("secret", "a secret of more than thirty-two bytes");
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
  const int port = reserve_port();
  // One way: a handshake takes longer than the first attempts to meet the next trainer have.
  const Proxy proxy(port, {"worker 0"}, std::chrono::milliseconds(120));
  Job job({.replicas = 1,
           .workers_per_replica = 1,
           .overrides = {"update.reconnect=5min", "transport.secret_file=" + secret},
           .address =
             [&](const std::string& peer) {
               return peer == "worker 0" ? proxy.address(peer) : fmt::format("127.0.0.1:{}", port);
             }},
          port);
  for (int run = 0; run < 2; ++run) {
    job.start_trainer();
    job.update();
    job.until_all_stand("1 serving yes");
    CHECK(job.memory(0) == fmt::format("{} 1", job.run()));
    if (run == 0)
      job.kill_trainer();
  }
  job.close();
  job.check_engines();
}
