# SPDX-License-Identifier: Apache-2.0
"""Small tensors of rows on a GPU, inside CUDA graphs, so that no launch is waited for: each launcher beside torch.compile.

    python3 bench/rows_small.py --out bench/results/h200/rows_small.json

A graph goes over so many sets of tensors, 96 MiB of them, that an L2 cache of 50 MB does not hold them. A result is compared with
float64 on its first rows before it is timed.
"""

import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import rows as shared  # noqa: E402
import timing  # noqa: E402
import torch  # noqa: E402

SHAPES = ((64, 4096), (8192, 128))
COLD = 96 << 20  # bytes of all sets
ROUNDS = 5


def measure(lib, f, rows, cols, timer):
    dtype = shared.DTYPES[f["dtypes"][0]]
    first = shared.tensors(f, rows, cols, dtype)
    moved = shared.moved_bytes(f, first)
    sets = [first] + [shared.tensors(f, rows, cols, dtype) for _ in range(math.ceil(COLD / moved) - 1)]
    calls = [shared.bound(lib, f, t, timer.stream.cuda_stream) for t in sets]
    timer.stream.synchronize()
    shared.compare(f, first)
    torch._dynamo.reset()
    fn = torch.compile(shared.FORWARD[f["op"]], dynamic=False)
    peers = [shared.called(f, t, fn) for t in sets]
    found = timer.measure({"kf": lambda i: calls[i](), "compile": lambda i: peers[i]()}, len(sets), ROUNDS)
    us = {name: times["us"] for name, times in found.items() if "us" in times}
    return {"function": f["name"], "sizes": shared.sizes_of(f, rows, cols), "bytes": moved, "us": us, "how": found["kf"]["how"],
            "speedup": {"compile": us["compile"] / us["kf"]} if "compile" in us else {},
            "failed": {name: times["failed"] for name, times in found.items() if "failed" in times}}


def main():
    o = shared.parser(__doc__, shapes=SHAPES).parse_args()
    chosen = shared.functions(o)
    lib = shared.kflib.build("cuda", shared.distinct(chosen), o.build_dir, ["-O3", "-arch=native"])
    timer, found = timing.Cuda(), []
    timer.warm_up()
    for shape in o.shapes:
        for f in chosen:
            found.append(measure(lib, f, *map(int, shape.split("x")), timer))
            row = found[-1]
            speedup = row["speedup"].get("compile", math.nan)
            print(f"{row['function']:40} {shape:>10} {row['us']['kf']:7.2f} us {speedup:6.2f}x compile {row['failed'] or ''}", flush=True)
            # Each time: what was measured is kept if the run is cut off.
            shared.write(o.out, "bench/rows_small.py", found, "96 MiB of sets in turn; in CUDA graphs")


if __name__ == "__main__":
    main()
