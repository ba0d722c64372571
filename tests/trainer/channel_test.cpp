// Messages and collectives of the trainer's processes, over real sockets, a thread a process.
#include "catch.hpp"
#include "channel.hpp"

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include <sys/socket.h>

using namespace trainer;
using namespace std::chrono_literals;

namespace {

std::array<int, 2> connected() {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
  return ends;
}

/// Three members, each connected with the others.
std::vector<Group> three(std::chrono::nanoseconds deadline) {
  std::vector<std::vector<Channel>> others(3);
  for (std::size_t a = 0; a < 3; ++a)
    for (std::size_t b = a + 1; b < 3; ++b) {
      const auto ends = connected();
      others[a].emplace_back(ends[0], "member " + std::to_string(b), deadline);
      others[b].emplace_back(ends[1], "member " + std::to_string(a), deadline);
    }
  std::vector<Group> groups;
  for (std::uint32_t member = 0; member < 3; ++member)
    groups.emplace_back(member, std::move(others[member]));
  return groups;
}

/// `work(member)` on a thread each.
template <class Work>
void on_all(std::vector<Group>& groups, Work&& work) {
  std::vector<std::thread> threads;
  for (Group& group : groups)
    threads.emplace_back([&] { work(group); });
  for (std::thread& thread : threads)
    thread.join();
}

std::string failure(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

} // namespace

TEST_CASE("members that all send more than a socket holds at once get each other's messages") {
  std::vector<Group> groups = three(20s);
  std::array<std::vector<Bytes>, 3> received;
  on_all(groups, [&](Group& group) {
    std::vector<Bytes> outgoing;
    for (std::uint32_t to = 0; to < 3; ++to)
      outgoing.emplace_back(2'000'000 + to, static_cast<std::byte>(10 * group.index() + to));
    received[group.index()] = group.exchange(std::move(outgoing));
  });
  for (std::uint32_t to = 0; to < 3; ++to)
    for (std::uint32_t from = 0; from < 3; ++from)
      CHECK(received[to][from] == Bytes(2'000'000 + to, static_cast<std::byte>(10 * from + to)));
}

TEST_CASE("a sum over members is taken in their order, and everybody has the same bits") {
  std::vector<Group> groups = three(20s);
  const std::array<float, 3> parts{1e8F, -1e8F, 1.0F}; // in another order: 0
  std::array<std::vector<float>, 3> sums;
  on_all(groups, [&](Group& group) {
    sums[group.index()] = std::vector<float>(1000, parts[group.index()]);
    group.all_reduce(sums[group.index()]);
  });
  for (const auto& sum : sums)
    CHECK(sum == std::vector<float>(1000, 1.0F));
}

TEST_CASE("a peer that hangs up, and one that says nothing, fail what waits for them by name") {
  const auto ends = connected();
  Channel here(ends[0], "worker 1", 50ms);
  std::optional<Channel> there(std::in_place, ends[1], "trainer rank 0", 50ms);
  CHECK(failure([&] { (void)here.receive(); }) == "nothing came from worker 1 for 0.1 s (--deadline)");
  CHECK(failure([&] { here.send(Bytes(50'000'000)); }).find("worker 1") != std::string::npos); // nobody reads
  there.reset();
  CHECK(failure([&] { (void)here.receive(); }).find("worker 1 hung up") == 0);
}

TEST_CASE("a message that is shorter than it says is refused") {
  const std::vector<float> values{1, 2, 3};
  Bytes message = Writer().put(std::uint32_t{7}).put(std::span<const float>(values)).take();
  Reader whole(message);
  CHECK(whole.get<std::uint32_t>() == 7);
  CHECK(whole.get_all<float>() == values);
  message.pop_back();
  Reader cut(message);
  CHECK(cut.get<std::uint32_t>() == 7);
  CHECK_THROWS(cut.get_all<float>());
  CHECK_THROWS(Reader(Bytes(3)).get<std::uint32_t>());
}
