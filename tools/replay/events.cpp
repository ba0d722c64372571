#include "events.hpp"

#include <nlohmann/json.hpp>

namespace deltawire::replay {

using nlohmann::json;

namespace {

json to_json(const Outcome& o) {
  json workers = json::array();
  for (const WorkerOutcome& w : o.workers)
    workers.push_back({{"index", w.index},
                       {"version", w.version},
                       {"state", w.state},
                       {"bytes", w.bytes},
                       {"flushes", w.flushes},
                       {"pieces", w.pieces},
                       {"digest_ok", w.digest_ok},
                       {"pause_s", w.pause_s},
                       {"delivery", w.delivery},
                       {"matched", w.matched},
                       {"audited", w.audited},
                       {"error", w.error}});
  return {
    {"version", o.version},
    {"base", o.base},
    {"step", o.step},
    {"seed", o.seed},
    {"committed", o.committed},
    {"code", static_cast<unsigned>(o.error)},
    {"error", o.error_message},
    {"slots", o.slots},
    {"elements", o.elements},
    {"changed", o.changed},
    {"wire_bytes", o.wire_bytes},
    {"gather_bytes", o.gather_bytes},
    {"flushes", o.flushes},
    {"rounds", o.rounds},
    {"captured_s", o.captured_s},
    {"committed_s", o.committed_s},
    {"pause_s", o.pause_s},
    {"phase_s",
     {o.phase_s.diff, o.phase_s.gather, o.phase_s.assemble, o.phase_s.send, o.phase_s.stage, o.phase_s.commit}},
    {"high_water", {o.high_water.differ, o.high_water.gather_queue, o.high_water.flush_bucket, o.high_water.applier}},
    {"workers", std::move(workers)},
    {"warnings", o.warnings}};
}

Code code_from(const json& value) {
  const auto number = value.get<unsigned>();
  if (number < static_cast<unsigned>(Code::invalid_argument) || number > static_cast<unsigned>(Code::superseded))
    return Code::internal;
  return static_cast<Code>(number);
}

Outcome outcome_from(const json& value) {
  Outcome o;
  value.at("version").get_to(o.version);
  value.at("base").get_to(o.base);
  value.at("step").get_to(o.step);
  value.at("seed").get_to(o.seed);
  value.at("committed").get_to(o.committed);
  o.error = code_from(value.at("code"));
  value.at("error").get_to(o.error_message);
  value.at("slots").get_to(o.slots);
  value.at("elements").get_to(o.elements);
  value.at("changed").get_to(o.changed);
  value.at("wire_bytes").get_to(o.wire_bytes);
  value.at("gather_bytes").get_to(o.gather_bytes);
  value.at("flushes").get_to(o.flushes);
  value.at("rounds").get_to(o.rounds);
  value.at("captured_s").get_to(o.captured_s);
  value.at("committed_s").get_to(o.committed_s);
  value.at("pause_s").get_to(o.pause_s);
  const json& phases = value.at("phase_s");
  o.phase_s = {phases.at(0), phases.at(1), phases.at(2), phases.at(3), phases.at(4), phases.at(5)};
  const json& marks = value.at("high_water");
  o.high_water = {marks.at(0), marks.at(1), marks.at(2), marks.at(3)};
  for (const json& worker : value.at("workers")) {
    WorkerOutcome& w = o.workers.emplace_back();
    worker.at("index").get_to(w.index);
    worker.at("version").get_to(w.version);
    worker.at("state").get_to(w.state);
    worker.at("bytes").get_to(w.bytes);
    worker.at("flushes").get_to(w.flushes);
    worker.at("pieces").get_to(w.pieces);
    worker.at("digest_ok").get_to(w.digest_ok);
    worker.at("pause_s").get_to(w.pause_s);
    worker.at("delivery").get_to(w.delivery);
    worker.at("matched").get_to(w.matched);
    worker.at("audited").get_to(w.audited);
    worker.at("error").get_to(w.error);
  }
  value.at("warnings").get_to(o.warnings);
  return o;
}

json to_json(const Event& event) {
  if (const auto* ended = std::get_if<UpdateEnded>(&event))
    return {{"event", "update"}, {"outcome", to_json(ended->outcome)}};
  if (const auto* held = std::get_if<VersionHeld>(&event))
    return {{"event", "version"},
            {"worker", held->worker},
            {"version", held->version},
            {"tensors", held->tensors},
            {"elements", held->elements},
            {"session", held->session},
            {"proof", static_cast<unsigned>(held->proof)},
            {"difference", held->difference}};
  const PeerEnded& end = std::get<PeerEnded>(event);
  json value = {{"event", "end"}, {"side", static_cast<unsigned>(end.peer.side)}, {"index", end.peer.index}};
  if (end.failure)
    value["failure"] = {{"code", static_cast<unsigned>(end.failure->code)}, {"message", end.failure->message}};
  return value;
}

Event event_from(const json& value) {
  const std::string kind = value.at("event");
  if (kind == "update")
    return UpdateEnded{outcome_from(value.at("outcome"))};
  if (kind == "version") {
    VersionHeld held;
    value.at("worker").get_to(held.worker);
    value.at("version").get_to(held.version);
    value.at("tensors").get_to(held.tensors);
    value.at("elements").get_to(held.elements);
    value.at("session").get_to(held.session);
    held.proof = static_cast<VersionHeld::Proof>(value.at("proof").get<unsigned>());
    value.at("difference").get_to(held.difference);
    return held;
  }
  PeerEnded end;
  end.peer.side = value.at("side").get<unsigned>() == 0 ? Peer::Side::trainer : Peer::Side::worker;
  value.at("index").get_to(end.peer.index);
  if (const auto failure = value.find("failure"); failure != value.end())
    end.failure = Failure{code_from(failure->at("code")), failure->at("message").get<std::string>()};
  return end;
}

} // namespace

std::string to_line(const Event& event) {
  return to_json(event).dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<Event> event_from_line(std::string_view line) {
  try {
    return event_from(json::parse(line));
  } catch (const json::exception& error) {
    return fail(Code::internal, "an event of a child process makes no sense ({}): {}", error.what(), line);
  }
}

} // namespace deltawire::replay
