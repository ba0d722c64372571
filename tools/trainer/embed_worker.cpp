// What README shows of a rollout worker, as it runs here: tests/trainer compares the two.
#include "embed.hpp"

#include <span>

namespace trainer {

// README: rollout worker
void serve_with_deltawire(const std::string& topology, const deltawire::WorkerOptions& options, Engine& engine,
                          Channel& trainer) {
  auto subscriber = deltawire::Subscriber::open(topology, options); // options.worker: which one this is
  for (const deltawire::ParameterInfo& p : subscriber.parameters()) // what the topology says this worker holds
    subscriber.bind({.name = p.name, .dtype = p.dtype, .shape = p.shape, .data = engine.weights(p.name, p.shape)});
  subscriber.on_pause([&] { engine.pause(); }); // returns when nothing reads the weights
  subscriber.on_commit([&](deltawire::Version version, std::span<const deltawire::Change> changed) {
    for (const deltawire::Change& change : changed)
      engine.refresh(change.name); // caches, derived tensors
    engine.resume(version);
  });
  subscriber.on_resume([&](deltawire::Version version) { engine.resume(version); }); // undone: memory is what it was
  subscriber.start();     // updates arrive from now on, on threads of deltawire
  serve(engine, trainer); // rollouts, until the trainer needs no more
  subscriber.wait();      // until it closes the session
}
// README: end

} // namespace trainer
