#!/usr/bin/env python3
"""Reads trace files as Perfetto's trace processor does, and fails where that would drop, cut or misplace anything.

    trace_check.py TRACE ...           check files of one run: alone, and merged
    trace_check.py DELTAWIRE SOURCE    run replays in threads and in processes, and check what they write

What is checked, by the published "Trace Event Format" and by what the importer of Perfetto (v46 to v59) does with it:
valid JSON, with every event's required fields, as numbers where they are numbers; a name for every process and thread;
spans of a thread in order, each within or after the others (an overlapping one is dropped there), where times are 64-bit
integers if they are written as such, and doubles of microseconds times 1000 if not; the two ends of an arrow on spans, one start, one end, the end not before the start;
arrows of every kind, between actors and between processes. And that the spans, by this reading alone, show the pipeline
at work: while a flush is on the wire, the next one is assembled and a share of another rank is gathered.
"""

import glob
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict

PHASES = {"X", "M", "s", "f", "C"}
NUMBER = (int, float)
# Span at an arrow's start, span at its end, whether the two are processes of their own in a run by processes.
ARROWS = {
    ("differ", "gather queue: queue"): False,
    ("gather queue: send share", "gather queue: share"): True,
    ("gather queue: share", "flush bucket: round"): False,
    ("flush bucket: seal", "sender: flush on the wire"): False,
    ("sender: frame", "applier: stage"): True,
}


def nanoseconds(microseconds):
    """Whole numbers exactly, others as doubles."""
    return microseconds * 1000 if isinstance(microseconds, int) else int(microseconds * 1000.0)


class Slice:
    def __init__(self, event, place):
        self.name, self.pid, self.tid = event["name"], event["pid"], event["tid"]
        self.begin = nanoseconds(event["ts"])
        self.end = self.begin + nanoseconds(event["dur"])
        self.arguments = event.get("args", {})
        self.place = place
        self.lane = ""

    def kind(self):
        actor = self.lane.split(": ", 1)[-1]
        return "differ" if actor.startswith("differ ") else f"{actor}: {self.name}"

    def __str__(self):
        return f"{self.place}: {self.lane}: {self.name} [{self.begin}, {self.end})"


class Reader:
    """What a parser makes of the events of one or more files."""

    def __init__(self):
        self.errors = []
        self.processes, self.threads, self.lanes = {}, {}, {}
        self.slices, self.arrows, self.counters = [], [], Counter()
        self.events = []

    def wrong(self, text):
        self.errors.append(text)

    def load(self, path):
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
            return self.wrong(f"{path}: no object with an array traceEvents")
        for number, event in enumerate(document["traceEvents"]):
            place = f"{os.path.basename(path)}[{number}]"
            if self.well_formed(event, place):
                self.events.append((event, place))

    def well_formed(self, event, place):
        """Required fields by phase; what is a number is no string."""
        before = len(self.errors)
        phase = event.get("ph") if isinstance(event, dict) else None
        if phase not in PHASES:
            self.wrong(f"{place}: phase {phase!r}")
            return False

        def need(key, kinds):
            value = event.get(key)
            if not isinstance(value, kinds) or isinstance(value, bool):
                self.wrong(f"{place}: {phase}: {key} is {value!r}")

        need("name", str)
        need("pid", int)
        if phase != "M":
            need("ts", NUMBER)
        if phase in ("X", "s", "f"):
            need("tid", int)
        if phase == "X":
            need("dur", NUMBER)
            if isinstance(event.get("dur"), NUMBER) and event["dur"] < 0:
                self.wrong(f"{place}: dur is {event['dur']}")
        if phase in ("s", "f"):
            need("id", (str, int))
            need("cat", str)
        if phase == "f" and event.get("bp") != "e":
            self.wrong(f"{place}: an arrow's end that binds to the next span")
        if phase == "C":
            values = event.get("args")
            if not isinstance(values, dict) or not values or not all(isinstance(v, NUMBER) for v in values.values()):
                self.wrong(f"{place}: a counter of {values!r}")
        if phase == "M":
            name = (event.get("args") or {}).get("name")
            if event.get("name") in ("process_name", "thread_name") and (not isinstance(name, str) or not name):
                self.wrong(f"{place}: {event.get('name')} is {name!r}")
        for key in ("pid", "tid"):
            if isinstance(event.get(key), int) and not 0 <= event[key] < 2**32:
                self.wrong(f"{place}: {key} {event[key]} is no 32-bit number")
        return len(self.errors) == before

    def read(self):
        """In the order of time, the file's order where times are equal."""
        timed = []
        for event, place in self.events:
            if event["ph"] != "M":
                timed.append((nanoseconds(event["ts"]), event, place))
            elif event["name"] == "process_name":
                if self.processes.setdefault(event["pid"], event["args"]["name"]) != event["args"]["name"]:
                    self.wrong(f"{place}: process {event['pid']} has two names")
            elif event["name"] == "thread_name":
                thread, name = (event["pid"], event["tid"]), event["args"]["name"]
                if (event["pid"], name) in ((pid, named) for (pid, _), named in self.threads.items()):
                    self.wrong(f"{place}: two threads of process {event['pid']} are named {name!r}")
                self.threads[thread] = name
                self.lanes[thread] = event["args"].get("lane", name)
        timed.sort(key=lambda each: each[0])
        open_slices, starts, last = defaultdict(list), {}, {}
        for ns, event, place in timed:
            if event["pid"] not in self.processes:
                self.wrong(f"{place}: process {event['pid']} has no name")
            if event["ph"] == "C":
                self.counters[event["pid"], event["name"]] += 1
                continue
            thread = event["pid"], event["tid"]
            if thread not in self.threads:
                self.wrong(f"{place}: thread {thread} has no name")
            stack = open_slices[thread]
            if event["ph"] == "X":
                self.begin(stack, Slice(event, place))
                last[thread] = self.slices[-1]
                continue
            if not stack:
                self.wrong(f"{place}: an arrow on thread {thread} and no span")
                continue
            on, key = stack[-1], (event["id"], event["cat"], event["name"])
            if not on.begin <= ns <= on.end:
                self.wrong(f"{place}: an arrow at {ns}, its span is {on}")
            if event["ph"] == "s":
                if key in starts:
                    self.wrong(f"{place}: the arrow {key} starts twice, first on {starts[key]}")
                starts[key] = on
            elif key not in starts:
                self.wrong(f"{place}: the arrow {key} ends and has not started: {on}")
            else:
                self.arrows.append((starts.pop(key), on))
        for on in starts.values():
            self.wrong(f"the arrow from {on} ends nowhere")

    def begin(self, stack, new):
        new.lane = self.lanes.get((new.pid, new.tid), "?")
        while stack and (stack[-1].end < new.begin or (stack[-1].end == new.begin and stack[-1].end > stack[-1].begin)
                         or (stack[-1].end == new.begin and new.end > new.begin)):
            stack.pop()
        for other in stack:
            if new.begin < other.end < new.end:
                self.wrong(f"{new} overlaps {other}: dropped")
        stack.append(new)
        self.slices.append(new)

    def check_arrows(self, several):
        """`several`: the run was by processes. Every kind is there, some of it across ranks or processes."""
        kinds, across = Counter(), Counter()
        for start, end in self.arrows:
            kind = start.kind(), end.kind()
            kinds[kind] += 1
            across[kind] += start.pid != end.pid
            if kind not in ARROWS:
                self.wrong(f"an arrow from {start} to {end}")
        for kind, parts in ARROWS.items():
            if kinds[kind] == 0:
                self.wrong(f"no arrow {kind}")
            elif parts and several and across[kind] != kinds[kind]:
                self.wrong(f"{kinds[kind] - across[kind]} of {kinds[kind]} arrows {kind} stay in one process")
        return kinds

    def overlaps(self):
        """Flights of a flush during which the next one was assembled and another rank's share was gathered."""
        flights = [s for s in self.slices if s.kind() == "sender: flush on the wire"]
        nexts, gathers = defaultdict(list), []
        for each in self.slices:
            if each.kind() == "flush bucket: assemble":
                nexts[each.arguments["flush"]].append(each)
            if each.kind() == "gather queue: gather" and each.arguments["from rank"] != 0:
                gathers.append(each)

        def during(flight, others):
            return any(max(flight.begin, o.begin) < min(flight.end, o.end) for o in others)

        return len(flights), sum(during(f, nexts[f.arguments["flush"] + 1]) and during(f, gathers) for f in flights)


def check(paths, several, overlap, out):
    """Each file alone, then all of them as one."""
    errors = []
    for path in paths:  # alone, arrows may end in other files
        alone = Reader()
        alone.load(path)
        alone.read()
        errors += [e for e in alone.errors if "ends nowhere" not in e and "has not started" not in e]
    merged = Reader()
    for path in paths:
        merged.load(path)
    merged.read()
    kinds = merged.check_arrows(several)
    flights, overlapping = merged.overlaps()
    if overlap and overlapping == 0:
        merged.wrong(f"of {flights} flushes on the wire none had the next one assembled and a share gathered meanwhile")
    print(f"{out}: {len(paths)} files, {len(merged.slices)} spans on {len(merged.threads)} threads of "
          f"{len(merged.processes)} processes, {sum(merged.counters.values())} counter values, "
          f"{len(merged.arrows)} arrows; {overlapping} of {flights} flights overlap with assembly and gather")
    for (start, end), count in sorted(kinds.items()):
        print(f"  {count:6} arrows  {start} -> {end}")
    errors += merged.errors
    for error in errors[:20]:
        print(f"  {error}", file=sys.stderr)
    return not errors


def replay(command, source, folder, more):
    steps = [os.path.join(source, f"tests/data/trace/trainer/step-0{step}.safetensors") for step in (0, 3) * 4]
    trace = os.path.join(folder, "trace.json")
    subprocess.run([command, "replay", os.path.join(source, "tools/topologies/trace.toml"), "--quiet", "--set",
                    f"telemetry.trace={trace}", *more, "--checkpoints", *steps],
                   check=True, stdout=subprocess.DEVNULL)
    return sorted(glob.glob(f"{folder}/trace*.json"))


def main():
    arguments = sys.argv[1:]
    if len(arguments) != 2 or arguments[0].endswith(".json"):
        return 0 if check(arguments, False, False, "given") else 1
    command, source = arguments
    small = ["--set", "actors.flush_bucket.cap=4KiB", "--set", "actors.gather_queue.max_round=2KiB",
             "--set", "actors.differ.inflight=4KiB"]
    right = True
    for name, more in (("threads", []), ("processes", ["--processes"])):
        for caps, overlap in (([], False), (small, True)):
            with tempfile.TemporaryDirectory() as folder:
                files = replay(command, source, folder, more + caps)
                right &= check(files, bool(more), overlap, f"{name}{', small caps' if caps else ''}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
