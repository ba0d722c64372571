#!/usr/bin/env python3
"""Compares what `deltawire replay --dump-each DIR` wrote for tools/topologies/trace.toml with slices of the hf/ checkpoints
of the same steps, byte for byte. Shares nothing with the product: the two workers' shards are written out by hand here.

    compare_with_hf.py DUMP_DIR HF_DIR     exit status 0: every byte of every version of both workers is right
"""
import json
import re
import struct
import sys
from pathlib import Path

SIZES = {"BF16": 2, "F32": 4}


def read(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], data[8 + length + begin : 8 + length + end])
    return tensors


def rows(tensor, first, count):
    dtype, shape, data = tensor
    width = SIZES[dtype] * (shape[1] if len(shape) > 1 else 1)
    return data[first * width : (first + count) * width]


def columns(tensor, first, count):
    dtype, shape, data = tensor
    size = SIZES[dtype]
    return b"".join(data[(r * shape[1] + first) * size : (r * shape[1] + first + count) * size] for r in range(shape[0]))


def expected(name, hf, worker):
    """The bytes that worker 0 or 1 of the TP pair must hold under this name."""

    def half(tensor, cut, dim):
        piece = -(-tensor[1][dim] // 2)
        return cut(tensor, worker * piece, min(piece, tensor[1][dim] - worker * piece))

    layer = re.match(r"(model\.layers\.\d+\.)(.*)", name)
    rest = layer.group(2) if layer else name
    at = (lambda slot: hf[layer.group(1) + slot]) if layer else None
    if rest == "self_attn.qkv_proj.weight":
        return b"".join(half(at(f"self_attn.{x}_proj.weight"), rows, 0) for x in "qkv")
    if rest == "mlp.gate_up_proj.weight":
        return b"".join(half(at(f"mlp.{x}_proj.weight"), rows, 0) for x in ("gate", "up"))
    if rest == "mlp.experts.w13_weight":
        return b"".join(half(at(f"mlp.experts.{e}.{x}_proj.weight"), rows, 0) for e in range(8) for x in ("gate", "up"))
    if rest == "mlp.experts.w2_weight":
        return b"".join(half(at(f"mlp.experts.{e}.down_proj.weight"), columns, 1) for e in range(8))
    if rest in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
        return half(hf[name], columns, 1)
    if rest in ("model.embed_tokens.weight", "lm_head.weight"):
        return half(hf[name], rows, 0)
    return hf[name][2]


def main():
    dumps, checkpoints = Path(sys.argv[1]), sorted(Path(sys.argv[2]).glob("step-*.safetensors"))
    compared, tensors, router = 0, 0, 0
    for version, checkpoint in enumerate(checkpoints, 1):
        hf = read(checkpoint)
        for worker in (0, 1):
            held = read(dumps / f"v{version}" / f"worker-{worker}.safetensors")
            for name, (dtype, _, data) in held.items():
                if data != expected(name, hf, worker):
                    sys.exit(f"version {version}, worker {worker}, {name}: differs from {checkpoint}")
                router += dtype == "F32" and len(data) == 32 and name.endswith("e_score_correction_bias")
                compared += len(data)
                tensors += 1
    if not checkpoints or not tensors:
        sys.exit("nothing to compare")
    print(f"{len(checkpoints)} versions, {tensors} worker tensors, {compared} bytes equal; {router} fp32 router biases")


main()
