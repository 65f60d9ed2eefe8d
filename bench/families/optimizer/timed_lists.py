# SPDX-License-Identifier: Apache-2.0
"""Times optimizers over lists of tensors beside PyTorch's fused ones and a copy of as many bytes.

    python3 bench/families/optimizer/timed_lists.py --out bench/results/h200/optimizer.json

Lists: one tensor of 2^28 elements; the parameters of a decoder with 32 layers; 5,000 tensors of
1,000 elements. Times are medians of calls between events, in shuffled order. `host` is the time
until the call returns, without waiting for the GPU.
"""

import argparse
import ctypes
import json
import pathlib
import random
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "gen"), str(ROOT / "bench")]

import folders  # noqa: E402

folders.add()

import kflib  # noqa: E402
import peers  # noqa: E402
import torch  # noqa: E402
from lists import table  # noqa: E402

ROUNDS, HIDDEN, LAYERS, VOCAB = 20, 2048, 32, 32000
TORCH = {"f32": torch.float32, "bf16": torch.bfloat16}
CASES = (("adamw", "f32"), ("adamw", "bf16", "f32"), ("sgd_momentum", "f32"))


def decoder():
    """Elements of each parameter: attention, gated feed-forward and two norms per layer."""
    layer = [HIDDEN * HIDDEN] * 4 + [HIDDEN * HIDDEN * 8 // 3] * 3 + [HIDDEN] * 2
    return [VOCAB * HIDDEN, *layer * LAYERS, HIDDEN]


LISTS = {"one": [1 << 28], "decoder": decoder(), "many": [1000] * 5000}


class Step:
    """A call of kf's launcher over tensors of these lengths."""

    def __init__(self, lib, f, lengths):
        self.lib, self.f = lib, f
        self.tensors = {
            a["name"]: [torch.rand(n, device="cuda", dtype=TORCH[a["dtype"]]) for n in lengths]
            for a in f["arguments"]
            if a.get("list") and a["name"] != "master"
        }
        tables = {name: table(x.data_ptr() for x in own) for name, own in self.tensors.items()}
        self.held = [*tables.values(), table(lengths, ctypes.c_int64)]
        values = {name: ctypes.addressof(x) for name, x in tables.items()}
        values |= dict.fromkeys(("master", "grad_scale", "found_inf"))
        values |= {"lengths": ctypes.addressof(self.held[-1]), "count": len(lengths)}
        values |= {a["name"]: a["default"] for a in f["arguments"] if "default" in a}
        self.call = lib.bind(f, values, torch.cuda.current_stream().cuda_stream)
        self.bytes = sum(
            sum(x.nbytes for x in self.tensors[a["name"]]) * (1 + (a["role"] == "inout"))
            for a in f["arguments"]
            if a["name"] in self.tensors
        )

    def __call__(self):
        if self.call():
            raise RuntimeError(self.lib.detail)


def once(call):
    """Returns (seconds on the GPU, seconds on the host) of one call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    at = time.perf_counter()
    call()
    host = time.perf_counter() - at
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3, host


def measured(lib, f, lengths):
    step = Step(lib, f, lengths)
    source = torch.empty(step.bytes // 8, device="cuda")
    target = torch.empty_like(source)
    calls = {
        "kf": step,
        "torch": peers.FAMILIES["optimizer"].fused(
            f["op"], [x.clone() for x in step.tensors["param"]], step.tensors["grad"]
        ),
        "copy": lambda: target.copy_(source),
    }
    samples, order = {name: [] for name in calls}, random.Random(0)
    for call in calls.values():
        once(call), once(call)
    for _ in range(ROUNDS):
        names = [*calls]
        order.shuffle(names)
        for name in names:
            samples[name].append(once(calls[name]))
    return {
        "bytes": step.bytes,
        **{
            name: {
                "us": statistics.median(gpu for gpu, _ in own) * 1e6,
                "host_us": statistics.median(host for _, host in own) * 1e6,
            }
            for name, own in samples.items()
        },
    }


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--build-only", action="store_true", help="compile, and measure nothing")
    args = p.parse_args()
    known = {(f["op"], *f["dtypes"]): f for f in kflib.manifest()["functions"]}
    functions = [known[case] for case in CASES]
    lib = kflib.build("cuda", functions, ROOT / "build/bench", kflib.CUDA_FLAGS)
    if args.build_only:
        return
    rows = []
    for f in functions:
        for name, lengths in LISTS.items():
            row = {"function": f["name"], "list": name, **measured(lib, f, lengths)}
            rows.append(row)
            kf, other, copy = (row[n]["us"] for n in ("kf", "torch", "copy"))
            print(
                f"{f['name']:<24} {name:<8} {kf:9.1f} us  {100 * copy / kf:5.1f} % of copy  "
                f"torch {other / kf:5.2f}x  host {row['kf']['host_us']:7.1f} us, torch "
                f"{row['torch']['host_us']:7.1f} us",
                flush=True,
            )
            torch.cuda.empty_cache()
    if args.out:
        args.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
