#include "session.hpp"

#include "cast_oracle.hpp"
#include "random.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <thread>

namespace deltawire::test {

std::shared_ptr<EmulatedGpus> trainer_gpus() {
  static const std::shared_ptr<EmulatedGpus> gpus = [] {
    std::shared_ptr<EmulatedGpus> made;
    if (std::getenv("DELTAWIRE_TEST_GPU") != nullptr) {
      made = std::make_shared<EmulatedGpus>(seed(), 1, std::size_t{16} << 30);
      device::set_gpus(made);
      std::cout << "trainers on an emulated GPU: " << std::getenv("DELTAWIRE_TEST_GPU") << ", seed " << seed() << "\n";
    }
    return made;
  }();
  return gpus;
}

namespace {

/// Whether a rank has this parameter on the GPU.
bool on_gpu(std::size_t held) {
  return trainer_gpus() && (std::getenv("DELTAWIRE_TEST_GPU") != std::string("mixed") || held % 2 == 0);
}

} // namespace

HeldMemory::HeldMemory(const Held& held, std::shared_ptr<EmulatedGpus> gpus)
  : held_(&held), size_(size_of(held.dtype)), gpus_(std::move(gpus)) {
  std::vector<std::int64_t> shape = held.local_shape, strides = held.strides;
  if (strides.empty()) {
    shape = {static_cast<std::int64_t>(held.elements.size())};
    strides = {1};
  }
  std::size_t end = static_cast<std::size_t>(held.offset) * size_;
  std::vector<std::int64_t> coordinate(shape.size(), 0);
  for (std::size_t i = 0; i < held.elements.size(); ++i) {
    std::int64_t element = held.offset;
    for (std::size_t d = 0; d < shape.size(); ++d)
      element += coordinate[d] * strides[d];
    at_.push_back(static_cast<std::size_t>(element) * size_);
    end = std::max(end, at_.back() + size_);
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++coordinate[d] < shape[d])
        break;
      coordinate[d] = 0;
    }
  }
  constexpr std::size_t guard = 16; // bytes behind the last element that nobody may touch
  bytes_.assign(end + guard, poison);
  if (gpus_) {
    on_gpu_ = {gpus_->allocate(bytes_.size()), [gpus = gpus_](std::byte* memory) { gpus->release(memory); }};
    gpus_->write(on_gpu_.get(), bytes_);
  }
}

void HeldMemory::store(const std::vector<Values>& tensors, std::optional<void*> stream) {
  for (std::size_t i = 0; i < at_.size(); ++i) {
    const Place& place = held_->elements[i];
    if (place.tensor != Place::padding)
      std::memcpy(bytes_.data() + at_[i], &tensors[place.tensor].bits[place.flat], size_); // little-endian
  }
  if (on_gpu_ && stream)
    gpus_->queue_write(*stream, on_gpu_.get(), bytes_);
  else if (on_gpu_)
    gpus_->write(on_gpu_.get(), bytes_);
}

void HeldMemory::scribble() {
  for (std::byte& byte : bytes_)
    byte ^= std::byte{0x5A};
  if (on_gpu_)
    gpus_->write(on_gpu_.get(), bytes_);
}

std::string HeldMemory::compare(const std::vector<Values>& tensors) const {
  std::vector<std::byte> expected(bytes_.size(), poison);
  for (std::size_t i = 0; i < at_.size(); ++i) {
    const Place& place = held_->elements[i];
    if (place.tensor == Place::padding)
      continue;
    const Values& tensor = tensors[place.tensor];
    const std::uint64_t bits = on_wire(tensor.bits[place.flat], tensor.dtype, held_->dtype);
    std::memcpy(expected.data() + at_[i], &bits, size_);
    if (std::memcmp(expected.data() + at_[i], bytes_.data() + at_[i], size_) != 0) {
      std::uint64_t holds = 0;
      std::memcpy(&holds, bytes_.data() + at_[i], size_);
      return fmt::format("'{}' element {} (tensor '{}', flat {}): holds {:#x}, the trainer has {:#x}", held_->parameter,
                         i, tensor.name, place.flat, holds, bits);
    }
  }
  const auto differs = std::mismatch(expected.begin(), expected.end(), bytes_.begin());
  if (differs.first != expected.end())
    return fmt::format("'{}': byte {} belongs to no element and was written", held_->parameter,
                       differs.first - expected.begin());
  return "";
}

std::vector<std::string> inproc_overrides() {
  static std::atomic<unsigned> sessions{0};
  return {fmt::format("transport.master=\"127.0.0.1:{}\"", 1 + sessions++ % 65000),
          "actors.gather_queue.transport=inproc", "actors.sender.transport=inproc", "update.connect=10s"};
}

Session::Session(const Scenario& scenario, const std::vector<std::string>& overrides, std::set<std::size_t> polled)
  : scenario_(&scenario), polled_(std::move(polled)), committed_(scenario.workers.size()) {
  topology_ = folder_.write("topology.toml", scenario.topology);
  for (const auto& [name, text] : scenario.files)
    folder_.write(name, text);
  overrides_ = inproc_overrides();
  if (trainer_gpus())
    overrides_.push_back(std::getenv("DELTAWIRE_TEST_GPU") == std::string("host") ? "actors.snapshotter.tier=host"
                                                                                  : "actors.snapshotter.tier=device");
  overrides_.insert(overrides_.end(), overrides.begin(), overrides.end());
  for (std::uint32_t r = 0; r < scenario.ranks.size(); ++r) {
    TrainerOptions options;
    options.rank = r;
    options.world = static_cast<std::uint32_t>(scenario.ranks.size());
    options.overrides = overrides_;
    if (r < scenario.rank_settings.size())
      options.overrides.insert(options.overrides.end(), scenario.rank_settings[r].begin(),
                               scenario.rank_settings[r].end());
    publishers_.push_back(Publisher::open(topology_, std::move(options)));
    auto& memories = rank_memory_.emplace_back();
    streams_.emplace_back();
    for (const Held& held : scenario.ranks[r]) {
      // An empty shard has no memory; the facade gets null for it.
      const bool gpu = on_gpu(memories.size()) && !held.elements.empty();
      memories.emplace_back(held, gpu ? trainer_gpus() : nullptr);
      if (gpu && !streams_.back())
        streams_.back() = r % 2 == 0 ? trainer_gpus()->make_stream() : nullptr;
      const void* data = held.elements.empty() ? nullptr : memories.back().data();
      Tensor tensor{held.parameter, held.dtype, held.full_shape, data, held.strides};
      if (held.flat) {
        tensor.flat_begin = held.flat->first;
        tensor.flat_end = held.flat->second;
      }
      publishers_.back().add(std::move(tensor));
    }
  }
  worker_memory_.resize(scenario.workers.size());
  for (std::size_t w = 0; w < scenario.workers.size(); ++w)
    open_worker(w);
}

void Session::open_worker(std::size_t w) {
  WorkerOptions options{static_cast<std::uint32_t>(w), overrides_};
  options.polled = polled_.contains(w);
  Subscriber subscriber = Subscriber::open(topology_, options);
  if (!options.polled)
    subscriber.on_commit([this, w](Version version, std::span<const Change> changes) {
      const std::lock_guard lock(mutex_);
      committed_[w].push_back({version, {changes.begin(), changes.end()}});
    });
  worker_memory_[w].clear();
  for (const Held& held : scenario_->workers[w])
    worker_memory_[w].emplace_back(held);
  if (w < subscribers_.size())
    subscribers_[w] = std::move(subscriber);
  else
    subscribers_.push_back(std::move(subscriber));
}

std::string Session::restart(std::size_t w, bool close_before,
                             const std::function<void(std::vector<HeldMemory>&)>& load) {
  if (close_before)
    subscribers_[w].close();
  else
    replaced_.push_back(std::move(subscribers_[w]));
  return at_once(1, [&](std::size_t) {
    open_worker(w);
    if (load)
      load(worker_memory_[w]);
    bind_and_start(w);
  })[0];
}

Session::~Session() {
  close();
}

std::vector<std::string> Session::at_once(std::size_t members, const std::function<void(std::size_t)>& call) const {
  std::vector<std::string> thrown(members);
  std::vector<std::thread> threads;
  for (std::size_t m = 0; m < members; ++m)
    threads.emplace_back([&, m] {
      try {
        call(m);
      } catch (const Error& error) {
        thrown[m] = error.what();
      }
    });
  for (std::thread& thread : threads)
    thread.join();
  return thrown;
}

std::vector<std::string> Session::connect() {
  return at_once(publishers_.size() + subscribers_.size(), [this](std::size_t member) {
    if (member < publishers_.size())
      return publishers_[member].connect();
    bind_and_start(member - publishers_.size());
  });
}

void Session::bind_and_start(std::size_t w) {
  const std::vector<Held>& held = scenario_->workers[w];
  // The product tells shapes; the scenario may know better (strides), and knows how many elements there must be.
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const ParameterInfo& info : subscribers_[w].parameters())
    shapes[info.name] = info.shape;
  for (std::size_t h = 0; h < held.size(); ++h) {
    const std::vector<std::int64_t>& shape =
      held[h].local_shape.empty() ? shapes[held[h].parameter] : held[h].local_shape;
    std::int64_t count = 1;
    for (const std::int64_t extent : shape)
      count *= extent;
    if (count != static_cast<std::int64_t>(held[h].elements.size()))
      throw Error(Code::internal, fmt::format("worker {}: '{}' has shape {}, the scenario {} elements", w,
                                              held[h].parameter, shape, held[h].elements.size()));
    subscribers_[w].bind({held[h].parameter, held[h].dtype, shape,
                          held[h].elements.empty() ? nullptr : worker_memory_[w][h].data(), held[h].strides});
  }
  subscribers_[w].start();
}

void Session::publish(const std::vector<Values>& tensors, std::uint64_t step) {
  for (std::size_t r = 0; r < rank_memory_.size(); ++r)
    for (HeldMemory& memory : rank_memory_[r])
      memory.store(tensors, streams_[r]);
  auto& tickets = tickets_.emplace_back();
  for (std::size_t r = 0; r < publishers_.size(); ++r)
    tickets.push_back(publishers_[r].publish(step, {.after = streams_[r]}));
  for (std::size_t r = 0; r < tickets.size(); ++r) {
    tickets[r].captured();
    for (HeldMemory& memory : rank_memory_[r])
      memory.scribble();
  }
}

std::vector<Outcome> Session::wait() {
  std::vector<Outcome> outcomes;
  for (Ticket& ticket : tickets_.at(0))
    outcomes.push_back(ticket.wait());
  tickets_.pop_front();
  return outcomes;
}

std::string Session::compare(const std::vector<Values>& tensors) const {
  for (std::size_t w = 0; w < worker_memory_.size(); ++w)
    if (std::string difference = compare(tensors, w); !difference.empty())
      return difference;
  return "";
}

std::string Session::compare(const std::vector<Values>& tensors, std::size_t worker) const {
  for (const HeldMemory& memory : worker_memory_[worker])
    if (const std::string difference = memory.compare(tensors); !difference.empty())
      return fmt::format("worker {}: {}", worker, difference);
  return "";
}

Scenario two_ranks(std::size_t elements, std::size_t replicas) {
  Scenario scenario;
  scenario.topology =
    fmt::format("[trainer]\nmesh = [[\"fsdp\", 2]]\n[[trainer.placement]]\nparameter = \"*\"\nshard = "
                "[\"fsdp:0\"]\n[worker]\nmesh = [[\"dp\", {}]]\n",
                replicas);
  Values values{"w", DType::bf16, {}};
  for (std::size_t i = 0; i < elements; ++i)
    values.bits.push_back(i & 0xFFFF);
  scenario.tensors.push_back(values);
  const auto held = [&](std::size_t first, std::size_t count) {
    Held one{"w", DType::bf16, {static_cast<std::int64_t>(elements)}, {static_cast<std::int64_t>(count)}, {}, 0, {}};
    for (std::size_t i = 0; i < count; ++i)
      one.elements.push_back({0, first + i});
    return std::vector<Held>{one};
  };
  const std::size_t first = (elements + 1) / 2;
  scenario.ranks = {held(0, first), held(first, elements - first)};
  scenario.workers.assign(replicas, held(0, elements));
  return scenario;
}

bool Session::untouched() const {
  for (const auto& memories : worker_memory_)
    for (const HeldMemory& memory : memories)
      for (const std::byte byte : memory.bytes())
        if (byte != poison)
          return false;
  return true;
}

std::vector<Session::Committed> Session::committed(std::size_t worker) const {
  const std::lock_guard lock(mutex_);
  return committed_[worker];
}

void Session::close() {
  (void)at_once(publishers_.size() + subscribers_.size(), [this](std::size_t member) {
    if (member < publishers_.size())
      publishers_[member].close();
    else
      subscribers_[member - publishers_.size()].close();
  });
}

void apply(std::vector<Values>& tensors, const std::vector<Edit>& edits) {
  for (const Edit& edit : edits)
    for (std::size_t i = 0; i < edit.at.size(); ++i)
      tensors[edit.tensor].bits.at(edit.at[i]) = edit.bits[i];
}

namespace {

std::string check_outcome(const Outcome& outcome, const ScenarioUpdate& update, Version version, std::uint64_t step) {
  if (!outcome.committed)
    return fmt::format("not committed: {}", outcome.error_message);
  if (outcome.version != version || outcome.step != step || outcome.seed != (version == 1))
    return fmt::format("version {} of step {} (seed: {}), expected version {} of step {}", outcome.version,
                       outcome.step, outcome.seed, version, step);
  if (update.changed >= 0 && outcome.changed != static_cast<std::uint64_t>(update.changed))
    return fmt::format("{} changed elements, expected {}", outcome.changed, update.changed);
  if (update.gathered >= 0 && outcome.gather_bytes > static_cast<std::uint64_t>(update.gathered))
    return fmt::format("{} bytes gathered, at most {} expected", outcome.gather_bytes, update.gathered);
  for (const WorkerOutcome& worker : outcome.workers)
    if (worker.version != version || !worker.digest_ok || worker.state != "serving" || !worker.error.empty())
      return fmt::format("worker {} is {} at version {} (digest ok: {}) {}", worker.index, worker.state, worker.version,
                         worker.digest_ok, worker.error);
  return "";
}

} // namespace

std::string run(const Scenario& scenario, const std::vector<std::string>& given) {
  std::vector<std::string> overrides = given;
  // A root that refuses its own parameters never listens: the others wait for it.
  if (!scenario.refused.empty())
    overrides.push_back("update.connect=1s");
  auto session = std::make_unique<Session>(scenario, overrides);
  const auto connect = [&]() -> std::string {
    for (const std::string& thrown : session->connect())
      if (!thrown.empty())
        return thrown;
    return "";
  };
  const std::string refused = connect();
  if (!scenario.refused.empty()) {
    if (refused.empty())
      return "not refused";
    for (const std::string& part : scenario.refused)
      if (refused.find(part) == std::string::npos)
        return fmt::format("the message has no '{}': {}", part, refused);
    return session->untouched() ? "" : "a worker's memory was written";
  }
  if (!refused.empty())
    return refused;
  std::vector<Values> tensors = scenario.tensors;
  Version version = 0;
  std::uint64_t step = 0;
  for (const ScenarioUpdate& update : scenario.updates) {
    apply(tensors, update.edits);
    if (update.fresh_session) {
      session = std::make_unique<Session>(scenario, overrides);
      if (const std::string again = connect(); !again.empty())
        return again;
      version = 0;
    }
    ++version;
    step += 10;
    session->publish(tensors, step);
    const std::vector<Outcome> outcomes = session->wait();
    for (std::size_t r = 0; r < outcomes.size(); ++r)
      if (const std::string wrong = check_outcome(outcomes[r], update, version, step); !wrong.empty())
        return fmt::format("update {} on rank {}: {}", version, r, wrong);
    if (const std::string difference = session->compare(tensors); !difference.empty())
      return fmt::format("after update {}: {}", version, difference);
    for (std::size_t w = 0; w < session->workers(); ++w) {
      const auto committed = session->committed(w);
      if (committed.size() != version || committed.back().version != version || session->worker(w).version() != version)
        return fmt::format("worker {}: on_commit was called {} times, serves {}, expected version {}", w,
                           committed.size(), session->worker(w).version(), version);
    }
  }
  return "";
}

} // namespace deltawire::test
