#include "transport_bench.hpp"

#include "changing_weights.hpp"
#include "measure.hpp"

#include "transport/transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace deltawire::bench {
namespace {

using std::chrono::steady_clock;
using transport::Buffer;
using transport::Connection;
using transport::Network;

constexpr std::size_t header_bytes = 8; ///< of a frame here: the length of its body
constexpr auto patience = std::chrono::seconds(60);

transport::Framing framing() {
  return {header_bytes, [](std::span<const std::byte> header) -> Result<std::uint64_t> {
            std::uint64_t bytes = 0;
            std::memcpy(&bytes, header.data(), sizeof bytes);
            return bytes;
          }};
}

std::vector<std::byte> header_of(std::uint64_t body) {
  std::vector<std::byte> header(header_bytes);
  std::memcpy(header.data(), &body, sizeof body);
  return header;
}

double seconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

/// Counts what arrives, and keeps the first failure.
class Arrivals {
public:
  void frame() {
    const std::lock_guard lock(mutex_);
    ++frames_;
    changed_.notify_all();
  }

  void fail(const Failure& failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_)
      failure_ = failure;
    changed_.notify_all();
  }

  /// Waits until this many frames have arrived in all.
  Result<void> wait(std::size_t frames) {
    std::unique_lock lock(mutex_);
    const bool there = changed_.wait_for(lock, patience, [&] { return failure_ || frames_ >= frames; });
    if (failure_)
      return tl::make_unexpected(*failure_);
    if (!there)
      return deltawire::fail(Code::timed_out, "{} of {} frames arrived within {} s", frames_, frames, patience.count());
    return {};
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t frames_ = 0;
  std::optional<Failure> failure_;
};

/// A root and the peers that have connected to it, each on a network of its own unless they meet within one.
class Star {
public:
  using Make = Result<std::unique_ptr<Network>> (*)();

  /// `shared`: all live on one network.
  static Result<std::unique_ptr<Star>> open(Make make, const std::string& address, bool shared, std::size_t peers) {
    auto star = std::unique_ptr<Star>(new Star);
    for (std::size_t i = 0; i < (shared ? 1 : 1 + peers); ++i) {
      auto made = make();
      if (!made)
        return pass_on(std::move(made));
      star->networks_.push_back(std::move(*made));
    }
    Meeting& meeting = star->meeting_;
    auto listener = star->networks_[0]->listen(address, [&meeting](std::shared_ptr<Connection> connection) {
      connection->admit(); // nobody else knows the port
      meeting.add(meeting.at_root, std::move(connection));
    });
    if (!listener)
      return pass_on(std::move(listener));
    star->listener_ = std::move(*listener);
    for (std::size_t i = 0; i < peers; ++i)
      star->networks_[shared ? 0 : 1 + i]->connect(star->listener_->address(), steady_clock::now() + patience,
                                                   [&meeting](Result<std::shared_ptr<Connection>> connection) {
                                                     if (connection)
                                                       meeting.add(meeting.at_peers, std::move(*connection));
                                                     else
                                                       meeting.fail(connection.error());
                                                   });
    if (auto met = meeting.wait(peers); !met)
      return pass_on(std::move(met));
    star->start();
    return star;
  }

  Star(const Star&) = delete;
  Star& operator=(const Star&) = delete;
  ~Star() {
    listener_.reset();
    const Failure over{Code::internal, "the benchmark is over"};
    for (auto network = networks_.rbegin(); network != networks_.rend(); ++network)
      (*network)->shutdown(over);
  }

  [[nodiscard]] std::size_t peers() const noexcept { return meeting_.at_root.size(); }

  /// Sends every peer `count` frames of this body and waits until all have arrived.
  Result<void> send(const std::shared_ptr<const Buffer>& body, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      // An owner of its own for each frame: to a transport it is another body, whose bytes it has not seen.
      const std::shared_ptr<const Buffer> own(body.get(), [body](const Buffer*) {});
      for (const auto& connection : meeting_.at_root)
        connection->send({header_of(body->size()), own});
    }
    sent_ += count * peers();
    return arrived_.wait(sent_);
  }

  /// A small frame there and one back, `count` times.
  Result<void> round_trips(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      meeting_.at_root[0]->send({header_of(0), nullptr});
      if (auto there = arrived_.wait(++sent_); !there)
        return there;
      meeting_.at_peers[0]->send({header_of(0), nullptr});
      if (auto back = returned_.wait(++answers_); !back)
        return back;
    }
    return {};
  }

private:
  struct Meeting {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::shared_ptr<Connection>> at_root;
    std::vector<std::shared_ptr<Connection>> at_peers;
    std::optional<Failure> failure;

    void add(std::vector<std::shared_ptr<Connection>>& ends, std::shared_ptr<Connection> connection) {
      const std::lock_guard lock(mutex);
      ends.push_back(std::move(connection));
      changed.notify_all();
    }
    void fail(const Failure& why) {
      const std::lock_guard lock(mutex);
      failure = why;
      changed.notify_all();
    }
    Result<void> wait(std::size_t peers) {
      std::unique_lock lock(mutex);
      const bool there = changed.wait_for(
        lock, patience, [&] { return failure || (at_root.size() == peers && at_peers.size() == peers); });
      if (failure)
        return tl::make_unexpected(*failure);
      if (!there)
        return deltawire::fail(Code::timed_out, "the ends of the connections did not meet within {} s",
                               patience.count());
      return {};
    }
  };

  Star() = default;

  void start() {
    for (const auto& connection : meeting_.at_peers)
      connection->start({[this](transport::Incoming&&) { arrived_.frame(); },
                         [this](const Failure& failure) { arrived_.fail(failure); }});
    for (const auto& connection : meeting_.at_root)
      connection->start({[this](transport::Incoming&&) { returned_.frame(); },
                         [this](const Failure& failure) { returned_.fail(failure); }});
  }

  Meeting meeting_;
  Arrivals arrived_;
  Arrivals returned_;
  std::size_t sent_ = 0;
  std::size_t answers_ = 0;
  std::vector<std::unique_ptr<Network>> networks_; ///< the root's first; their callbacks use all of the above
  std::unique_ptr<transport::Listener> listener_;
};

/// Two connected TCP sockets of 127.0.0.1, without Nagle's delay.
class BareSockets {
public:
  static Result<BareSockets> open() {
    BareSockets made;
    const int listening = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    made.near_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::bind(listening, generic, sizeof address) == 0 && ::listen(listening, 1) == 0 &&
        ::getsockname(listening, generic, &length) == 0 && ::connect(made.near_, generic, sizeof address) == 0)
      made.far_ = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    const int error = errno;
    if (listening >= 0)
      ::close(listening);
    if (made.far_ < 0)
      return fail(Code::internal, "no connection over 127.0.0.1: {}", std::strerror(error));
    const int on = 1;
    for (const int socket : {made.near_, made.far_})
      ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return made;
  }

  BareSockets(BareSockets&& other) noexcept
    : near_(std::exchange(other.near_, -1)), far_(std::exchange(other.far_, -1)) {}
  BareSockets& operator=(BareSockets&& other) noexcept {
    std::swap(near_, other.near_);
    std::swap(far_, other.far_);
    return *this;
  }
  ~BareSockets() {
    for (const int socket : {near_, far_})
      if (socket >= 0)
        ::close(socket);
  }

  /// Writes the body `count` times on one thread and reads it into one place on another.
  void send(const Buffer& body, std::size_t count, Buffer& into) const {
    std::jthread reader([&] {
      for (std::size_t left = body.size() * count; left > 0;) {
        const ssize_t got = ::read(far_, into.data(), std::min(left, into.size()));
        if (got <= 0)
          return;
        left -= static_cast<std::size_t>(got);
      }
    });
    for (std::size_t i = 0; i < count; ++i)
      write_all(near_, body.data(), body.size());
  }

  void round_trips(std::size_t count) const {
    std::jthread other([&] {
      std::array<std::byte, header_bytes> frame;
      for (std::size_t i = 0; i < count; ++i) {
        read_all(far_, frame);
        write_all(far_, frame.data(), frame.size());
      }
    });
    std::array<std::byte, header_bytes> frame{};
    for (std::size_t i = 0; i < count; ++i) {
      write_all(near_, frame.data(), frame.size());
      read_all(near_, frame);
    }
  }

private:
  BareSockets() = default;

  static void write_all(int socket, const std::byte* data, std::size_t bytes) {
    while (bytes > 0) {
      const ssize_t count = ::write(socket, data, bytes);
      if (count <= 0)
        return;
      data += count;
      bytes -= static_cast<std::size_t>(count);
    }
  }

  static void read_all(int socket, std::span<std::byte> into) {
    while (!into.empty()) {
      const ssize_t count = ::read(socket, into.data(), into.size());
      if (count <= 0)
        return;
      into = into.subspan(static_cast<std::size_t>(count));
    }
  }

  int near_ = -1;
  int far_ = -1;
};

/// Seconds a turn, by the clock: what waits for a peer or the kernel counts too.
struct Times {
  std::vector<double> own;
  std::vector<std::vector<double>> limits;
};

/// What a transport is held against.
struct Reference {
  const char* name;
  std::function<void()> run;
};

template <class Own>
Result<Times> alternate(std::size_t runs, Own&& own, const std::vector<Reference>& references) {
  Times times;
  times.limits.resize(references.size());
  for (std::size_t run = 0; run <= runs; ++run) { // the first warms up
    const auto clocked = [&](std::vector<double>& into, auto&& work) -> Result<void> {
      const auto begin = steady_clock::now();
      if constexpr (std::is_void_v<decltype(work())>)
        work();
      else if (auto worked = work(); !worked)
        return worked;
      if (run != 0)
        into.push_back(seconds_since(begin));
      return {};
    };
    if (auto worked = clocked(times.own, own); !worked)
      return pass_on(std::move(worked));
    for (std::size_t i = 0; i < references.size(); ++i)
      (void)clocked(times.limits[i], references[i].run);
  }
  return times;
}

struct Kind {
  const char* name;
  Star::Make make;
  bool sockets; ///< held against bare TCP sockets
  bool memory;  ///< held against memcpy
  bool within_process;
};

Result<std::unique_ptr<Network>> over_shared_memory() {
  auto made = transport::make_shm_network(framing(), "dw-bench", 1, {});
  if (!made)
    return pass_on(std::move(made));
  return std::unique_ptr<Network>(std::move(*made));
}

constexpr std::array kinds{
  Kind{"tcp",
       []() -> Result<std::unique_ptr<Network>> { return transport::make_tcp_network(framing(), "dw-bench", 1); }, true,
       false, false},
  Kind{"shared memory", over_shared_memory, true, true, false},
  Kind{"in process", []() -> Result<std::unique_ptr<Network>> { return transport::make_inproc_network(framing()); },
       false, true, true},
};

constexpr const char* address = "127.0.0.1:0";

/// Frames of one size to every peer, as many as make up `bytes` for each.
Result<Row> bench_frames(const Kind& kind, Star& star, const BareSockets& bare, std::size_t frame, std::size_t bytes,
                         std::size_t runs) {
  const auto body = std::make_shared<const Buffer>(frame, std::byte{7});
  const std::size_t count = std::max<std::size_t>(1, bytes / frame);
  const std::size_t delivered = count * star.peers();
  Buffer received(std::min(frame, std::size_t{1} << 20));
  Buffer copy(frame);
  std::vector<Reference> references;
  if (kind.sockets)
    references.push_back({"bare sockets", [&] { bare.send(*body, delivered, received); }});
  if (kind.memory)
    references.push_back({"memcpy", [&] {
                            for (std::size_t i = 0; i < delivered; ++i) {
                              std::memcpy(copy.data(), body->data(), frame);
                              keep(std::to_integer<std::size_t>(copy[i % frame]));
                            }
                          }});
  const auto times = alternate(
    runs, [&] { return star.send(body, count); }, references);
  if (!times)
    return tl::make_unexpected(times.error());
  const auto moved = static_cast<double>(frame * delivered);
  std::string input = fmt::format("{} frames of {} KiB", count, frame / 1024);
  if (star.peers() > 1)
    input += fmt::format(" to {} peers", star.peers());
  Row row{kind.name, std::move(input), 1, moved / median(times->own), {}};
  for (std::size_t i = 0; i < references.size(); ++i)
    row.limits.push_back(
      {references[i].name, moved / median(times->limits[i]), median_ratio(times->own, times->limits[i])});
  return row;
}

/// Adds the time of a round trip to a row.
Result<void> add_round_trip(const Kind& kind, Star& star, const BareSockets& bare, std::size_t runs, Row& row) {
  constexpr std::size_t trips = 1000;
  std::vector<Reference> references;
  if (kind.sockets)
    references.push_back({"bare round trip", [&] { bare.round_trips(trips); }});
  const auto times = alternate(
    runs, [&] { return star.round_trips(trips); }, references);
  if (!times)
    return tl::make_unexpected(times.error());
  row.figures.push_back({"latency", "round trip", "us", median(times->own) / trips * 1e6});
  for (std::size_t i = 0; i < references.size(); ++i)
    row.figures.push_back({"latency", references[i].name, "us", median(times->limits[i]) / trips * 1e6});
  return {};
}

} // namespace

Result<Report> transport_bench(const BenchOptions& options) {
  const auto bytes = static_cast<std::size_t>(options.gib.value_or(0.25) * 0x1p30);
  const auto runs = static_cast<std::size_t>(options.runs.value_or(5));
  Report report{"transport", {}};
  auto bare = BareSockets::open();
  if (!bare)
    return pass_on(std::move(bare));
  for (const Kind& kind : kinds) {
    auto star = Star::open(kind.make, address, kind.within_process, 1);
    if (!star)
      return pass_on(std::move(star));
    for (const std::size_t frame : {std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{16} << 20}) {
      auto row = bench_frames(kind, **star, *bare, frame, bytes, runs);
      if (!row)
        return pass_on(std::move(row));
      report.rows.push_back(std::move(*row));
    }
    if (auto added = add_round_trip(kind, **star, *bare, runs, report.rows.back()); !added)
      return pass_on(std::move(added));
    star->reset();
    constexpr std::size_t workers = 4;
    auto route = Star::open(kind.make, address, kind.within_process, workers);
    if (!route)
      return pass_on(std::move(route));
    auto row = bench_frames(kind, **route, *bare, std::size_t{16} << 20, bytes / workers, runs);
    if (!row)
      return pass_on(std::move(row));
    report.rows.push_back(std::move(*row));
  }
  return report;
}

} // namespace deltawire::bench
