# SPDX-License-Identifier: Apache-2.0
"""llm.c's kernels beside kf's on llm.c's shapes, in CUDA graphs and shuffled rounds.

Shapes: batch 8, 1,024 tokens, 768 channels, vocabulary 50,257 in rows of 50,304. llm.c is not part
of this repository. Requires a GPU.

    python3 bench/llmc.py --source CHECKOUT_OF_LLM.C [--out FILE]

Layer norm, residual, gelu, classifier and bias gradient are llm.c's training kernels (llmc/,
bf16); softmax is the fastest of dev/cuda (float32). They are compiled with the flags of llm.c's
Makefile, --use_fast_math included. Results of both sides are compared before timing. llm.c's
gradients accumulate and its classifier overwrites the logits, so kf runs in place too.
"""

import argparse
import ctypes
import pathlib
import shlex
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests/support"), str(HERE.parent / "gen")]

import folders  # noqa: E402

folders.add()
B, T, C, V, P = 8, 1024, 768, 50257, 50304
ROWS = B * T
OWN_FLAGS = (
    "-std=c++17",
    "--use_fast_math",
    "-DENABLE_BF16",
    "-w",
)  # flags of llm.c's Makefile, and no warnings
# A header of dev/cuda includes cuBLAS, but nothing calls it.
STUB = """#pragma once
typedef void *cublasHandle_t, *cublasLtHandle_t;
typedef int cublasStatus_t, cublasComputeType_t, cublasMath_t;
enum { CUBLAS_STATUS_SUCCESS, CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 };
enum { CUBLAS_TF32_TENSOR_OP_MATH, CUBLAS_DEFAULT_MATH };
inline int cublasCreate(cublasHandle_t *) { return 1; }
inline int cublasLtCreate(cublasLtHandle_t *) { return 1; }
inline int cublasSetMathMode(cublasHandle_t, cublasMath_t) { return 1; }
"""
TRAINED = r"""
#include <cuda_runtime.h>
#define cudaMemAdvise(...) cudaSuccess // CUDA 13 has other arguments; nothing here calls it
#include "llmc/layernorm.cuh"
#include "llmc/gelu.cuh"
#include "llmc/fused_classifier.cuh"
cudaDeviceProp deviceProp;
#include "bias_kernels.cuh"
typedef floatX F;
extern "C" {
int llmc_begin(int) { return (int)cudaGetDeviceProperties(&deviceProp, 0); }
void llmc_layernorm(F *out, float *mean, float *rstd, F *x, F *w, F *b, int B, int T, int C,
                    void *s)
{
    layernorm_forward(out, mean, rstd, x, w, b, B, T, C, (cudaStream_t)s);
}
void llmc_residual(F *sum, F *out, float *mean, float *rstd, F *x, F *y, F *w, F *b, int N,
                   int C, void *s)
{
    fused_residual_forward5(sum, out, mean, rstd, x, y, w, b, N, C, (cudaStream_t)s);
}
void llmc_layernorm_bwd(F *dx, F *dw, F *db, float *room, F *dout, F *x, F *w, float *mean,
                        float *rstd, int B, int T, int C, void *s)
{
    layernorm_backward(dx, dw, db, room, dout, x, w, mean, rstd, B, T, C, (cudaStream_t)s);
}
void llmc_gelu(F *out, F *x, int n, void *s) { gelu_forward(out, x, n, (cudaStream_t)s); }
void llmc_gelu_bwd(F *d, F *x, int n, void *s) { gelu_backward_inplace(d, x, n, (cudaStream_t)s); }
void llmc_classifier(F *logits, float *losses, float dloss, int *targets, int B, int T, int V,
                     int P, void *s)
{
    fused_classifier(logits, losses, dloss, targets, B, T, V, P, True, (cudaStream_t)s);
}
// Launches the same kernels as matmul_backward.
void llmc_bias(F *dbias, float *room, F *dout, int B, int T, int OC, void *s)
{
    const cudaDeviceProp &p = deviceProp;
    int threads = p.maxThreadsPerMultiProcessor == 1536 ? 768 : 1024;
    int across = CEIL_DIV(OC, 8 * (int)x128::size);
    int down = max(1, p.maxThreadsPerMultiProcessor * p.multiProcessorCount / (threads * across));
    dim3 block(4, 8, threads / WARP_SIZE);
    if (down == 1) {
        matmul_backward_bias_kernel9<<<dim3(across, down), block, 0, (cudaStream_t)s>>>(
            dbias, dout, B, T, OC, std::bool_constant<false>{});
        return;
    }
    matmul_backward_bias_kernel9<<<dim3(across, down), block, 0, (cudaStream_t)s>>>(
        room, dout, B, T, OC, std::bool_constant<true>{});
    reduce_add_sum_kernel<<<CEIL_DIV(OC, 256 * f128::size), 256, 0, (cudaStream_t)s>>>(
        dbias, room, OC, down);
}
}
"""
STUDIED = r"""
#define main llmc_main
#include "dev/cuda/softmax_forward.cu"
extern "C" void llmc_softmax(float *out, float *x, int N, int C, void *s)
{
    softmax_forward_online_kernel8<<<ceil_div(N * 32, 512), 512, 0, (cudaStream_t)s>>>(
        out, x, N, C);
}
"""


def built(source, folder, flags):
    """Compiles llm.c's functions."""
    stubs = folder / "llmc"
    stubs.mkdir(parents=True, exist_ok=True)
    for name in ("cublas_v2.h", "cublasLt.h"):
        (stubs / name).write_text(STUB if name == "cublas_v2.h" else "")
    products = (
        source / "llmc/matmul.cuh"
    ).read_text()  # these launchers need cuBLASLt, the bias kernels do not
    (stubs / "bias_kernels.cuh").write_text(
        products[products.index("// CUDA kernels") : products.index("// kernel launchers")]
    )
    parts = []
    for name, text in (("trained", TRAINED), ("studied", STUDIED)):
        path, library = stubs / f"{name}.cu", stubs / f"{name}.so"
        path.write_text(text)
        subprocess.run(
            [
                "nvcc",
                *flags,
                *OWN_FLAGS,
                "-shared",
                "-Xcompiler",
                "-fPIC",
                f"-I{stubs}",
                f"-I{source}",
                f"-I{source}/dev/cuda",
                str(path),
                "-o",
                str(library),
            ],
            check=True,
        )
        parts.append(ctypes.CDLL(str(library)))
    return parts


def words(*values):
    """Converts tensors to pointers and integers to C ints."""
    kinds = {float: ctypes.c_float, int: ctypes.c_int}
    return [
        kinds[type(v)](v) if type(v) in kinds else ctypes.c_void_p(v.data_ptr()) for v in values
    ]


class KernelPairs:
    """Calls of both sides for each kernel, over sets of tensors that exceed the cache."""

    def __init__(self, torch, lib, functions, llmc, stream, sets):
        self.torch, self.lib, self.functions, self.llmc, self.stream, self.sets = (
            torch,
            lib,
            functions,
            llmc,
            stream,
            sets,
        )
        self.kept = []

    def drawn(self, *shape, dtype="bfloat16", scale=1.0):
        return [
            (self.torch.randn(*shape, device="cuda") * scale).to(getattr(self.torch, dtype))
            for _ in range(self.sets)
        ]

    def room(self, like, **more):
        return [self.torch.empty_like(t, **more) for t in like]

    def numbers(self, count):
        return [self.torch.empty(count, device="cuda") for _ in range(self.sets)]

    def kf(self, name, sizes, strides=None, **given):
        f = self.functions[name]
        need = self.lib.workspace_bytes(f, sizes)
        work = self.torch.empty(max(need, 1), device="cuda", dtype=self.torch.uint8)
        fields = (ctypes.c_int64 * len(strides))(*strides) if strides else None
        self.kept += [work, fields, given]
        calls = []
        for i in range(self.sets):
            values = {
                a["name"]: None
                for a in f["arguments"]
                if a["role"] in ("in", "out", "sum", "strides")
            } | dict(zip(f["sizes"], sizes))
            values |= dict(f["scalars"]) | {
                n: 0.0 for n in ("label_smoothing", "z_loss") if n in f["scalars"]
            }
            values |= {a["name"]: a["default"] for a in f["arguments"] if a["role"] == "integer"}
            values |= {n: t[i].data_ptr() for n, t in given.items()}
            values |= {
                "strides": ctypes.addressof(fields) if strides else None,
                "workspace": work.data_ptr(),
                "workspace_bytes": need,
            }
            calls.append(self.lib.bind(f, values, self.stream))

        def call(i):
            if status := calls[i]():
                raise RuntimeError(f"{name}: {self.lib.string(status)} ({self.lib.detail})")

        return call

    def theirs(self, name, *given):
        fn = next(getattr(part, name) for part in self.llmc if hasattr(part, name))
        self.kept.append(given)
        lists = [[g[i] if isinstance(g, list) else g for g in given] for i in range(self.sets)]
        calls = [[*words(*values), ctypes.c_void_p(self.stream)] for values in lists]
        return lambda i: fn(*calls[i])

    def layer_norm(self):
        x, w, b = self.drawn(ROWS, C), self.drawn(C), self.drawn(C)
        out, mine, mean, rstd = self.room(x), self.room(x), self.numbers(ROWS), self.numbers(ROWS)
        return (
            self.kf(
                "kf_layer_norm_bf16",
                (ROWS, C),
                x=x,
                weight=w,
                bias=b,
                out=mine,
                mean=mean,
                rstd=rstd,
            ),
            self.theirs("llmc_layernorm", out, mean, rstd, x, w, b, B, T, C),
            [(mine, out)],
        )

    def residual(self):
        x, y, w, b = self.drawn(ROWS, C), self.drawn(ROWS, C), self.drawn(C), self.drawn(C)
        made, mean, rstd = [self.room(x) for _ in range(4)], self.numbers(ROWS), self.numbers(ROWS)
        given = {
            "x": x,
            "residual": y,
            "weight": w,
            "bias": b,
            "out": made[0],
            "residual_out": made[1],
            "mean": mean,
            "rstd": rstd,
        }
        return (
            self.kf("kf_add_layer_norm_bf16", (ROWS, C), **given),
            self.theirs("llmc_residual", made[3], made[2], mean, rstd, x, y, w, b, ROWS, C),
            [(made[0], made[2]), (made[1], made[3])],
        )

    def layer_norm_bwd(self):
        x, w, b, up = self.drawn(ROWS, C), self.drawn(C), self.drawn(C), self.drawn(ROWS, C)
        mean, rstd = self.numbers(ROWS), self.numbers(ROWS)
        self.kf(
            "kf_layer_norm_bf16",
            (ROWS, C),
            x=x,
            weight=w,
            bias=b,
            out=self.room(x),
            mean=mean,
            rstd=rstd,
        )(0)
        for i in range(self.sets):
            mean[i].copy_(mean[0]), rstd[i].copy_(rstd[0]), x[i].copy_(x[0])
        own, other = ([self.room(x), self.room(w), self.room(w)] for _ in range(2))
        for t in sum(other, []):
            t.zero_()
        room = [self.torch.zeros(1 << 22, device="cuda")] * self.sets
        given = {
            "x": x,
            "weight": w,
            "bias": b,
            "dout": up,
            "mean": mean,
            "rstd": rstd,
            "dx": own[0],
            "dweight": own[1],
            "dbias": own[2],
        }
        return (
            self.kf("kf_layer_norm_bwd_bf16", (ROWS, C), **given),
            self.theirs(
                "llmc_layernorm_bwd",
                other[0],
                other[1],
                other[2],
                room,
                up,
                x,
                w,
                mean,
                rstd,
                B,
                T,
                C,
            ),
            list(zip(own, other)),
        )

    def gelu(self):
        x = self.drawn(ROWS, 4 * C)
        mine, out = self.room(x), self.room(x)
        return (
            self.kf("kf_gelu_tanh_bf16", (x[0].numel(),), x=x, out=mine),
            self.theirs("llmc_gelu", out, x, x[0].numel()),
            [(mine, out)],
        )

    def gelu_bwd(self):
        x, up = self.drawn(ROWS, 4 * C), self.drawn(ROWS, 4 * C)
        mine, other = ([t.clone() for t in up] for _ in range(2))
        return (
            self.kf("kf_gelu_tanh_bwd_bf16", (x[0].numel(),), x=x, dout=mine, dx=mine),
            self.theirs("llmc_gelu_bwd", other, x, x[0].numel()),
            [(mine, other)],
        )

    def bias(self, columns=C):
        up, room = self.drawn(ROWS, columns), [self.torch.zeros(1 << 20, device="cuda")] * self.sets
        mine, other = (
            [
                self.torch.zeros(columns, device="cuda", dtype=self.torch.bfloat16)
                for _ in range(self.sets)
            ]
            for _ in range(2)
        )
        return (
            self.kf("kf_sum_bf16", (1, ROWS, columns), x=up, out=mine),
            self.theirs("llmc_bias", other, room, up, B, T, columns),
            [(mine, other)],
        )

    def bias_4c(self):
        return self.bias(4 * C)

    def softmax(self):
        x = self.drawn(ROWS, V, dtype="float32")
        mine, out = self.room(x), self.room(x)
        return (
            self.kf("kf_softmax_f32", (ROWS, V), x=x, out=mine),
            self.theirs("llmc_softmax", out, x, ROWS, V),
            [(mine, out)],
        )

    def classifier(self):
        x = self.drawn(ROWS, P)
        mine, other = x, [t.clone() for t in x]
        label = [self.torch.randint(V, (ROWS,), device="cuda") for _ in range(self.sets)]
        up, loss, theirs = (
            [self.torch.full((ROWS,), 1 / ROWS, device="cuda") for _ in range(self.sets)],
            self.numbers(ROWS),
            self.numbers(ROWS),
        )
        for t in theirs:
            t.zero_()
        return (
            self.kf(
                "kf_cross_entropy_with_grad_bf16",
                (ROWS, V),
                strides=(P, P),
                x=mine,
                label=label,
                dloss=up,
                loss=loss,
                dx=mine,
            ),
            self.theirs(
                "llmc_classifier", other, theirs, 1 / ROWS, [t.int() for t in label], B, T, V, P
            ),
            [(loss, theirs), (mine, other)],
        )


# {kernel: (kf's function, its sizes, minimum bytes moved, sets of tensors)}
KERNELS = {
    "layer_norm": ("kf_layer_norm_bf16", (ROWS, C), 2 * ROWS * C * 2, 12),
    "residual": ("kf_add_layer_norm_bf16", (ROWS, C), 4 * ROWS * C * 2, 8),
    "layer_norm_bwd": ("kf_layer_norm_bwd_bf16", (ROWS, C), 3 * ROWS * C * 2, 10),
    "gelu": ("kf_gelu_tanh_bf16", (ROWS * 4 * C,), 2 * ROWS * C * 8, 4),
    "gelu_bwd": ("kf_gelu_tanh_bwd_bf16", (ROWS * 4 * C,), 3 * ROWS * C * 8, 4),
    "bias": ("kf_sum_bf16", (1, ROWS, C), ROWS * C * 2, 24),
    "bias_4c": ("kf_sum_bf16", (1, ROWS, 4 * C), ROWS * C * 8, 6),
    "softmax": ("kf_softmax_f32", (ROWS, V), 2 * ROWS * V * 4, 1),
    "classifier": ("kf_cross_entropy_with_grad_bf16", (ROWS, V), 2 * ROWS * V * 2, 1),
}
DATA = "inputs N(0, 1); labels drawn of all words; the classifier's rows are 50,304 apart"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--source", type=pathlib.Path, required=True, help="a checkout of llm.c")
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--flags", default="-O3 -gencode arch=compute_90a,code=sm_90a")
    p.add_argument("--build-dir", type=pathlib.Path, default=HERE.parent / "build-bench")
    p.add_argument("--build-only", action="store_true")
    args = p.parse_args()
    import kflib
    import machine
    import store
    import timing
    import torch

    flags = shlex.split(args.flags)
    wanted = {function for function, *_ in KERNELS.values()}
    functions = {f["name"]: f for f in kflib.manifest()["functions"] if f["name"] in wanted}
    lib = kflib.build("cuda", list(functions.values()), args.build_dir, flags=flags)
    llmc = built(args.source.resolve(), args.build_dir, flags)
    if args.build_only:
        return
    if llmc[0].llmc_begin(0):
        raise SystemExit("llmc: no GPU")
    timer, rows = timing.Cuda(), []
    for name, (function, sizes, moved, sets) in KERNELS.items():
        own, other, results = getattr(
            KernelPairs(torch, lib, functions, llmc, timer.stream.cuda_stream, sets), name
        )()
        own(0), other(0)
        torch.cuda.synchronize()
        off = max(
            float((a[0].float() - b[0].float()).abs().max() / b[0].float().abs().max())
            for a, b in results
        )
        if not off <= 0.02:
            raise SystemExit(f"llmc: {name} differs by {off} of the largest")
        times = timer.measure({"kf": own, "llmc": other}, sets, args.rounds)
        rows.append(
            {
                "function": function,
                "sizes": list(sizes),
                "dtypes": functions[function]["dtypes"],
                "bytes": moved,
                "sets": sets,
                "differs": off,
                "times": times,
                "gbps": moved / times["kf"]["us"] * 1e-3,
                "speedup": {"llmc": times["llmc"]["us"] / times["kf"]["us"]},
            }
        )
        both = "  ".join(f"{who} {t['us']:9.2f} us" for who, t in times.items())
        print(
            f"{name:<16} {both}  {rows[-1]['speedup']['llmc']:.2f}x  differs {off:.1e}", flush=True
        )
        torch.cuda.empty_cache()
    if args.out:
        command = "python3 bench/llmc.py --source llm.c --out bench/results/h200/llmc.json"
        summary = {
            "command": command,
            "machine": machine.describe("cuda", "nvcc", flags, 1),
            "rounds": args.rounds,
            "method": timing.METHOD,
            "data": DATA,
            "source": f"llm.c f1e2ace, {' '.join(OWN_FLAGS)}",
        }
        store.write(args.out, summary, rows)


if __name__ == "__main__":
    main()
