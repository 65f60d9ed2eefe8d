// SPDX-License-Identifier: Apache-2.0
// kf/core/reduce.cuh: the schedule of the reduce family: [outer, axis, inner] to [outer, inner].
//
// flat     inner = 1. Some lanes of a warp, or all threads of a block, share the axis in vectors that lie as many vectors apart.
// columns  inner > 1. A thread has a vector of columns, and loops over the axis; others of its block have the rows between.
// What reduces nothing (the gradient of a sum) goes through memory in its order, four vectors a thread.
//
// A long axis is shared out among blocks in parts. A pass is a launch then, which leaves a partial result for each part, and one
// that joins them: columns of parts, by the same kernel. Later passes, and gradients, take what a thread has left in its registers, which
// is an axis of up to 2,048 vectors (flat) or a few hundred elements (columns); a longer one they read again, from the L2 cache where it fits.
//
// Which thread adds up which elements in which order depends on axis and inner alone: not on outer, nor on alignment, which only
// decides how wide an access is. So a result's bits depend on nothing else either. (A place is the same in any order: there outer counts too.)
#ifndef KF_CORE_REDUCE_CUH
#define KF_CORE_REDUCE_CUH

#include "kf/core/row_access.cuh"
#include "kf/core/row_reduce.cuh"

#ifndef KFI_REDUCE_THREADS // fewer where an emulation is to reach every kernel by short tensors
#define KFI_REDUCE_THREADS 256
#endif
#ifndef KFI_REDUCE_CLUSTER // fewer where an emulation is to reach every kernel by few columns
#define KFI_REDUCE_CLUSTER 3 // blocks of a cluster at most, as a power of two
#endif
#define KFI_REDUCE_ALL -1 // stage: all passes, then results or gradients. From 0 on: 2 * pass, of a part; 2 * pass + 1, joins the parts

// The work of a launch.
struct kfi_reduce {
    kf_i64 outer, axis, inner; // of what it reads: where parts are joined 1, parts, results
    kf_i64 count;              // elements that a result is made of
    kf_i64 length;             // of the axis in a part
    kf_i64 results;            // outer * inner of the call
    void *partial, *done;      // partial[reduction of the pass][part][result], done[reduction][result]
    unsigned parts, tiles;     // of the axis; of inner, in columns
    int cluster;               // blocks that have the parts of an axis and join them themselves, as a power of two
    int x, y;                  // threads along the vectors of columns (flat: of the axis), along the axis (flat: warps that share out its chunks); as powers of two
    int flat, stage;
};

#ifdef KFI_DEVICE_PASS
// Where a thread is. It has `loops` vectors, which have `left` elements, the last one `last`.
struct kfi_reduce_at {
    kf_i64 start, step;              // of the first tensor: a kfi_reduce_place
    kf_i64 outer, row, column;       // where its first one is, row along the axis (flat: column is)
    kf_i64 result;                   // the first of its `results` results
    int loops, full;                 // full: how many of them are whole vectors
    int counted;                     // how many are added up as they are: all, or (flat) the whole ones
    unsigned part;
    int left, last, results, writes; // writes: whether it is the thread that writes them
};
// ahead: vectors of a chunk, which a warp has where an axis is shared out (kfi_reduce_spread).
template <int vec, int ahead = 0> KFI_DEVICE kfi_reduce_at kfi_reduce_enter(const kfi_reduce &g, const kfi_pitch &p)
{
    constexpr int log = vec == 8 ? 3 : vec == 4 ? 2 : vec == 2 ? 1 : 0;
    const int t = (int)threadIdx.x, x = t & ((1 << g.x) - 1), y = (t >> g.x) & ((1 << g.y) - 1);
    // Each launch goes the other way than the one before it: what that has read last is in the L2 cache.
    const unsigned block = (g.stage > 0 && (g.stage & 2) ? gridDim.x - 1 - blockIdx.x : blockIdx.x) >> g.cluster;
    const unsigned rest = g.flat ? block : block / g.tiles, tile = g.flat ? 0 : block - rest * g.tiles;
    const unsigned outer = g.parts == 1 || g.cluster > 0 ? rest : rest / g.parts;
    kfi_reduce_at at = {};
    at.part = g.cluster > 0 ? blockIdx.x & (g.parts - 1) : rest - outer * g.parts;
    const kf_i64 o = (kf_i64)outer * ((int)blockDim.x >> (g.x + g.y)) + (t >> (g.x + g.y));
    const kf_i64 begin = (kf_i64)at.part * g.length, end = begin + g.length < g.axis ? begin + g.length : g.axis;
    if (o >= g.outer) return at;
    at.outer = o;
    if (g.flat) {
        const kf_i64 first = begin + x * vec;
        at.step = vec << g.x;
        at.loops = first < end ? (int)(end - first - 1 >> (g.x + log)) + 1 : 0;
        at.column = first;
        at.left = vec;
        at.last = at.loops > 0 && end - first - (at.loops - 1) * at.step < vec ? (int)(end - first - (at.loops - 1) * at.step) : vec;
        if (ahead > 0 && g.y > 0) { // all of its vectors are whole ones
            at.column += y * ahead * at.step;
            at.loops -= y * ahead;
            at.loops = at.loops < 0 ? 0 : at.loops < ahead ? at.loops : ahead;
        }
        at.start = o * p.outer + at.column;
        at.result = o;
        at.results = 1;
        at.writes = x == 0 && y == 0;
    } else {
        const kf_i64 column = (((kf_i64)tile << g.x) + x) * vec, row = begin + y, room = g.inner - column;
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
    at.counted = g.flat ? at.full : at.loops; // columns are added up each by itself: what is behind the last one is not stored
    return at;
}
// And in a tensor: its vectors begin at start + i * step for i < loops.
struct kfi_reduce_place {
    kf_i64 start, step;
};
template <int vec> KFI_DEVICE kfi_reduce_place kfi_reduce_begin(const kfi_reduce &g, const kfi_reduce_at &at, const kfi_pitch &p)
{
    const kf_i64 start = at.outer * p.outer + at.column;
    if (g.flat) return {start, vec << g.x};
    return {start + at.row * p.row, p.row << g.y};
}
KFI_DEVICE int kfi_reduce_left(const kfi_reduce_at &at, int i) { return i + 1 < at.loops ? at.left : i < at.loops ? at.last : 0; }
template <int size, int vec, int whole> KFI_DEVICE void kfi_reduce_load(void *dst, const void *src, int left)
{
    if (whole && left == vec) kfi_copy<size * vec>(dst, src);
    else kfi_row_load<size, vec, 0>(dst, src, left);
}
template <int size, int vec, int whole> KFI_DEVICE void kfi_reduce_store(void *dst, const void *src, int left)
{
    if (whole && left == vec) kfi_store<size * vec>(dst, src);
    else kfi_row_store<size, vec, 0>(dst, src, left);
}
// The vectors i to i + ahead, all on their way before the first is looked at.
template <int size, int vec, int whole, int ahead>
KFI_DEVICE void kfi_reduce_fetch(void *to, const void *from, const kfi_reduce_place &p, const kfi_reduce_at &at, int i)
{
    const char *const first = (const char *)from + p.start * size;
    if (whole && i + ahead <= at.full) {
#pragma unroll
        for (int u = 0; u < ahead; ++u) kfi_copy<size * vec>((char *)to + u * size * vec, first + (i + u) * p.step * size);
    } else {
#pragma unroll
        for (int u = 0; u < ahead; ++u) kfi_reduce_load<size, vec, whole>((char *)to + u * size * vec, first + (i + u) * p.step * size, kfi_reduce_left(at, i + u));
    }
}
// One of each of a thread's results, from a tensor that has as many; NULL is not read.
template <int size, int vec> KFI_DEVICE void kfi_reduce_values(void *to, const void *from, const kfi_reduce &g, const kfi_reduce_at &at)
{
    const unsigned long long zero = 0;
#pragma unroll
    for (int e = 0; e < vec; ++e) {
        const bool there = from && (g.flat ? 0 : e) < at.results;
        kfi_copy<size>((char *)to + e * size, there ? (const char *)from + (at.result + (g.flat ? 0 : e)) * size : (const char *)&zero);
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
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(kfi_cluster_place(slot, rank)), "f"(v) : "memory");
}
KFI_DEVICE void kfi_reduce_send(double *slot, int rank, double v)
{
    asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(kfi_cluster_place(slot, rank)), "d"(v) : "memory");
}
#else
KFI_DEVICE void kfi_reduce_send(float *slot, int rank, float v) { *kf_emu_remote(slot, (unsigned)rank) = v; }
KFI_DEVICE void kfi_reduce_send(double *slot, int rank, double v) { *kf_emu_remote(slot, (unsigned)rank) = v; }
#endif
// What the blocks of a cluster have, joined in their order: all of them get it. slots: shared memory for that. more: whether it is not the last time.
#define KFI_REDUCE_ACROSS(type) \
    template <int vec> KFI_DEVICE void kfi_reduce_across(int word, type (&v)[vec], type *slots, const kfi_reduce &g, bool more) \
    { \
        const int x = (int)threadIdx.x & ((1 << g.x) - 1), y = (int)threadIdx.x >> g.x, size = vec << g.x; \
        const int rank = (int)(blockIdx.x & (g.parts - 1)); \
        kfi_cluster_wait(); /* the others have begun, and have read what they were sent before */ \
        if (y < 1 << g.cluster) \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) kfi_reduce_send(slots + rank * size + x * vec + e, y, v[e]); \
        kfi_cluster_arrive(); \
        kfi_cluster_wait(); \
        _Pragma("unroll") for (int e = 0; e < vec; ++e) v[e] = slots[x * vec + e]; \
        for (int r = 1; r < 1 << g.cluster; ++r) \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) v[e] = kfi_join(word, v[e], slots[r * size + x * vec + e]); \
        if (more) kfi_cluster_arrive(); \
    }
KFI_REDUCE_ACROSS(float)
KFI_REDUCE_ACROSS(double)
#define KFI_REDUCE_CLUSTERED(word, v, slots, g, more) \
    if (!g.flat && g.cluster > 0) kfi_reduce_across<vec>(word, v, slots, g, more);
#else
#define KFI_REDUCE_CLUSTERED(word, v, slots, g, more) (void)(more);
#endif

#define KFI_REDUCE_WORDS(type) \
    template <int vec> KFI_DEVICE void kfi_reduce_clear(int word, type (&v)[vec]) \
    { \
        _Pragma("unroll") for (int e = 0; e < vec; ++e) kfi_nothing(word, &v[e]); \
    } \
    /* Flat, one sum is kept of all that a thread has: as many additions, and seven registers less of 2-byte vectors. */ \
    template <int vec> KFI_DEVICE void kfi_reduce_add(int word, type (&v)[vec], type (&more)[vec], const kfi_reduce &g) \
    { \
        if (g.flat) \
            _Pragma("unroll") for (int by = vec / 2; by > 0; by /= 2) \
                _Pragma("unroll") for (int e = 0; e < by; ++e) more[e] = kfi_join(word, more[e], more[e + by]); \
        _Pragma("unroll") for (int e = 0; e < vec; ++e) \
            if (e == 0 || !g.flat) v[e] = kfi_join(word, v[e], more[e]); \
    } \
    /* What the threads have that share a result, and the blocks of a cluster: all of them get it. */ \
    template <int vec> KFI_DEVICE void kfi_reduce_join(int word, type (&v)[vec], const kfi_reduce &g, bool more) \
    { \
        type *const buffer = (type *)kfi_dynamic(); /* of a warp 32 values, or vectors */ \
        const int low = g.flat ? 0 : g.x, high = g.flat ? g.x : g.x + g.y, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32; \
        if (g.flat && g.y > 0) { /* the chunks of an axis, in the order in which one warp would come to them */ \
            const int first = warp >> g.y << g.y; \
            __syncthreads(); \
            buffer[warp * 32 + lane] = v[0]; \
            __syncthreads(); \
            v[0] = buffer[first * 32 + lane]; \
            for (int w = 1; w < 1 << g.y; ++w) v[0] = kfi_join(word, v[0], buffer[(first + w) * 32 + lane]); \
        } \
        for (int by = (high < 5 ? 1 << high : 32) >> 1; by >> low; by >>= 1) \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) \
                if (e == 0 || !g.flat) v[e] = kfi_join(word, v[e], __shfl_xor_sync(0xffffffffu, v[e], by)); \
        if (high > 5) { \
            const int warps = 1 << (high - 5), first = warp & ~(warps - 1), stride = g.flat ? 1 : vec; \
            __syncthreads(); \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) \
                if (e == 0 || !g.flat) buffer[(warp * 32 + lane) * stride + e] = v[e]; \
            __syncthreads(); \
            for (int w = 0; w < warps; ++w) \
                _Pragma("unroll") for (int e = 0; e < vec; ++e) \
                    if (e == 0 || !g.flat) v[e] = w == 0 ? buffer[(first * 32 + lane) * stride + e] : kfi_join(word, v[e], buffer[((first + w) * 32 + lane) * stride + e]); \
        } \
        KFI_REDUCE_CLUSTERED(word, v, buffer + blockDim.x * vec, g, more) \
        if (g.flat) \
            _Pragma("unroll") for (int e = 1; e < vec; ++e) v[e] = v[0]; \
    } \
    /* Of reduction `own` of a pass what the parts have left, joined by the threads of a launch for that. */ \
    template <int vec> KFI_DEVICE void kfi_reduce_parts(int word, type (&v)[vec], int own, const kfi_reduce &g, const kfi_reduce_at &at) \
    { \
        const type *const from = (const type *)g.partial + own * g.axis * g.inner + at.start; \
        for (int i = 0; i < at.loops; ++i) \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) \
                if (e < at.left) v[e] = kfi_join(word, v[e], from[i * at.step + e]); \
    } \
    template <int vec> KFI_DEVICE void kfi_reduce_keep(const type (&v)[vec], void *to, kf_i64 row, const kfi_reduce &g, const kfi_reduce_at &at) \
    { \
        if (at.writes) \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) \
                if (e < at.results) ((type *)to)[row * g.results + at.result + e] = v[e]; \
    } \
    template <int vec> KFI_DEVICE void kfi_reduce_take(type (&v)[vec], kf_i64 row, const kfi_reduce &g, const kfi_reduce_at &at) \
    { \
        _Pragma("unroll") for (int e = 0; e < vec; ++e) v[e] = 0; \
        _Pragma("unroll") for (int e = 0; e < vec; ++e) \
            if (g.flat ? at.results > 0 : e < at.results) v[e] = ((const type *)g.done)[row * g.results + at.result + (g.flat ? 0 : e)]; \
    }
KFI_REDUCE_WORDS(float)
KFI_REDUCE_WORDS(double)
#endif

#ifdef KFI_HOST_PASS
struct kfi_reducing {
    kfi_name name;
    kfi_arguments arguments;
    const void *const *kernels; // {whole, single}, {flat}
    int passes, vec, acc_size;
    int most, all; // reductions of a pass at most, and of all
    bool bwd;
    bool refuses; // an axis without elements
    bool again;   // a tensor is read by several sweeps
    int longest;  // vectors of a thread at most, where the order in which an axis is gone over makes no difference; else 0
    bool flat;    // whether there is a kernel for axes of aligned vectors alone
    int ahead = 0; // vectors of a chunk, where several warps may share out an axis
};
#ifndef KFI_REDUCE_LEAST // fewer where an emulation is to reach every kernel by short tensors
#define KFI_REDUCE_LEAST 8  // vectors of a thread in a part at least
#define KFI_REDUCE_WHOLE 64 // vectors of a thread up to which an axis has no parts: the launch that joins them takes longer than they save
#endif
#ifndef KFI_REDUCE_TILE // set for tuning alone
#define KFI_REDUCE_TILE 3  // threads along inner, as a power of two: so few that there are blocks for all SMs without parts
#define KFI_REDUCE_AHEAD 8 // vectors that a thread shall have: as many as are on their way at a time (ReduceKernel.ahead)
#ifndef KFI_REDUCE_EACH
#define KFI_REDUCE_EACH 4  // where nothing is reduced
#endif
#define KFI_REDUCE_FULL ((kf_i64)KFI_MAP_SMS * 1024) // threads that fill the device
#define KFI_REDUCE_FEW ((kf_i64)KFI_MAP_SMS * 3)     // blocks that a device has at a time at least
#define KFI_REDUCE_GATHERED ((kf_i64)4 << 20)        // vectors up to which a second launch takes longer than more blocks save
#define KFI_REDUCE_SPREAD ((kf_i64)KFI_MAP_SMS * 4)  // axes up to which there is a scheduler for each
#endif

KF_FN unsigned kfi_reduce_tiles(kf_i64 vectors, int x)
{
    const kf_i64 tiles = kfi_ceil(vectors, (kf_i64)1 << x);
    return tiles > 0x7fffffff ? 0x7fffffff : (unsigned)tiles;
}
KF_FN int kfi_log_up(kf_i64 n, int most)
{
    int log = 0;
    while (log < most && ((kf_i64)1 << log) < n) ++log;
    return log;
}
// By axis and inner alone. passes: of reductions; again: a later one, or what stores elements, reads what an earlier one has read.
KF_FN KFI_SMALL void kfi_reduce_plan(kfi_reduce *g, kf_i64 outer, kf_i64 axis, kf_i64 inner, int vec, bool again, int passes)
{
    const int all = kfi_log_up(KFI_REDUCE_THREADS, 10);
    kf_i64 parts = 1, unit = vec;
    g->outer = outer;
    g->axis = g->count = axis;
    g->inner = inner;
    g->results = outer * inner;
    g->flat = inner == 1;
    g->tiles = 1;
    g->cluster = 0;
    g->stage = KFI_REDUCE_ALL;
    if (passes == 0) {
        const kf_i64 vectors = kfi_ceil(inner == 1 ? axis : inner, vec);
        g->x = kfi_log_up(inner == 1 ? kfi_ceil(vectors, KFI_REDUCE_EACH) : vectors, all);
        g->y = inner == 1 ? 0 : kfi_log_up(kfi_ceil(axis, KFI_REDUCE_EACH), all - g->x);
        if (inner > 1) g->tiles = kfi_reduce_tiles(vectors, g->x);
        unit = inner == 1 ? (kf_i64)vec << g->x : (kf_i64)1 << g->y;
        parts = kfi_ceil(axis, unit * KFI_REDUCE_EACH);
    } else if (g->flat) {
        // One warp where it is enough, or where the L1 cache has what it reads again; else a thread keeps its vectors.
        const kf_i64 vectors = kfi_ceil(axis, vec);
        g->x = kfi_log_up(kfi_ceil(vectors, KFI_REDUCE_AHEAD), vectors > (again ? 512 : 1024) ? all : 5);
        g->y = 0;
        if (vectors > KFI_REDUCE_THREADS * KFI_REDUCE_WHOLE) parts = kfi_clamp(vectors / (KFI_REDUCE_THREADS * KFI_REDUCE_LEAST), 1, 16 * KFI_MAP_SMS);
        unit = (kf_i64)KFI_REDUCE_THREADS * vec;
    } else {
        const kf_i64 vectors = kfi_ceil(inner, vec);
        g->x = kfi_log_up(vectors, KFI_REDUCE_TILE);
        g->y = kfi_log_up(kfi_ceil(axis, KFI_REDUCE_AHEAD), all - g->x);
        const kf_i64 tiles = g->tiles = kfi_reduce_tiles(vectors, g->x);
        unit = (kf_i64)1 << g->y;
        if (axis > unit * KFI_REDUCE_WHOLE) parts = kfi_clamp(axis / (unit * KFI_REDUCE_LEAST), 1, kfi_ceil(8 * KFI_MAP_SMS, tiles < 1 ? 1 : tiles));
    }
    g->length = kfi_ceil(kfi_ceil(axis, parts), unit) * unit;
    g->parts = g->length > 0 ? (unsigned)kfi_ceil(axis, g->length) : 1;
    if (g->parts == 1) g->length = axis;
}
// Fewer threads an axis than that, where there are axes enough to fill the device: what the threads of one find together costs less.
KF_FN KFI_SMALL void kfi_reduce_lengthen(kfi_reduce *g, int vec, int longest)
{
    const kf_i64 vectors = kfi_ceil(g->axis, vec);
    while (g->flat && g->parts == 1 && g->x > 5 && vectors <= (kf_i64)longest << (g->x - 1) && g->outer >= KFI_REDUCE_FULL >> (g->x - 1)) --g->x;
    if (!longest || g->parts == 1) return;
    // And no more parts than there are blocks at a time: each ends with a join.
    const kf_i64 of_part = kfi_ceil(g->outer, KFI_REDUCE_THREADS >> (g->x + g->y)) * g->tiles, unit = g->flat ? (kf_i64)KFI_REDUCE_THREADS * vec : (kf_i64)1 << g->y;
    const kf_i64 parts = kfi_clamp(KFI_REDUCE_FEW / of_part, 2, g->parts);
    g->length = kfi_ceil(kfi_ceil(g->axis, parts), unit) * unit;
    g->parts = (unsigned)kfi_ceil(g->axis, g->length);
}
// Few axes of a warp each: as many warps as an axis has chunks, which are added up as one warp would.
KF_FN KFI_SMALL void kfi_reduce_spread(kfi_reduce *g, int vec, int ahead)
{
    if (!ahead || !g->flat || g->parts > 1 || g->x != 5 || g->axis % vec != 0 || g->outer > KFI_REDUCE_SPREAD) return;
    const kf_i64 chunks = kfi_ceil(g->axis, 32 * vec * ahead);
    if (chunks << 5 <= KFI_REDUCE_THREADS) g->y = kfi_log_up(chunks, 5);
}
// Whether blocks may share out an axis and join its parts in the same launch.
KF_FN bool kfi_reduce_clusters()
{
#ifdef KF_EMULATE
    return true;
#else
    return kfi_overlaps();
#endif
}
// Columns of a long axis: where as many blocks as a cluster has are enough to fill the device, one launch. By axis and inner alone.
KF_FN KFI_SMALL void kfi_reduce_gather(kfi_reduce *g, int vec)
{
    const kf_i64 vectors = kfi_ceil(g->inner, vec);
    if (g->flat || g->parts == 1 || !kfi_reduce_clusters() || g->axis > KFI_REDUCE_GATHERED / vectors) return;
    const int x = kfi_log_up(vectors, kfi_ceil(vectors, 1 << KFI_REDUCE_TILE) << KFI_REDUCE_CLUSTER < 2 * KFI_MAP_SMS ? KFI_REDUCE_TILE - 1 : KFI_REDUCE_TILE);
    const kf_i64 tiles = kfi_reduce_tiles(vectors, x);
    int bits = KFI_REDUCE_CLUSTER;
    while (bits > 0 && tiles << bits > 3 * KFI_MAP_SMS) --bits;
    if (bits == 0 || tiles << bits < KFI_MAP_SMS / 2) return;
    g->x = x;
    g->y = kfi_log_up(KFI_REDUCE_THREADS, 10) - x;
    g->tiles = (unsigned)tiles;
    g->cluster = bits;
    g->parts = 1u << bits;
    g->length = kfi_ceil(kfi_ceil(g->axis, g->parts), (kf_i64)1 << g->y) << g->y;
}
KF_FN KFI_SMALL size_t kfi_reduce_workspace(kf_i64 outer, kf_i64 axis, kf_i64 inner, int vec, bool again, int most, int all, int acc_size)
{
    if (!kfi_fits(outer, axis, inner)) return 0;
    kfi_reduce g;
    kfi_reduce_plan(&g, outer, axis, inner, vec, again, 1);
    return g.parts > 1 ? kfi_workspace((size_t)g.results * ((size_t)most * g.parts + (size_t)all) * (size_t)acc_size) : 0;
}
KF_FN KFI_SMALL kf_result_t kfi_reduce_launch(const kfi_reducing &m, const kfi_reduce &g, bool whole, void **args, cudaStream_t stream)
{
    // Threads that share no result are others' places.
    const int own = 1 << (g.x + g.y > 5 ? g.x + g.y : 5);
    int threads = g.flat || g.stage < 0 || !(g.stage & 1) ? KFI_REDUCE_THREADS : own;
    // Few axes: a block each, so that more multiprocessors have some. (A place's kernel has blocks of one size.)
    while (!m.longest && g.stage < 0 && threads > own && kfi_ceil(g.outer, threads >> (g.x + g.y)) * g.parts * g.tiles <= KFI_MAP_SMS) threads /= 2;
    const double blocks = (double)kfi_ceil(g.outer, threads >> (g.x + g.y)) * g.parts * g.tiles;
    if (blocks > 2147483647.0)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch", "of %lld x %lld results needs more blocks than a launch may have", (long long)g.outer,
                        (long long)g.inner);
    const int values = m.longest || !m.passes ? 0 : (g.flat ? threads : threads * m.vec) + (g.cluster > 0 ? m.vec << (g.x + g.cluster) : 0);
    return kfi_launch(&m.name, m.kernels[!whole ? 1 : m.flat && g.flat ? 2 : 0], dim3((unsigned)blocks), (unsigned)threads, args, stream, true,
                      (unsigned)(values * m.acc_size), 1u << g.cluster);
}

// args: the kernel's, of which g and those of pitches are some.
KF_FN kf_result_t kfi_reduce_run(const kfi_reducing &m, kf_i64 outer, kf_i64 axis, kf_i64 inner, const kfi_strides &strides, kfi_pitch *pitches,
                                 kfi_reduce *g, void **args, void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    const kf_i64 sizes[] = {outer, axis, inner};
    kf_result_t result = kfi_check_sizes(&m.name, "outer axis inner", sizes, 3);
    kfi_operands operands;
    const kfi_levels levels = kfi_make_axis(outer, axis, inner);
    if (result == KF_SUCCESS) result = kfi_check_axis(&m.name, &m.arguments, &strides, &levels, inner == 1, &operands);
    if (result != KF_SUCCESS || outer == 0 || inner == 0 || (axis == 0 && m.bwd)) return result;
    if (axis == 0 && m.refuses) return kfi_fail(KF_ERROR_INVALID_SIZE, &m.name, "axis", "is 0, expected 1 or more: the result has no value of no elements");
    const kfi_shape shape = {outer * inner, 0, axis, 0, nullptr};
    result = kfi_check_operands(&m.name, &m.arguments, &shape, &levels, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    kfi_reduce_plan(g, outer, axis, inner, m.vec, m.again, m.passes);
    kfi_reduce_lengthen(g, m.vec, m.longest);
    const kfi_reduce plan = *g;
    const size_t needed = m.passes ? kfi_reduce_workspace(outer, axis, inner, m.vec, m.again, m.most, m.all, m.acc_size) : 0;
    result = kfi_check_workspace(&m.name, &m.arguments, &operands, workspace, workspace_bytes, needed);
    if (result != KF_SUCCESS) return result;
    for (int i = 0; i < operands.count; ++i) pitches[i] = operands.of[i].at;
    const bool whole = operands.bits % 16 == 0 && operands.steps % m.vec == 0;
    if (m.passes && m.ahead) {
        kfi_reduce_spread(g, m.vec, m.ahead);
        kfi_reduce_gather(g, m.vec);
    }
    if (g->parts == 1 || g->cluster > 0) return kfi_reduce_launch(m, *g, whole, args, stream);
    g->partial = workspace;
    g->done = needed ? (char *)workspace + (size_t)plan.results * (size_t)m.most * plan.parts * (size_t)m.acc_size : nullptr;
    for (int pass = 0; needed && pass < m.passes; ++pass) {
        g->stage = 2 * pass;
        result = kfi_reduce_launch(m, *g, whole, args, stream);
        if (result != KF_SUCCESS) return result;
        // The order in which parts are joined depends on how many they are, not on how many results there are.
        const kfi_reduce own = *g;
        g->outer = 1;
        g->axis = g->length = plan.parts;
        g->inner = plan.results;
        g->flat = 0;
        g->y = kfi_log_up(kfi_ceil(plan.parts, 4), kfi_log_up(KFI_REDUCE_THREADS, 10));
        g->x = (int)kfi_clamp(kfi_log_up(KFI_REDUCE_THREADS, 10) - g->y, 0, 5);
        g->tiles = (unsigned)kfi_ceil(kfi_ceil(plan.results, m.vec), (kf_i64)1 << g->x);
        g->parts = 1;
        g->stage = 2 * pass + 1;
        for (int i = 0; i < operands.count; ++i) pitches[i].row = plan.results; // what it reads is dense, and one outer
        result = kfi_reduce_launch(m, *g, false, args, stream);
        *g = own;
        for (int i = 0; i < operands.count; ++i) pitches[i] = operands.of[i].at;
        if (result != KF_SUCCESS) return result;
    }
    if (needed && !m.bwd) return KF_SUCCESS; // the last that joined parts has written the results
    g->stage = needed ? 2 * m.passes : KFI_REDUCE_ALL;
    return kfi_reduce_launch(m, *g, whole, args, stream);
}
#endif

#endif
