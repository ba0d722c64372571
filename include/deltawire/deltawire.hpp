// deltawire: keeps rollout workers bit-identical to a sharded trainer, moving only the weights that changed.
//
// This is all an embedding program sees: Publisher in each trainer rank, Subscriber in each rollout worker.
// Every function throws deltawire::Error and nothing else. Objects are movable, not copyable; functions of one object
// are called by one thread at a time unless said otherwise; different objects are independent. Tensor memory stays
// yours and must stay valid until close(). Nothing waits for longer than the topology's `update` deadlines.
#pragma once

#include "deltawire/dtype.hpp"
#include "deltawire/error.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire {

/// Counted by deltawire from 1 within a session; 0 = none.
using Version = std::uint64_t;

/// deltawire's own version, e.g. "0.1.0".
[[nodiscard]] std::string_view library_version() noexcept;

/// Takes over the lines that deltawire says while it runs (warnings, where metrics are served); without it, or with an
/// empty function, they go to standard error. `sink` gets them without a newline, on threads of deltawire, and must not
/// throw. Thread-safe.
void set_log(std::function<void(std::string_view line)> sink);

// What an update came to
// -----------------------------------------------------------------------------------------------

/// How a worker fared. `state` is one of the design's states ("serving", "dirty", ...).
struct WorkerOutcome {
  std::uint32_t index = 0;   ///< global worker index
  Version version = 0;       ///< what it holds now
  std::string state;         ///< "serving", "dirty", ...
  std::uint64_t bytes = 0;   ///< sent to it for this update, framing included
  bool digest_ok = false;    ///< digests read back from its memory are the trainer's; false with update.verify = "off"
  double pause_s = 0;        ///< from on_pause to serving again
  std::string error;         ///< empty: none
  std::uint64_t flushes = 0; ///< frames with changes that were sent to it for this update
  std::uint64_t pieces = 0;  ///< in these frames: blocks, or parts of blocks
  /// What brought it to `version` in this update: "seed", "delta" or "fold"; empty: nothing was delivered to it.
  std::string delivery;
  /// Its memory held the values of a version already when it joined, and was not sent them (update.seed =
  /// "if-different"). With an empty `delivery` that was this update's version, else the one before it.
  bool matched = false;
  bool audited = false; ///< all of its memory was read again after the update, and is the trainer's
};

/// Seconds from first start to last end of a phase, over all processes.
struct PhaseSeconds {
  double diff = 0;     ///< comparing with the snapshot and encoding, on the ranks
  double gather = 0;   ///< from the ranks to the root
  double assemble = 0; ///< packing flushes, on the root
  double send = 0;     ///< flushes on the wire
  double stage = 0;    ///< checking and decoding, on the workers
  double commit = 0;   ///< pause, exchange and read-back, on the workers
};

/// Largest number of payload bytes that a stage of any one process held so far.
struct HighWaterBytes {
  std::uint64_t differ = 0;       ///< encoded, not cut into a round yet
  std::uint64_t gather_queue = 0; ///< rounds under way (root: gathered, not packed yet)
  std::uint64_t flush_bucket = 0; ///< flushes: one packed, one on the wire
  std::uint64_t applier = 0;      ///< staged until the commit
};

/// The end of one update, the same on every rank.
struct Outcome {
  Version version = 0;                ///< what the update made, or was to make
  Version base = 0;                   ///< the version that it changes; 0: none
  std::uint64_t step = 0;             ///< the caller's label
  bool seed = false;                  ///< all values, or only the changes
  bool committed = false;             ///< as many replicas as the quorum asks for serve it: see `workers`
  Code error = Code::internal;        ///< meaningful when error_message is not empty
  std::string error_message;          ///< why the update failed; empty where it did not
  std::uint64_t slots = 0;            ///< tensors of the checkpoint
  std::uint64_t elements = 0;         ///< in all slots
  std::uint64_t changed = 0;          ///< found changed by this version's captures (all for a seed)
  std::uint64_t wire_bytes = 0;       ///< left the root for all workers, framing included
  std::uint64_t gather_bytes = 0;     ///< reached the root from other ranks, framing included
  std::uint64_t flushes = 0;          ///< frames with changes
  std::uint64_t rounds = 0;           ///< of the gather
  double captured_s = 0;              ///< from publish() to the last rank's capture
  double committed_s = 0;             ///< from publish() to the last worker's release
  double pause_s = 0;                 ///< the longest of any worker
  PhaseSeconds phase_s;               ///< where the time went
  HighWaterBytes high_water;          ///< what the stages held, so far in the session
  std::vector<WorkerOutcome> workers; ///< by index
  std::vector<std::string> warnings;  ///< that this update led to on this rank, each said once; also lines of the log
};

/// One update under way. Copies share it. Thread-safe.
class Ticket {
public:
  /// What the update makes if it is committed.
  [[nodiscard]] Version version() const noexcept;

  /// Returns when this rank's weights may change again: captured locally, whatever workers and network do.
  void captured();

  /// Returns when the delivery has ended, well or not: look at Outcome::committed.
  Outcome wait();

private:
  friend class Publisher;
  friend class Update;
  struct State;
  explicit Ticket(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

// The trainer
// ----------------------------------------------------------------------------------------------------------

/// Who this rank is, and what differs from the file.
struct TrainerOptions {
  std::optional<std::uint32_t> rank{};  ///< else from RANK (torchrun), OMPI_COMM_WORLD_RANK or SLURM_PROCID
  std::optional<std::uint32_t> world{}; ///< else from WORLD_SIZE, OMPI_COMM_WORLD_SIZE or SLURM_NTASKS
  std::vector<std::string> overrides{}; ///< "key.path=value" over the file
  int listening_socket = -1;            ///< root: adopt this listening socket instead of opening transport.master
  /// Added to the port of telemetry.prometheus, so that processes of one host get ports of their own; else the rank.
  /// Ranks and workers of one process that have the same share one endpoint.
  std::optional<std::uint32_t> metrics_index{};
};

/// A parameter as this rank holds it.
struct Tensor {
  std::string name;                     ///< as the topology knows it
  DType dtype = DType::bf16;            ///< of the memory
  std::vector<std::int64_t> full_shape; ///< unsharded, elements a dim
  /// This rank's shard, on the host or on a GPU (memory of cudaMalloc and the like, beginning at a multiple of its
  /// elements); may be null when the shard is empty. A rank may have parameters on both, and on one GPU only.
  const void* data = nullptr;
  std::vector<std::int64_t> strides{}; ///< of the shard, in elements; empty: row-major
  /// Both or neither, and only where the placement has a flat cut ("fsdp:flat"): this rank holds the elements
  /// flat_begin to flat_end, row-major, of what the other cuts leave, instead of the topology's equal intervals. For a
  /// parameter in a longer flat buffer (FSDP1, ZeRO-3), which ends where that buffer is cut.
  std::optional<std::int64_t> flat_begin{};
  std::optional<std::int64_t> flat_end{}; ///< see flat_begin
};

/// A parameter as this rank added it, for an export rule. Its memory is row-major over `local_shape`: what the
/// placement leaves this rank, and all of it where there is no placement.
struct ExportedParameter {
  std::string name;                      ///< as added
  DType dtype = DType::bf16;             ///< as added
  std::vector<std::int64_t> full_shape;  ///< as added
  std::vector<std::int64_t> local_shape; ///< of this rank's memory
  std::uint32_t rank = 0;                ///< this rank
  std::uint32_t world = 1;               ///< number of ranks
};

/// A box of a slot, and where this rank's memory has it. Element x, 0 <= x[d] < extents[d], is slot index
/// begin[d] + x[d] * steps[d] and lies local_offset + sum over d of x[d] * local_strides[d] elements behind the
/// parameter's `data`. Each list has one number a slot dim.
struct ExportedBlock {
  std::vector<std::int64_t> begin;         ///< in the slot
  std::vector<std::int64_t> extents;       ///< elements a dim
  std::vector<std::int64_t> local_strides; ///< 1 and more where the extent is above 1
  std::int64_t local_offset = 0;           ///< elements behind `data`
  std::vector<std::int64_t> steps{};       ///< 1 and more; empty: 1 everywhere
};

/// What this rank's memory of one parameter contributes to one slot; no blocks where other ranks contribute all of it.
struct ExportedSlot {
  std::string name;                  ///< by the checkpoint
  std::vector<std::int64_t> shape;   ///< full
  std::vector<ExportedBlock> blocks; ///< disjoint
};

/// Says where the slots lie in a parameter's memory that the topology's maps cannot describe. Nothing (std::nullopt):
/// the maps do. A rule must give the same slots, of the same shapes, on every rank that holds the parameter.
using ExportRule = std::function<std::optional<std::vector<ExportedSlot>>(const ExportedParameter&)>;

/// New values of elements of the checkpoint's tensors, which the caller knows already.
struct Patch {
  std::string slot;                         ///< by the checkpoint's name
  std::span<const std::uint64_t> indices{}; ///< row-major in the slot's full shape, in any order, each once
  DType dtype = DType::bf16;                ///< the slot's: of cast parameters, what they are cast to
  std::span<const std::byte> values{};      ///< one an index; e.g. std::as_bytes(std::span(vector))
};

/// How a publish() goes.
struct PublishOptions {
  /// A cudaStream_t of the GPU that this rank's parameters are on; nullptr: CUDA's default stream there. Weights are
  /// read when all that was queued on it before publish() is done: nobody else needs to wait. Without it that work is
  /// done already.
  std::optional<void*> after{};
};

/// One update in parts: parameters are sent as they become final, in any order and on each rank in its own. Leaving its
/// scope without finish() aborts the update on all ranks: its version never exists, and what was captured of it comes
/// with the next update. Belongs to its Publisher, and is called by the same thread; after Publisher::close() it is
/// over. Every call succeeds as a whole or changes nothing.
class Update {
public:
  Update(Update&&) noexcept;            ///< the other is over
  Update& operator=(Update&&) noexcept; ///< aborts what this one was
  /// Aborts, unless finished. Returns when this rank's weights may change again: what is being captured just then is
  /// waited for, no other process is.
  ~Update();

  /// What the update makes if it is committed.
  [[nodiscard]] Version version() const noexcept;

  /// The parameters that match any of these patterns (as in the topology: "model.layers.0.*") are final: they must not
  /// change until Ticket::captured(), or until the update is aborted. Returns at once. Refused, with all that is wrong:
  /// a pattern that matches no parameter of this rank, a parameter that was sent already or is patched.
  void send(const std::vector<std::string>& patterns);

  /// Elements of parameters that are not sent in this update take new values, whatever the trainer's memory holds; the
  /// patch is copied. Only of elements that this rank owns (of a replicated shard: the lowest rank): for others the
  /// error names the rank, and nothing of the patch is taken. The next update that sends the parameter compares its
  /// memory with the patched values: where memory still has the old ones it brings these back, and where it has the new
  /// ones too there is nothing to bring. Refused: an unknown slot, another dtype, lengths that do not fit, an index out
  /// of bounds or there twice (in earlier patches of this update too), a parameter that is sent in this update or that
  /// no update has sent so far.
  void patch(const Patch& patch);

  /// Nothing more comes from this rank: parameters never sent keep their last captured bits. The first update of a
  /// session must hold every parameter.
  Ticket finish();

private:
  friend class Publisher;
  struct State;
  explicit Update(std::shared_ptr<State> state);
  void abort() noexcept;
  std::shared_ptr<State> state_;
};

/// One trainer rank. Rank 0 is the root.
class Publisher {
public:
  /// Reads the topology. Opens no connection yet.
  [[nodiscard]] static Publisher open(const std::string& topology, TrainerOptions options = {});

  Publisher(Publisher&&) noexcept;            ///< the other is good for nothing but destruction
  Publisher& operator=(Publisher&&) noexcept; ///< closes what this one was
  ~Publisher();                               ///< as close()

  [[nodiscard]] std::uint32_t rank() const noexcept;  ///< this process
  [[nodiscard]] std::uint32_t world() const noexcept; ///< number of ranks

  /// Shape of this rank's shard of a parameter, by the topology. Throws where the placement's `on` leaves this rank
  /// out: it has no such parameter and must not add one.
  [[nodiscard]] std::vector<std::int64_t> local_shape(const std::string& name,
                                                      const std::vector<std::int64_t>& full_shape) const;

  /// Before connect() only; a name twice is refused.
  void add(Tensor tensor);

  /// Before connect() only, at most once. connect() calls the rule once for each parameter that was added, on its own
  /// thread, and keeps no copy of it. The placement cuts such a parameter's memory as any other's, but the blocks alone
  /// say who contributes what: of replicas, one lists them. Blocks are checked like everything else, and connect() is
  /// refused with all that is wrong: boxes outside of their slot or memory, elements of the memory in two blocks or
  /// (unless its [[trainer.parameter]] says `padding = true`) in none, elements of a slot that no rank or more than one
  /// contributes. Such a parameter has no strides and no flat interval.
  void export_with(ExportRule rule);

  /// Meets all ranks and workers and agrees on the layout: at most `update.connect`. A refusal lists every
  /// disagreement.
  void connect();

  /// Begins an update: a seed the first time, the changes since the last publish afterwards. A collective: every rank
  /// calls it equally often with the same step. Returns at once; the weights must not change until Ticket::captured().
  [[nodiscard]] Ticket publish(std::uint64_t step, PublishOptions options = {});

  /// The same in parts: see Update. Takes the place of a publish(): another rank may publish the same update as a
  /// whole. One at a time: publish() and begin() are refused until it is finished or aborted. From here to the end of
  /// its delivery an update has `update.timeout`.
  [[nodiscard]] Update begin(std::uint64_t step);

  /// Reads everything again: each worker that serves the newest version all of its bound memory, and each rank its
  /// snapshot, and compares with what the updates have added up. Waits for the updates under way, and then for all
  /// ranks and workers, in the update deadlines. A collective, like publish(): every rank calls it between the same two
  /// publishes, and gets the same outcome. Outcome::committed: everything that is served is right; else the message
  /// names worker, slot and cell. A worker that serves nothing is not asked: its entry says so. A worker whose memory
  /// somebody else has changed is "dirty" and serves nothing until the next update seeds its replica; the others are
  /// not disturbed. Where a rank's snapshot is wrong the session fails: nothing that is published from it could be
  /// proven. Padding is nobody's, and not looked at.
  Outcome audit();

  /// A parameter's storage moved; same layout, and after connect() still on the host, or on the same GPU. Not between
  /// publish(), or send() of it, and captured().
  void rebind(const std::string& name, const void* data);

  /// Waits for the updates under way, tells the workers that no more will come, releases everything. Idempotent. Throws
  /// (output_failed) when the trace file could not be written; the destructor does not.
  void close();

private:
  friend class Update;
  struct Implementation;
  explicit Publisher(std::unique_ptr<Implementation> implementation);
  std::unique_ptr<Implementation> implementation_;
};

// The rollout worker
// ---------------------------------------------------------------------------------------------------

/// Who this worker is, and what differs from the file.
struct WorkerOptions {
  std::uint32_t worker = 0;                     ///< global index = dp_index * workers_per_replica + local rank
  std::vector<std::string> overrides{};         ///< "key.path=value" over the file
  std::optional<std::uint32_t> metrics_index{}; ///< as TrainerOptions'; else the number of trainer ranks + worker
  bool polled = false; ///< the engine commits in its own loop, by Subscriber::poll() and commit(), in place of hooks
};

/// A parameter as the topology implies it for this worker.
struct ParameterInfo {
  std::string name;                     ///< the worker's
  DType dtype = DType::bf16;            ///< the trainer's, or what `wire_dtype` casts it to: to bind it with
  std::vector<std::int64_t> full_shape; ///< unsharded
  std::vector<std::int64_t> shape;      ///< this worker's shard
};

/// A parameter as this worker holds it.
struct BoundTensor {
  std::string name;                    ///< as the topology knows it
  DType dtype = DType::bf16;           ///< of the memory
  std::vector<std::int64_t> shape;     ///< this worker's shard
  void* data = nullptr;                ///< this worker's shard, on the host; may be null when it is empty
  std::vector<std::int64_t> strides{}; ///< in elements; empty: row-major
};

/// What a commit changed.
struct Change {
  std::string name;           ///< of the bound parameter
  std::uint64_t elements = 0; ///< written in this worker's shard
};

/// How a worker stands.
struct WorkerStatus {
  Version version = 0;          ///< what it serves, as Subscriber::version()
  std::uint64_t session = 0;    ///< the trainer's session that counted `version`; 0: none
  std::string state = "empty";  ///< one of the design's states: "serving", "in_doubt", ...
  bool connected = false;       ///< to a trainer's running session
  std::string disconnected_why; ///< while it waits for the next trainer: what became of the last one
};

/// One rollout worker. It may outlive its trainer: with `update.reconnect` in the topology, a trainer that is lost or
/// fails is waited for that long, and so is each one after it. Meanwhile the worker goes on serving the version that it
/// has. What it had applied and not been told to serve is in doubt: paused, version() is 0, until the next trainer says
/// which of the two versions its replica serves (on_commit tells of the newer one, on_resume of the older). The next
/// trainer's first update seeds it. Where no trainer comes, or without `update.reconnect`, it stays in doubt.
class Subscriber {
public:
  /// Reads the topology. Opens no connection yet.
  [[nodiscard]] static Subscriber open(const std::string& topology, WorkerOptions options);

  Subscriber(Subscriber&&) noexcept;            ///< the other is good for nothing but destruction
  Subscriber& operator=(Subscriber&&) noexcept; ///< closes what this one was
  ~Subscriber();                                ///< as close()

  /// What this worker has to bind, from the topology and the trainer's parameters: connects, and waits for every rank
  /// to have connected, at most `update.connect`. Optional: an engine that knows its parameters binds them and calls
  /// start().
  [[nodiscard]] std::vector<ParameterInfo> parameters();

  /// Before start() only; a name twice is refused.
  void bind(BoundTensor tensor);

  /// Called before memory changes; returns when nothing reads the weights. On a thread of deltawire. Before start()
  /// only, and not with WorkerOptions::polled.
  void on_pause(std::function<void()> hook);

  /// Called when memory holds the new version of the whole replica and before the next update may write; the worker
  /// serves again when it returns. On a thread of deltawire. Before start() only, and not with WorkerOptions::polled.
  void on_commit(std::function<void(Version, std::span<const Change>)> hook);

  /// Called when the update that on_pause was called for is undone, or its trainer is lost before it was applied:
  /// memory holds this version again, the one that was served before, and the engine may go on with it. Not called
  /// where memory holds nothing whole (a seed that was undone, memory that somebody else has changed: version() is 0,
  /// and an on_commit follows when a seed has come), nor by close(). On a thread of deltawire. Before start() only, and
  /// not with WorkerOptions::polled.
  void on_resume(std::function<void(Version)> hook);

  /// Agrees on the layout; updates arrive from now on. At most `update.connect`.
  void start();

  /// With WorkerOptions::polled: the version that waits for this engine's commit(), if one does. Returns at once, and
  /// the same until it is committed or given up. A delta waits once every worker has staged and verified it and the
  /// root has ordered the commit; a seed, which is written as it arrives, waits before its first byte. An engine that
  /// lets it wait for longer than `update.engine` is left out of the update, by that name; a later one brings it the
  /// changes. Once the trainer has closed the session nothing comes any more (status() tells). Throws why the session
  /// failed, where it did.
  [[nodiscard]] std::optional<Version> poll();

  /// Memory becomes the version that poll() returned. Nothing may read the weights from the call to its return: this
  /// thread waits while one of deltawire writes, reads back, and hears from the root that the whole replica has done
  /// so. Returns what changed, once this worker serves the version. Throws where it does not come to that (another
  /// worker failed, the time is over, the root is lost): memory is what it was before, or, where version() is 0 now,
  /// nothing whole until a seed. What a lost root left in doubt waits on, as long as `update.reconnect` says. Any other
  /// call than the commit of what poll() returned, once, is an error (call_order) that changes nothing.
  std::vector<Change> commit(Version version);

  /// What this worker serves; 0 before the first seed, and where memory holds nothing whole or is in doubt. Stays what
  /// it is when the session ends, however it does. Thread-safe.
  [[nodiscard]] Version version() const noexcept;

  /// The same with what is around it, at any time after open(). Thread-safe once start() has returned. From on_pause on
  /// the state is "in_doubt" or "seeding", and an engine may go on as soon as it is "serving" or "staging" again:
  /// on_commit or on_resume tells, poll() and commit() do.
  [[nodiscard]] WorkerStatus status() const;

  /// Waits until the trainer closes the session, or this worker is closed; throws when the session failed and no other
  /// trainer came within `update.reconnect`, or when the trainer closed it and left this worker in doubt. version() and
  /// status() have the last word then: a hook that is running is waited for, and so must not call this. Thread-safe.
  void wait();

  /// Leaves the session and releases everything; the bound memory keeps what it holds. Idempotent. Not in a hook.
  /// Throws (output_failed) when the trace file could not be written; the destructor does not.
  void close();

private:
  struct Implementation;
  explicit Subscriber(std::unique_ptr<Implementation> implementation);
  std::unique_ptr<Implementation> implementation_;
};

} // namespace deltawire
