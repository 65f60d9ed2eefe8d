# SPDX-License-Identifier: Apache-2.0
"""A GELU MLP block in training (bf16): kf's launchers beside PyTorch, eager and compiled.

Forward and backward run in CUDA graphs, in shuffled rounds. Requires a GPU.

    python3 bench/mlp.py [--out FILE] [--flags "flags of nvcc"]
"""

import argparse
import json
import pathlib
import shlex
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests/support"), str(HERE.parent / "gen")]

import folders  # noqa: E402

folders.add()
BLOCKS = [(8192, 768, 3072), (8192, 4096, 16384)]  # rows, a row's length outside and inside
NAMES = "kf_linear_gelu_bf16", "kf_linear_bf16", "kf_linear_bwd_bf16", "kf_linear_gelu_bwd_bf16"
FLAGS = "-O3 -gencode arch=compute_90a,code=sm_90a"
RESULTS = "dx", "dw1", "db1", "dw2", "db2"


def tensors(torch, rows, outside, inside):
    def drawn(*shape, scale=1.0):
        return (torch.randn(*shape, device="cuda") * scale).to(torch.bfloat16)

    return {
        "x": drawn(rows, outside),
        "w1": drawn(inside, outside, scale=outside**-0.5),
        "b1": drawn(inside, scale=0.1),
        "w2": drawn(outside, inside, scale=inside**-0.5),
        "b2": drawn(outside, scale=0.1),
        "dy": drawn(rows, outside),
    }


def by_kf(torch, lib, functions, t, sizes, stream):
    """Returns (call of the four launchers with its results, the launchers)."""
    rows, outside, inside = sizes
    made = {"d" + n: torch.empty_like(t[n]) for n in ("x", "w1", "b1", "w2", "b2")} | {
        "y": torch.empty_like(t["x"])
    }
    hidden, pre, dhidden = (
        torch.empty(rows, inside, device="cuda", dtype=torch.bfloat16) for _ in range(3)
    )
    held, calls = [hidden, pre, dhidden], []

    def add(name, cols, depth, **given):
        f = functions[name]
        need = lib.workspace_bytes(f, (1, rows, cols, depth))
        held.append(torch.empty(max(need, 1), device="cuda", dtype=torch.uint8))
        given = {
            a["name"]: None for a in f["arguments"] if a["role"] in ("in", "out", "sum", "strides")
        } | given
        values = {n: v if v is None else v.data_ptr() for n, v in given.items()}
        values |= {
            "batch": 1,
            "rows": rows,
            "cols": cols,
            "depth": depth,
            "beta": 0.0,
            "workspace": held[-1].data_ptr(),
            "workspace_bytes": need,
        }
        calls.append(lib.bind(f, values, stream))

    add(
        "kf_linear_gelu_bf16",
        inside,
        outside,
        x=t["x"],
        weight=t["w1"],
        bias=t["b1"],
        out=hidden,
        pre=pre,
    )
    add("kf_linear_bf16", outside, inside, x=hidden, weight=t["w2"], bias=t["b2"], out=made["y"])
    add(
        "kf_linear_bwd_bf16",
        outside,
        inside,
        x=hidden,
        weight=t["w2"],
        bias=t["b2"],
        dout=t["dy"],
        dx=dhidden,
        dweight=made["dw2"],
        dbias=made["db2"],
    )
    add(
        "kf_linear_gelu_bwd_bf16",
        inside,
        outside,
        x=t["x"],
        weight=t["w1"],
        bias=t["b1"],
        pre=pre,
        dout=dhidden,
        dx=made["dx"],
        dweight=made["dw1"],
        dbias=made["db1"],
    )

    def call(_=0, held=held):
        for one in calls:
            if status := one():
                raise RuntimeError(f"{lib.string(status)} ({lib.detail})")
        return [made[n] for n in ("y", *RESULTS)]

    return call, calls


def by_torch(torch, t, compiled):
    def block(x, w1, b1, w2, b2):
        return torch.nn.functional.linear(
            torch.nn.functional.gelu(torch.nn.functional.linear(x, w1, b1)), w2, b2
        )

    fn = torch.compile(block, fullgraph=True, dynamic=False) if compiled else block
    leaves = [t[n].detach().requires_grad_() for n in ("x", "w1", "b1", "w2", "b2")]

    def call(_=0):
        y = fn(*leaves)
        return [y.detach(), *torch.autograd.grad(y, leaves, t["dy"])]

    return call


def differs(got, want):
    """Largest relative root mean square difference of a result."""
    return max(
        float((a.float() - b.float()).square().mean().sqrt() / b.float().square().mean().sqrt())
        for a, b in zip(got, want)
    )


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--flags", default=FLAGS)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--build-dir", type=pathlib.Path, default=HERE.parent / "build-bench")
    p.add_argument(
        "--build-only",
        action="store_true",
        help="compile, also torch.compile's kernels, and measure nothing",
    )
    args = p.parse_args()
    import kflib
    import machine
    import timing
    import torch

    flags = shlex.split(args.flags)
    functions = {f["name"]: f for f in kflib.manifest()["functions"] if f["name"] in NAMES}
    lib = kflib.build("cuda", list(functions.values()), args.build_dir, flags=flags)
    timer, rows = timing.Cuda(), []
    for sizes in BLOCKS:
        t = tensors(torch, *sizes)
        own, each = by_kf(torch, lib, functions, t, sizes, timer.stream.cuda_stream)
        calls = {"kf": own, "eager": by_torch(torch, t, False), "compile": by_torch(torch, t, True)}
        off = {
            name: differs(call(), calls["eager"]())
            for name, call in calls.items()
            if name != "eager"
        }
        if not all(d <= 0.02 for d in off.values()):
            raise SystemExit(f"mlp: {sizes} differs from eager: {off}")
        if args.build_only:
            continue
        found = timer.measure(
            calls | {name: (lambda _, one=one: one()) for name, one in zip(NAMES, each)},
            1,
            args.rounds,
        )
        row = {
            "sizes": dict(zip(("rows", "outside", "inside"), sizes)),
            "differs": off,
            "times": found,
            "speedup": {
                name: found[name]["us"] / found["kf"]["us"]
                for name in ("eager", "compile")
                if "us" in found[name]
            },
        }
        print(
            sizes,
            {name: round(f["us"], 1) if "us" in f else f for name, f in found.items()},
            row["speedup"],
            off,
            flush=True,
        )
        rows.append(row)
    if args.out and rows:
        method = "a step in a CUDA graph, rounds in shuffled order, one set of tensors"
        summary = {
            "command": "python3 bench/mlp.py",
            "machine": machine.describe("cuda", "nvcc", flags, 1),
            "method": method,
            "rows": rows,
        }
        args.out.write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
