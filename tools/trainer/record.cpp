#include "record.hpp"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

namespace trainer {

namespace {

/// Values that must agree, by name.
std::vector<std::pair<std::string, std::uint64_t>> compared(const UpdateRecord& r) {
  std::vector<std::pair<std::string, std::uint64_t>> values{
    {"update", r.update},
    {"reward", std::bit_cast<std::uint64_t>(r.reward)},
    {"loss", std::bit_cast<std::uint64_t>(r.loss)},
    {"largest_gap", std::bit_cast<std::uint64_t>(r.largest_gap)},
    {"rollouts", r.rollouts},
    {"weights", r.weights},
    {"changed", r.changed},
    {"elements", r.elements},
  };
  for (std::uint32_t w = 0; w < worker_count; ++w)
    values.emplace_back(fmt::format("weights of worker {}", w), r.worker_weights[w]);
  return values;
}

} // namespace

std::string difference(const std::vector<UpdateRecord>& a, const std::vector<UpdateRecord>& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const auto left = compared(a[i]);
    const auto right = compared(b[i]);
    for (std::size_t v = 0; v < left.size(); ++v)
      if (left[v].second != right[v].second)
        return fmt::format("update {}: {} is {:016x} in one run and {:016x} in the other", i, left[v].first,
                           left[v].second, right[v].second);
  }
  if (a.size() != b.size())
    return fmt::format("one run has {} updates and the other {}", a.size(), b.size());
  return "";
}

std::string json_line(const UpdateRecord& r) {
  std::string worker_weights;
  for (const std::uint64_t digest : r.worker_weights)
    worker_weights += fmt::format("{}\"{:016x}\"", worker_weights.empty() ? "" : ", ", digest);
  return fmt::format(R"({{"update": {}, "reward": {}, "loss": {}, "largest_gap": {}, "rollouts": "{:016x}", )"
                     R"("weights": "{:016x}", "worker_weights": [{}], "changed": {}, "elements": {}, )"
                     R"("delivery": {{"changed": {}, "wire_bytes": {}, "committed_s": {}, "pause_s": {}}}}})",
                     r.update, r.reward, r.loss, r.largest_gap, r.rollouts, r.weights, worker_weights, r.changed,
                     r.elements, r.delivery.changed, r.delivery.wire_bytes, r.delivery.committed_s, r.delivery.pause_s);
}

std::string table_head() {
  const std::string head =
    fmt::format("{:>6} {:>7} {:>8} {:>9} {:>10} {:>8} {:>8} {:>8}  {:>16}", "update", "reward", "changed", "density",
                "wire bytes", "B/change", "delivery", "pause", "weights' digest");
  const std::string units =
    fmt::format("{:>6} {:>7} {:>8} {:>9} {:>10} {:>8} {:>8} {:>8}", "", "", "", "%", "", "", "ms", "ms");
  return head + "\n" + units + "\n" + std::string(head.size(), '-') + "\n";
}

std::string table_row(const UpdateRecord& r) {
  const auto milliseconds = [](double seconds) { return seconds > 0 ? fmt::format("{:.2f}", seconds * 1e3) : "-"; };
  const auto changed = static_cast<double>(r.changed);
  return fmt::format("{:>6} {:>7.4f} {:>8} {:>9.3f} {:>10} {:>8} {:>8} {:>8}  {:016x}\n", r.update, r.reward, r.changed,
                     100 * changed / static_cast<double>(r.elements), r.delivery.wire_bytes,
                     r.changed > 0 ? fmt::format("{:.2f}", static_cast<double>(r.delivery.wire_bytes) / changed) : "-",
                     milliseconds(r.delivery.committed_s), milliseconds(r.delivery.pause_s), r.weights);
}

std::string curve(const std::vector<UpdateRecord>& records) {
  constexpr std::size_t width = 60;
  const char* const levels[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const std::size_t columns = std::min(width, records.size());
  std::string line;
  for (std::size_t c = 0; c < columns; ++c) {
    const std::size_t begin = c * records.size() / columns;
    const std::size_t end = (c + 1) * records.size() / columns;
    double mean = 0;
    for (std::size_t i = begin; i < end; ++i)
      mean += records[i].reward / static_cast<double>(end - begin);
    line += levels[std::clamp(static_cast<int>(mean * 8), 0, 7)];
  }
  return line;
}

} // namespace trainer
