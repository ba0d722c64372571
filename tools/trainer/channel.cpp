#include "channel.hpp"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace trainer {

namespace {

/// More than any message of a run.
constexpr std::uint64_t largest_message = std::uint64_t{1} << 30;

} // namespace

/// A message out, or one in, or both at once. A message is its length in 8 bytes, then that many bytes.
struct Channel::Transfer {
  Channel* channel = nullptr;
  std::optional<Bytes> out{}; ///< with the length in front
  std::size_t sent = 0;
  bool wants_message = false;
  std::uint64_t length = 0; ///< of the message that comes in, known once `got` is at least its own size
  std::size_t got = 0;      ///< of length and message together
  Bytes in{};

  static Bytes framed(Bytes message) {
    const std::uint64_t size = message.size();
    message.insert(message.begin(), sizeof size, std::byte{});
    std::memcpy(message.data(), &size, sizeof size);
    return message;
  }

  [[nodiscard]] bool sending() const { return out && sent < out->size(); }
  [[nodiscard]] bool receiving() const {
    return wants_message && (got < sizeof length || got < sizeof length + length);
  }

  /// What moved.
  std::size_t send_some() {
    const ssize_t count =
      ::send(channel->descriptor_, out->data() + sent, out->size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
      return 0;
    if (count < 0)
      throw std::runtime_error(fmt::format("{} hung up: {}", channel->peer_, std::strerror(errno)));
    sent += static_cast<std::size_t>(count);
    return static_cast<std::size_t>(count);
  }

  std::size_t receive_some() {
    void* to = got < sizeof length ? reinterpret_cast<std::byte*>(&length) + got : in.data() + (got - sizeof length);
    const std::size_t wanted = (got < sizeof length ? 0 : length) + sizeof length - got;
    const ssize_t count = ::recv(channel->descriptor_, to, wanted, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
      return 0;
    if (count <= 0)
      throw std::runtime_error(
        fmt::format("{} hung up{}{}", channel->peer_, count < 0 ? ": " : "", count < 0 ? std::strerror(errno) : ""));
    got += static_cast<std::size_t>(count);
    if (got == sizeof length) {
      if (length > largest_message)
        throw std::runtime_error(fmt::format("{} announced a message of {} bytes", channel->peer_, length));
      in.resize(length);
    }
    return static_cast<std::size_t>(count);
  }
};

Channel::Channel(int descriptor, std::string peer, std::chrono::nanoseconds deadline)
  : descriptor_(descriptor), peer_(std::move(peer)), deadline_(deadline) {}

Channel::Channel(Channel&& other) noexcept
  : descriptor_(std::exchange(other.descriptor_, -1)), peer_(std::move(other.peer_)), deadline_(other.deadline_) {}

Channel& Channel::operator=(Channel&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(peer_, other.peer_);
  std::swap(deadline_, other.deadline_);
  return *this;
}

Channel::~Channel() {
  if (descriptor_ >= 0)
    ::close(descriptor_);
}

void Channel::complete(std::span<Transfer> transfers) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point moved = Clock::now();
  for (;;) {
    std::vector<pollfd> waits;
    std::vector<Transfer*> waiting;
    for (Transfer& transfer : transfers) {
      const int events = (transfer.sending() ? POLLOUT : 0) | (transfer.receiving() ? POLLIN : 0);
      if (events != 0) {
        waits.push_back({transfer.channel->descriptor_, static_cast<short>(events), 0});
        waiting.push_back(&transfer);
      }
    }
    if (waits.empty())
      return;
    const Channel& first = *waiting.front()->channel;
    const auto left = first.deadline_ - (Clock::now() - moved);
    if (left <= left.zero())
      throw std::runtime_error(fmt::format("nothing came from {} for {:.1f} s (--deadline)", first.peer_,
                                           std::chrono::duration<double>(first.deadline_).count()));
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(left);
    if (::poll(waits.data(), waits.size(), static_cast<int>(wait.count())) < 0 && errno != EINTR)
      throw std::runtime_error(fmt::format("poll: {}", std::strerror(errno)));
    for (std::size_t i = 0; i < waits.size(); ++i) {
      std::size_t bytes = 0;
      if ((waits[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && waiting[i]->receiving())
        bytes += waiting[i]->receive_some();
      if ((waits[i].revents & (POLLOUT | POLLHUP | POLLERR)) != 0 && waiting[i]->sending())
        bytes += waiting[i]->send_some();
      if (bytes > 0)
        moved = Clock::now();
    }
  }
}

void Channel::send(Bytes message) {
  Transfer transfer{.channel = this, .out = Transfer::framed(std::move(message))};
  complete({&transfer, 1});
}

Bytes Channel::receive() {
  Transfer transfer{.channel = this, .wants_message = true};
  complete({&transfer, 1});
  return std::move(transfer.in);
}

Group::Group(std::uint32_t index, std::vector<Channel> others) : index_(index), others_(std::move(others)) {}

std::vector<Bytes> Group::exchange(std::vector<Bytes> outgoing) {
  std::vector<Channel::Transfer> transfers;
  for (std::uint32_t member = 0, other = 0; member < size(); ++member)
    if (member != index_)
      transfers.push_back(
        {.channel = &others_[other++], .out = Channel::Transfer::framed(outgoing[member]), .wants_message = true});
  Channel::complete(transfers);
  std::vector<Bytes> incoming;
  for (std::uint32_t member = 0, other = 0; member < size(); ++member)
    incoming.push_back(std::move(member == index_ ? outgoing[member] : transfers[other++].in));
  return incoming;
}

std::vector<Bytes> Group::all_gather(const Bytes& own) {
  return exchange(std::vector<Bytes>(size(), own));
}

void Group::all_reduce(std::span<float> values) {
  const auto bytes = std::as_bytes(values);
  const std::vector<Bytes> all = all_gather(Bytes(bytes.begin(), bytes.end()));
  std::fill(values.begin(), values.end(), 0.0F);
  for (const Bytes& part : all) {
    if (part.size() != bytes.size())
      throw std::runtime_error("members of a group disagree on what they sum");
    for (std::size_t i = 0; i < values.size(); ++i) {
      float value = 0;
      std::memcpy(&value, part.data() + i * sizeof value, sizeof value);
      values[i] += value;
    }
  }
}

} // namespace trainer
