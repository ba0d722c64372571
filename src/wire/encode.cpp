// The archives, the fields of every message, and the instantiations. Encoding rules: FORMAT.md, "Control messages".
#include "wire/encode.hpp"

#include "wire/frame.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <stdexcept>
#include <type_traits>

#include <cereal/cereal.hpp>

// Every struct of messages.hpp. Adding one here (and its fields below) is all that a new message needs.
#define DELTAWIRE_MESSAGES(X)                                                                                          \
  X(Hello)                                                                                                             \
  X(Welcome)                                                                                                           \
  X(Refused)                                                                                                           \
  X(DeclareRank)                                                                                                       \
  X(Catalogue)                                                                                                         \
  X(DeclareWorker)                                                                                                     \
  X(Agreement)                                                                                                         \
  X(Agreed)                                                                                                            \
  X(Connected)                                                                                                         \
  X(CaptureReport)                                                                                                     \
  X(Offer)                                                                                                             \
  X(Grant)                                                                                                             \
  X(DeliveryReport)                                                                                                    \
  X(Drop)                                                                                                              \
  X(NextUpdate)                                                                                                        \
  X(Abandon)                                                                                                           \
  X(AuditReport)                                                                                                       \
  X(Begin)                                                                                                             \
  X(Ready)                                                                                                             \
  X(FlushStaged)                                                                                                       \
  X(Seal)                                                                                                              \
  X(Staged)                                                                                                            \
  X(Commit)                                                                                                            \
  X(Applied)                                                                                                           \
  X(Release)                                                                                                           \
  X(Released)                                                                                                          \
  X(Undo)                                                                                                              \
  X(Undone)                                                                                                            \
  X(Settle)                                                                                                            \
  X(Audit)                                                                                                             \
  X(Audited)                                                                                                           \
  X(Adopt)                                                                                                             \
  X(Failed)                                                                                                            \
  X(Goodbye)                                                                                                           \
  X(Heartbeat)

namespace deltawire::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are little-endian: swap the bytes on this host");

/// Thrown and caught within this file: cereal has no other way out of a load.
struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Archives
// ---------------------------------------------------------------------------------------------------------------

/// Appends to a vector of bytes.
class ByteWriter : public cereal::OutputArchive<ByteWriter> {
public:
  ByteWriter() : cereal::OutputArchive<ByteWriter>(this) {}

  void write(const void* data, std::size_t size) {
    if (size == 0)
      return;
    if (bytes_.size() - used_ < size) // grown by hand: resizing a vector for each field costs twice the time
      bytes_.resize(std::max({used_ + size, 2 * bytes_.size(), std::size_t{256}}));
    std::memcpy(bytes_.data() + used_, data, size);
    used_ += size;
  }

  [[nodiscard]] std::vector<std::byte> take() {
    bytes_.resize(used_);
    return std::move(bytes_);
  }

private:
  std::vector<std::byte> bytes_;
  std::size_t used_ = 0;
};

/// Counts what ByteWriter would append.
class ByteCounter : public cereal::OutputArchive<ByteCounter> {
public:
  ByteCounter() : cereal::OutputArchive<ByteCounter>(this) {}

  void write(const void*, std::size_t size) noexcept { bytes_ += size; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

private:
  std::size_t bytes_ = 0;
};

/// Reads from a span and never past its end.
class ByteReader : public cereal::InputArchive<ByteReader> {
public:
  explicit ByteReader(std::span<const std::byte> bytes) : cereal::InputArchive<ByteReader>(this), bytes_(bytes) {}

  void read(void* data, std::size_t size) {
    if (size > remaining())
      throw Malformed(fmt::format("ends at byte {}, where {} more bytes are due", bytes_.size(), size));
    if (size != 0)
      std::memcpy(data, bytes_.data() + at_, size);
    at_ += size;
  }

  /// A list's length; refused when so many elements of at least `least` bytes cannot follow.
  [[nodiscard]] std::size_t read_count(std::size_t least) {
    std::uint64_t count = 0;
    const std::size_t where = at_;
    read(&count, sizeof count);
    if (count > remaining() / least)
      throw Malformed(fmt::format("byte {}: a length of {} elements of at least {} bytes, but {} bytes follow", where,
                                  count, least, remaining()));
    return static_cast<std::size_t>(count);
  }

  [[nodiscard]] std::size_t position() const noexcept { return at_; }
  [[nodiscard]] std::size_t remaining() const noexcept { return bytes_.size() - at_; }

private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

} // namespace
} // namespace deltawire::wire

CEREAL_SETUP_ARCHIVE_TRAITS(deltawire::wire::ByteReader, deltawire::wire::ByteWriter)

// cereal would take any enumeration as its integer, unchecked: the functions below go first.
template <class T>
requires std::is_enum_v<T>
struct cereal::specialize<deltawire::wire::ByteReader, T, cereal::specialization::non_member_load_save> {
};
template <class T>
requires std::is_enum_v<T>
struct cereal::specialize<deltawire::wire::ByteWriter, T, cereal::specialization::non_member_load_save> {
};
template <class T>
requires std::is_enum_v<T>
struct cereal::specialize<deltawire::wire::ByteCounter, T, cereal::specialization::non_member_load_save> {
};

namespace deltawire::wire {
namespace {

template <class T>
concept Number = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

template <class T>
concept Enumeration = std::is_enum_v<T>;

template <class T>
concept Writer = std::is_same_v<T, ByteWriter> || std::is_same_v<T, ByteCounter>;

// Values that are an enumerator.
constexpr bool is_valid(Role value) noexcept {
  return value <= Role::worker;
}
constexpr bool is_valid(Channel value) noexcept {
  return value <= Channel::data;
}
constexpr bool is_valid(DeliveryKind value) noexcept {
  return value <= DeliveryKind::fold;
}
constexpr bool is_valid(Code value) noexcept {
  return value >= Code::invalid_argument && value <= Code::superseded;
}
constexpr bool is_valid(DType value) noexcept {
  return static_cast<std::size_t>(value) < dtype_count;
}

// cereal finds these by the archive's namespace: they are in the place of cereal's own for std types.

template <Writer Archive, Number T>
void CEREAL_SAVE_FUNCTION_NAME(Archive& archive, const T& value) {
  archive.write(&value, sizeof value);
}

template <Number T>
void CEREAL_LOAD_FUNCTION_NAME(ByteReader& archive, T& value) {
  archive.read(&value, sizeof value);
}

template <Writer Archive, Enumeration T>
void CEREAL_SAVE_FUNCTION_NAME(Archive& archive, const T& value) {
  archive.write(&value, sizeof value);
}

template <Enumeration T>
void CEREAL_LOAD_FUNCTION_NAME(ByteReader& archive, T& value) {
  const std::size_t where = archive.position();
  std::underlying_type_t<T> raw{};
  archive.read(&raw, sizeof raw);
  value = static_cast<T>(raw);
  if (!is_valid(value))
    throw Malformed(fmt::format("byte {}: {} is no value of this enumeration", where, raw));
}

template <Writer Archive>
void CEREAL_SAVE_FUNCTION_NAME(Archive& archive, const std::string& text) {
  archive(static_cast<std::uint64_t>(text.size()));
  archive.write(text.data(), text.size());
}

inline void CEREAL_LOAD_FUNCTION_NAME(ByteReader& archive, std::string& text) {
  text.resize(archive.read_count(1));
  archive.read(text.data(), text.size());
}

template <class Archive, class First, class Second>
void CEREAL_SERIALIZE_FUNCTION_NAME(Archive& archive, std::pair<First, Second>& pair) {
  archive(pair.first, pair.second);
}

/// Encoded bytes of the smallest T: the default one, whose lists and strings are empty.
template <class T>
std::size_t least_bytes() {
  static const std::size_t least = [] {
    ByteCounter counter;
    counter(T{});
    return counter.bytes();
  }();
  return least;
}

template <Writer Archive, class T>
void CEREAL_SAVE_FUNCTION_NAME(Archive& archive, const std::vector<T>& list) {
  archive(static_cast<std::uint64_t>(list.size()));
  if constexpr (Number<T>)
    archive.write(list.data(), list.size() * sizeof(T));
  else
    for (const T& element : list)
      archive(element);
}

template <class T>
void CEREAL_LOAD_FUNCTION_NAME(ByteReader& archive, std::vector<T>& list) {
  list.resize(archive.read_count(least_bytes<T>()));
  if constexpr (Number<T>)
    archive.read(list.data(), list.size() * sizeof(T));
  else
    for (T& element : list)
      archive(element);
}

// Fields, in the order of the bytes
// ---------------------------------------------------------------------------------------------------------------

template <class Archive>
void serialize(Archive& archive, Span& span) {
  archive(span.begin, span.end);
}

template <class Archive>
void serialize(Archive& archive, layout::Segment& segment) {
  archive(segment.slot, segment.length, segment.local, segment.stride);
}

template <class Archive>
void serialize(Archive& archive, layout::Region& region) {
  archive(region.parameter, region.slot, region.base, region.dims);
}

template <class Archive>
void serialize(Archive& archive, layout::SlotSpec& slot) {
  archive(slot.name, slot.dtype, slot.shape);
}

template <class Archive>
void serialize(Archive& archive, layout::ParameterSpec& parameter) {
  archive(parameter.name, parameter.dtype, parameter.full_shape, parameter.local_shape, parameter.strides);
}

template <class Archive>
void serialize(Archive& archive, layout::Declaration& declaration) {
  archive(declaration.parameters, declaration.slots, declaration.regions);
}

template <class Archive>
void serialize(Archive& archive, layout::Cell& cell) {
  archive(cell.slot, cell.elements);
}

template <class Archive>
void serialize(Archive& archive, layout::Block& block) {
  archive(block.id, block.parameter, block.slot, block.cell, block.window, block.dtype, block.extents,
          block.local_offset, block.local_strides, block.slot_offset, block.slot_strides);
}

template <class Archive>
void serialize(Archive& archive, Hello& message) {
  archive(message.role, message.channel, message.index, message.count, message.incarnation, message.fingerprint);
}

template <class Archive>
void serialize(Archive& archive, Welcome& message) {
  archive(message.session);
}

template <class Archive>
void serialize(Archive& archive, Refused& message) {
  archive(message.code, message.message);
}

template <class Archive>
void serialize(Archive& archive, DeclareRank& message) {
  archive(message.declaration);
}

template <class Archive>
void serialize(Archive& archive, Catalogue& message) {
  archive(message.slots);
}

template <class Archive>
void serialize(Archive& archive, DeclareWorker& message) {
  archive(message.declaration);
}

template <class Archive>
void serialize(Archive& archive, Agreement& message) {
  archive(message.slots, message.cells, message.blocks, message.windows, message.own);
}

template <class Archive>
void serialize(Archive& archive, Agreed& message) {
  archive(message.session, message.version, message.delivery, message.target);
}

template <class Archive>
void serialize(Archive&, Connected&) {}

template <class Archive>
void serialize(Archive& archive, CaptureReport& message) {
  archive(message.version, message.step, message.kind, message.elements, message.changed, message.diff,
          message.digest_changes, message.differ_peak, message.gather_queue_peak, message.aborted);
}

template <class Archive>
void serialize(Archive& archive, Offer& message) {
  archive(message.gather, message.pieces, message.windows_complete);
}

template <class Archive>
void serialize(Archive& archive, Grant& message) {
  archive(message.gather, message.round, message.pieces, message.bytes);
}

template <class Archive>
void serialize(Archive& archive, UpdateCounts& counts) {
  archive(counts.slots, counts.elements, counts.changed, counts.wire_bytes, counts.gather_bytes, counts.flushes,
          counts.rounds);
}

template <class Archive>
void serialize(Archive& archive, UpdateTimes& times) {
  archive(times.captured_ns, times.committed_ns, times.pause_ns, times.diff, times.gather, times.assemble, times.send,
          times.stage, times.commit);
}

template <class Archive>
void serialize(Archive& archive, HighWaterBytes& bytes) {
  archive(bytes.differ, bytes.gather_queue, bytes.flush_bucket, bytes.applier);
}

template <class Archive>
void serialize(Archive& archive, WorkerReport& report) {
  archive(report.index, report.version, report.state, report.delivery, report.bytes, report.flushes, report.pieces,
          report.digest_ok, report.matched, report.audited, report.pause_ns, report.error);
}

template <class Archive>
void serialize(Archive& archive, DeliveryReport& message) {
  archive(message.of_audit, message.version, message.base, message.step, message.kind, message.committed, message.error,
          message.error_message, message.counts, message.times, message.high_water, message.workers);
}

template <class Archive>
void serialize(Archive& archive, Drop& message) {
  archive(message.gather);
}

template <class Archive>
void serialize(Archive& archive, NextUpdate& message) {
  archive(message.version, message.catch_up, message.kind, message.base, message.keep_logs_after);
}

template <class Archive>
void serialize(Archive& archive, Abandon& message) {
  archive(message.version);
}

template <class Archive>
void serialize(Archive& archive, AuditReport& message) {
  archive(message.audit, message.version, message.error);
}

template <class Archive>
void serialize(Archive& archive, Begin& message) {
  archive(message.delivery, message.kind, message.base, message.target);
}

template <class Archive>
void serialize(Archive& archive, Ready& message) {
  archive(message.delivery, message.version);
}

template <class Archive>
void serialize(Archive& archive, FlushStaged& message) {
  archive(message.delivery, message.sequence, message.bytes);
}

template <class Archive>
void serialize(Archive& archive, Seal& message) {
  archive(message.delivery, message.flushes, message.bytes, message.digests);
}

template <class Archive>
void serialize(Archive& archive, Staged& message) {
  archive(message.delivery, message.bytes);
}

template <class Archive>
void serialize(Archive& archive, Commit& message) {
  archive(message.delivery);
}

template <class Archive>
void serialize(Archive& archive, Applied& message) {
  archive(message.delivery, message.version, message.elements, message.digests, message.stage, message.commit,
          message.applier_peak);
}

template <class Archive>
void serialize(Archive& archive, Release& message) {
  archive(message.delivery);
}

template <class Archive>
void serialize(Archive& archive, Released& message) {
  archive(message.delivery, message.version, message.pause_ns);
}

template <class Archive>
void serialize(Archive& archive, Undo& message) {
  archive(message.delivery, message.reason);
}

template <class Archive>
void serialize(Archive& archive, Undone& message) {
  archive(message.delivery, message.version);
}

template <class Archive>
void serialize(Archive& archive, Settle& message) {
  archive(message.session, message.delivery, message.release);
}

template <class Archive>
void serialize(Archive& archive, Audit& message) {
  archive(message.audit, message.version, message.digests);
}

template <class Archive>
void serialize(Archive& archive, Audited& message) {
  archive(message.audit, message.version, message.digests, message.error);
}

template <class Archive>
void serialize(Archive& archive, Adopt& message) {
  archive(message.audit, message.version);
}

template <class Archive>
void serialize(Archive& archive, Failed& message) {
  archive(message.code, message.message, message.delivery);
}

template <class Archive>
void serialize(Archive&, Goodbye&) {}

template <class Archive>
void serialize(Archive&, Heartbeat&) {}

} // namespace

template <class Message>
std::vector<std::byte> encode(const Message& message) {
  ByteWriter writer;
  writer(message);
  return writer.take();
}

template <class Message>
Result<Message> decode(std::span<const std::byte> payload) {
  try {
    Message message;
    ByteReader reader(payload);
    reader(message);
    if (reader.remaining() != 0)
      return fail(Code::invalid_input, "{} of {} bytes: ends at byte {}, but {} more follow", type_name(Message::type),
                  payload.size(), reader.position(), reader.remaining());
    return message;
  } catch (const Malformed& malformed) {
    return fail(Code::invalid_input, "{} of {} bytes: {}", type_name(Message::type), payload.size(), malformed.what());
  } catch (const std::bad_alloc&) {
    return fail(Code::limit_exceeded, "{} of {} bytes: not enough memory to decode it", type_name(Message::type),
                payload.size());
  }
}

std::string type_name(std::uint16_t type) {
  switch (type) {
#define DELTAWIRE_NAME(message)                                                                                        \
  case message::type:                                                                                                  \
    return #message;
    DELTAWIRE_MESSAGES(DELTAWIRE_NAME)
#undef DELTAWIRE_NAME
  case static_cast<std::uint16_t>(FrameType::round):
    return "round";
  case static_cast<std::uint16_t>(FrameType::flush):
    return "flush";
  default:
    return fmt::format("unknown type {}", type);
  }
}

#define DELTAWIRE_INSTANTIATE(message)                                                                                 \
  template std::vector<std::byte> encode<message>(const message&);                                                     \
  template Result<message> decode<message>(std::span<const std::byte>);
DELTAWIRE_MESSAGES(DELTAWIRE_INSTANTIATE)
#undef DELTAWIRE_INSTANTIATE

} // namespace deltawire::wire
