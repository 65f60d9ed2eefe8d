// SPDX-License-Identifier: Apache-2.0
// kf/core/index_sort.cuh: sorts row indices by token, and by index for equal tokens. This is the
// order in which the gradient of a table adds the rows of a token. A stable LSD radix sort with
// digits of 8 bits, three launches per digit:
//
// count    a block counts the digits of its tile (grid: tiles);
// scan     a block per digit computes the exclusive prefix sums of its counts over the tiles;
// scatter  a block moves the indices of its tile behind those of smaller digits, of earlier tiles
// and
//          of earlier warps.
//
// Then kfk_index_bounds searches the start of each token. Block: KFI_SORT_THREADS threads, static
// shared memory. All arithmetic is on integers, so the result is the same in every run.
#ifndef KF_CORE_INDEX_SORT_CUH
#define KF_CORE_INDEX_SORT_CUH

#include "kf/core/kernel.cuh"

#ifndef KFI_SORT_BITS // bits per digit; the emulation sets fewer, for fewer threads
#define KFI_SORT_BITS 8
#endif
#define KFI_SORT_THREADS (1 << KFI_SORT_BITS) // one per value of a digit
#ifndef KFI_SORT_ROUNDS // the emulation sets fewer, for several tiles of short tensors
#define KFI_SORT_ROUNDS 8
#endif
// Vocabulary size below which a warp, not a thread, searches the start of each token: every step of
// a search waits for memory.
#ifndef KFI_SORT_WIDE
#define KFI_SORT_WIDE 4096
#endif
#define KFI_SORT_TILE (KFI_SORT_THREADS * KFI_SORT_ROUNDS)
#define KFI_SORT_WARPS (KFI_SORT_THREADS / 32)

struct kfi_sort {
    const void *numbers;
    // Tokens outside [0, below) and the token `skipped` sort last.
    kf_i64 count, below, skipped;
    const kf_i64 *from;      // indices sorted by the previous digits; NULL: 0 to count - 1
    kf_i64 *to, *begin;      // begin[v]: start of token v in `to`; begin[below]: end of the last
    kf_i64 *counts, *totals; // counts[digit][tile], totals[digit]
    kf_i64 tiles;
    int shift; // bit position of the digit
    int wide;  // a warp searches each token's start; otherwise a thread
};

#ifdef KFI_DEVICE_PASS
KFI_DEVICE kf_i64 kfi_number(kfi_tag<KF_I64>, const void *p, kf_i64 i)
{
    return ((const kf_i64 *)p)[i];
}
KFI_DEVICE kf_i64 kfi_number(kfi_tag<KF_I32>, const void *p, kf_i64 i)
{
    return ((const kf_i32 *)p)[i];
}

template <int dtype> KFI_DEVICE kf_i64 kfi_sort_key(const kfi_sort &s, kf_i64 index)
{
    const kf_i64 v = kfi_number(kfi_tag<dtype>(), s.numbers, index);
    return v >= 0 && v < s.below && v != s.skipped ? v : s.below;
}
// Loads a thread's indices, `stride` apart, and their digits, all loads in flight at once; -1 past
// the end.
template <int dtype>
KFI_DEVICE void kfi_sort_digits(const kfi_sort &s, kf_i64 first, int stride, kf_i64 *index,
                                int *digit)
{
#pragma unroll
    for (int r = 0; r < KFI_SORT_ROUNDS; ++r) {
        const kf_i64 i = first + r * stride;
        index[r] = i < s.count ? s.from ? s.from[i] : i : -1;
    }
#pragma unroll
    for (int r = 0; r < KFI_SORT_ROUNDS; ++r)
        digit[r] =
            index[r] < 0
                ? -1
                : (int)(kfi_sort_key<dtype>(s, index[r]) >> s.shift & (KFI_SORT_THREADS - 1));
}
// Returns the lanes of the warp with the same digit, of which one adds for all. All lanes call it.
KFI_DEVICE unsigned kfi_sort_same(int digit)
{
    unsigned same = __ballot_sync(0xffffffffu, digit >= 0);
#pragma unroll
    for (int bit = 0; bit < KFI_SORT_BITS; ++bit) {
        const unsigned with = __ballot_sync(0xffffffffu, digit >> bit & 1);
        same &= digit >> bit & 1 ? with : ~with;
    }
    return same;
}
KFI_DEVICE int kfi_sort_rank(unsigned same)
{
    return __popc(same & ((1u << threadIdx.x % 32) - 1));
}
// Exclusive prefix sum over KFI_SORT_THREADS threads. `room`: one slot per thread. `*total`: the
// sum.
KFI_DEVICE kf_i64 kfi_sort_exclusive_sum(kf_i64 own, kf_i64 *room, kf_i64 *total)
{
    const int t = (int)threadIdx.x;
    kf_i64 sum = own;
    for (int step = 1; step < KFI_SORT_THREADS; step *= 2) {
        room[t] = sum;
        __syncthreads();
        if (t >= step) sum += room[t - step];
        __syncthreads();
    }
    room[t] = sum;
    __syncthreads();
    *total = room[KFI_SORT_THREADS - 1];
    return sum - own;
}
#endif

#ifndef KFI_DRIVER
template <int dtype> KFI_KERNEL void KFI_BOUNDS(KFI_SORT_THREADS) kfk_index_count(kfi_sort s)
{
#ifdef KFI_DEVICE_PASS
    kfi_begin();
    __shared__ int found[KFI_SORT_THREADS];
    found[threadIdx.x] = 0;
    __syncthreads();
    kf_i64 index[KFI_SORT_ROUNDS];
    int digit[KFI_SORT_ROUNDS];
    kfi_sort_digits<dtype>(s, (kf_i64)blockIdx.x * KFI_SORT_TILE + threadIdx.x, KFI_SORT_THREADS,
                           index, digit);
#pragma unroll
    for (int r = 0; r < KFI_SORT_ROUNDS; ++r) {
        const unsigned same = kfi_sort_same(digit[r]);
        if (digit[r] >= 0 && kfi_sort_rank(same) == 0) atomicAdd(&found[digit[r]], __popc(same));
    }
    __syncthreads();
    s.counts[threadIdx.x * s.tiles + blockIdx.x] = found[threadIdx.x];
#endif
}

template <int dtype> KFI_KERNEL void KFI_BOUNDS(KFI_SORT_THREADS) kfk_index_scan(kfi_sort s)
{
#ifdef KFI_DEVICE_PASS
    kfi_begin();
    __shared__ kf_i64 room[KFI_SORT_THREADS];
    kf_i64 *const counts = s.counts + blockIdx.x * s.tiles;
    kf_i64 before = 0;
    for (kf_i64 first = 0; first < s.tiles; first += KFI_SORT_THREADS) {
        const kf_i64 i = first + threadIdx.x;
        kf_i64 all;
        const kf_i64 sum = kfi_sort_exclusive_sum(i < s.tiles ? counts[i] : 0, room, &all);
        if (i < s.tiles) counts[i] = before + sum;
        before += all;
        __syncthreads();
    }
    if (threadIdx.x == 0) s.totals[blockIdx.x] = before;
#endif
}

template <int dtype> KFI_KERNEL void KFI_BOUNDS(KFI_SORT_THREADS) kfk_index_scatter(kfi_sort s)
{
#ifdef KFI_DEVICE_PASS
    kfi_begin();
    __shared__ kf_i64 room[KFI_SORT_THREADS], begin[KFI_SORT_THREADS];
    __shared__ int of_warp[KFI_SORT_WARPS][KFI_SORT_THREADS];
    const int t = (int)threadIdx.x, warp = t / 32, lane = t % 32;
    kf_i64 all;
    begin[t] = kfi_sort_exclusive_sum(s.totals[t], room, &all) + s.counts[t * s.tiles + blockIdx.x];
    for (int w = 0; w < KFI_SORT_WARPS; ++w) of_warp[w][t] = 0;
    __syncthreads();
    // Each warp scatters a contiguous run of indices, 32 at a time.
    kf_i64 index[KFI_SORT_ROUNDS];
    int digit[KFI_SORT_ROUNDS];
    unsigned same[KFI_SORT_ROUNDS];
    kfi_sort_digits<dtype>(s,
                           (kf_i64)blockIdx.x * KFI_SORT_TILE + warp * KFI_SORT_ROUNDS * 32 + lane,
                           32, index, digit);
#pragma unroll
    for (int r = 0; r < KFI_SORT_ROUNDS; ++r) {
        same[r] = kfi_sort_same(digit[r]);
        if (digit[r] >= 0 && kfi_sort_rank(same[r]) == 0)
            of_warp[warp][digit[r]] += __popc(same[r]);
        __syncwarp();
    }
    __syncthreads();
    int before = 0;
    for (int w = 0; w < KFI_SORT_WARPS; ++w) {
        const int own = of_warp[w][t];
        of_warp[w][t] = before;
        before += own;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < KFI_SORT_ROUNDS; ++r) {
        const int rank = kfi_sort_rank(same[r]),
                  first = digit[r] >= 0 ? of_warp[warp][digit[r]] : 0;
        __syncwarp();
        if (digit[r] >= 0) {
            s.to[begin[digit[r]] + first + rank] = index[r];
            if (rank == 0) of_warp[warp][digit[r]] = first + __popc(same[r]);
        }
        __syncwarp();
    }
#endif
}

template <int dtype> KFI_KERNEL void KFI_BOUNDS(KFI_SORT_THREADS) kfk_index_bounds(kfi_sort s)
{
#ifdef KFI_DEVICE_PASS
    kfi_begin();
    // Searches the first position with a token of at least v in [low, high), with 32 probes per
    // step if a warp searches.
    const int lane = s.wide ? (int)threadIdx.x % 32 : 0, probes = s.wide ? 32 : 1;
    const kf_i64 v = ((kf_i64)blockIdx.x * KFI_SORT_THREADS + threadIdx.x) / probes;
    if (v > s.below) return;
    kf_i64 low = 0, high = s.count;
    while (low < high) {
        const kf_i64 step = (high - low) / (probes + 1) + 1, at = low + (lane + 1) * step - 1;
        const bool before = at < high && kfi_sort_key<dtype>(s, s.to[at]) < v;
        const int behind = s.wide ? __popc(__ballot_sync(0xffffffffu, before)) : before;
        const kf_i64 end = low + (behind + 1) * step - 1;
        low += behind * step;
        if (end < high) high = end;
    }
    if (lane > 0) return;
    s.begin[v] = low;
#endif
}
#endif

#ifdef KFI_HOST_PASS
KF_FN kf_i64 kfi_sort_tiles(kf_i64 count) { return kfi_ceil(count, KFI_SORT_TILE); }
KF_FN KFI_SMALL size_t kfi_sort_workspace(kf_i64 count, kf_i64 below)
{
    const kf_i64 elements = below + 1 + 2 * count + KFI_SORT_THREADS * (kfi_sort_tiles(count) + 1);
    return (size_t)kfi_ceil(elements * 8, 256) * 256;
}
// Fails if a launch would need more blocks than a grid may have.
KF_FN KFI_SMALL kf_result_t kfi_sort_fits(const kfi_name *name, kf_i64 count, kf_i64 below)
{
    if (kfi_sort_tiles(count) <= 0x7fffffff && below / KFI_SORT_THREADS <= 0x7ffffffe)
        return KF_SUCCESS;
    return kfi_fail(KF_ERROR_UNSUPPORTED, name, "launch",
                    "of %lld rows and a table of %lld needs more blocks than a launch may have",
                    (long long)count, (long long)below);
}
// Sorts in the workspace. kernels: count, scan, scatter, bounds. The results are s->begin and
// s->to.
KF_FN KFI_SMALL kf_result_t kfi_sort_run(const kfi_name *name, const void *const *kernels,
                                         kfi_sort *s, void *workspace, cudaStream_t stream)
{
    kf_result_t result = kfi_sort_fits(name, s->count, s->below);
    if (result != KF_SUCCESS) return result;
    s->tiles = kfi_sort_tiles(s->count);
    s->begin = (kf_i64 *)workspace;
    kf_i64 *const indices = s->begin + s->below + 1;
    s->counts = indices + 2 * s->count;
    s->totals = s->counts + KFI_SORT_THREADS * s->tiles;
    s->from = nullptr;
    s->to = indices;
    void *args[] = {s};
    for (s->shift = 0; s->shift == 0 || (s->shift < 63 && s->below >> s->shift > 0);
         s->shift += KFI_SORT_BITS) {
        if (s->shift > 0) {
            s->from = s->to;
            s->to = s->from == indices ? indices + s->count : indices;
        }
        if (s->count == 0) break;
        result =
            kfi_launch(name, kernels[0], dim3((unsigned)s->tiles), KFI_SORT_THREADS, args, stream);
        if (result == KF_SUCCESS)
            result = kfi_launch(name, kernels[1], dim3(KFI_SORT_THREADS), KFI_SORT_THREADS, args,
                                stream);
        if (result == KF_SUCCESS)
            result = kfi_launch(name, kernels[2], dim3((unsigned)s->tiles), KFI_SORT_THREADS, args,
                                stream);
        if (result != KF_SUCCESS) return result;
    }
    s->wide = s->below < KFI_SORT_WIDE;
    const kf_i64 searches = (s->below + 1) * (s->wide ? 32 : 1);
    return kfi_launch(name, kernels[3], dim3((unsigned)kfi_ceil(searches, KFI_SORT_THREADS)),
                      KFI_SORT_THREADS, args, stream);
}
#endif

#endif
