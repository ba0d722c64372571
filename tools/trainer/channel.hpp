// Messages between the processes of a run, over stream sockets that the launcher made; and the collectives of a few
// processes over them. Everything throws std::runtime_error that names the peer: when it hung up, and when nothing
// moved for the deadline. All processes are one executable on one machine, so numbers travel as they lie in memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace trainer {

using Bytes = std::vector<std::byte>;

/// Appends numbers, or arrays with their length in front.
class Writer {
public:
  template <class T>
  Writer& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return append(&value, sizeof value);
  }
  template <class T>
  Writer& put(std::span<const T> values) {
    put<std::uint64_t>(values.size());
    return append(values.data(), values.size_bytes());
  }
  [[nodiscard]] Bytes take() { return std::move(bytes_); }

private:
  Writer& append(const void* data, std::size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
    return *this;
  }
  Bytes bytes_;
};

/// Reads what a Writer wrote, in the same order; throws where a message is too short.
class Reader {
public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  [[nodiscard]] T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, next(sizeof value).data(), sizeof value);
    return value;
  }
  template <class T>
  [[nodiscard]] std::vector<T> get_all() {
    const auto count = get<std::uint64_t>();
    if (count > bytes_.size() / sizeof(T))
      throw std::runtime_error("a message is shorter than it says");
    std::vector<T> values(count);
    const auto from = next(count * sizeof(T));
    if (count > 0)
      std::memcpy(values.data(), from.data(), from.size());
    return values;
  }
  [[nodiscard]] std::span<const std::byte> rest() const noexcept { return bytes_; }

private:
  std::span<const std::byte> next(std::size_t size) {
    if (size > bytes_.size())
      throw std::runtime_error("a message is shorter than it says");
    const auto taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }
  std::span<const std::byte> bytes_;
};

/// One end of a socket to one peer. Move-only owner.
class Channel {
public:
  /// `peer` is for messages, e.g. "worker 1".
  Channel(int descriptor, std::string peer, std::chrono::nanoseconds deadline);
  Channel(Channel&& other) noexcept;
  Channel& operator=(Channel&& other) noexcept;
  ~Channel();

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  [[nodiscard]] const std::string& peer() const noexcept { return peer_; }

  void send(Bytes message);
  [[nodiscard]] Bytes receive();

private:
  friend class Group;
  struct Transfer;
  static void complete(std::span<Transfer> transfers);

  int descriptor_ = -1;
  std::string peer_;
  std::chrono::nanoseconds deadline_{};
};

/// The processes of one side, each of which calls the same functions in the same order.
class Group {
public:
  /// `others`: a channel to each other member, in their order.
  Group(std::uint32_t index, std::vector<Channel> others);

  [[nodiscard]] std::uint32_t index() const noexcept { return index_; }
  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(others_.size()) + 1; }

  /// outgoing[m] goes to member m; returns what each member has for this one, its own included.
  [[nodiscard]] std::vector<Bytes> exchange(std::vector<Bytes> outgoing);
  /// Everybody gets everybody's.
  [[nodiscard]] std::vector<Bytes> all_gather(const Bytes& own);
  /// Sums element by element in the order of members, so that all get the same bits.
  void all_reduce(std::span<float> values);

private:
  std::uint32_t index_;
  std::vector<Channel> others_;
};

} // namespace trainer
