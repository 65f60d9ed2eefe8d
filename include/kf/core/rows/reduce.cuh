// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/reduce.cuh: thread coordinates in a row, and reductions over the threads of a row:
// shuffles, then shared memory across warps, then the cluster.
#ifndef KF_CORE_ROWS_REDUCE_CUH
#define KF_CORE_ROWS_REDUCE_CUH

#include "kf/core/ptx/cluster.cuh"
#include "kf/core/rows/args.cuh"

#ifdef KFI_DEVICE_PASS
// Tells ptxas that exactly one warp has a row.
template <int one> KFI_DEVICE void kfi_row_of_warp(const kfi_row_layout &g)
{
    if (one)
        __builtin_assume(g.lanes == 32 && g.cluster == 1 && g.cluster_bits == 0 &&
                         g.share == 1 << 15);
}
// Coordinates of a thread.
struct kfi_row_thread {
    kf_i64 block;    // block or cluster index
    kf_i64 row;      // first row
    kf_i64 stride;   // from one row of the thread to the next, in rows
    int rank;        // rank of the block in the row's cluster
    int group, lane; // row index within the block, and thread index within the row
    int first, step; // first column, and column stride between vectors
    // For warps whose vectors are contiguous (side > 0): offsets from here on are past the end of
    // the row, for aligned vectors too.
    int reach;
    // Which of the two sets of slots in shared memory the row uses; a set is free again two rows
    // later.
    int turn, phase;
};
// Computes the coordinates at kernel start. split: a row may have a cluster, and each block
// initialises `barriers` mbarriers at the beginning of shared memory. side: number of vectors per
// thread if a warp's vectors are contiguous (stride of one warp); 0: stride of all threads of the
// row.
template <int vec, int split, int side>
KFI_DEVICE kfi_row_thread kfi_row_enter(const kfi_row_layout &g, int barriers)
{
    kfi_row_thread at = {};
#if KFI_CLUSTERS
    if (split && g.cluster > 1) {
        at.rank = kfi_cluster_rank();
        for (int i = 0; threadIdx.x == 0 && i < barriers; ++i)
            kfi_mbarrier_open((unsigned long long *)kfi_dynamic() + i);
        kfi_cluster_arrive();
    }
#endif
    // Shifts: a division before the first load would cost 20 dependent instructions.
    const int bits = split ? g.cluster_bits : 0;
    at.group = (int)threadIdx.x * g.share >> 20;
    at.lane = (int)threadIdx.x - at.group * g.lanes;
    at.first = (at.rank * g.lanes + at.lane) * vec;
    at.step = (g.lanes << bits) * vec;
    if (side > 0) {
        at.first = (at.rank * g.lanes + (at.lane & ~31)) * side * vec + (at.lane & 31) * vec;
        at.step = (g.lanes < 32 ? g.lanes : 32) * vec;
        at.reach = (int)g.cols - at.first + (at.lane & 31) * vec + vec - 1;
    }
    at.block = blockIdx.x >> bits;
    at.row = at.block * g.groups + at.group;
    at.stride = (kf_i64)(gridDim.x >> bits) * g.groups;
    return at;
}
// Makes the block sum a strip of columns instead of processing rows. Each thread then has one
// vector of every few rows. Returns whether the block does so.
template <int vec>
KFI_DEVICE bool kfi_row_strip_enter(kfi_row_thread *at, const kfi_row_layout &g,
                                    const kfi_sums &sums)
{
    if (blockIdx.x < sums.parts) return false;
    at->first =
        ((int)(blockIdx.x - sums.parts) * KFI_ROW_STRIP + (int)threadIdx.x % KFI_ROW_STRIP) * vec;
    at->step = (int)g.cols; // past the end of the row: one vector per row
    at->row = (int)threadIdx.x / KFI_ROW_STRIP;
    at->stride = (int)blockDim.x / KFI_ROW_STRIP;
    at->group = at->lane = 0;
    return true;
}
// Stores the terms of a row to shared memory, as a block of that row would leave them for the
// second stage.
template <int vec, class type>
KFI_DEVICE void kfi_row_strip_add(int gradient, int row, type (&sum)[vec])
{
    constexpr int stride = KFI_ROW_STRIP * vec + 1;
    double *const to = (double *)kfi_dynamic() + (gradient * KFI_SUM_GROUPS + row) * stride +
                       (int)threadIdx.x % KFI_ROW_STRIP * vec;
#pragma unroll
    for (int e = 0; e < vec; ++e) {
        to[e] = 0.0 + sum[e];
        sum[e] = 0;
    }
}
// Adds them up in the order of the second stage and stores the result.
template <int dtype, int vec, int count>
KFI_DEVICE void kfi_row_strip_store(const kfi_sums &sums, const kfi_row_layout &g)
{
    constexpr int columns = KFI_ROW_STRIP * vec;
    const kf_i64 first = (kf_i64)(blockIdx.x - sums.parts) * columns;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < count; ++k) {
        void *const out = kfi_sum_out(sums, (unsigned)k);
        const double *const from =
            (const double *)kfi_dynamic() + k * KFI_SUM_GROUPS * (columns + 1);
        for (int c = (int)threadIdx.x / 32; out && c < columns; c += (int)blockDim.x / 32) {
            const double sum = kfi_sum_groups(from + c, columns + 1, (int)g.rows);
            if (threadIdx.x % 32 == 0 && first + c < g.cols)
                kfi_store_sum(kfi_tag<dtype>(), out, first + c, sum);
        }
    }
}
// Adds a vector's terms to the block's partial sums in memory (rows not in registers). Loads all of
// them before the first store.
template <int in_registers, int vec, class type>
KFI_DEVICE void kfi_row_add(type *partial, type (&sum)[vec], kf_i64 at, const kfi_sums &sums)
{
    constexpr int access =
        // stride consists of whole accesses
        16 / (int)sizeof(type) < vec ? 16 / (int)sizeof(type) : vec;
    alignas(16) type there[vec] = {};
    if (!in_registers && partial) {
#pragma unroll
        for (int e = 0; e < vec; e += access)
            if (at + e < sums.stride)
                kfi_copy<access *(int)sizeof(type)>(there + e, partial + at + e);
#pragma unroll
        for (int e = 0; e < vec; ++e) there[e] += sum[e], sum[e] = 0;
#pragma unroll
        for (int e = 0; e < vec; e += access)
            if (at + e < sums.stride)
                kfi_store<access *(int)sizeof(type)>(partial + at + e, there + e);
    }
}
// Waits until all blocks of the cluster have initialised their mbarriers.
template <int split> KFI_DEVICE void kfi_row_entered(const kfi_row_layout &g)
{
#if KFI_CLUSTERS
    if (split && g.cluster > 1) kfi_cluster_wait();
#endif
}

#if KFI_CLUSTERS
#define KFI_ROW_ACROSS(type)                                                                       \
    if (split && g.cluster > 1) {                                                                  \
        slot = slots + 2 * all * 32 + (at.turn * all + first) * KFI_ROW_CLUSTER;                   \
        if (at.lane == 0) kfi_mbarrier_expect(barrier, g.cluster * count * (int)sizeof *slot);     \
        if (at.lane < g.cluster)                                                                   \
            _Pragma("unroll") for (int i = 0; i < count; ++i)                                      \
                kfi_cluster_send(slot + i * KFI_ROW_CLUSTER + at.rank, barrier, at.lane, v[i]);    \
        kfi_mbarrier_await(barrier, at.phase);                                                     \
        _Pragma("unroll") for (int i = 0; i < count; ++i) v[i] =                                   \
            kfi_row_gather(words >> 2 * i & 3, slot + i * KFI_ROW_CLUSTER, g.cluster);             \
    }
#else
#define KFI_ROW_ACROSS(type) (void)barrier;
#endif

// Defined for float and double.
#define KFI_ROW_WORDS(type, f)                                                                     \
    KFI_DEVICE type kfi_join(int word, type a, type b)                                             \
    {                                                                                              \
        return word == KFI_SUM    ? a + b                                                          \
               : word == KFI_PROD ? a * b                                                          \
               : word == KFI_MAX  ? kfi_max_##f(a, b)                                              \
                                  : kfi_min_##f(a, b);                                             \
    }                                                                                              \
    /* Identity element of the reduction. */                                                       \
    KFI_DEVICE void kfi_nothing(int word, type *v)                                                 \
    {                                                                                              \
        *v = word == KFI_SUM ? 0                                                                   \
             : word == KFI_PROD                                                                    \
                 ? 1                                                                               \
                 : (type)__int_as_float(word == KFI_MAX ? (int)0xff800000 : 0x7f800000);           \
    }                                                                                              \
    /* All-reduce over `lanes` neighbouring lanes. Unrolled: a loop takes 3x the instructions. */  \
    template <int words, int lanes, int count> KFI_DEVICE void kfi_row_shuffle(type(&v)[count])    \
    {                                                                                              \
        _Pragma("unroll") for (int by = lanes >> 1; by > 0; by >>= 1)                              \
            _Pragma("unroll") for (int i = 0; i < count; ++i) v[i] =                               \
                kfi_join(words >> 2 * i & 3, v[i], __shfl_xor_sync(0xffffffffu, v[i], by));        \
    }                                                                                              \
    /* All-reduce over a row's warps: slot holds a value per reduction (stride 32) and warp. */    \
    template <int words, int lanes, int count>                                                     \
    KFI_DEVICE void kfi_row_fold(type(&v)[count], const type *slot, int warps)                     \
    {                                                                                              \
        const int own = (int)threadIdx.x & (lanes - 1);                                            \
        _Pragma("unroll") for (int i = 0; i < count; ++i)                                          \
        {                                                                                          \
            kfi_nothing(words >> 2 * i & 3, &v[i]);                                                \
            if (own < warps) v[i] = slot[i * 32 + own];                                            \
        }                                                                                          \
        kfi_row_shuffle<words, lanes>(v);                                                          \
    }                                                                                              \
    /* Reduction over a row's blocks. */                                                           \
    KFI_DEVICE type kfi_row_gather(int word, const type *slot, int blocks)                         \
    {                                                                                              \
        type v = slot[0];                                                                          \
        _Pragma("unroll") for (int i = 1; i < KFI_ROW_CLUSTER; ++i) if (i < blocks) v =            \
            kfi_join(word, v, slot[i]);                                                            \
        return v;                                                                                  \
    }                                                                                              \
    /* Reduces the `count` values of pass number `pass` (of `passes`) over all threads of a row.   \
     */                                                                                            \
    /* `words`: 2 bits per reduction. `first`: index among the kernel's `all` reductions. */       \
    /* Shared memory: mbarriers; then per turn and reduction a value per warp, then per block. */  \
    /* alone: only the first warp of a one-block row needs the result. */                          \
    template <int words, int split, int alone, int pass, int passes, int first, int all,           \
              int count>                                                                           \
    KFI_DEVICE void kfi_row_reduce(type(&v)[count], const kfi_row_layout &g,                       \
                                   const kfi_row_thread &at)                                       \
    {                                                                                              \
        unsigned long long *const barrier =                                                        \
            (unsigned long long *)kfi_dynamic() + at.turn * passes + pass;                         \
        type *const slots = (type *)(kfi_dynamic() + 2 * passes * sizeof *barrier),                \
                    *slot = slots + (at.turn * all + first) * 32;                                  \
        if (g.lanes >= 32)                                                                         \
            kfi_row_shuffle<words, 32>(v);                                                         \
        else                                                                                       \
            for (int by = g.lanes >> 1; by > 0; by >>= 1)                                          \
                _Pragma("unroll") for (int i = 0; i < count; ++i) v[i] =                           \
                    kfi_join(words >> 2 * i & 3, v[i], __shfl_xor_sync(0xffffffffu, v[i], by));    \
        if (g.lanes > 32) {                                                                        \
            const int warps = g.lanes / 32;                                                        \
            if (threadIdx.x % 32 == 0)                                                             \
                _Pragma("unroll") for (int i = 0; i < count; ++i)                                  \
                    slot[i * 32 + threadIdx.x / 32] = v[i];                                        \
            __syncthreads();                                                                       \
            if (alone && (!split || g.cluster == 1) && at.lane >= 32) return;                      \
            if (warps > 8)                                                                         \
                kfi_row_fold<words, 32>(v, slot + at.group * warps, warps);                        \
            else if (warps > 2)                                                                    \
                kfi_row_fold<words, 8>(v, slot + at.group * warps, warps);                         \
            else                                                                                   \
                kfi_row_fold<words, 2>(v, slot + at.group * warps, warps);                         \
        }                                                                                          \
        KFI_ROW_ACROSS(type)                                                                       \
    }                                                                                              \
    /* Clears the partial sums in memory. */                                                       \
    template <int vec>                                                                             \
    KFI_DEVICE void kfi_row_clear(type *partial, int first, int step, kf_i64 stride)               \
    {                                                                                              \
        _Pragma("unroll 1") for (kf_i64 c = first; c < stride; c += step)                          \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) if (c + e < stride) partial[c + e] =   \
                0;                                                                                 \
    }                                                                                              \
    /* Writes a block's partial sums of one gradient over the block's rows. If a warp has */       \
    /* several rows, it adds them by shuffles; warps add theirs through shared `buffer`. */        \
    template <int in_registers, int vec>                                                           \
    KFI_DEVICE void kfi_row_sums(type *partial, type(&sum)[in_registers][vec], type *buffer,       \
                                 const kfi_row_layout &g, int group, int first, int step)          \
    {                                                                                              \
        const int padded = (int)kfi_ceil4(g.cols);                                                 \
        if (g.groups == 1) {                                                                       \
            constexpr int access = 16 / (int)sizeof(type) < vec                                    \
                                       ? 16 / (int)sizeof(type)                                    \
                                       : vec; /* padded consists of whole accesses */              \
            _Pragma("unroll") for (int s = 0; s < in_registers; ++s) _Pragma(                      \
                "unroll") for (int e = 0; e < vec; e += access) if (first + s * step + e < padded) \
                kfi_store<access *(int)sizeof(type)>(partial + first + s * step + e, sum[s] + e);  \
            return;                                                                                \
        }                                                                                          \
        _Pragma("unroll 1") for (int by = 16; by >= g.lanes; by >>= 1)                             \
            _Pragma("unroll") for (int s = 0; s < in_registers; ++s)                               \
                _Pragma("unroll") for (int e = 0; e < vec; ++e) sum[s][e] +=                       \
            __shfl_xor_sync(0xffffffffu, sum[s][e], by);                                           \
        const int row = g.lanes < 32 ? (int)threadIdx.x / 32 : group,                              \
                  rows = g.lanes < 32 ? (int)blockDim.x / 32 : g.groups;                           \
        const int width = in_registers * g.lanes * vec;                                            \
        type *const own = buffer + row * width + first;                                            \
        __syncthreads();                                                                           \
        if ((int)threadIdx.x % 32 < g.lanes)                                                       \
            _Pragma("unroll") for (int s = 0; s < in_registers; ++s)                               \
                _Pragma("unroll") for (int e = 0; e < vec; ++e) own[s * step + e] = sum[s][e];     \
        __syncthreads();                                                                           \
        _Pragma("unroll 1") for (int c = (int)threadIdx.x; c < padded; c += (int)blockDim.x)       \
        {                                                                                          \
            type total = buffer[c];                                                                \
            _Pragma("unroll 4") for (int y = 1; y < rows; ++y) total += buffer[y * width + c];     \
            partial[c] = total;                                                                    \
        }                                                                                          \
    }
KFI_ROW_WORDS(float, f32)
KFI_ROW_WORDS(double, f64)
#endif

#endif
