#!/usr/bin/env python3
"""Checks that imports run one way: tools -> include <- actors -> src -> kernels.

Reads paths of C++ files from standard input, one a line, relative to the top of the repository. Prints every include
that crosses a wall as "file:line: include: reason" and fails when there is one.
"""

import re
import sys

# Room -> rooms of this project that it may include, besides itself. The longest room that a path starts with counts.
ROOMS = {
    "kernels": set(),
    "include/deltawire": set(),
    "src/device": {"kernels"},
    "src/layout": {"kernels"},
    "src/delta": {"kernels", "src/device", "src/layout"},
    "src/transport": {"kernels"},  # never knows what it carries
    "src/wire": {"src/layout", "src/delta", "src/transport"},
    "src/checkpoint": {"src/layout"},
    "src/config": {"src/layout"},
    "src/telemetry": set(),
    "src/sync": {"kernels", "src/device", "src/layout", "src/delta", "src/wire", "src/transport"},
    "actors": {
        "kernels", "include/deltawire", "src/device", "src/layout", "src/delta", "src/transport", "src/wire",
        "src/checkpoint", "src/config", "src/telemetry", "src/sync",
    },
    "tools/replay/proof": {"src/checkpoint", "src/config"},  # an oracle of the product: no code of src/layout
    "tools/trainer": {"include/deltawire"},  # an embedding program: the facade is all it sees
    "tools/top": {"src/config", "tools"},  # over HTTP and text only
    "tools": {
        "kernels", "include/deltawire", "src/device", "src/layout", "src/delta", "src/transport", "src/wire",
        "src/checkpoint", "src/config", "src/telemetry", "src/sync",
    },
}

# Plain types that every room but kernels shares.
SHARED = {"deltawire/dtype.hpp", "deltawire/error.hpp", "result.hpp"}

# Library -> (how its headers start, rooms that may include them). A library that is not listed may be used anywhere
# but in `include` and `kernels`.
LIBRARIES = {
    "CAF": (("caf/",), {"actors"}),
    "Boost": (("boost/",), {"src/transport", "tools/top"}),
    "OpenSSL": (("openssl/",), {"src/transport"}),
    "cereal": (("cereal/",), {"src/wire"}),
    "toml++": (("toml++/",), {"src/config"}),
    "prometheus-cpp": (("prometheus/",), {"src/telemetry"}),
    "Highway": (("hwy/",), {"kernels"}),
    "libtorch": (("ATen/", "c10/", "torch/"), {"tools/trainer"}),
    "CUDA or NCCL": (("cuda", "nccl"), {"kernels", "src/transport"}),
}

STANDARD_HEADER = re.compile(r"[a-z_]+")
INCLUDE = re.compile(r'\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)')


def room_of(path):
    """The room that a file lies in, or None where no rule applies (tests)."""
    rooms = [room for room in ROOMS if path.startswith(room + "/")]
    return max(rooms, key=len, default=None)


def room_of_include(name):
    """The room that `#include "name"` reaches, or None where it stays in the file's own folder."""
    if name.startswith("deltawire/"):
        return "include/deltawire"
    top = name.split("/")[0]
    if top in ("kernels", "actors", "tools", "tests"):
        return top
    return f"src/{top}" if f"src/{top}" in ROOMS else None


def complaint(room, own, library):
    """Why `room` may not include a header of the project (own) or of a library; None where it may."""
    if own is not None:
        if own in SHARED:
            return f"{room} uses nothing of src or include" if room == "kernels" else None
        target = room_of_include(own)
        if target in (None, room) or target in ROOMS[room]:
            return None
        return f"{room} may not use {target}"
    for name, (starts, rooms) in LIBRARIES.items():
        if library.startswith(starts) and room not in rooms:
            return f"only {', '.join(sorted(rooms))} may use {name}"
    if room == "include/deltawire" and not STANDARD_HEADER.fullmatch(library):
        return "the facade uses the standard library only"
    return None


def main():
    complaints = 0
    for path in sys.stdin.read().splitlines():
        room = room_of(path)
        if room is None:
            continue
        with open(path, encoding="utf-8") as source:
            for number, line in enumerate(source, start=1):
                found = INCLUDE.match(line)
                reason = complaint(room, *found.groups()) if found else None
                if reason:
                    complaints += 1
                    print(f"{path}:{number}: {found.group(1) or found.group(2)}: {reason}")
    return complaints > 0


if __name__ == "__main__":
    sys.exit(main())
