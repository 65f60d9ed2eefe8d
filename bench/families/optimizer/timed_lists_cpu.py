# SPDX-License-Identifier: Apache-2.0
"""Times AdamW over lists of tensors on the CPU beside PyTorch's fused AdamW.

    python3 bench/families/optimizer/timed_lists_cpu.py --threads 2

Lists: one tensor of 2^24 elements; 290 parameters of a decoder with 32 layers and 2^24 elements in
all. Calls alternate in shuffled order; times are medians of wall and processor time.
"""

import argparse
import os
import pathlib
import random
import statistics
import sys
import time

p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
p.add_argument("--threads", type=int, default=2)
p.add_argument("--rounds", type=int, default=20)
args = p.parse_args()
os.environ["OMP_NUM_THREADS"] = str(args.threads)  # read when libraries are loaded

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "gen"), str(ROOT / "bench")]

import folders  # noqa: E402

folders.add()

import ctypes  # noqa: E402

import kflib  # noqa: E402
import torch  # noqa: E402
from lists import table  # noqa: E402

HIDDEN, LAYERS, VOCAB = 192, 32, 16384
LAYER = [HIDDEN * HIDDEN] * 4 + [HIDDEN * HIDDEN * 8 // 3] * 3 + [HIDDEN] * 2
LISTS = {"one": [1 << 24], "decoder": [VOCAB * HIDDEN, *LAYER * LAYERS, HIDDEN]}
NAMES = ("param", "grad", "exp_avg", "exp_avg_sq")


def step_of_kf(lib, f, tensors, lengths):
    """Returns kf's step over {list: tensors}."""
    tables = {name: table(x.data_ptr() for x in own) for name, own in tensors.items()}
    held = [*tables.values(), table(lengths, ctypes.c_int64)]
    values = {name: ctypes.addressof(x) for name, x in tables.items()}
    values |= dict.fromkeys(("master", "grad_scale", "found_inf"))
    values |= {"lengths": ctypes.addressof(held[-1]), "count": len(lengths)}
    values |= {a["name"]: a["default"] for a in f["arguments"] if "default" in a}
    call = lib.bind(f, values)

    def step(keep=held):
        if call():
            raise RuntimeError(lib.detail)

    return step


def step_of_torch(tensors):
    """Returns the step of PyTorch's fused AdamW over copies of the tensors."""
    params = [torch.nn.Parameter(x.clone()) for x in tensors["param"]]
    for p, g in zip(params, tensors["grad"]):
        p.grad = g.clone()
    return torch.optim.AdamW(params, fused=True).step


def once(call):
    """Returns (wall, processor) seconds of one call."""
    wall, own = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - own


def main():
    torch.set_num_threads(args.threads)
    [f] = [
        f
        for f in kflib.manifest()["functions"]
        if f["op"] == "adamw" and f["dtypes"] == ["f32"] and f["family"] == "optimizer"
    ]
    lib = kflib.build("cpu", [f], ROOT / "build/bench")
    for name, lengths in LISTS.items():
        tensors = {n: [torch.rand(k) for k in lengths] for n in NAMES}
        calls = {"kf": step_of_kf(lib, f, tensors, lengths), "torch": step_of_torch(tensors)}
        samples, order = {n: [] for n in calls}, random.Random(0)
        for call in calls.values():
            once(call), once(call)
        for _ in range(args.rounds):
            for n in order.sample([*calls], 2):
                samples[n].append(once(calls[n]))
        wall, own = (
            {n: statistics.median(x[i] for x in of) for n, of in samples.items()} for i in (0, 1)
        )
        moved = sum(lengths) * 28
        rate, load = moved / wall["kf"] / 1e9, os.getloadavg()[0]
        print(
            f"{f['cpu_name']} {name:<8} {wall['kf'] * 1e3:7.2f} ms, {rate:5.1f} GB/s, "
            f"{wall['torch'] / wall['kf']:5.2f}x of torch in wall time, "
            f"{own['torch'] / own['kf']:5.2f}x in processor time; load {load:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
