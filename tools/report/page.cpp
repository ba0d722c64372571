#include "page.hpp"

#include "replay/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>

namespace deltawire::report {

namespace {

constexpr const char* style = R"(
:root { color-scheme: light dark; --page: #fbfaf8; --card: #ffffff; --ink: #1c1d21; --soft: #646770; --line: #e3e1dc;
  --bar: #2f6fb2; --bar2: #8fb4da; --ok: #2e8b57; --bad: #c0392b; --note: #9a6a00; --notebg: #fff4d6;
  --diff: #2f6fb2; --gather: #7a5cc4; --assemble: #0f8b8d; --send: #d17b0f; --stage: #b0437a; --commit: #2e8b57; --other: #8a8d96; --blocked: #d9d2c3; }
@media (prefers-color-scheme: dark) { :root { --page: #16171b; --card: #1f2126; --ink: #e8e8ea; --soft: #a0a4ae; --line: #343740;
  --bar: #6aa7e8; --bar2: #3d5f85; --ok: #5fc08a; --bad: #ef7b6f; --note: #f0c869; --notebg: #3a3118;
  --diff: #6aa7e8; --gather: #ab92ee; --assemble: #4fc4c6; --send: #f0a848; --stage: #e583b3; --commit: #5fc08a; --other: #8a8d96; --blocked: #4b4a45; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 0 0 2px; }
p.sub { color: var(--soft); margin: 0 0 14px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px 18px; margin: 16px 0; overflow-x: auto; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px; margin: 18px 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; }
.tile b { display: block; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; } .tile span { color: var(--soft); font-size: 13px; }
.ok { color: var(--ok); } .bad { color: var(--bad); }
.notes { background: var(--notebg); } .notes li { margin: 4px 0; }
svg + h2 { margin-top: 16px; }
svg { display: block; max-width: 100%; height: auto; } svg text { fill: var(--soft); font: 12px system-ui, sans-serif; } svg .name { fill: var(--ink); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; font-size: 13.5px; }
th, td { text-align: right; padding: 4px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; } th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.key { display: flex; flex-wrap: wrap; gap: 6px 16px; font-size: 13px; color: var(--soft); margin: 8px 0; } .key i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 6px; }
details { margin: 6px 0; } summary { cursor: pointer; color: var(--ink); }
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

/// "2.10 ms"
std::string duration(double seconds) {
  if (seconds <= 0)
    return "0";
  if (seconds < 1e-3)
    return replay::three_digits(seconds * 1e6) + " us";
  if (seconds < 1)
    return replay::three_digits(seconds * 1e3) + " ms";
  return replay::three_digits(seconds) + " s";
}

std::string bytes(double amount) {
  std::string text = replay::short_bytes(static_cast<std::uint64_t>(amount));
  const std::size_t unit = text.find_first_not_of("0123456789.");
  return unit == std::string::npos ? text : text.substr(0, unit) + " " + text.substr(unit);
}

double median(std::vector<double> values) {
  if (values.empty())
    return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::vector<double> of_deltas(const Run& run, const std::function<double(const Update&)>& figure) {
  std::vector<double> out;
  for (const Update& update : run.updates)
    if (update.kind != "seed")
      out.push_back(figure(update));
  return out;
}

double density(const Update& update) {
  return update.elements == 0 ? 0 : static_cast<double>(update.changed) / static_cast<double>(update.elements);
}

/// What no update can beat: the least that must be done to memory, at the speed that the machine's was measured at.
/// Seconds.
struct Limit {
  double diff = 0;   ///< parameters and snapshot compared, changed values written to the snapshot
  double send = 0;   ///< what was sent, moved once
  double commit = 0; ///< changed values written to one worker's memory

  [[nodiscard]] double all() const noexcept { return diff + send + commit; }
};

/// Changes count as if they lay side by side: how many cache lines they touch the report does not say.
std::optional<Limit> limit_of(const Run& run, const Update& update) {
  if (!run.machine || update.kind == "seed")
    return std::nullopt;
  const double copy = run.machine->copy_bytes_per_s;
  const double written = density(update) * static_cast<double>(run.snapshot_bytes) / copy;
  const double compared = static_cast<double>(run.parameter_bytes + run.snapshot_bytes) / 2;
  return Limit{compared / run.machine->compare_bytes_per_s + written, static_cast<double>(update.wire_bytes) / copy,
               written};
}

std::string times_the_limit(const Run& run, const Update& update) {
  const auto limit = limit_of(run, update);
  return limit && limit->all() > 0 ? replay::three_digits(update.committed_s / limit->all()) : "-";
}

std::string tile(const std::string& figure, const std::string& what, const char* mood = "") {
  return fmt::format("<div class=\"tile\"><b class=\"{}\">{}</b><span>{}</span></div>\n", mood, escaped(figure),
                     escaped(what));
}

std::string tiles(const Run& run) {
  double seed = 0, deltas = 0;
  std::size_t seeds = 0;
  for (const Update& update : run.updates) {
    (update.kind == "seed" ? seed : deltas) += static_cast<double>(update.wire_bytes);
    seeds += update.kind == "seed" ? 1 : 0;
  }
  const auto sent = of_deltas(run, [](const Update& u) { return static_cast<double>(u.wire_bytes); });
  std::string out = "<div class=\"tiles\">\n";
  if (run.updates.empty())
    return out + tile("nothing was done", "the run ended before its first update; its messages say why", "bad") +
           "</div>\n";
  out += run.verified ? tile("verified", "every version on every worker, bit for bit", "ok")
                      : tile("not verified", "see the messages of the run", "bad");
  out += tile(fmt::format("{}", run.updates.size()),
              fmt::format("updates, {} of them {}", seeds, seeds == 1 ? "a seed" : "seeds"));
  out += tile(fmt::format("{:.2f} %", 100 * median(of_deltas(run, density))), "changed in an update (median)");
  out += tile(bytes(median(sent)), seeds > 0 && seed > 0 && !sent.empty()
                                     ? fmt::format("on the wire for an update (median), {:.1f}\u00a0% of a seed",
                                                   100 * median(sent) / (seed / static_cast<double>(seeds)))
                                     : "on the wire for an update (median)");
  out += tile(duration(median(of_deltas(run, [](const Update& u) { return u.committed_s; }))),
              "from publish to committed (median)");
  out +=
    tile(duration(median(of_deltas(run, [](const Update& u) { return u.pause_s; }))), "pause of generation (median)");
  return out + "</div>\n";
}

std::string warnings(const Run& run, const std::vector<std::string>& notes) {
  std::string out;
  for (const std::string& note : notes)
    out += "<li>" + escaped(note) + "</li>\n";
  for (const Update& update : run.updates) {
    for (const std::string& warning : update.warnings)
      out += "<li>" + escaped(warning) + "</li>\n";
    for (const Worker& worker : update.workers)
      if (!worker.error.empty())
        out += fmt::format("<li>version {}: worker {}: {}</li>\n", update.version, worker.index, escaped(worker.error));
  }
  return out.empty() ? "" : "<section class=\"notes\"><h2>Worth a look</h2><ul>\n" + out + "</ul></section>\n";
}

constexpr double chart_left = 70, chart_width = 980, chart_height = 130;

/// The least of these times a power of the last of them that is not below the value.
double round_up(double value, std::initializer_list<double> steps) {
  if (value <= 0)
    return 1;
  const double base = *std::prev(steps.end());
  const double power = std::pow(base, std::floor(std::log(value) / std::log(base)));
  for (const double step : steps)
    if (value <= step * power)
      return step * power;
  return base * base * power; // the logarithm was rounded down
}

/// Bars over the updates that are deltas: a seed would dwarf them.
std::string bars(const Run& run, bool binary, const std::function<double(const Update&)>& figure,
                 const std::function<std::string(double)>& shown) {
  std::vector<const Update*> updates;
  double most = 0;
  for (const Update& update : run.updates)
    if (update.kind != "seed") {
      updates.push_back(&update);
      most = std::max(most, figure(update));
    }
  if (updates.empty())
    return "<p class=\"sub\">No update but seeds.</p>\n";
  const double top = binary ? round_up(most, {1, 1.5, 2}) : round_up(most, {1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10});
  const double step = chart_width / static_cast<double>(updates.size());
  const double width = std::max(1.0, std::min(48.0, step * 0.72));
  std::string out = fmt::format("<svg viewBox=\"0 0 1060 {}\" role=\"img\">\n", chart_height + 34);
  for (const double part : {0.0, 0.5, 1.0}) {
    const double y = 10 + chart_height * (1 - part);
    out += fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"var(--line)\"/>"
                       "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
                       chart_left, chart_left + chart_width, y, chart_left - 8, y + 4, escaped(shown(top * part)));
  }
  const std::size_t label_every = std::max<std::size_t>(1, updates.size() / 16);
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const double value = figure(*updates[i]);
    const double height = chart_height * value / top;
    const double middle = chart_left + step * (static_cast<double>(i) + 0.5);
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"1.5\" "
                       "fill=\"var(--bar)\"><title>version {}: {}</title></rect>\n",
                       middle - width / 2, 10 + chart_height - height, width, std::max(height, value > 0 ? 0.8 : 0.0),
                       updates[i]->version, escaped(shown(value)));
    if (i % label_every == 0)
      out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", middle, chart_height + 28,
                         updates[i]->version);
  }
  return out + "</svg>\n";
}

std::string steps(const Run& run) {
  return "<section><h2>Bytes on the wire</h2><p class=\"sub\">All workers, by version; seeds left out.</p>\n" +
         bars(
           run, true, [](const Update& u) { return static_cast<double>(u.wire_bytes); },
           [](double value) { return bytes(value); }) +
         "<h2>Density</h2><p class=\"sub\">Changed elements, of all.</p>\n" +
         bars(
           run, false, [](const Update& u) { return 100 * density(u); },
           [](double value) { return replay::three_digits(value) + " %"; }) +
         "</section>\n";
}

/// Medians over the updates but seeds; seconds.
struct TimeRow {
  std::string name, color;
  double seconds = 0;
  double limit = 0; ///< its part of the limit; 0: none, it could be hidden behind the others
};

/// The whole, each phase, and the pause.
std::vector<TimeRow> time_rows(const Run& run) {
  const auto limit = [&](auto part) {
    return median(of_deltas(run, [&](const Update& u) {
      const auto found = limit_of(run, u);
      return found ? part(*found) : 0;
    }));
  };
  std::vector<TimeRow> rows{{"publish to commit", "var(--bar2)",
                             median(of_deltas(run, [](const Update& u) { return u.committed_s; })),
                             limit([](const Limit& each) { return each.all(); })}};
  for (std::size_t p = 0; p < phases.size(); ++p) {
    TimeRow& row = rows.emplace_back(TimeRow{std::string(phases[p]), fmt::format("var(--{})", phases[p]),
                                             median(of_deltas(run, [&](const Update& u) { return u.phase_s[p]; }))});
    if (phases[p] == "diff")
      row.limit = limit([](const Limit& each) { return each.diff; });
    if (phases[p] == "send")
      row.limit = limit([](const Limit& each) { return each.send; });
    if (phases[p] == "commit")
      row.limit = limit([](const Limit& each) { return each.commit; });
  }
  rows.push_back({"pause", "var(--bad)", median(of_deltas(run, [](const Update& u) { return u.pause_s; }))});
  return rows;
}

/// What the limit is made of, how many times that updates took, and which phases were longest past their parts of it.
std::string against_the_limit(const Run& run, const std::vector<TimeRow>& rows) {
  if (!run.machine)
    return "<p class=\"sub\">No limit to hold this against: the report lacks <code>machine</code>, the speed of memory "
           "where the run was (reports of older versions do).</p>\n";
  const TimeRow& whole = rows.front();
  std::vector<TimeRow> longest;
  for (const TimeRow& row : rows)
    if (row.name != whole.name && row.name != "pause" && row.seconds > row.limit)
      longest.push_back(row);
  std::sort(longest.begin(), longest.end(),
            [](const TimeRow& a, const TimeRow& b) { return a.seconds - a.limit > b.seconds - b.limit; });
  std::string rest;
  for (const TimeRow& row : longest)
    rest += fmt::format("{}{} {}", rest.empty() ? "" : ", ", row.name, duration(row.seconds - row.limit));
  const double times = median(of_deltas(run, [&](const Update& u) {
    const auto limit = limit_of(run, u);
    return limit && limit->all() > 0 ? u.committed_s / limit->all() : 0;
  }));
  return fmt::format(
    "<p class=\"sub\">The limit (the dark line), {}, is what memory alone would take: parameters and snapshot compared "
    "once at {}/s, and changed values, on one side and the other, and what was sent moved once at {}/s. The replay "
    "measured both before it began, with {} over arrays of {}; changes count as if they lay side by side. An update "
    "took {} times its limit (median). Longest past their own parts of it, one beside the other: {}.</p>\n",
    duration(whole.limit), bytes(run.machine->compare_bytes_per_s), bytes(run.machine->copy_bytes_per_s),
    run.machine->cores == 1 ? "one core" : fmt::format("all {} cores", run.machine->cores),
    bytes(static_cast<double>(run.machine->array_bytes)), replay::three_digits(times), rest.empty() ? "none" : rest);
}

/// Spans of phases overlap: each is a bar of its own against the time to commit.
std::string where_time_went(const Run& run) {
  const std::vector<TimeRow> rows = time_rows(run);
  const double whole = rows.front().seconds;
  if (whole <= 0)
    return "";
  std::string out =
    "<section><h2>Where time went against the limit</h2><p class=\"sub\">Span of each phase over all processes, median "
    "of the updates but seeds. Phases overlap: their sum may pass the time to commit.</p>\n"
    "<svg viewBox=\"0 0 1060 236\" role=\"img\">\n";
  double most = 0;
  for (const TimeRow& row : rows)
    most = std::max({most, row.seconds, row.limit});
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const double y = 6 + 28.0 * static_cast<double>(r);
    const double width = 700 * rows[r].seconds / most, limit = 700 * rows[r].limit / most;
    out += fmt::format("<text class=\"name\" x=\"118\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>"
                       "<rect x=\"128\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"18\" rx=\"2\" fill=\"{}\"/>"
                       "<text x=\"{:.1f}\" y=\"{:.1f}\">{} ({:.0f} %){}</text>\n",
                       y + 14, rows[r].name, y, width, rows[r].color, 136 + std::max(width, limit), y + 14,
                       duration(rows[r].seconds), 100 * rows[r].seconds / whole,
                       rows[r].limit > 0 ? ", limit " + duration(rows[r].limit) : "");
    if (rows[r].limit > 0)
      out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"2.5\" height=\"22\" fill=\"var(--ink)\"/>\n",
                         127 + limit, y - 2);
  }
  return out + "</svg>\n" + against_the_limit(run, rows) + "</section>\n";
}

/// A row a worker, a cell an update: how many versions it was behind.
std::string lag(const Run& run) {
  std::set<std::uint64_t> workers;
  for (const Update& update : run.updates)
    for (const Worker& worker : update.workers)
      workers.insert(worker.index);
  if (workers.empty() || run.updates.empty())
    return "";
  const double step = chart_width / static_cast<double>(run.updates.size());
  std::uint64_t most = 0;
  std::string cells;
  double y = 6;
  for (const std::uint64_t index : workers) {
    cells +=
      fmt::format("<text class=\"name\" x=\"62\" y=\"{:.1f}\" text-anchor=\"end\">worker {}</text>\n", y + 13, index);
    for (std::size_t u = 0; u < run.updates.size(); ++u)
      for (const Worker& worker : run.updates[u].workers) {
        if (worker.index != index)
          continue;
        const std::uint64_t behind =
          run.updates[u].version > worker.version ? run.updates[u].version - worker.version : 0;
        most = std::max(most, behind);
        const char* color = behind == 0 && worker.digest_ok ? "var(--ok)" : behind <= 1 ? "var(--send)" : "var(--bad)";
        cells += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"18\" fill=\"{}\">"
                             "<title>version {}: holds {}, {}{}</title></rect>\n",
                             chart_left + step * static_cast<double>(u), y, std::max(0.6, step - 1), color,
                             run.updates[u].version, worker.version, escaped(worker.state),
                             worker.digest_ok ? "" : ", digest not confirmed");
      }
    y += 22;
  }
  return fmt::format(
    "<section><h2>Workers</h2><p class=\"sub\">A cell an update: {}</p>\n"
    "<svg viewBox=\"0 0 1060 {:.0f}\" role=\"img\">\n{}</svg></section>\n",
    most == 0 ? "no worker was ever behind." : fmt::format("the most that one was behind is {}.", most), y + 4, cells);
}

std::string table(const Run& run) {
  std::string out =
    "<section><details><summary>All updates</summary><table><tr><th>version</th><th>kind</th><th>density</th>"
    "<th>on the wire</th><th>gathered</th><th>captured</th><th>committed</th><th>x limit</th><th>pause</th>";
  for (const std::string_view phase : phases)
    out += fmt::format("<th>{}</th>", phase);
  out += "</tr>\n";
  for (const Update& u : run.updates) {
    out += fmt::format(
      "<tr><td>{}</td><td>{}</td><td>{:.2f} %</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
      u.version, escaped(u.kind), 100 * density(u), bytes(static_cast<double>(u.wire_bytes)),
      bytes(static_cast<double>(u.gather_bytes)), duration(u.captured_s), duration(u.committed_s),
      times_the_limit(run, u), duration(u.pause_s));
    for (const double seconds : u.phase_s)
      out += "<td>" + duration(seconds) + "</td>";
    out += "</tr>\n";
  }
  return out + "</table></details></section>\n";
}

/// Which phase a span belongs to, for its color.
std::string_view phase_of(const std::string& name) {
  static const std::map<std::string, std::string_view, std::less<>> known{{"diff and encode", "diff"},
                                                                          {"diff", "diff"},
                                                                          {"encode", "diff"},
                                                                          {"encode catch-up", "diff"},
                                                                          {"gather", "gather"},
                                                                          {"send share", "gather"},
                                                                          {"assemble", "assemble"},
                                                                          {"seal", "assemble"},
                                                                          {"frame", "send"},
                                                                          {"stage", "stage"},
                                                                          {"flush on the wire", "send"},
                                                                          {"verify", "stage"},
                                                                          {"commit", "commit"},
                                                                          {"blocked", "blocked"}};
  const auto found = known.find(name);
  return found == known.end() ? "other" : found->second;
}

/// Begin and end of the version's work.
struct Window {
  std::int64_t version = 0, begin = std::numeric_limits<std::int64_t>::max(), end = 0;
};

/// From the first comparison to the last commit of each version.
std::vector<Window> windows_of(const std::vector<Span>& spans) {
  std::map<std::int64_t, Window> windows;
  for (const Span& span : spans) {
    const std::string_view phase = phase_of(span.name);
    if (span.version < 1 || (phase != "diff" && phase != "commit" && phase != "send"))
      continue;
    Window& window = windows[span.version];
    window.version = span.version;
    window.begin = std::min(window.begin, span.begin_ns);
    window.end = std::max(window.end, span.end_ns);
  }
  std::vector<Window> out;
  for (const auto& [version, window] : windows)
    out.push_back(window);
  return out;
}

bool lane_before(const std::string& a, const std::string& b) {
  const auto key = [](const std::string& lane) { // ranks, then workers; in a rank, in the order of the flow
    static const std::vector<std::string> order{"supervisor", "snapshotter", "differ", "gather",
                                                "flush",      "sender",      "applier"};
    const std::size_t colon = lane.find(": ");
    const std::string actor = colon == std::string::npos ? lane : lane.substr(colon + 2);
    std::size_t place = 0;
    while (place < order.size() && !actor.starts_with(order[place]))
      ++place;
    return std::tuple(lane.starts_with("worker"), lane.substr(0, colon), place, actor);
  };
  return key(a) < key(b);
}

/// Time under way, not work.
bool is_around(const std::string& name) {
  return name == "flush on the wire" || name == "gather" || name == "send share";
}

std::string gantt(const Window& window, const std::vector<Span>& spans) {
  std::map<std::string, std::vector<const Span*>, decltype(&lane_before)> lanes(&lane_before);
  for (const Span& span : spans)
    if (span.end_ns >= window.begin && span.begin_ns <= window.end && phase_of(span.name) != "other")
      lanes[span.lane].push_back(&span);
  constexpr double left = 190, width = 850, row = 20;
  const double length = static_cast<double>(std::max<std::int64_t>(1, window.end - window.begin));
  const auto x_of = [&](std::int64_t ns) {
    return left + width * std::clamp(static_cast<double>(ns - window.begin) / length, 0.0, 1.0);
  };
  const double height = row * static_cast<double>(lanes.size()) + 26;
  std::string out = fmt::format("<svg viewBox=\"0 0 1060 {:.0f}\" role=\"img\">\n", height);
  const double tick = round_up(length / 8, {1, 2, 5, 10});
  for (double at = 0; at <= length; at += tick) {
    const double x = left + width * at / length;
    out += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"0\" y2=\"{1:.1f}\" stroke=\"var(--line)\"/>"
                       "<text x=\"{0:.1f}\" y=\"{2:.1f}\" text-anchor=\"middle\">{3}</text>\n",
                       x, height - 20, height - 5, duration(at * 1e-9));
  }
  double y = 2;
  for (const auto& [lane, list] : lanes) {
    out += fmt::format("<text class=\"name\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left - 8, y + 12,
                       escaped(lane));
    // What lies behind first: blocked, then time under way, then work.
    std::vector<const Span*> layered = list;
    std::stable_sort(layered.begin(), layered.end(), [](const Span* a, const Span* b) {
      const auto layer = [](const Span* span) { return span->name == "blocked" ? 0 : is_around(span->name) ? 1 : 2; };
      return layer(a) < layer(b);
    });
    for (const Span* span : layered) {
      const double begin = x_of(span->begin_ns), end = x_of(span->end_ns);
      const bool around = is_around(span->name);
      out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"var(--{})\"{}>"
                         "<title>{}: {}</title></rect>\n",
                         begin, around ? y + 3 : y + 1, std::max(0.8, end - begin), around ? 10 : 14,
                         phase_of(span->name), around ? " fill-opacity=\"0.45\"" : "", escaped(span->name),
                         duration(static_cast<double>(span->end_ns - span->begin_ns) * 1e-9));
    }
    y += row;
  }
  return out + "</svg>\n";
}

using Interval = std::pair<std::int64_t, std::int64_t>;

/// Sorted and disjoint.
std::vector<Interval> united(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  std::vector<Interval> out;
  for (const Interval& each : intervals)
    if (!out.empty() && each.first <= out.back().second)
      out.back().second = std::max(out.back().second, each.second);
    else
      out.push_back(each);
  return out;
}

double length_of(const std::vector<Interval>& intervals) {
  double length = 0;
  for (const auto& [begin, end] : intervals)
    length += static_cast<double>(end - begin);
  return length;
}

/// What each actor did while versions were under way, by its spans; seeds left out where there are others.
std::string where_actors_time_went(const Run& run, const std::vector<Span>& spans) {
  std::vector<Window> windows = windows_of(spans);
  std::set<std::int64_t> seeds;
  for (const Update& update : run.updates)
    if (update.kind == "seed")
      seeds.insert(static_cast<std::int64_t>(update.version));
  if (std::any_of(windows.begin(), windows.end(), [&](const Window& each) { return !seeds.contains(each.version); }))
    std::erase_if(windows, [&](const Window& each) { return seeds.contains(each.version); });
  std::vector<Interval> whole;
  for (const Window& window : windows)
    whole.emplace_back(window.begin, window.end);
  whole = united(std::move(whole));
  if (length_of(whole) <= 0)
    return "";
  struct Lane {
    std::vector<Interval> busy, busy_or_blocked;
  };
  std::map<std::string, Lane, decltype(&lane_before)> lanes(&lane_before);
  for (const Span& span : spans) {
    if (is_around(span.name))
      continue;
    Lane& lane = lanes[span.lane];
    for (const auto& [begin, end] : whole) {
      const Interval within{std::max(begin, span.begin_ns), std::min(end, span.end_ns)};
      if (within.first >= within.second)
        continue;
      lane.busy_or_blocked.push_back(within);
      if (span.name != "blocked")
        lane.busy.push_back(within);
    }
  }
  constexpr double left = 190, width = 640, row = 20;
  std::string out = fmt::format("<section><h2>Where each actor's time went</h2><p class=\"sub\">While {} under way, "
                                "from the traces. Blocked: it had work that waited for byte credit; what is neither is "
                                "waiting for work.</p>\n<div class=\"key\"><span><i style=\"background:var(--bar)\">"
                                "</i>busy</span><span><i style=\"background:var(--blocked)\"></i>blocked</span></div>\n"
                                "<svg viewBox=\"0 0 1060 {:.0f}\" role=\"img\">\n",
                                windows.size() == 1 ? "one update was" : fmt::format("{} updates were", windows.size()),
                                row * static_cast<double>(lanes.size()) + 4);
  double y = 2;
  for (const auto& [name, lane] : lanes) {
    const double busy = length_of(united(lane.busy)) / length_of(whole);
    const double blocked = length_of(united(lane.busy_or_blocked)) / length_of(whole) - busy;
    out +=
      fmt::format("<text class=\"name\" x=\"{0}\" y=\"{1:.1f}\" text-anchor=\"end\">{2}</text>"
                  "<rect x=\"{3}\" y=\"{4:.1f}\" width=\"{5}\" height=\"14\" fill=\"none\" stroke=\"var(--line)\"/>"
                  "<rect x=\"{3}\" y=\"{4:.1f}\" width=\"{6:.1f}\" height=\"14\" fill=\"var(--bar)\"/>"
                  "<rect x=\"{7:.1f}\" y=\"{4:.1f}\" width=\"{8:.1f}\" height=\"14\" fill=\"var(--blocked)\"/>"
                  "<text x=\"{9}\" y=\"{1:.1f}\">{10}</text>\n",
                  left - 8, y + 12, escaped(name), left, y + 1, width, width * busy, left + width * busy,
                  width * blocked, left + width + 10,
                  blocked < 0.0005 ? fmt::format("{:.1f} % busy", 100 * busy)
                                   : fmt::format("{:.1f} % busy, {:.1f} % blocked", 100 * busy, 100 * blocked));
    y += row;
  }
  return out + "</svg></section>\n";
}

std::string pipeline(const std::vector<Span>& spans) {
  const std::vector<Window> windows = windows_of(spans);
  if (windows.empty())
    return "";
  std::string out =
    "<section><h2>The pipeline</h2><p class=\"sub\">What each actor did, from the first comparison of a "
    "version to its last commit. Faint bars are time under way: a share being gathered, a flush on the "
    "wire; where several are at the same time, they lie over each other and look darker.</p>\n<div class=\"key\">";
  for (const std::string_view phase : phases)
    out += fmt::format("<span><i style=\"background:var(--{0})\"></i>{0}</span>", phase);
  out += "<span><i style=\"background:var(--blocked)\"></i>blocked: work at hand, no byte credit</span></div>\n";
  constexpr std::size_t most = 12; // the latest
  for (std::size_t i = windows.size() - std::min(most, windows.size()); i < windows.size(); ++i)
    out +=
      fmt::format("<details{}><summary>version {} ({})</summary>\n{}</details>\n",
                  i + 1 == windows.size() ? " open" : "", windows[i].version,
                  duration(static_cast<double>(windows[i].end - windows[i].begin) * 1e-9), gantt(windows[i], spans));
  return out + "</section>\n";
}

} // namespace

std::string page(const std::string& title, const Run& run, const std::vector<Span>& spans,
                 const std::vector<std::string>& notes) {
  return fmt::format(
           "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
           "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{0} - deltawire"
           "</title>\n<style>{1}</style></head>\n<body><main>\n<h1>deltawire run</h1><p class=\"sub\">{0}</p>\n",
           escaped(title), style) +
         tiles(run) + warnings(run, notes) + (run.updates.empty() ? "" : steps(run)) + where_time_went(run) + lag(run) +
         where_actors_time_went(run, spans) + pipeline(spans) + (run.updates.empty() ? "" : table(run)) +
         "</main></body></html>\n";
}

} // namespace deltawire::report
