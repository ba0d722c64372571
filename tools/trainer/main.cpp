// deltawire-rl: reinforcement learning of a small transformer, the weights of which reach the rollout workers through
// deltawire. An example of how to embed deltawire, and a proof that it works. Exit status: 0 all is well, 1 the proof
// failed, 2 bad usage, 3 a process of the run failed or the log cannot be written.
#include "launch.hpp"
#include "proof.hpp"
#include "record.hpp"
#include "seats.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <map>
#include <span>
#include <stdexcept>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

namespace {

using namespace trainer;

struct Options {
  Settings settings;
  Seat seat;
  std::string log;
  std::uint32_t every = 10;
  std::vector<std::uint64_t> seeds{std::begin(proof_seeds), std::end(proof_seeds)};
};

void add_settings(CLI::App& command, Settings& settings) {
  command.add_option("topology", settings.topology, "tools/trainer/topology.toml, or one that fits the same model")
    ->type_name("TOPOLOGY")
    ->required();
  command.add_option("--updates", settings.updates, "Steps of reinforcement learning")->capture_default_str();
  command.add_option("--warm-up", settings.warm_up, "Supervised steps before them")->capture_default_str();
  command.add_option("--prompts", settings.prompts, "Prompts in an update")
    ->check(CLI::Range(rank_count, 4096U))
    ->capture_default_str();
  command.add_option("--group", settings.group, "Answers to each prompt")
    ->check(CLI::Range(2U, 1024U))
    ->capture_default_str();
  command.add_option("--learning-rate", settings.learning_rate, "Of Adam, after the warm-up")
    ->check(CLI::PositiveNumber)
    ->capture_default_str();
  command
    .add_option_function<std::int64_t>(
      "--deadline", [&](std::int64_t seconds) { settings.deadline = std::chrono::seconds(seconds); },
      "How long any one process may stand still")
    ->type_name("SECONDS")
    ->check(CLI::Range(1, 86400))
    ->default_str(std::to_string(settings.deadline.count()));
  command.add_option("--set", settings.overrides, "A key of the topology, e.g. actors.flush_bucket.cap=4KiB")
    ->type_name("KEY=VALUE")
    ->allow_extra_args(false);
}

void add_seed_and_sync(CLI::App& command, Settings& settings) {
  command.add_option("--seed", settings.seed, "Of the weights, the prompts and the answers")->capture_default_str();
  command
    .add_option("--sync", settings.sync, "How the weights get to the workers: through deltawire, or copied in whole")
    ->transform(CLI::CheckedTransformer(
      std::map<std::string, Sync>{{"deltawire", Sync::deltawire}, {"copy", Sync::copy}}, CLI::ignore_case))
    ->type_name("deltawire|copy")
    ->default_str("deltawire");
}

void declare_run(CLI::App& app, Options& options) {
  CLI::App& command = *app.add_subcommand("run", "Train once: 2 trainer ranks and 2 workers, a process each");
  add_settings(command, options.settings);
  add_seed_and_sync(command, options.settings);
  command.add_option("--log", options.log, "One line of JSON for each update, all numbers of it")->type_name("FILE");
  command.add_option("--every", options.every, "Updates from one row of the table to the next")
    ->check(CLI::PositiveNumber)
    ->capture_default_str();
}

void declare_prove(CLI::App& app, Options& options) {
  CLI::App& command = *app.add_subcommand(
    "prove", "Train with each seed, once through deltawire and once with full copies, compare the two bit for bit, and "
             "test that the reward rises");
  add_settings(command, options.settings);
  command.add_option("--seeds", options.seeds, "Instead of those that were fixed beforehand")
    ->type_name("SEED,...")
    ->delimiter(',');
  command.add_option("--every", options.every, "Updates from one row of the table to the next")
    ->check(CLI::PositiveNumber)
    ->capture_default_str();
}

/// What launch() starts; not for people.
void declare_child(CLI::App& app, const char* name, Options& options) {
  CLI::App& command = *app.add_subcommand(name)->group("");
  add_settings(command, options.settings);
  add_seed_and_sync(command, options.settings);
  command.add_option("--index", options.seat.index);
  command.add_option("--parent", options.seat.parent);
  command.add_option("--master", options.seat.master);
  command.add_option("--events-fd", options.seat.events);
  command.add_option("--group-fd", options.seat.group);
  command.add_option("--other-side-fd", options.seat.other_side);
  command.add_option("--listen-fd", options.seat.listening_socket);
}

/// A run that shows its table as it goes.
std::vector<UpdateRecord> show_run(const Settings& settings, std::uint32_t every) {
  const bool live = ::isatty(STDERR_FILENO) != 0;
  RunEvents events;
  events.on_warming = [&](std::uint32_t steps) {
    if (live)
      fmt::print(stderr, "\rwarming up: {} of {} supervised steps ", steps, settings.warm_up);
  };
  events.on_record = [&](const UpdateRecord& record) {
    if (record.update == 0)
      fmt::print("{}{}", live ? "\n" : "", table_head());
    if (record.update % every == 0 || record.update == settings.updates)
      fmt::print("{}", table_row(record));
    std::fflush(stdout);
  };
  std::vector<UpdateRecord> records = launch(settings, events);
  double gap = 0;
  for (const UpdateRecord& record : records)
    gap = std::max(gap, record.largest_gap);
  fmt::print(
    "reward {}\nafter each update the memory of each worker had the digest that the trainer's weights give for it; "
    "no log probability that a worker reported was farther than {:.0e} from the trainer's\n",
    curve(records), gap);
  return records;
}

int run(const Options& options) {
  std::ofstream log;
  if (!options.log.empty()) {
    log.open(options.log);
    if (!log)
      throw std::runtime_error(options.log + ": cannot be written");
  }
  for (const UpdateRecord& record : show_run(options.settings, options.every))
    log << json_line(record) << '\n';
  if (!options.log.empty() && !log.flush())
    throw std::runtime_error(options.log + ": could not be written");
  return 0;
}

int prove(const Options& options) {
  if (options.settings.updates < least_updates)
    throw CLI::ValidationError("--updates", fmt::format("a proof takes {} or more", least_updates));
  bool proven = true;
  std::string summary;
  for (const std::uint64_t seed : options.seeds) {
    Settings settings = options.settings;
    settings.seed = seed;
    fmt::print("seed {}, through deltawire\n", seed);
    const std::vector<UpdateRecord> records = show_run(settings, options.every);
    fmt::print("the same with full copies\n");
    std::fflush(stdout);
    settings.sync = Sync::copy;
    const std::vector<UpdateRecord> copied = launch(settings, {[](std::uint32_t) {}, [](const UpdateRecord&) {}});
    const std::string differs = difference(records, copied);
    const double p = reward_rises_p(records);
    const auto sum = [](const std::vector<UpdateRecord>& run) {
      std::uint64_t bytes = 0;
      for (const UpdateRecord& record : run)
        bytes += record.delivery.wire_bytes;
      return bytes;
    };
    const auto mean = [](std::span<const UpdateRecord> updates) {
      double reward = 0;
      for (const UpdateRecord& record : updates)
        reward += record.reward / static_cast<double>(updates.size());
      return reward;
    };
    const std::span<const UpdateRecord> updates = std::span(records).subspan(1); // without the seed
    const bool held = differs.empty() && p < significance;
    proven &= held;
    summary += fmt::format(
      "seed {}: {}: with full copies {}; mean reward {:.3f} -> {:.3f}, p = {:.1e}; {} bytes against {}\n", seed,
      held ? "proven" : "NOT PROVEN", differs.empty() ? "the same numbers, bit for bit" : differs,
      mean(updates.first(compared_updates)), mean(updates.last(compared_updates)), p, sum(records), sum(copied));
    fmt::print("\n");
  }
  fmt::print("{}", summary);
  return proven ? 0 : 1;
}

int dispatch(const CLI::App& app, const Options& options) {
  if (app.got_subcommand("run"))
    return run(options);
  if (app.got_subcommand("prove"))
    return prove(options);
  return app.got_subcommand("rank") ? trainer_rank(options.seat, options.settings)
                                    : rollout_worker(options.seat, options.settings);
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app{
    "Reinforcement learning of a small transformer whose weights reach its rollout workers through deltawire.",
    "deltawire-rl"};
  app.require_subcommand(1);
  Options options;
  declare_run(app, options);
  declare_prove(app, options);
  declare_child(app, "rank", options);
  declare_child(app, "worker", options);
  try {
    app.parse(argc, argv);
    return dispatch(app, options);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) // --help
      return app.exit(error);
    fmt::print(stderr, "deltawire-rl: {}; see --help\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "deltawire-rl: {}\n", error.what());
    return 3;
  }
}
