#include "run.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <map>
#include <optional>
#include <utility>

namespace deltawire::report {

namespace {

using nlohmann::json;

/// A place in the document that knows its key. The first thing that does not fit is kept; what is read after it does
/// not matter.
class Place {
public:
  Place(const json* value, std::string key, std::optional<Failure>& failure)
    : value_(value), key_(std::move(key)), failure_(&failure) {}

  [[nodiscard]] bool has(const std::string& name) const {
    return value_ != nullptr && value_->is_object() && value_->contains(name);
  }

  [[nodiscard]] Place at(const std::string& name) const {
    const std::string key = key_.empty() ? name : key_ + "." + name;
    if (value_ == nullptr)
      return {nullptr, key, *failure_};
    if (!value_->is_object())
      return refuse("an object"), Place{nullptr, key, *failure_};
    const auto found = value_->find(name);
    if (found == value_->end())
      return complain(key, "is missing"), Place{nullptr, key, *failure_};
    return {&*found, key, *failure_};
  }

  [[nodiscard]] std::vector<Place> items() const {
    std::vector<Place> out;
    if (value_ == nullptr)
      return out;
    if (!value_->is_array())
      return refuse("an array"), out;
    for (std::size_t i = 0; i < value_->size(); ++i)
      out.emplace_back(&(*value_)[i], key_ + "[" + std::to_string(i) + "]", *failure_);
    return out;
  }

  [[nodiscard]] std::uint64_t count() const {
    if (value_ == nullptr)
      return 0;
    return value_->is_number_unsigned() ? value_->get<std::uint64_t>()
                                        : (refuse("a number from 0 on, without a fraction"), 0);
  }

  [[nodiscard]] double number() const {
    if (value_ == nullptr)
      return 0;
    return value_->is_number() && value_->get<double>() >= 0 ? value_->get<double>()
                                                             : (refuse("a number from 0 on"), 0);
  }

  [[nodiscard]] double above_zero() const {
    if (value_ == nullptr)
      return 1;
    return value_->is_number() && value_->get<double>() > 0 ? value_->get<double>() : (refuse("a number above 0"), 1);
  }

  [[nodiscard]] double any_number() const {
    if (value_ == nullptr)
      return 0;
    return value_->is_number() ? value_->get<double>() : (refuse("a number"), 0);
  }

  [[nodiscard]] std::string text() const {
    if (value_ == nullptr)
      return "";
    return value_->is_string() ? value_->get<std::string>() : (refuse("a string"), "");
  }

  [[nodiscard]] bool flag() const {
    if (value_ == nullptr)
      return false;
    return value_->is_boolean() ? value_->get<bool>() : (refuse("true or false"), false);
  }

  [[nodiscard]] bool null() const { return value_ != nullptr && value_->is_null(); }

private:
  void refuse(const std::string& wanted) const {
    complain(key_.empty() ? "the document" : key_, "must be " + wanted + ", not " + shown());
  }
  /// The value itself where it is short; of containers, and of text that fills lines, the kind.
  [[nodiscard]] std::string shown() const {
    constexpr std::size_t longest = 40;
    const std::string text =
      value_->is_structured() ? "" : value_->dump(-1, ' ', false, json::error_handler_t::replace);
    return text.empty() || text.size() > longest ? value_->type_name() : text;
  }
  void complain(const std::string& key, const std::string& what) const {
    if (!*failure_)
      *failure_ = Failure{Code::invalid_input, key + ": " + what};
  }

  const json* value_;
  std::string key_;
  std::optional<Failure>* failure_;
};

Result<json> parse_json(std::string_view text) {
  json document = json::parse(text.begin(), text.end(), nullptr, false);
  if (document.is_discarded())
    return fail(Code::invalid_input, "is no JSON");
  return document;
}

Update read_update(const Place& place) {
  Update update;
  update.version = place.at("version").count();
  update.kind = place.at("kind").text();
  update.elements = place.at("elements").count();
  update.changed = place.at("changed").count();
  update.wire_bytes = place.at("wire_bytes").count();
  update.gather_bytes = place.at("gather_bytes").count();
  update.captured_s = place.at("captured_s").number();
  update.committed_s = place.at("committed_s").number();
  update.pause_s = place.at("pause_s").number();
  for (std::size_t p = 0; p < phases.size(); ++p)
    update.phase_s[p] = place.at("phase_s").at(std::string(phases[p])).number();
  for (const Place& item : place.at("workers").items()) {
    const Place error = item.at("error");
    update.workers.push_back({item.at("index").count(), item.at("version").count(), item.at("state").text(),
                              item.at("bytes").count(), item.at("digest_ok").flag(), error.null() ? "" : error.text()});
  }
  if (place.has("warnings"))
    for (const Place& warning : place.at("warnings").items())
      update.warnings.push_back(warning.text());
  return update;
}

void read_machine(const Place& root, Run& run) {
  if (root.has("session") && !root.at("session").null())
    run.session = root.at("session").text();
  if (!root.has("machine"))
    return;
  const Place machine = root.at("machine");
  run.machine = Machine{machine.at("cores").count(), machine.at("compare_bytes_per_s").above_zero(),
                        machine.at("copy_bytes_per_s").above_zero(), machine.at("array_bytes").count()};
  run.parameter_bytes = root.at("parameter_bytes").count();
  run.snapshot_bytes = root.at("snapshot_bytes").count();
}

/// Microseconds. A double holds today's to a quarter of a microsecond, enough for a picture.
std::int64_t nanoseconds(double us) {
  constexpr double most = 9e15;
  return std::abs(us) < most ? static_cast<std::int64_t>(us * 1000) : 0;
}

} // namespace

Result<Run> parse_run(std::string_view text) {
  auto document = parse_json(text);
  if (!document)
    return pass_on(std::move(document));
  std::optional<Failure> failure;
  const Place root(&*document, "", failure);
  Run run;
  run.verified = root.at("verified").flag();
  for (const Place& update : root.at("updates").items())
    run.updates.push_back(read_update(update));
  read_machine(root, run);
  if (failure)
    return tl::make_unexpected(*failure);
  if (run.verified && run.updates.empty())
    return fail(Code::invalid_input,
                "updates: is empty, and verified is true: a run without an update has proven nothing");
  return run;
}

Result<Trace> parse_trace(std::string_view text) {
  auto document = parse_json(text);
  if (!document)
    return pass_on(std::move(document));
  std::optional<Failure> failure;
  const Place root(&*document, "", failure);
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> lanes; // by process and thread
  Trace trace;
  std::vector<Span>& spans = trace.spans;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> threads;
  for (const Place& event : root.at("traceEvents").items()) {
    const std::string phase = event.at("ph").text();
    if (phase == "M" && event.at("name").text() == "thread_name") {
      const Place names = event.at("args"); // the lane's where the thread is not its first one
      lanes[{event.at("pid").count(), event.at("tid").count()}] = names.at(names.has("lane") ? "lane" : "name").text();
    }
    if (phase != "X")
      continue;
    Span span;
    span.name = event.at("name").text();
    span.begin_ns = nanoseconds(event.at("ts").any_number());
    span.end_ns = span.begin_ns + nanoseconds(event.at("dur").number());
    if (const Place arguments = event.at("args"); arguments.has("version"))
      span.version = static_cast<std::int64_t>(arguments.at("version").count());
    spans.push_back(std::move(span));
    threads.emplace_back(event.at("pid").count(), event.at("tid").count());
  }
  if (root.has("otherData") && root.at("otherData").has("sessions"))
    for (const Place& session : root.at("otherData").at("sessions").items())
      trace.sessions.push_back(session.text());
  if (failure)
    return tl::make_unexpected(*failure);
  for (std::size_t i = 0; i < spans.size(); ++i)
    spans[i].lane = lanes[threads[i]];
  return trace;
}

} // namespace deltawire::report
