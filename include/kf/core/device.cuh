// SPDX-License-Identifier: Apache-2.0
// kf/core/device.cuh: device functions for user kernels: vector access, warp and block reductions,
// random bits, dropout. kf's own kernels use the same primitives; docs/device.md documents them.
// Activations are in kf/ops/activations.cuh. Not part of kf/kf.cuh. Compiles under nvcc and NVRTC.
#ifndef KF_CORE_DEVICE_CUH
#define KF_CORE_DEVICE_CUH

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__) && !defined(KF_EMULATE)
#error "kf/core/device.cuh is CUDA: compile with nvcc or NVRTC"
#endif

#include "kf/core/dropout.cuh"
#include "kf/core/math.cuh"
#include "kf/core/rng.h"

#ifdef KFI_DEVICE_PASS

// ---- vectors: conversion between storage and registers. One access moves at most 16 bytes.
template <int vec> KFI_DEVICE constexpr bool kfi_is_vector()
{
    static_assert(vec == 1 || vec == 2 || vec == 4 || vec == 8 || vec == 16,
                  "kf: a vector has 1, 2, 4, 8 or 16 elements");
    return true;
}
template <int size, int vec> KFI_DEVICE bool kfi_whole(const void *p, kf_i64 left)
{
    return kfi_is_vector<vec>() && left >= vec &&
           (unsigned long long)p % (size * vec < 16 ? size * vec : 16) == 0;
}
template <int size, int vec>
KFI_DEVICE void kfi_load_one(void *v, const void *p, kf_i64 left, bool whole)
{
    if (whole) {
        kfi_copy<size * vec>(v, p);
        return;
    }
#pragma unroll
    for (int i = 0; i < size * vec / 2; ++i) ((unsigned short *)v)[i] = 0;
#pragma unroll
    for (int e = 0; e < vec; ++e)
        if (e < left) kfi_copy<size>((char *)v + e * size, (const char *)p + e * size);
}
template <int vec>
KFI_DEVICE void kfi_load_left(float *values, const float *p, kf_i64 left, bool whole)
{
    alignas(16) float v[vec];
    kfi_load_one<4, vec>(v, p, left, whole);
    kfi_unpack_f32<vec>(values, v);
}
template <int vec>
KFI_DEVICE void kfi_load_left(float *values, const kf_f16 *p, kf_i64 left, bool whole)
{
    alignas(16) kf_f16 v[vec];
    kfi_load_one<2, vec>(v, p, left, whole);
    kfi_unpack_f16<vec>(values, v);
}
template <int vec>
KFI_DEVICE void kfi_load_left(float *values, const kf_bf16 *p, kf_i64 left, bool whole)
{
    alignas(16) kf_bf16 v[vec];
    kfi_load_one<2, vec>(v, p, left, whole);
    kfi_unpack_bf16<vec>(values, v);
}
template <int vec>
KFI_DEVICE void kfi_load_left(double *values, const double *p, kf_i64 left, bool whole)
{
    alignas(16) double v[vec];
    kfi_load_one<8, vec>(v, p, left, whole);
    kfi_unpack_f64<vec>(values, v);
}
template <int vec>
KFI_DEVICE void kfi_store_left(float *p, const float *values, kf_i64 left, bool whole)
{
    alignas(16) float v[vec];
    kfi_unpack_f32<vec>(v, values);
    kfi_store_each<4, vec, 1>(p, v, 0, left, whole);
}
template <int vec>
KFI_DEVICE void kfi_store_left(kf_f16 *p, const float *values, kf_i64 left, bool whole)
{
    alignas(16) kf_f16 v[vec];
    kfi_pack_f16<vec>(v, values);
    kfi_store_each<2, vec, 1>(p, v, 0, left, whole);
}
template <int vec>
KFI_DEVICE void kfi_store_left(kf_bf16 *p, const float *values, kf_i64 left, bool whole)
{
    alignas(16) kf_bf16 v[vec];
    kfi_pack_bf16<vec>(v, values);
    kfi_store_each<2, vec, 1>(p, v, 0, left, whole);
}
template <int vec>
KFI_DEVICE void kfi_store_left(double *p, const double *values, kf_i64 left, bool whole)
{
    alignas(16) double v[vec];
    kfi_unpack_f64<vec>(v, values);
    kfi_store_each<8, vec, 1>(p, v, 0, left, whole);
}

// ---- reductions. The order of operations depends on the block size alone; all threads get the
// same bits.
enum { KFI_REDUCE_SUM, KFI_REDUCE_MAX, KFI_REDUCE_MIN };
template <int op> KFI_DEVICE float kfi_combine(float a, float b)
{
    return op == KFI_REDUCE_SUM   ? a + b
           : op == KFI_REDUCE_MAX ? kfi_max_f32(a, b)
                                  : kfi_min_f32(a, b);
}
template <int op> KFI_DEVICE double kfi_combine(double a, double b)
{
    return op == KFI_REDUCE_SUM   ? a + b
           : op == KFI_REDUCE_MAX ? kfi_max_f64(a, b)
                                  : kfi_min_f64(a, b);
}
template <int op> KFI_DEVICE float kfi_reduce_warp(float v)
{
#pragma unroll
    for (int step = 16; step > 0; step >>= 1)
        v = kfi_combine<op>(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}
template <int op> KFI_DEVICE double kfi_reduce_warp(double v)
{
#pragma unroll
    for (int step = 16; step > 0; step >>= 1)
        v = kfi_combine<op>(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}
// Linear thread index in a block of 1, 2 or 3 dimensions, in the order of warps.
KFI_DEVICE unsigned kfi_thread()
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
KFI_DEVICE unsigned kfi_warps() { return blockDim.x * blockDim.y * blockDim.z / 32; }
// Shared memory with one value per warp. Reductions of all operators share it.
KFI_DEVICE float *kfi_parts_f32()
{
    __shared__ float parts[32];
    return parts;
}
KFI_DEVICE double *kfi_parts_f64()
{
    __shared__ double parts[32];
    return parts;
}
template <int op> KFI_DEVICE float kfi_reduce_block(float v)
{
    float *const parts = kfi_parts_f32();
    const unsigned lane = kfi_thread() % 32;
    v = kfi_reduce_warp<op>(v);
    __syncthreads(); // the previous reduction may still be reading parts
    if (lane == 0) parts[kfi_thread() / 32] = v;
    __syncthreads();
    return kfi_reduce_warp<op>(lane < kfi_warps()     ? parts[lane]
                               : op == KFI_REDUCE_SUM ? 0.0f
                                                      : parts[0]);
}
template <int op> KFI_DEVICE double kfi_reduce_block(double v)
{
    double *const parts = kfi_parts_f64();
    const unsigned lane = kfi_thread() % 32;
    v = kfi_reduce_warp<op>(v);
    __syncthreads(); // the previous reduction may still be reading parts
    if (lane == 0) parts[kfi_thread() / 32] = v;
    __syncthreads();
    return kfi_reduce_warp<op>(lane < kfi_warps()     ? parts[lane]
                               : op == KFI_REDUCE_SUM ? 0.0
                                                      : parts[0]);
}

// ---- dropout
template <int vec> KFI_DEVICE void kfi_drop(float *values, const kfi_rng &rng, kf_i64 first)
{
    static_assert(vec == 1 || vec == 2 || vec == 4 || vec == 8,
                  "kf: dropout takes 1, 2, 4 or 8 elements at a time");
    kfi_u32 keep[vec];
    kfi_keep<vec>(keep, rng, first);
#pragma unroll
    for (int e = 0; e < vec; ++e) values[e] = kfi_select_kept(keep[e], rng, values[e] * rng.scale);
}
template <int vec> KFI_DEVICE void kfi_drop(double *values, const kfi_rng &rng, kf_i64 first)
{
    static_assert(vec == 1 || vec == 2 || vec == 4 || vec == 8,
                  "kf: dropout takes 1, 2, 4 or 8 elements at a time");
    kfi_u32 keep[vec];
    kfi_keep<vec>(keep, rng, first);
#pragma unroll
    for (int e = 0; e < vec; ++e)
        values[e] = kfi_select_kept(keep[e], rng, values[e] * rng.scale_f64);
}
#endif

// ---- the public functions. The host pass sees their names only.

// Loads values[e] = p[e] for e < vec, as float (double for double). Without `left`, p must be
// aligned to the vector, or to 16 bytes. left: number of elements from p to the end; later values
// are 0, nothing beyond is read, and p needs element alignment only.
template <int vec> KFI_DEVICE void kf_load(float *values, const float *p)
{
    (void)KFI_ON_DEVICE(kfi_load_left<vec>(values, p, vec, kfi_is_vector<vec>()));
}
template <int vec> KFI_DEVICE void kf_load(float *values, const kf_f16 *p)
{
    (void)KFI_ON_DEVICE(kfi_load_left<vec>(values, p, vec, kfi_is_vector<vec>()));
}
template <int vec> KFI_DEVICE void kf_load(float *values, const kf_bf16 *p)
{
    (void)KFI_ON_DEVICE(kfi_load_left<vec>(values, p, vec, kfi_is_vector<vec>()));
}
template <int vec> KFI_DEVICE void kf_load(double *values, const double *p)
{
    (void)KFI_ON_DEVICE(kfi_load_left<vec>(values, p, vec, kfi_is_vector<vec>()));
}
template <int vec> KFI_DEVICE void kf_load(float *values, const float *p, kf_i64 left)
{
    (void)KFI_ON_DEVICE(kfi_load_left<vec>(values, p, left, kfi_whole<4, vec>(p, left)));
}
template <int vec> KFI_DEVICE void kf_load(float *values, const kf_f16 *p, kf_i64 left)
{
    (void)KFI_ON_DEVICE(kfi_load_left<vec>(values, p, left, kfi_whole<2, vec>(p, left)));
}
template <int vec> KFI_DEVICE void kf_load(float *values, const kf_bf16 *p, kf_i64 left)
{
    (void)KFI_ON_DEVICE(kfi_load_left<vec>(values, p, left, kfi_whole<2, vec>(p, left)));
}
template <int vec> KFI_DEVICE void kf_load(double *values, const double *p, kf_i64 left)
{
    (void)KFI_ON_DEVICE(kfi_load_left<vec>(values, p, left, kfi_whole<8, vec>(p, left)));
}

// Stores p[e] = values[e] for e < vec, rounded once to nearest even. `left` as for kf_load: nothing
// beyond it is written.
template <int vec> KFI_DEVICE void kf_store(float *p, const float *values)
{
    (void)KFI_ON_DEVICE(kfi_store_left<vec>(p, values, vec, kfi_is_vector<vec>()));
}
template <int vec> KFI_DEVICE void kf_store(kf_f16 *p, const float *values)
{
    (void)KFI_ON_DEVICE(kfi_store_left<vec>(p, values, vec, kfi_is_vector<vec>()));
}
template <int vec> KFI_DEVICE void kf_store(kf_bf16 *p, const float *values)
{
    (void)KFI_ON_DEVICE(kfi_store_left<vec>(p, values, vec, kfi_is_vector<vec>()));
}
template <int vec> KFI_DEVICE void kf_store(double *p, const double *values)
{
    (void)KFI_ON_DEVICE(kfi_store_left<vec>(p, values, vec, kfi_is_vector<vec>()));
}
template <int vec> KFI_DEVICE void kf_store(float *p, const float *values, kf_i64 left)
{
    (void)KFI_ON_DEVICE(kfi_store_left<vec>(p, values, left, kfi_whole<4, vec>(p, left)));
}
template <int vec> KFI_DEVICE void kf_store(kf_f16 *p, const float *values, kf_i64 left)
{
    (void)KFI_ON_DEVICE(kfi_store_left<vec>(p, values, left, kfi_whole<2, vec>(p, left)));
}
template <int vec> KFI_DEVICE void kf_store(kf_bf16 *p, const float *values, kf_i64 left)
{
    (void)KFI_ON_DEVICE(kfi_store_left<vec>(p, values, left, kfi_whole<2, vec>(p, left)));
}
template <int vec> KFI_DEVICE void kf_store(double *p, const double *values, kf_i64 left)
{
    (void)KFI_ON_DEVICE(kfi_store_left<vec>(p, values, left, kfi_whole<8, vec>(p, left)));
}

// Reduce over the 32 lanes of a warp. All lanes must call; all get the result. A NaN among the
// values makes the result NaN.
KFI_DEVICE float kf_warp_sum(float v) { return KFI_ON_DEVICE(kfi_reduce_warp<KFI_REDUCE_SUM>(v)); }
KFI_DEVICE float kf_warp_max(float v) { return KFI_ON_DEVICE(kfi_reduce_warp<KFI_REDUCE_MAX>(v)); }
KFI_DEVICE float kf_warp_min(float v) { return KFI_ON_DEVICE(kfi_reduce_warp<KFI_REDUCE_MIN>(v)); }
KFI_DEVICE double kf_warp_sum(double v)
{
    return KFI_ON_DEVICE(kfi_reduce_warp<KFI_REDUCE_SUM>(v));
}
KFI_DEVICE double kf_warp_max(double v)
{
    return KFI_ON_DEVICE(kfi_reduce_warp<KFI_REDUCE_MAX>(v));
}
KFI_DEVICE double kf_warp_min(double v)
{
    return KFI_ON_DEVICE(kfi_reduce_warp<KFI_REDUCE_MIN>(v));
}

// Reduce over a block of whole warps. All threads must call; all get the result. Costs two barriers
// and 128 or 256 bytes of shared memory.
KFI_DEVICE float kf_block_sum(float v)
{
    return KFI_ON_DEVICE(kfi_reduce_block<KFI_REDUCE_SUM>(v));
}
KFI_DEVICE float kf_block_max(float v)
{
    return KFI_ON_DEVICE(kfi_reduce_block<KFI_REDUCE_MAX>(v));
}
KFI_DEVICE float kf_block_min(float v)
{
    return KFI_ON_DEVICE(kfi_reduce_block<KFI_REDUCE_MIN>(v));
}
KFI_DEVICE double kf_block_sum(double v)
{
    return KFI_ON_DEVICE(kfi_reduce_block<KFI_REDUCE_SUM>(v));
}
KFI_DEVICE double kf_block_max(double v)
{
    return KFI_ON_DEVICE(kfi_reduce_block<KFI_REDUCE_MAX>(v));
}
KFI_DEVICE double kf_block_min(double v)
{
    return KFI_ON_DEVICE(kfi_reduce_block<KFI_REDUCE_MIN>(v));
}

// Random bits. A kf_rng_t is a kernel argument, passed by value and made on the host by kf_make_rng
// (rng.h). kf_philox returns the 128 bits at a counter as four 32-bit words.
KFI_DEVICE void kf_philox(unsigned *words, const kf_rng_t &rng, kfi_u64 counter)
{
    (void)KFI_ON_DEVICE(kfi_philox(&rng, counter, words, words + 1, words + 2, words + 3));
}
// Drops or scales values[e], elements first + e of the tensor, as kf's dropout launchers do. vec
// must divide first.
template <int vec> KFI_DEVICE void kf_dropout(float *values, const kf_rng_t &rng, kf_i64 first)
{
    (void)KFI_ON_DEVICE(kfi_drop<vec>(values, rng, first));
}
template <int vec> KFI_DEVICE void kf_dropout(double *values, const kf_rng_t &rng, kf_i64 first)
{
    (void)KFI_ON_DEVICE(kfi_drop<vec>(values, rng, first));
}
// Reads seed and offset from device memory, for CUDA graphs that are replayed. The offset adds to
// the one given to kf_make_rng.
KFI_DEVICE void kf_read_rng(kf_rng_t &rng, const void *seed, const void *offset)
{
    (void)KFI_ON_DEVICE(kfi_set_seed(&rng, *(const kfi_u64 *)seed),
                        rng.offset += *(const kfi_u64 *)offset);
}

#endif
