/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels and launchers see of the emulation (emu.cpp): the indices, barriers, warp words, atomics, and the calls of
   CUDA's runtime that launchers make. */
#ifndef KF_EMU_H
#define KF_EMU_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <utility>

#include <driver_types.h>

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;

/* Where a word was called, for messages. */
#define KF_EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* ---- kernels: a launch is given an entry, which knows how to call its function with the arguments of a launch. */
typedef void (*kf_emu_call)(const void *function, void *const *args);
const void *kf_emu_enter(const void *function, kf_emu_call call, const char *name);

template <class... A, size_t... i> static void kf_emu_apply(void (*kernel)(A...), void *const *args, std::index_sequence<i...>)
{
    kernel(*(A *)args[i]...);
}
template <class... A> static void kf_emu_call_with(const void *function, void *const *args)
{
    kf_emu_apply((void (*)(A...))function, args, std::index_sequence_for<A...>());
}
template <class... A> static const void *kf_emu_kernel(void (*kernel)(A...), const char *name)
{
    static_assert((0 + ... + sizeof(A)) <= 4096, "a kernel's arguments may take 4,096 bytes");
    return kf_emu_enter((const void *)kernel, kf_emu_call_with<A...>, name);
}

/* ---- barriers. kind of kf_emu_vote: what the block computes of the predicates. */
enum { KF_EMU_SYNC, KF_EMU_AND, KF_EMU_OR, KF_EMU_COUNT };
int kf_emu_barrier(int kind, int predicate, const char *file, int line);
static inline void __syncthreads(KF_EMU_HERE) { kf_emu_barrier(KF_EMU_SYNC, 0, file, line); }
static inline int __syncthreads_and(int p, KF_EMU_HERE) { return kf_emu_barrier(KF_EMU_AND, p, file, line); }
static inline int __syncthreads_or(int p, KF_EMU_HERE) { return kf_emu_barrier(KF_EMU_OR, p, file, line); }
static inline int __syncthreads_count(int p, KF_EMU_HERE) { return kf_emu_barrier(KF_EMU_COUNT, p, file, line); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}

/* ---- warps: every lane of the mask comes to the same word with the same mask, else the launch fails. Each gets the value
   of lane `source`, or (source < 0) the bits of all predicates. */
uint64_t kf_emu_exchange(const char *word, unsigned mask, uint64_t value, int source, const char *file, int line);
unsigned kf_emu_lane();
void kf_emu_syncwarp(unsigned mask, const char *file, int line);

static inline int kf_emu_inside(int source, unsigned lane, int width) /* its own segment's, else the lane itself */
{
    const int begin = (int)lane / width * width;
    return source >= begin && source < begin + width ? source : (int)lane;
}
template <class T> static inline T kf_emu_shuffle(const char *word, unsigned mask, T value, int source, const char *file, int line)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves up to 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = kf_emu_exchange(word, mask, bits, source, file, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}
template <class T> static inline T __shfl_sync(unsigned mask, T v, int source, int width = 32, KF_EMU_HERE)
{
    return kf_emu_shuffle("__shfl_sync", mask, v, (int)kf_emu_lane() / width * width + (source & (width - 1)), file, line);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, KF_EMU_HERE)
{
    const unsigned lane = kf_emu_lane();
    return kf_emu_shuffle("__shfl_xor_sync", mask, v, kf_emu_inside((int)lane ^ bits, lane, width), file, line);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, KF_EMU_HERE)
{
    const unsigned lane = kf_emu_lane();
    return kf_emu_shuffle("__shfl_up_sync", mask, v, kf_emu_inside((int)lane - (int)delta, lane, width), file, line);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, KF_EMU_HERE)
{
    const unsigned lane = kf_emu_lane();
    return kf_emu_shuffle("__shfl_down_sync", mask, v, kf_emu_inside((int)lane + (int)delta, lane, width), file, line);
}
static inline unsigned __ballot_sync(unsigned mask, int p, KF_EMU_HERE)
{
    return (unsigned)kf_emu_exchange("__ballot_sync", mask, p != 0, -1, file, line);
}
static inline int __any_sync(unsigned mask, int p, KF_EMU_HERE) { return kf_emu_exchange("__any_sync", mask, p != 0, -1, file, line) != 0; }
static inline int __all_sync(unsigned mask, int p, KF_EMU_HERE)
{
    return kf_emu_exchange("__all_sync", mask, p != 0, -1, file, line) == mask;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, KF_EMU_HERE) { kf_emu_syncwarp(mask, file, line); }

/* ---- atomics: threads change places at barriers and warp words alone, so that plain operations would do; ThreadSanitizer
   must see that they are atomic. */
template <class T, class F> static inline T kf_emu_atomic(T *p, F change)
{
    T old, next;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do next = change(old);
    while (!__atomic_compare_exchange(p, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
template <class T> static inline T atomicAdd(T *p, T v)
{
    return kf_emu_atomic(p, [v](T old) { return (T)(old + v); });
}
template <class T> static inline T atomicMax(T *p, T v)
{
    return kf_emu_atomic(p, [v](T old) { return old > v ? old : v; });
}
template <class T> static inline T atomicMin(T *p, T v)
{
    return kf_emu_atomic(p, [v](T old) { return old < v ? old : v; });
}
template <class T> static inline T atomicExch(T *p, T v)
{
    return kf_emu_atomic(p, [v](T) { return v; });
}
template <class T> static inline T atomicCAS(T *p, T expected, T v)
{
    return kf_emu_atomic(p, [expected, v](T old) { return old == expected ? v : old; });
}

/* ---- the runtime */
extern "C" {
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status);
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);

/* ---- for those who test: how the next launches run. The device's numbers can be given to the headers as their constants. */
extern int kf_emu_order; /* of blocks and threads: 0 as they are numbered, 1 reversed, 2 random by the seed */
extern unsigned long long kf_emu_seed;
extern int kf_emu_sms, kf_emu_fill; /* multiprocessors; blocks that fill them */
extern int kf_emu_failure;          /* a cudaError_t that the next launch returns, once */
extern int kf_emu_aborts;           /* whether a kernel's fault aborts the program; else its launch fails */
extern long kf_emu_launches;        /* so far */
const char *kf_emu_report(void);    /* of the last fault */
const char *kf_emu_missing(void);   /* kernels that launchers could have chosen since kf_emu_forget(), and never did, one a line */
void kf_emu_forget(void);
}

#endif
