#include "gpu/emulated_gpus.hpp"

#include "gpu/emulated_launch.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>

namespace deltawire::test {

using namespace kernels::cuda;
using device::Elements;
using device::Home;

namespace {

/// What is wrong with an operation.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Counts of an event: what was recorded, and what of it was reached.
struct Point {
  std::uint64_t recorded = 0;
  std::uint64_t reached = 0;
};

struct Operation {
  std::function<void()> run;
  std::function<bool()> may_run; ///< empty: at once
};

using Queue = std::deque<Operation>;

/// Bytes that a strided stretch reaches over.
std::size_t stretch(std::uint64_t elements, std::int64_t stride, std::size_t size) {
  return elements == 0 ? 0 : ((elements - 1) * static_cast<std::uint64_t>(stride < 0 ? -stride : stride) + 1) * size;
}

} // namespace

/// One GPU: its memory and its streams.
struct EmulatedGpus::Machine {
  Machine(device::Identity who, std::uint64_t seed, std::size_t memory)
    : identity(std::move(who)), random(seed), launches(std::mt19937_64(seed + 1)), room(memory) {
    // Addresses are never given out again, so that a use after the release is seen.
    file = memfd_create("emulated-gpu", 0);
    if (file < 0 || ftruncate(file, static_cast<off_t>(window)) != 0)
      throw std::bad_alloc();
    void* const host = mmap(nullptr, window, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    void* const outside = mmap(nullptr, window, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (host == MAP_FAILED || outside == MAP_FAILED)
      throw std::bad_alloc();
    alias = static_cast<std::byte*>(host);
    base = static_cast<std::byte*>(outside);
  }

  ~Machine() {
    munmap(alias, window);
    munmap(base, window);
    close(file);
  }

  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // ------------------------------------------------------------------------------------------------------- memory

  [[nodiscard]] bool is_device(const void* pointer) const { return pointer >= base && pointer < base + window; }

  std::byte* allocate(std::size_t bytes) {
    if (taken + bytes > room)
      return nullptr;
    std::byte* const at = base + next;
    constexpr std::size_t page = 4096; // so that a release gives whole pages back
    next += (bytes + 2 * page - 1) / page * page;
    if (next > window)
      throw std::bad_alloc();
    held[at] = bytes;
    taken += bytes;
    scribble(alias + (at - base), bytes);
    return at;
  }

  /// What new memory holds means nothing. Of much of it only the ends, so that the rest takes none of the host's.
  static void scribble(std::byte* memory, std::size_t bytes) {
    const std::size_t end = std::min<std::size_t>(bytes, 64 << 10);
    std::memset(memory, 0xC3, end);
    std::memset(memory + (bytes - end), 0xC3, end);
  }

  std::byte* pin(std::size_t bytes) {
    void* const made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
      throw std::bad_alloc();
    auto* const memory = static_cast<std::byte*>(made);
    scribble(memory, bytes);
    pinned[memory] = bytes;
    return memory;
  }

  void unpin(std::byte* memory) {
    munmap(memory, pinned.at(memory));
    pinned.erase(memory);
  }

  void release(std::byte* at) {
    const auto found = held.find(at);
    taken -= found->second;
    (void)madvise(alias + (at - base), (found->second + 4095) / 4096 * 4096, MADV_REMOVE);
    held.erase(found);
  }

  /// Where the host finds what lies there. Faults unless all of it is in one piece of memory.
  template <class T>
  T* at(T* pointer, std::size_t bytes) const {
    const auto* const address = reinterpret_cast<const std::byte*>(pointer);
    const std::map<const std::byte*, std::size_t>& pieces = is_device(address) ? held : pinned;
    auto piece = pieces.upper_bound(address);
    if (piece == pieces.begin())
      throw Fault("an illegal memory access: memory that is nobody's, or pageable memory of the host");
    --piece;
    if (address + bytes > piece->first + piece->second)
      throw Fault("an illegal memory access: past the end of its memory");
    if (!is_device(address))
      return pointer;
    return reinterpret_cast<T*>(const_cast<std::byte*>(alias + (address - base)));
  }

  template <class T>
  T* at_if(T* pointer, std::size_t bytes) const {
    return pointer == nullptr ? nullptr : at(pointer, bytes);
  }

  // --------------------------------------------------------------------------------------------------------- work

  [[nodiscard]] Result<void> good() const {
    if (!fault.empty())
      return fail(Code::peer_failed, "{}", fault);
    return {};
  }

  void run(Queue& queue) {
    Operation operation = std::move(queue.front());
    queue.pop_front();
    try {
      if (fails_after != 0 && --fails_after == 0)
        throw Fault(planned_fault);
      operation.run();
    } catch (const Fault& thrown) {
      fault = std::string("work of a stream: ") + thrown.what();
    }
  }

  /// Runs one operation of any stream; false where none can run.
  bool run_one() {
    if (hung || !fault.empty())
      return false;
    std::vector<Queue*> ready;
    for (const auto& queue : queues)
      if (!queue->empty() && (!queue->front().may_run || queue->front().may_run()))
        ready.push_back(queue.get());
    if (ready.empty())
      return false;
    run(*ready[random() % ready.size()]);
    return true;
  }

  /// What a GPU does while somebody asks.
  void run_some() {
    for (std::uint64_t left = random() % 4; left > 0 && run_one(); --left) {
    }
  }

  [[nodiscard]] Queue& queue_of(void* stream) {
    return stream == nullptr ? *queues.front() : *static_cast<Queue*>(stream);
  }

  Queue* add_queue() {
    queues.push_back(std::make_unique<Queue>());
    return queues.back().get();
  }

  static void record(Queue& queue, const std::shared_ptr<Point>& point) {
    queue.push_back({[point, number = ++point->recorded] { point->reached = std::max(point->reached, number); }, {}});
  }

  static void wait_for(Queue& queue, const std::shared_ptr<Point>& point) {
    queue.push_back({[] {}, [point, number = point->recorded] { return point->reached >= number; }});
  }

  // ------------------------------------------------------------------------------------------------------ kernels

  std::vector<Part> parts_at(const Part* parts, std::size_t count, Elements elements, bool snapshot_needed) {
    const std::size_t now_size = elements.cast ? kernels::size_before(*elements.cast) : elements.size;
    const Part* const table = at(parts, count * sizeof(Part));
    std::vector<Part> translated(table, table + count);
    for (Part& part : translated) {
      if (part.elements == 0 || part.elements > kernels::part_elements || part.now_stride < 0)
        throw Fault("a part of no elements, or of too many, or that runs backwards");
      part.now = at(part.now, stretch(part.elements, part.now_stride, now_size));
      if (part.snapshot != nullptr || snapshot_needed)
        part.snapshot = at(part.snapshot, part.elements * elements.size);
    }
    return translated;
  }

  void diff(const Part* parts, std::size_t count, Elements elements, Changes out, std::byte* workspace) {
    ++kernels;
    const std::vector<Part> table = parts_at(parts, count, elements, true);
    std::uint32_t cells = 0;
    for (const Part& part : table)
      cells = std::max(cells, part.cell + 1);
    out.counts = at(out.counts, count * sizeof(std::uint32_t));
    out.positions = at(out.positions, out.room * sizeof(std::uint16_t));
    out.before = at_if(out.before, out.room * elements.size);
    out.after = at(out.after, out.room * elements.size);
    out.digests = at_if(out.digests, cells * sizeof(std::uint64_t));
    out.found = at(out.found, sizeof(Found));
    launches.diff(table, elements.size, elements.cast, out, at(workspace, workspace_bytes(count)));
  }

  void take(const Part* parts, std::size_t count, Elements elements, std::uint64_t* digests) {
    ++kernels;
    const std::vector<Part> table = parts_at(parts, count, elements, false);
    std::uint32_t cells = 0;
    for (const Part& part : table)
      cells = std::max(cells, part.cell + 1);
    launches.take(table, elements.size, elements.cast, at_if(digests, cells * sizeof(std::uint64_t)));
  }

  template <bool swap>
  void visit(const Places* places, std::size_t count, std::size_t size, std::uint64_t* digests) {
    ++kernels;
    const Places* const given = at(places, count * sizeof(Places));
    std::vector<Places> table(given, given + count);
    std::uint32_t cells = 0;
    for (Places& entry : table) {
      cells = std::max(cells, entry.cell + 1);
      entry.positions = at_if(entry.positions, entry.count * sizeof(std::uint16_t));
      entry.addresses = at_if(entry.addresses, entry.count * sizeof(std::uint32_t));
      entry.slots = at_if(entry.slots, entry.count * sizeof(std::uint32_t));
      if (swap || entry.values != nullptr)
        entry.values = at(entry.values, entry.count * size);
      // Both ends of what it reaches.
      std::int64_t least = 0;
      std::int64_t most = 0;
      for (std::uint32_t i = 0; i < entry.count; ++i) {
        const std::int64_t offset =
          entry.addresses != nullptr
            ? std::int64_t{entry.addresses[i]}
            : (entry.positions != nullptr ? entry.positions[i] - entry.origin : std::int64_t{i}) * entry.stride;
        least = i == 0 ? offset : std::min(least, offset);
        most = i == 0 ? offset : std::max(most, offset);
      }
      const auto bytes = static_cast<std::int64_t>(size);
      std::byte* const first = entry.start + least * bytes;
      entry.start = at(first, static_cast<std::size_t>(most - least + 1) * size) - least * bytes;
    }
    launches.visit<swap>(table, size, at_if(digests, cells * sizeof(std::uint64_t)));
  }

  static constexpr std::size_t window = std::size_t{64} << 30; ///< addresses

  mutable std::mutex mutex;
  device::Identity identity;
  std::mt19937_64 random;
  EmulatedLaunches launches;
  std::size_t room;
  int file = -1;
  std::byte* base = nullptr;  ///< of device addresses
  std::byte* alias = nullptr; ///< where the same bytes can be reached
  std::size_t next = 0;
  std::size_t taken = 0;
  std::map<const std::byte*, std::size_t> held;   ///< device memory
  std::map<const std::byte*, std::size_t> pinned; ///< of the host
  std::vector<std::unique_ptr<Queue>> queues;     ///< the first is the default stream
  std::string fault;
  std::uint64_t fails_after = 0;
  std::string planned_fault;
  bool hung = false;
  std::uint64_t kernels = 0;
  std::weak_ptr<device::Gpu> open;
};

namespace {

template <class Machine>
class EmulatedMemory : public device::Memory {
public:
  EmulatedMemory(std::shared_ptr<Machine> machine, Home home, std::byte* data, std::size_t bytes)
    : Memory(data, bytes), machine_(std::move(machine)), home_(home) {}
  ~EmulatedMemory() override {
    const std::lock_guard lock(machine_->mutex);
    if (home_ == Home::device) {
      machine_->release(data());
    } else {
      machine_->unpin(data());
    }
  }

private:
  std::shared_ptr<Machine> machine_;
  Home home_;
};

template <class Machine>
class EmulatedEvent : public device::Event {
public:
  explicit EmulatedEvent(std::shared_ptr<Machine> machine) : machine_(std::move(machine)) {}

  Result<bool> reached() override {
    const std::lock_guard lock(machine_->mutex);
    machine_->run_some();
    if (auto good = machine_->good(); !good)
      return tl::make_unexpected(good.error());
    return point_->reached == point_->recorded;
  }

  [[nodiscard]] const std::shared_ptr<Point>& point() const noexcept { return point_; }

private:
  std::shared_ptr<Machine> machine_;
  std::shared_ptr<Point> point_ = std::make_shared<Point>();
};

template <class Machine>
class EmulatedStream : public device::Stream {
public:
  explicit EmulatedStream(std::shared_ptr<Machine> machine) : machine_(std::move(machine)) {
    const std::lock_guard lock(machine_->mutex);
    queue_ = machine_->add_queue();
  }

  Result<void> copy(void* to, const void* from, std::size_t bytes) override {
    return queue([machine = machine_.get(), to, from, bytes] {
      if (bytes > 0)
        std::memcpy(machine->at(static_cast<std::byte*>(to), bytes),
                    machine->at(static_cast<const std::byte*>(from), bytes), bytes);
    });
  }
  Result<void> fill(void* memory, int byte, std::size_t bytes) override {
    return queue([machine = machine_.get(), memory, byte, bytes] {
      if (bytes > 0)
        std::memset(machine->at(static_cast<std::byte*>(memory), bytes), byte, bytes);
    });
  }

  Result<void> record(device::Event& event) override {
    const std::lock_guard lock(machine_->mutex);
    Machine::record(*queue_, static_cast<EmulatedEvent<Machine>&>(event).point());
    return machine_->good();
  }
  Result<void> wait_for(device::Event& event) override {
    const std::lock_guard lock(machine_->mutex);
    Machine::wait_for(*queue_, static_cast<EmulatedEvent<Machine>&>(event).point());
    return machine_->good();
  }
  Result<void> wait_for_foreign(void* stream) override {
    const std::lock_guard lock(machine_->mutex);
    meet(machine_->queue_of(stream), *queue_);
    return machine_->good();
  }
  Result<void> hold_foreign(void* stream) override {
    const std::lock_guard lock(machine_->mutex);
    meet(*queue_, machine_->queue_of(stream));
    return machine_->good();
  }

  Result<bool> idle() override {
    const std::lock_guard lock(machine_->mutex);
    machine_->run_some();
    if (auto good = machine_->good(); !good)
      return tl::make_unexpected(good.error());
    return queue_->empty();
  }

  Result<void> diff_and_refresh(const Part* parts, std::size_t count, Elements elements, const Changes& out,
                                std::byte* workspace) override {
    if (count == 0)
      return fill(out.found, 0, sizeof(Found));
    return queue([machine = machine_.get(), parts, count, elements, out, workspace] {
      machine->diff(parts, count, elements, out, workspace);
    });
  }
  Result<void> take(const Part* parts, std::size_t count, Elements elements, std::uint64_t* digests) override {
    return queue(
      [machine = machine_.get(), parts, count, elements, digests] { machine->take(parts, count, elements, digests); });
  }
  Result<void> exchange(const Places* places, std::size_t count, std::size_t size, std::uint64_t* digests) override {
    return queue([machine = machine_.get(), places, count, size, digests] {
      machine->template visit<true>(places, count, size, digests);
    });
  }
  Result<void> read_back(const Places* places, std::size_t count, std::size_t size, std::uint64_t* digests) override {
    return queue([machine = machine_.get(), places, count, size, digests] {
      machine->template visit<false>(places, count, size, digests);
    });
  }

private:
  Result<void> queue(std::function<void()> run) {
    const std::lock_guard lock(machine_->mutex);
    queue_->push_back({std::move(run), {}});
    return machine_->good();
  }

  /// `after` goes on when `first` has done what is queued there so far.
  static void meet(Queue& first, Queue& after) {
    const auto point = std::make_shared<Point>();
    Machine::record(first, point);
    Machine::wait_for(after, point);
  }

  std::shared_ptr<Machine> machine_;
  Queue* queue_; ///< stays with the machine: work that is queued is not lost with the stream
};

template <class Machine>
class EmulatedDevice : public device::Gpu {
public:
  explicit EmulatedDevice(std::shared_ptr<Machine> machine) : machine_(std::move(machine)) {}

  const device::Identity& identity() const noexcept override { return machine_->identity; }

  Result<std::uint64_t> free_memory() override {
    const std::lock_guard lock(machine_->mutex);
    return machine_->room - machine_->taken;
  }

  Result<std::unique_ptr<device::Memory>> allocate(Home home, std::size_t bytes) override {
    const std::lock_guard lock(machine_->mutex);
    if (auto good = machine_->good(); !good)
      return tl::make_unexpected(good.error());
    std::byte* data = nullptr;
    if (home == Home::device) {
      data = machine_->allocate(bytes);
      if (data == nullptr)
        return fail(Code::limit_exceeded, "{}: allocating device memory: out of memory; {} bytes were asked for",
                    device::name_of(machine_->identity), bytes);
    } else {
      data = machine_->pin(bytes);
    }
    return std::make_unique<EmulatedMemory<Machine>>(machine_, home, data, bytes);
  }

  Result<std::unique_ptr<device::Stream>> open_stream() override {
    return std::make_unique<EmulatedStream<Machine>>(machine_);
  }

  Result<std::unique_ptr<device::Event>> make_event() override {
    return std::make_unique<EmulatedEvent<Machine>>(machine_);
  }

private:
  std::shared_ptr<Machine> machine_;
};

} // namespace

EmulatedGpus::EmulatedGpus(std::uint64_t seed, int count, std::size_t memory) {
  for (int index = 0; index < count; ++index) {
    device::Identity identity{index, fmt::format("GPU-00000000-0000-0000-0000-{:012}", index), "emulated"};
    machines_.push_back(
      std::make_shared<Machine>(std::move(identity), seed + static_cast<std::uint64_t>(index), memory));
    machines_.back()->add_queue();
  }
}

EmulatedGpus::~EmulatedGpus() = default;

std::optional<int> EmulatedGpus::index_of(const void* pointer) {
  for (const auto& machine : machines_)
    if (machine->is_device(pointer))
      return machine->identity.index;
  return std::nullopt;
}

Result<std::shared_ptr<device::Gpu>> EmulatedGpus::open(int index) {
  if (index < 0 || static_cast<std::size_t>(index) >= machines_.size())
    return fail(Code::unsupported, "GPU {} cannot be used: there are {}", index, machines_.size());
  const std::shared_ptr<Machine>& machine = machines_[static_cast<std::size_t>(index)];
  const std::lock_guard lock(machine->mutex);
  std::shared_ptr<device::Gpu> gpu = machine->open.lock();
  if (!gpu) {
    gpu = std::make_shared<EmulatedDevice<Machine>>(machine);
    machine->open = gpu;
  }
  return gpu;
}

std::byte* EmulatedGpus::allocate(std::size_t bytes, int gpu) {
  Machine& machine = *machines_.at(static_cast<std::size_t>(gpu));
  const std::lock_guard lock(machine.mutex);
  std::byte* const data = machine.allocate(bytes);
  if (data == nullptr)
    throw std::bad_alloc();
  return data;
}

void EmulatedGpus::release(std::byte* memory) {
  Machine& machine = *machines_.at(static_cast<std::size_t>(index_of(memory).value()));
  const std::lock_guard lock(machine.mutex);
  machine.release(memory);
}

void* EmulatedGpus::make_stream(int gpu) {
  Machine& machine = *machines_.at(static_cast<std::size_t>(gpu));
  const std::lock_guard lock(machine.mutex);
  return machine.add_queue();
}

void EmulatedGpus::queue_write(void* stream, std::byte* to, std::span<const std::byte> bytes, int gpu) {
  Machine& machine = *machines_.at(static_cast<std::size_t>(gpu));
  const std::lock_guard lock(machine.mutex);
  machine.queue_of(stream).push_back({[&machine, to, copied = std::vector<std::byte>(bytes.begin(), bytes.end())] {
                                        if (!copied.empty())
                                          std::memcpy(machine.at(to, copied.size()), copied.data(), copied.size());
                                      },
                                      {}});
}

void EmulatedGpus::synchronize(void* stream, int gpu) {
  Machine& machine = *machines_.at(static_cast<std::size_t>(gpu));
  const std::lock_guard lock(machine.mutex);
  while (!machine.queue_of(stream).empty() && machine.run_one()) {
  }
}

void EmulatedGpus::write(std::byte* to, std::span<const std::byte> bytes) {
  Machine& machine = *machines_.at(static_cast<std::size_t>(index_of(to).value()));
  const std::lock_guard lock(machine.mutex);
  if (!bytes.empty())
    std::memcpy(machine.at(to, bytes.size()), bytes.data(), bytes.size());
}

std::vector<std::byte> EmulatedGpus::read(const std::byte* from, std::size_t bytes) {
  Machine& machine = *machines_.at(static_cast<std::size_t>(index_of(from).value()));
  const std::lock_guard lock(machine.mutex);
  const std::byte* const data = bytes == 0 ? nullptr : machine.at(from, bytes);
  return {data, data + bytes};
}

void EmulatedGpus::fail_after(std::uint64_t after, const std::string& fault) {
  for (const auto& machine : machines_) {
    const std::lock_guard lock(machine->mutex);
    machine->fails_after = after;
    machine->planned_fault = fault;
  }
}

void EmulatedGpus::hang() {
  for (const auto& machine : machines_) {
    const std::lock_guard lock(machine->mutex);
    machine->hung = true;
  }
}

std::uint64_t EmulatedGpus::kernels_run() const {
  std::uint64_t sum = 0;
  for (const auto& machine : machines_) {
    const std::lock_guard lock(machine->mutex);
    sum += machine->kernels;
  }
  return sum;
}

std::uint64_t EmulatedGpus::taken(int gpu) const {
  const Machine& machine = *machines_.at(static_cast<std::size_t>(gpu));
  const std::lock_guard lock(machine.mutex);
  return machine.taken;
}

} // namespace deltawire::test
