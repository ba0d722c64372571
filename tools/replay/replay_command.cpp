#include "replay_command.hpp"

#include "config/launch.hpp"
#include "config/secret_file.hpp"
#include "message.hpp"
#include "processes.hpp"
#include "report.hpp"
#include "table.hpp"
#include "telemetry/endpoint.hpp"
#include "telemetry/trace.hpp"
#include "threads.hpp"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <unistd.h>

namespace deltawire::replay {

namespace {

using config::TransportKind;

/// In-process peers meet under an address that nobody opens.
constexpr const char* meeting_point = "transport.master=\"127.0.0.1:1\"";

/// Everything that a run needs, checked.
struct Prepared {
  std::shared_ptr<const Sides> sides;
  std::shared_ptr<const std::vector<checkpoint::Checkpoint>> files;
  std::uint64_t parameter_bytes = 0; ///< of a version
  std::uint64_t snapshot_bytes = 0;  ///< in the dtypes that are sent
};

Result<Prepared> prepare(const ReplayOptions& options) {
  auto sides = open_sides(options.topology, options.overrides);
  if (!sides)
    return pass_on(std::move(sides));
  auto files = open_checkpoints(options.checkpoints);
  if (!files)
    return pass_on(std::move(files));
  const auto agreed = compile_layout(*sides, files->front());
  if (!agreed)
    return tl::make_unexpected(agreed.error());
  Prepared prepared;
  for (const checkpoint::TensorView& tensor : files->front().tensors())
    prepared.parameter_bytes += tensor.data.size();
  for (const layout::SlotSpec& slot : agreed->plan.slots)
    if (const auto elements = layout::element_count(slot.shape))
      prepared.snapshot_bytes += static_cast<std::uint64_t>(*elements) * size_of(slot.dtype);
  prepared.sides = std::make_shared<const Sides>(std::move(*sides));
  prepared.files = std::make_shared<const std::vector<checkpoint::Checkpoint>>(std::move(*files));
  return prepared;
}

/// What the transports of the file or of --set must not be in the chosen mode.
Result<void> check_transports(const config::Topology& topology, const ReplayOptions& options) {
  const auto& actors = topology.actors;
  if (options.processes) {
    if (actors.gather_queue.transport == TransportKind::inproc || actors.sender.transport == TransportKind::inproc)
      return fail(Code::invalid_argument,
                  "{}: the transport \"inproc\" joins no processes: set actors.gather_queue.transport and "
                  "actors.sender.transport to \"auto\", or leave out --processes",
                  options.topology);
    return {};
  }
  for (const std::string& text : options.overrides)
    for (const std::string_view key : {"actors.gather_queue.transport=", "actors.sender.transport="})
      if (text.starts_with(key) && text.find("inproc") == std::string::npos)
        return fail(Code::invalid_argument,
                    "--set {}: without --processes the transport is \"inproc\"; add --processes", text);
  return {};
}

/// Creates the folder of an option, if it is given.
Result<void> check_folder(const char* option, const std::string& folder) {
  std::error_code error;
  if (folder.empty())
    return {};
  std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder, error) || ::access(folder.c_str(), W_OK) != 0)
    return fail(Code::output_failed, "{} {}: cannot be written: {}", option, folder,
                error ? error.message() : "no directory that this user may write");
  return {};
}

/// Finds out now whether dumps, flushes, report and traces can be written, not after the run.
Result<void> check_outputs(const ReplayOptions& options, const Sides& sides) {
  if (auto writable = check_folder("--dump", options.dump); !writable)
    return writable;
  if (auto writable = check_folder("--keep-flushes", options.keep_flushes); !writable)
    return writable;
  if (!options.report.empty()) {
    const std::filesystem::path parent = std::filesystem::absolute(options.report).parent_path();
    std::error_code error;
    if (!std::filesystem::is_directory(parent, error) || std::filesystem::is_directory(options.report, error) ||
        ::access(parent.c_str(), W_OK) != 0)
      return fail(Code::output_failed, "--report {}: cannot be written: its directory must exist and be writable",
                  options.report);
  }
  if (const std::string& trace = sides.topology.telemetry.trace; !trace.empty()) {
    for (std::uint32_t rank = 0; rank < sides.ranks(); ++rank)
      if (auto writable = telemetry::check_trace_path(trace, fmt::format("rank {}", rank)); !writable)
        return writable;
    for (std::uint32_t index = 0; index < sides.workers(); ++index)
      if (auto writable = telemetry::check_trace_path(trace, fmt::format("worker {}", index)); !writable)
        return writable;
  }
  return {};
}

WorkerSeat worker_seat(const ReplayOptions& options, std::uint32_t index) {
  return {.topology = options.topology,
          .overrides = options.overrides,
          .index = index,
          .dump_file = options.dump.empty() ? "" : dump_path(options.dump, index),
          .dump_each_into = options.dump_each ? options.dump : ""};
}

/// False where threads still hang.
bool replay_in_threads(const ReplayOptions& options, const Prepared& prepared, const std::shared_ptr<Record>& record,
                       Progress& progress) {
  ReplayOptions inproc = options;
  for (const char* text :
       {"actors.gather_queue.transport=\"inproc\"", "actors.sender.transport=\"inproc\"", meeting_point})
    inproc.overrides.emplace_back(text);
  const auto seats = std::make_shared<Seats>();
  for (std::uint32_t rank = 0; rank < prepared.sides->ranks(); ++rank)
    seats->trainers.push_back({.topology = inproc.topology,
                               .overrides = inproc.overrides,
                               .rank = rank,
                               .parts = options.parts,
                               .metrics_index = 0});
  for (std::uint32_t index = 0; index < prepared.sides->workers(); ++index)
    seats->workers.emplace_back(worker_seat(inproc, index)).metrics_index = 0; // one process, one endpoint
  return run_in_threads(seats, prepared.sides, prepared.files, record, progress);
}

void append_all(std::vector<std::string>& arguments, const char* option, const std::vector<std::string>& values) {
  for (const std::string& value : values)
    arguments.insert(arguments.end(), {option, value});
}

ChildProcess trainer_child(const ReplayOptions& options, std::uint32_t rank) {
  ChildProcess child{{Peer::Side::trainer, rank}, {"trainer", options.topology, "--rank", std::to_string(rank)}};
  append_all(child.arguments, "--set", options.overrides);
  append_all(child.arguments, "--checkpoints", options.checkpoints);
  if (options.parts > 0)
    child.arguments.insert(child.arguments.end(), {"--parts", std::to_string(options.parts)});
  return child;
}

ChildProcess worker_child(const ReplayOptions& options, std::uint32_t index) {
  const WorkerSeat seat = worker_seat(options, index);
  ChildProcess child{{Peer::Side::worker, index}, {"worker", options.topology, "--index", std::to_string(index)}};
  append_all(child.arguments, "--set", options.overrides);
  append_all(child.arguments, "--verify", options.checkpoints);
  if (!seat.dump_file.empty())
    child.arguments.insert(child.arguments.end(), {"--dump", seat.dump_file});
  if (!seat.dump_each_into.empty())
    child.arguments.insert(child.arguments.end(), {"--dump-each", seat.dump_each_into});
  return child;
}

/// Where the root listens: as the topology and the environment say, otherwise anywhere on this machine.
Result<config::Address> master_address(const config::Topology& topology) {
  const config::Environment environment = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  if (topology.transport.master.empty() && !environment("DELTAWIRE_MASTER") && !environment("MASTER_ADDR"))
    return config::Address{"127.0.0.1", 0};
  return config::master_from_environment(topology, environment);
}

/// Finds out now, and in words that name the process, where one of them could not serve its metrics: what a child says
/// comes after all have started. The root listens at `master` already.
Result<void> check_metrics_ports(const Sides& sides, const std::string& master) {
  const std::string& prometheus = sides.topology.telemetry.prometheus;
  if (prometheus.empty() || !telemetry::can_serve())
    return {};
  for (std::uint32_t index = 0; index < sides.ranks() + sides.workers(); ++index) {
    const Peer peer =
      index < sides.ranks() ? Peer{Peer::Side::trainer, index} : Peer{Peer::Side::worker, index - sides.ranks()};
    const auto refused = [&](const Failure& failure) {
      return fail(failure.code,
                  "{}: {} (rank r serves at the port and r, worker w at the port, the number of ranks and w)",
                  to_string(peer), failure.message);
    };
    const auto address = config::metrics_address(prometheus, index);
    if (!address)
      return refused(address.error());
    if (config::to_string(*address) == master)
      return refused({Code::address_in_use,
                      fmt::format("telemetry.prometheus: {}: the root listens there (transport.master)", master)});
    if (const auto free = ListeningSocket::open(*address, "telemetry.prometheus"); !free)
      return refused(free.error());
  }
  return {};
}

Result<void> replay_in_processes(const ReplayOptions& options, const Prepared& prepared, Record& record,
                                 Progress& progress) {
  auto address = master_address(prepared.sides->topology);
  if (!address)
    return pass_on(std::move(address));
  // Said once, rather than by every child.
  const config::Topology& topology = prepared.sides->topology;
  const auto& actors = topology.actors;
  const bool over_tcp =
    actors.gather_queue.transport != TransportKind::shm || actors.sender.transport != TransportKind::shm;
  if (const std::string& file = topology.transport.secret_file; over_tcp && !file.empty())
    if (auto secret = config::read_secret(file); !secret)
      return fail(secret.error().code, "{}: transport.secret_file: {}", options.topology, secret.error().message);
  auto socket = ListeningSocket::open(*address);
  if (!socket)
    return pass_on(std::move(socket));
  if (auto free = check_metrics_ports(*prepared.sides, socket->address()); !free)
    return free;
  ReplayOptions bound = options;
  bound.overrides.push_back(fmt::format("transport.master=\"{}\"", socket->address()));
  std::vector<ChildProcess> children;
  for (std::uint32_t rank = 0; rank < prepared.sides->ranks(); ++rank)
    children.push_back(trainer_child(bound, rank));
  for (std::uint32_t index = 0; index < prepared.sides->workers(); ++index)
    children.push_back(worker_child(bound, index));
  return run_in_processes(children, {Peer::Side::trainer, 0}, std::move(*socket), prepared.sides->topology.update.stall,
                          record, progress);
}

/// Report, table and messages; the status that the run comes to.
ExitStatus tell(const ReplayOptions& options, const Record& record, std::uint32_t workers, RunFacts facts) {
  const std::vector<Outcome> updates = record.updates();
  const std::optional<Failure> cause = record.cause();
  facts.verified = !cause;
  facts.session = record.session();
  const std::string report = report_text(updates, facts);

  Result<void> written;
  if (!options.report.empty())
    written = write_text("--report", options.report, report);
  std::string text = report;
  if (!options.json) {
    text = updates.empty() ? "" : table_text(updates);
    if (!cause)
      text += fmt::format("verified: {} versions on {} workers, bit for bit\n", updates.size(), workers);
  }
  if (auto shown = print_out(text, options.json ? "--json" : ""); !shown && written)
    written = std::move(shown);

  if (cause)
    print_error(*cause);
  if (!written)
    print_error(written.error());
  if (cause)
    return exit_status(cause->code);
  return written ? ExitStatus::verified : exit_status(written.error().code);
}

} // namespace

ExitStatus replay_command(const ReplayOptions& given) {
  ReplayOptions options = given;
  if (!options.keep_flushes.empty()) // as the topology has it, a string of TOML
    options.overrides.push_back(
      fmt::format("telemetry.flushes={}",
                  nlohmann::json(options.keep_flushes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  auto prepared = prepare(options);
  if (!prepared)
    return report_failure(prepared.error());
  if (auto fits = check_transports(prepared->sides->topology, options); !fits)
    return report_failure(fits.error());
  if (auto writable = check_outputs(options, *prepared->sides); !writable)
    return report_failure(writable.error());

  RunFacts facts;
  facts.parameter_bytes = prepared->parameter_bytes;
  facts.snapshot_bytes = prepared->snapshot_bytes;
  if (options.json || !options.report.empty()) // before there is a thread or process that the cores are for
    facts.memory = measure_memory_speed(prepared->parameter_bytes);
  const std::uint32_t workers = prepared->sides->workers();
  const bool digests = prepared->sides->topology.update.verify != config::Verify::off;
  const auto record = std::make_shared<Record>(prepared->files->size(), workers, digests);
  bool all_ended = true;
  {
    Progress progress(!options.quiet && !options.json);
    progress.show(0, record->versions());
    if (!options.processes)
      all_ended = replay_in_threads(options, *prepared, record, progress);
    else if (auto ran = replay_in_processes(options, *prepared, *record, progress); !ran)
      return report_failure(ran.error());
  }
  const ExitStatus status = tell(options, *record, workers, facts);
  if (!all_ended) { // threads still wait for a peer that is gone: leave without destroying what they use
    std::fflush(nullptr);
    std::_Exit(static_cast<int>(status));
  }
  return status;
}

} // namespace deltawire::replay
