# SPDX-License-Identifier: Apache-2.0
"""Ops over rows by the C functions: beside PyTorch eager as users call it, beside PyTorch's functions that write into given tensors
where it has them, and beside a copy of as many bytes, in the same interleaved rounds.

    OMP_NUM_THREADS=2 python3 bench/rows_cpu.py --out bench/results/cpu/rows.json

A result is compared with float64 on its first rows before it is timed. Times are medians, the peers' backward without the forward.
"""

import math
import os
import sys

THREADS = int(os.environ.setdefault("OMP_NUM_THREADS", "2"))  # before any OpenMP runtime starts

import machine  # noqa: E402
import rows as shared  # noqa: E402
import store  # noqa: E402
import timing  # noqa: E402
import torch  # noqa: E402

kflib, DTYPES, EPS, P = shared.kflib, shared.DTYPES, shared.EPS, shared.P
shared.DEVICE = "cpu"
SHAPES = ((65536, 256), (16384, 1024), (4096, 4096), (256, 65536))
aten = torch.ops.aten
ROUNDS = 5


def arguments():
    p = shared.parser(__doc__, "rows_cpu", SHAPES)
    p.add_argument("--flags", nargs="*", default=list(kflib.CPU_FLAGS), help="the compiler's")
    return p.parse_args()


def layer_norm_out(x, t, out, mean, rstd):
    aten.native_layer_norm.out(x, x.shape[-1:], t["weight"], t["bias"], EPS, out0=out, out1=mean, out2=rstd)


def saved(t):
    """Where PyTorch puts the mean and rstd of rows."""
    return [torch.empty(len(t["x"]), 1, dtype=t["x"].dtype) for _ in range(2)]


def _layer_norm(t):
    out, kept = torch.empty_like(t["x"]), saved(t)
    return lambda: layer_norm_out(t["x"], t, out, *kept)


def _add_layer_norm(t):
    total, out, kept = torch.empty_like(t["x"]), torch.empty_like(t["x"]), saved(t)

    def call():
        torch.add(t["x"], t["residual"], out=total)
        layer_norm_out(total, t, out, *kept)
    return call


def _layer_norm_dropout(t):
    out, mask, kept, zero = torch.empty_like(t["x"]), torch.empty_like(t["x"]), saved(t), t["x"].new_zeros(())

    def call():
        layer_norm_out(t["x"], t, out, *kept)
        torch.addcmul(zero, mask.bernoulli_(1 - P), out, value=1 / (1 - P), out=out)
    return call


def _l2_normalize(t):
    out, norm = torch.empty_like(t["x"]), torch.empty(len(t["x"]), 1, dtype=t["x"].dtype)

    def call():
        torch.linalg.vector_norm(t["x"], dim=-1, keepdim=True, out=norm)
        torch.div(t["x"], norm.clamp_min_(1e-12), out=out)
    return call


def _cross_entropy(t):
    logs = torch.empty_like(t["x"])
    loss, total = torch.empty(len(logs), dtype=logs.dtype), torch.empty((), dtype=logs.dtype)

    def call():
        torch.log_softmax(t["x"], -1, out=logs)
        aten.nll_loss_forward.output(logs, t["label"], None, 0, -100, output=loss, total_weight=total)
    return call


def _into(fn, of="x"):
    """A function that writes a tensor of x's shape."""
    def make(t):
        out = torch.empty_like(t[of])
        return lambda: fn(t, out)
    return make


# {(op, whether it is the gradient): tensors -> a call that allocates nothing}, where PyTorch has such functions.
EAGER_OUT = {
    ("softmax", False): _into(lambda t, out: torch.softmax(t["x"], -1, out=out)),
    ("log_softmax", False): _into(lambda t, out: torch.log_softmax(t["x"], -1, out=out)),
    ("softmax", True): _into(lambda t, out: aten._softmax_backward_data.out(t["dout"], t["out"], -1, t["out"].dtype, grad_input=out), "out"),
    ("log_softmax", True): _into(lambda t, out: aten._log_softmax_backward_data.out(t["dout"], t["out"], -1, t["out"].dtype, out=out), "out"),
    ("layer_norm_{act}", False): _layer_norm, ("add_layer_norm_{act}", False): _add_layer_norm,
    ("layer_norm_{act}_dropout", False): _layer_norm_dropout, ("l2_normalize", False): _l2_normalize, ("cross_entropy", False): _cross_entropy,
}


def measure(lib, f, rows, cols, timer):
    t = shared.tensors(f, rows, cols, DTYPES[f["dtypes"][0]])
    call = shared.bound(lib, f, t)
    shared.compare(f, t)
    moved = shared.moved_bytes(f, t)
    source, target = (torch.randn(moved // 8) for _ in range(2))
    calls = {"kf": call, "copy": lambda: target.copy_(source), "copy_1": lambda: target.copy_(source)}
    calls["eager"] = shared.called(f, t, shared.FORWARD[f["op"]])
    if make := EAGER_OUT.get((f["op"], f["bwd"])):
        calls["eager_out"] = make(t)
    times = timer.measure({n: lambda i, c=c: c() for n, c in calls.items()}, 1, ROUNDS)
    us = {n: found["us"] for n, found in times.items() if "us" in found}
    copy = min(us["copy"], us["copy_1"])
    return {"function": f["cpu_name"], "sizes": shared.sizes_of(f, rows, cols), "bytes": moved, "us": us, "percent_of_copy": 100 * copy / us["kf"],
            "gbps": moved / us["kf"] / 1e3, "speedup": {n: us[n] / us["kf"] for n in ("eager", "eager_out") if n in us},
            "failed": {n: found["failed"] for n, found in times.items() if "failed" in found}}


def geomean(found):
    return math.exp(sum(map(math.log, found)) / len(found))


def summary(found):
    """The geometric mean over all, and over the shapes of each function."""
    for peer in ("eager", "eager_out"):
        rows = [r for r in found if peer in r["speedup"]]
        of = {}
        for r in rows:
            of.setdefault(r["function"], []).append(r["speedup"][peer])
        if of:
            slow = ", ".join(f"{n} {geomean(s):.2f}" for n, s in sorted(of.items(), key=lambda i: geomean(i[1])) if geomean(s) < 1)
            print(f"{peer}: {geomean([r['speedup'][peer] for r in rows]):.2f}x over {len(of)} functions; below 1: {slow or 'none'}")


def main():
    o = arguments()
    torch.set_num_threads(THREADS)
    chosen = shared.functions(o)
    lib = kflib.build("cpu", shared.distinct(chosen), o.build_dir, o.flags)
    timer, found = timing.Cpu(THREADS), []
    for f in chosen:
        for shape in o.shapes:
            found.append(measure(lib, f, *map(int, shape.split("x")), timer))
            row = found[-1]
            beside = "  ".join(f"{n} {s:.2f}x" for n, s in row["speedup"].items())
            failed = "  ".join(f"{n} FAILED: {why}" for n, why in row["failed"].items())
            print(f"{row['function']:36} {shape:>12} {row['us']['kf']:9.1f} us {row['percent_of_copy']:6.1f} % of copy  {beside}{failed}", flush=True)
    summary(found)
    if o.out:
        head = {"command": f"OMP_NUM_THREADS={THREADS} python3 bench/rows_cpu.py " + " ".join(sys.argv[1:]),
                "machine": machine.describe("cpu", os.environ.get("CC", "gcc"), o.flags, THREADS), "rounds": ROUNDS,
                "data": "N(0, 1); compared with float64 before it was timed"}
        store.write(o.out, head, found)


if __name__ == "__main__":
    main()
