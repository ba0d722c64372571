#include "proxy.hpp"

#include "sessions/job.hpp"
#include "wire/frame.hpp"

#include <algorithm>
#include <cerrno>
#include <span>
#include <stdexcept>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace deltawire::test {
namespace {

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

int socket_of_stream() {
  const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0)
    throw std::runtime_error("no socket for the proxy");
  return made;
}

void ready(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
}

void close_by_reset(int socket) {
  const linger at_once{1, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  ::close(socket);
}

} // namespace

Proxy::Proxy(int root_port, const std::vector<std::string>& peers, std::uint64_t seed)
  : root_port_(root_port), random_(seed) {
  for (const std::string& peer : peers) {
    Door door{peer, socket_of_stream(), 0};
    sockaddr_in address = loopback(0);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof address;
    if (::bind(door.socket, generic, length) != 0 || ::getsockname(door.socket, generic, &length) != 0)
      throw std::runtime_error("no port for the proxy");
    door.port = ntohs(address.sin_port);
    doors_.push_back(door);
  }
  if (::pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0)
    throw std::runtime_error("no pipe for the proxy");
  thread_ = std::thread([this] { run(); });
}

Proxy::Proxy(int root_port, const std::vector<std::string>& peers, std::chrono::milliseconds delay)
  : Proxy(root_port, peers, 0) {
  const std::lock_guard lock(mutex_);
  delay_ = delay;
}

Proxy::~Proxy() {
  over_ = true;
  wake();
  thread_.join();
  for (Link& link : links_)
    if (!link.dead)
      end_hard(link);
  for (const Door& door : doors_)
    ::close(door.socket);
  for (const int end : wake_)
    ::close(end);
}

std::string Proxy::address(const std::string& peer) const {
  for (const Door& door : doors_)
    if (door.peer == peer)
      return "127.0.0.1:" + std::to_string(door.port);
  throw std::runtime_error("the proxy has no door for " + peer);
}

void Proxy::wake() const {
  [[maybe_unused]] const auto written = ::write(wake_[1], "", 1);
}

void Proxy::stop_at(const Moment& moment) {
  const std::lock_guard lock(mutex_);
  moment_ = moment;
  stopped_ = false;
}

bool Proxy::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

void Proxy::go_on(bool lose) {
  const std::lock_guard lock(mutex_);
  moment_.reset();
  for (Link& link : links_)
    for (Way* way : {&link.up, &link.down})
      if (std::exchange(way->waits, false) && !link.dead) {
        way->loses = lose;
        move_frames(link, *way);
      }
  wake();
}

void Proxy::reset(const std::optional<std::string>& peer) {
  const std::lock_guard lock(mutex_);
  for (Link& link : links_)
    if (!link.dead && (!peer || link.peer == *peer))
      end_hard(link);
  wake();
}

void Proxy::damage(const std::string& peer, bool to_root) {
  const std::lock_guard lock(mutex_);
  damage_ = Damage{peer, to_root};
}

int Proxy::damaged() const {
  const std::lock_guard lock(mutex_);
  return damaged_;
}

// The thread
// ------------------------------------------------------------------------------------------------------------------

void Proxy::run() {
  std::vector<pollfd> polled;
  std::vector<std::pair<Link*, Way*>> of; // of each polled socket behind doors and pipe
  while (!over_) {
    int patience_ms = 0;
    polled.clear();
    of.clear();
    {
      const std::lock_guard lock(mutex_);
      links_.remove_if([](const Link& link) { return link.dead; });
      if (!open_ && somebody_listens(root_port_))
        open_doors();
      patience_ms = open_ && delay_.count() == 0 ? 1000 : 5;
      polled.push_back({wake_[0], POLLIN, 0});
      if (open_)
        for (const Door& door : doors_)
          polled.push_back({door.socket, POLLIN, 0});
      for (Link& link : links_)
        for (Way* way : {&link.up, &link.down}) {
          if (!way->ended) {
            polled.push_back({way->from, POLLIN, 0});
            of.emplace_back(&link, way);
          }
          if (!way->out.empty()) {
            polled.push_back({way->to, POLLOUT, 0});
            of.emplace_back(&link, way);
          }
        }
    }
    ::poll(polled.data(), polled.size(), patience_ms);
    char words[64];
    while (::read(wake_[0], words, sizeof words) > 0)
      ;
    const std::lock_guard lock(mutex_);
    // Only this thread opens links and doors and removes links: what was polled is there, though it may be dead.
    const std::size_t first = polled.size() - of.size();
    for (std::size_t i = 0; i < of.size(); ++i) {
      const auto& [link, way] = of[i];
      const pollfd& found = polled[first + i];
      if (link->dead || found.revents == 0)
        continue;
      if ((found.events & POLLIN) != 0)
        read(*link, *way);
      else
        write(*link, *way);
    }
    for (std::size_t i = 1; i < first; ++i)
      if (polled[i].revents != 0)
        admit(doors_[i - 1]);
    for (Link& link : links_)
      for (Way* way : {&link.up, &link.down})
        if (!link.dead)
          write(link, *way);
  }
}

void Proxy::open_doors() {
  for (const Door& door : doors_)
    if (::listen(door.socket, 64) != 0)
      throw std::runtime_error("the proxy cannot listen");
  open_ = true;
}

void Proxy::admit(const Door& door) {
  const int near = ::accept4(door.socket, nullptr, nullptr, SOCK_CLOEXEC);
  if (near < 0)
    return;
  const int far = socket_of_stream();
  const sockaddr_in root = loopback(root_port_);
  if (::connect(far, reinterpret_cast<const sockaddr*>(&root), sizeof root) != 0) {
    ::close(far);
    return close_by_reset(near);
  }
  ready(near);
  ready(far);
  Link link;
  link.peer = door.peer;
  link.up.from = link.down.to = near;
  link.up.to = link.down.from = far;
  link.up.to_root = true;
  links_.push_back(std::move(link));
}

void Proxy::read(Link& link, Way& way) {
  char bytes[1 << 16];
  const ssize_t count = ::recv(way.from, bytes, sizeof bytes, 0);
  if (count < 0) {
    if (errno != EAGAIN && errno != EINTR)
      end_hard(link);
    return;
  }
  if (count == 0)
    way.ended = true;
  else if (delay_.count() != 0)
    way.late.emplace_back(std::chrono::steady_clock::now() + delay_,
                          std::string(bytes, static_cast<std::size_t>(count)));
  else
    way.in.append(bytes, static_cast<std::size_t>(count));
  move_frames(link, way);
}

/// Moves the front of what has come in on, damaged where that is wanted.
void Proxy::take(const Link& link, Way& way, std::size_t bytes) {
  std::string part = way.in.substr(0, bytes);
  way.in.erase(0, bytes);
  if (damage_ && damage_->peer == link.peer && damage_->to_root == way.to_root) {
    part[random_() % part.size()] ^= static_cast<char>(1 << random_() % 8);
    damage_.reset();
    ++damaged_;
  }
  way.out += part;
}

void Proxy::move_frames(const Link& link, Way& way) {
  if (way.loses)
    way.in.clear();
  while (!way.waits && !way.in.empty()) {
    if (way.rest != 0) {
      take(link, way, way.rest);
      way.rest = 0;
      continue;
    }
    if (way.in.size() < wire::header_bytes)
      return;
    const auto header = wire::read_header(std::as_bytes(std::span(way.in)).first<wire::header_bytes>());
    if (!header)
      throw std::runtime_error("the proxy met what is no frame: " + header.error().message);
    const std::size_t bytes = wire::header_bytes + header->payload_bytes;
    if (way.in.size() < bytes)
      return;
    if (moment_ && !stopped_ && moment_->peer == link.peer && moment_->to_root == way.to_root &&
        std::find(moment_->types.begin(), moment_->types.end(), header->type) != moment_->types.end()) {
      stopped_ = way.waits = true;
      if (moment_->half_gone) {
        way.out += way.in.substr(0, bytes / 2);
        way.in.erase(0, bytes / 2);
        way.rest = bytes - bytes / 2;
      }
      return;
    }
    take(link, way, bytes);
  }
}

void Proxy::write(Link& link, Way& way) {
  for (; !way.late.empty() && way.late.front().first <= std::chrono::steady_clock::now(); way.late.pop_front())
    way.out += way.late.front().second;
  while (!way.out.empty()) {
    const ssize_t count = ::send(way.to, way.out.data(), way.out.size(), MSG_NOSIGNAL);
    if (count < 0) {
      if (errno != EAGAIN && errno != EINTR)
        end_hard(link);
      return;
    }
    way.out.erase(0, static_cast<std::size_t>(count));
  }
  if (way.ended && !way.waits && way.late.empty() && !std::exchange(way.told, true))
    ::shutdown(way.to, SHUT_WR);
  if (!link.up.told || !link.down.told)
    return;
  link.dead = true;
  ::close(link.up.from);
  ::close(link.up.to);
}

void Proxy::end_hard(Link& link) {
  link.dead = true;
  close_by_reset(link.up.from);
  close_by_reset(link.up.to);
}

} // namespace deltawire::test
