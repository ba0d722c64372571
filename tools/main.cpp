// The deltawire command: options in, exit status out (cli contract: 0 verified, 1 verification failed, 2 bad usage or
// input, 3 peer, deadline or port, 4 output, 5 internal).

#include "bench/bench_command.hpp"
#include "bench/update_processes.hpp"
#include "deltawire/deltawire.hpp"
#include "diff/diff_command.hpp"
#include "inspect/inspect_command.hpp"
#include "keys/keys_command.hpp"
#include "plan/plan_command.hpp"
#include "replay/message.hpp"
#include "replay/numbers.hpp"
#include "replay/replay_command.hpp"
#include "replay/trainer_command.hpp"
#include "replay/worker_command.hpp"
#include "report/report_command.hpp"
#include "top/top_command.hpp"

#include "kernels/cuda/device.hpp"
#include "transport/nccl_communicator.hpp"

#include <CLI/CLI.hpp>

#include <charconv>
#include <csignal>
#include <functional>
#include <iostream>

namespace {

using namespace deltawire::replay;

/// An option that may be repeated, each time with one value: what follows the value is not swallowed.
void add_overrides(CLI::App& command, std::vector<std::string>& overrides) {
  command.add_option("--set", overrides, "Override a key of the topology, e.g. actors.flush_bucket.cap=1MiB")
    ->type_name("KEY=VALUE")
    ->allow_extra_args(false);
}

/// A number of things. CLI11's own check of a sign names a range of 300 digits, and takes what does not fit for
/// another.
const CLI::Validator whole_number(
  [](const std::string& text) {
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return !text.empty() && error == std::errc() && end == text.data() + text.size()
             ? std::string()
             : "\"" + text + "\" is not a whole number of 0 and more that can be counted";
  },
  "");

void add_topology(CLI::App& command, std::string& topology) {
  command.add_option("topology", topology, "The topology file")->type_name("TOPOLOGY")->required();
}

/// What `replay --processes` passes to its children; not for people.
void add_ties(CLI::App& command, ChildTies& ties) {
  command.add_option("--events-fd", ties.events_descriptor)->group("");
  command.add_option("--parent", ties.parent)->group("");
}

void add_parts(CLI::App& command, std::size_t& parts) {
  command
    .add_option("--parts", parts, "Send each update in this many parts, parameters in an order of each rank's own")
    ->type_name("N")
    ->check(CLI::Range(1, 1'000'000));
}

void declare_replay(CLI::App& app, ReplayOptions& options) {
  CLI::App& command = *app.add_subcommand(
    "replay", "Replay checkpoints, one a version, through the whole pipeline and prove every worker right");
  add_topology(command, options.topology);
  command
    .add_option("--checkpoints", options.checkpoints,
                "The trainer's full tensors, one a version: safetensors files, indexes of several files, or folders")
    ->type_name("CHECKPOINT")
    ->required();
  command.add_flag("--processes", options.processes, "Each trainer rank and worker is a process of its own");
  add_parts(command, options.parts);
  CLI::Option* dump =
    command.add_option("--dump", options.dump, "Write each worker's parameters after the last version")
      ->type_name("DIR");
  command.add_flag("--dump-each", options.dump_each, "The same after every version")->needs(dump);
  command.add_option("--keep-flushes", options.keep_flushes, "Write every flush to a file, for inspect")
    ->type_name("DIR");
  command.add_option("--report", options.report, "Write the report, as JSON")->type_name("FILE");
  add_overrides(command, options.overrides);
  command.add_flag("--quiet", options.quiet, "No progress bar");
  command.add_flag("--json", options.json, "The report on standard output, and nothing else there");
}

void declare_trainer(CLI::App& app, TrainerCommand& options) {
  CLI::App& command = *app.add_subcommand("trainer", "Be one trainer rank");
  add_topology(command, options.topology);
  command.add_option("--rank", options.rank, "This rank; 0 is the root")->type_name("R")->required();
  command.add_option("--checkpoints", options.checkpoints, "As in replay")->type_name("CHECKPOINT")->required();
  add_overrides(command, options.overrides);
  add_parts(command, options.parts);
  command.add_option("--listen-fd", options.listening_socket)->group("");
  add_ties(command, options.ties);
}

void declare_worker(CLI::App& app, WorkerCommand& options) {
  CLI::App& command = *app.add_subcommand("worker", "Be one worker");
  add_topology(command, options.topology);
  command.add_option("--index", options.index, "Global index of this worker")->type_name("W")->required();
  command.add_option("--dump", options.dump, "Write the parameters after the last version")->type_name("FILE");
  command.add_option("--dump-each", options.dump_each, "Write DIR/v<version>/worker-<W>.safetensors a version")
    ->type_name("DIR");
  command.add_option("--verify", options.verify, "Prove every version with the trainer's checkpoints, as in replay")
    ->type_name("CHECKPOINT");
  add_overrides(command, options.overrides);
  add_ties(command, options.ties);
}

void declare_diff(CLI::App& app, deltawire::diff::DiffOptions& options) {
  CLI::App& command =
    *app.add_subcommand("diff", "Show what changed between two checkpoints, and what moving it costs");
  for (auto& [name, path] : {std::pair{"before", &options.before}, std::pair{"after", &options.after}})
    command.add_option(name, *path, "A safetensors file, an index of several files, or a folder")
      ->type_name("CHECKPOINT")
      ->required();
  command.add_option("--top", options.top, "Tensors with a row of their own: those with the most changes")
    ->type_name("N")
    ->check(whole_number)
    ->capture_default_str();
  command.add_flag("--json", options.json, "Every tensor, as JSON");
}

void declare_plan(CLI::App& app, deltawire::plan::PlanOptions& options) {
  CLI::App& command = *app.add_subcommand(
    "plan", "Show what will run where, what it may hold, and whether a checkpoint fits; start nothing");
  add_topology(command, options.topology);
  command
    .add_option("--checkpoint", options.checkpoints,
                "Also show what each rank and worker gets of these tensors; of several, all must have the same")
    ->type_name("CHECKPOINT");
  add_overrides(command, options.overrides);
  CLI::Option* dot = command.add_flag("--dot", options.dot, "The actor graph for Graphviz, and nothing else");
  command.add_flag("--json", options.json, "All of it as JSON, and nothing else")->excludes(dot);
}

void declare_keys(CLI::App& app, deltawire::keys::KeysOptions& options) {
  CLI::App& command = *app.add_subcommand("keys", "List the keys of the topology file, and what is refused by name");
  CLI::Option* under =
    command.add_option("under", options.under, "Only those of this table, e.g. actors.differ, or this key")
      ->type_name("TABLE");
  CLI::Option* json = command.add_flag("--json", options.json, "The same as JSON");
  command.add_flag("--markdown", options.markdown, "The tables of README.md")->excludes(json)->excludes(under);
}

void declare_inspect(CLI::App& app, deltawire::inspect::InspectOptions& options) {
  CLI::App& command = *app.add_subcommand("inspect", "Show the header and the pieces of a flush file");
  command.add_option("flush", options.flush, "As replay --keep-flushes writes them")->type_name("FLUSH")->required();
  command.add_flag("--json", options.json, "The same as JSON");
}

void declare_bench(CLI::App& app, deltawire::bench::BenchOptions& options) {
  CLI::App& command = *app.add_subcommand("bench", "Measure against the machine's own limits");
  command
    .add_option("name", options.name,
                "One of: " + deltawire::bench::bench_names() + "; without it, or all: all of them")
    ->type_name("NAME");
  command.add_option("--gib", options.gib, "Weights")->type_name("GIB");
  command.add_option("--tensors", options.tensors, "Matrices that the weights are")->type_name("N");
  command.add_option("--ranks", options.ranks, "Trainer ranks, which hold rows")->type_name("N");
  command.add_option("--workers", options.workers, "Tensor-parallel workers")->type_name("N");
  command.add_option("--density", options.densities, "Elements that change, percent, e.g. 0.1,1,10")
    ->type_name("PERCENT,...")
    ->delimiter(',');
  command.add_option("--runs", options.runs, "Updates that count of each; figures are their medians")->type_name("N");
  command.add_flag("--clustered", options.clustered, "Changes cluster by rows instead of being spread evenly");
  command.add_flag("--processes", options.processes, "Each trainer rank and worker is a process of its own");
  add_overrides(command, options.overrides);
  command.add_option("--instruction-set", options.instruction_set, "Run the kernels on this one instead of the best")
    ->type_name("NAME");
  CLI::Option* json =
    command.add_flag("--json", options.json, "The figures on standard output, and nothing else there");
  command.add_flag("--markdown", options.markdown, "Tables for a README")->excludes(json);
}

/// What `bench update --processes` starts; not for people.
void declare_bench_peer(CLI::App& app, deltawire::bench::PeerCommand& options) {
  CLI::App& command = *app.add_subcommand("bench-peer")->group("");
  add_topology(command, options.topology);
  command.add_option("--rank", options.rank);
  command.add_option("--index", options.index);
  command.add_option("--weights-fd", options.weights);
  command.add_option("--bytes", options.shape.bytes);
  command.add_option("--tensors", options.shape.tensors);
  command.add_option("--ranks", options.shape.ranks);
  command.add_option("--workers", options.shape.workers);
  command.add_option("--updates", options.updates);
  command.add_option("--listen-fd", options.listening_socket);
  add_overrides(command, options.overrides);
  add_ties(command, options.ties);
}

void declare_top(CLI::App& app, deltawire::top::TopOptions& options) {
  CLI::App& command =
    *app.add_subcommand("top", "Watch the actors and workers of a running session (telemetry.prometheus)");
  command.add_option("address", options.addresses, "Where metrics are served; of several, one view")
    ->type_name("ADDRESS")
    ->required();
  command.add_option("--interval", options.interval_s, "Seconds between frames")
    ->type_name("SECONDS")
    ->check(CLI::Range(0.05, 3600.0))
    ->capture_default_str();
  command.add_flag("--once", options.once, "One frame, and the end");
}

void declare_report(CLI::App& app, deltawire::report::ReportOptions& options) {
  CLI::App& command = *app.add_subcommand("report", "Make a page to look at of a run's report and traces");
  command.add_option("run", options.run, "As replay --report writes it")->type_name("RUN.json")->required();
  command.add_option("--trace", options.traces, "Files of telemetry.trace: one a rank and worker")
    ->type_name("TRACE.json");
  command.add_option("-o,--output", options.output, "The page")->type_name("FILE.html")->required();
}

ExitStatus usage_error(const std::string& message) {
  print_error({deltawire::Code::invalid_argument, message + "; see --help"});
  return ExitStatus::bad_input;
}

/// This build, and the devices of this machine.
std::string version_text() {
  const deltawire::kernels::cuda::Devices devices = deltawire::kernels::cuda::find_devices();
  std::string text = "deltawire " + std::string(deltawire::library_version());
  if (!devices.libraries.empty()) {
    const deltawire::transport::Nccl nccl = deltawire::transport::find_nccl();
    text += "\nbuilt with " + devices.libraries;
    text += nccl.version.empty() ? "\nno NCCL: " + nccl.why_none : "\nNCCL " + nccl.version;
  }
  if (devices.found.empty())
    text += "\nno GPU: " + devices.why_none;
  for (const deltawire::kernels::cuda::Device& device : devices.found)
    text += fmt::format("\nGPU {}: {}, {}, compute capability {}.{}, {}, {}", device.index, device.name,
                        short_bytes(device.memory), device.capability_major, device.capability_minor, device.pci,
                        device.uuid);
  return text;
}

/// The command that is named but does not exist; empty: none.
std::string unknown_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-')
    return "";
  const std::string name = argv[1];
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (command->get_name() == name)
      return "";
  return name;
}

ExitStatus run(int argc, char** argv) {
  CLI::App app{"deltawire keeps rollout workers bit-identical to a sharded trainer, moving only what changed.",
               "deltawire"};
  app.set_version_flag("--version", std::function<std::string()>(version_text));
  app.require_subcommand(1);
  ReplayOptions replay;
  TrainerCommand trainer;
  WorkerCommand worker;
  deltawire::diff::DiffOptions diff;
  deltawire::plan::PlanOptions plan;
  deltawire::bench::BenchOptions bench;
  deltawire::bench::PeerCommand bench_peer;
  deltawire::inspect::InspectOptions inspect;
  deltawire::keys::KeysOptions keys;
  deltawire::top::TopOptions top;
  deltawire::report::ReportOptions report;
  declare_replay(app, replay);
  declare_trainer(app, trainer);
  declare_worker(app, worker);
  declare_diff(app, diff);
  declare_plan(app, plan);
  declare_bench(app, bench);
  declare_bench_peer(app, bench_peer);
  declare_inspect(app, inspect);
  declare_keys(app, keys);
  declare_top(app, top);
  declare_report(app, report);

  if (const std::string name = unknown_command(app, argc, argv); !name.empty())
    return usage_error("unknown command \"" + name + "\"");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) { // --help, --version
      app.exit(error);
      std::cout.flush();
      return std::cout ? ExitStatus::verified : report_failure({deltawire::Code::output_failed, "standard output"});
    }
    return usage_error(error.what());
  }
  if (app.got_subcommand("replay"))
    return replay_command(replay);
  if (app.got_subcommand("diff"))
    return deltawire::diff::diff_command(diff);
  if (app.got_subcommand("plan"))
    return deltawire::plan::plan_command(plan);
  if (app.got_subcommand("inspect"))
    return deltawire::inspect::inspect_command(inspect);
  if (app.got_subcommand("keys"))
    return deltawire::keys::keys_command(keys);
  if (app.got_subcommand("top"))
    return deltawire::top::top_command(top);
  if (app.got_subcommand("report"))
    return deltawire::report::report_command(report);
  if (app.got_subcommand("bench"))
    return deltawire::bench::bench_command(bench);
  if (app.got_subcommand("bench-peer"))
    return deltawire::bench::peer_command(bench_peer);
  return app.got_subcommand("trainer") ? trainer_command(trainer) : worker_command(worker);
}

} // namespace

int main(int argc, char** argv) {
  // A reader that left and a file that may not grow are errors of the write, with a message.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  ExitStatus status = ExitStatus::internal;
  const auto ran = catching([&]() -> deltawire::Result<void> {
    status = run(argc, argv);
    return {};
  });
  if (!ran)
    status = report_failure(ran.error());
  return static_cast<int>(status);
}
