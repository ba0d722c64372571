#!/usr/bin/env python3
"""Proves from trace files that the stages of the pipeline overlap: while flush n of an update is on the wire, flush n+1
is assembled, and another rank's share of a round is gathered.

    deltawire replay TOPOLOGY --set telemetry.trace=trace.json [--processes] --checkpoints ...
    overlap.py trace.json trace-rank1.json ... trace-worker0.json ...

The root's file alone is enough. With the files of other processes, which are brought onto the root's clock first, a
gather counts from when the rank starts to send its share, not from when the root asks for it. Seeds do not count
unless --seeds is given.

Exit status: 0 when in at least --least flights of a flush the next one was assembled and another rank's share was on
its way (--instant: all three at one instant); 1 when in fewer; 2 when the files do not tell.
"""

import argparse
import json
import re
import sys
from bisect import bisect_right
from collections import defaultdict
from decimal import Decimal


class Unusable(Exception):
    """The files do not hold what is needed."""


class Span:
    """A span on one process's clock, in nanoseconds."""

    def __init__(self, event):
        # Whole microseconds; other writers have fractions, which do not fit a double: they were read as decimals.
        self.begin = int(event["ts"] * 1000)
        self.end = self.begin + int(event["dur"] * 1000)
        self.name = event["name"]
        self.arguments = event["args"]

    def __getitem__(self, key):
        if key not in self.arguments:
            raise Unusable(f"a span '{self.name}' has no argument '{key}'")
        return self.arguments[key]


class Trace:
    """The spans of one rank or worker."""

    def __init__(self, path):
        self.path = path
        try:
            with open(path, encoding="utf-8") as file:
                document = json.load(file, parse_float=Decimal)
            events = document["traceEvents"]
            dropped = document["otherData"]["dropped_spans"]
            named = {event["tid"]: event["args"] for event in events if event["name"] == "thread_name"}
            lanes = {tid: names.get("lane", names["name"]) for tid, names in named.items()}
            self.spans = defaultdict(list)  # by what the lane is of, and name; each by begin
            for event in events:
                if event["ph"] == "X":
                    actor = lanes[event["tid"]].split(": ", 1)[1]
                    self.spans[actor, event["name"]].append(Span(event))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise Unusable(f"{path}: {type(error).__name__}: {error}") from error
        if dropped:
            raise Unusable(f"{path}: {dropped} spans were dropped: trace a shorter run")
        for spans in self.spans.values():
            spans.sort(key=lambda span: span.begin)
        self.rank = self.only("rank", lanes.values())
        self.worker = self.only("worker", lanes.values())

    @staticmethod
    def only(role, lanes):
        numbers = {int(found[1]) for lane in lanes if (found := re.match(role + r" (\d+): ", lane))}
        return numbers.pop() if len(numbers) == 1 else None

    def all(self, actor, name):
        return self.spans.get((actor, name), [])

    def shift(self, offset):
        for spans in self.spans.values():
            for span in spans:
                span.begin += offset
                span.end += offset


def by_number(spans, argument):
    """Spans by a number and how often it came before: numbers begin at 0 in every update."""
    seen, out = defaultdict(int), {}
    for span in spans:
        out[span[argument], seen[span[argument]]] = span
        seen[span[argument]] += 1
    return out


def flights_of_frames(root, worker, flights):
    """The flight of each frame that a worker got, by the frame's sequence and how often that came before."""
    frames = [frame for frame in root.all("sender", "frame") if frame["worker"] == worker]
    begins = [flight.begin for flight in flights]  # one flush is on the wire at a time
    return {key: flights[bisect_right(begins, frame.begin) - 1] for key, frame in by_number(frames, "sequence").items()}


def align(trace, gathers, root, flights):
    """Brings a trace onto the root's clock and says how. A cause comes before its effect: a share is sent after it was
    asked for and before it has arrived; a worker stages a frame while the root waits for that."""
    least, most = [], []  # bounds of what must be added to this trace's times
    for share in trace.all("gather queue", "send share"):
        gather = gathers.get((trace.rank, share["round"]))
        if gather is None:
            raise Unusable(f"{trace.path}: round {share['round']} is not in the root's trace: files of different runs?")
        least.append(gather.begin - share.begin)
        most.append(gather.end - share.begin)
    flight_of = flights_of_frames(root, trace.worker, flights)
    for key, staged in by_number(trace.all("applier", "stage"), "sequence").items():
        if key not in flight_of:
            raise Unusable(f"{trace.path}: frame {key[0]} is not in the root's trace: files of different runs?")
        least.append(flight_of[key].begin - staged.begin)
        most.append(flight_of[key].end - staged.end)
    if not least:
        return f"{trace.path}: nothing that ties it to the root's clock"
    low, high = max(least), min(most)
    if low > high:
        raise Unusable(f"{trace.path}: no shift of its clock puts every effect after its cause")
    offset = 0 if low <= 0 <= high else (low + high) // 2
    trace.shift(offset)
    return f"{trace.path}: moved by {offset / 1000:.1f} us; {low / 1000:.1f} to {high / 1000:.1f} are possible"


def common(*spans):
    """The time that intervals have in common, (begin, end), or None."""
    begin, end = max(begin for begin, _ in spans), min(end for _, end in spans)
    return (begin, end) if begin < end else None


def interval(span):
    return span.begin, span.end


def longest(overlaps):
    return max((o for o in overlaps if o), key=lambda o: o[0][1] - o[0][0], default=None)


def examine(root, others, seeds):
    """For each flush that was on the wire: the longest overlap with assembly of the next, with a gather, with both at
    one instant; a pair of the time and what overlaps, or None."""
    flights = root.all("sender", "flush on the wire")
    assemblies = defaultdict(list)
    for span in root.all("flush bucket", "assemble"):
        assemblies[span["flush"]].append(span)
    gathers = {(span["from rank"], span["round"]): span for span in root.all("gather queue", "gather")}
    if not flights:
        raise Unusable(f"{root.path}: no flush was on the wire")
    notes = [align(trace, gathers, root, flights) for trace in others]
    sent = {
        (trace.rank, share["round"]): share.begin for trace in others for share in trace.all("gather queue", "send share")
    }
    arriving = []  # ((begin, end), rank, round): shares of other ranks
    for (rank, round_), span in gathers.items():
        if rank != 0:
            arriving.append(((sent.get((rank, round_), span.begin), span.end), rank, round_))

    flushes = []
    for flight in flights:
        if flight["seed"] and not seeds:
            continue
        wire = interval(flight)
        # What is assembled during a flight belongs to the same update: the next one begins when all flights are over.
        nexts = [interval(a) for a in assemblies[flight["flush"] + 1] if common(wire, interval(a))]
        near = [gather for gather in arriving if common(wire, gather[0])]
        flushes.append(
            {
                "flight": flight,
                "assembly": longest([(common(wire, a), a) for a in nexts]),
                "gather": longest([(common(wire, g[0]), g) for g in near]),
                "instant": longest([(c, (a, g)) for a in nexts for g in near if (c := common(wire, a, g[0]))]),
            }
        )
    return flushes, notes


def describe(flush):
    """One flight, in microseconds since the flush left."""
    flight = flush["flight"]
    zero = flight.begin
    if flush["instant"]:
        overlap, (assembly, (gather, rank, round_)) = flush["instant"]
    else:
        overlap, assembly, (gather, rank, round_) = None, flush["assembly"][1], flush["gather"][1]
    rows = [
        (f"flush {flight['flush']} on the wire", interval(flight)),
        (f"flush {flight['flush'] + 1} assembled", assembly),
        (f"rank {rank}'s share of round {round_} on its way", gather),
    ]
    if overlap:
        rows.append(("all three at once", overlap))
    lines = [f"for example, version {flight['version']}, microseconds:"]
    for what, (begin, end) in rows:
        lines.append(f"  {what:40} {(begin - zero) / 1000:10.1f} .. {(end - zero) / 1000:10.1f}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--least", type=int, default=1, help="flights that must show it (1)")
    parser.add_argument("--instant", action="store_true", help="count only flights that show it at one instant")
    parser.add_argument("--seeds", action="store_true", help="count flushes of seeds too")
    arguments = parser.parse_args()
    try:
        traces = [Trace(path) for path in arguments.traces]
        roots = [trace for trace in traces if trace.all("sender", "flush on the wire")]
        if len(roots) != 1:
            raise Unusable(f"{len(roots)} of the files are a root's, with flushes on the wire: there must be one")
        flushes, notes = examine(roots[0], [trace for trace in traces if trace is not roots[0]], arguments.seeds)
    except Unusable as error:
        print(f"overlap.py: {error}", file=sys.stderr)
        return 2
    assembled = [flush for flush in flushes if flush["assembly"]]
    gathered = [flush for flush in flushes if flush["gather"]]
    both = [flush for flush in assembled if flush["gather"]]
    instant = [flush for flush in flushes if flush["instant"]]
    for note in notes:
        print(note)
    print(f"{len(flushes)} flushes were on the wire; meanwhile")
    print(f"  the next one was being assembled     {len(assembled):5} times")
    print(f"  another rank's share was on its way  {len(gathered):5} times")
    print(f"  both                                 {len(both):5} times")
    print(f"  both at one instant                  {len(instant):5} times")
    if instant:
        print(describe(max(instant, key=lambda flush: flush["instant"][0][1] - flush["instant"][0][0])))
    elif both:
        print(describe(both[0]))
    found = len(instant if arguments.instant else both)
    if found < arguments.least:
        print(f"overlap.py: {found} flights of at least {arguments.least}: the stages do not overlap", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
