#include "launch.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace trainer {

namespace {

using Clock = std::chrono::steady_clock;

/// How long the others may take to end, and say why, after one has failed.
constexpr std::chrono::seconds grace{3};

/// Descriptors that children inherit lie from here on in this process, above those that they get in the child.
constexpr int first_own_descriptor = 64;
constexpr int first_child_descriptor = 3;

[[noreturn]] void fail_with_errno(const std::string& what) {
  throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

/// Move-only owner of a descriptor that no child gets by accident.
class Descriptor {
public:
  Descriptor() = default;
  explicit Descriptor(int low) : value_(::fcntl(low, F_DUPFD_CLOEXEC, first_own_descriptor)) {
    ::close(low);
    if (value_ < 0)
      fail_with_errno("no descriptor is left");
  }
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() {
    if (value_ >= 0)
      ::close(value_);
  }
  [[nodiscard]] int get() const noexcept { return value_; }
  [[nodiscard]] int release() noexcept { return std::exchange(value_, -1); }

private:
  int value_ = -1;
};

std::pair<Descriptor, Descriptor> socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    fail_with_errno("no socket pair");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// What one child is given, before it is started.
struct Plan {
  std::string name;
  std::string command; ///< "rank" or "worker"
  std::uint32_t index = 0;
  std::vector<Descriptor> group;
  std::vector<Descriptor> other_side;
  std::optional<Descriptor> listening_socket;
};

struct Child {
  std::string name;
  pid_t pid = 0;
  std::optional<Channel> events; ///< until it has ended
  std::optional<int> status;
  bool told_its_end = false;
};

/// A port of 127.0.0.1 that the system chose, bound before anybody starts, so that nobody can take it in between.
std::pair<Descriptor, std::string> listen_on_loopback() {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), generic, length) != 0 || ::listen(socket.get(), SOMAXCONN) != 0 ||
      ::getsockname(socket.get(), generic, &length) != 0)
    fail_with_errno("cannot listen on 127.0.0.1");
  return {std::move(socket), fmt::format("127.0.0.1:{}", ntohs(address.sin_port))};
}

/// Channels among all members of one side.
void connect_group(std::span<Plan> members) {
  for (std::size_t a = 0; a < members.size(); ++a)
    for (std::size_t b = a + 1; b < members.size(); ++b) {
      auto [at_a, at_b] = socket_pair();
      members[a].group.push_back(std::move(at_a));
      members[b].group.push_back(std::move(at_b)); // in order: members below b have had their turn
    }
}

std::vector<std::string> arguments_of(const Settings& s) {
  std::vector<std::string> arguments{s.topology,
                                     "--seed",
                                     std::to_string(s.seed),
                                     "--updates",
                                     std::to_string(s.updates),
                                     "--warm-up",
                                     std::to_string(s.warm_up),
                                     "--prompts",
                                     std::to_string(s.prompts),
                                     "--group",
                                     std::to_string(s.group),
                                     "--learning-rate",
                                     fmt::format("{}", s.learning_rate),
                                     "--deadline",
                                     std::to_string(s.deadline.count()),
                                     "--sync",
                                     s.sync == Sync::copy ? "copy" : "deltawire"};
  for (const std::string& set : s.overrides)
    arguments.insert(arguments.end(), {"--set", set});
  return arguments;
}

/// Settings of posix_spawn, released at the end.
struct SpawnActions {
  posix_spawn_file_actions_t value{};
  SpawnActions() { posix_spawn_file_actions_init(&value); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  ~SpawnActions() { posix_spawn_file_actions_destroy(&value); }
};

Child start(Plan plan, const std::string& master, const Settings& settings) {
  auto [here, there] = socket_pair();
  SpawnActions actions;
  int next = first_child_descriptor;
  std::vector<std::string> arguments{"deltawire-rl", plan.command};
  const auto more = arguments_of(settings);
  arguments.insert(arguments.end(), more.begin(), more.end());
  const auto inherit = [&](const char* option, const Descriptor& own) {
    posix_spawn_file_actions_adddup2(&actions.value, own.get(), next);
    arguments.insert(arguments.end(), {option, std::to_string(next++)});
  };
  arguments.insert(arguments.end(),
                   {"--index", std::to_string(plan.index), "--parent", std::to_string(::getpid()), "--master", master});
  inherit("--events-fd", there);
  for (const Descriptor& descriptor : plan.group)
    inherit("--group-fd", descriptor);
  for (const Descriptor& descriptor : plan.other_side)
    inherit("--other-side-fd", descriptor);
  if (plan.listening_socket)
    inherit("--listen-fd", *plan.listening_socket);

  std::vector<char*> argv;
  for (std::string& argument : arguments)
    argv.push_back(argument.data());
  argv.push_back(nullptr);
  Child child;
  child.name = plan.name;
  const int error = ::posix_spawn(&child.pid, "/proc/self/exe", &actions.value, nullptr, argv.data(), environ);
  if (error != 0)
    throw std::runtime_error(fmt::format("{} cannot be started: {}", plan.name, std::strerror(error)));
  child.events.emplace(here.release(), plan.name, settings.deadline);
  return child;
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  return fmt::format("ended with exit status {} before its work was done", WEXITSTATUS(status));
}

/// Kills and reaps whoever still runs, whatever happens.
struct Children {
  std::vector<Child> list;

  Children() = default;
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() {
    kill_running();
    for (Child& child : list)
      if (!child.status)
        reap(child);
  }

  void kill_running() {
    for (const Child& child : list)
      if (!child.status)
        ::kill(child.pid, SIGKILL); // not yet reaped: the id is still the child's
  }

  static void reap(Child& child) {
    int status = 0;
    while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
    }
    child.status = status;
  }
};

/// Hears all children until all have ended.
class Supervision {
public:
  Supervision(Children& children, const Settings& settings, const RunEvents& events)
    : children_(children), silence_(3 * settings.deadline), events_(events) {}

  std::vector<UpdateRecord> run() {
    heard_ = Clock::now();
    while (listen()) {
    }
    // Who died without a word is the cause; what the others say follows from it.
    std::stable_partition(failures_.begin(), failures_.end(), [](const Failure& f) { return f.without_a_word; });
    std::string text;
    for (const Failure& failure : failures_)
      text += (text.empty() ? "" : "\n") + failure.text;
    if (!text.empty())
      throw std::runtime_error(text);
    return std::move(records_);
  }

private:
  struct Failure {
    std::string text;
    bool without_a_word = false;
  };

  /// One wait for news; false when no child is left.
  bool listen() {
    std::vector<pollfd> waits;
    std::vector<Child*> heard;
    for (Child& child : children_.list)
      if (child.events) {
        waits.push_back({child.events->descriptor(), POLLIN, 0});
        heard.push_back(&child);
      }
    if (waits.empty())
      return false;
    const auto until = end_ ? *end_ : heard_ + silence_;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(std::max(until - Clock::now(), Clock::duration{}));
    if (::poll(waits.data(), waits.size(), static_cast<int>(left.count())) < 0 && errno != EINTR)
      fail_with_errno("poll");
    for (std::size_t i = 0; i < waits.size(); ++i)
      if (waits[i].revents != 0) {
        heard_ = Clock::now();
        hear(*heard[i]);
      }
    if (Clock::now() < (end_ ? *end_ : heard_ + silence_))
      return true;
    if (!end_)
      failures_.push_back({fmt::format("no process gave a sign of life for {} s", silence_.count())});
    children_.kill_running();
    killed_ = true;
    end_ = Clock::now() + grace;
    return true;
  }

  void hear(Child& child) {
    Bytes message;
    try {
      message = child.events->receive();
    } catch (const std::runtime_error&) { // it hung up, which processes that end do, or stopped in a message
      child.events.reset();
      ::kill(child.pid, SIGKILL); // changes nothing of how it ended, if it did
      Children::reap(child);
      if (!child.told_its_end && !killed_)
        fail({fmt::format("{} {}", child.name, describe_end(*child.status)), true});
      return;
    }
    note(child, message);
  }

  void note(Child& child, const Bytes& message) {
    Reader reader(message);
    switch (reader.get<Event>()) {
    case Event::warming:
      events_.on_warming(reader.get<std::uint32_t>());
      break;
    case Event::record:
      records_.push_back(reader.get<UpdateRecord>());
      events_.on_record(records_.back());
      break;
    case Event::failed: {
      const std::vector<char> text = reader.get_all<char>();
      child.told_its_end = true;
      fail({fmt::format("{}: {}", child.name, std::string(text.begin(), text.end())), false});
      break;
    }
    case Event::done:
      child.told_its_end = true;
      break;
    }
  }

  void fail(Failure failure) {
    failures_.push_back(std::move(failure));
    if (!end_)
      end_ = Clock::now() + grace;
  }

  Children& children_;
  std::chrono::seconds silence_;
  const RunEvents& events_;
  Clock::time_point heard_;
  std::optional<Clock::time_point> end_; ///< when who still runs is killed
  bool killed_ = false;                  ///< those who ran still
  std::vector<Failure> failures_;
  std::vector<UpdateRecord> records_;
};

} // namespace

std::vector<UpdateRecord> launch(const Settings& settings, const RunEvents& events) {
  std::vector<Plan> plans(rank_count + worker_count);
  const std::span all_ranks = std::span(plans).first(rank_count);
  const std::span all_workers = std::span(plans).subspan(rank_count);
  for (std::uint32_t r = 0; r < rank_count; ++r) {
    all_ranks[r].name = fmt::format("trainer rank {}", r);
    all_ranks[r].command = "rank";
    all_ranks[r].index = r;
  }
  for (std::uint32_t w = 0; w < worker_count; ++w) {
    all_workers[w].name = fmt::format("worker {}", w);
    all_workers[w].command = "worker";
    all_workers[w].index = w;
    auto [at_root, at_worker] = socket_pair();
    all_ranks[0].other_side.push_back(std::move(at_root));
    all_workers[w].other_side.push_back(std::move(at_worker));
  }
  connect_group(all_ranks);
  connect_group(all_workers);
  std::string master = "none";
  if (settings.sync == Sync::deltawire) {
    auto [socket, address] = listen_on_loopback();
    all_ranks[0].listening_socket = std::move(socket);
    master = address;
  }
  // One thread a process: sums in one order, and no more threads than cores.
  for (const char* variable : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"})
    ::setenv(variable, "1", 1);

  Children children;
  for (Plan& plan : plans)
    children.list.push_back(start(std::move(plan), master, settings));
  plans.clear(); // a channel whose process has ended closes
  return Supervision(children, settings, events).run();
}

void die_with(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent)
    throw std::runtime_error("the process that started this one is gone");
}

} // namespace trainer
