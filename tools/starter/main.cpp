// The smallest program that embeds deltawire: a trainer rank and a rollout worker, as two threads of one process, or
// (`trainer` or `worker` as the second argument) as a process each. Copy this folder to begin a project; README.md,
// "Start a project of your own", says how to build it.
#include <deltawire/deltawire.hpp>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <future>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t rows = 1000, columns = 256;
constexpr std::uint64_t updates = 3;

void train(const std::string& topology, std::vector<std::uint16_t>& weights) {
  auto publisher = deltawire::Publisher::open(topology, {.rank = 0, .world = 1});
  publisher.add(
    {.name = "model.weight", .dtype = deltawire::DType::bf16, .full_shape = {rows, columns}, .data = weights.data()});
  publisher.connect(); // waits for the worker, and agrees on the layout

  for (std::uint64_t step = 0; step <= updates; ++step) {
    deltawire::Ticket ticket = publisher.publish(step); // all weights the first time, then what changed
    ticket.captured();                                  // the weights may change again
    const deltawire::Outcome outcome = ticket.wait();   // the worker has them
    if (!outcome.committed)
      throw std::runtime_error(outcome.error_message);
    std::printf("trainer: version %" PRIu64 ", %s, %" PRIu64 " of %" PRIu64 " elements changed, %" PRIu64
                " bytes sent, digests %s\n",
                outcome.version, outcome.seed ? "seed" : "delta", outcome.changed, outcome.elements, outcome.wire_bytes,
                outcome.workers[0].digest_ok ? "right" : "not read back");
    if (step < updates)
      for (std::size_t i = step; i < weights.size(); i += 100)
        weights[i] ^= 1; // a step of an optimizer
  }
  publisher.close();
}

void serve(const std::string& topology, std::vector<std::uint16_t>& weights) {
  auto subscriber = deltawire::Subscriber::open(topology, {.worker = 0});
  const std::vector<deltawire::ParameterInfo> parameters = subscriber.parameters(); // waits for the trainer
  if (parameters.size() != 1)
    throw std::runtime_error("one parameter was expected");
  const deltawire::ParameterInfo& weight = parameters[0];
  weights.assign(static_cast<std::size_t>(weight.shape[0] * weight.shape[1]), 0);
  subscriber.bind({.name = weight.name, .dtype = weight.dtype, .shape = weight.shape, .data = weights.data()});
  subscriber.on_pause([] {}); // an engine returns from here when nothing reads the weights
  subscriber.on_commit([](deltawire::Version version, std::span<const deltawire::Change> changed) {
    for (const deltawire::Change& change : changed)
      std::printf("worker: version %" PRIu64 ", %" PRIu64 " elements of %s written\n", version, change.elements,
                  change.name.c_str());
  });
  subscriber.start();
  subscriber.wait(); // until the trainer closes the session
}

int run(const std::string& topology, const std::string& side) {
  std::vector<std::uint16_t> trained(rows * columns), served;
  for (std::size_t i = 0; i < trained.size(); ++i)
    trained[i] = static_cast<std::uint16_t>(0x3c00 + i % 1000); // bf16 bits
  if (side == "trainer")
    train(topology, trained);
  else if (side == "worker")
    serve(topology, served);
  if (!side.empty())
    return 0;

  auto worker = std::async(std::launch::async, serve, topology, std::ref(served));
  train(topology, trained);
  worker.get();
  const bool same = served == trained;
  std::printf("%s\n", same ? "verified: the worker's memory is the trainer's, bit for bit" : "the memories differ");
  return same ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
  const std::string side = argc > 2 ? argv[2] : "";
  if (argc < 2 || (!side.empty() && side != "trainer" && side != "worker")) {
    std::fprintf(stderr, "usage: %s TOPOLOGY [trainer|worker]\n", argv[0]);
    return 2;
  }
  try {
    return run(argv[1], side);
  } catch (const std::exception& error) { // deltawire throws deltawire::Error, with a code
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
