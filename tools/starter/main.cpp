// The smallest program that embeds deltawire: a trainer rank and a rollout worker, as two threads of one process, or,
// with `trainer` or `worker` as the second argument, as a process each. Copy this folder to begin a project of your
// own: README.md, "Start a project of your own", has the commands.
#include <deltawire/deltawire.hpp>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <future>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t rows = 1000, columns = 256;
constexpr std::uint64_t steps = 3;

std::vector<std::uint16_t> first_weights() { // bf16 bits
  std::vector<std::uint16_t> weights(rows * columns);
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] = static_cast<std::uint16_t>(0x3c00 + i % 1000);
  return weights;
}

/// Your optimizer here: this one changes the last bit of every hundredth weight.
void optimize(std::vector<std::uint16_t>& weights, std::uint64_t step) {
  for (std::size_t i = step; i < weights.size(); i += 100)
    weights[i] ^= 1;
}

void train(const std::string& topology) {
  std::vector<std::uint16_t> weights = first_weights();
  auto publisher = deltawire::Publisher::open(topology, {.rank = 0, .world = 1});
  publisher.add(
    {.name = "model.weight", .dtype = deltawire::DType::bf16, .full_shape = {rows, columns}, .data = weights.data()});
  publisher.connect(); // waits for the worker, and agrees with it on the layout

  for (std::uint64_t step = 0; step <= steps; ++step) {
    if (step > 0)
      optimize(weights, step);
    deltawire::Ticket ticket = publisher.publish(step); // all weights the first time, then what changed
    ticket.captured();                                  // from here on the weights may change again
    const deltawire::Outcome outcome = ticket.wait();   // from here on the worker has them
    if (!outcome.committed)
      throw std::runtime_error(outcome.error_message);
    std::printf(
      "trainer: version %" PRIu64 ", %s, %" PRIu64 " of %" PRIu64 " weights changed, %" PRIu64 " bytes sent\n",
      outcome.version, outcome.seed ? "seed" : "delta", outcome.changed, outcome.elements, outcome.wire_bytes);
  }
  publisher.close(); // the worker's wait() returns
}

void serve(const std::string& topology) {
  auto subscriber = deltawire::Subscriber::open(topology, {.worker = 0});
  const std::vector<deltawire::ParameterInfo> parameters = subscriber.parameters(); // waits for the trainer
  if (parameters.size() != 1)
    throw std::runtime_error("the trainer has other parameters than this worker knows");
  const deltawire::ParameterInfo& weight = parameters[0];
  std::vector<std::uint16_t> weights(static_cast<std::size_t>(weight.shape[0] * weight.shape[1]));
  subscriber.bind({.name = weight.name, .dtype = weight.dtype, .shape = weight.shape, .data = weights.data()});
  subscriber.on_pause([] {}); // an engine returns from here when nothing reads the weights
  subscriber.on_commit([](deltawire::Version version, std::span<const deltawire::Change> changed) {
    for (const deltawire::Change& change : changed) // and goes on from here
      std::printf("worker: version %" PRIu64 ", %" PRIu64 " weights of %s written\n", version, change.elements,
                  change.name.c_str());
  });
  subscriber.start(); // updates arrive from now on, on threads of deltawire
  subscriber.wait();  // until the trainer closes the session; an engine serves meanwhile
  subscriber.close();

  std::vector<std::uint16_t> trained = first_weights(); // this trainer's steps are known
  for (std::uint64_t step = 1; step <= steps; ++step)
    optimize(trained, step);
  if (weights != trained)
    throw std::runtime_error("the worker's memory is not what the trainer's steps make");
  std::printf("worker: verified, its memory is the trainer's, bit for bit\n");
}

} // namespace

int main(int argc, char** argv) {
  const std::string topology = argc > 1 ? argv[1] : "", side = argc > 2 ? argv[2] : "";
  if (topology.empty() || argc > 3 || (!side.empty() && side != "trainer" && side != "worker")) {
    std::fprintf(stderr, "usage: %s TOPOLOGY [trainer|worker]\n", argv[0]);
    return 2;
  }
  try {
    if (side == "trainer") {
      train(topology);
    } else if (side == "worker") {
      serve(topology);
    } else {
      auto worker = std::async(std::launch::async, serve, topology);
      train(topology);
      worker.get();
    }
    return 0;
  } catch (const std::exception& error) { // deltawire throws deltawire::Error, which has a code too
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
