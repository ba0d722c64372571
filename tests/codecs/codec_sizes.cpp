// Prints what the updates of a trace take in each encoding, plain and by zstd: bytes a changed element, and how many
// times the entropy of gaps and differences that is:
//
//     codec_sizes TOPOLOGY A.safetensors B.safetensors ...
#include "codecs/trace_blocks.hpp"

#include <fmt/format.h>

#include <cstdlib>

namespace {

using namespace deltawire;
using delta::PositionCodec;

[[noreturn]] void stop(const Failure& failure) {
  fmt::print(stderr, "{}\n", failure.message);
  std::exit(2);
}

struct Column {
  const char* name;
  delta::Encoding encoding;
};

const Column columns[] = {
  {"auto", {}},
  {"u8 + ulp", {PositionCodec::gaps_u8, true}},
  {"u16 + ulp", {PositionCodec::gaps_u16, true}},
  {"rice + ulp", {PositionCodec::rice, true}},
  {"bitmap + ulp", {PositionCodec::bitmap, true}},
  {"run + ulp", {PositionCodec::run, true}},
  {"auto + raw", {{}, false}},
  {"u8 + raw", {PositionCodec::gaps_u8, false}},
  {"u16 + raw", {PositionCodec::gaps_u16, false}},
  {"rice + raw", {PositionCodec::rice, false}},
  {"bitmap + raw", {PositionCodec::bitmap, false}},
  {"run + raw", {PositionCodec::run, false}},
  {"dense", {PositionCodec::dense, true}},
};

/// Payload a change (tile heads included, headers of pieces apart), its ratio to the entropy, headers a piece.
std::string cells(const test::TraceBlocks::Sizes& sizes, const test::TraceBlocks::Entropy& entropy,
                  std::uint64_t changed) {
  const double payload = static_cast<double>(sizes.bytes - sizes.framing) / static_cast<double>(changed);
  return fmt::format(" {:>9.4f} {:>6.3f} {:>7.2f}", payload, payload / entropy.bytes(),
                     static_cast<double>(sizes.framing) / static_cast<double>(sizes.pieces));
}

} // namespace

int main(int count, char** arguments) {
  if (count < 4) {
    fmt::print(stderr, "codec_sizes TOPOLOGY A.safetensors B.safetensors ...\n");
    return 2;
  }
  const auto sides = replay::open_sides(arguments[1], {});
  if (!sides)
    stop(sides.error());
  const std::vector<std::string> paths(arguments + 2, arguments + count);
  const auto files = replay::open_checkpoints(paths);
  if (!files)
    stop(files.error());
  auto trace = test::TraceBlocks::make(*sides, files->front());
  if (!trace)
    stop(trace.error());
  std::uint64_t dense = 0;
  for (const checkpoint::TensorView& tensor : files->front().tensors())
    dense += tensor.data.size();
  for (std::size_t step = 1; step < files->size(); ++step) {
    trace->take_values((*files)[step]);
    const test::TraceBlocks::Entropy entropy = trace->entropy();
    const std::uint64_t changed = trace->encode({}).changes;
    fmt::print("step {}: {} changed, dense {:.2f} bytes a change; entropy {:.4f} bytes ({:.3f} bits of gaps, {:.3f} of "
               "differences)\n",
               step, changed, static_cast<double>(dense) / static_cast<double>(changed), entropy.bytes(), entropy.gaps,
               entropy.ulp);
    fmt::print("{:<13} {:>9} {:>6} {:>7}", "", "payload", "ratio", "framing");
    if (delta::can_compress())
      fmt::print(" {:>9} {:>6} {:>7}", "by zstd", "ratio", "framing");
    fmt::print("\n");
    for (const Column& column : columns) {
      fmt::print("{:<13}{}", column.name, cells(trace->encode(column.encoding), entropy, changed));
      if (delta::can_compress()) {
        delta::Encoding compressed = column.encoding;
        compressed.compress = true;
        fmt::print("{}", cells(trace->encode(compressed), entropy, changed));
      }
      fmt::print("\n");
    }
    trace->refresh();
  }
}
