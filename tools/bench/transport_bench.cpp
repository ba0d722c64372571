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
#include <mutex>
#include <thread>
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

/// Two ends of one connection, each of a network of its own, unless they meet within one.
class Pair {
public:
  using Make = std::unique_ptr<Network> (*)();

  /// `shared`: both ends live on one network.
  static Result<std::unique_ptr<Pair>> open(Make make, const std::string& address, bool shared) {
    auto pair = std::unique_ptr<Pair>(new Pair);
    pair->server_ = make();
    if (!shared)
      pair->client_ = make();
    Network& client = shared ? *pair->server_ : *pair->client_;
    Meeting& meeting = pair->meeting_;
    auto listener = pair->server_->listen(address, [&meeting](std::shared_ptr<Connection> connection) {
      connection->admit(); // nobody else knows the port
      meeting.set(meeting.far, std::move(connection));
    });
    if (!listener)
      return pass_on(std::move(listener));
    pair->listener_ = std::move(*listener);
    client.connect(pair->listener_->address(), steady_clock::now() + patience,
                   [&meeting](Result<std::shared_ptr<Connection>> connection) {
                     if (connection)
                       meeting.set(meeting.near, std::move(*connection));
                     else
                       meeting.fail(connection.error());
                   });
    if (auto met = meeting.wait(); !met)
      return pass_on(std::move(met));
    pair->start();
    return pair;
  }

  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  ~Pair() {
    listener_.reset();
    const Failure over{Code::internal, "the benchmark is over"};
    for (Network* network : {client_.get(), server_.get()})
      if (network != nullptr)
        network->shutdown(over);
  }

  /// Sends `count` frames of this body and waits until all have arrived.
  Result<void> send(const std::shared_ptr<const Buffer>& body, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      meeting_.near->send({header_of(body->size()), body});
    sent_ += count;
    return at_far_.wait(sent_);
  }

  /// A small frame there and one back, `count` times.
  Result<void> round_trips(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      meeting_.near->send({header_of(0), nullptr});
      if (auto there = at_far_.wait(++sent_); !there)
        return there;
      meeting_.far->send({header_of(0), nullptr});
      if (auto back = at_near_.wait(++returned_); !back)
        return back;
    }
    return {};
  }

private:
  struct Meeting {
    std::mutex mutex;
    std::condition_variable changed;
    std::shared_ptr<Connection> near;
    std::shared_ptr<Connection> far;
    std::optional<Failure> failure;

    void set(std::shared_ptr<Connection>& end, std::shared_ptr<Connection> connection) {
      const std::lock_guard lock(mutex);
      end = std::move(connection);
      changed.notify_all();
    }
    void fail(const Failure& why) {
      const std::lock_guard lock(mutex);
      failure = why;
      changed.notify_all();
    }
    Result<void> wait() {
      std::unique_lock lock(mutex);
      changed.wait_for(lock, patience, [this] { return failure || (near && far); });
      if (failure)
        return tl::make_unexpected(*failure);
      if (!near || !far)
        return deltawire::fail(Code::timed_out, "the two ends of a connection did not meet within {} s",
                               patience.count());
      return {};
    }
  };

  Pair() = default;

  void start() {
    meeting_.far->start(
      {[this](transport::Incoming&&) { at_far_.frame(); }, [this](const Failure& failure) { at_far_.fail(failure); }});
    meeting_.near->start({[this](transport::Incoming&&) { at_near_.frame(); },
                          [this](const Failure& failure) { at_near_.fail(failure); }});
  }

  Meeting meeting_;
  Arrivals at_near_;
  Arrivals at_far_;
  std::size_t sent_ = 0;
  std::size_t returned_ = 0;
  std::unique_ptr<Network> server_; ///< its callbacks use all of the above
  std::unique_ptr<Network> client_;
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
  std::vector<double> limit;
};

template <class Own, class Reference>
Result<Times> alternate(std::size_t runs, Own&& own, Reference&& reference) {
  Times times;
  for (std::size_t run = 0; run <= runs; ++run) {
    auto begin = steady_clock::now();
    if (auto worked = own(); !worked)
      return pass_on(std::move(worked));
    const double mine = seconds_since(begin);
    begin = steady_clock::now();
    reference();
    const double its = seconds_since(begin);
    if (run == 0) // warms up
      continue;
    times.own.push_back(mine);
    times.limit.push_back(its);
  }
  return times;
}

struct Kind {
  const char* name;
  const char* limit;
  Pair::Make make;
  const char* address;
  bool within_process;
};

constexpr std::array kinds{
  Kind{"tcp", "bare sockets", [] { return transport::make_tcp_network(framing(), "dw-bench", 1); }, "127.0.0.1:0",
       false},
  Kind{"in process", "memcpy", [] { return transport::make_inproc_network(framing()); }, "127.0.0.1:0", true},
};

/// Frames of one size, as many as make up `bytes`.
Result<Row> bench_frames(const Kind& kind, Pair& pair, const BareSockets& bare, std::size_t frame, std::size_t bytes,
                         std::size_t runs) {
  const auto body = std::make_shared<const Buffer>(frame, std::byte{7});
  const std::size_t count = std::max<std::size_t>(1, bytes / frame);
  Buffer into(kind.within_process ? frame : std::min(frame, std::size_t{1} << 20));
  const auto times = alternate(
    runs, [&] { return pair.send(body, count); },
    [&] {
      if (!kind.within_process)
        return bare.send(*body, count, into);
      for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(into.data(), body->data(), frame);
        keep(std::to_integer<std::size_t>(into[i % frame]));
      }
    });
  if (!times)
    return tl::make_unexpected(times.error());
  const auto moved = static_cast<double>(frame * count);
  return Row{kind.name,
             fmt::format("{} frames of {} KiB", count, frame / 1024),
             1,
             moved / median(times->own),
             {{kind.limit, moved / median(times->limit), median_ratio(times->own, times->limit)}}};
}

/// Adds the time of a round trip to a row.
Result<void> add_round_trip(const Kind& kind, Pair& pair, const BareSockets& bare, std::size_t runs, Row& row) {
  constexpr std::size_t trips = 1000;
  const auto times = alternate(
    runs, [&] { return pair.round_trips(trips); },
    [&] {
      if (!kind.within_process)
        bare.round_trips(trips);
    });
  if (!times)
    return tl::make_unexpected(times.error());
  row.figures.push_back({"latency", "round trip", "us", median(times->own) / trips * 1e6});
  if (!kind.within_process)
    row.figures.push_back({"latency", "bare round trip", "us", median(times->limit) / trips * 1e6});
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
    auto pair = Pair::open(kind.make, kind.address, kind.within_process);
    if (!pair)
      return pass_on(std::move(pair));
    for (const std::size_t frame : {std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{16} << 20}) {
      auto row = bench_frames(kind, **pair, *bare, frame, bytes, runs);
      if (!row)
        return pass_on(std::move(row));
      report.rows.push_back(std::move(*row));
    }
    if (auto added = add_round_trip(kind, **pair, *bare, runs, report.rows.back()); !added)
      return pass_on(std::move(added));
  }
  return report;
}

} // namespace deltawire::bench
