#include "command.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace deltawire::test {

namespace {

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr)
    throw std::runtime_error(std::string(name) + " is not set: run this through meson test");
  return value;
}

/// The fields after the name in /proc/PID/stat: state, parent, ...
std::istringstream process_facts(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(')');
  return std::istringstream(name_end == std::string::npos ? "" : text.substr(name_end + 1));
}

} // namespace

Scratch::Scratch() {
  static std::atomic<int> count{0};
  directory_ = std::filesystem::temp_directory_path() /
               ("deltawire-process-" + std::to_string(::getpid()) + "-" + std::to_string(++count));
  std::filesystem::create_directories(directory_);
}

Scratch::~Scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

std::string Scratch::write(const std::string& name, const std::string& content) const {
  std::ofstream{path(name), std::ios::binary} << content;
  return path(name);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw std::runtime_error(path + ": cannot be read");
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

std::string source_path(const std::string& relative) {
  return from_environment("DELTAWIRE_SOURCE") + "/" + relative;
}

Running::Running(const std::vector<std::string>& arguments, const std::string& standard_output) {
  const std::string program = from_environment("DELTAWIRE_COMMAND");
  std::vector<std::string> words{"deltawire"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);

  const std::string out = standard_output.empty() ? scratch_.path("out") : standard_output;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, scratch_.path("err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int error = ::posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    throw std::runtime_error(program + ": cannot be started");
}

Running::~Running() {
  if (ended_)
    return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Running::signal(int number) const {
  if (!ended_)
    ::kill(pid_, number);
}

std::vector<pid_t> Running::children(const std::vector<std::string>& words) const {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos)
      continue;
    std::string state;
    pid_t parent = 0;
    if (!(process_facts(name) >> state >> parent) || parent != pid_)
      continue;
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    // Whole words only: a port may end in the digit of an index.
    const std::string line = '\0' + std::string{std::istreambuf_iterator<char>(file), {}};
    bool all = true;
    for (const std::string& word : words)
      all = all && line.find('\0' + word + '\0') != std::string::npos;
    if (all)
      found.push_back(static_cast<pid_t>(std::stol(name)));
  }
  return found;
}

Ended Running::wait(double seconds) {
  if (ended_)
    return *ended_;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int status = 0;
  bool gave_up = false;
  while (::waitpid(pid_, &status, gave_up ? 0 : WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      gave_up = true;
      ::kill(pid_, SIGKILL);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  Ended ended;
  ended.status = gave_up ? 124 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  ended.out = std::filesystem::exists(scratch_.path("out")) ? read_file(scratch_.path("out")) : "";
  ended.err = read_file(scratch_.path("err"));
  ended_ = ended;
  return ended;
}

Ended run_command(const std::vector<std::string>& arguments) {
  Running running(arguments);
  return running.wait();
}

bool is_alive(pid_t pid) {
  std::string state;
  return (process_facts(std::to_string(pid)) >> state) && state != "Z" && state != "X";
}

namespace {

/// Binds to a port of 127.0.0.1 that the system chooses. -1 where it has none.
int bind_to_any(int socket) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  if (::bind(socket, generic, length) != 0 || ::getsockname(socket, generic, &length) != 0)
    return -1;
  return ntohs(address.sin_port);
}

} // namespace

int reserve_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1; // stays open
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const int port = bind_to_any(socket);
  if (port < 0)
    throw std::runtime_error("no port to reserve");
  return port;
}

TakenPort::TakenPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), port_(bind_to_any(socket_)) {
  if (port_ < 0 || ::listen(socket_, 1) != 0)
    throw std::runtime_error("no port to listen on");
}

TakenPort::~TakenPort() {
  ::close(socket_);
}

} // namespace deltawire::test
