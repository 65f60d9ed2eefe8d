// SPDX-License-Identifier: Apache-2.0
// kf/core/reduction/reduction.cuh: device functions of reductions over an axis, [outer, axis,
// inner] to [outer, inner]. host.cuh chooses grid and split; reduction/kernel.cuh.j2 is the
// kernel.
//
// flat     inner = 1. Some lanes of a warp, or all threads of a block, reduce one axis. Thread t
//          reads vectors t, t + threads, ... and the threads combine by shuffles and shared memory.
// columns  inner > 1. A thread reads one vector of columns and loops over the axis; the other
//          threads of its block read the rows in between.
// A kernel without a reduction (the gradient of a sum) streams through memory, four vectors a
// thread.
//
// Grid: one block per group of outer x tile of columns x part; block: up to 256 threads; dynamic
// shared memory: one value per thread (flat), one vector per thread (columns).
//
// Split axis: blocks reduce parts of a long axis. Each pass then takes two launches: one stores a
// partial result per part, one reduces the partial results as columns, with the same kernel. Later
// passes and gradients reuse the elements that a thread holds in registers: an axis of up to 2,048
// vectors (flat) or a few hundred elements (columns). They read a longer axis again.
//
// Order of sums: the assignment of elements to threads depends on axis and inner alone. Alignment
// only changes the width of an access, so the bits of a result depend on neither outer nor
// alignment. (An argmax is the same in any order; there the split depends on outer too.)
#ifndef KF_CORE_REDUCTION_REDUCTION_CUH
#define KF_CORE_REDUCTION_REDUCTION_CUH

#include "kf/core/reduction/args.cuh"
#include "kf/core/reduction/host.cuh"
#include "kf/core/rows/access.cuh"
#include "kf/core/rows/reduce.cuh"

#ifdef KFI_DEVICE_PASS
// Work of a thread: `loops` vectors of `left` elements each; the last one has `last` elements.
struct kfi_reduce_at {
    kf_i64 start, step;        // kfi_reduce_offsets of the first tensor
    kf_i64 outer, row, column; // first vector; row is along the axis (flat: column is)
    kf_i64 result;             // index of the first of `results` results
    int loops, full;           // full: number of whole vectors
    int counted;               // vectors reduced without a mask: all, or (flat) the whole ones
    unsigned part;
    int left, last, results, writes; // writes: this thread stores the results
};
// kfi_reduce_enter for whole vectors along an axis, or for columns of one outer, in 32-bit offsets.
// It needs a third of the instructions before the first load, which bound small tensors. ahead:
// vectors of a chunk, one warp's share of a split axis (kfi_reduce_use_more_warps).
template <int vec, int ahead>
KFI_DEVICE kfi_reduce_at kfi_reduce_enter_32(const kfi_reduce &g, const kfi_pitch &p)
{
    constexpr int log = vec == 8 ? 3 : vec == 4 ? 2 : vec == 2 ? 1 : 0;
    const int t = (int)threadIdx.x, x = t & ((1 << g.x) - 1), y = (t >> g.x) & ((1 << g.y) - 1),
              o = t >> (g.x + g.y);
    const int block = (int)(blockIdx.x >> g.cluster), axis = (int)g.axis;
    kfi_reduce_at at = {};
    if (g.flat) {
        const int outer = block * ((int)blockDim.x >> (g.x + g.y)) + o,
                  first = x + ((y * ahead) << g.x), left = (axis >> log) - first;
        if (outer >= (int)g.outer) return at;
        at.outer = at.result = outer;
        at.column = first << log;
        at.step = vec << g.x;
        at.start = outer * p.outer + at.column;
        at.loops = left > 0 ? (left - 1 >> g.x) + 1 : 0;
        if (g.y > 0 && at.loops > ahead) at.loops = ahead;
        at.left = at.last = vec;
        at.results = 1;
        at.writes = x == 0 && y == 0;
        at.full = at.loops;
    } else {
        at.part = blockIdx.x & (g.parts - 1);
        const int column = ((block << g.x) + x) << log, room = (int)g.inner - column;
        const int row = (int)at.part * (int)g.length + y,
                  end = (int)(at.part + 1) * (int)g.length < axis
                            ? (int)(at.part + 1) * (int)g.length
                            : axis;
        if (o > 0) return at;
        at.left = at.last = at.results = room < 0 ? 0 : room < vec ? room : vec;
        at.loops = room > 0 && row < end ? (end - row - 1 >> g.y) + 1 : 0;
        at.row = row;
        at.column = at.result = column;
        at.step = p.row << g.y;
        at.start = row * p.row + column;
        at.writes = y == 0 && at.part == 0;
        at.full = room < vec ? 0 : at.loops;
    }
    at.counted = at.loops;
    return at;
}
// Computes the work of the calling thread.
template <int vec, int ahead = 0>
KFI_DEVICE kfi_reduce_at kfi_reduce_enter(const kfi_reduce &g, const kfi_pitch &p)
{
    if (g.index_32) return kfi_reduce_enter_32<vec, ahead>(g, p);
    constexpr int log = vec == 8 ? 3 : vec == 4 ? 2 : vec == 2 ? 1 : 0;
    const int t = (int)threadIdx.x, x = t & ((1 << g.x) - 1), y = (t >> g.x) & ((1 << g.y) - 1);
    // Launches alternate their direction: the L2 cache holds what the previous one read last.
    const unsigned block =
        (g.stage > 0 && (g.stage & 2) ? gridDim.x - 1 - blockIdx.x : blockIdx.x) >> g.cluster;
    const unsigned rest = g.flat ? block : block / g.tiles,
                   tile = g.flat ? 0 : block - rest * g.tiles;
    const unsigned outer = g.parts == 1 || g.cluster > 0 ? rest : rest / g.parts;
    kfi_reduce_at at = {};
    at.part = g.cluster > 0 ? blockIdx.x & (g.parts - 1) : rest - outer * g.parts;
    const kf_i64 o = (kf_i64)outer * ((int)blockDim.x >> (g.x + g.y)) + (t >> (g.x + g.y));
    const kf_i64 begin = (kf_i64)at.part * g.length,
                 end = begin + g.length < g.axis ? begin + g.length : g.axis;
    if (o >= g.outer) return at;
    at.outer = o;
    if (g.flat) {
        const kf_i64 first = begin + x * vec;
        at.step = vec << g.x;
        at.loops = first < end ? (int)(end - first - 1 >> (g.x + log)) + 1 : 0;
        at.column = first;
        at.left = vec;
        at.last = at.loops > 0 && end - first - (at.loops - 1) * at.step < vec
                      ? (int)(end - first - (at.loops - 1) * at.step)
                      : vec;
        at.start = o * p.outer + at.column;
        at.result = o;
        at.results = 1;
        at.writes = x == 0;
    } else {
        const kf_i64 column = (((kf_i64)tile << g.x) + x) * vec, row = begin + y,
                     room = g.inner - column;
        at.left = at.last = room < vec ? (room < 0 ? 0 : (int)room) : vec;
        at.loops = at.left > 0 && row < end ? (int)(end - row - 1 >> g.y) + 1 : 0;
        at.row = row;
        at.step = p.row << g.y;
        at.start = o * p.outer + row * p.row + column;
        at.column = column;
        at.result = o * g.inner + column;
        at.results = at.left;
        at.writes = y == 0 && (g.cluster == 0 || at.part == 0);
    }
    at.full = at.left < vec ? 0 : at.last < vec ? at.loops - 1 : at.loops;
    // Columns are reduced separately, so values past the last column are harmless: not stored.
    at.counted = g.flat ? at.full : at.loops;
    return at;
}
// Offsets of a thread's vectors in one tensor: start + i * step for i < loops.
struct kfi_reduce_offsets {
    kf_i64 start, step;
};
template <int vec>
KFI_DEVICE kfi_reduce_offsets kfi_reduce_begin(const kfi_reduce &g, const kfi_reduce_at &at,
                                               const kfi_pitch &p)
{
    const kf_i64 start = at.outer * p.outer + at.column;
    if (g.flat) return {start, vec << g.x};
    return {start + at.row * p.row, p.row << g.y};
}
KFI_DEVICE int kfi_reduce_left(const kfi_reduce_at &at, int i)
{
    return i + 1 < at.loops ? at.left : i < at.loops ? at.last : 0;
}
template <int size, int vec, int whole>
KFI_DEVICE void kfi_reduce_load(void *dst, const void *src, int left)
{
    if (whole && left == vec)
        kfi_copy<size * vec>(dst, src);
    else
        kfi_row_load<size, vec, 0>(dst, src, left);
}
template <int size, int vec, int whole>
KFI_DEVICE void kfi_reduce_store(void *dst, const void *src, int left)
{
    if (whole && left == vec)
        kfi_store<size * vec>(dst, src);
    else
        kfi_row_store<size, vec, 0>(dst, src, left);
}
// Issues the loads of vectors i to i + ahead - 1 before the first is used.
template <int size, int vec, int whole, int ahead>
KFI_DEVICE void kfi_reduce_fetch(void *to, const void *from, const kfi_reduce_offsets &p,
                                 const kfi_reduce_at &at, int i)
{
    const char *const first = (const char *)from + p.start * size;
    if (whole && i + ahead <= at.full) {
#pragma unroll
        for (int u = 0; u < ahead; ++u)
            kfi_copy<size * vec>((char *)to + u * size * vec, first + (i + u) * p.step * size);
    } else {
#pragma unroll
        for (int u = 0; u < ahead; ++u)
            kfi_reduce_load<size, vec, whole>((char *)to + u * size * vec,
                                              first + (i + u) * p.step * size,
                                              kfi_reduce_left(at, i + u));
    }
}
// Loads one value per result of a thread from a tensor [outer, inner]; NULL gives zeros.
template <int size, int vec>
KFI_DEVICE void kfi_reduce_values(void *to, const void *from, const kfi_reduce &g,
                                  const kfi_reduce_at &at)
{
    const unsigned long long zero = 0;
#pragma unroll
    for (int e = 0; e < vec; ++e) {
        const bool there = from && (g.flat ? 0 : e) < at.results;
        kfi_copy<size>((char *)to + e * size,
                       there ? (const char *)from + (at.result + (g.flat ? 0 : e)) * size
                             : (const char *)&zero);
    }
}

// Signals that this block has started, at the start of a kernel that uses clusters.
KFI_DEVICE void kfi_reduce_cluster_arrive(const kfi_reduce &g)
{
#if KFI_CLUSTERS
    if (!g.flat && g.cluster > 0) kfi_cluster_arrive();
#endif
}
#if KFI_CLUSTERS
// Combines the values of a cluster's blocks in block order; all blocks get the result. slots:
// shared memory, one value per block and column. more: another call follows.
template <int vec, class type>
KFI_DEVICE void kfi_reduce_cluster_join(int word, type (&v)[vec], type *slots, const kfi_reduce &g,
                                        bool more)
{
    const int x = (int)threadIdx.x & ((1 << g.x) - 1), y = (int)threadIdx.x >> g.x,
              size = vec << g.x;
    const int rank = (int)(blockIdx.x & (g.parts - 1));
    kfi_cluster_wait(); // the other blocks have started and have read the previous values
    if (y < 1 << g.cluster)
#pragma unroll
        for (int e = 0; e < vec; ++e) kfi_cluster_store(slots + rank * size + x * vec + e, y, v[e]);
    kfi_cluster_arrive();
    kfi_cluster_wait();
#pragma unroll
    for (int e = 0; e < vec; ++e) v[e] = slots[x * vec + e];
    for (int r = 1; r < 1 << g.cluster; ++r)
#pragma unroll
        for (int e = 0; e < vec; ++e) v[e] = kfi_join(word, v[e], slots[r * size + x * vec + e]);
    if (more) kfi_cluster_arrive();
}
#endif

template <int vec, class type> KFI_DEVICE void kfi_reduce_clear(int word, type (&v)[vec])
{
#pragma unroll
    for (int e = 0; e < vec; ++e) kfi_nothing(word, &v[e]);
}
// Adds the sums of a chunk to those of the thread. A flat thread keeps one sum for all lanes of its
// vectors: the same number of additions, and seven registers fewer for 2-byte vectors.
template <int vec, class type>
KFI_DEVICE void kfi_reduce_add(int word, type (&v)[vec], type (&more)[vec], const kfi_reduce &g)
{
    if (g.flat)
#pragma unroll
        for (int by = vec / 2; by > 0; by /= 2)
#pragma unroll
            for (int e = 0; e < by; ++e) more[e] = kfi_join(word, more[e], more[e + by]);
#pragma unroll
    for (int e = 0; e < vec; ++e)
        if (e == 0 || !g.flat) v[e] = kfi_join(word, v[e], more[e]);
}
// Combines columns over several warps. Threads of a warp combine pairwise and halve their columns
// at each step; then one thread combines a column of all warps.
template <int vec, class type>
KFI_DEVICE void kfi_reduce_columns(int word, type (&v)[vec], type *buffer, const kfi_reduce &g)
{
    const int warps = 1 << (g.x + g.y - 5), warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32, own = warp & (warps - 1), width = vec << g.x;
    const int column = (lane & ((1 << g.x) - 1)) * vec;
    int first = column, left = vec;
    bool writes = true;
    type *const of_group = buffer + (warp - own) * 32 * vec;
#pragma unroll
    for (int j = 0; j < 5; ++j) {
        const int half = vec >> (j + 1), by = 16 >> j;
        const bool upper = (lane & by) != 0;
        if (!(by >> g.x)) break;
        if (half == 0) { // both threads hold the same, last column
            v[0] = kfi_join(word, v[0], __shfl_xor_sync(0xffffffffu, v[0], by));
            writes = writes && !upper;
            continue;
        }
#pragma unroll
        for (int e = 0; e < half; ++e) {
            const type given = upper ? v[e] : v[e + half], kept = upper ? v[e + half] : v[e];
            v[e] = kfi_join(word, kept, __shfl_xor_sync(0xffffffffu, given, by));
        }
        first += upper ? half : 0;
        left = half;
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < vec; ++e)
        if (writes && e < left) of_group[own * width + first + e] = v[e];
    __syncthreads();
    for (int c = own * 32 + lane; c < width; c += warps * 32) {
        type all = of_group[c];
        for (int w = 1; w < warps; ++w) all = kfi_join(word, all, of_group[w * width + c]);
        of_group[c] = all;
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < vec; ++e) v[e] = of_group[column + e];
}
// Combines the values of all threads that share a result, and of a cluster's blocks; all get it.
template <int vec, class type>
KFI_DEVICE void kfi_reduce_join(int word, type (&v)[vec], const kfi_reduce &g, bool more)
{
    type *const buffer = (type *)kfi_dynamic(); // 32 values per warp (columns: vectors)
    const int low = g.flat ? 0 : g.x, high = g.flat ? g.x : g.x + g.y, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32;
    if (g.flat && g.y > 0) { // warps share an axis: chunks are added in the order of one warp
        const int first = warp >> g.y << g.y;
        __syncthreads();
        buffer[warp * 32 + lane] = v[0];
        __syncthreads();
        v[0] = buffer[first * 32 + lane];
        for (int w = 1; w < 1 << g.y; ++w)
            v[0] = kfi_join(word, v[0], buffer[(first + w) * 32 + lane]);
    }
    if (!g.flat && high > 5) {
        kfi_reduce_columns(word, v, buffer, g);
    } else {
        for (int by = (high < 5 ? 1 << high : 32) >> 1; by >> low; by >>= 1)
#pragma unroll
            for (int e = 0; e < vec; ++e)
                if (e == 0 || !g.flat)
                    v[e] = kfi_join(word, v[e], __shfl_xor_sync(0xffffffffu, v[e], by));
    }
    if (g.flat && high > 5) {
        const int warps = 1 << (high - 5), first = warp & ~(warps - 1);
        __syncthreads();
        buffer[warp * 32 + lane] = v[0];
        __syncthreads();
        for (int w = 0; w < warps; ++w)
            v[0] = w == 0 ? buffer[first * 32 + lane]
                          : kfi_join(word, v[0], buffer[(first + w) * 32 + lane]);
    }
#if KFI_CLUSTERS
    if (!g.flat && g.cluster > 0)
        kfi_reduce_cluster_join(word, v, buffer + blockDim.x * vec, g, more);
#endif
    if (g.flat)
#pragma unroll
        for (int e = 1; e < vec; ++e) v[e] = v[0];
}
// Loads and combines the partial results of reduction `own` of a pass.
template <int vec, class type>
KFI_DEVICE void kfi_reduce_load_partials(int word, type (&v)[vec], int own, const kfi_reduce &g,
                                         const kfi_reduce_at &at)
{
    const type *const from = (const type *)g.partial + own * g.axis * g.inner + at.start;
    for (int i = 0; i < at.loops; ++i)
#pragma unroll
        for (int e = 0; e < vec; ++e)
            if (e < at.left) v[e] = kfi_join(word, v[e], from[i * at.step + e]);
}
template <int vec, class type>
KFI_DEVICE void kfi_reduce_store_partial(const type (&v)[vec], void *to, kf_i64 row,
                                         const kfi_reduce &g, const kfi_reduce_at &at)
{
    if (at.writes)
#pragma unroll
        for (int e = 0; e < vec; ++e)
            if (e < at.results) ((type *)to)[row * g.results + at.result + e] = v[e];
}
template <int vec, class type>
KFI_DEVICE void kfi_reduce_load_result(type (&v)[vec], kf_i64 row, const kfi_reduce &g,
                                       const kfi_reduce_at &at)
{
#pragma unroll
    for (int e = 0; e < vec; ++e) v[e] = 0;
#pragma unroll
    for (int e = 0; e < vec; ++e)
        if (g.flat ? at.results > 0 : e < at.results)
            v[e] = ((const type *)g.done)[row * g.results + at.result + (g.flat ? 0 : e)];
}
#endif

#endif
