# SPDX-License-Identifier: Apache-2.0
"""Counts the launchers' calls of the CUDA runtime. The linker routes them through counters
(--wrap)."""

import ctypes

# Calls that allocate, free, synchronise, copy or set state, and the launch itself, which shows that
# the counters work.
CALLS = {
    "cudaMalloc": ("void **p, size_t n", "p, n"),
    "cudaMallocAsync": ("void **p, size_t n, cudaStream_t s", "p, n, s"),
    "cudaMallocHost": ("void **p, size_t n", "p, n"),
    "cudaMallocManaged": ("void **p, size_t n, unsigned f", "p, n, f"),
    "cudaHostAlloc": ("void **p, size_t n, unsigned f", "p, n, f"),
    "cudaFree": ("void *p", "p"),
    "cudaFreeAsync": ("void *p, cudaStream_t s", "p, s"),
    "cudaFreeHost": ("void *p", "p"),
    "cudaMemcpy": ("void *d, const void *s, size_t n, cudaMemcpyKind k", "d, s, n, k"),
    "cudaMemcpyAsync": (
        "void *d, const void *s, size_t n, cudaMemcpyKind k, cudaStream_t t",
        "d, s, n, k, t",
    ),
    "cudaMemset": ("void *p, int v, size_t n", "p, v, n"),
    "cudaMemsetAsync": ("void *p, int v, size_t n, cudaStream_t s", "p, v, n, s"),
    "cudaDeviceSynchronize": ("void", ""),
    "cudaStreamSynchronize": ("cudaStream_t s", "s"),
    "cudaStreamWaitEvent": ("cudaStream_t s, cudaEvent_t e, unsigned f", "s, e, f"),
    "cudaEventSynchronize": ("cudaEvent_t e", "e"),
    "cudaEventRecord": ("cudaEvent_t e, cudaStream_t s", "e, s"),
    "cudaStreamCreateWithFlags": ("cudaStream_t *s, unsigned f", "s, f"),
    "cudaSetDevice": ("int d", "d"),
    "cudaDeviceSetLimit": ("cudaLimit l, size_t v", "l, v"),
    "cudaFuncSetAttribute": ("const void *f, cudaFuncAttribute a, int v", "f, a, v"),
    "cudaGetLastError": ("void", ""),
    "cudaLaunchKernel": (
        "const void *f, dim3 g, dim3 b, void **a, size_t n, cudaStream_t s",
        "f, g, b, a, n, s",
    ),
    "cudaLaunchKernelExC": ("const cudaLaunchConfig_t *c, const void *f, void **a", "c, f, a"),
}
LAUNCH = "cudaLaunchKernelExC"
# Raises a kernel's limit above 48 KiB of shared memory; neither GPU work nor a wait.
SETUP = "cudaFuncSetAttribute"
# Symbols of the runtime that a launcher's object may use: the launch, large shared memory, a
# kernel's thread limit, the driver's cuTensorMapEncodeTiled, error texts, and device numbers. nvcc
# adds its registration of kernels.
ALLOWED = {
    LAUNCH,
    SETUP,
    "cudaFuncGetAttributes",
    "cudaGetErrorString",
    "cudaGetDevice",
    "cudaGetDeviceCount",
    "cudaStreamGetDevice",
    "cudaStreamIsCapturing",
    "cudaGetDriverEntryPoint",
    "cudaGetDriverEntryPointByVersion",
}
LINK = tuple(f"-Xlinker=--wrap={name}" for name in CALLS)


def source():
    """Returns {file name: text}: the counters, and a launcher that makes forbidden calls."""
    text = ["#include <cuda_runtime_api.h>", 'extern "C" {', f"long long kft_counts[{len(CALLS)}];"]
    for i, (name, (parameters, words)) in enumerate(CALLS.items()):
        text.append(f"cudaError_t __real_{name}({parameters});")
        count = f"__atomic_fetch_add(&kft_counts[{i}], 1, __ATOMIC_RELAXED);"
        text.append(
            f"cudaError_t __wrap_{name}({parameters}) {{ {count} return __real_{name}({words}); }}"
        )
    text.append("""
void kft_planted(void *stream)
{
    void *p = 0;
    cudaMalloc(&p, 64);
    cudaMemsetAsync(p, 0, 64, (cudaStream_t)stream);
    cudaStreamSynchronize((cudaStream_t)stream);
    cudaFree(p);
}
int kft_set_device(int device) { return (int)cudaSetDevice(device); }
}
""")
    return {"counting.cu": "\n".join(text)}


def take(lib):
    """Returns {name: number of calls} since the last take(), without zeros."""
    counts = (ctypes.c_longlong * len(CALLS)).in_dll(lib.dll, "kft_counts")
    found = {name: n for name, n in zip(CALLS, counts) if n}
    for i in range(len(counts)):
        counts[i] = 0
    return found


def planted(lib, stream=0):
    lib.dll.kft_planted(ctypes.c_void_p(stream))
