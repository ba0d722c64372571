#include "telemetry_bench.hpp"

#include "machine.hpp"
#include "measure.hpp"
#include "parallel.hpp"
#include "replay/numbers.hpp"
#include "scratch_folder.hpp"
#include "top/http_get.hpp"
#include "top/metrics_text.hpp"
#include "update_bench.hpp"
#include "update_session.hpp"

#include "config/address.hpp"
#include "telemetry/actor_meter.hpp"
#include "telemetry/endpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace deltawire::bench {
namespace {

constexpr std::chrono::seconds between_scrapes{1};
constexpr std::chrono::milliseconds patience{3000};

/// Learns from deltawire's own log where metrics are served. While it lives, lines of the log go nowhere else.
class EndpointWatch {
public:
  EndpointWatch() {
    set_log([this](std::string_view line) {
      constexpr std::string_view before = "metrics at http://";
      const std::lock_guard lock(mutex_);
      if (const std::size_t at = line.find(before); at != std::string_view::npos)
        address_ = line.substr(at + before.size(), line.rfind('/') - at - before.size());
    });
  }
  EndpointWatch(const EndpointWatch&) = delete;
  EndpointWatch& operator=(const EndpointWatch&) = delete;
  ~EndpointWatch() { set_log({}); }

  [[nodiscard]] std::string address() const {
    const std::lock_guard lock(mutex_);
    return address_;
  }

private:
  mutable std::mutex mutex_;
  std::string address_;
};

/// Scrapes an endpoint every second, as Prometheus would, on a thread of its own.
class Scraper {
public:
  explicit Scraper(config::Address address) : address_(std::move(address)), thread_([this] { run(); }) {}
  Scraper(const Scraper&) = delete;
  Scraper& operator=(const Scraper&) = delete;
  ~Scraper() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_one();
  }

  /// The first scrape that failed, if one has.
  [[nodiscard]] std::optional<Failure> failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  [[nodiscard]] std::size_t scrapes() const {
    const std::lock_guard lock(mutex_);
    return scrapes_;
  }

private:
  void run() {
    for (std::unique_lock lock(mutex_); !ended_; wake_.wait_for(lock, between_scrapes, [this] { return ended_; })) {
      lock.unlock();
      const auto body = top::http_get(address_.host, address_.port, "/metrics", patience);
      lock.lock();
      ++scrapes_;
      if (!body && !failure_)
        failure_ = body.error();
    }
  }

  const config::Address address_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
  std::size_t scrapes_ = 0;
  std::optional<Failure> failure_;
  std::jthread thread_; ///< ends first
};

/// CLOCK_PROCESS_CPUTIME_ID: of all threads of this process; CLOCK_THREAD_CPUTIME_ID: of this one.
double processor_seconds(clockid_t whose) {
  timespec time;
  clock_gettime(whose, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Cost {
  double seconds = 0;
  double processor = 0; ///< seconds
};

struct Pair {
  Cost off, on;
};

Result<Cost> timed(UpdateSession& session, const ModelPlan& plan, const std::byte* weights) {
  const double before = processor_seconds(CLOCK_PROCESS_CPUTIME_ID);
  auto update = session.update();
  const double processor = processor_seconds(CLOCK_PROCESS_CPUTIME_ID) - before;
  if (!update)
    return pass_on(std::move(update));
  for (std::uint32_t worker = 0; worker < plan.shape().workers; ++worker)
    if (auto equal = compare_worker(plan, weights, worker, session.memory_of(worker)); !equal)
      return pass_on(std::move(equal));
  return Cost{update->seconds, processor};
}

/// Messages that all actors of the session have handled so far.
Result<double> messages_of(const config::Address& address) {
  auto body = top::http_get(address.host, address.port, "/metrics", patience);
  if (!body)
    return pass_on(std::move(body));
  const auto series = top::parse_metrics(*body);
  if (!series)
    return tl::make_unexpected(series.error());
  double messages = 0;
  for (const top::Series& each : *series)
    messages += each.name == "deltawire_messages_total" ? each.value : 0;
  return messages;
}

/// Processor time that metering takes for a message, beside what it meters, seconds.
double metering_of_a_message() {
  constexpr std::size_t messages = 100'000;
  const auto registry = std::make_shared<telemetry::Registry>(telemetry::Labels{{"rank", "0"}});
  const auto recorder = std::make_shared<telemetry::Recorder>("bench", 1);
  telemetry::HighWater held;
  telemetry::ActorMeter meter(registry, recorder, "rank 0", "bench");
  meter.follow(held, "bench", 1);
  meter.block_when([&held] { return held.now() > 0; });
  const auto message = meter.message("Message");
  std::vector<double> seconds;
  for (int round = 0; round < 5; ++round) {
    const double begin = processor_seconds(CLOCK_THREAD_CPUTIME_ID);
    for (std::size_t i = 0; i < messages; ++i)
      meter.end(message, meter.begin(0), 1);
    seconds.push_back(processor_seconds(CLOCK_THREAD_CPUTIME_ID) - begin);
  }
  return median(std::move(seconds)) / messages;
}

/// What was measured beside the pairs.
struct Asides {
  double messages = 0; ///< of an update
  std::size_t scrapes = 0;
};

/// Two sessions over the same weights, one with telemetry.
struct Sessions {
  std::unique_ptr<UpdateSession> off, on;
};

/// `on_first`: which of them takes its memory first.
Result<Sessions> open_sessions(const UpdateSettings& settings, const ModelPlan& plan, const std::byte* weights,
                               const std::string& topology, bool on_first) {
  std::vector<std::string> overrides = settings.overrides;
  overrides.push_back("telemetry.trace=" + topology + ".json");
  if (telemetry::can_serve())
    overrides.emplace_back("telemetry.prometheus=127.0.0.1:0");
  Sessions sessions;
  for (const bool with : {on_first, !on_first}) {
    auto session = UpdateSession::open(plan, weights, topology, with ? overrides : settings.overrides);
    if (!session)
      return pass_on(std::move(session));
    (with ? sessions.on : sessions.off) = std::move(*session);
  }
  return sessions;
}

/// Goes on with the weights as they are: `changes` counts what was done to them so far.
Result<void> run_pairs(const UpdateSettings& settings, const ModelPlan& plan, std::byte* weights,
                       const std::string& topology, bool on_first, std::size_t runs, std::size_t& changes,
                       std::vector<Pair>& pairs, Asides& asides) {
  const EndpointWatch watch;
  auto sessions = open_sessions(settings, plan, weights, topology, on_first);
  if (!sessions)
    return pass_on(std::move(sessions));
  std::optional<config::Address> address;
  std::optional<Scraper> scraper;
  if (telemetry::can_serve()) {
    auto parsed = config::parse_address(watch.address());
    if (!parsed)
      return fail(Code::internal, "metrics are served at \"{}\": {}", watch.address(), parsed.error().message);
    address = std::move(*parsed);
    scraper.emplace(*address);
  }

  double before = 0;
  constexpr std::size_t idle_pairs = 2; // the seed, and one that warms up
  for (std::size_t number = 0; number < runs + idle_pairs; ++number) {
    if (number > 0)
      (void)change_weights(plan, weights, settings.densities.front() / 100, settings.spread, ++changes);
    if (number == idle_pairs && address) {
      const auto messages = messages_of(*address);
      if (!messages)
        return tl::make_unexpected(messages.error());
      before = *messages;
    }
    Pair pair;
    for (const bool first : {true, false}) {
      const bool with = first == (number % 2 == 0);
      auto cost = timed(with ? *sessions->on : *sessions->off, plan, weights);
      if (!cost)
        return pass_on(std::move(cost));
      (with ? pair.on : pair.off) = *cost;
    }
    if (number >= idle_pairs)
      pairs.push_back(pair);
  }
  if (address) {
    const auto messages = messages_of(*address);
    if (!messages)
      return tl::make_unexpected(messages.error());
    asides.messages = (*messages - before) / static_cast<double>(runs);
    asides.scrapes += scraper->scrapes();
    if (const auto failure = scraper->failure())
      return tl::make_unexpected(*failure);
    scraper.reset();
  }
  if (auto closed = sessions->off->close(); !closed)
    return closed;
  return sessions->on->close();
}

/// Weights, and a snapshot and workers of each session.
Result<void> check_memory(std::size_t bytes, double density) {
  const double needed = static_cast<double>(bytes) * (5 + 6 * density / 100);
  const auto available = available_memory();
  if (available && needed > static_cast<double>(*available))
    return fail(Code::limit_exceeded,
                "{} of weights need about {} of memory in two sessions, and {} are available: choose a smaller --gib",
                replay::short_bytes(bytes), replay::short_bytes(static_cast<std::uint64_t>(needed)),
                replay::short_bytes(*available));
  return {};
}

Row row_of(const UpdateSettings& settings, double bytes, const std::vector<Pair>& pairs, const Asides& asides) {
  const auto all = [&](auto&& value) {
    std::vector<double> values;
    for (const Pair& pair : pairs)
      values.push_back(value(pair));
    return values;
  };
  const double off = median(all([](const Pair& pair) { return pair.off.seconds; }));
  const double on = median(all([](const Pair& pair) { return pair.on.seconds; }));
  Row row{
    fmt::format("{} ranks to {} workers", settings.shape.ranks, settings.shape.workers),
    fmt::format("{:g} % changed{}", settings.densities.front(),
                telemetry::can_serve() ? "" : ", no metrics endpoint in this build"),
    usable_cores(),
    bytes / on,
    {{"telemetry off", bytes / off, median(all([](const Pair& pair) { return pair.off.seconds / pair.on.seconds; }))}}};
  constexpr double percent = 100;
  const auto add_ratio = [&](const char* group, bool in_table, auto&& cost) {
    const auto more = all([&](const Pair& pair) { return percent * (cost(pair.on) / cost(pair.off) - 1); });
    const auto [least, most] = median_interval(more);
    const auto ms = [&](auto side) { return 1e3 * median(all([&](const Pair& pair) { return cost(pair.*side); })); };
    row.figures.push_back({group, "off", "ms", ms(&Pair::off), in_table});
    row.figures.push_back({group, "on", "ms", ms(&Pair::on), in_table});
    row.figures.push_back({group, "more", "%", median(more), in_table});
    row.figures.push_back({group, "more at least", "%", least, in_table});
    row.figures.push_back({group, "more at most", "%", most, in_table});
  };
  add_ratio("update", true, [](const Cost& cost) { return cost.seconds; });
  add_ratio("processor", false, [](const Cost& cost) { return cost.processor; });
  const double metering = metering_of_a_message();
  const double processor = median(all([](const Pair& pair) { return pair.off.processor; }));
  row.figures.push_back({"metering", "messages", "an update", asides.messages});
  row.figures.push_back({"metering", "a message", "ns", 1e9 * metering});
  row.figures.push_back({"metering", "of an update", "%", percent * metering * asides.messages / processor, true});
  row.figures.push_back({"pairs", "updates", "x", static_cast<double>(pairs.size())});
  row.figures.push_back({"pairs", "scrapes", "x", static_cast<double>(asides.scrapes)});
  return row;
}

} // namespace

std::pair<double, double> median_interval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  // The median lies below the (k+1)th of n values with the probability that at most k of n fair coins show heads.
  std::size_t skipped = 0;
  double below = 0;
  double coins = std::pow(0.5, count); // that exactly `k` do
  for (std::size_t k = 0; 2 * (k + 1) < values.size(); ++k) {
    below += coins;
    if (2 * below > 0.05)
      break;
    skipped = k;
    coins *= (count - static_cast<double>(k)) / (static_cast<double>(k) + 1);
  }
  return {values[skipped], values[values.size() - 1 - skipped]};
}

Result<Report> telemetry_bench(const BenchOptions& options) {
  UpdateSettings settings = settings_of(options);
  settings.runs = static_cast<std::size_t>(options.runs.value_or(21));
  Report report{"telemetry", {}};
  for (const double density : options.densities.empty() ? std::vector<double>{1} : options.densities) {
    settings.densities = {density};
    const ModelPlan plan(settings.shape);
    if (auto fits = check_memory(plan.bytes(), density); !fits)
      return pass_on(std::move(fits));
    HugeArray weights(plan.bytes());
    fill_with_weights(plan, weights.data());
    const auto folder = ScratchFolder::make();
    if (!folder)
      return tl::make_unexpected(folder.error());
    const auto topology = folder->write("bench.toml", plan.topology());
    if (!topology)
      return tl::make_unexpected(topology.error());
    Asides asides;
    std::vector<Pair> pairs;
    std::size_t changes = 0;
    // Half of the pairs each: memory that comes first may be better memory.
    const std::size_t half = (settings.runs + 1) / 2;
    for (const bool on_first : {false, true})
      if (auto ran = run_pairs(settings, plan, weights.data(), *topology, on_first, half, changes, pairs, asides); !ran)
        return pass_on(std::move(ran));
    report.rows.push_back(row_of(settings, static_cast<double>(plan.bytes()), pairs, asides));
  }
  return report;
}

} // namespace deltawire::bench
