#include "report.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace deltawire::replay {

namespace {

using Json = nlohmann::ordered_json; // keys in the order of the contract

Json worker_json(const WorkerOutcome& worker) {
  Json value = {{"index", worker.index},         {"version", worker.version}, {"state", worker.state},
                {"bytes", worker.bytes},         {"flushes", worker.flushes}, {"pieces", worker.pieces},
                {"digest_ok", worker.digest_ok}, {"error", nullptr}};
  if (!worker.error.empty())
    value["error"] = worker.error;
  return value;
}

Json update_json(const Outcome& update) {
  Json workers = Json::array();
  for (const WorkerOutcome& worker : update.workers)
    workers.push_back(worker_json(worker));
  const PhaseSeconds& phases = update.phase_s;
  return {{"version", update.version},
          {"base", update.base},
          {"kind", update.seed ? "seed" : "delta"},
          {"slots", update.slots},
          {"elements", update.elements},
          {"changed", update.changed},
          {"wire_bytes", update.wire_bytes},
          {"gather_bytes", update.gather_bytes},
          {"flushes", update.flushes},
          {"rounds", update.rounds},
          {"captured_s", update.captured_s},
          {"committed_s", update.committed_s},
          {"pause_s", update.pause_s},
          {"phase_s",
           {{"diff", phases.diff},
            {"gather", phases.gather},
            {"assemble", phases.assemble},
            {"send", phases.send},
            {"stage", phases.stage},
            {"commit", phases.commit}}},
          {"workers", std::move(workers)},
          {"warnings", update.warnings}};
}

} // namespace

std::string report_text(std::span<const Outcome> updates, const RunFacts& run) {
  Json list = Json::array();
  HighWaterBytes marks;
  for (const Outcome& update : updates) {
    list.push_back(update_json(update));
    marks.differ = std::max(marks.differ, update.high_water.differ);
    marks.gather_queue = std::max(marks.gather_queue, update.high_water.gather_queue);
    marks.flush_bucket = std::max(marks.flush_bucket, update.high_water.flush_bucket);
    marks.applier = std::max(marks.applier, update.high_water.applier);
  }
  Json report = {{"updates", std::move(list)},
                 {"high_water_bytes",
                  {{"differ", marks.differ},
                   {"gather_queue", marks.gather_queue},
                   {"flush_bucket", marks.flush_bucket},
                   {"applier", marks.applier}}},
                 {"verified", run.verified},
                 {"session", nullptr},
                 {"parameter_bytes", run.parameter_bytes},
                 {"snapshot_bytes", run.snapshot_bytes},
                 {"machine",
                  {{"cores", run.memory.cores},
                   {"compare_bytes_per_s", static_cast<std::uint64_t>(run.memory.compare)},
                   {"copy_bytes_per_s", static_cast<std::uint64_t>(run.memory.copy)},
                   {"array_bytes", run.memory.array_bytes}}}};
  if (run.session != 0) // text: JSON's readers take numbers for doubles
    report["session"] = fmt::format("{:016x}", run.session);
  return report.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<void> write_text(const std::string& option, const std::string& path, const std::string& text) {
  struct Close {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> file{std::fopen(path.c_str(), "wbe")};
  if (!file)
    return fail(Code::output_failed, "{} {}: cannot be written: {}", option, path, std::strerror(errno));
  if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() || std::fflush(file.get()) != 0)
    return fail(Code::output_failed, "{} {}: cannot be written: {}", option, path, std::strerror(errno));
  return {};
}

} // namespace deltawire::replay
