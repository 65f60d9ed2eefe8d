// SPDX-License-Identifier: Apache-2.0
// kf/core/reduction/reduction.cuh: the schedule of the reduce family: [outer, axis, inner] to [outer, inner].
//
// flat     inner = 1. Some lanes of a warp, or all threads of a block, share the axis in vectors
// that lie as many vectors apart. columns  inner > 1. A thread has a vector of columns, and loops
// over the axis; others of its block have the rows between. What reduces nothing (the gradient of a
// sum) goes through memory in its order, four vectors a thread.
//
// A long axis is shared out among blocks in parts. A pass is a launch then, which leaves a partial
// result for each part, and one that joins them: columns of parts, by the same kernel. Later
// passes, and gradients, take what a thread has left in its registers, which is an axis of up to
// 2,048 vectors (flat) or a few hundred elements (columns); a longer one they read again, from the
// L2 cache where it fits.
//
// Which thread adds up which elements in which order depends on axis and inner alone: not on outer,
// nor on alignment, which only decides how wide an access is. So a result's bits depend on nothing
// else either. (A place is the same in any order: there outer counts too.)
#ifndef KF_CORE_REDUCTION_REDUCTION_CUH
#define KF_CORE_REDUCTION_REDUCTION_CUH

#include "kf/core/reduction/args.cuh"
#include "kf/core/reduction/host.cuh"
#include "kf/core/rows/access.cuh"
#include "kf/core/rows/reduce.cuh"

#ifdef KFI_DEVICE_PASS
// Where a thread is. It has `loops` vectors, which have `left` elements, the last one `last`.
struct kfi_reduce_at {
    kf_i64 start, step;        // of the first tensor: a kfi_reduce_place
    kf_i64 outer, row, column; // where its first one is, row along the axis (flat: column is)
    kf_i64 result;             // the first of its `results` results
    int loops, full;           // full: how many of them are whole vectors
    int counted;               // how many are added up as they are: all, or (flat) the whole ones
    unsigned part;
    int left, last, results, writes; // writes: whether it is the thread that writes them
};
// Of whole vectors along an axis, or of one outer's columns: a third of the instructions before the
// first load, which small tensors wait for. ahead: vectors of a chunk, which a warp has where an
// axis is shared out (kfi_reduce_spread).
template <int vec, int ahead>
KFI_DEVICE kfi_reduce_at kfi_reduce_brief(const kfi_reduce &g, const kfi_pitch &p)
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
template <int vec, int ahead = 0>
KFI_DEVICE kfi_reduce_at kfi_reduce_enter(const kfi_reduce &g, const kfi_pitch &p)
{
    if (g.brief) return kfi_reduce_brief<vec, ahead>(g, p);
    constexpr int log = vec == 8 ? 3 : vec == 4 ? 2 : vec == 2 ? 1 : 0;
    const int t = (int)threadIdx.x, x = t & ((1 << g.x) - 1), y = (t >> g.x) & ((1 << g.y) - 1);
    // Each launch goes the other way than the one before it: what that has read last is in the L2
    // cache.
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
    at.counted = g.flat ? at.full : at.loops; // columns are added up each by itself: what is behind
                                              // the last one is not stored
    return at;
}
// And in a tensor: its vectors begin at start + i * step for i < loops.
struct kfi_reduce_place {
    kf_i64 start, step;
};
template <int vec>
KFI_DEVICE kfi_reduce_place kfi_reduce_begin(const kfi_reduce &g, const kfi_reduce_at &at,
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
// The vectors i to i + ahead, all on their way before the first is looked at.
template <int size, int vec, int whole, int ahead>
KFI_DEVICE void kfi_reduce_fetch(void *to, const void *from, const kfi_reduce_place &p,
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
// One of each of a thread's results, from a tensor that has as many; NULL is not read.
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

// At first in a kernel: the blocks of a cluster have begun.
KFI_DEVICE void kfi_reduce_begun(const kfi_reduce &g)
{
#if KFI_CLUSTERS
    if (!g.flat && g.cluster > 0) kfi_cluster_arrive();
#endif
}
#if KFI_CLUSTERS
#ifdef KFI_PTX
KFI_DEVICE void kfi_reduce_send(float *slot, int rank, float v)
{
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(kfi_cluster_place(slot, rank)), "f"(v)
                 : "memory");
}
KFI_DEVICE void kfi_reduce_send(double *slot, int rank, double v)
{
    asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(kfi_cluster_place(slot, rank)), "d"(v)
                 : "memory");
}
#else
KFI_DEVICE void kfi_reduce_send(float *slot, int rank, float v)
{
    *kf_emu_remote(slot, (unsigned)rank) = v;
}
KFI_DEVICE void kfi_reduce_send(double *slot, int rank, double v)
{
    *kf_emu_remote(slot, (unsigned)rank) = v;
}
#endif
// What the blocks of a cluster have, joined in their order: all of them get it. slots: shared
// memory for that. more: whether it is not the last time.
template <int vec, class type>
KFI_DEVICE void kfi_reduce_across(int word, type (&v)[vec], type *slots, const kfi_reduce &g,
                                  bool more)
{
    const int x = (int)threadIdx.x & ((1 << g.x) - 1), y = (int)threadIdx.x >> g.x,
              size = vec << g.x;
    const int rank = (int)(blockIdx.x & (g.parts - 1));
    kfi_cluster_wait(); // the others have begun, and have read what they were sent before
    if (y < 1 << g.cluster)
#pragma unroll
        for (int e = 0; e < vec; ++e) kfi_reduce_send(slots + rank * size + x * vec + e, y, v[e]);
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
// Flat, one sum is kept of all that a thread has: as many additions, and seven registers less of
// 2-byte vectors.
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
// Columns that several warps have: threads of a warp join them two by two and share them out as
// they go, then a thread joins a column of all warps.
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
        if (half == 0) { // one column is left, which both have
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
// What the threads have that share a result, and the blocks of a cluster: all of them get it.
template <int vec, class type>
KFI_DEVICE void kfi_reduce_join(int word, type (&v)[vec], const kfi_reduce &g, bool more)
{
    type *const buffer = (type *)kfi_dynamic(); // of a warp 32 values, or vectors
    const int low = g.flat ? 0 : g.x, high = g.flat ? g.x : g.x + g.y, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32;
    if (g.flat &&
        g.y > 0) { // the chunks of an axis, in the order in which one warp would come to them
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
    if (!g.flat && g.cluster > 0) kfi_reduce_across(word, v, buffer + blockDim.x * vec, g, more);
#endif
    if (g.flat)
#pragma unroll
        for (int e = 1; e < vec; ++e) v[e] = v[0];
}
// Of reduction `own` of a pass what the parts have left, joined by the threads of a launch for
// that.
template <int vec, class type>
KFI_DEVICE void kfi_reduce_parts(int word, type (&v)[vec], int own, const kfi_reduce &g,
                                 const kfi_reduce_at &at)
{
    const type *const from = (const type *)g.partial + own * g.axis * g.inner + at.start;
    for (int i = 0; i < at.loops; ++i)
#pragma unroll
        for (int e = 0; e < vec; ++e)
            if (e < at.left) v[e] = kfi_join(word, v[e], from[i * at.step + e]);
}
template <int vec, class type>
KFI_DEVICE void kfi_reduce_keep(const type (&v)[vec], void *to, kf_i64 row, const kfi_reduce &g,
                                const kfi_reduce_at &at)
{
    if (at.writes)
#pragma unroll
        for (int e = 0; e < vec; ++e)
            if (e < at.results) ((type *)to)[row * g.results + at.result + e] = v[e];
}
template <int vec, class type>
KFI_DEVICE void kfi_reduce_take(type (&v)[vec], kf_i64 row, const kfi_reduce &g,
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
