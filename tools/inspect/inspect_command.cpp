#include "inspect_command.hpp"

#include "delta/piece.hpp"
#include "replay/message.hpp"
#include "replay/numbers.hpp"
#include "wire/frame.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

namespace deltawire::inspect {

namespace {

constexpr std::array kinds{"delta", "values", "ulp delta", "compressed"};

struct Piece {
  std::uint32_t block = 0;
  std::size_t kind = 0;
  std::uint64_t offset = 0; ///< in the payload
  std::uint64_t bytes = 0;  ///< with its header
  std::uint64_t body = 0;
};

struct Flush {
  wire::FrameHeader header;
  std::vector<Piece> pieces;
};

/// How every frame starts (src/wire/FORMAT.md). read_header() checks it too, and then speaks of a peer.
bool has_magic(std::span<const std::byte> bytes) {
  constexpr std::array magic{std::byte{'D'}, std::byte{'L'}, std::byte{'T'}, std::byte{'W'}};
  return bytes.size() >= magic.size() && std::equal(magic.begin(), magic.end(), bytes.begin());
}

/// 8 bytes of a header's length, and a JSON object.
bool looks_like_safetensors(std::span<const std::byte> bytes) {
  return bytes.size() > 8 && bytes[8] == std::byte{'{'};
}

/// Reads and checks everything that does not take the blocks of a session.
Result<Flush> read_flush(const std::string& path) {
  std::error_code unknown;
  if (const auto kind = std::filesystem::status(path, unknown).type();
      kind != std::filesystem::file_type::regular && kind != std::filesystem::file_type::not_found)
    return fail(Code::invalid_input, "{}: is no regular file; a flush is a file of `replay --keep-flushes`", path);
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  if (!file || file.bad())
    return fail(Code::invalid_input, "{}: cannot be read", path);
  const auto bytes = std::as_bytes(std::span(text));
  if (!has_magic(bytes) && !bytes.empty())
    return fail(Code::invalid_input,
                "{}: is no flush, which starts with \"DLTW\" and is a file of `replay "
                "--keep-flushes`{}",
                path, looks_like_safetensors(bytes) ? "; it looks like a safetensors file, which `diff` reads" : "");
  if (bytes.size() < wire::header_bytes)
    return fail(Code::invalid_input, "{}: {} bytes are no flush: its header has {}", path, bytes.size(),
                wire::header_bytes);
  const auto in_file = [&](const Failure& failure) { return fail(failure.code, "{}: {}", path, failure.message); };
  const auto header = wire::read_header(bytes.first<wire::header_bytes>());
  if (!header)
    return in_file(header.error());
  Flush flush{*header, {}};
  if (header->type != static_cast<std::uint16_t>(wire::FrameType::flush))
    return fail(Code::invalid_input, "{}: a frame of type {}, a flush has {}", path, header->type,
                static_cast<std::uint16_t>(wire::FrameType::flush));
  const auto payload = bytes.subspan(wire::header_bytes);
  if (payload.size() != header->payload_bytes)
    return fail(Code::invalid_input, "{}: {} bytes follow the header, which says {}", path, payload.size(),
                header->payload_bytes);
  if (const auto checked = wire::check_payload(*header, payload); !checked)
    return in_file(checked.error());
  for (std::size_t at = 0; at < payload.size();) {
    const auto piece = delta::peek_piece(payload.subspan(at));
    if (!piece)
      return fail(Code::invalid_input, "{}: byte {} of the payload: {}", path, at, piece.error().message);
    flush.pieces.push_back({piece->block, static_cast<std::size_t>(piece->kind), at, piece->bytes, piece->body.size()});
    at += piece->bytes;
  }
  return flush;
}

std::string as_text(const Flush& flush) {
  const wire::FrameHeader& header = flush.header;
  std::string text = fmt::format(
    "flush {} of delivery {}, route {}, session {:016x}, from rank {}\n{} in {} pieces, checksum {:016x}\n\n",
    header.sequence, header.delivery, header.route, header.session, header.source,
    replay::short_bytes(header.payload_bytes), flush.pieces.size(), header.payload_checksum);
  text += fmt::format("{:>10}  {:>10}  {:9}  {:>12}  {:>12}\n", "offset", "block", "kind", "bytes", "body");
  std::array<std::uint64_t, kinds.size()> bytes{};
  std::array<std::uint64_t, kinds.size()> counts{};
  for (const Piece& piece : flush.pieces) {
    text += fmt::format("{:>10}  {:>10}  {:9}  {:>12}  {:>12}\n", piece.offset, piece.block, kinds.at(piece.kind),
                        piece.bytes, piece.body);
    bytes.at(piece.kind) += piece.bytes;
    ++counts.at(piece.kind);
  }
  text += "\n";
  for (std::size_t kind = 0; kind < kinds.size(); ++kind)
    if (counts[kind] > 0)
      text += fmt::format("{} of kind {}: {}\n", counts[kind], kinds[kind], replay::short_bytes(bytes[kind]));
  return text;
}

std::string as_json(const Flush& flush) {
  nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
  for (const Piece& piece : flush.pieces)
    pieces.push_back({{"offset", piece.offset},
                      {"block", piece.block},
                      {"kind", kinds.at(piece.kind)},
                      {"bytes", piece.bytes},
                      {"body_bytes", piece.body}});
  const wire::FrameHeader& header = flush.header;
  const nlohmann::ordered_json value{{"session", header.session},
                                     {"delivery", header.delivery},
                                     {"source", header.source},
                                     {"route", header.route},
                                     {"sequence", header.sequence},
                                     {"payload_bytes", header.payload_bytes},
                                     {"payload_checksum", fmt::format("{:016x}", header.payload_checksum)},
                                     {"pieces", std::move(pieces)}};
  return value.dump(2) + "\n";
}

} // namespace

replay::ExitStatus inspect_command(const InspectOptions& options) {
  const auto flush = read_flush(options.flush);
  if (!flush)
    return replay::report_failure(flush.error());
  if (const auto shown =
        replay::print_out(options.json ? as_json(*flush) : as_text(*flush), options.json ? "--json" : "");
      !shown)
    return replay::report_failure(shown.error());
  return replay::ExitStatus::verified;
}

} // namespace deltawire::inspect
