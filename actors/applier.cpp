#include "actors/applier.hpp"

#include "actors/arrows.hpp"
#include "actors/metered.hpp"
#include "sync/naming.hpp"
#include "telemetry/log.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <tuple>
#include <utility>

namespace deltawire::actors {
namespace {

using Self = ApplierActor::stateful_pointer<ApplierState>;

delta::BoundBlock bound_block(const WorkerWork& work, std::uint32_t bound) {
  const layout::Block& block = work.blocks[bound];
  return {&block, work.parameters[block.parameter]};
}

/// Index of the blocks by id, which copy of a cell each bound block belongs to, and an empty stage over them.
void index_blocks(ApplierState& state) {
  const WorkerWork& work = *state.work;
  state.copy_of.clear();
  state.cell_copies.clear();
  state.first_bound.assign(work.block_ids + 1, 0);
  for (const layout::Block& block : work.blocks)
    ++state.first_bound[block.id + 1];
  for (std::size_t id = 0; id < work.block_ids; ++id)
    state.first_bound[id + 1] += state.first_bound[id];
  // A parameter may read a cell more than once: the n-th copy in a parameter is a copy of its own.
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> index;
  std::uint32_t ordinal = 0;
  for (std::size_t b = 0; b < work.blocks.size(); ++b) {
    const layout::Block& block = work.blocks[b];
    const bool again = b > 0 && work.blocks[b - 1].id == block.id && work.blocks[b - 1].parameter == block.parameter;
    ordinal = again ? ordinal + 1 : 0;
    const auto [at, added] =
      index.try_emplace({block.parameter, block.cell, ordinal}, static_cast<std::uint32_t>(state.cell_copies.size()));
    if (added)
      state.cell_copies.push_back({block.cell, block.parameter, 0, 0});
    state.copy_of.push_back(at->second);
  }
  state.first_copy.assign(work.cells.size() + 1, 0);
  for (const ApplierState::CellCopy& copy : state.cell_copies)
    ++state.first_copy[copy.cell + 1];
  for (std::size_t cell = 0; cell < work.cells.size(); ++cell)
    state.first_copy[cell + 1] += state.first_copy[cell];
  state.copies_by_cell.resize(state.cell_copies.size());
  std::vector<std::uint32_t> next(state.first_copy.begin(), state.first_copy.end() - 1);
  for (std::uint32_t copy = 0; copy < state.cell_copies.size(); ++copy)
    state.copies_by_cell[next[state.cell_copies[copy].cell]++] = copy;
  std::vector<delta::BoundBlock> bound;
  for (std::uint32_t b = 0; b < work.blocks.size(); ++b)
    bound.push_back(bound_block(work, b));
  if (state.stage)
    state.high_water.remove(state.stage->held());
  state.stage.emplace(bound, work.stage_cap, work.verify);
  state.taken.assign(bound.size(), 0);
  state.found.assign(bound.size(), 0);
  state.staged = ApplierState::Touched(bound.size());
  state.changed = ApplierState::Touched(state.cell_copies.size());
  state.written_to = ApplierState::Touched(work.parameters.size());
}

/// The copies of a cell.
std::span<const std::uint32_t> copies_of(const ApplierState& state, std::uint32_t cell) {
  if (cell + std::size_t{1} >= state.first_copy.size())
    return {};
  return std::span(state.copies_by_cell)
    .subspan(state.first_copy[cell], state.first_copy[cell + 1] - state.first_copy[cell]);
}

void forget_delivery(ApplierState& state) {
  state.suspect = false;
  state.stage->clear();
  state.manifest.reset();
  for (const std::uint32_t copy : state.changed.list())
    state.cell_copies[copy].change = 0;
  for (const std::uint32_t parameter : state.written_to.list())
    state.written[parameter] = 0;
  state.changed.clear();
  state.written_to.clear();
  state.staged.clear();
}

/// Tells the root that a message about `delivery` could not be followed.
void refuse(ApplierState& state, const Failure& failure, std::uint64_t delivery) {
  const Failure named = sync::naming(wire::Role::worker, state.work->worker, failure);
  state.control->send(wire::Failed{named.code, named.message, delivery});
}

/// The same; if it is the delivery that is running, it is given up, and undone by the root's order.
void fail_delivery(Self self, const Failure& failure, std::uint64_t delivery) {
  ApplierState& state = self->state;
  if (delivery == state.protocol.delivery())
    state.protocol.give_up();
  refuse(state, failure, delivery);
}

thread_local bool hook_runs = false;

/// Runs an engine's hook; what it throws becomes a failure.
template <class Hook>
Result<void> run_hook(const char* name, Hook&& hook) {
  struct Mark {
    Mark() { hook_runs = true; }
    ~Mark() { hook_runs = false; }
  };
  try {
    const Mark mark;
    hook();
    return {};
  } catch (const std::exception& error) {
    return fail(Code::peer_failed, "{} threw: {}", name, error.what());
  } catch (...) {
    return fail(Code::peer_failed, "{} threw something that is no std::exception", name);
  }
}

void show_standing(const ApplierState& state) {
  const Version version = state.work->version.load(std::memory_order_acquire);
  state.work->standing.set({version, version == 0 ? 0 : state.protocol.session(), state.protocol.state()});
}

/// Before the hook, what status() says has changed: an engine that looks there for when it may go on, after an update
/// that was undone, must not find what was true before.
Result<void> pause(ApplierState& state) {
  show_standing(state);
  state.paused = true; // however far the hook gets
  auto paused = run_hook("on_pause", [&] {
    if (state.work->on_pause)
      state.work->on_pause();
  });
  state.paused_ns = telemetry::now_ns();
  return paused;
}

/// An engine with a loop of its own is asked to let go of memory; `next` is what goes on then.
void ask_engine(ApplierState& state, std::variant<wire::Ready, wire::Commit> next) {
  state.asked = std::move(next);
  state.work->engine->offer(state.protocol.target());
}

/// The delivery ended without its target. Call when memory and version are what they will be.
void tell_engine(ApplierState& state, Code code, std::uint64_t target, const std::string& why) {
  state.asked.reset();
  if (!state.work->engine)
    return;
  const Version serves = state.work->version.load(std::memory_order_acquire);
  const std::string memory = serves == 0 ? "memory holds nothing whole until the next update seeds it"
                                         : fmt::format("memory holds version {}", serves);
  state.work->engine->failed({code, fmt::format("version {} was not committed: {}; {}", target, why, memory)});
}

/// A seed may be written from here on.
void open_memory(ApplierState& state) {
  state.work->version.store(0, std::memory_order_release);
  for (ApplierState::CellCopy& copy : state.cell_copies)
    copy.digest = 0;
}

void begin(Self self, const wire::Begin& message) {
  ApplierState& state = self->state;
  auto ready = state.protocol.begin(message);
  if (!ready)
    return refuse(state, ready.error(), message.delivery); // what is running goes on
  forget_delivery(state);
  state.staging = state.committing = {};
  if (state.protocol.in_place()) {
    if (state.work->engine)
      return ask_engine(state, *ready);
    open_memory(state);
    if (auto paused = pause(state); !paused)
      return fail_delivery(self, paused.error(), message.delivery);
  }
  state.control->send(*ready, message.delivery);
}

/// Stages a piece for one bound block and adds to what its copy of the cell will change by.
Result<void> stage_piece(ApplierState& state, std::uint32_t bound, const delta::PieceView& piece) {
  const std::uint64_t before = state.stage->held();
  const auto change = state.stage->add(bound, piece);
  state.high_water.add(state.stage->held() - before);
  if (!change && change.error().code == Code::limit_exceeded)
    return fail(Code::limit_exceeded, "actors.applier.stage, update to version {}: {}", state.protocol.target(),
                change.error().message);
  if (!change)
    return tl::make_unexpected(change.error());
  state.staged.add(bound);
  state.changed.add(state.copy_of[bound]);
  state.cell_copies[state.copy_of[bound]].change += *change;
  return {};
}

/// Stages (or, for a seed, writes) the pieces of one flush that this worker holds. What is staged are absolute values:
/// memory still holds the base that an ulp delta refers to, and is not touched.
Result<void> take_pieces(ApplierState& state, std::span<const std::byte> rest) {
  const WorkerWork& work = *state.work;
  while (!rest.empty()) {
    const auto header = delta::peek_piece(rest);
    if (!header)
      return fail(header.error().code, "{}", header.error().message);
    if (header->block >= work.block_ids)
      return fail(Code::invalid_input, "a piece of block {}, there are {}", header->block, work.block_ids);
    const std::span<const std::byte> bytes = rest.first(header->bytes);
    rest = rest.subspan(header->bytes);
    const std::uint32_t first = state.first_bound[header->block], last = state.first_bound[header->block + 1];
    if (first == last)
      continue; // not met by this worker's shards
    // What is staged is checked as it is decoded. A seed is checked before a byte of memory is written.
    const auto piece = state.protocol.in_place() ? delta::read_piece(bytes, work.blocks[first], &state.expander)
                                                 : delta::open_piece(bytes, work.blocks[first], &state.expander);
    if (!piece)
      return fail(piece.error().code, "{}", piece.error().message);
    if (state.protocol.in_place() && piece->kind == delta::PieceKind::ulp_delta)
      return fail(Code::invalid_input, "piece of block {}: differences to a base in a seed", piece->block);
    for (std::uint32_t b = first; b < last; ++b) {
      state.written_to.add(work.blocks[b].parameter);
      state.written[work.blocks[b].parameter] += piece->changed;
      if (state.protocol.in_place())
        delta::write_values(bound_block(work, b), *piece, piece->values);
      else if (auto staged = stage_piece(state, b, *piece); !staged)
        return staged;
    }
  }
  return {};
}

void verify_if_complete(Self self);

void flush(Self self, const FrameArrived& frame) {
  ApplierState& state = self->state;
  const telemetry::TimePoint begin = telemetry::now();
  const wire::FrameHeader& header = frame.header;
  if (state.protocol.over(header.delivery) || state.protocol.gave_up())
    return; // given up, here or by the root: data may be behind the undo
  if (auto checked = wire::check_payload(header, *frame.body); !checked)
    return fail_delivery(self, checked.error(), header.delivery);
  const auto fresh = state.protocol.flush(header.delivery, header.sequence, header.payload_bytes);
  if (!fresh)
    return fail_delivery(self, fresh.error(), header.delivery);
  if (*fresh == sync::WorkerProtocol::Fresh::fresh) {
    if (auto taken = take_pieces(state, *frame.body); !taken) {
      if (state.protocol.in_place())
        state.protocol.spoiled();
      return fail_delivery(self, taken.error(), header.delivery);
    }
  }
  const telemetry::TimePoint end = telemetry::now();
  if (state.staging.begin > state.staging.end)
    state.staging.begin = begin.time_since_epoch().count();
  state.staging.end = end.time_since_epoch().count();
  state.work->recorder->span(state.lane, "stage", begin, end,
                             {{"sequence", static_cast<std::int64_t>(header.sequence)},
                              {"bytes", static_cast<std::int64_t>(header.payload_bytes)}},
                             {.in = arrow::frame(header.delivery, state.work->worker, header.sequence)});
  state.control->send(wire::FlushStaged{header.delivery, header.sequence, header.payload_bytes}, header.delivery);
  verify_if_complete(self);
}

std::string cell_name(const WorkerWork& work, const ApplierState::CellCopy& copy) {
  return fmt::format("parameter '{}', slot '{}', cell {}", work.names[copy.parameter],
                     work.slots[work.cells[copy.cell].slot].name, copy.cell);
}

/// Compares what each copy's digest will be (or is) with the root's: those that are listed and those that have changed;
/// what is neither is what it was.
Result<void> compare_digests(const ApplierState& state, const sync::Digests& expected, std::string_view when) {
  const auto compare = [&](const ApplierState::CellCopy& copy, delta::Digest want) -> Result<void> {
    if (copy.digest + copy.change == want)
      return {};
    return fail(Code::verification_failed, "{}: digest {:016x} {}, the trainer has {:016x}",
                cell_name(*state.work, copy), copy.digest + copy.change, when, want);
  };
  for (const auto& [cell, want] : expected)
    for (const std::uint32_t copy : copies_of(state, cell))
      if (auto same = compare(state.cell_copies[copy], want); !same)
        return same;
  for (const std::uint32_t index : state.changed.list()) {
    const ApplierState::CellCopy& copy = state.cell_copies[index];
    if (std::binary_search(expected.begin(), expected.end(), std::pair{copy.cell, delta::Digest{0}},
                           [](const auto& a, const auto& b) { return a.first < b.first; }))
      continue;
    if (auto same = compare(copy, copy.digest); !same)
      return same;
  }
  return {};
}

/// What is told of the copies of these cells.
sync::Digests digests_of(const ApplierState& state, const sync::Digests& cells) {
  sync::Digests digests;
  digests.reserve(cells.size());
  for (const auto& [cell, digest] : cells)
    for (const std::uint32_t copy : copies_of(state, cell))
      digests.emplace_back(cell, state.cell_copies[copy].digest + state.cell_copies[copy].change);
  std::sort(digests.begin(), digests.end());
  return digests;
}

/// Digests of all memory, read anew, as the changes of copies that have none otherwise.
void read_back_all(ApplierState& state) {
  for (std::uint32_t copy = 0; copy < state.cell_copies.size(); ++copy) {
    state.cell_copies[copy].change = 0;
    state.changed.add(copy);
  }
  for (std::uint32_t b = 0; b < state.work->blocks.size(); ++b)
    state.cell_copies[state.copy_of[b]].change += delta::digest_of(bound_block(*state.work, b));
}

/// Where update.verify is "off", nothing is.
Result<void> verify(ApplierState& state) {
  if (!state.work->verify)
    return {};
  if (state.protocol.in_place())
    read_back_all(state); // of a delta, staging has added up what memory and stage make
  return compare_digests(state, state.manifest->digests,
                         state.protocol.in_place() ? "in memory" : "of memory and stage");
}

void verify_if_complete(Self self) {
  ApplierState& state = self->state;
  if (!state.protocol.complete())
    return;
  const telemetry::TimePoint begin = telemetry::now();
  const auto compared = verify(state);
  const telemetry::TimePoint end = telemetry::now();
  state.staging.begin =
    state.staging.begin > state.staging.end ? begin.time_since_epoch().count() : state.staging.begin;
  state.staging.end = end.time_since_epoch().count();
  state.work->recorder->span(state.lane, "verify", begin, end);
  if (!compared) {
    state.suspect = true;
    if (state.protocol.in_place())
      state.protocol.spoiled();
    return fail_delivery(self, compared.error(), state.protocol.delivery());
  }
  state.control->send(state.protocol.verified(), state.protocol.delivery());
}

/// Exchanges and reads back: what each copy's digest has changed by, as memory has it now. Everything is exchanged
/// before anything is read, so that a piece that was written over shows.
void exchange_and_read_back(ApplierState& state) {
  if (!state.work->verify) {
    state.stage->exchange({});
    return state.protocol.applied();
  }
  state.stage->exchange(state.taken);
  state.protocol.applied();
  state.stage->read_back(state.found);
  for (const std::uint32_t copy : state.changed.list())
    state.cell_copies[copy].change = 0;
  for (const std::uint32_t b : state.staged.list())
    state.cell_copies[state.copy_of[b]].change +=
      std::exchange(state.found[b], delta::Digest{0}) - std::exchange(state.taken[b], delta::Digest{0});
}

/// Memory becomes the target; nothing reads it. `in_place`: it was written and read back already.
void apply_commit(Self self, const wire::Commit& message, bool in_place) {
  ApplierState& state = self->state;
  const telemetry::TimePoint begin = telemetry::now();
  if (in_place)
    state.protocol.applied();
  else
    exchange_and_read_back(state);
  const telemetry::TimePoint end = telemetry::now();
  state.committing = {begin.time_since_epoch().count(), end.time_since_epoch().count()};
  state.work->recorder->span(state.lane, "commit", begin, end,
                             {{"version", static_cast<std::int64_t>(state.protocol.target())}});
  if (state.work->verify)
    if (auto compared = compare_digests(state, state.manifest->digests, "read back from memory"); !compared) {
      state.suspect = true;
      return fail_delivery(self, compared.error(), message.delivery);
    }
  wire::Applied applied;
  applied.delivery = message.delivery;
  applied.version = state.protocol.target();
  for (const std::uint32_t parameter : state.written_to.list())
    applied.elements += state.written[parameter];
  applied.digests = digests_of(state, state.manifest->digests);
  applied.stage = state.staging;
  applied.commit = state.committing;
  applied.applier_peak = state.high_water.peak();
  state.control->send(applied, message.delivery);
}

void commit(Self self, const wire::Commit& message) {
  ApplierState& state = self->state;
  const bool in_place = state.protocol.in_place(); // paused since its begin
  if (auto committing = state.protocol.commit(message); !committing)
    return fail_delivery(self, committing.error(), message.delivery);
  if (!in_place && state.work->engine)
    return ask_engine(state, message);
  if (!in_place)
    if (auto paused = pause(state); !paused)
      return fail_delivery(self, paused.error(), message.delivery);
  apply_commit(self, message, in_place);
}

/// The engine waits in its commit().
void engine_commits(Self self) {
  ApplierState& state = self->state;
  if (!state.asked || !state.work->engine->committing())
    return; // that commit has failed already
  const auto next = *std::exchange(state.asked, std::nullopt);
  state.paused_ns = telemetry::now_ns();
  if (const auto* order = std::get_if<wire::Commit>(&next))
    return apply_commit(self, *order, false);
  open_memory(state);
  const wire::Ready& ready = std::get<wire::Ready>(next);
  state.control->send(ready, ready.delivery);
}

/// What on_commit is told, in memory that is there already.
std::span<const Change> list_changes(ApplierState& state) {
  std::size_t count = 0;
  state.written_to.sort();
  for (const std::uint32_t p : state.written_to.list()) {
    if (state.written[p] == 0)
      continue;
    state.changes[count].name = state.work->names[p];
    state.changes[count++].elements = state.written[p];
  }
  return std::span(state.changes).first(count);
}

/// The new version is served: digests follow, and the engine hears of it.
Result<void> serve(ApplierState& state) {
  for (const std::uint32_t copy : state.changed.list())
    state.cell_copies[copy].digest += state.cell_copies[copy].change;
  const std::span<const Change> changes = list_changes(state);
  forget_delivery(state);
  const Version version = state.protocol.version();
  state.work->version.store(version, std::memory_order_release);
  show_standing(state);
  state.paused = false;
  return run_hook("on_commit", [&] {
    if (state.work->on_commit)
      state.work->on_commit(version, changes);
  });
}

void release(Self self, const wire::Release& message) {
  ApplierState& state = self->state;
  auto released = state.protocol.release(message);
  if (!released)
    return fail_delivery(self, released.error(), message.delivery);
  const auto told = serve(state);
  released->pause_ns = telemetry::now_ns() - state.paused_ns;
  state.paused_ns = 0;
  // The version is committed either way; an engine that could not take it in is a failed worker.
  if (!told)
    fail_delivery(self, told.error(), message.delivery);
  state.control->send(*released, message.delivery);
}

/// Reads all of memory again: is it the version that is served?
bool holds_what_it_serves(ApplierState& state) {
  read_back_all(state);
  bool right = true;
  for (ApplierState::CellCopy& copy : state.cell_copies)
    right = std::exchange(copy.change, 0) == copy.digest && right;
  return right;
}

/// The delivery has ended without its target, whoever ended it: memory, version and standing are what they were before
/// it, or nothing where nothing whole is left.
void take_back(ApplierState& state, bool exchange_back) {
  if (exchange_back)
    state.stage->exchange({});
  const bool suspect = state.suspect;
  forget_delivery(state);
  // A delivery whose digests came out wrong may have met memory that somebody else has written to: no later one would
  // fare better, so that only a seed helps.
  if (suspect && state.protocol.state() == sync::WorkerState::serving && !holds_what_it_serves(state))
    state.protocol.spoiled();
  state.paused_ns = 0;
  state.work->version.store(state.protocol.version(), std::memory_order_release);
  show_standing(state); // before anybody is told
}

/// Then its engine may go on, where it was made to pause and serves something.
Result<void> resume(ApplierState& state) {
  const Version version = state.protocol.version();
  if (version == 0 || !std::exchange(state.paused, false))
    return {};
  return run_hook("on_resume", [&] {
    if (state.work->on_resume)
      state.work->on_resume(version);
  });
}

void undo(Self self, const wire::Undo& message) {
  ApplierState& state = self->state;
  auto undoing = state.protocol.undo(message);
  if (!undoing)
    return fail_delivery(self, undoing.error(), message.delivery);
  take_back(state, undoing->exchange_back);
  if (state.protocol.version() == 0)
    undoing->answer.version = 0;
  tell_engine(state, Code::peer_failed, state.protocol.target(), message.reason);
  // It serves the version either way; an engine that does not go on is a failed worker.
  if (const auto told = resume(state); !told)
    refuse(state, told.error(), 0);
  state.control->send(undoing->answer, message.delivery);
}

// Audits
// -----------------------------------------------------------------------------------------------------------

/// Reads all of memory again. The engine need not pause: nothing is written.
void audit(Self self, const wire::Audit& message) {
  ApplierState& state = self->state;
  if (auto auditing = state.protocol.audit(message); !auditing)
    return refuse(state, auditing.error(), 0);
  const telemetry::TimePoint begin = telemetry::now();
  read_back_all(state);
  for (ApplierState::CellCopy& copy : state.cell_copies)
    copy.digest = std::exchange(copy.change, 0);
  const auto compared = compare_digests(state, message.digests, "in memory");
  state.work->recorder->span(state.lane, "audit", begin, telemetry::now(),
                             {{"version", static_cast<std::int64_t>(message.version)}});
  state.protocol.audited(message, compared.has_value());
  if (state.protocol.state() == sync::WorkerState::dirty) {
    state.work->version.store(0, std::memory_order_release);
    show_standing(state); // before the root can tell anybody
  }
  wire::Audited audited;
  audited.audit = message.audit;
  audited.version = state.protocol.foreign() ? 0 : state.protocol.version();
  audited.digests = digests_of(state, message.digests);
  if (!compared)
    audited.error = compared.error().message;
  state.control->send(audited);
}

/// Memory is the version that was audited: it is served as it is.
void adopt(Self self, const wire::Adopt& message) {
  ApplierState& state = self->state;
  const bool is_served = !state.protocol.foreign() && state.protocol.version() == message.version;
  if (auto adopted = state.protocol.adopt(message); !adopted)
    return refuse(state, adopted.error(), 0);
  // It serves the version either way; an engine that could not take it in is a failed worker.
  if (!is_served)
    if (const auto told = serve(state); !told)
      refuse(state, told.error(), 0);
  state.control->send(wire::Audited{message.audit, message.version, {}, {}});
}

// From root to root
// ---------------------------------------------------------------------------------------------------------------

/// From here on blocks and cells are the next root's. Nothing that is staged may refer to the last one's any more.
void take_agreement(ApplierState& state) {
  WorkerWork& work = *state.work;
  const auto agreement = std::exchange(state.next_agreement, nullptr);
  // The same session's are the same, and the digests go with them.
  if (agreement == nullptr || !state.protocol.foreign())
    return;
  work.blocks = agreement->own;
  work.block_ids = agreement->blocks;
  work.slots = agreement->slots;
  work.cells = agreement->cells;
  index_blocks(state);
}

/// What is applied is in doubt from here on; what is not is given up.
void part_from_root(ApplierState& state) {
  state.control.reset();
  const bool exchange_back = state.protocol.root_lost();
  if (!state.protocol.unsettled())
    return take_back(state, exchange_back);
  // Nobody knows which of two versions the replica will serve.
  state.work->version.store(0, std::memory_order_release);
  show_standing(state);
}

void root_lost(ApplierState& state, const RootLost& lost) {
  const std::uint64_t target = state.protocol.target();
  part_from_root(state);
  const bool in_doubt = state.protocol.unsettled();
  if (!in_doubt)
    tell_engine(state, lost.why.code, target, lost.why.message);
  else if (lost.last) // until then the engine waits for the next root's word
    tell_engine(state, lost.why.code, target, lost.why.message + "; it is in doubt");
  if (lost.then)
    lost.then(in_doubt);
  if (const auto told = in_doubt ? Result<void>{} : resume(state); !told) // no root is there to hear of it
    telemetry::log(sync::naming(wire::Role::worker, state.work->worker, told.error()).message);
}

void root_met(ApplierState& state, const RootMet& met) {
  state.control = met.control;
  state.protocol.meet(met.session);
  state.next_agreement = met.agreement;
  if (!state.protocol.unsettled())
    take_agreement(state);
  state.control->send(state.protocol.standing());
}

void settle(Self self, const wire::Settle& message) {
  ApplierState& state = self->state;
  const auto settled = state.protocol.settle(message);
  if (!settled)
    return refuse(state, settled.error(), 0);
  Result<void> told;
  if (settled->released) {
    told = serve(state);
  } else {
    take_back(state, settled->exchange_back);
    tell_engine(state, Code::peer_failed, state.protocol.target(), "the next trainer's word is to undo it");
    told = resume(state);
  }
  state.paused_ns = 0;
  take_agreement(state);
  // It serves the version either way; an engine that could not take it in is a failed worker.
  if (!told)
    refuse(state, told.error(), 0);
}

/// A message that does not decode ends the session: the root is not what it should be.
template <class Message, class Handle>
void handle(Self self, const FrameArrived& frame, Handle&& take) {
  auto message = decode<Message>(frame);
  if (!message)
    return caf::anon_send(self->state.supervisor, FailureReport{message.error()});
  take(*message);
}

void on_frame(Self self, const FrameArrived& frame) {
  switch (frame.header.type) {
  case static_cast<std::uint16_t>(wire::FrameType::flush):
    return flush(self, frame);
  case wire::Begin::type:
    return handle<wire::Begin>(self, frame, [self](const auto& message) { begin(self, message); });
  case wire::Seal::type:
    return handle<wire::Seal>(self, frame, [self](wire::Seal& message) {
      if (auto sealed = self->state.protocol.seal(message); !sealed)
        return fail_delivery(self, sealed.error(), message.delivery);
      self->state.manifest = std::move(message);
      verify_if_complete(self);
    });
  case wire::Commit::type:
    return handle<wire::Commit>(self, frame, [self](const auto& message) { commit(self, message); });
  case wire::Release::type:
    return handle<wire::Release>(self, frame, [self](const auto& message) { release(self, message); });
  case wire::Undo::type:
    return handle<wire::Undo>(self, frame, [self](const auto& message) { undo(self, message); });
  case wire::Audit::type:
    return handle<wire::Audit>(self, frame, [self](const auto& message) { audit(self, message); });
  case wire::Adopt::type:
    return handle<wire::Adopt>(self, frame, [self](const auto& message) { adopt(self, message); });
  case wire::Settle::type:
    return handle<wire::Settle>(self, frame, [self](const auto& message) { settle(self, message); });
  default:
    caf::anon_send(self->state.supervisor,
                   FailureReport{Failure{Code::invalid_input, fmt::format("the root sent {} to a worker",
                                                                          wire::type_name(frame.header.type))}});
  }
}

} // namespace

bool called_by_hook() noexcept {
  return hook_runs;
}

ApplierActor::behavior_type applier(Self self, std::shared_ptr<WorkerWork> work, std::shared_ptr<Port> control,
                                    caf::actor supervisor) {
  ApplierState& initial = self->state;
  initial.work = std::move(work);
  initial.control = std::move(control);
  initial.protocol.meet(initial.control->session());
  initial.supervisor = std::move(supervisor);
  initial.lane = fmt::format("worker {}: applier", initial.work->worker);
  initial.written.resize(initial.work->parameters.size());
  index_blocks(initial);
  std::size_t longest = 0;
  for (const std::string& name : initial.work->names)
    longest = std::max(longest, name.size());
  initial.changes.resize(initial.work->names.size());
  for (Change& change : initial.changes)
    change.name.reserve(longest);
  return Metered{
    self,
    meter_of(*initial.work, "applier", false, initial.high_water, "applier", cap_of(initial.work->stage_cap)),
    [self](const FrameArrived& frame) {
      if (!self->state.control)
        return; // of a root that is lost
      on_frame(self, frame);
      show_standing(self->state);
    },
    [self](const RootLost& lost) { root_lost(self->state, lost); },
    [self](const RootMet& met) { root_met(self->state, met); },
    [self](EngineCommits) {
      if (!self->state.control)
        return;
      engine_commits(self);
      show_standing(self->state);
    },
    [self](Stop) {
      part_from_root(self->state); // no hook is called any more: version and status tell
      tell_engine(self->state, Code::call_order, self->state.protocol.target(), "the subscriber was closed");
      self->state.stage.reset();
      self->state.control.reset();
      self->state.supervisor = nullptr;
      self->state.work.reset();
      self->quit();
    },
  };
}

} // namespace deltawire::actors
