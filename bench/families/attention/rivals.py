# SPDX-License-Identifier: Apache-2.0
"""Attention beside cuDNN and FlashAttention 2 (through PyTorch's scaled_dot_product_attention) and,
for scores of their own, compiled FlexAttention. All contenders of a shape are shuffled in one run.

    python3 bench/families/attention/rivals.py --out attention.json
    python3 bench/families/attention/rivals.py --build-only
    python3 bench/families/attention/rivals.py --only square --peers cudnn \\
        --flags "-O3 -arch=sm_90a -DKF_SCHEDULES=2 -DKF_HEAD_DIMS=3"

The third command measures the mma.sync kernels. TFLOP/s count 2 (dim + dim_v) operations per
visible pair of query and key.
"""

import argparse
import functools
import json
import math
import pathlib
import shlex
import sys
import time

HERE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HERE), str(HERE.parent / "tests/support"), str(HERE.parent / "gen")]

import folders  # noqa: E402

folders.add()

COLD = 220e6  # bytes of inputs that are gone through in turn
FLAGS = "-O3 -gencode arch=compute_90a,code=sm_90a"
SOFTCAP, LEFT = 30.0, 1024
DATA = (
    "inputs N(0, 1), drawn once in the dtype; a mask hides three keys of ten at random; window: "
    "the last 1,025 keys; softcap 30; results of peers within 2 % of kf's, relative RMS"
)
TOKENS = 16384
# (op, batch, heads, kv_heads, queries, keys, dim, dim_v)
SQUARE = [
    (op, TOKENS // n, heads, heads, n, n, dim, dim)
    for dim, heads in ((128, 16), (64, 32))
    for op in ("attention", "causal_attention")
    for n in (512, 1024, 2048, 4096, 8192, 16384)
]
PLAIN = SQUARE + [
    (op, 4, heads, kv_heads, 4096, 4096, dim, dim_v)
    for op in ("attention", "causal_attention")
    for heads, kv_heads, dim, dim_v in ((64, 8, 128, 128), (16, 16, 192, 128), (8, 8, 256, 256))
]
SCORES = [
    (op, 4, 16, 16, 4096, 4096, 128, 128)
    for op in (
        "window_attention",
        "softcap_causal_attention",
        "alibi_causal_attention",
        "bias_attention",
        "mask_attention",
    )
]


ROWS = {"square": SQUARE, "plain": PLAIN, "scores": SCORES, None: PLAIN + SCORES}


def functions(dtype, rows):
    import kflib

    names = {f"kf_{row[0]}_{dtype}" for row in rows}
    return {f["name"]: f for f in kflib.manifest()["functions"] if f["name"] in names}


class Inputs:
    """Tensors of a shape, in enough sets to exceed the cache."""

    def __init__(self, torch, row, dtype):
        self.op, b, h, kv, n, m, dim, dim_v = row
        self.torch, self.row, self.type = torch, row, getattr(torch, dtype)
        each = 2 * b * (n * h * (dim + dim_v) + m * kv * (dim + dim_v))
        self.sets, self.scale = max(2, min(16, math.ceil(COLD / each))), dim**-0.5
        draw = functools.partial(torch.randn, device="cuda", dtype=self.type)
        self.q = [draw(b, n, h, dim) for _ in range(self.sets)]
        self.k = [draw(b, m, kv, dim) for _ in range(self.sets)]
        self.v = [draw(b, m, kv, dim_v) for _ in range(self.sets)]
        self.slope = 2.0 ** -torch.arange(1, h + 1, device="cuda", dtype=torch.float32)
        self.bias = draw(b, h, n, m) if "bias" in self.op else None
        self.mask = torch.rand(b, h, n, m, device="cuda") < 0.7 if "mask" in self.op else None
        if self.mask is not None:
            self.mask[..., 0] = True

    @property
    def causal(self):
        return "causal" in self.op

    def pairs(self):
        """Visible pairs of a query and a key."""
        _, b, h, _, n, m, *_ = self.row
        if self.causal:
            return b * h * sum(min(m, max(0, i + m - n + 1)) for i in range(n))
        if "window" in self.op:
            return b * h * sum(min(m, i + m - n + 1) - max(0, i + m - n - LEFT) for i in range(n))
        return b * h * n * m


def by_kf(lib, f, t, stream):
    """Returns call(set index) of kf; lse is written."""
    torch, sizes = t.torch, dict(zip(f["sizes"], t.row[1:]))
    need = lib.workspace_bytes(f, list(t.row[1:]))
    work = torch.empty(max(need, 1), device="cuda", dtype=torch.uint8)
    lse = torch.empty(*t.row[1:3], t.row[4], device="cuda")
    mask = None if t.mask is None else t.mask.to(torch.uint8)
    shared = {"bias": t.bias, "mask": mask, "slope": t.slope, "lse": lse, "workspace": work}
    calls, outs = [], []
    for q, k, v in zip(t.q, t.k, t.v):
        outs.append(torch.empty(*q.shape[:3], v.shape[3], device="cuda", dtype=t.type))
        tensors = {"q": q, "k": k, "v": v, "out": outs[-1]} | shared
        values = {a["name"]: None for a in f["arguments"] if a["role"] != "shape"} | sizes
        values |= {n: x.data_ptr() for n, x in tensors.items() if x is not None}
        values |= {"scale": t.scale, "softcap": SOFTCAP, "left": LEFT, "right": 0}
        calls.append(lib.bind(f, values | {"workspace_bytes": need}, stream))

    def call(i, kept=(shared, work)):
        if status := calls[i]():
            raise RuntimeError(f"{f['name']}: {lib.string(status)} ({lib.detail})")
        return outs[i]

    return call


def by_sdpa(t, backend):
    """Returns call(set index) of one of PyTorch's backends."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    which = getattr(SDPBackend, backend)
    mask = t.bias if t.bias is not None else t.mask

    def call(i):
        q, k, v = (x[i].transpose(1, 2) for x in (t.q, t.k, t.v))
        with sdpa_kernel(which):
            out = scaled_dot_product_attention(
                q,
                k,
                v,
                mask,
                is_causal=t.causal,
                scale=t.scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        return out.transpose(1, 2)

    return call


def by_flex(t):
    """Returns call(set index) of compiled FlexAttention."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch = t.torch

    def visible(b, h, q, k):
        return (q >= k) & (q - k <= LEFT) if "window" in t.op else q >= k

    def score(s, b, h, q, k):
        if "softcap" in t.op:
            return SOFTCAP * torch.tanh(s / SOFTCAP)
        if "alibi" in t.op:
            return s - t.slope[h] * (q - k)
        return s + t.bias[b, h, q, k]

    n, m = t.row[4], t.row[5]
    ranged = t.causal or "window" in t.op
    blocks = create_block_mask(visible, None, None, n, m, device="cuda") if ranged else None
    if "mask" in t.op:
        blocks = create_block_mask(
            lambda b, h, q, k: t.mask[b, h, q, k], *t.row[1:3], n, m, device="cuda"
        )
    own = any(word in t.op for word in ("softcap", "alibi", "bias"))
    run = torch.compile(flex_attention, dynamic=False)

    def call(i):
        q, k, v = (x[i].transpose(1, 2) for x in (t.q, t.k, t.v))
        out = run(q, k, v, score if own else None, blocks, t.scale, q.shape[1] != k.shape[1])
        return out.transpose(1, 2)

    return call


def contenders(lib, f, t, stream):
    found = {"kf": by_kf(lib, f, t, stream)}
    ranged = "window" in t.op or "softcap" in t.op or "alibi" in t.op
    if not ranged:
        found["cudnn"] = by_sdpa(t, "CUDNN_ATTENTION")
        if t.bias is None and t.mask is None:
            found["flash2"] = by_sdpa(t, "FLASH_ATTENTION")
    if t.op not in ("attention", "causal_attention"):
        found["flex"] = by_flex(t)
    return found


def checked(calls, t):
    """Returns (calls that work, {contender: error relative to kf's}); prints the others."""
    kept, off, want = {}, {}, calls["kf"](0).double()
    if not bool(want.isfinite().all()):
        raise SystemExit(f"attention: kf {t.row}: not finite")
    for name, call in calls.items():
        try:
            got = call(0).double()
        except Exception as e:  # a backend that does not have the shape
            print(f"  {name} {t.row}: {str(e).splitlines()[0][:90]}", flush=True)
            continue
        off[name] = float((got - want).square().mean().sqrt() / want.square().mean().sqrt())
        if not off[name] <= 0.02:
            raise SystemExit(f"attention: {name} {t.row}: differs from kf by {off[name]}")
        kept[name] = call
    return kept, off


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--dtype", choices=("bf16", "f16"), default="bf16")
    p.add_argument("--flags", default=FLAGS)
    p.add_argument("--pace", default="shuffled", choices=("shuffled", "burst", "sustained"))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--only", choices=("square", "plain", "scores"))
    p.add_argument("--peers", nargs="+", choices=("cudnn", "flash2", "flex"))
    p.add_argument("--limit-seconds", type=float, default=float("inf"))
    p.add_argument("--build-dir", type=pathlib.Path, default=HERE.parent / "build-bench")
    p.add_argument("--build-only", action="store_true")
    return p.parse_args()


def measure(lib, f, row, timer, args, torch):
    """Returns a row of the results."""
    if row in SCORES:
        torch._dynamo.reset()
    t = Inputs(torch, row, {"bf16": "bfloat16", "f16": "float16"}[args.dtype])
    found = contenders(lib, f, t, timer.stream.cuda_stream)
    kept = {n: call for n, call in found.items() if n == "kf" or n in (args.peers or found)}
    calls, off = checked(kept, t)
    found = timer.measure(calls, t.sets, args.rounds, args.pace)
    us = {name: one["us"] for name, one in found.items() if "us" in one}
    flops = 2 * (row[6] + row[7]) * t.pairs()
    return {
        "function": f["name"],
        "sizes": list(row[1:]),
        "times": found,
        "errors": {name: one for name, one in off.items() if name != "kf"},
        "tflops": {name: flops / u * 1e-6 for name, u in us.items()},
        "speedup": {name: u / us["kf"] for name, u in us.items() if name != "kf"},
    }


def summary(rows):
    """Prints the geometric mean of each ratio by op and dimension."""
    of = {}
    for row in rows:
        for peer, ratio in row["speedup"].items():
            of.setdefault((row["function"], row["sizes"][5], peer), []).append(ratio)
    for (function, dim, peer), found in of.items():
        mean = math.exp(sum(map(math.log, found)) / len(found))
        print(f"{function:<32} {dim:>4} {peer:<7} {mean:.3f}, least {min(found):.3f}", flush=True)


def main():
    args, started, rows = arguments(), time.monotonic(), []
    import kflib

    chosen = ROWS[args.only]
    own = functions(args.dtype, chosen)
    lib = kflib.build(
        "cuda", list(own.values()), args.build_dir / "attention", flags=shlex.split(args.flags)
    )
    print(f"built at {time.monotonic() - started:.0f} s", flush=True)
    if args.build_only:
        return
    import machine
    import store
    import timing
    import torch

    timer = timing.Cuda()
    for row in chosen:
        if time.monotonic() - started > args.limit_seconds:
            print(f"stopped before {row}", flush=True)
            break
        rows.append(measure(lib, own[f"kf_{row[0]}_{args.dtype}"], row, timer, args, torch))
        shown = {n: round(x) for n, x in rows[-1]["tflops"].items()}
        print(*row, shown, f"at {time.monotonic() - started:.0f} s", flush=True)
        torch.cuda.empty_cache()
    summary(rows)
    if args.out:
        head = {
            "set": "attention",
            "command": shlex.join(["python3", "bench/families/attention/rivals.py", *sys.argv[1:]]),
            "machine": machine.describe("cuda", "nvcc", shlex.split(args.flags), 1),
            "method": timing.METHOD,
            "pace": timing.PACES[args.pace],
            "data": DATA,
        }
        kept = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
        new = {(r["function"], tuple(r["sizes"])) for r in rows}
        kept = [r for r in kept if (r["function"], tuple(r["sizes"])) not in new]
        store.write(args.out, head, kept + rows)


if __name__ == "__main__":
    main()
