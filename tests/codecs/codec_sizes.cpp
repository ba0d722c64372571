// Prints what the updates of a trace take in each encoding, bytes a changed element, next to their entropy:
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
  {"raw", {{}, false}},
  {"u8", {PositionCodec::gaps_u8, true}},
  {"u16", {PositionCodec::gaps_u16, true}},
  {"rice", {PositionCodec::rice, true}},
  {"bitmap", {PositionCodec::bitmap, true}},
  {"run", {PositionCodec::run, true}},
  {"dense", {PositionCodec::dense, true}},
  {"u8+raw", {PositionCodec::gaps_u8, false}},
  {"rice+raw", {PositionCodec::rice, false}},
};

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
  fmt::print(
    "bytes a changed element, headers included; gaps and ulp: entropy in bits; ratio: auto / entropy; framing: "
    "header bytes a piece (auto)\n");
  fmt::print("{:>4} {:>8} {:>6} {:>6} {:>8} {:>6} {:>7}", "step", "changed", "gaps", "ulp", "entropy", "ratio",
             "framing");
  for (const Column& column : columns)
    fmt::print(" {:>8}", column.name);
  fmt::print("\n");
  for (std::size_t step = 1; step < files->size(); ++step) {
    trace->take_values((*files)[step]);
    const test::TraceBlocks::Entropy entropy = trace->entropy();
    std::string cells;
    double ratio = 0;
    double framing = 0;
    std::uint64_t changed = 0;
    for (const Column& column : columns) {
      const test::TraceBlocks::Sizes sizes = trace->encode(column.encoding);
      const double bytes = static_cast<double>(sizes.bytes) / static_cast<double>(sizes.changed);
      if (&column == columns) {
        changed = sizes.changed;
        ratio = bytes / entropy.bytes();
        framing = static_cast<double>(sizes.framing) / static_cast<double>(sizes.pieces);
      }
      cells += fmt::format(" {:>8.4f}", bytes);
    }
    fmt::print("{:>4} {:>8} {:>6.3f} {:>6.3f} {:>8.4f} {:>6.3f} {:>7.2f}{}\n", step, changed, entropy.gaps, entropy.ulp,
               entropy.bytes(), ratio, framing, cells);
    trace->refresh();
  }
}
