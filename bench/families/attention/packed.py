# SPDX-License-Identifier: Apache-2.0
"""Attention of packed sequences beside that of sequences of one length, forward, in bfloat16.

    python3 bench/families/attention/packed.py --out packed.json
    python3 bench/families/attention/packed.py --build-only

The speed of a function of packed sequences is relative to the dense TFLOP/s: at sequences
of one length, which both compute, and at lengths drawn at random with that mean. TFLOP/s count
2 (dim + dim_v) operations per visible pair of query and key.
"""

import argparse
import json
import pathlib
import shlex
import sys
import time

HERE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HERE), str(HERE.parent / "tests/support"), str(HERE.parent / "gen")]

import folders  # noqa: E402

folders.add()

FLAGS = "-O3 -gencode arch=compute_90a,code=sm_90a -DKF_HEAD_DIMS=3"
SETS, ROWS = 4, 16384
# (op, heads, kv_heads, dim, length): as many sequences as have ROWS rows
CASES = [
    (op, heads, heads, dim, length)
    for dim, heads in ((128, 16), (64, 32))
    for op in ("attention", "causal_attention")
    for length in (128, 512, 2048, 8192)
] + [("causal_attention", 32, 8, 128, 2048)]
NAMES = [
    f"kf_{op}{word}"
    for op in ("attention", "causal_attention")
    for word in ("_bf16", "_varlen_bf16_i32")
]


def drawn(torch, length):
    """Lengths of sequences with ROWS rows in all: of one length, then random ones."""
    count = ROWS // length
    weights = torch.rand(count, generator=torch.Generator().manual_seed(length)) + 0.05
    found = (weights / weights.sum() * ROWS).long().tolist()
    found[-1] += ROWS - sum(found)
    return {"even": [length] * count, "drawn": found}


def pairs(lengths, causal):
    return sum(n * (n + 1) // 2 if causal else n * n for n in lengths)


class Call:
    """One function on SETS sets of tensors."""

    def __init__(self, lib, f, sizes, tensors, more, stream, torch):
        need = lib.workspace_bytes(f, [sizes[n] for n in f["sizes"]])
        self.work = torch.empty(max(need, 1), device="cuda", dtype=torch.uint8)
        self.lib, self.f, self.tensors, self.more, self.calls = lib, f, tensors, more, []
        for one in tensors:
            given = {n: x.data_ptr() for n, x in (one | more | {"workspace": self.work}).items()}
            values = {a["name"]: None for a in f["arguments"] if a["role"] != "shape"} | sizes
            values |= given | {"scale": sizes["dim"] ** -0.5, "workspace_bytes": need}
            self.calls.append(lib.bind(f, values, stream))

    def __call__(self, i):
        if status := self.calls[i]():
            name = self.f["name"]
            raise RuntimeError(f"{name}: {self.lib.string(status)} ({self.lib.detail})")
        return self.tensors[i]["out"]


def contenders(lib, own, case, stream, torch):
    """Returns {name: (call, lengths)}."""
    op, heads, kv, dim, length = case
    draw = {"device": "cuda", "dtype": torch.bfloat16}
    tensors = [
        {
            "q": torch.randn(ROWS, heads, dim, **draw),
            "k": torch.randn(ROWS, kv, dim, **draw),
            "v": torch.randn(ROWS, kv, dim, **draw),
            "out": torch.empty(ROWS, heads, dim, **draw),
        }
        for _ in range(SETS)
    ]
    lse = {"lse": torch.empty(heads * ROWS, device="cuda")}
    shared = {"heads": heads, "kv_heads": kv, "dim": dim, "dim_v": dim}
    lengths, f = drawn(torch, length), own[f"kf_{op}_varlen_bf16_i32"]
    dense = shared | {"batch": ROWS // length, "queries": length, "keys": length}
    call = Call(lib, own[f"kf_{op}_bf16"], dense, tensors, lse, stream, torch)
    found = {"dense": (call, lengths["even"])}
    for word, own_lengths in lengths.items():
        bounds = torch.tensor([0, *own_lengths], dtype=torch.int32).cumsum(0).int().cuda()
        more = lse | {"query_offsets": bounds, "key_offsets": bounds}
        sizes = shared | {"batch": len(own_lengths), "queries": ROWS, "keys": ROWS}
        call = Call(lib, f, sizes, [one | {} for one in tensors], more, stream, torch)
        found[word] = call, own_lengths
    return found


def checked(calls, torch):
    """Fails where sequences of one length have other bits than the dense function's."""
    dense = calls["dense"][0](0).clone()
    if not torch.equal(dense, calls["even"][0](0)):
        raise SystemExit("packed: other bits than the dense function")


def measure(lib, own, case, timer, args, torch):
    op, _, _, dim, _ = case
    calls = contenders(lib, own, case, timer.stream.cuda_stream, torch)
    checked(calls, torch)
    found = timer.measure({n: c for n, (c, _) in calls.items()}, SETS, args.rounds, args.pace)
    flops = {n: 4 * dim * case[1] * pairs(own, "causal" in op) for n, (_, own) in calls.items()}
    speed = {n: flops[n] / one["us"] * 1e-6 for n, one in found.items() if "us" in one}
    return {
        "op": op,
        "sizes": list(case[1:]),
        "times": found,
        "tflops": speed,
        "relative": {n: speed[n] / speed["dense"] for n in speed if n != "dense"},
    }


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--flags", default=FLAGS)
    p.add_argument("--pace", default="shuffled", choices=("shuffled", "burst", "sustained"))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--build-dir", type=pathlib.Path, default=HERE.parent / "build-bench")
    p.add_argument("--build-only", action="store_true")
    return p.parse_args()


def main():
    args, started, rows = arguments(), time.monotonic(), []
    import kflib

    own = {f["name"]: f for f in kflib.manifest()["functions"] if f["name"] in NAMES}
    flags = shlex.split(args.flags)
    lib = kflib.build("cuda", list(own.values()), args.build_dir / "packed", flags=flags)
    print(f"built at {time.monotonic() - started:.0f} s", flush=True)
    if args.build_only:
        return
    import timing
    import torch

    timer = timing.Cuda()
    for case in CASES:
        rows.append(measure(lib, own, case, timer, args, torch))
        shown = {n: round(x) for n, x in rows[-1]["tflops"].items()}
        print(*case, shown, {n: round(x, 3) for n, x in rows[-1]["relative"].items()}, flush=True)
    if args.out:
        args.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
