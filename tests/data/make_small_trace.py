#!/usr/bin/env python3
"""Cuts the small trace in tests/data/trace from a folder of full traces.

    tests/data/make_small_trace.py TRACES/rl-1e-6 [OUTPUT]

Keeps layers 0 (dense) and 2 (experts) and everything outside the layers, under their own names and in their order, of
trainer/step-00 .. step-03, and of hf/step-03. Bytes are copied, never interpreted. Needs nothing but Python.
"""

import json
import os
import re
import struct
import sys

KEPT_LAYERS = {0, 2}
FILES = [f"trainer/step-{step:02}.safetensors" for step in range(4)] + ["hf/step-03.safetensors"]


def is_kept(name):
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    return layer is None or int(layer.group(1)) in KEPT_LAYERS


def cut(source, target):
    with open(source, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
        data_start = 8 + header_bytes
        metadata = header.pop("__metadata__", {})
        entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        kept = {"__metadata__": metadata}
        data = bytearray()
        for name, entry in entries:
            if not is_kept(name):
                continue
            begin, end = entry["data_offsets"]
            file.seek(data_start + begin)
            kept[name] = {
                "dtype": entry["dtype"],
                "shape": entry["shape"],
                "data_offsets": [len(data), len(data) + end - begin],
            }
            data += file.read(end - begin)

    text = json.dumps(kept, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    print(f"{target}: {len(kept) - 1} tensors, {8 + len(text) + len(data)} bytes")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    here = os.path.dirname(os.path.abspath(__file__))
    output = sys.argv[2] if len(sys.argv) == 3 else os.path.join(here, "trace")
    for name in FILES:
        cut(os.path.join(sys.argv[1], name), os.path.join(output, name))


if __name__ == "__main__":
    main()
