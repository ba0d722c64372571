#include "trainer_seat.hpp"

#include "exit_status.hpp"
#include "shard_copy.hpp"

#include <algorithm>
#include <memory>
#include <random>

namespace deltawire::replay {

namespace {

/// A parameter as this rank holds it.
struct HeldShard {
  std::string name;
  std::size_t element_bytes = 0;
  layout::Shard shard;
  std::unique_ptr<std::byte[]> data; ///< null: no elements
};

/// Allocates the shards of all tensors and adds them to the publisher.
Result<std::vector<HeldShard>> add_shards(Publisher& publisher, const Sides& sides,
                                          const checkpoint::Checkpoint& first) {
  std::vector<HeldShard> shards;
  for (const checkpoint::TensorView& tensor : first.tensors()) {
    auto shard = sides.trainer.shard(tensor.name, tensor.shape, publisher.rank());
    if (!shard)
      return pass_on(std::move(shard));
    if (!shard->held)
      continue; // of another pipeline stage
    const std::vector<std::int64_t> local_shape = publisher.local_shape(tensor.name, tensor.shape);
    if (local_shape != shard->local_shape)
      return fail(Code::internal, "\"{}\": the publisher's shard is {}, the layout's {}", tensor.name,
                  layout::to_string(local_shape), layout::to_string(shard->local_shape));
    auto elements = layout::element_count(local_shape);
    if (!elements)
      return pass_on(std::move(elements));
    HeldShard& held = shards.emplace_back(HeldShard{tensor.name, size_of(tensor.dtype), std::move(*shard), nullptr});
    if (*elements > 0)
      held.data = std::make_unique<std::byte[]>(static_cast<std::size_t>(*elements) * held.element_bytes);
    publisher.add({tensor.name, tensor.dtype, tensor.shape, held.data.get(), {}});
  }
  return shards;
}

/// The optimizer step of a replay: the shards take the values of a checkpoint.
void take_values(std::span<const HeldShard> shards, const checkpoint::Checkpoint& file) {
  for (const HeldShard& held : shards)
    if (held.data)
      copy_shard(held.shard, held.element_bytes, file.find(held.name)->data.data(), held.data.get());
}

/// The same a part after the other, each sent as soon as it has its values, in an order that differs from rank to rank.
Ticket publish_in_parts(Publisher& publisher, std::span<HeldShard> shards, const checkpoint::Checkpoint& file,
                        std::uint64_t step, std::size_t parts) {
  std::seed_seq seeds{static_cast<std::uint64_t>(publisher.rank()), step};
  std::mt19937_64 random(seeds);
  std::shuffle(shards.begin(), shards.end(), random);
  Update update = publisher.begin(step);
  parts = std::min(parts, std::max<std::size_t>(1, shards.size())); // no part is empty, unless all is
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t begin = shards.size() * part / parts, end = shards.size() * (part + 1) / parts;
    const std::span<HeldShard> now = shards.subspan(begin, end - begin);
    take_values(now, file);
    std::vector<std::string> names;
    for (const HeldShard& held : now)
      names.push_back(held.name);
    update.send(names);
  }
  return update.finish();
}

} // namespace

Result<void> run_trainer(const TrainerSeat& seat, const Sides& sides, std::span<const checkpoint::Checkpoint> files,
                         const EventSink& sink, const Turns& turns) {
  return catching([&]() -> Result<void> {
    std::vector<HeldShard> shards; // outlives the publisher, which reads it
    Publisher publisher = Publisher::open(seat.topology, {.rank = seat.rank,
                                                          .world = sides.ranks(),
                                                          .overrides = seat.overrides,
                                                          .listening_socket = seat.listening_socket,
                                                          .metrics_index = seat.metrics_index});
    auto added = add_shards(publisher, sides, files.front());
    if (!added)
      return pass_on(std::move(added));
    shards = std::move(*added);
    publisher.connect();

    for (std::size_t step = 0; step < files.size(); ++step) {
      if (!turns(step))
        return fail(Code::peer_failed, "the run was given up before version {}", step + 1);
      Ticket ticket = [&] {
        if (seat.parts > 0)
          return publish_in_parts(publisher, shards, files[step], step, seat.parts);
        take_values(shards, files[step]);
        return publisher.publish(step);
      }();
      ticket.captured();
      const Outcome outcome = ticket.wait();
      if (seat.rank == 0)
        sink(UpdateEnded{outcome});
      if (!outcome.committed)
        return fail(outcome.error_message.empty() ? Code::internal : outcome.error, "version {} was not committed: {}",
                    outcome.version, outcome.error_message);
    }
    publisher.close();
    return {};
  });
}

} // namespace deltawire::replay
