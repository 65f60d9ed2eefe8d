# SPDX-License-Identifier: Apache-2.0
"""Linear layers beside library products, with all contenders of a shape shuffled in one run.

Contenders: kf's launchers with bias, activation, residual and saved value; cuBLAS; cuBLASLt's
epilogues (torch._addmm_activation: relu and tanh-gelu); torch.compile. Groups are [layers.NAME] of
shapes.toml.

    python3 bench/layers.py --group epilogues --pace burst --out bench/results/h200/layers.json
    python3 bench/layers.py --build-only     compiles everything, measures nothing

Paces (timing.PACES): shuffled, without pauses; burst, each sample after a pause; sustained, after
0.2 s of the same call.
"""

import argparse
import functools
import json
import math
import pathlib
import shlex
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests/support"), str(HERE.parent / "gen")]

import folders  # noqa: E402

folders.add()

import case  # noqa: E402

COLD = 220e6  # bytes of inputs that are gone through in turn
FLAGS = "-O3 -gencode arch=compute_90a,code=sm_90a"
DATA = "inputs N(0, 1), weights N(0, 1) / sqrt(depth)"


def groups():
    return case.read()["layers"]


def function_of(words, dtype):
    """Returns the launcher of a contender: "kf linear_gelu pre bias" gives kf_linear_gelu_bf16."""
    return f"kf_{words[1]}_{dtype}"


def parse(contender):
    words = contender.split()
    return words, set(words[2:])


class Tensors:
    """Tensors of a shape's contenders, in enough sets to exceed the cache."""

    def __init__(self, torch, dtype, sizes, device="cuda"):
        self.torch, self.device, (self.rows, self.cols, self.depth) = torch, device, sizes
        self.type = {"bf16": torch.bfloat16, "f16": torch.float16}.get(dtype, torch.float32)
        each = (
            self.rows * self.depth + self.cols * self.depth + self.rows * self.cols
        ) * self.type.itemsize
        self.sets = max(2, min(32, math.ceil(COLD / each)))

    def drawn(self, *shape, scale=1.0):
        return (self.torch.randn(*shape, device=self.device) * scale).to(self.type)

    @functools.cached_property
    def x(self):
        return [self.drawn(self.rows, self.depth) for _ in range(self.sets)]

    @functools.cached_property
    def weight(self):
        return [self.drawn(self.cols, self.depth, scale=self.depth**-0.5) for _ in range(self.sets)]

    @functools.cached_property
    def up(self):
        return [self.drawn(self.cols, self.depth, scale=self.depth**-0.5) for _ in range(self.sets)]

    @functools.cached_property
    def bias(self):
        return self.drawn(self.cols)

    @functools.cached_property
    def residual(self):
        return [self.drawn(self.rows, self.cols) for _ in range(self.sets)]

    @functools.cached_property
    def turned(self):
        """Returns {layout: factors in that layout whose product is x @ weight.T}."""
        x, weight = ([t.mT.contiguous() for t in tensors] for tensors in (self.x, self.weight))
        return {
            "nt": (self.x, self.weight),
            "nn": (self.x, weight),
            "tn": (x, weight),
            "tt": (x, self.weight),
        }


def by_kf(lib, functions, t, dtype, words, options, stream):
    """Returns call(set index) of kf."""
    f = functions[function_of(words, dtype)]
    sizes, names = (1, t.rows, t.cols, t.depth), {a["name"] for a in f["arguments"]}
    need, torch = lib.workspace_bytes(f, sizes), t.torch
    workspace = torch.empty(max(need, 1), device="cuda", dtype=torch.uint8)
    calls, outs = [], []
    for i in range(t.sets):
        given = {"out": torch.empty(t.rows, t.cols, device="cuda", dtype=t.type)}
        if "a" in names:
            given |= dict(zip("ab", (factor[i] for factor in t.turned[words[1][-2:]])))
        elif "gate_weight" in names:
            given |= {"x": t.x[i], "gate_weight": t.weight[i], "up_weight": t.up[i]}
        else:
            given |= {"x": t.x[i], "weight": t.weight[i]}
        given |= {"bias": t.bias} if "bias" in options else {}
        given |= {"pre": torch.empty_like(given["out"])} if "pre" in options else {}
        given |= {"residual": t.residual[i]} if "residual" in names else {}
        values = (
            {a["name"]: None for a in f["arguments"]}
            | {n: v.data_ptr() for n, v in given.items()}
            | dict(zip(f["sizes"], sizes))
        )
        values |= {
            "alpha": 1.0,
            "beta": 0.0,
            "workspace": workspace.data_ptr(),
            "workspace_bytes": need,
        }
        calls.append(lib.bind(f, values, stream))
        outs.append(given)

    def call(i, kept=(outs, workspace)):
        if status := calls[i]():
            raise RuntimeError(f"{f['name']}: {lib.string(status)} ({lib.detail})")
        return outs[i]["out"]

    return call


def by_torch(t, words, options):
    """Returns call(set index) of PyTorch."""
    F, torch, what = t.torch.nn.functional, t.torch, words[1]
    bias = t.bias if "bias" in options else None
    if what == "product":
        outs = [torch.empty(t.rows, t.cols, device=t.device, dtype=t.type) for _ in range(t.sets)]
        return lambda i: torch.mm(t.x[i], t.weight[i].t(), out=outs[i])
    if what in ("nn", "tn", "tt"):
        a, b = t.turned[what]
        return lambda i: (
            (a[i].t() if what[0] == "t" else a[i]) @ (b[i].t() if what[1] == "t" else b[i])
        )
    if what == "linear":
        return lambda i: F.linear(t.x[i], t.weight[i], bias)
    if what in ("relu", "gelu_tanh"):  # cuBLASLt
        return lambda i: torch._addmm_activation(
            t.bias, t.x[i], t.weight[i].t(), use_gelu=what == "gelu_tanh"
        )
    formulas = {
        "gelu": lambda x, w, u: F.gelu(F.linear(x, w, bias)),
        "gated": lambda x, w, u: F.silu(F.linear(x, w)) * F.linear(x, u),
    }
    up = t.up if what == "gated" else [None] * t.sets
    run = (
        torch.compile(formulas[what], fullgraph=True, dynamic=False)
        if words[0] == "compile"
        else formulas[what]
    )
    return lambda i: run(t.x[i], t.weight[i], up[i])


def wanted(t, words):
    """Expected result of a contender on the first set."""
    F, product = t.torch.nn.functional, lambda w: t.x[0].double() @ w.double().t()
    name, acc = words[1], product(t.weight[0])
    if name in ("linear_silu_mul", "gated"):
        return F.silu(acc) * product(t.up[0])
    acc = acc + t.bias.double() if "bias" in words[2:] else acc
    acc = (
        F.relu(acc)
        if "relu" in name
        else F.gelu(acc, approximate="tanh")
        if "gelu_tanh" in name
        else F.gelu(acc)
        if "gelu" in name
        else acc
    )
    return acc + t.residual[0].double() if name.endswith("_add") else acc


def error(got, want):
    """Root mean square of the difference, relative to that of the result."""
    return float((got.double() - want).square().mean().sqrt() / want.square().mean().sqrt())


def measure(group, sizes, libs, functions, timer, pace, rounds, torch):
    """Returns a row of the results."""
    dtype, contenders = group["dtype"], group["contenders"]
    if any(c.startswith("compile") for c in contenders):
        # Otherwise another shape would count as a recompilation.
        torch._dynamo.reset()
    t, calls, off = Tensors(torch, dtype, sizes), {}, {}
    for contender in contenders:
        words, options = parse(contender)
        if words[0] == "kf":
            calls[contender] = by_kf(
                libs["early" in options],
                functions,
                t,
                dtype,
                words,
                options,
                timer.stream.cuda_stream,
            )
        else:
            calls[contender] = by_torch(t, words, options)
        off[contender] = error(calls[contender](0), wanted(t, words))
        if not off[contender] <= 0.02:
            raise SystemExit(f"layers: {contender} {sizes}: off by {off[contender]}")
    found = timer.measure(calls, t.sets, rounds, pace)
    us = {name: f["us"] for name, f in found.items() if "us" in f}
    ratios = {}
    for pair in group["ratios"]:
        own, peers = pair.split(" : ")
        there = [us[p] for p in peers.split(" | ") if p in us]
        if own in us and there:
            ratios[pair] = min(there) / us[own]
    flops = 2 * math.prod(sizes)
    return {
        "dtype": dtype,
        "sizes": list(sizes),
        "pace": pace,
        "times": found,
        "ratios": ratios,
        "errors": off,
        "tflops": {name: flops / u * 1e-6 for name, u in us.items()},
    }


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(rows):
    """Summarises each ratio by geometric mean and minimum, one line each."""
    for ratio in dict.fromkeys(r for row in rows for r in row["ratios"]):
        found = [(row["ratios"][ratio], row["sizes"]) for row in rows if ratio in row["ratios"]]
        print(
            f"{ratio:<52} {geomean([f for f, _ in found]):.3f}, least {min(found)[0]:.3f} at "
            f"{min(found)[1]}",
            flush=True,
        )


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument(
        "--group",
        action="append",
        help="one of shapes.toml's; may be repeated; all, if it is not said",
    )
    p.add_argument("--pace", action="append", choices=("shuffled", "burst", "sustained"))
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--flags", default=FLAGS)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument(
        "--limit-seconds",
        type=float,
        default=float("inf"),
        help="begin no shape after so many seconds",
    )
    p.add_argument("--build-dir", type=pathlib.Path, default=HERE.parent / "build-bench")
    p.add_argument(
        "--build-only",
        action="store_true",
        help="compile, also torch.compile's kernels, and measure nothing",
    )
    return p.parse_args()


def build(args, chosen):
    """Returns ({weights read early: launchers}, manifest entries)."""
    import kflib

    names = {
        early: {
            function_of(words, g["dtype"])
            for g in chosen.values()
            for words, options in map(parse, g["contenders"])
            if words[0] == "kf" and ("early" in options) == early
        }
        for early in (False, True)
    }
    functions = {
        f["name"]: f
        for f in kflib.manifest()["functions"]
        if f["name"] in names[False] | names[True]
    }
    libs = {
        early: kflib.build(
            "cuda",
            [functions[n] for n in sorted(found)],
            args.build_dir / ("early" if early else "layers"),
            flags=shlex.split(args.flags) + ["-DKF_EARLY_WEIGHTS"] * early,
        )
        for early, found in names.items()
        if found
    }
    return libs, functions


def main():
    args, started = arguments(), time.monotonic()
    import machine
    import timing
    import torch

    chosen = {n: g for n, g in groups().items() if n in (args.group or groups())}
    libs, functions = build(args, chosen)
    print(f"built at {time.monotonic() - started:.0f} s", flush=True)
    timer, rows = timing.Cuda(), []
    for name, group in chosen.items():
        torch.backends.cuda.matmul.allow_tf32 = group["dtype"] == "tf32"
        for pace in args.pace or group.get("paces", ["shuffled"]):
            mine = []
            for sizes in group["sizes"]:
                if time.monotonic() - started > args.limit_seconds:
                    print(f"{name}, {pace}: stopped before {sizes}", flush=True)
                    break
                row = {"group": name} | measure(
                    group,
                    sizes,
                    libs,
                    functions,
                    timer,
                    pace,
                    0 if args.build_only else args.rounds,
                    torch,
                )
                mine.append(row)
                print(
                    name,
                    pace,
                    sizes,
                    {n: round(f["us"], 1) for n, f in row["times"].items() if "us" in f},
                    flush=True,
                )
                torch.cuda.empty_cache()
            if not args.build_only:
                print(f"--- {name}, {pace}, at {time.monotonic() - started:.0f} s")
                summary(mine)
            rows += mine
    if args.out and not args.build_only:
        import store

        where = machine.describe("cuda", "nvcc", shlex.split(args.flags), 1)
        head = {
            "command": shlex.join(["python3", "bench/layers.py", *sys.argv[1:]]),
            "machine": where,
            "method": timing.METHOD,
            "paces": timing.PACES,
            "data": DATA,
        }
        kept = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
        new = {(r["group"], r["pace"], tuple(r["sizes"])) for r in rows}
        store.write(
            args.out,
            head,
            [r for r in kept if (r["group"], r["pace"], tuple(r["sizes"])) not in new] + rows,
        )


if __name__ == "__main__":
    main()
