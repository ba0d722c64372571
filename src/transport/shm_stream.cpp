#include "transport/shm_stream.hpp"

#include "transport/shm_messages.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

#include <poll.h>
#include <sys/socket.h>

namespace deltawire::transport {
namespace {

/// A body of more bytes goes through the arena: below, copying it into the socket and out costs less than the messages.
constexpr std::size_t small_body = most_inline_bytes - 1024;
/// Copied in one turn of the io thread, which serves other connections too.
constexpr std::size_t turn_bytes = 4 << 20;

const error_code violated = make_error_code(boost::system::errc::protocol_error);

error_code last_error() {
  return {errno, boost::system::system_category()};
}

class ShmStream final : public ByteStream, public std::enable_shared_from_this<ShmStream> {
public:
  ShmStream(Socket socket, std::shared_ptr<Arena> arena)
    : socket_(std::move(socket)), arena_(std::move(arena)), message_(shm_head_bytes + most_inline_bytes) {
    close_on_exec(socket_.native_handle());
  }

  void read(asio::mutable_buffer into, Done done) override {
    begin_read(static_cast<std::byte*>(into.data()), nullptr, into.size(), true, std::move(done));
  }
  void read_some(asio::mutable_buffer into, Done done) override {
    begin_read(static_cast<std::byte*>(into.data()), nullptr, into.size(), false, std::move(done));
  }
  void append(Buffer& body, std::size_t bytes, Done done) override {
    begin_read(nullptr, &body, bytes, true, std::move(done));
  }

  void write(const Outgoing& frame, Done done) override {
    frame_ = &frame;
    said_ = 0;
    placed_.reset();
    total_ = frame.header.size() + (frame.body ? frame.body->size() : 0);
    if (frame.body && frame.body->size() > small_body)
      placed_ = arena_->place(frame.body); // null: through the socket
    written_ = std::move(done);
    asking_ = true;
    go_on_writing();
    asking_ = false;
  }

  void end_sending() override {
    ending_ = true;
    go_on_writing();
  }

  void close() override {
    error_code ignored;
    socket_.shutdown(Socket::shutdown_both, ignored); // also where a child process holds it, too
    socket_.close(ignored);
    // Only now: the peer does not believe what it reads of a segment once the connection is gone.
    placed_.reset();
    lent_.clear();
    available_ = {};
    of_segment_ = false;
    theirs_.clear();
  }

  [[nodiscard]] std::string explain(const error_code& error) const override {
    return error == violated ? why_ : error.message();
  }

  [[nodiscard]] int descriptor() override { return socket_.native_handle(); }

private:
  // Receiving

  void begin_read(std::byte* into, Buffer* body, std::size_t bytes, bool all, Done done) {
    into_ = into;
    body_ = body;
    wanted_ = bytes;
    have_ = 0;
    all_ = all;
    read_ = std::move(done);
    asking_ = true;
    go_on_reading();
    asking_ = false;
  }

  void go_on_reading() {
    std::size_t copied = 0;
    error_code error;
    while (have_ < wanted_ && (all_ || have_ == 0)) {
      if (available_.empty()) {
        error = next_message();
        if (error)
          break;
        continue;
      }
      if (copied >= turn_bytes) {
        asio::post(socket_.get_executor(), [self = shared_from_this()] { self->go_on_reading(); });
        return release();
      }
      const std::span<const std::byte> part = available_.first(std::min(available_.size(), wanted_ - have_));
      if (body_ != nullptr)
        body_->insert(body_->end(), part.begin(), part.end());
      else
        std::memcpy(into_ + have_, part.data(), part.size());
      have_ += part.size();
      copied += part.size();
      available_ = available_.subspan(part.size());
      if (of_segment_ && hung_up()) {
        error = asio::error::connection_reset;
        break;
      }
      if (of_segment_ && available_.empty()) {
        of_segment_ = false;
        ++to_release_;
      }
    }
    release();
    if (error != asio::error::would_block)
      return complete(read_, error, have_);
    socket_.async_wait(Socket::wait_read, [self = shared_from_this()](const error_code& failed) {
      failed ? self->complete(self->read_, failed, self->have_) : self->go_on_reading();
    });
  }

  /// Whether the peer has closed, or is gone: it may have lent the segment's place to somebody else since.
  [[nodiscard]] bool hung_up() {
    pollfd state{.fd = socket_.native_handle(), .events = 0, .revents = 0};
    return ::poll(&state, 1, 0) != 0; // only what is always told: an error, or the end
  }

  /// Takes one message, of any kind.
  error_code next_message() {
    if (ended_)
      return asio::error::eof;
    iovec place{message_.data(), message_.size()};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &place;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = CMSG_LEN(sizeof(int)); // one descriptor; the kernel closes what is more
    const ssize_t bytes = ::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0 && errno == EAGAIN)
      return asio::error::would_block;
    // Told once, before what has arrived, of a peer that closed without having read all of ours.
    if (bytes < 0 && (errno == EINTR || errno == ECONNRESET))
      return {};
    if (bytes < 0)
      return last_error();
    Descriptor descriptor;
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part))
      if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS && part->cmsg_len == CMSG_LEN(sizeof(int))) {
        int number = -1;
        std::memcpy(&number, CMSG_DATA(part), sizeof number);
        descriptor = Descriptor(number);
      }
    if (bytes == 0)
      return asio::error::eof;
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
      return violation("a message that is too long, or carries more than one descriptor");
    const std::span<const std::byte> taken(message_.data(), static_cast<std::size_t>(bytes));
    const auto said = read_shm_message(taken);
    if (!said)
      return violation(said.error().message);
    if (static_cast<bool>(descriptor) != (said->kind == ShmKind::region))
      return violation("a descriptor where none belongs, or none where one does");
    return take(*said, taken.subspan(shm_head_bytes), std::move(descriptor));
  }

  error_code take(const ShmMessage& said, std::span<const std::byte> follows, Descriptor descriptor) {
    switch (said.kind) {
    case ShmKind::bytes:
      available_ = follows;
      return {};
    case ShmKind::region: {
      if (said.region != theirs_.size())
        return violation(fmt::format("it gave shared memory {} after {} others", said.region, theirs_.size()));
      auto region = Region::map(std::move(descriptor), said.length);
      if (!region)
        return violation(region.error().message);
      theirs_.push_back(std::move(*region));
      return {};
    }
    case ShmKind::segment: {
      if (said.region >= theirs_.size())
        return violation(fmt::format("it refers to shared memory {}, which it has not given", said.region));
      const std::span<const std::byte> region = theirs_[said.region].view();
      if (said.offset > region.size() || said.length > region.size() - said.offset)
        return violation(
          fmt::format("it refers to {} bytes at {} of shared memory of {}", said.length, said.offset, region.size()));
      available_ = region.subspan(static_cast<std::size_t>(said.offset), static_cast<std::size_t>(said.length));
      of_segment_ = true;
      return {};
    }
    case ShmKind::released:
      if (said.length > lent_.size())
        return violation(fmt::format("it has read {} parts of shared memory, {} were lent", said.length, lent_.size()));
      lent_.erase(lent_.begin(), lent_.begin() + static_cast<std::ptrdiff_t>(said.length));
      return {};
    case ShmKind::end:
      ended_ = true;
      return {};
    }
    return violation("");
  }

  error_code violation(std::string why) {
    why_ = std::move(why);
    return violated;
  }

  void release() {
    if (to_release_ > 0)
      go_on_writing();
  }

  // Sending

  /// Sends until nothing is left to send, or the socket takes no more.
  void go_on_writing() {
    if (waits_to_write_)
      return;
    std::size_t copied = 0;
    while (to_release_ > 0 || written_ || (ending_ && !end_said_)) {
      error_code error;
      if (to_release_ > 0) {
        error = say({.kind = ShmKind::released, .length = to_release_});
        if (!error)
          to_release_ = 0;
      } else if (written_ && said_ == total_) {
        placed_.reset();
        complete(written_, {}, total_);
        continue; // a write that came meanwhile
      } else if (written_ && copied >= turn_bytes) {
        return later();
      } else if (written_) {
        error = say_more(copied);
      } else {
        error = say({.kind = ShmKind::end});
        end_said_ = !error;
      }
      if (error == asio::error::would_block) {
        waits_to_write_ = true;
        socket_.async_wait(Socket::wait_write, [self = shared_from_this()](const error_code& failed) {
          self->waits_to_write_ = false;
          failed ? self->fail_to_write(failed) : self->go_on_writing();
        });
        return;
      }
      if (error)
        return fail_to_write(error);
    }
  }

  void later() {
    waits_to_write_ = true;
    asio::post(socket_.get_executor(), [self = shared_from_this()] {
      self->waits_to_write_ = false;
      self->go_on_writing();
    });
  }

  /// The reader finds out by itself that the connection is gone.
  void fail_to_write(const error_code& error) {
    to_release_ = 0;
    end_said_ = true;
    if (written_)
      complete(written_, error, said_);
  }

  /// The next message of the frame.
  error_code say_more(std::size_t& copied) {
    const std::size_t header = frame_->header.size();
    if (placed_ && said_ >= header)
      return lend((said_ - header) / Arena::block_bytes, copied);
    // Bytes in the message itself: of a body that lies in the arena, the header only.
    std::array<iovec, 2> parts{};
    std::size_t count = 0;
    std::size_t bytes = 0;
    const auto add = [&](const std::vector<std::byte>& from, std::size_t begin) {
      const std::size_t more = std::min(from.size() - begin, most_inline_bytes - bytes);
      if (more == 0)
        return;
      // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): iovec knows no const; sendmsg writes nothing
      parts[count++] = {const_cast<std::byte*>(from.data()) + begin, more};
      bytes += more;
    };
    if (said_ < header)
      add(frame_->header, said_);
    if (frame_->body && !placed_)
      add(*frame_->body, said_ - std::min(said_, header));
    const error_code error = say({.kind = ShmKind::bytes, .length = bytes}, std::span(parts).first(count));
    if (!error)
      said_ += bytes;
    copied += bytes;
    return error;
  }

  /// A segment of the body, and before it the region that it lies in, unless the peer knows it.
  error_code lend(std::size_t index, std::size_t& copied) {
    const Arena::Segment segment = placed_->segment(index);
    while (given_ <= segment.region) {
      const int descriptor = arena_->descriptor(given_);
      if (const error_code error =
            say({.kind = ShmKind::region, .region = given_, .length = arena_->region_bytes(given_)}, {}, descriptor))
        return error;
      ++given_;
    }
    placed_->fill(index, *frame_->body);
    copied += segment.bytes;
    const error_code error = say({ShmKind::segment, segment.region, segment.offset, segment.bytes});
    if (!error) {
      lent_.push_back(placed_);
      said_ += segment.bytes;
    }
    return error;
  }

  /// One message, whole or not at all.
  error_code say(const ShmMessage& what, std::span<const iovec> follows = {}, int descriptor = -1) {
    auto head = write_shm_head(what);
    std::array<iovec, 3> parts{iovec{head.data(), head.size()}};
    std::copy(follows.begin(), follows.end(), parts.begin() + 1);
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = 1 + follows.size();
    if (descriptor >= 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* part = CMSG_FIRSTHDR(&message);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(part), &descriptor, sizeof descriptor);
    }
    for (;;) {
      if (::sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return {};
      if (errno == EAGAIN)
        return asio::error::would_block;
      if (errno != EINTR)
        return last_error();
    }
  }

  /// In a turn of its own where the operation has only been asked for.
  void complete(Done& kept, const error_code& error, std::size_t bytes) {
    Done done = std::exchange(kept, {});
    if (asking_)
      asio::post(socket_.get_executor(), [done = std::move(done), error, bytes] { done(error, bytes); });
    else
      done(error, bytes);
  }

  Socket socket_;
  const std::shared_ptr<Arena> arena_;
  bool asking_ = false; ///< within a call that asks for an operation
  std::string why_;     ///< of `violated`

  std::vector<std::byte> message_;       ///< the last one received
  std::span<const std::byte> available_; ///< bytes of frames, in it or in a segment
  bool of_segment_ = false;
  bool ended_ = false; ///< the peer sends no more frames
  std::vector<Region> theirs_;
  std::uint64_t to_release_ = 0; ///< segments that were read, and the peer does not know
  std::byte* into_ = nullptr;    ///< of the read under way; or else
  Buffer* body_ = nullptr;
  std::size_t wanted_ = 0;
  std::size_t have_ = 0;
  bool all_ = false;
  Done read_;

  const Outgoing* frame_ = nullptr; ///< of the write under way
  std::size_t total_ = 0;
  std::size_t said_ = 0;                  ///< bytes of it that messages told
  std::shared_ptr<Arena::Placed> placed_; ///< its body; null: goes through the socket
  Done written_;
  bool waits_to_write_ = false;
  bool ending_ = false;
  bool end_said_ = false;
  std::uint32_t given_ = 0;                         ///< regions of ours that the peer knows
  std::deque<std::shared_ptr<Arena::Placed>> lent_; ///< by segment, the oldest first: until the peer has read it
};

} // namespace

std::shared_ptr<ByteStream> make_shm_stream(Socket socket, std::shared_ptr<Arena> arena) {
  return std::make_shared<ShmStream>(std::move(socket), std::move(arena));
}

} // namespace deltawire::transport
