// What README shows of a trainer rank, as it runs here: tests/trainer compares the two.
#include "embed.hpp"

#include <cstdint>
#include <stdexcept>

namespace trainer {

// README: trainer rank
void train_with_deltawire(const std::string& topology, const deltawire::TrainerOptions& options, Training& training) {
  auto publisher = deltawire::Publisher::open(topology, options); // no options: rank and world from RANK and WORLD_SIZE
  for (const Shard& shard : training.shards())
    publisher.add(
      {.name = shard.name, .dtype = deltawire::DType::bf16, .full_shape = shard.full_shape, .data = shard.data});
  publisher.connect(); // all ranks and workers agree on the layout

  for (std::uint64_t update = 0; update <= training.updates(); ++update) {
    deltawire::Ticket ticket = publisher.publish(update); // all weights the first time, then what changed
    ticket.captured();                                    // from here on the weights may change again
    const deltawire::Outcome outcome = ticket.wait();     // from here on all workers have them
    if (!outcome.committed)
      throw std::runtime_error(outcome.error_message);
    training.delivered({outcome.changed, outcome.wire_bytes, outcome.committed_s, outcome.pause_s});
    training.step(update); // rollouts with them, rewards, gradients, optimizer
  }
  publisher.close();
}
// README: end

} // namespace trainer
