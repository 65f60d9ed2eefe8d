# SPDX-License-Identifier: Apache-2.0
"""Reductions over an axis on a GPU: each launcher beside a copy of as many bytes, CUB's sum of as many bytes (one result, float32)
and torch.compile, in the same rounds.

    python3 bench/reduce.py --out bench/results/h200/reduce.json

Tensors of 256 MiB evict themselves from the L2 cache. Some results are compared with float64 before the launcher is timed; the
tests compare all of them. Times are medians.
"""

import argparse
import ctypes
import pathlib
import subprocess

import rows as shared
import torch
import torch.nn.functional as F

kflib, DTYPES, DEVICE = shared.kflib, shared.DTYPES, shared.DEVICE
TOTAL = 1 << 27  # elements in two bytes, half of them in four: 256 MiB
# outer, axis, inner; -1: what is left
SHAPES = ((1, -1, 1), (-1, 1024, 1), (-1, 4096, 1), (-1, 65536, 1), (1, -1, 4096), (1, -1, 65536), (64, -1, 4096), (-1, 64, 64))
FORWARD = {
    "sum": lambda x: x.sum(1), "mean": lambda x: x.mean(1), "sum_squared": lambda x: x.square().sum(1), "mean_abs": lambda x: x.abs().mean(1),
    "max": lambda x: x.amax(1), "min": lambda x: x.amin(1), "prod": lambda x: x.prod(1), "l2_norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "logsumexp": lambda x: x.logsumexp(1), "var": lambda x: x.var(1), "std": lambda x: x.std(1),
    "any_nonfinite": lambda x: torch.logical_not(torch.isfinite(x)).any(1)}
LOSSES = {"mse": F.mse_loss, "l1": F.l1_loss, "huber": F.huber_loss, "bce_with_logits": F.binary_cross_entropy_with_logits, "kl_div": F.kl_div}
FORWARD |= {f"{op}_{word}": lambda x, target, loss=loss, word=word: getattr(loss(x, target, reduction="none"), word)(1)
            for op, loss in LOSSES.items() for word in ("mean", "sum")}
CUB = r"""
#include <cub/device/device_reduce.cuh>
extern "C" size_t cub_sum(void *temporary, size_t bytes, const float *x, float *out, long long n, void *stream)
{
    cub::DeviceReduce::Sum(temporary, bytes, x, out, n, (cudaStream_t)stream);
    return bytes; // what is needed, where there is no memory yet
}
"""


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--ops", nargs="*", default=list(FORWARD))
    p.add_argument("--dtypes", nargs="*", default=list(DTYPES))
    p.add_argument("--compile", nargs="*", default=["sum", "logsumexp", "var", "mse_mean"], help="ops for which torch.compile is timed, forward")
    p.add_argument("--flags", type=str.split, default=["-O3", "-arch=native"], help="the compiler's: --flags='-O3 -arch=native'")
    p.add_argument("--build-dir", type=pathlib.Path, default=shared.HERE.parent / "build-bench/reduce")
    return p.parse_args()


def cub(build_dir):
    """CUB's sum of all elements, as a function that takes a tensor and gives a call."""
    build_dir.mkdir(parents=True, exist_ok=True)
    source, library = build_dir / "cub_sum.cu", build_dir / "cub_sum.so"
    source.write_text(CUB)
    subprocess.run(["nvcc", "-O3", "-arch=native", "-shared", "-Xcompiler", "-fPIC", str(source), "-o", str(library)], check=True)
    fn = ctypes.CDLL(str(library)).cub_sum
    pointer = ctypes.c_void_p
    fn.restype, fn.argtypes = ctypes.c_size_t, [pointer, ctypes.c_size_t, pointer, pointer, ctypes.c_longlong, pointer]

    def call(x):
        out = torch.empty(1, device=DEVICE)
        need = fn(None, 0, x.data_ptr(), out.data_ptr(), x.numel(), None)
        room, stream = torch.empty(need, dtype=torch.uint8, device=DEVICE), torch.cuda.current_stream().cuda_stream
        return lambda: fn(room.data_ptr(), need, x.data_ptr(), out.data_ptr(), x.numel(), stream)
    return call


def read(t):
    """What a call of PyTorch's is given."""
    return [t[n] for n in ("x", "target") if n in t]


def tensors(f, sizes, dtype):
    """Random inputs, what the forward makes, and places for results."""
    outer, axis, inner = sizes
    x = torch.randn(sizes, device=DEVICE, dtype=dtype)
    if f["op"] == "prod":
        x = torch.exp(x.float() / axis**0.5).to(dtype)
    names, t = {a["name"]: a for a in f["arguments"]}, {"x": x}
    if "target" in names:
        t["target"] = torch.rand(sizes, device=DEVICE, dtype=dtype)
    if f["bwd"]:
        t["dout"] = torch.randn(outer, inner, device=DEVICE, dtype=dtype)
        if "out" in names:
            t["out"] = FORWARD[f["op"]](*read(t))
    for name, a in names.items():
        if a["role"] == "out":
            t[name] = torch.full(sizes if a["kind"] == "elem" else (outer, inner), float("nan"), device=DEVICE, dtype=dtype)
    return t


def compare(f, t):
    """Ends the run if one of the first results is not float64's."""
    piece, *more = (v[:2, :, :8].double() for v in read(t))
    want = FORWARD[f["op"]](piece.requires_grad_(), *more)
    name = "out"
    if f["bwd"]:
        want, name = torch.autograd.grad(want, piece, t["dout"][:2, :8].double())[0], "dx"
    got = (t[name][:2, :8] if name == "out" else t[name][:2, :, :8]).double()
    want = want.detach().double()
    error = float(((got - want).abs() / (want.abs() + want.abs().mean() + 1e-30)).max())
    limit = 2.0**-27 * t["x"].shape[1] if f["op"] == "prod" else 0.0  # near 1 roundings go the same way
    if not error < max(limit, 0.02 if t["x"].dtype == torch.bfloat16 else 1e-3):
        raise SystemExit(f"bench: {f['name']} {' x '.join(map(str, t['x'].shape))}: {name} is off by {error:.3g}")


def label(shape):
    return " x ".join("*" if n < 0 else str(n) for n in shape)


def measure(lib, f, shape, cub_call, with_compile):
    dtype = DTYPES[f["dtypes"][0]]
    left = TOTAL * 2 // dtype.itemsize
    for n in shape:
        left //= max(n, 1)
    sizes = tuple(left if n < 0 else n for n in shape)
    t = tensors(f, sizes, dtype)
    call = shared.bound(lib, f, t, torch.cuda.current_stream().cuda_stream)
    compare(f, t)
    moved = shared.moved_bytes(f, t)
    source, target = (torch.randn(moved // 8, device=DEVICE) for _ in range(2))
    calls = {"kf": call, "copy": lambda: target.copy_(source)}
    if not f["bwd"]:
        calls["cub"] = cub_call(torch.randn(moved // 4, device=DEVICE))
    if with_compile:
        torch._dynamo.reset()
        fn, given = torch.compile(FORWARD[f["op"]], dynamic=False), read(t)
        calls["compile"] = lambda: fn(*given)
    us = shared.median_us(calls)
    return {"function": f["name"], "shape": label(shape), "sizes": sizes, "bytes": moved, "us": us, "percent_of_copy": 100 * us["copy"] / us["kf"],
            "gbps": moved / us["kf"] / 1e3, "speedup": {n: us[n] / us["kf"] for n in ("cub", "compile") if n in us}}


def main():
    o = arguments()
    chosen = [f for f in kflib.manifest()["functions"] if f["op"] in o.ops and f["dtypes"][0] in o.dtypes]
    lib = kflib.build("cuda", chosen, o.build_dir, o.flags)
    cub_call, found = cub(o.build_dir), []
    for f in chosen:
        for shape in SHAPES:
            torch.cuda.empty_cache()
            found.append(measure(lib, f, shape, cub_call, f["op"] in o.compile and not f["bwd"]))
            shared.show(found[-1])
    shared.write(o.out, "bench/reduce.py", found)


if __name__ == "__main__":
    main()
