// What only shared memory promises: one copy for all, memory that is bounded and used again, peers that die, lie or are
// somebody else. Peers here are of this process, or speak the messages of src/wire/FORMAT.md by hand.
#include "catch.hpp"
#include "random.hpp"
#include "raw_sockets.hpp"
#include "text_matchers.hpp"
#include "transport/shm_messages.hpp"

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <sys/wait.h>

using namespace deltawire;
using namespace deltawire::transport;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::size_t mib = 1 << 20;

std::unique_ptr<ShmNetwork> network_with(std::uint64_t arena = 64 * mib) {
  ShmSettings settings;
  settings.arena = arena;
  return make_shm_network(raw_framing(), "dw-shm", 1, settings).value();
}

std::shared_ptr<const Buffer> random_body(std::mt19937_64& random, std::size_t bytes) {
  auto body = std::make_shared<Buffer>(bytes);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t value = random();
    std::memcpy(body->data() + i, &value, std::min<std::size_t>(8, bytes - i));
  }
  return body;
}

Outgoing frame_of(std::shared_ptr<const Buffer> body) {
  std::vector<std::byte> header(raw_header);
  const std::uint64_t length = body->size();
  std::memcpy(header.data(), &length, sizeof length);
  return {header, std::move(body)};
}

/// A listener that admits and keeps what connects; connections start when they are told.
struct Root {
  explicit Root(std::uint64_t arena = 64 * mib) : network(network_with(arena)) {
    auto made = network->listen(
      "127.0.0.1:0",
      [this](std::shared_ptr<Connection> connection) {
        connection->admit();
        accepted.add(std::move(connection));
      },
      [this](const Failure& why) { refused.add(why); });
    REQUIRE(made);
    listener = std::move(*made);
  }
  ~Root() { network->shutdown({Code::peer_failed, "the test is over"}); }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  void start(Connection& connection) {
    connection.start({.on_frame = [this](Incoming&& frame) { bodies.add(std::move(frame.body)); },
                      .on_closed = [this](const Failure& why) { closed.add(why); }});
  }

  Happened<std::shared_ptr<Connection>> accepted;
  Happened<Buffer> bodies;
  Happened<Failure> closed, refused;
  std::unique_ptr<ShmNetwork> network;
  std::unique_ptr<Listener> listener;
};

/// A peer with a network of its own, as in a process of its own.
struct Worker {
  explicit Worker(Root& root, bool starts = true, std::uint64_t arena = 64 * mib) : network(network_with(arena)) {
    const std::size_t before = root.accepted.now().size();
    std::promise<Result<std::shared_ptr<Connection>>> promise;
    network->connect(root.listener->address(), Clock::now() + 10s,
                     [&](auto result) { promise.set_value(std::move(result)); });
    auto result = promise.get_future().get();
    REQUIRE(result);
    mine = *result;
    roots = root.accepted.wait_for(before + 1).at(before);
    root.start(*roots);
    if (starts)
      start();
  }
  ~Worker() { network->shutdown({Code::peer_failed, "the test is over"}); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void start() {
    mine->start({.on_frame = [this](Incoming&& frame) { bodies.add(std::move(frame.body)); },
                 .on_closed = [this](const Failure& why) { closed.add(why); }});
  }

  Happened<Buffer> bodies;
  Happened<Failure> closed;
  std::shared_ptr<Connection> mine;  ///< the worker's end
  std::shared_ptr<Connection> roots; ///< the root's end
  std::unique_ptr<ShmNetwork> network;
};

bool all_arrive(Happened<Buffer>& bodies, const std::vector<std::shared_ptr<const Buffer>>& sent) {
  const auto got = bodies.wait_for(sent.size());
  return got.size() == sent.size() &&
         std::equal(got.begin(), got.end(), sent.begin(), [](const Buffer& a, const auto& b) { return a == *b; });
}

// A peer by hand
// ---------------------------------------------------------------------------------------------------------------

sockaddr_un name_of(const std::string& address, uid_t user, socklen_t& size) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string text = fmt::format("deltawire {} {}", user, address);
  std::memcpy(name.sun_path + 1, text.data(), text.size());
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

int connect_by_hand(const std::string& address) {
  const int made = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  socklen_t size = 0;
  const sockaddr_un name = name_of(address, ::geteuid(), size);
  if (::connect(made, reinterpret_cast<const sockaddr*>(&name), size) != 0)
    return -1;
  return made;
}

/// A message with descriptors.
bool say(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors = {}) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(4 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

std::vector<std::byte> message(const ShmMessage& head, std::span<const std::byte> follows = {}) {
  const auto written = write_shm_head(head);
  std::vector<std::byte> bytes(written.begin(), written.end());
  bytes.insert(bytes.end(), follows.begin(), follows.end());
  return bytes;
}

/// The header of a frame, as a message.
std::vector<std::byte> frame_header(std::uint64_t body) {
  std::array<std::byte, raw_header> header{};
  std::memcpy(header.data(), &body, sizeof body);
  return message({.kind = ShmKind::bytes, .length = raw_header}, header);
}

constexpr int all_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | 0x0010 /* F_SEAL_FUTURE_WRITE */;

struct Memory {
  explicit Memory(std::size_t bytes, int seals = all_seals)
    : file(::memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING)), size(bytes) {
    REQUIRE(::ftruncate(file, static_cast<off_t>(bytes)) == 0);
    data = static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    REQUIRE(data != MAP_FAILED);
    REQUIRE(::fcntl(file, F_ADD_SEALS, seals) == 0);
  }
  ~Memory() {
    ::munmap(data, size);
    ::close(file);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  int file;
  std::size_t size;
  std::byte* data = nullptr;
};

ShmMessage region(std::uint32_t number, std::uint64_t bytes) {
  return {.kind = ShmKind::region, .region = number, .length = bytes};
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

std::size_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t found = 0;
  for (std::string line; std::getline(maps, line);)
    found += line.find("memfd:deltawire") != std::string::npos || line.find("memfd:hostile") != std::string::npos;
  return found;
}

bool soon(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition())
      return true;
    std::this_thread::sleep_for(5ms);
  }
  return condition();
}

} // namespace

TEST_CASE("a body for many workers is copied once, and all of them read it there") {
  auto random = test::generator(41);
  CAPTURE(test::seed());
  Root root;
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < 8; ++i)
    workers.push_back(std::make_unique<Worker>(root));
  std::vector<std::shared_ptr<const Buffer>> sent;
  std::uint64_t bytes = 0;
  for (int i = 0; i < 20; ++i) {
    sent.push_back(random_body(random, 70'000 + random() % (4 * mib)));
    bytes += sent.back()->size();
    for (const auto& worker : workers)
      worker->roots->send(frame_of(sent.back()));
    for (const auto& worker : workers)
      REQUIRE(worker->bodies.wait_for(sent.size()).size() == sent.size());
  }
  for (const auto& worker : workers)
    CHECK(all_arrive(worker->bodies, sent));
  const ShmCounters counters = root.network->counters();
  CHECK(counters.copied == bytes);
  CHECK(counters.without_room == 0);
}

TEST_CASE("what a worker reads stays as it was checked, whatever the sender writes there later") {
  Root root;
  const int socket = connect_by_hand(root.listener->address());
  REQUIRE(socket >= 0);
  root.start(*root.accepted.wait_for(1).at(0));
  const Memory memory(mib);
  std::memset(memory.data, 'a', memory.size);
  REQUIRE(say(socket, message(region(0, mib)), std::array{memory.file}));
  REQUIRE(say(socket, frame_header(mib)));
  REQUIRE(say(socket, message({ShmKind::segment, 0, 0, mib})));
  REQUIRE(root.bodies.wait_for(1).size() == 1);
  const Buffer seen = root.bodies.now().at(0);
  std::memset(memory.data, 'b', memory.size);
  CHECK(seen == Buffer(mib, std::byte{'a'}));
  CHECK(root.bodies.now().at(0) == seen);
  ::close(socket);
}

TEST_CASE("memory is used again: a thousand frames take what one takes") {
  auto random = test::generator(42);
  CAPTURE(test::seed());
  Root root;
  Worker worker(root);
  for (std::size_t i = 1; i <= 1000; ++i) {
    const std::size_t bytes = 100'000 + random() % (2 * mib);
    worker.roots->send(frame_of(std::make_shared<const Buffer>(bytes, static_cast<std::byte>(i))));
    const auto got = worker.bodies.wait_for(1);
    REQUIRE(got.size() == 1);
    REQUIRE(got[0] == Buffer(bytes, static_cast<std::byte>(i)));
    worker.bodies.clear();
  }
  // What was read, and the next one beside it while the news of that is on its way.
  CHECK(root.network->counters().most_in_use <= 6 * mib);
  CHECK(root.network->counters().without_room == 0);
}

TEST_CASE("a worker that stands still holds up nobody, and gets all of it when it goes on") {
  auto random = test::generator(43);
  CAPTURE(test::seed());
  Root root(2 * mib);
  Worker slow(root, false);
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < 3; ++i)
    workers.push_back(std::make_unique<Worker>(root));
  std::vector<std::shared_ptr<const Buffer>> sent;
  for (int i = 0; i < 10; ++i) {
    sent.push_back(random_body(random, 100'000 + random() % (2 * mib)));
    slow.roots->send(frame_of(sent.back()));
    for (const auto& worker : workers)
      worker->roots->send(frame_of(sent.back()));
  }
  for (const auto& worker : workers)
    CHECK(all_arrive(worker->bodies, sent));
  const ShmCounters counters = root.network->counters();
  CHECK(counters.without_room > 0);
  CHECK(counters.most_in_use <= 2 * mib);
  slow.start();
  CHECK(all_arrive(slow.bodies, sent));
  CHECK(slow.closed.now().empty());
}

TEST_CASE("both ways at once with hardly any room, nothing waits for ever") {
  auto random = test::generator(44);
  CAPTURE(test::seed());
  Root root(mib);
  Worker worker(root, true, mib);
  std::vector<std::shared_ptr<const Buffer>> down, up;
  for (int i = 0; i < 40; ++i) {
    down.push_back(random_body(random, random() % (3 * mib)));
    up.push_back(random_body(random, random() % (3 * mib)));
    worker.roots->send(frame_of(down.back()));
    worker.mine->send(frame_of(up.back()));
  }
  CHECK(all_arrive(worker.bodies, down));
  CHECK(all_arrive(root.bodies, up));
}

TEST_CASE("a worker that is given up reads nothing of what others are sent in its place") {
  Root root(2 * mib);
  Worker late(root, false);
  late.roots->send(frame_of(std::make_shared<const Buffer>(2 * mib, std::byte{'a'})));
  REQUIRE(soon([&] { return root.network->counters().copied == 2 * mib; }));
  late.roots->abort({Code::timed_out, "too slow"});
  REQUIRE(root.closed.wait_for(1).size() == 1);
  Worker next(root);
  const auto other = std::make_shared<const Buffer>(2 * mib, std::byte{'b'});
  next.roots->send(frame_of(other));
  REQUIRE(all_arrive(next.bodies, {other}));
  REQUIRE(root.network->counters().without_room == 0); // it was the same place
  late.start();
  REQUIRE(late.closed.wait_for(1).size() == 1);
  for (const Buffer& body : late.bodies.now()) // none, or what was sent
    CHECK(body == Buffer(2 * mib, std::byte{'a'}));
}

TEST_CASE("a peer that is killed in the middle of a frame closes its connection, and nothing is left of it") {
  Root root;
  const std::size_t descriptors = open_descriptors();
  const std::size_t mappings = shared_mappings();
  const std::string address = root.listener->address();
  const Memory memory(4 * mib);
  const auto begin = frame_header(4 * mib);
  const auto gives = message(region(0, 4 * mib));
  const auto lends = message({ShmKind::segment, 0, 0, mib});
  const pid_t child = ::fork();
  if (child == 0) { // system calls only
    const int socket = connect_by_hand(address);
    say(socket, gives, std::array{memory.file});
    say(socket, begin);
    say(socket, lends);
    for (;;)
      ::pause();
  }
  REQUIRE(child > 0);
  const auto accepted = root.accepted.wait_for(1);
  REQUIRE(accepted.size() == 1);
  CHECK(accepted[0]->peer() == fmt::format("shm:{}#{}", address, child));
  root.start(*accepted[0]);
  REQUIRE(soon([&] { return shared_mappings() == mappings + 2; })); // the test's own, and the root's
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const auto closed = root.closed.wait_for(1);
  REQUIRE(closed.size() == 1);
  CHECK(closed[0].code == Code::peer_failed);
  CHECK_THAT(closed[0].message, test::contains("middle of a frame") && test::contains(accepted[0]->peer()));
  CHECK(root.bodies.now().empty());
  CHECK(soon([&] { return shared_mappings() == mappings + 1; }));
  CHECK(soon([&] { return open_descriptors() == descriptors + 1; })); // the test's own
}

TEST_CASE("a worker that is killed while it reads costs the others nothing") {
  Root root(8 * mib);
  Worker alive(root);
  const pid_t child = ::fork();
  const std::string address = root.listener->address();
  if (child == 0) { // takes a place in the memory, and never reads it
    connect_by_hand(address);
    for (;;)
      ::pause();
  }
  const auto accepted = root.accepted.wait_for(2);
  REQUIRE(accepted.size() == 2);
  root.start(*accepted[1]);
  const auto body = std::make_shared<const Buffer>(8 * mib, std::byte{'x'});
  accepted[1]->send(frame_of(body));
  REQUIRE(soon([&] { return root.network->counters().in_use == 8 * mib; }));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  REQUIRE(root.closed.wait_for(1).size() == 1);
  const auto next = std::make_shared<const Buffer>(8 * mib, std::byte{'y'});
  const std::uint64_t without_room = root.network->counters().without_room;
  alive.roots->send(frame_of(next));
  CHECK(all_arrive(alive.bodies, {next}));
  CHECK(root.network->counters().without_room == without_room);
}

TEST_CASE("a peer that lies is closed with the cause before memory is touched") {
  const Memory sealed(mib);
  const Memory loose(mib, F_SEAL_GROW);
  const Memory no_last_seal(mib, all_seals & ~F_SEAL_SEAL);
  const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  const int pipe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  using Messages = std::vector<std::pair<std::vector<std::byte>, std::vector<int>>>;
  const auto lie = [&](ShmMessage segment) {
    return Messages{{message(region(0, mib)), {sealed.file}}, {frame_header(4 * mib), {}}, {message(segment), {}}};
  };
  const auto gives = [](std::uint64_t bytes, int descriptor) {
    return Messages{{message(region(0, bytes)), {descriptor}}};
  };
  const auto odd = [](std::size_t at) {
    auto bytes = frame_header(5);
    bytes[at] = std::byte{9};
    return Messages{{bytes, {}}};
  };
  struct Case {
    const char* what;
    Messages messages;
    const char* says;
  };
  const std::vector<Case> cases = {
    {"a region never given", lie({ShmKind::segment, 1, 0, 1}), "which it has not given"},
    {"past the end", lie({ShmKind::segment, 0, 1, mib}), "refers to 1048576 bytes at 1"},
    {"all past the end", lie({ShmKind::segment, 0, mib + 1, 1}), "refers to 1 bytes"},
    {"around the end of numbers", lie({ShmKind::segment, 0, ~std::uint64_t{0}, 2}), "refers to 2 bytes"},
    {"longer than numbers", lie({ShmKind::segment, 0, 1, ~std::uint64_t{0}}), "at 1 of shared memory"},
    {"of no bytes", lie({ShmKind::segment, 0, 0, 0}), "broken message"},
    {"released what was never lent", lie({.kind = ShmKind::released, .length = 1}), "0 were lent"},
    {"memory that may shrink", gives(mib, loose.file), "not sealed"},
    {"memory that may get other seals", gives(mib, no_last_seal.file), "not sealed"},
    {"less than it says", gives(2 * mib, sealed.file), "not 2097152 bytes of memory"},
    {"a file", gives(mib, file), "not 1048576 bytes of memory"},
    {"a socket", gives(mib, pipe), "not 1048576 bytes of memory"},
    {"too much", gives(1ull << 40, sealed.file), "the limit is"},
    {"out of turn", {{message(region(1, mib)), {sealed.file}}}, "after 0 others"},
    {"too many regions", {{message(region(most_regions, mib)), {sealed.file}}}, "broken message"},
    {"without a descriptor", {{message(region(0, mib)), {}}}, "none where one does"},
    {"a descriptor with bytes", {{frame_header(4), {sealed.file}}}, "where none belongs"},
    {"two descriptors", {{message(region(0, mib)), {sealed.file, sealed.file}}}, "more than one descriptor"},
    {"an unknown kind", odd(0), "unknown kind 9"},
    {"a reserved field", odd(2), "broken message"},
    {"an offset of bytes", odd(8), "broken message"},
    {"another length", odd(16), "broken message"},
    {"half a message", {{std::vector<std::byte>(7), {}}}, "a message of 7 bytes"},
    {"too long a message", {{std::vector<std::byte>(100'000), {}}}, "too long"},
  };
  Root root;
  const std::size_t descriptors = open_descriptors();
  std::size_t closed = 0;
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const int socket = connect_by_hand(root.listener->address());
    REQUIRE(socket >= 0);
    root.start(*root.accepted.wait_for(closed + 1).at(closed));
    for (const auto& [bytes, with] : c.messages)
      REQUIRE(say(socket, bytes, with));
    const auto reasons = root.closed.wait_for(++closed);
    REQUIRE(reasons.size() == closed);
    CHECK(reasons.back().code == Code::peer_failed);
    CHECK_THAT(reasons.back().message, test::contains(c.says) && test::starts_with("shm:127.0.0.1:"));
    ::close(socket);
  }
  CHECK(root.bodies.now().empty());
  CHECK(soon([&] { return open_descriptors() == descriptors; }));
  Worker honest(root);
  honest.roots->send(raw_frame("still here"));
  CHECK(honest.bodies.wait_for(1).size() == 1);
  ::close(file);
  ::close(pipe);
}

TEST_CASE("what is read of a message is what was written, and one changed byte is refused or means something else") {
  auto random = test::generator(45);
  CAPTURE(test::seed());
  for (int i = 0; i < 20'000; ++i) {
    ShmMessage said;
    said.kind = static_cast<ShmKind>(1 + random() % 5);
    const bool region = said.kind == ShmKind::region || said.kind == ShmKind::segment;
    said.region = region ? static_cast<std::uint32_t>(random() % most_regions) : 0;
    said.offset = said.kind == ShmKind::segment ? random() : 0;
    said.length = said.kind == ShmKind::end ? 0 : 1 + random() % most_inline_bytes;
    std::vector<std::byte> follows(said.kind == ShmKind::bytes ? said.length : 0);
    auto bytes = message(said, follows);
    const auto read = read_shm_message(bytes);
    REQUIRE(read);
    REQUIRE(*read == said);
    const std::size_t at = random() % shm_head_bytes;
    bytes[at] ^= static_cast<std::byte>(1 + random() % 255);
    if (const auto other = read_shm_message(bytes)) {
      REQUIRE(*other != said);
      const auto again = message(*other, follows);
      REQUIRE(again == bytes);
    }
  }
}

TEST_CASE("addresses are loopback, and names of this host are one") {
  auto network = network_with();
  for (const char* far : {"10.0.0.1:29500", "[2001:db8::1]:29500", "example.org:29500", "0.0.0.0:29500"}) {
    CAPTURE(far);
    const auto listener = network->listen(far, [](auto) {});
    REQUIRE(!listener);
    CHECK(listener.error().code == Code::invalid_argument);
    CHECK_THAT(listener.error().message, test::contains(far) && test::contains("use the transport \"tcp\""));
    std::promise<Failure> failed;
    network->connect(far, Clock::now() + 10s, [&](auto result) { failed.set_value(result.error()); });
    CHECK(failed.get_future().get().code == Code::invalid_argument);
  }
  const auto listener = network->listen("localhost:0", [](auto) {});
  REQUIRE(listener);
  const std::string port = (*listener)->address().substr((*listener)->address().rfind(':'));
  CHECK((*listener)->address() == "127.0.0.1" + port);
  std::promise<std::string> peer;
  network->connect("localhost" + port, Clock::now() + 10s,
                   [&](auto result) { peer.set_value(result ? (*result)->peer() : result.error().message); });
  CHECK(peer.get_future().get() == "shm:127.0.0.1" + port);
  CHECK(network->listen("[::1]" + port, [](auto) {})); // another address, as for tcp
}

TEST_CASE("the port of an adopted socket is the name, and stays taken") {
  auto network = network_with();
  CHECK(!network->adopt(-1, [](auto) {}));
  int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in any = loopback(0);
  REQUIRE(::bind(descriptor, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0);
  REQUIRE(::listen(descriptor, 1) == 0);
  sockaddr_in name{};
  socklen_t size = sizeof name;
  REQUIRE(::getsockname(descriptor, reinterpret_cast<sockaddr*>(&name), &size) == 0);
  const std::string address = fmt::format("127.0.0.1:{}", ntohs(name.sin_port));
  auto listener = network->adopt(descriptor, [](auto) {});
  REQUIRE(listener);
  CHECK((*listener)->address() == address);
  auto tcp = make_tcp_network(raw_framing(), "dw-io", 1);
  CHECK(!tcp->listen(address, [](auto) {}));
  std::promise<bool> connected;
  network->connect(address, Clock::now() + 10s, [&](auto result) { connected.set_value(result.has_value()); });
  CHECK(connected.get_future().get());
  listener->reset();
  CHECK(tcp->listen(address, [](auto) {}));
}

TEST_CASE("processes of another user are turned away, whoever of the two listens") {
  if (::geteuid() != 0)
    return; // nobody else may take another user's name
  constexpr uid_t somebody_else = 65534;
  Root root;
  const std::string address = root.listener->address();
  const pid_t caller = ::fork();
  if (caller == 0) {
    socklen_t size = 0;
    const sockaddr_un name = name_of(address, 0, size);
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (::setuid(somebody_else) != 0 || ::connect(socket, reinterpret_cast<const sockaddr*>(&name), size) != 0)
      ::_exit(1);
    char byte = 0;
    ::_exit(::recv(socket, &byte, 1, 0) <= 0 ? 0 : 2);
  }
  int status = -1;
  REQUIRE(::waitpid(caller, &status, 0) == caller);
  CHECK(status == 0);
  const auto refused = root.refused.wait_for(1);
  REQUIRE(refused.size() == 1);
  CHECK_THAT(refused[0].message, test::contains(fmt::format("process {} of user {}", caller, somebody_else)));
  CHECK(root.accepted.now().empty());

  std::array<int, 2> ready{};
  REQUIRE(::pipe2(ready.data(), O_CLOEXEC) == 0);
  const std::string taken = "127.0.0.1:1"; // nobody else's here: no port is taken
  const pid_t impostor = ::fork();
  if (impostor == 0) {
    socklen_t size = 0;
    const sockaddr_un name = name_of(taken, 0, size);
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (::setuid(somebody_else) != 0 || ::bind(socket, reinterpret_cast<const sockaddr*>(&name), size) != 0 ||
        ::listen(socket, 1) != 0)
      ::_exit(1);
    const char byte = 1;
    if (::write(ready[1], &byte, 1) != 1)
      ::_exit(1);
    for (;;)
      ::pause();
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  std::promise<Failure> failed;
  root.network->connect(taken, Clock::now() + 30s,
                        [&](auto result) { failed.set_value(result ? Failure{} : result.error()); });
  const Failure why = failed.get_future().get();
  CHECK(why.code == Code::peer_failed);
  CHECK_THAT(why.message, test::contains(fmt::format("process {} of user {}", impostor, somebody_else)));
  ::kill(impostor, SIGKILL);
  ::waitpid(impostor, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}
