// Stands between a root and its peers, on a port of its own for each peer, and moves the frames of their plain TCP
// connections on as they are; until a test wants to stop at one, end connections by a reset, or damage what goes by. It
// listens as soon as the root does for the first time; where the root does not listen later, a peer is met by a reset.
// Or it knows nothing of frames, and is slow: whatever comes goes on a while later.
//
// One thread of its own moves the bytes; the calls are thread-safe and take effect at once.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace deltawire::test {

/// A frame on its way between the root and a peer ("rank 1", "worker 0").
struct Moment {
  std::string peer;
  bool to_root = true;
  std::vector<std::uint16_t> types; ///< any of these
  bool half_gone = false;           ///< the first half of its bytes has gone on
};

class Proxy {
public:
  Proxy(int root_port, const std::vector<std::string>& peers, std::uint64_t seed);
  /// The slow one.
  Proxy(int root_port, const std::vector<std::string>& peers, std::chrono::milliseconds delay);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  /// Where a peer is to call.
  [[nodiscard]] std::string address(const std::string& peer) const;

  /// The next such frame waits, and what is behind it in its connection and direction.
  void stop_at(const Moment& moment);
  [[nodiscard]] bool stopped() const;
  /// What waits goes on, or is lost with all that follows in that connection and direction.
  void go_on(bool lose);

  /// The connections of a peer, or of all, end by a reset on both sides.
  void reset(const std::optional<std::string>& peer);

  /// A bit of the frame that waits is flipped, if it is on this way; else of the next frame that comes this way.
  void damage(const std::string& peer, bool to_root);
  /// How many frames were damaged so far.
  [[nodiscard]] int damaged() const;

private:
  /// One direction of a connection.
  struct Way {
    int from = -1, to = -1;
    bool to_root = false;
    std::deque<std::pair<std::chrono::steady_clock::time_point, std::string>> late; ///< and when it goes on
    std::string in, out;  ///< not looked at yet; to be written
    std::size_t rest = 0; ///< at the front of `in`: of a frame that has gone in part
    bool ended = false;   ///< nothing more comes
    bool told = false;    ///< the other side was told so
    bool waits = false;   ///< at the moment
    bool loses = false;
  };
  struct Link {
    std::string peer;
    bool dead = false;
    Way up, down;
  };
  struct Door {
    std::string peer;
    int socket = -1;
    int port = 0;
  };
  struct Damage {
    std::string peer;
    bool to_root = false;
  };

  void run();
  void wake() const;
  void open_doors();
  void admit(const Door& door);
  void read(Link& link, Way& way);
  void move_frames(const Link& link, Way& way);
  void take(const Link& link, Way& way, std::size_t bytes);
  void write(Link& link, Way& way);
  static void end_hard(Link& link);

  mutable std::mutex mutex_;
  int root_port_;
  std::mt19937_64 random_;
  std::chrono::milliseconds delay_{0};
  std::vector<Door> doors_;
  bool open_ = false;
  std::list<Link> links_;
  std::optional<Moment> moment_;
  bool stopped_ = false;
  std::optional<Damage> damage_;
  int damaged_ = 0;
  int wake_[2] = {-1, -1};
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

} // namespace deltawire::test
