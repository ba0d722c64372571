#include "processes.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace deltawire::replay {

namespace {

using Clock = std::chrono::steady_clock;

/// How long the others may take to end after one has failed.
constexpr std::chrono::seconds grace{3};

/// Where a child finds what it inherits.
constexpr int child_events = 3;
constexpr int child_socket = 4;

/// Descriptors to be inherited are kept above those of the child, so that moving them down overwrites none.
constexpr int first_own_descriptor = 16;

class Descriptor {
public:
  Descriptor() = default;
  explicit Descriptor(int value) noexcept : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() { reset(); }

  [[nodiscard]] int get() const noexcept { return value_; }
  [[nodiscard]] bool open() const noexcept { return value_ >= 0; }
  void reset() noexcept {
    if (value_ >= 0)
      ::close(value_);
    value_ = -1;
  }

private:
  int value_ = -1;
};

/// A child that was started: alive until `status` is known, heard of until `events` is closed.
struct Child {
  Peer peer;
  pid_t pid = 0;
  Descriptor process; ///< readable once it ended; closed where the kernel has none to give
  Descriptor events;
  std::string unread; ///< the beginning of a line
  std::optional<int> status;
  Clock::time_point heard = Clock::now(); ///< last sign of life
  bool told_its_end = false;
  bool killed_by_us = false;

  [[nodiscard]] bool ended() const noexcept { return status && !events.open(); }
};

/// Kills and reaps whoever still runs, whatever happens.
class Children {
public:
  Children() = default;
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() { kill_all(); }

  std::vector<Child> list;

  void kill_running() {
    for (Child& child : list)
      if (!child.status) {
        child.killed_by_us = true;
        ::kill(child.pid, SIGKILL); // not yet reaped: the id is still the child's
      }
  }

  void kill_all() {
    kill_running();
    for (Child& child : list)
      if (!child.status)
        reap(child);
  }

  static void reap(Child& child) {
    int status = 0;
    while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
    }
    child.status = status;
    child.process.reset();
  }
};

/// Blocks the signals that end the command and reads them from a descriptor; restores the mask at its end.
class StopSignals {
public:
  StopSignals() {
    sigset_t stop;
    sigemptyset(&stop);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP})
      sigaddset(&stop, signal);
    sigprocmask(SIG_BLOCK, &stop, &before_);
    descriptor_ = Descriptor(::signalfd(-1, &stop, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }
  [[nodiscard]] const sigset_t& mask_before() const noexcept { return before_; }

  [[nodiscard]] int read_signal() const {
    signalfd_siginfo info{};
    if (::read(descriptor_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info))
      return 0;
    return static_cast<int>(info.ssi_signo);
  }

private:
  sigset_t before_{};
  Descriptor descriptor_;
};

/// What posix_spawn is told, released at the end.
struct SpawnSettings {
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};

  SpawnSettings() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
};

Result<Child> spawn(const ChildProcess& plan, int listening_socket, const sigset_t& mask) {
  // A socket pair rather than a pipe: events come back on it, and trainers are told their turns on it.
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return fail(Code::internal, "{}: no socket pair to a child process: {}", to_string(plan.peer),
                std::strerror(errno));
  Descriptor read_end{ends[0]};
  const Descriptor low_write_end{ends[1]};
  const Descriptor write_end{::fcntl(ends[1], F_DUPFD_CLOEXEC, first_own_descriptor)};
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);

  std::vector<std::string> arguments{"deltawire"};
  arguments.insert(arguments.end(), plan.arguments.begin(), plan.arguments.end());
  arguments.insert(arguments.end(),
                   {"--events-fd", std::to_string(child_events), "--parent", std::to_string(::getpid())});
  SpawnSettings settings;
  posix_spawn_file_actions_adddup2(&settings.actions, write_end.get(), child_events);
  if (listening_socket >= 0) {
    arguments.insert(arguments.end(), {"--listen-fd", std::to_string(child_socket)});
    posix_spawn_file_actions_adddup2(&settings.actions, listening_socket, child_socket);
  }
  posix_spawnattr_setsigmask(&settings.attributes, &mask);
  posix_spawnattr_setflags(&settings.attributes, POSIX_SPAWN_SETSIGMASK);

  std::vector<char*> argv;
  for (std::string& argument : arguments)
    argv.push_back(argument.data());
  argv.push_back(nullptr);
  Child child;
  child.peer = plan.peer;
  const int error =
    ::posix_spawn(&child.pid, "/proc/self/exe", &settings.actions, &settings.attributes, argv.data(), environ);
  if (error != 0)
    return fail(Code::internal, "{}: its process cannot be started: {}", to_string(plan.peer), std::strerror(error));
  // By number: <sys/pidfd.h> of glibc 2.36 (Debian 12) lacks extern "C".
  child.process = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
  child.events = std::move(read_end);
  return child;
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  return fmt::format("was gone with exit status {} before its work was done", WEXITSTATUS(status));
}

/// Takes what a child has written; closes the pipe at its end.
void read_events(Child& child, Record& record) {
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t count = ::read(child.events.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0 && errno == EAGAIN)
      return;
    if (count <= 0) {
      child.events.reset();
      return;
    }
    child.heard = Clock::now();
    child.unread.append(buffer.data(), static_cast<std::size_t>(count));
    std::size_t begin = 0;
    for (std::size_t end = child.unread.find('\n'); end != std::string::npos; end = child.unread.find('\n', begin)) {
      if (end == begin) { // a pulse
        begin = end + 1;
        continue;
      }
      auto event = event_from_line(std::string_view(child.unread).substr(begin, end - begin));
      if (!event)
        event = Event{PeerEnded{child.peer, event.error()}};
      child.told_its_end |= std::holds_alternative<PeerEnded>(*event);
      record.note(*event);
      begin = end + 1;
    }
    child.unread.erase(0, begin);
  }
}

class Supervision {
public:
  Supervision(Children& children, const StopSignals& signals, std::chrono::nanoseconds stall, Record& record,
              Progress& progress, const BeforeTurn& before_turn)
    : children_(children), signals_(signals),
      stall_(std::max<std::chrono::nanoseconds>(stall, std::chrono::seconds(1))),
      silence_(std::max<std::chrono::nanoseconds>(2 * stall, std::chrono::seconds(3))), record_(record),
      progress_(progress), before_turn_(before_turn) {}

  /// Returns when all have ended, with the signal that asked this process to stop, or 0.
  int run() {
    while (!all_ended()) {
      if (const int signal = wait_for_news(); signal != 0)
        return signal;
      listen_for_pulses();
      progress_.show(record_.versions_held(), record_.versions());
      give_turns();
      if (!give_up_ && record_.failed())
        give_up_ = Clock::now() + grace;
      if (give_up_ && Clock::now() >= *give_up_)
        children_.kill_running();
    }
    return 0;
  }

private:
  /// A byte to every trainer for each version that all workers hold and have proven.
  void give_turns() {
    for (; !given_up_ && turns_ < record_.versions_held(); ++turns_) {
      if (before_turn_ && !before_turn_(turns_ + 1)) {
        given_up_ = true;
        return children_.kill_running();
      }
      for (const Child& child : children_.list)
        if (child.peer.side == Peer::Side::trainer && child.events.open())
          (void)::send(child.events.get(), "t", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }

  /// A child that stands still says nothing, and nothing else may be waiting for it.
  void listen_for_pulses() {
    for (Child& child : children_.list) {
      if (child.peer.side == Peer::Side::worker)
        record_.note_silence(child.peer.index, Clock::now() - child.heard > stall_);
      if (!child.status && !child.killed_by_us && Clock::now() - child.heard > silence_) {
        record_.note_death(child.peer, fmt::format("gave no sign of life for {:.1f} s (twice update.stall)",
                                                   std::chrono::duration<double>(silence_).count()));
        child.killed_by_us = true;
        ::kill(child.pid, SIGKILL);
      }
    }
  }

  [[nodiscard]] bool all_ended() const {
    for (const Child& child : children_.list)
      if (!child.ended())
        return false;
    return true;
  }

  [[nodiscard]] int timeout() const {
    constexpr std::chrono::milliseconds look_around{200};
    if (!give_up_)
      return static_cast<int>(look_around.count());
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*give_up_ - Clock::now());
    // Killed already: only their ends are missing.
    return static_cast<int>(left.count() > 0 ? std::min(left, look_around).count() : 100);
  }

  int wait_for_news() {
    std::vector<pollfd> polled{{signals_.descriptor(), POLLIN, 0}};
    for (const Child& child : children_.list) { // poll() skips closed ones: they are -1
      polled.push_back({child.process.get(), POLLIN, 0});
      polled.push_back({child.events.get(), POLLIN, 0});
    }
    if (::poll(polled.data(), polled.size(), timeout()) <= 0)
      return 0;
    if (polled[0].revents != 0)
      return signals_.read_signal();
    for (std::size_t i = 0; i < children_.list.size(); ++i) {
      Child& child = children_.list[i];
      if (polled[1 + 2 * i].revents != 0)
        Children::reap(child);
      if (polled[2 + 2 * i].revents != 0)
        read_events(child, record_);
      if (!child.process.open() && !child.status && !child.events.open())
        Children::reap(child); // the end of its pipe is the only sign: it has ended or is about to
      if (child.ended() && (polled[1 + 2 * i].revents != 0 || polled[2 + 2 * i].revents != 0))
        judge(child);
    }
    return 0;
  }

  /// Both the process and its pipe have ended: nothing more will come.
  void judge(const Child& child) {
    if (!child.told_its_end && !child.killed_by_us)
      record_.note_death(child.peer, describe_end(*child.status));
  }

  Children& children_;
  const StopSignals& signals_;
  std::chrono::nanoseconds stall_;
  std::chrono::nanoseconds silence_; ///< after which a child counts as dead
  Record& record_;
  Progress& progress_;
  const BeforeTurn& before_turn_;
  bool given_up_ = false; ///< by before_turn_
  std::optional<Clock::time_point> give_up_;
  std::size_t turns_ = 0; ///< given to the trainers so far
};

struct FreeAddresses {
  void operator()(addrinfo* list) const noexcept { ::freeaddrinfo(list); }
};

Result<std::string> address_of(int descriptor) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  auto* generic = reinterpret_cast<sockaddr*>(&bound);
  if (::getsockname(descriptor, generic, &length) != 0 ||
      ::getnameinfo(generic, length, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return fail(Code::internal, "the address of a listening socket is unknown: {}", std::strerror(errno));
  return config::to_string({host.data(), static_cast<std::uint16_t>(std::stoul(port.data()))});
}

} // namespace

Result<ListeningSocket> ListeningSocket::open(const config::Address& address, const std::string& key) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string named = config::to_string(address);
  if (const int error = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
      error != 0)
    return fail(Code::invalid_argument, "{}: {}: no such address: {}", key, named, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, FreeAddresses> owner{found};

  const Descriptor low{::socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol)};
  const int reuse = 1; // a port of connections that just ended is free; one that somebody listens on is not
  ::setsockopt(low.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  if (::bind(low.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(low.get(), SOMAXCONN) != 0) {
    if (errno == EADDRINUSE)
      return fail(Code::address_in_use,
                  "{}: {}: address in use: another process listens there; choose another port, or 0 to let the system "
                  "choose",
                  key, named);
    return fail(Code::invalid_argument, "{}: {}: cannot listen there: {}", key, named, std::strerror(errno));
  }
  auto bound = address_of(low.get());
  if (!bound)
    return pass_on(std::move(bound));
  return ListeningSocket{::fcntl(low.get(), F_DUPFD_CLOEXEC, first_own_descriptor), std::move(*bound)};
}

ListeningSocket::ListeningSocket(ListeningSocket&& other) noexcept
  : descriptor_(std::exchange(other.descriptor_, -1)), address_(std::move(other.address_)) {}

ListeningSocket& ListeningSocket::operator=(ListeningSocket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(address_, other.address_);
  return *this;
}

ListeningSocket::~ListeningSocket() {
  if (descriptor_ >= 0)
    ::close(descriptor_);
}

Result<void> run_in_processes(const std::vector<ChildProcess>& plans, Peer root, ListeningSocket socket,
                              std::chrono::nanoseconds stall, Record& record, Progress& progress,
                              const BeforeTurn& before_turn) {
  const StopSignals signals;
  std::optional<ListeningSocket> held{std::move(socket)};
  int signal = 0;
  {
    Children children;
    for (const ChildProcess& plan : plans) {
      auto child = spawn(plan, plan.peer == root ? held->descriptor() : -1, signals.mask_before());
      if (!child)
        return pass_on(std::move(child));
      children.list.push_back(std::move(*child));
    }
    held.reset(); // only the root listens now: when it dies, its peers are refused rather than left in a queue
    signal = Supervision(children, signals, stall, record, progress, before_turn).run();
  }
  if (signal != 0) { // the children are gone; end as the signal would have ended this process
    ::signal(signal, SIG_DFL);
    ::raise(signal); // delivered when `signals` restores the mask
  }
  return {};
}

bool die_with_parent(int parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return ::getppid() == parent; // a parent that died before the line above sends nothing
}

std::function<bool(std::size_t versions)> turns_from(int descriptor) {
  return [descriptor, given = std::size_t{0}](std::size_t versions) mutable {
    for (; given < versions; ++given) {
      char turn = 0;
      ssize_t count = 0;
      while ((count = ::read(descriptor, &turn, 1)) < 0 && errno == EINTR) {
      }
      if (count <= 0)
        return false; // the parent is gone, and this process about to be
    }
    return true;
  };
}

namespace {

/// Lines are written whole: pulses and events of several threads share one descriptor.
std::mutex& line_mutex() {
  static std::mutex mutex;
  return mutex;
}

void write_line(int descriptor, const std::string& line) {
  const std::lock_guard lock(line_mutex());
  std::string_view left = line;
  while (!left.empty()) {
    const ssize_t count = ::write(descriptor, left.data(), left.size());
    if (count < 0 && errno != EINTR)
      return; // the parent is gone, and this process about to be
    left.remove_prefix(count > 0 ? static_cast<std::size_t>(count) : 0);
  }
}

} // namespace

Pulse::Pulse(int descriptor)
  : thread_([this, descriptor] {
      std::unique_lock lock(mutex_);
      while (!stopped_.wait_for(lock, std::chrono::milliseconds(250), [this] { return stop_; }))
        write_line(descriptor, "\n");
    }) {}

Pulse::~Pulse() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

EventSink line_sink(int descriptor) {
  return [descriptor](const Event& event) { write_line(descriptor, to_line(event) + "\n"); };
}

} // namespace deltawire::replay
