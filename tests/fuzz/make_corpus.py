#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets, tests/fuzz/corpus/TARGET/NAME: one for each rule and each way to break it.

A seed whose name starts with "good" is accepted by its target, one that starts with "bad" is refused; the tests of
suite `fuzz` hold the targets to it. Everything is encoded here as src/wire/FORMAT.md and the format of safetensors
say it, by no code of the product. Files that are there and not named here (found by a fuzzer, kept by hand) stay.

    tests/fuzz/make_corpus.py
"""

import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"


def seed(target, name, content):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else bytes(content)
    assert len(data) < 4096, (target, name)
    (folder / name).write_bytes(data)


def good(target, name, content):
    seed(target, "good-" + name, content)


def bad(target, name, content):
    seed(target, "bad-" + name, content)


def u8(*values):
    return bytes(values)


def u16(*values):
    return struct.pack(f"<{len(values)}H", *values)


def u32(*values):
    return struct.pack(f"<{len(values)}I", *values)


def u64(*values):
    return struct.pack(f"<{len(values)}Q", *(value % 2**64 for value in values))


# Texts
# ----------------------------------------------------------------------------------------------------------------


def addresses():
    for name, text in {
        "ipv4": "127.0.0.1:29500", "name": "localhost:0", "ipv6": "[::1]:29500", "scope": "[fe80::1%eth0]:29500",
        "last-port": "host-1.example_2:65535", "zeros": "h:0000001",
    }.items():
        good("address", name, text)
    for name, text in {
        "empty": ":1", "no-port": "localhost", "empty-port": "localhost:", "port-past-end": "h:65536",
        "port-wraps": "h:4294967297", "port-sign": "h:-1", "port-text": "h:http", "bare-ipv6": "::1",
        "bare-ipv6-port": "::1:29500", "open-bracket": "[::1", "no-colon": "[::1]29500", "no-ipv6": "[host]:1",
        "empty-brackets": "[]:1", "host-character": "a/b:1", "host-zero": b"a\0b:1", "space": " h:1", "tail": "h:1 ",
        "not-utf8": b"\xff:1", "bracket-character": "[::1 ]:1",
    }.items():
        bad("address", name, text)


def units():
    for name, text in {
        "bytes": "7B", "binary": "64MiB", "decimal": "100KB", "fraction": "1.5GiB", "space": "1 TiB", "zero": "0B",
        "last": "9223372036854775807B", "seconds": "20s", "fraction-seconds": "1.5s", "ns": "1ns", "year": "8760h",
        "minutes": "10min", "decimals": "0.000001GB",
    }.items():
        good("units", name, text)
    for name, text in {
        "empty": "", "no-unit": "64", "no-number": "MiB", "unknown": "64MB2", "sign": "-1B", "part-of-byte": "1.5B",
        "decimals": "1.0000001GB", "no-decimal": "1.B", "past-end": "9223372036854775808B",
        "product-past-end": "8388608TiB", "digits": "9" * 300 + "B", "past-year": "8761h", "spaces": "1  B",
        "exponent": "1e3B", "zero-byte": b"1B\0", "two-points": "1.1.1GB",
    }.items():
        bad("units", name, text)


def patterns():
    for name, text in {
        "literal": "pattern lm_head.weight\nname lm_head.weight\n",
        "star": "pattern *.weight\nname a.b.weight\n", "empty-star": "pattern a*b\nname ab\n",
        "piece": "pattern model.layers.{l}.w\nname model.layers.12.w\n",
        "digits": "pattern experts.weight{e}\nname experts.weight7\n",
        "repeat": "pattern {a}.x.{a}\nname q.x.q\n", "limit": "pattern w{e=0:8}\nname w7\n",
        "computed": "pattern layers.{l + 8*pp}.w\nname layers.11.w\n",
        "negative": "pattern layers.{-2*l + 40 - pp}.w\nname layers.0.w\n",
        "stars": "pattern *a*a*a*b\nname aaaaaaaaaaaaaaaaaaaab\n",
        "awaited": "pattern *.{l}.*.{l}.*\nname a.b.1.c.1.d\n",
        "stars-then-repeat": "pattern *a*a*a*a*{a}.x.{a}*b*b*\nname aaaaaaaa7.x.7bbbb\n",
    }.items():
        good("pattern", name, text)
    many = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac"
    for name, text in {
        "empty": "pattern \n", "open": "pattern a{b\n", "close": "pattern a}b\n", "no-name": "pattern {}\n",
        "digit-name": "pattern {1a}\n", "two-stars": "pattern a**b\n", "neighbours": "pattern {a}{b}\n",
        "two-limits": "pattern {e=0:8}.{e=0:9}\n", "no-limit": "pattern {e=8:8}\n", "half-limit": "pattern {e=8}\n",
        "product": "pattern {a*b}\n", "sum": "pattern {a + }\n", "large": "pattern {999999999999999999*99999*a}\n",
        "leading-zero": "pattern {01*a}\n", "no-match": "pattern a.{x}\nname b.1\n",
        "past-limit": "pattern w{e=0:8}\nname w8\n", "word": "pattern w{e}\nname wx\n",
        "repeat-differs": "pattern {a}.{a}\nname q.r\n", "hard": f"pattern *a*a*a*a*b\nname {many}\n",
        "open-awaited": "pattern " + "*1" * 20 + "{a}*{a}\nname " + "1" * 60 + "c\n",
        "too-open": "pattern {a}*b*c*{a}\n", "too-open-digits": "pattern {a}*w{b}*{c}0.{a}\n",
    }.items():
        bad("pattern", name, text)


def placements():
    mesh = "mesh a=2 b=3\n"
    for name, text in {
        "replicated": mesh + "shape 7 3\n", "whole": mesh + "shape 7 3\ncut a:0\n",
        "two-dims": mesh + "shape 7 5\ncut a:0\ncut b:1\n", "strided": mesh + "shape 13\ncut a:0\ncut b:0\n",
        "cyclic": mesh + "shape 11 2\ncut b:0 cyclic\n", "flat": mesh + "shape 7 3\ncut a:0\ncut b:flat\n",
        "by-slice": mesh + "shape 9\ncut a:0 by slice\ncut b:0\n",
        "by-segments": mesh + "shape 9\ncut a:0 by [4, 5]\n",
        "sizes": mesh + "shape 9\ncut b:0\nsizes b 2 0 7\n", "on": mesh + "shape 4\ncut a:0\non b 1\n",
        "joined": mesh + "axes ab a b\nshape 7\ncut ab:0\n", "scalar": mesh + "shape\n",
        "empty": mesh + "shape 0 5\ncut a:1\n", "long-and-empty": mesh + "shape 999999999999 0\n", "one": mesh + "shape 1 17\ncut b:0\ncut a:1\n",
        "empty-last": mesh + "shape 99 999 4096 4096 0\ncut a:0\n",
        "huge": mesh + "shape 300000 7168\ncut a:0\ncut b:1\n",
        "last-element": "mesh a=3\nshape 999999999999999999\ncut a:0\n",
        "many-ranks": "mesh a=1048576\nshape 3\ncut a:0\n",
    }.items():
        good("placement", name, text)
    for name, text in {
        "no-axis": mesh + "shape 7\ncut c:0\n", "twice": mesh + "shape 7\ncut a:0\ncut a:0\n",
        "joined-twice": mesh + "axes ab a b\nshape 7\ncut ab:0\ncut b:0\n", "no-colon": mesh + "shape 7\ncut a\n",
        "no-dim": mesh + "shape 7\ncut a:x\n", "dim-past-end": mesh + "shape 7\ncut a:1\n",
        "dim-large": mesh + "shape 7\ncut a:9223372036854775807\n", "after-flat": mesh + "shape 7\ncut a:flat\ncut b:0\n",
        "by-slice-last": mesh + "shape 7\ncut a:0\ncut b:0 by slice\n", "by-what": mesh + "shape 7\ncut a:0 by row\n",
        "segments-sum": mesh + "shape 9\ncut a:0 by [4, 4]\n", "segments-empty": mesh + "shape 9\ncut a:0 by []\n",
        "segment-zero": mesh + "shape 9\ncut a:0 by [0, 9]\n", "segments-large": mesh + "shape 9\ncut a:0 by "
        "[2305843009213693952, 2305843009213693952, 2305843009213693952, 2305843009213693952]\n",
        "sizes-sum": mesh + "shape 9\ncut b:0\nsizes b 2 0 6\n", "sizes-count": mesh + "shape 9\ncut b:0\nsizes b 9\n",
        "sizes-axis": mesh + "shape 9\ncut b:0\nsizes a 4 5\n", "sizes-large": mesh + "shape 9\ncut b:0\n"
        "sizes b 999999999999999999 999999999999999999 9\n",
        "sizes-cyclic": mesh + "shape 9\ncut a:0 cyclic\nsizes a 4 5\n", "on-cuts": mesh + "shape 4\ncut a:0\non a 1\n",
        "on-past-end": mesh + "shape 4\non b 3\n", "on-twice": mesh + "shape 4\non b 1 1\n",
        "on-dim-past-end": mesh + "shape 4\ncut a:5\non b 1\n", "on-none": mesh + "shape 4\non b\n", "mesh-zero": "mesh a=0\nshape 4\n", "mesh-twice": "mesh a=2 a=2\nshape 4\n",
        "mesh-large": "mesh a=1024 b=1025\nshape 4\n", "axis-name": mesh + "axes a b\nshape 4\n",
        "axis-of-axes": mesh + "axes ab a b\naxes abc ab\nshape 4\n", "axis-repeats": mesh + "axes ab a a\nshape 4\n",
        "shape-large": mesh + "shape 999999999999999999 999999999999999999\ncut a:0\n",
        "cyclic-many": "mesh a=2\nshape 999999999999999999\ncut a:0 cyclic\n",
        "segments-differ": mesh + "shape 9\ncut a:0 by [4, 5]\ncut b:0 by [5, 4]\n",
    }.items():
        bad("placement", name, text)


def maps():
    experts = "parameter l.{l}.experts.w\nslot l.{l}.experts.{e}.w\nslice [e, 0:2, :]\n"
    stack = "name l.3.experts.w\nshape 4 5 3\nslot_shape 2 3\n"
    for name, text in {
        "identity": "parameter *\nname a.b\nshape 3 4\nslot_shape 3 4\n", "scalar": "parameter a\nname a\n",
        "nothing-kept": "parameter *\nname a\nshape 0 4\nslot_shape 0 4\n",
        "compiles": "parameter a\nslot b\n", "experts": experts + stack,
        "grouped-qkv": "parameter qkv\nslot q\nview [2, 4, 3, 5]\nslice [:, 0:2, :, :]\nname qkv\nshape 24 5\n"
        "slot_shape 12 5\n",
        "transpose": "parameter a\ntranspose\nname a\nshape 3 4\nslot_shape 4 3\n",
        "permute": "parameter a\npermute 2 0 1\nname a\nshape 2 3 4\nslot_shape 4 2 3\n",
        "step": "parameter a\nslice [1:8:3, :]\nname a\nshape 9 2\nslot_shape 3 2\n",
        "index": "parameter a\nslice [2, :]\nname a\nshape 3 4\nslot_shape 4\n",
        "rest": "parameter a\nview [(:, 2), 3]\nslice [:, 1, :]\nname a\nshape 8 3\nslot_shape 4 3\n",
        "slot-slice": "parameter w{e}\nslot w\nslot_slice [e, :]\nname w2\nshape 4\nslot_shape 3 4\n",
        "computed": "mesh pp=2\nparameter l.{l}.w\nslot l.{l + 8*pp}.w\nname l.1.w\nshape 2\nslot_shape 2\n",
        "computed-slice": "mesh ep=2\nparameter w{e}\nslot w\nslot_slice [e + 2*ep, :]\nname w1\nshape 3\n"
        "slot_shape 4 3\n",
        "worker": "worker\nparameter l.{l}.qkv\nslot l.{l}.k\nslice [4:6, :]\nname l.0.k\nshape 8 3\nslot_shape 2 3\n",
        "worker-experts": "worker\nparameter l.{l}.w\nslot l.{l}.{e}.w\nslice [e, :]\nname l.1.2.w\nshape 4 3\n"
        "slot_shape 3\n",
        "worker-limits": "worker\nparameter w{e=0:3}\nslot w\nslot_slice [e, :]\nname w\nshape 4\nslot_shape 3 4\n",
        "worker-sum": "worker\nmesh ep=2\nparameter w{e}\nslot w\nslot_slice [e + 2*ep, :]\nname w\nshape 3\n"
        "slot_shape 4 3\n",
    }.items():
        good("map", name, text)
    tail = "name a\nshape 3 4\nslot_shape 3 4\n"
    for name, text in {
        "no-parameter": "slot b\n", "unbound": "parameter a\nslot {x}\n", "stars": "parameter *.*\nslot *\n",
        "view-brackets": "parameter a\nview 3, 4\n" + tail, "view-zero": "parameter a\nview [0, 4]\n" + tail,
        "view-empty": "parameter a\nview []\n" + tail, "view-two-rests": "parameter a\nview [(:, :), 4]\n" + tail,
        "view-open": "parameter a\nview [(3, 4]\n" + tail, "view-nested": "parameter a\nview [((3)), 4]\n" + tail,
        "view-joins": "parameter a\nview [12]\n" + tail, "view-item": "parameter a\nview [, 4]\n" + tail,
        "view-dims": "parameter a\nview [" + ", ".join(["1"] * 13) + "]\n" + tail,
        "view-large": "parameter a\nview [999999999999999999, 999999999999999999]\n" + tail,
        "slice-empty-range": "parameter a\nslice [2:2, :]\n" + tail, "slice-back": "parameter a\nslice [3:2, :]\n" + tail,
        "slice-past-end": "parameter a\nslice [0:4, :]\n" + tail, "slice-dims": "parameter a\nslice [:]\n" + tail,
        "slice-step": "parameter a\nslice [0:3:0, :]\n" + tail, "slice-sum": "parameter a\nslice [1+1, :]\n" + tail,
        "slice-twice": "parameter a\nslot {e}\nslice [e, e]\n" + tail, "slice-word": "parameter a\nslice [e!, :]\n" + tail,
        "slice-half": "parameter a\nslice [:3, :]\n" + tail, "shapes": "parameter a\nname a\nshape 3 4\nslot_shape 4 3\n",
        "transpose-one": "parameter a\ntranspose\nslice [0, :]\n" + tail, "permute-twice": "parameter a\npermute 0 0\n" + tail,
        "permute-past-end": "parameter a\npermute 0 2\n" + tail, "permute-dims": "parameter a\npermute 0 1 2\n" + tail,
        "both-orders": "parameter a\npermute 1 0\ntranspose\n" + tail, "name": "parameter b\n" + tail,
        "below-zero": "mesh pp=2\nparameter l.{l}\nslot l.{l - 3*pp - 2}\nname l.1\n",
        "axis-bound": "mesh pp=2\nparameter {pp}\nslot {pp + 1}\nname 0\n",
        "worker-unbound": "worker\nparameter {x}\nslot a\nname a\n",
        "worker-two-names": "worker\nparameter {a}.{b}\nslot {a + b}\nname 3\n",
    }.items():
        bad("map", name, text)
    # Products of numbers that fit one by one.
    good("map", "step-past-end", "parameter a\nslot b\nview [(1, 2000000)]\nslice [0:1:999999999999999999, :]\nname a\n"
         "shape 2000000\nslot_shape 2000000\n")
    bad("map", "range-past-view", "worker\nparameter a\nslot b\nview [(2, 2)]\n"
        "slice [0:999999999999999999, 0:999999999999999999]\nname b\nshape 4\nslot_shape 4\n")
    bad("map", "rest-past-end", "worker\nparameter a\nslot b\nview [(:, 2000000)]\n"
        "slice [e=999999999999999998:999999999999999999, :]\nname b\nshape 1\nslot_shape 2000000\n")
    bad("map", "sum-past-end", "mesh pp=1048576\nparameter a\nslot b\nslot_slice [9000000000000*pp + 0, :]\n"
        "name a\nshape 2\nslot_shape 2 2\n")
    bad("map", "sum-of-many", "worker\nparameter w{e}\nslot w\nslot_slice [2000000*e + 1, :]\nname w\nshape 1\n"
        "slot_shape 999999999999999999 1\n")


def topologies():
    sides = '[trainer]\nmesh = [["ep", 2], ["fsdp", 2]]\n[worker]\nmesh = [["dp", 2], ["tp", 2]]\n'
    for name, text in {
        "empty": "", "sides": sides,
        "placement": sides + '[[trainer.placement]]\nparameter = "*"\nshard = ["fsdp:0", "ep:1 by slice"]\n'
        'sizes = { fsdp = [2, 3] }\n[[worker.placement]]\nparameter = "w"\nshard = []\non = { tp = [0] }\n',
        "joined": sides + '[trainer.axes]\nall = ["ep", "fsdp"]\n',
        "map": sides + '[[trainer.map]]\nparameter = "l.{l}.qkv"\nview = "[8, 4, 64, 512]"\nslot = "l.{l + 2*ep}.q"\n'
        'slice = "[:, 0:2, :, :]"\ntranspose = true\n[[worker.map]]\nparameter = "a"\nslot = "b"\npermute = [1, 0]\n'
        'slot_view = "[(2, :)]"\nslot_slice = "[0:1, :]"\nshard = ["tp:0"]\nsizes = { tp = [1, 2] }\n',
        "parameter": sides + '[[worker.parameter]]\nname = "lm_head.weight"\nshape = [152064, 1024]\npadding = true\n',
        "unused": '[worker]\nunused = ["a", "b.*"]\n', "master": '[transport]\nmaster = "[::1]:0"\nsecret_file = ""\n',
        "secret": '[transport]\nmaster = "[::0]:0"\nsecret_file = "secret"\n',
        "update": '[update]\nwire_dtype = "keep"\nseed = "always"\nverify = "digest"\nconnect = "60s"\nstall = "1ms"\n'
        'engine = "1.5s"\ntimeout = "10min"\nbusy = "fold"\nquorum = 1\n',
        "actors": '[actors]\nsnapshotter = { tier = "host", log = "unlimited" }\n'
        'differ = { count = 3, chunk = "7B", inflight = 1, thread = "detached" }\n'
        'gather_queue = { transport = "tcp", window = "1KB", max_round = "64MiB" }\n'
        'flush_bucket = { cap = 7, positions = "rice", values = "raw", compression = "none" }\n'
        'sender = { transport = "inproc", route = "broadcast" }\napplier = { stage = "512MiB", overflow = "fail" }\n',
        "telemetry": '[telemetry]\ntrace = "trace.json"\nflushes = "f"\n',
        "include-itself-not": 'include = []\n', "escapes": '[worker]\nunused = ["a\\"\\u0001\\\\ \\U0001F600"]\n',
        "dotted": 'update.stall = "1s"\nactors.differ.count = 2\n', "literal": "[worker]\nunused = ['''a''', 'b']\n",
        "byte-order-mark": b'\xef\xbb\xbf# \xc3\xa9\n[worker]\nunused = ["\xc3\xa9"]\n',
    }.items():
        good("topology", name, text)
    for name, text in {
        "unknown": "[trainr]\n", "unknown-key": "[update]\nstal = \"1s\"\n", "not-toml": "[=]\n", "open": "[trainer",
        "open-string": 'include = ["a', "twice": "[update]\n[update]\n", "not-utf8": b'a = "\xff"\n',
        "zero-byte": b"a = 1\0\n", "not-ascii-after-value": b'a = 1\0001["\xc3\xa9"]\n', "not-ascii-value": b"a =\xef\xbb\xbe\n", "not-ascii-key": "\u00e9 = 1\n".encode(), "mesh-type": "[trainer]\nmesh = 3\n", "mesh-pair": '[trainer]\nmesh = [["a"]]\n',
        "mesh-zero": '[trainer]\nmesh = [["a", 0]]\n', "mesh-twice": '[trainer]\nmesh = [["a", 1], ["a", 2]]\n',
        "mesh-large": '[trainer]\nmesh = [["a", 1048577]]\n', "mesh-wraps": '[trainer]\nmesh = [["a", '
        '9223372036854775807], ["b", 9223372036854775807]]\n', "dp-inner": '[worker]\nmesh = [["tp", 2], ["dp", 2]]\n',
        "placement-no-shard": '[[trainer.placement]]\nparameter = "*"\n',
        "placement-type": "[trainer]\nplacement = 3\n", "shape": '[[worker.parameter]]\nname = "a"\nshape = [-1]\n',
        "size": '[actors]\napplier = { stage = "0B" }\n', "size-unit": '[actors]\napplier = { stage = "64" }\n',
        "chunk-unlimited": '[actors]\ndiffer = { chunk = "unlimited" }\n', "count": "[actors]\ndiffer = { count = 0 }\n",
        "nesting": '[update]\nstall = "10min"\ntimeout = "1min"\n', "quorum": "[update]\nquorum = 2\n",
        "duration": '[update]\nstall = "400d"\n', "later": '[actors]\nsnapshotter = { tier = "pinned" }\n',
        "address": '[transport]\nmaster = "10.0.0.1:1"\n', "include-missing": 'include = ["nowhere.toml"]\n',
        "include-itself": 'include = ["topology.toml"]\n', "include-folder": 'include = ["."]\n',
        "dots": "a" + ".a" * 40 + " = 1\n", "nested": "a = " + "[" * 100 + "]" * 100 + "\n",
        "nested-tables": "a = " + "{ a = " * 40 + "1" + " }" * 40 + "\n", "date": "[update]\nstall = 1979-05-27\n",
        "table-of-array": "[[update]]\n", "surrogate": 'a = "\\ud800"\n', "number": "a = 99999999999999999999\n",
        "numbers-type": '[[trainer.placement]]\nparameter = "a"\nshard = []\nsizes = { tp = ["a"] }\n',
        "names-type": '[trainer.axes]\nall = [1]\n',
    }.items():
        bad("topology", name, text)


# Files
# ----------------------------------------------------------------------------------------------------------------


def entry(dtype="F32", shape="[2]", offsets="[0,8]"):
    return '{"dtype":%s,"shape":%s,"data_offsets":%s}' % (json.dumps(dtype), shape, offsets)


def padded(text):
    data = text if isinstance(text, bytes) else text.encode()
    return data + b" " * (-len(data) % 8)


def safetensors():
    w = '{"w":%s}'
    names = ["BOOL", "U8", "U16", "U32", "U64", "I8", "I16", "I32", "I64", "F16", "BF16", "F32", "F64", "F8_E4M3",
             "F8_E5M2"]
    sizes = [1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 1, 1]
    every, at = {}, 0
    for size in (8, 4, 2, 1):
        for name, its in zip(names, sizes):
            if its == size:
                every[name] = {"dtype": name, "shape": [2], "data_offsets": [at, at + 2 * size]}
                at += 2 * size
    accepted = {
        "nothing": ("{}", 0), "one": (w % entry(), 8), "scalar": (w % entry("I64", "[]"), 8),
        "empty-tensor": (w % entry(shape="[0,5]", offsets="[0,0]"), 0),
        "zero-of-many": (w % entry(shape="[4611686018427387904,0]", offsets="[0,0]"), 0),
        "metadata": ('{"__metadata__":{"format":"pt","a":"b"},"w":%s}' % entry(), 8),
        "every-dtype": (json.dumps(every), at), "other-order": ('{"b":%s,"a":%s}' % (entry(offsets="[8,16]"), entry()), 16),
        "escaped-name": ('{"\\u0000\\"\\n\\ud83d\\ude00":%s}' % entry(), 8), "empty-name": ('{"":%s}' % entry(), 8),
        "spaces": ('{ "w" : { "shape" : [ 1 , 2 ] , "data_offsets" : [ 0 , 8 ] , "dtype" : "F32" } } ', 8),
    }
    refused = {
        "empty": ("", 0), "space-first": (" {}", 0), "array": ("[]", 0), "open": ("{", 0), "tail": ("{}{}", 0),
        "bom": (b"\xef\xbb\xbf{}", 0), "zero-byte": (b"{}\0", 0), "not-utf8": (b'{"w\xff":{}}', 0),
        "comment": ("{/* */}", 0), "null": (w % "null", 8), "deep": ('{"w":' + "[" * 500 + "]" * 500 + "}", 0),
        "deep-objects": ('{"w":' * 300 + "}" * 300, 0), "surrogate": ('{"\\ud800":%s}' % entry(), 8),
        "no-dtype": (w % '{"shape":[2],"data_offsets":[0,8]}', 8), "no-shape": (w % '{"dtype":"F32","data_offsets":[0,8]}', 8),
        "no-offsets": (w % '{"dtype":"F32","shape":[2]}', 8), "unknown-key": (w % (entry()[:-1] + ',"x":1}'), 8),
        "key-twice": (w % (entry()[:-1] + ',"dtype":"F32"}'), 8), "unknown-dtype": (w % entry("F128"), 8),
        "tensor-twice": ('{"w":%s,"w":%s}' % (entry(), entry(offsets="[8,16]")), 16),
        "metadata-twice": ('{"__metadata__":{},"__metadata__":{}}', 0), "metadata-number": ('{"__metadata__":{"a":1}}', 0),
        "metadata-nested": ('{"__metadata__":{"a":{}}}', 0), "one-offset": (w % entry(offsets="[0]"), 8),
        "three-offsets": (w % entry(offsets="[0,8,8]"), 8), "negative-extent": (w % entry(shape="[-2]"), 8),
        "fraction": (w % entry(shape="[2.0]"), 8), "exponent": (w % entry(shape="[2e0]"), 8),
        "extent-past-63": (w % entry(shape="[9223372036854775808]"), 8),
        "extent-past-64": (w % entry(shape="[18446744073709551616]"), 8),
        "product-wraps": (w % entry(shape="[4294967296,4294967296,2]"), 8),
        "product-wraps-to-length": (w % entry(shape="[4611686018427387906,4]"), 8),
        "backwards": (w % entry(offsets="[8,0]"), 8), "past-end": (w % entry(offsets="[0,16]", shape="[4]"), 8),
        "offset-wraps": (w % entry(offsets="[18446744073709551608,18446744073709551615]"), 8),
        "too-short": (w % entry(shape="[1]"), 8), "odd-length": (w % entry("F32", "[1]", "[0,5]"), 5),
        "overlap": ('{"a":%s,"b":%s}' % (entry(), entry(offsets="[4,12]")), 12),
        "hole": ('{"a":%s,"b":%s}' % (entry(), entry(offsets="[12,20]")), 20), "hole-first": (w % entry(offsets="[4,12]"), 12),
        "hole-last": (w % entry(), 12), "misaligned": ('{"a":%s,"b":%s}' % (entry("U8", "[1]", "[0,1]"), entry(offsets="[1,9]")), 9),
        "no-tensor": ("{}", 4),
    }
    for kind, seeds in (("good", accepted), ("bad", refused)):
        for name, (text, length) in seeds.items():
            data = text if isinstance(text, bytes) else text.encode()
            seed("safetensors_header", f"{kind}-{name}", u8(0) + u32(length) + data)
            header = data if name in ("empty", "zero-byte") else padded(data)
            seed("safetensors_file", f"{kind}-{name}", u64(len(header)) + header + bytes(i % 256 for i in range(length)))
    bad("safetensors_header", "start-misaligned", u8(1) + u32(8) + (w % entry()).encode())
    bad("safetensors_file", "no-bytes", b"")
    bad("safetensors_file", "seven-bytes", b"1234567")
    bad("safetensors_file", "length-past-end", u64(9) + b"{}      ")
    bad("safetensors_file", "length-past-limit", u64(100_000_001) + b"{}      ")
    bad("safetensors_file", "length-wraps", u64(-8) + b"{}      ")
    bad("safetensors_file", "header-unpadded", u64(len(w % entry())) + (w % entry()).encode() + bytes(8))


def indexes():
    def index(weight_map, **other):
        return json.dumps({"weight_map": weight_map, **other})

    deep = '{"x":' + '[{"a":' * 300 + "1" + "}]" * 300 + ',"weight_map":{"w":"f"}}'
    for name, text in {
        "one": index({"w": "model.safetensors"}), "folder": index({"w": "a/b.safetensors"}),
        "two-files": index({"a": "1", "b": "2", "c": "1"}, metadata={"total_size": 12}),
        "float-size": index({"w": "f"}, metadata={"total_size": 4538376.0, "x": None}), "dots-in-name": index({"w": "..f"}),
        "others": index({"w": "f"}, other=[{"weight_map": 3}], x=1.5, y=-1, z=None, t=True), "deep": deep,
        "spaces": ' { "weight_map" : { "w" : "f" } } ', "escapes": '{"weight_map":{"\\u0000\\ud83d\\ude00":"f\\u0001"}}',
        "metadata-first": '{"metadata":{},"weight_map":{"w":"f"}}',
    }.items():
        good("checkpoint_index", name, text)
    for name, text in {
        "empty": "", "null": "null", "array": "[]", "open": '{"weight_map":{"w":"f"}', "tail": index({"w": "f"}) + "x",
        "zero-byte": b'{"weight_map":{"w":"f"}}\0', "not-utf8": b'{"weight_map":{"w\xff":"f"}}',
        "no-weight-map": "{}", "no-tensor": index({}), "weight-map-type": '{"weight_map":[]}',
        "metadata-type": index({"w": "f"}, metadata=3), "file-type": index({"w": 3}), "file-nested": index({"w": {}}),
        "tensor-twice": '{"weight_map":{"w":"f","w":"g"}}', "key-twice": '{"weight_map":{"w":"f"},"weight_map":{}}',
        "size-twice": '{"metadata":{"total_size":1,"total_size":1},"weight_map":{"w":"f"}}',
        "size-negative": index({"w": "f"}, metadata={"total_size": -1}),
        "size-fraction": index({"w": "f"}, metadata={"total_size": 1.5}),
        "size-large": '{"metadata":{"total_size":1e300},"weight_map":{"w":"f"}}',
        "size-text": index({"w": "f"}, metadata={"total_size": "1"}), "file-empty": index({"w": ""}),
        "file-absolute": index({"w": "/etc/passwd"}), "file-parent": index({"w": "../f"}), "file-inner": index({"w": "a/../../f"}),
        "file-last": index({"w": "a/.."}), "file-dot": index({"w": "./f"}), "file-slashes": index({"w": "a//f"}),
        "file-folder": index({"w": "a/"}), "file-zero": '{"weight_map":{"w":"f\\u0000"}}',
    }.items():
        bad("checkpoint_index", name, text)


# Frames and messages
# ----------------------------------------------------------------------------------------------------------------

NONE, HEADER, PAYLOAD = 0, 1, 2  # checksums that the target makes right


def frame(repairs=HEADER | PAYLOAD, magic=b"DLTW", protocol=4, type=1001, zero_a=0, zero_b=0, length=None, payload=b"abc"):
    length = len(payload) if length is None else length
    return (u8(repairs) + magic + u32(protocol) + u16(type, zero_a) + u32(3) + u64(0x11, 0x22, 0x33) + u32(4, zero_b) +
            u64(length, 0x66, 0x77) + payload)


def frames():
    golden = bytes.fromhex("444c545704000000e9030000343332311817161514131211282726252423222158575655545352514443424100000000"
                           "62610000000000007877767574737271c4d92a06df646eef")
    good("frame", "flush", frame())
    good("frame", "round-empty", frame(type=1000, payload=b""))
    good("frame", "control", frame(type=33))
    good("frame", "last-control", frame(type=999))
    bad("frame", "golden-without-payload", u8(NONE) + golden)
    bad("frame", "golden-payload-differs", u8(NONE) + golden + bytes(0x6162 % 1000))
    bad("frame", "short", frame()[:72])
    bad("frame", "nothing", b"")
    bad("frame", "magic", frame(magic=b"DLTX"))
    bad("frame", "protocol", frame(protocol=3))
    bad("frame", "header-checksum", frame(repairs=PAYLOAD))
    bad("frame", "payload-checksum", frame(repairs=HEADER))
    bad("frame", "reserved", frame(zero_a=1))
    bad("frame", "reserved-late", frame(zero_b=1 << 31))
    for number in (0, 1002, 65535):
        bad("frame", f"type-{number}", frame(type=number))
    bad("frame", "control-past-limit", frame(type=33, length=2**30 + 1))
    bad("frame", "data-past-limit", frame(length=2**40 + 1))
    bad("frame", "length-wraps", frame(length=2**64 - 1))
    bad("frame", "payload-short", frame(length=4))
    bad("frame", "payload-long", frame(length=2))


def shm_messages():
    def message(kind, region=0, offset=0, length=0, reserved=0, follows=b""):
        return u16(kind, reserved) + u32(region) + u64(offset, length) + follows

    good("shm_message", "bytes", message(1, length=3, follows=b"abc"))
    good("shm_message", "region", message(2, region=3, length=2**25))
    good("shm_message", "segment", message(3, region=255, offset=2**20, length=2**20))
    good("shm_message", "segment-wraps", message(3, offset=2**64 - 1, length=2**64 - 1))  # the reader's to refuse
    good("shm_message", "released", message(4, length=1))
    good("shm_message", "end", message(5))
    bad("shm_message", "nothing", b"")
    bad("shm_message", "short", message(5)[:23])
    bad("shm_message", "kind-0", message(0, length=1))
    bad("shm_message", "kind-6", message(6, length=1))
    bad("shm_message", "reserved", message(4, length=1, reserved=1))
    bad("shm_message", "bytes-short", message(1, length=4, follows=b"abc"))
    bad("shm_message", "bytes-long", message(1, length=2, follows=b"abc"))
    bad("shm_message", "bytes-none", message(1))
    bad("shm_message", "bytes-of-a-region", message(1, region=1, length=3, follows=b"abc"))
    bad("shm_message", "region-past-limit", message(2, region=256, length=1))
    bad("shm_message", "region-at-an-offset", message(2, offset=1, length=1))
    bad("shm_message", "segment-none", message(3))
    bad("shm_message", "segment-with-bytes", message(3, length=1, follows=b"a"))
    bad("shm_message", "released-none", message(4))
    bad("shm_message", "end-with-length", message(5, length=1))


def text(value):
    data = value.encode() if isinstance(value, str) else value
    return u64(len(data)) + data


def items(*values):
    return u64(len(values)) + b"".join(values)


def numbers(*values):
    return u64(len(values), *values)


SLOT = text("w") + u8(11) + numbers(2, 3)
PARAMETER = text("p") + u8(11) + numbers(4, 3) + numbers(2, 3) + numbers(3, 1)
REGION = u32(0, 0) + u64(0) + items(items(u64(0, 2, 0, 3)), items(u64(0, 3, 0, 1)))
DECLARATION = items(PARAMETER) + items(SLOT) + items(REGION)
BLOCK = u32(1, 2, 3, 4, 5) + u8(1) + numbers(6) + u64(7) + numbers(8) + u64(9) + numbers(10)
SPAN = u64(1, 2)
REPORT = u32(1) + u64(5) + text("serving") + text("delta") + u64(6, 2, 3) + u8(1, 0, 1) + u64(7) + text("")

# Number -> name, payload (FORMAT.md, "Control messages").
MESSAGES = {
    1: ("hello", u8(1, 0) + u32(1, 2) + u64(3, 4)), 2: ("welcome", u64(7)), 3: ("refused", u8(4) + text("no")),
    10: ("declare-rank", DECLARATION), 11: ("catalogue", items(SLOT, text("") + u8(0) + numbers())),
    12: ("declare-worker", items() + items() + items()),
    13: ("agreement", items(SLOT) + items(u32(0) + u64(6)) + u32(1, 1) + items(BLOCK)), 14: ("agreed", u64(9, 5, 7, 6)),
    15: ("connected", b""), 20: ("capture-report", u64(1, 2) + u8(1) + u64(3, 4) + SPAN + items(u32(1) + u64(-1)) + u64(5, 6) + u8(1)),
    21: ("offer", u64(2) + items(u32(0, 100), u32(1, 2**32 - 1)) + u32(2)), 22: ("grant", u64(2, 0) + u32(1) + u64(100)),
    23: ("delivery-report", u8(0) + u64(2, 1, 9) + u8(1, 1, 13) + text("") + u64(*range(7)) + u64(1, 2, 3) + SPAN * 6 +
         u64(1, 2, 3, 4) + items(REPORT, REPORT)), 24: ("drop", u64(4)),
    25: ("next-update", u64(3) + u8(1, 2) + u64(1, 0)), 26: ("abandon", u64(3)),
    27: ("audit-report", u64(1, 3) + text("rank 1")), 30: ("begin", u64(1) + u8(0) + u64(0, 1)),
    31: ("ready", u64(1, 0)), 32: ("flush-staged", u64(1, 0, 100)),
    33: ("seal", u64(1, 1, 100) + items(u32(0) + u64(5), u32(1) + u64(6))), 34: ("staged", u64(1, 100)), 35: ("commit", u64(1)),
    36: ("applied", u64(1, 1, 6) + items(u32(0) + u64(5), u32(0) + u64(5)) + SPAN + SPAN + u64(9)), 37: ("release", u64(1)), 38: ("released", u64(1, 1, 500)),
    39: ("undo", u64(1) + text("a worker failed")), 40: ("undone", u64(1, 0)), 41: ("settle", u64(9, 7) + u8(1)),
    42: ("audit", u64(1, 3) + items(u32(0) + u64(5))), 43: ("audited", u64(1, 3) + items(u32(0) + u64(5)) + text("")), 44: ("adopt", u64(1, 3)), 50: ("failed", u8(13) + text("why") + u64(0)),
    51: ("goodbye", b""), 52: ("heartbeat", b""),
}


def messages():
    def message(number, payload):
        return u16(number) + payload

    for number, (name, payload) in MESSAGES.items():
        good("messages", name, message(number, payload))
        bad("messages", name + "-long", message(number, payload + b"\0"))
        if payload:
            bad("messages", name + "-short", message(number, payload[:-1]))
    for number in (0, 4, 999, 1000, 65535):
        bad("messages", f"type-{number}", message(number, bytes(8)))
    for name, number, payload in (
        ("role", 1, u8(2, 0) + u32(1, 2) + u64(3, 4)), ("channel", 1, u8(1, 2) + u32(1, 2) + u64(3, 4)),
        ("code-0", 3, u8(0) + text("")), ("code-15", 3, u8(15) + text("")), ("kind", 30, u64(1) + u8(3) + u64(0, 1)),
        ("dtype", 11, items(text("w") + u8(15) + numbers())), ("string-past-end", 3, u8(4) + u64(3) + b"no"),
        ("string-wraps", 3, u8(4) + u64(-1) + b"no"), ("list-past-end", 33, u64(1, 1, 100, 2) + u32(0) + u64(5)),
        ("list-wraps", 33, u64(1, 1, 100, 2**61) + u32(0) + u64(5)), ("list-large", 11, u64(2**40) + SLOT),
        ("inner-list", 10, items(text("p") + u8(11) + u64(2**62))), ("shape-past-end", 11, items(text("w") + u8(1) + u64(1, 2)[:15])),
        ("least-bytes", 11, u64(2) + SLOT[:18] + bytes(15)),
    ):
        bad("messages", name, message(number, payload))
    # Read, and then refused for what they say (layout::check_declaration).
    for name, declaration in (
        ("region-indices", items() + items() + items(u32(7, 7) + u64(0) + items())),
        ("region-reach", items(text("p") + u8(11) + numbers(2**61, 8) + numbers(2**61, 8) + numbers(2**62, -(2**62))) + items(SLOT) +
         items(u32(0, 0) + u64(2**63 - 1) + items(items(u64(0, 2, -(2**63), 2**63 - 1)), items(u64(0, 3, 2**62, 2**62))))),
        ("segments", items(PARAMETER) + items(SLOT) + items(u32(0, 0) + u64(0) + items(items(u64(2**63 - 1, 2, 0, 3), u64(0, 2**63 - 1, 0, 3)), items()))),
        ("shapes", items(text("p") + u8(0) + numbers(-1) + numbers(2**62, 2**62) + numbers(1)) + items(text("w") + u8(0) + numbers(2**40, 2**40)) + items()),
    ):
        good("messages", "declares-" + name, message(10, declaration))


# Pieces
# ----------------------------------------------------------------------------------------------------------------

TILE = 4096
U8, BF16, F64 = 1, 10, 12
GAPS_U8, GAPS_U16, RICE, BITMAP, RUN, DENSE = range(6)
EMPTY = 0


def varint(value):
    result = b""
    while value >= 0x80:
        result += u8(value & 0x7F | 0x80)
        value >>= 7
    return result + u8(value)


class Bits:
    def __init__(self):
        self.bits = []

    def put(self, value, count):
        self.bits += [value >> i & 1 for i in range(count)]

    def align(self):
        self.bits += [0] * (-len(self.bits) % 8)

    def raw(self, data):
        self.align()
        for byte in data:
            self.put(byte, 8)

    def bytes(self):
        self.align()
        return bytes(sum(bit << i for i, bit in enumerate(self.bits[at:at + 8])) for at in range(0, len(self.bits), 8))


def gaps_of(positions):
    return [position - before - 1 for before, position in zip([-1] + positions, positions)]


def put_rice(bits, positions, k):
    gaps = gaps_of(positions)
    for gap in gaps:
        bits.put(1 << (gap >> k), (gap >> k) + 1)
    for gap in gaps:
        bits.put(gap, k)


def put_parameter(bits, k):
    """None: the one that is expected."""
    if k is None:
        bits.put(0, 1)
    else:
        bits.put(1, 1)
        bits.put(k, 4)


def expected_parameter(count, span):
    return max((31 * (2 * span - count) // (64 * count)).bit_length() - 1, 0)


def put_rice_code(bits, positions, span, k):
    put_parameter(bits, k)
    put_rice(bits, positions, expected_parameter(len(positions), span) if k is None else k)


def put_positions(bits, codec, positions, span, k=None):
    gaps = gaps_of(positions)
    if codec == GAPS_U8:
        for gap in gaps:
            bits.raw(b"\xff" * (gap // 255) + u8(gap % 255))
    elif codec == GAPS_U16:
        bits.raw(u16(*gaps))
    elif codec == RICE:
        put_rice_code(bits, positions, span, k)
    elif codec == BITMAP:
        for i in range(span):
            bits.put(i in positions, 1)
        bits.align()
    elif codec == RUN:
        runs = []
        for position, gap in zip(positions, gaps):
            if gap == 0 and runs:
                runs[-1][1] += 1
            else:
                runs.append([gap, 0])
        bits.raw(b"".join(varint(gap) + varint(length) for gap, length in runs))


def put_ulp(bits, differences, size, which=15):
    """differences: signed; None is a value in full."""
    count = len(differences)
    exceptions = [i for i, difference in enumerate(differences) if difference is None or abs(difference) > 1]
    for difference in differences:
        bits.put(difference is not None and difference < 0, 1)
    bits.put(len(exceptions), count.bit_length())
    if 0 < len(exceptions) < count:
        if which == 15:
            put_parameter(bits, which)
            for i in range(count):
                bits.put(i in exceptions, 1)
        else:
            put_rice_code(bits, exceptions, count, which)
    sizes = [abs(differences[i]) if differences[i] is not None else 10**9 for i in exceptions]
    for magnitude in sizes:
        bits.put(min(magnitude - 2, 15), 4)
    bits.align()
    bits.raw(u8(*(min(magnitude - 17, 255) for magnitude in sizes if magnitude >= 17)))
    bits.raw(b"".join(bytes(range(1, size + 1)) for magnitude in sizes if magnitude >= 272))


def record(codec, positions, span, k=None, differences=None, size=2, which=15):
    bits = Bits()
    put_positions(bits, codec, positions, span, k)
    if differences is not None:
        put_ulp(bits, differences, size, which)
    return bits.bytes()


def head(codec, changes, ulp=False, usual=True):
    """In a piece of the lane's kind, but where Rice is not `usual`."""
    return changes if codec == RICE and usual else 4096 + 16 * changes + 8 * ulp + codec


def heads(*numbers):
    return b"".join(varint(number) for number in numbers)


def tiles():
    def tile(dtype, span, number, body, ulp=False):
        return u8(dtype | ulp << 7) + u16(span - 1) + u32(number) + body

    some = [0, 1, 2, 7, 300, 301, 999]
    for name, codec in (("u8", GAPS_U8), ("u16", GAPS_U16), ("rice", RICE), ("bitmap", BITMAP), ("run", RUN)):
        body = record(codec, some, 1000)
        good("tile_record", name, tile(BF16, 1000, head(codec, 7), body))
        good("tile_record", name + "-one", tile(U8, 1, head(codec, 1), record(codec, [0], 1)))
        good("tile_record", name + "-last", tile(F64, 4096, head(codec, 1), record(codec, [4095], 4096, k=11)))
        bad("tile_record", name + "-short", tile(BF16, 1000, head(codec, 7), body[:-1]))
        bad("tile_record", name + "-long", tile(BF16, 1000, head(codec, 7), body + b"\0"))
        bad("tile_record", name + "-past-span", tile(BF16, 999, head(codec, 7), body))
        bad("tile_record", name + "-more", tile(BF16, 1000, head(codec, 8), body))
        lane = record(codec, some, 1000, differences=[1, -1, 2, -16, 17, -271, 1])
        good("tile_record", name + "-ulp", tile(BF16, 1000, head(codec, 7, True), lane, ulp=True))
        bad("tile_record", name + "-ulp-short", tile(BF16, 1000, head(codec, 7, True), lane[:-1], ulp=True))
        bad("tile_record", name + "-ulp-long", tile(BF16, 1000, head(codec, 7, True), lane + b"\0", ulp=True))
    good("tile_record", "dense", tile(BF16, 5, head(DENSE, 5), b""))
    good("tile_record", "dense-ulp", tile(BF16, 5, head(DENSE, 5, True), record(DENSE, [], 5, differences=[1, 1, -1, 1, -1])))
    good("tile_record", "u8-255", tile(BF16, 4096, head(GAPS_U8, 2), record(GAPS_U8, [255, 511], 4096)))
    good("tile_record", "ulp-full", tile(F64, 9, head(GAPS_U8, 3, True), record(GAPS_U8, [1, 2, 8], 9, differences=[None, 1, None], size=8)))
    good("tile_record", "ulp-all-exceptions", tile(BF16, 9, head(GAPS_U8, 2, True), record(GAPS_U8, [1, 2], 9, differences=[5, -5])))
    good("tile_record", "ulp-rice", tile(BF16, 9, head(GAPS_U8, 3, True), record(GAPS_U8, [1, 2, 3], 9, differences=[1, 9, 1], which=0)))
    good("tile_record", "ulp-rice-expected", tile(BF16, 9, head(GAPS_U8, 3, True), record(GAPS_U8, [1, 2, 3], 9, differences=[1, 9, 1], which=None)))
    good("tile_record", "empty", tile(BF16, 9, EMPTY, b""))
    bad("tile_record", "empty-body", tile(BF16, 9, EMPTY, b"\0"))
    bad("tile_record", "codec-6", tile(BF16, 9, head(6, 1), b"\0"))
    bad("tile_record", "codec-7", tile(BF16, 9, head(7, 2), b"\0"))
    bad("tile_record", "dense-fewer", tile(BF16, 5, head(DENSE, 4), b""))
    bad("tile_record", "u8-ends-255", tile(BF16, 4096, head(GAPS_U8, 1), b"\xff"))
    bad("tile_record", "u8-only-255", tile(BF16, 4096, head(GAPS_U8, 1), b"\xff" * 20))
    bad("tile_record", "u16-wraps", tile(BF16, 4096, head(GAPS_U16, 2), u16(0xFFFF, 0xFFFF)))
    bad("tile_record", "rice-k", tile(BF16, 4096, head(RICE, 1), u8(12 << 1 | 1, 0, 0)))
    bad("tile_record", "rice-k-15", tile(BF16, 4096, head(RICE, 1), u8(15 << 1 | 1, 0xFF, 0xFF)))
    bad("tile_record", "rice-no-k", tile(BF16, 4096, head(RICE, 1), b""))
    bad("tile_record", "rice-no-end", tile(BF16, 4096, head(RICE, 1), u8(0, 0, 0, 0)))
    bad("tile_record", "rice-rest", tile(BF16, 4096, head(RICE, 1), u8(0x01 | 0x20 | 0x80)))
    good("tile_record", "rice-k-given", tile(BF16, 1000, head(RICE, 7), record(RICE, some, 1000, k=3)))
    good("tile_record", "rice-most", tile(BF16, 4096, head(RICE, 4096), record(RICE, list(range(4096)), 4096)))
    good("tile_record", "rice-raw-of-ulp", tile(BF16, 1000, head(RICE, 7, usual=False), record(RICE, some, 1000), ulp=True))
    bad("tile_record", "rice-more-than-span", tile(BF16, 4, head(RICE, 5), b"\xfe"))
    bad("tile_record", "named-usual", tile(BF16, 1000, head(RICE, 7, usual=False), record(RICE, some, 1000)))
    bad("tile_record", "named-usual-ulp", tile(BF16, 1000, head(RICE, 7, True, usual=False), record(RICE, some, 1000, differences=[1] * 7), ulp=True))
    bad("tile_record", "head-between", tile(BF16, 1000, 4096 + 15, b"\0"))
    bad("tile_record", "head-past-end", tile(BF16, 4096, head(DENSE, 4097), b""))
    bad("tile_record", "bitmap-past-span", tile(BF16, 4, head(BITMAP, 2), u8(0x11)))
    bad("tile_record", "run-long", tile(BF16, 4096, head(RUN, 2), varint(0) + varint(4000)))
    bad("tile_record", "run-wraps", tile(BF16, 4096, head(RUN, 2), varint(2**64 - 1) + varint(1)))
    bad("tile_record", "run-varint", tile(BF16, 4096, head(RUN, 2), b"\xff" * 11))
    bad("tile_record", "ulp-which", tile(BF16, 9, head(DENSE, 9, True), b"\0\x22" + b"\xff" * 9))
    bad("tile_record", "ulp-exceptions", tile(BF16, 2, head(DENSE, 2, True), u8(0x0C)))


def block(dtype=BF16, number=5, shape=0, extents=(10000,)):
    return u8(dtype, number, shape | len(extents) - 1) + u16(*extents)


WHOLE, TILES, ELEMENTS = range(3)
DELTA, VALUES, ULP = range(3)


def piece(kind, span, body, number=5, fields=(), length=None):
    return varint(number << 4 | span << 2 | kind) + b"".join(varint(field) for field in fields) + varint(
        len(body) if length is None else length) + body


def pieces():
    def both(name, *parts):
        good("piece", name, b"".join(parts))

    one = block()
    example = heads(head(GAPS_U16, 1), head(GAPS_U8, 1)) + b"\x02" + u16(4095) + b"\x01" + bytes.fromhex("aabbccdd")
    lanes = heads(head(GAPS_U16, 1), head(GAPS_U8, 1, True)) + b"\x04" + u16(4095) + b"\xaa\xbb" + record(GAPS_U8, [1], 4096, differences=[-3])
    both("example", one, piece(DELTA, TILES, heads(head(GAPS_U16, 1), head(GAPS_U8, 1)) + b"\x02" + u16(4095) + b"\x01" +
                               bytes.fromhex("aabbccdd"), fields=(0, 2)))
    both("example-ulp", one, piece(ULP, TILES, heads(head(GAPS_U16, 1, True), head(GAPS_U8, 1, True)) + bytes.fromhex("03ff0f000107"), fields=(0, 2)))
    both("lanes-mixed", one, piece(ULP, TILES, lanes, fields=(0, 2)))
    both("followed", one, piece(DELTA, TILES, example, fields=(0, 2)), b"anything")
    both("whole-values", block(U8, extents=(7,)), piece(VALUES, WHOLE, bytes(range(7))))
    both("tiles-values", block(U8, extents=(4099,)), piece(VALUES, TILES, b"abc", fields=(1, 1)))
    both("elements-values", one, piece(VALUES, ELEMENTS, bytes(range(6)), fields=(9997, 3)))
    both("elements-inside", one, piece(DELTA, ELEMENTS, heads(head(DENSE, 1)) + b"ab", fields=(4097, 1)))
    both("elements-across", one, piece(DELTA, ELEMENTS, heads(EMPTY, head(DENSE, 2)) + b"abcd", fields=(4000, 98)))
    both("raw-rice-of-ulp", one, piece(ULP, TILES, heads(head(RICE, 1, usual=False), head(RICE, 1, True)) + varint(len(record(RICE, [9], 4096)) + 2) +
                                       record(RICE, [9], 4096) + b"\xaa\xbb" + record(RICE, [7], 4096, differences=[-3]), fields=(0, 2)))
    both("empty-tiles", one, piece(DELTA, WHOLE, heads(EMPTY, head(GAPS_U8, 1), EMPTY) + b"\x07ab"))
    both("transposed", block(extents=(30, 20), shape=4), piece(DELTA, WHOLE, heads(head(GAPS_U8, 3)) + bytes([0, 19, 200]) + b"abcdef"))
    both("three-dims", block(F64, extents=(5, 4, 3)), piece(ULP, WHOLE, heads(head(RUN, 4, True)) + record(RUN, [2, 3, 4, 59], 60, differences=[1, None, -40, 2], size=8)))
    for name, codec in (("rice", RICE), ("bitmap", BITMAP)):
        positions = [3, 4, 99]
        both(name, block(extents=(100,)), piece(DELTA, WHOLE, heads(head(codec, 3)) + record(codec, positions, 100) + b"abcdef"))
        both(name + "-ulp", block(extents=(100,)), piece(ULP, WHOLE, heads(head(codec, 3, True)) + record(codec, positions, 100, differences=[-1, 30, 1])))
    both("past-2-31", block(U8, shape=8, extents=(3,)), piece(VALUES, ELEMENTS, b"abc", fields=(3 * 2**40 - 3, 3)))
    both("varint-not-shortest", block(U8, extents=(2,)), b"\xd1\x00\x82\x00ab")

    def wrong(name, *parts):
        bad("piece", name, b"".join(parts))

    wrong("nothing", one)
    wrong("block", one, piece(DELTA, TILES, example, fields=(0, 2), number=6))
    wrong("block-past-32", one, varint(2**36 << 4) + b"\0")
    wrong("kind", one, piece(3, TILES, example, fields=(0, 2)))
    wrong("range", one, piece(DELTA, 3, example, fields=(0, 2)))
    wrong("varint-long", one, b"\xff" * 10 + b"\x01")
    wrong("varint-65", one, b"\xff" * 9 + b"\x02")
    wrong("cut-short", one, piece(DELTA, TILES, example, fields=(0, 2))[:-1])
    wrong("body-wraps", one, piece(DELTA, TILES, example, fields=(0, 2), length=2**64 - 1))
    wrong("no-elements", one, piece(VALUES, ELEMENTS, b"", fields=(0, 0)))
    wrong("no-tiles", one, piece(VALUES, TILES, b"", fields=(0, 0)))
    wrong("first-past-end", one, piece(VALUES, ELEMENTS, b"ab", fields=(10000, 1)))
    wrong("end-past-end", one, piece(VALUES, ELEMENTS, b"abcd", fields=(9999, 2)))
    wrong("range-wraps", one, piece(VALUES, ELEMENTS, b"ab", fields=(2**64 - 1, 2)))
    wrong("tiles-wrap", one, piece(VALUES, TILES, b"ab", fields=(2**52, 2**52)))
    wrong("tiles-past-end", one, piece(DELTA, TILES, example, fields=(2, 2)))
    wrong("values-short", one, piece(VALUES, ELEMENTS, b"abc", fields=(0, 2)))
    wrong("values-long", one, piece(VALUES, ELEMENTS, b"abcdef", fields=(0, 2)))
    wrong("no-heads", block(shape=8, extents=(3,)), piece(DELTA, WHOLE, b"abcd"))
    wrong("no-changes", one, piece(DELTA, TILES, heads(EMPTY, EMPTY), fields=(0, 2)))
    wrong("lane-of-delta", one, piece(DELTA, TILES, heads(head(GAPS_U16, 1, True), head(GAPS_U8, 1, True)) + bytes.fromhex("03ff0f000107"), fields=(0, 2)))
    wrong("codec", one, piece(DELTA, TILES, heads(head(6, 1)) + b"\0ab", fields=(0, 1)))
    wrong("head-between", one, piece(DELTA, TILES, heads(4097) + b"\0ab", fields=(0, 1)))
    wrong("head-past-end", one, piece(DELTA, TILES, heads(4096 + 16 * 4097 + DENSE), fields=(0, 1)))
    wrong("head-wraps", one, piece(DELTA, TILES, heads(2**64 - 1) + b"\0ab", fields=(0, 1)))
    wrong("head-past-64", one, piece(DELTA, TILES, b"\xff" * 10 + b"\0ab", fields=(0, 1)))
    wrong("head-cut-short", one, piece(DELTA, TILES, heads(EMPTY) + b"\x90", fields=(0, 2)))
    wrong("head-usual", one, piece(DELTA, TILES, heads(head(RICE, 1, usual=False)) + record(RICE, [9], 4096) + b"ab", fields=(0, 1)))
    wrong("heads-many", block(shape=8, extents=(2**15,)), piece(DELTA, WHOLE, bytes(2000)))
    wrong("no-length", one, piece(DELTA, TILES, heads(head(DENSE, 4096), head(DENSE, 4096)), fields=(0, 2)))
    wrong("length-past-end", one, piece(DELTA, TILES, example[:4] + b"\x7f" + example[5:], fields=(0, 2)))
    wrong("length-wraps", one, piece(DELTA, TILES, example[:4] + varint(2**64 - 1) + example[5:], fields=(0, 2)))
    wrong("values-missing", one, piece(DELTA, TILES, heads(head(GAPS_U8, 9)) + bytes(9) + b"ab", fields=(0, 1)))
    wrong("record-long", block(extents=(100,)), piece(DELTA, WHOLE, heads(head(GAPS_U8, 1)) + b"\x01\x01ab"))
    wrong("raw-values-short", block(extents=(100,)), piece(ULP, WHOLE, heads(head(GAPS_U8, 2)) + b"\x01\x01abc"))


def zstd(*blocks, said=None, magic=0xFD2FB528):
    """A zstd frame of blocks as they are: bytes, or (byte, count) for a run of one. It says how many bytes it holds."""
    size = sum(part[1] if isinstance(part, tuple) else len(part) for part in blocks)
    data = struct.pack("<IBI", magic, 0xA0, size if said is None else said)
    for i, part in enumerate(blocks):
        last = i + 1 == len(blocks)
        run = isinstance(part, tuple)
        data += struct.pack("<I", (part[1] if run else len(part)) << 3 | run << 1 | last)[:3]
        data += u8(part[0]) if run else part
    return data


def compressed_pieces():
    def of(kind, body, values=0, framed=False, **where):
        return block(**where) + u8(kind | framed << 2) + u16(values) + body

    small = {"dtype": BF16, "extents": (100,)}
    values = bytes(range(200))
    delta = heads(head(GAPS_U8, 3)) + bytes([1, 2, 3]) + b"abcdef"
    ulp = heads(head(RUN, 3, True)) + record(RUN, [2, 3, 90], 100, differences=[-1, 30, 1])
    for name, kind, body in (("values", VALUES, values), ("delta", DELTA, delta), ("ulp", ULP, ulp)):
        good("compressed_piece", name, of(kind, body, **small))
        good("compressed_piece", name + "-frame", of(kind, zstd(body), framed=True, **small))
        bad("compressed_piece", name + "-short", of(kind, body[:-1], **small))
        bad("compressed_piece", name + "-frame-short", of(kind, zstd(body[:-1]), framed=True, **small))
    good("compressed_piece", "values-planes", of(VALUES, values, 100, **small))
    good("compressed_piece", "values-planes-frame", of(VALUES, zstd(values), 100, framed=True, **small))
    good("compressed_piece", "delta-planes", of(DELTA, delta, 3, **small))
    good("compressed_piece", "some-planes", of(DELTA, delta, 1, **small))
    good("compressed_piece", "wide-planes", of(VALUES, bytes(range(80)), 10, dtype=F64, extents=(10,)))
    good("compressed_piece", "run", of(VALUES, zstd((7, 200)), framed=True, **small))
    good("compressed_piece", "blocks", of(VALUES, zstd(values[:50], (1, 100), values[:50]), framed=True, **small))
    good("compressed_piece", "large", of(VALUES, zstd(*[(0, 2**17)] * 16), framed=True, dtype=U8, extents=(2**11, 2**10)))
    for name, content in {
        "bomb": zstd(*[(0, 2**17)] * 1000), "bomb-lies": zstd(*[(0, 2**17)] * 1000, said=200),
        "says-nothing": zstd(b"", said=0), "says-much": zstd(values, said=2**32 - 1), "says-more": zstd(values, said=201),
        "says-less": zstd(values, said=199), "two-frames": zstd(values[:100]) + zstd(values[100:]),
        "followed": zstd(values) + b"x", "cut": zstd(values)[:-1], "header-only": zstd(values)[:9], "nothing": b"",
        "old": zstd(values, magic=0xFD2FB527), "skipped": struct.pack("<II", 0x184D2A50, 4) + b"abcd",
        "reserved-block": zstd(values)[:9] + struct.pack("<I", 200 << 3 | 7)[:3] + values,
    }.items():
        bad("compressed_piece", name, of(VALUES, content, framed=True, **small))
    bad("compressed_piece", "kind", of(3, zstd(values), framed=True, **small))
    bad("compressed_piece", "planes-past-end", of(VALUES, zstd(values), 101, framed=True, **small))
    bad("compressed_piece", "other-block", of(VALUES, zstd(values), framed=True, dtype=BF16, extents=(101,)))


def round_trips():
    def trip(how, more=0, first=0, count=9999, changes=b"", **of):
        return block(**of) + u8(how) + u16(more, first, count) + changes

    steps = bytes([3, 0, 2, 9, 4, 3, 200, 0, 5, 255, 0, 2, 255, 0, 2, 0, 80, 64, 7, 0, 130] * 8)
    dense = bytes([0, 255, 2] * 40)
    for codec in range(8):
        good("piece_round_trip", f"codec-{codec}", trip(codec, more=500, changes=steps))
        good("piece_round_trip", f"codec-{codec}-dense", trip(codec | 16, more=200, changes=dense))
    good("piece_round_trip", "raw", trip(6 | 8, more=60, changes=steps))
    good("piece_round_trip", "least-limit", trip(6 | 128, changes=steps))
    good("piece_round_trip", "least-limit-dense", trip(6 | 128 | 16, changes=dense, dtype=F64, extents=(70, 60)))
    good("piece_round_trip", "no-base", trip(6 | 32, more=9000, changes=steps))
    good("piece_round_trip", "values", trip(6 | 64, more=77, first=13, changes=steps))
    good("piece_round_trip", "values-least", trip(6 | 64 | 128, dtype=F64, extents=(7, 9, 3), changes=dense))
    good("piece_round_trip", "values-compressed", trip(7 | 64, more=9000, changes=steps))
    good("piece_round_trip", "parts", trip(6, more=999, first=4000, count=200, changes=steps))
    good("piece_round_trip", "transposed", trip(6, more=100, changes=steps, shape=4, extents=(80, 90)))
    good("piece_round_trip", "one", trip(6, changes=b"\0\0\2", extents=(1,), dtype=U8))
    for dtype in range(15):
        good("piece_round_trip", f"dtype-{dtype}", trip(6, more=300, dtype=dtype, changes=bytes([1, 3, 2, 0, 3, 3, 5, 9, 40, 2, 9, 41, 200, 3, 127, 9, 20, 255])))
    bad("piece_round_trip", "no-change", trip(6))
    bad("piece_round_trip", "too-large", trip(6, shape=8, changes=steps))


def device_handles():
    def handle(device=bytes(range(1, 17)), driver=bytes(range(64)), offset=512, size=4096):
        return bytes(device) + bytes(driver) + u64(offset, size)

    good("device_handle", "usual", handle())
    good("device_handle", "whole", handle(offset=0, size=2**48))
    good("device_handle", "last-byte", handle(offset=2**48 - 1, size=1))
    good("device_handle", "one-bit-device", handle(device=bytes(15) + b"\x01"))
    good("device_handle", "one-bit-driver", handle(driver=b"\x80" + bytes(63)))
    bad("device_handle", "empty", b"")
    bad("device_handle", "short", handle()[:-1])
    bad("device_handle", "long", handle() + b"\0")
    bad("device_handle", "no-device", handle(device=bytes(16)))
    bad("device_handle", "no-driver", handle(driver=bytes(64)))
    bad("device_handle", "no-size", handle(size=0))
    bad("device_handle", "past-end", handle(offset=1, size=2**48))
    bad("device_handle", "offset-past-end", handle(offset=2**48, size=1))
    bad("device_handle", "sum-wraps", handle(offset=2**64 - 1, size=2))
    bad("device_handle", "size-wraps", handle(offset=2, size=2**64 - 1))


if __name__ == "__main__":
    for write in (addresses, units, patterns, placements, maps, topologies, safetensors, indexes, frames, messages, shm_messages,
                  tiles, pieces, compressed_pieces, round_trips, device_handles):
        write()
