// SPDX-License-Identifier: Apache-2.0
// kf/core/sums.cuh: second stage of a column sum: adds the partial sums that blocks have stored in
// the workspace. Callers: the run functions of elementwise, rows, matmul, rope_norm and
// embedding_layer_norm, on the stream of the first stage.
//
// Grid: (ceil(columns / 32), outputs); block: KFI_SUM_LANES * KFI_SUM_GROUPS threads; static shared
// memory: one double per group and column. Each group of 8 threads adds every KFI_SUM_GROUPS-th
// partial row, in order, 8 loads at a time; then a warp adds the groups of a column by shuffles.
// The sums are float64 and the order is fixed, so results are deterministic.
#ifndef KF_CORE_SUMS_CUH
#define KF_CORE_SUMS_CUH

#include "kf/core/kernel.cuh"

// Arguments of one launch (a run): the sums of up to KFI_MAX_SUM_OUTPUTS gradients of one dtype. A
// launcher with more gradients or several dtypes has an array of these.
struct kfi_sums {
    // Sum k has `parts` rows of `stride` values at partial + k * parts * stride. NULL: no sums.
    void *partial;
    void *out[KFI_MAX_SUM_OUTPUTS];          // NULL is skipped
    kf_i64 parts = 0, count = 0, stride = 0; // stride: count rounded up to whole vectors
    // Planes: partial is [sum][part][tile][slot].
    kf_i64 inner = 0, tile_cols = 0, tiles = 0, slots = 0;
};
#define KFI_SUM_LANES 8 // vectors of 4 columns per block
#ifndef KFI_SUM_GROUPS  // 64; the emulation sets 32 for fewer threads
#define KFI_SUM_GROUPS 64
#endif
#define KFI_SUM_AHEAD 8 // loads in flight per thread

#ifdef KFI_DEVICE_PASS

KFI_DEVICE kf_i64 kfi_ceil4(kf_i64 n) { return (n + 3) & ~(kf_i64)3; }

// Warp sum of a column over `groups` values with the given stride: two values per lane, or one with
// 32 groups. All lanes return the sum.
KFI_DEVICE double kfi_sum_groups(const double *column, int stride, int groups)
{
    const int lane = (int)(threadIdx.x % 32);
    double sum = lane < groups ? column[lane * stride] : 0.0;
    if (KFI_SUM_GROUPS == 64 && lane + 32 < groups) sum += column[(lane + 32) * stride];
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}
// Returns output k by selection: a computed index would move the arguments to local memory.
KFI_DEVICE void *kfi_sum_out(const kfi_sums &s, unsigned k)
{
    return k == 0 ? s.out[0] : k == 1 ? s.out[1] : k == 2 ? s.out[2] : s.out[3];
}
// Template arguments acc and dtype are codes of kf_dtype_t.
KFI_DEVICE void kfi_store_sum(kfi_tag<KF_F32>, void *out, kf_i64 i, double v)
{
    ((float *)out)[i] = (float)v;
}
KFI_DEVICE void kfi_store_sum(kfi_tag<KF_F64>, void *out, kf_i64 i, double v)
{
    ((double *)out)[i] = v;
}
KFI_DEVICE void kfi_store_sum(kfi_tag<KF_F16>, void *out, kf_i64 i, double v)
{
    kfi_cast((kf_f16 *)out + i, (float)v);
}
KFI_DEVICE void kfi_store_sum(kfi_tag<KF_BF16>, void *out, kf_i64 i, double v)
{
    kfi_cast((kf_bf16 *)out + i, (float)v);
}
KFI_DEVICE float kfi_load_sum(kfi_tag<KF_F32>, const void *p, kf_i64 i)
{
    return ((const float *)p)[i];
}
KFI_DEVICE void kfi_load_sums(kfi_tag<KF_F32>, double *v, const void *p, kf_i64 i)
{
    const float4 w = *(const float4 *)((const float *)p + i);
    v[0] = w.x;
    v[1] = w.y;
    v[2] = w.z;
    v[3] = w.w;
}
KFI_DEVICE void kfi_load_sums(kfi_tag<KF_F64>, double *v, const void *p, kf_i64 i)
{
    kfi_copy<16>(v, (const double *)p + i);
    kfi_copy<16>(v + 2, (const double *)p + i + 2);
}
KFI_DEVICE double kfi_load_sum(kfi_tag<KF_F64>, const void *p, kf_i64 i)
{
    return ((const double *)p)[i];
}

#endif

#ifdef KFI_HOST_PASS
// Returns whether any output of the runs is not NULL.
KF_FN KFI_SMALL bool kfi_sums_wanted(const kfi_sums *s, const unsigned char *runs, int sums)
{
    bool wanted = false;
    for (int run = 0, count; sums > 0; ++run, sums -= count) {
        count = runs ? runs[run] : sums;
        for (int k = 0; k < count; ++k) wanted = wanted || s[run].out[k];
    }
    return wanted;
}
// Launches the second stage, once per run. s[0] has all fields, the other runs have outputs only.
// bytes: size of a gradient's partial sums. apart: distance between the kernels of two runs.
KF_FN KFI_SMALL kf_result_t kfi_launch_sums(const kfi_name *name, const kfi_sums *s,
                                            const unsigned char *runs, int sums, kf_i64 bytes,
                                            const void *const *kernels, int apart, kf_i64 blocks,
                                            unsigned threads, cudaStream_t stream)
{
    kf_result_t result = KF_SUCCESS;
    for (int run = 0, count, done = 0; result == KF_SUCCESS && done < sums; ++run, done += count) {
        kfi_sums own = s[0];
        count = runs ? runs[run] : sums;
        own.partial = (char *)own.partial + done * bytes;
        for (int k = 0; k < count; ++k) own.out[k] = s[run].out[k];
        void *args[] = {&own};
        result = kfi_launch(name, kernels[run * apart], dim3((unsigned)blocks, (unsigned)count),
                            threads, args, stream);
    }
    return result;
}

#endif

#ifndef KFI_DRIVER
template <int acc, int dtype>
KFI_KERNEL void KFI_BOUNDS(KFI_SUM_LANES *KFI_SUM_GROUPS) kfk_sum_partials(kfi_sums s)
{
#ifdef KFI_DEVICE_PASS
    kfi_begin();
    __shared__ double buffer[KFI_SUM_GROUPS][4 * KFI_SUM_LANES + 1];
    void *const out = kfi_sum_out(s, blockIdx.y);
    if (!out) return;
    const int lane = (int)threadIdx.x % KFI_SUM_LANES, group = (int)threadIdx.x / KFI_SUM_LANES;
    const kf_i64 col = ((kf_i64)blockIdx.x * KFI_SUM_LANES + lane) * 4;
    double total[4] = {}; // few additions: float64 is free here
    for (kf_i64 k = group; k < s.parts; k += KFI_SUM_GROUPS * KFI_SUM_AHEAD) {
        double v[KFI_SUM_AHEAD][4] = {};
#pragma unroll
        for (int u = 0; u < KFI_SUM_AHEAD; ++u) {
            const kf_i64 row = k + u * KFI_SUM_GROUPS;
            if (row < s.parts && col + 4 <= s.count)
                kfi_load_sums(kfi_tag<acc>(), v[u], s.partial,
                              (blockIdx.y * s.parts + row) * s.stride + col);
        }
#pragma unroll
        for (int u = 0; u < KFI_SUM_AHEAD; ++u)
#pragma unroll
            for (int e = 0; e < 4; ++e) total[e] += v[u][e];
    }
    if (col + 4 > s.count) // last vector: loads past the last column are skipped
        for (kf_i64 row = group; row < s.parts; row += KFI_SUM_GROUPS)
#pragma unroll
            for (int e = 0; e < 3; ++e)
                if (col + e < s.count)
                    total[e] += kfi_load_sum(kfi_tag<acc>(), s.partial,
                                             (blockIdx.y * s.parts + row) * s.stride + col + e);
#pragma unroll
    for (int e = 0; e < 4; ++e) buffer[group][4 * lane + e] = total[e];
    __syncthreads();
    // Each warp reduces some columns, one after the other.
    for (int c = (int)threadIdx.x / 32; c < 4 * KFI_SUM_LANES;
         c += KFI_SUM_LANES * KFI_SUM_GROUPS / 32) {
        const double sum = kfi_sum_groups(&buffer[0][c], 4 * KFI_SUM_LANES + 1, KFI_SUM_GROUPS);
        const kf_i64 i = (kf_i64)blockIdx.x * KFI_SUM_LANES * 4 + c;
        if (threadIdx.x % 32 == 0 && i < s.count) kfi_store_sum(kfi_tag<dtype>(), out, i, sum);
    }
#endif
}
#endif

#endif
