# SPDX-License-Identifier: Apache-2.0
"""Ops over rows on a GPU: each launcher beside a copy of as many bytes and torch.compile, in the same rounds.

    python3 bench/rows.py --out bench/results/h200/rows.json

Tensors of 256 MiB evict themselves from the L2 cache. A result is compared with float64 on its first rows before it is timed;
the tests compare all of them. Times are medians.
"""

import argparse
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests/support"), str(HERE.parent / "gen")]

import kflib  # noqa: E402
import store  # noqa: E402
import torch  # noqa: E402
import torch._functorch.config  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from checks import philox  # noqa: E402

torch._functorch.config.donated_buffer = False  # the compiled backward runs many times over one forward

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
COLS = (128, 1024, 4096, 8192, 16384, 65536, 262144)
MIB, EPS, ROWS = 256, 1e-5, 64
CHANNELS = 64  # of ops over planes, whose first rows are one batch
DEVICE = "cuda"  # rows_cpu.py's is another
FORWARD = {
    "softmax": lambda t: F.softmax(t["x"], -1), "log_softmax": lambda t: F.log_softmax(t["x"], -1),
    "rms_norm_{act}": lambda t: F.rms_norm(t["x"], t["x"].shape[-1:], t["weight"], EPS),
    "layer_norm_{act}": lambda t: F.layer_norm(t["x"], t["x"].shape[-1:], t["weight"], t["bias"], EPS),
    "l2_normalize": lambda t: F.normalize(t["x"], dim=-1), "cross_entropy": lambda t: F.cross_entropy(t["x"], t["label"], reduction="none")}
FORWARD["instance_norm_{act}"] = lambda t: F.instance_norm(
    t["x"].view(-1, CHANNELS, t["x"].shape[-1]), weight=t["weight"], bias=t["bias"], eps=EPS).view_as(t["x"])
FORWARD["cross_entropy_with_grad"] = FORWARD["cross_entropy"]
GROUPS, PARTS = 32, 8  # of group_norm: groups, and the channels of one


def group_norm(t, x):
    """x: [batch, channels, ...], of any strides."""
    return F.group_norm(x, GROUPS, t["weight"], t["bias"], EPS)


def nhwc(x):
    """What lies [batch, length, channels], as PyTorch takes it: a strided [batch, channels, length, 1]."""
    return x.view(-1, x.shape[1] // PARTS, 1, GROUPS * PARTS).permute(0, 3, 1, 2)


NHWC = "group_norm_nhwc"  # the same launchers, other sizes
FORWARD["group_norm_{act}"] = lambda t: group_norm(t, t["x"].view(-1, GROUPS * PARTS, t["x"].shape[1] // PARTS)).view_as(t["x"])
FORWARD[NHWC] = lambda t: group_norm(t, nhwc(t["x"])).permute(0, 2, 3, 1).reshape(t["x"].shape)
BATCH = 32  # of batch norm


def batch_norm(t, x):
    """x: [batch, channels, ...], of any strides."""
    return F.batch_norm(x, None, None, t["weight"], t["bias"], True, 0.1, EPS)


BATCH_NHWC = "batch_norm_train_nhwc"
FORWARD["batch_norm_train_{act}"] = lambda t: batch_norm(t, t["x"].view(BATCH, len(t["weight"]), -1)).view_as(t["x"])
FORWARD[BATCH_NHWC] = lambda t: batch_norm(
    t, t["x"].view(BATCH, -1, 1, len(t["weight"])).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).reshape(t["x"].shape)
P = 0.1
SCALE = 0.125
HEADS = 16  # of attention's scores, at most as many queries as keys


def seen(t):
    """Attention's scores, those that are not seen -inf. A mask is [batch, queries, keys], or has a row for each of x."""
    x, mask = t["x"] * SCALE, t["mask"]
    x = x if mask.dim() == 2 else x.view(len(mask), -1, *mask.shape[1:])
    mask = mask if mask.dim() == 2 else mask[:, None]
    return (x + mask if mask.dtype != torch.bool else x.masked_fill(~mask, -torch.inf)).view_as(t["x"])


FORWARD |= {op: lambda t: F.softmax(seen(t), -1) for op in ("scale_mask_softmax", "scale_bool_mask_softmax", "scale_causal_softmax")}


def after_sum(norm):
    """The residual sum and what `norm` makes of it."""
    def forward(t):
        total = t["x"] + t["residual"]
        return total, FORWARD[norm](t | {"x": total})
    return forward


def dropped(norm):
    """Dropout of what `norm` gives; by kf's own mask where the two are compared."""
    def forward(t):
        y = FORWARD[norm](t)
        return torch.where(t["keep"], y / (1 - P), 0.0) if "keep" in t else F.dropout(y, P)
    return forward


FORWARD |= {f"add_{norm}": after_sum(norm) for norm in ("rms_norm_{act}", "layer_norm_{act}")}
FORWARD |= {f"{op}_dropout": dropped(op) for op in ("layer_norm_{act}", "scale_mask_softmax")}
LEAVES = ("x", "residual", "weight", "bias")
SMALL = {"row": 0, "channel": CHANNELS, "group": GROUPS * PARTS}  # kinds of weights, and how many there are; 0: as many as columns
UNASKED = ("dresidual",)  # equals dx: a caller has one tensor for both
ONE_PASS = ("cross_entropy_with_grad",)  # value and gradient
SCALARS = {"eps": EPS, "correction": 1.0, "ignore_index": -100, "label_smoothing": 0.0, "z_loss": 0.0, "scale": SCALE, "p": P,
           "seed": 7, "offset": 11, "momentum": 0.1, "delta": 1.0}


def parser(about, build="rows", shapes=()):
    """What rows.py, rows_cpu.py and rows_small.py are asked alike."""
    p = argparse.ArgumentParser(description=about.split("\n")[0])
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--ops", nargs="*", default=list(FORWARD))
    p.add_argument("--dtypes", nargs="*", default=list(DTYPES))
    p.add_argument("--build-dir", type=pathlib.Path, default=HERE.parent / "build-bench" / build)
    if shapes:
        p.add_argument("--shapes", nargs="*", default=["x".join(map(str, s)) for s in shapes], help="rows x columns: 4096x4096")
    return p


def functions(o):
    """Those that were asked for: each op without activation, in one dtype."""
    all_ = [f for f in kflib.manifest()["functions"] if f["activation"] == "none" and len(f["dtypes"]) == 1 and f["dtypes"][0] in o.dtypes
            and not f["state"]]
    for op, as_nhwc in (("group_norm_{act}", NHWC), ("batch_norm_train_{act}", BATCH_NHWC)):
        all_ += [f | {"op": as_nhwc} for f in all_ if f["op"] == op]
    return [f for f in all_ if f["op"] in o.ops]


def distinct(chosen):
    """Launchers, each once."""
    return list({f["name"]: f for f in chosen}.values())


def arguments():
    p = parser(__doc__)
    p.add_argument("--cols", type=int, nargs="*", default=COLS)
    p.add_argument("--compile", type=int, nargs="*", default=(1024, 4096, 16384), help="columns for which torch.compile is timed")
    return p.parse_args()


def median_us(calls, rounds=7, repeat=4):
    """{name: microseconds}, the calls of a round one after the other."""
    found = {name: [] for name in calls}
    for fn in calls.values():
        fn()
    for _ in range(rounds):
        for name, fn in calls.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(repeat):
                fn()
            end.record()
            torch.cuda.synchronize()
            found[name].append(begin.elapsed_time(end) * 1000 / repeat)
    return {name: sorted(times)[len(times) // 2] for name, times in found.items()}


def results(f, t):
    """{result: tensor} of the forward."""
    out = FORWARD[f["op"]](t)
    return dict(zip(("residual_out", "out"), out)) if isinstance(out, tuple) else {"loss" if "label" in t else "out": out}


def head(f, v):
    """The first rows of a tensor, as such a tensor of fewer rows."""
    if f["layout"] == "channels" and v.dim() == 2:
        sizes = sizes_of(f, *v.shape)
        return v.view(sizes)[:, :ROWS].reshape(min(ROWS, sizes[1]), v.shape[1])
    return v[:ROWS] if v.dim() == 2 or f["layout"] == "channels" else v


def of_rows(f, v):
    """The same of what has a value for each row, or a row."""
    return head(f, v) if v.dim() == 2 else v[:ROWS]


def reference(f, t):
    """Results and gradients of the first rows in float64."""
    if f["bwd"] and any(a["name"] == "out" for a in f["arguments"]):  # of the values it is given, since its terms cancel
        dout, out = (t[n][:ROWS].double() for n in ("dout", "out"))
        if f["op"] == "log_softmax":
            return {"dx": dout - out.exp() * dout.sum(-1, keepdim=True)}
        return {"dx": out * (dout - (dout * out).sum(-1, keepdim=True)) * (SCALE if "scale_" in f["op"] else 1)}
    leaves = {n: head(f, t[n]).double().requires_grad_() for n in LEAVES if n in t}
    given = {n: t[n][:ROWS] for n in ("label",) if n in t}
    if "mask" in t:
        given["mask"] = t["mask"][0][torch.arange(ROWS, device=DEVICE) % t["mask"].shape[1]]
    if f["dropout"]:
        rows, cols = leaves["x"].shape
        words = philox(SCALARS["seed"], SCALARS["offset"], rows * cols).reshape(rows, cols)
        given["keep"] = torch.from_numpy(words >= round(65536 * P)).to(DEVICE)
    outs = results(f, leaves | given)
    found = {} if f["bwd"] else {n: out.detach() for n, out in outs.items()}
    if f["bwd"] or f["op"] in ONE_PASS:
        douts = [of_rows(f, t[f"d{n}"]).double() if f["bwd"] else torch.ones_like(out) for n, out in outs.items()]
        found["dx"] = torch.autograd.grad(list(outs.values()), leaves["x"], douts)[0]
    return found


def tensors(f, rows, cols, dtype):
    """Random inputs; what the forward saves is what it would save."""
    names = [a["name"] for a in f["arguments"]]
    t = {n: torch.randn(rows, cols, device=DEVICE).to(dtype) for n in ("x", "residual") if n in names}
    for a in f["arguments"]:
        if a.get("kind") in SMALL and a["role"] == "in":
            t[a["name"]] = torch.randn(SMALL[a["kind"]] or cols, device=DEVICE).to(dtype)
        if a.get("kind") == "per_channel" and a["name"] in LEAVES:
            t[a["name"]] = torch.randn(rows, device=DEVICE).to(dtype)
    if f["op"].startswith("scale_"):
        batch, _, queries, _ = sizes_of(f, rows, cols)
        drawn = torch.rand(batch, queries, cols, device=DEVICE) < 0.7
        if f["op"] == "scale_causal_softmax":  # a mask for PyTorch alone
            drawn = torch.ones(1, queries, cols, device=DEVICE, dtype=torch.bool).tril(cols - queries)
        drawn[..., 0] = True
        t["mask"] = drawn if "bool" in f["op"] or "causal" in f["op"] else torch.where(drawn, torch.randn_like(drawn, dtype=dtype), -torch.inf)
    if f["op"] == "scale_mask_softmax_dropout":
        t["lse"] = seen(t).float().logsumexp(-1)
    if "cross_entropy" in f["op"]:
        t["label"] = torch.randint(cols, (rows,), device=DEVICE)
        t["lse"] = torch.cat([part.float().logsumexp(-1) for part in t["x"].chunk(16)])
        if f["bwd"]:
            t["dloss"] = torch.randn(rows, device=DEVICE)
    elif f["bwd"]:
        t |= {n: torch.randn(rows, cols, device=DEVICE).to(dtype) for n in ("dout", "dresidual_out") if n in names}
        if "residual" in names:
            t["residual_out"] = t["x"] + t["residual"]
        if f["op"] == "l2_normalize":
            t["norm"] = torch.cat([part.float().norm(dim=-1) for part in t["x"].chunk(16)])
        whole = t.get("residual_out", t["x"])
        if f["op"] == NHWC:
            whole = whole.view(-1, cols // PARTS, GROUPS, PARTS).transpose(1, 2).reshape(rows, cols)
        for part in torch.arange(rows, device=DEVICE).chunk(16) if "rstd" in names else ():
            x = whole[part].float()
            mean = x.mean(-1) if "mean" in names else torch.zeros(len(part), device=DEVICE)
            t.setdefault("mean", torch.empty(rows, device=DEVICE))[part] = mean
            t.setdefault("rstd", torch.empty(rows, device=DEVICE))[part] = ((x - mean[:, None]).square().mean(-1) + EPS).rsqrt()
        if "invstd" in names:
            x = t["x"].view(sizes_of(f, rows, cols)).transpose(0, 1)
            t["mean"] = torch.cat([part.float().mean((1, 2)) for part in x.chunk(16)])
            t["invstd"] = torch.cat([(part.float().var((1, 2), correction=0) + EPS).rsqrt() for part in x.chunk(16)])
        if any(a["name"] == "out" and a["role"] == "in" for a in f["arguments"]):
            t["out"] = FORWARD[f["op"]](t)
    for a in f["arguments"]:
        if a["role"] in ("out", "sum") and a["name"] not in UNASKED:
            shape = (rows, cols) if a["kind"] == "elem" else (SMALL[a["kind"]] or cols,) if a["kind"] in SMALL else (rows,)
            t[a["name"]] = torch.full(shape, float("nan"), device=DEVICE, dtype=DTYPES.get(a["dtype"]))
    return t


def called(f, t, fn):
    """A call of PyTorch's `fn`: the forward, or the backward that autograd gives, its graph kept, without the forward's time."""
    if not f["bwd"] and f["op"] not in ONE_PASS:
        return lambda: fn(t)
    leaves = {n: t[n].detach().requires_grad_() for n in LEAVES if n in t}
    given = leaves | {n: t[n] for n in ("label", "mask") if n in t}
    if not f["bwd"]:
        ones = torch.ones_like(t["loss"]).to(t["x"].dtype)
        return lambda: torch.autograd.grad(fn(given), leaves["x"], ones)
    out = fn(given)
    outs = out if isinstance(out, tuple) else (out,)
    douts = [t[n].to(out.dtype) for n, out in zip([n for n in ("dresidual_out", "dloss", "dout") if n in t], outs, strict=True)]
    return lambda: torch.autograd.grad(outs, list(leaves.values()), douts, retain_graph=True)


def compiled(f, t):
    torch._dynamo.reset()  # after eight versions of one function it would give up, and run it eagerly
    return called(f, t, torch.compile(FORWARD[f["op"]], dynamic=False))


def compare(f, t):
    """Ends the run if a result is not float64's."""
    for name, want in reference(f, t).items():
        got = of_rows(f, t[name]).double()
        error = float(((got - want).abs() / (want.abs() + want.abs().mean())).max())
        if not error < (0.02 if t["x"].dtype == torch.bfloat16 else 1e-4):
            raise SystemExit(f"bench: {f['name']} {' x '.join(map(str, t['x'].shape))}: {name} is off by {error:.3g}")


def moved_bytes(f, t):
    """Every tensor of the rows' shape once."""
    return sum(t[a["name"]].nbytes for a in f["arguments"] if a.get("kind") == "elem" and not a["unread"] and a["name"] in t)


def sizes_of(f, *shape):
    """A call's sizes for tensors of this shape: rows of planes are batches of CHANNELS, those of queries are of HEADS, of groups of GROUPS,
    those that are channels of a batch of BATCH."""
    if f["layout"] == "channels":
        rows, cols = shape
        outer = cols if f["op"] == BATCH_NHWC else BATCH
        return [outer, rows, cols // outer]
    if "groups" in f["sizes"]:
        rows, cols = shape
        length = cols // PARTS if f["op"] == NHWC else 1
        return [rows // GROUPS, length, GROUPS, PARTS, cols // (PARTS * length)]
    if "heads" in f["sizes"]:
        rows, cols = shape
        queries = min(cols, rows // HEADS)
        return [rows // (HEADS * queries), HEADS, queries, cols]
    return [shape[0] // CHANNELS, CHANNELS, shape[1]] if len(f["sizes"]) > len(shape) else list(shape)


def bound(lib, f, t, stream=0):
    """The launcher on these tensors, called once."""
    sizes = sizes_of(f, *t["x"].shape)
    need = lib.workspace_bytes(f, sizes)
    t["workspace"] = torch.empty(max(need, 16), dtype=torch.uint8, device=DEVICE)
    tensors_ = {a["name"] for a in f["arguments"] if "kind" in a}
    values = {n: v for n, v in SCALARS.items() if n not in tensors_} | {n: v.data_ptr() for n, v in t.items()}
    values |= {"workspace_bytes": need} | dict(zip(f["sizes"], sizes))
    call = lib.bind(f, {a["name"]: values.get(a["name"]) for a in f["arguments"]}, stream)
    if call():
        raise SystemExit(f"bench: {lib.detail}")
    return call


def measure(lib, f, cols, with_compile):
    dtype = DTYPES[f["dtypes"][0]]
    rows = (MIB << 20) // (cols * dtype.itemsize)
    t = tensors(f, rows, cols, dtype)
    call = bound(lib, f, t, torch.cuda.current_stream().cuda_stream)
    compare(f, t)
    moved = moved_bytes(f, t)
    source, target = (torch.randn(moved // 8, device=DEVICE) for _ in range(2))
    calls = {"kf": call, "copy": lambda: target.copy_(source)}
    if with_compile:
        calls["compile"] = compiled(f, t)
    us = median_us(calls)
    return {"function": f["name"], "sizes": sizes_of(f, rows, cols), "bytes": moved, "us": us, "percent_of_copy": 100 * us["copy"] / us["kf"],
            "gbps": moved / us["kf"] / 1e3, "speedup": {"compile": us["compile"] / us["kf"]} if with_compile else {}}


def show(row):
    beside = "".join(f"  {x:5.2f}x {peer}" for peer, x in row["speedup"].items())
    sizes = " x ".join(map(str, row["sizes"]))
    print(f"{row['function']:28} {sizes:>20} {row['us']['kf']:8.1f} us {row['percent_of_copy']:6.1f} % of copy{beside}", flush=True)


def write(path, script, found, tensors=f"{MIB} MiB each: cold L2"):
    """The results and where they come from."""
    if not path:
        return
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    head = {"command": f"python3 {script} " + " ".join(sys.argv[1:]), "gpu": gpu, "torch": torch.__version__,
            "data": "N(0, 1); compared with float64 before it was timed", "tensors": tensors}
    store.write(path, head, found)


def main():
    o = arguments()
    chosen = functions(o)
    lib = kflib.build("cuda", distinct(chosen), o.build_dir, ["-O3", "-arch=native"])
    found = []
    for f in chosen:
        for cols in o.cols:
            torch.cuda.empty_cache()
            found.append(measure(lib, f, cols, cols in o.compile))
            show(found[-1])
    write(o.out, "bench/rows.py", found)


if __name__ == "__main__":
    main()
