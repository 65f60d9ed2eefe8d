// SPDX-License-Identifier: Apache-2.0
// kf/core/row.cuh: the schedule of the row family: norms, softmax, losses, reductions over the last axis.
//
// Some threads have a row: a power of two up to a warp, or whole warps, or, of a long row, so many threads of each block of a
// cluster. They hold it in registers, as vectors of 16 bytes that lie as many vectors apart as there are threads, so that it is
// read once; a row that is too long for that is read again in each pass, where the L2 cache has it. What a pass reduces is added
// up in a thread, then across the threads by shuffles, then (whole warps) through shared memory, then (clusters) through each
// other's shared memory. Which thread has which element depends on the row's length and the architecture alone: not on how many
// rows there are, nor on alignment, which only decides how wide an access is. So a row's bits depend on nothing else either.
//
// Where a gradient is reduced over the rows, blocks stay and walk down the tensor; each adds up in registers, and the map
// family's second stage adds up the blocks' partial sums.
#ifndef KF_CORE_ROW_CUH
#define KF_CORE_ROW_CUH

#include "kf/core/map.cuh"
#include "kf/core/math.cuh"
#include "kf/core/pitch.h"

// Of [outer, length, groups, channels, inner] a row is a group's of a batch: `length` pieces of channels * inner elements, the other groups'
// between two of them. (A channel's of [outer, channels, inner] is one of [1, outer, channels, 1, inner].) A gradient for channels is added up by teams, of a row's warps or of fewer threads than that: a team has some
// channels at a time, and a slice of them, whose units are vectors of a channel, or (across: inner is 1) pieces, where a vector lies
// across channels.
struct kfi_pieces {
    kfi_divisor piece, inner; // elements of a piece, and of a channel in it
    kf_i64 parts;             // channels of a group
    kf_i64 units, slices;     // of a channel
    kfi_divisor vectors;      // of a channel in a piece
    kfi_divisor blocks;       // of channels: those of a team
    kf_i64 items;             // blocks * slices
    int even;                 // a vector holds one channel's elements alone
    int across;
    int wide;                 // lanes of a team that lie along channels
    int several;              // pieces of a row
    int gaps;                 // some tensor's lie apart: one branch for all tensors, two would be registers for each element
};
#define KFI_SLICE 256 // units of a slice

// How rows are shared out among threads.
struct kfi_line {
    kf_i64 rows, cols;
    int lanes;   // threads of a block that have a row: a power of two up to a warp, or whole warps
    int groups;  // rows of a block at a time
    int cluster; // blocks that have a row: 1 << cluster_bits
    int cluster_bits;
    int share;   // 2^20 / lanes, rounded up: threadIdx.x * share >> 20 is threadIdx.x / lanes, of up to 1,024 threads
    int loops;   // vectors of a thread where they are not held
    kfi_divisor channels; // rows that are planes of [outer, channels, inner] have one of so many channels; heads likewise
    kfi_divisor queries;  // rows of a head
};
// And of rows in pieces: a kernel's parameter of its own, since what ptxas makes of the other kernels changes with the parameters' sizes.
struct kfi_groups {
    kfi_line line;
    kfi_pieces in;
};

#define KFI_SUM 0
#define KFI_MAX 1
#define KFI_MIN 2
#define KFI_PROD 3
#ifndef KFI_LINE_BLOCK // set for tuning alone
#define KFI_LINE_BLOCK 128     // threads of a block that has several rows
#define KFI_LINE_SUM_BLOCK 256 // where gradients are added up
#endif
#ifndef KFI_LINE_CAP // threads of a row in a block; fewer where an emulation is to reach every kernel by short rows
#define KFI_LINE_CAP 1024
#define KFI_LINE_CLUSTER 8 // blocks of a row
#endif
#if defined(KF_EMULATE) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
#define KFI_CLUSTERS 1 // the code for them is there
#else
#define KFI_CLUSTERS 0
#endif

#ifdef KFI_DEVICE_PASS
#if KFI_CLUSTERS
KFI_DEVICE int kfi_cluster_rank()
{
#ifdef KFI_PTX
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
#else
    return (int)kf_emu_cluster_rank();
#endif
}
// All threads of a cluster's blocks arrive and wait.
KFI_DEVICE void kfi_cluster_arrive()
{
#ifdef KFI_PTX
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#else
    kf_emu_cluster_arrive();
#endif
}
KFI_DEVICE void kfi_cluster_wait()
{
#ifdef KFI_PTX
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    kf_emu_cluster_wait();
#endif
}
// Values for other blocks: a post is what a block waits for, one thread of each block sends to it, and says (expect) how many
// bytes will come. Not a barrier of the cluster, which waits until all that was stored before it has reached memory.
#ifdef KFI_PTX
KFI_DEVICE unsigned kfi_shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
KFI_DEVICE void kfi_post_open(unsigned long long *post)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(kfi_shared(post)) : "memory");
}
KFI_DEVICE void kfi_post_expect(unsigned long long *post, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(kfi_shared(post)), "r"(bytes) : "memory");
}
KFI_DEVICE void kfi_post_await(unsigned long long *post, int phase)
{
    asm volatile("{\n\t.reg .pred come;\nagain:\n\tmbarrier.try_wait.parity.shared::cta.b64 come, [%0], %1;\n\t@!come bra again;\n\t}" ::"r"(
                     kfi_shared(post)),
                 "r"(phase)
                 : "memory");
}
KFI_DEVICE unsigned kfi_cluster_place(const void *p, int rank)
{
    unsigned place;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(kfi_shared(p)), "r"(rank));
    return place;
}
KFI_DEVICE void kfi_cluster_send(float *slot, unsigned long long *post, int rank, float v)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(kfi_cluster_place(slot, rank)), "f"(v),
                 "r"(kfi_cluster_place(post, rank))
                 : "memory");
}
KFI_DEVICE void kfi_cluster_send(double *slot, unsigned long long *post, int rank, double v)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f64 [%0], %1, [%2];" ::"r"(kfi_cluster_place(slot, rank)), "d"(v),
                 "r"(kfi_cluster_place(post, rank))
                 : "memory");
}
#else // the emulation has the barrier alone
KFI_DEVICE void kfi_post_open(unsigned long long *) {}
KFI_DEVICE void kfi_post_expect(unsigned long long *, int) {}
KFI_DEVICE void kfi_post_await(unsigned long long *, int)
{
    kfi_cluster_arrive();
    kfi_cluster_wait();
}
KFI_DEVICE void kfi_cluster_send(float *slot, unsigned long long *, int rank, float v) { *kf_emu_remote(slot, (unsigned)rank) = v; }
KFI_DEVICE void kfi_cluster_send(double *slot, unsigned long long *, int rank, double v) { *kf_emu_remote(slot, (unsigned)rank) = v; }
#endif
#endif

// Where a thread is.
struct kfi_spot {
    kf_i64 block;    // or cluster of blocks
    kf_i64 row;      // its first one
    kf_i64 apart;    // rows from there to its next one
    int rank;        // of the block in the row's cluster
    int group, lane; // which of the block's rows, and where in it
    int first, step; // its first column, and from one vector to the next
    int turn, phase; // which of two sets of places in shared memory the row has: free again when the next row but one comes
};
// At first in a kernel. split: a row may have a cluster, whose blocks open `posts` posts each, at the beginning of shared memory.
template <int vec, int split> KFI_DEVICE kfi_spot kfi_line_enter(const kfi_line &g, int posts)
{
    kfi_spot at = {};
#if KFI_CLUSTERS
    if (split && g.cluster > 1) {
        at.rank = kfi_cluster_rank();
        for (int i = 0; threadIdx.x == 0 && i < posts; ++i) kfi_post_open((unsigned long long *)kfi_dynamic() + i);
        kfi_cluster_arrive();
    }
#endif
    const int bits = split ? g.cluster_bits : 0; // a division would come before the first load: 20 instructions, one after the other
    at.group = (int)threadIdx.x * g.share >> 20;
    at.lane = (int)threadIdx.x - at.group * g.lanes;
    at.first = (at.rank * g.lanes + at.lane) * vec;
    at.step = (g.lanes << bits) * vec;
    at.block = blockIdx.x >> bits;
    at.row = at.block * g.groups + at.group;
    at.apart = (kf_i64)(gridDim.x >> bits) * g.groups;
    return at;
}
// Nobody sends to another block before.
template <int split> KFI_DEVICE void kfi_line_entered(const kfi_line &g)
{
#if KFI_CLUSTERS
    if (split && g.cluster > 1) kfi_cluster_wait();
#endif
}

#if KFI_CLUSTERS
#define KFI_LINE_ACROSS(type) \
    if (split && g.cluster > 1) { \
        slot = slots + 2 * all * 32 + (at.turn * all + first) * KFI_LINE_CLUSTER; \
        if (at.lane == 0) kfi_post_expect(post, g.cluster * count * (int)sizeof *slot); \
        if (at.lane < g.cluster) \
            _Pragma("unroll") for (int i = 0; i < count; ++i) kfi_cluster_send(slot + i * KFI_LINE_CLUSTER + at.rank, post, at.lane, v[i]); \
        kfi_post_await(post, at.phase); \
        _Pragma("unroll") for (int i = 0; i < count; ++i) v[i] = kfi_line_gather(words >> 2 * i & 3, slot + i * KFI_LINE_CLUSTER, g.cluster); \
    }
#else
#define KFI_LINE_ACROSS(type) (void)post;
#endif

// What float and double have in common.
#define KFI_LINE_WORDS(type, f) \
    KFI_DEVICE type kfi_join(int word, type a, type b) { return word == KFI_SUM ? a + b : word == KFI_PROD ? a * b : word == KFI_MAX ? kfi_max_##f(a, b) : kfi_min_##f(a, b); } \
    /* Of no terms. */ \
    KFI_DEVICE void kfi_nothing(int word, type *v) { *v = word == KFI_SUM ? 0 : word == KFI_PROD ? 1 : (type)__int_as_float(word == KFI_MAX ? (int)0xff800000 : 0x7f800000); } \
    /* Of `lanes` neighbours, each of them has the result. Written out: a loop would take three times as many instructions. */ \
    template <int words, int lanes, int count> KFI_DEVICE void kfi_line_shuffle(type (&v)[count]) \
    { \
        _Pragma("unroll") for (int by = lanes >> 1; by > 0; by >>= 1) \
            _Pragma("unroll") for (int i = 0; i < count; ++i) v[i] = kfi_join(words >> 2 * i & 3, v[i], __shfl_xor_sync(0xffffffffu, v[i], by)); \
    } \
    /* What a row's warps left in shared memory, a value each for each reduction, 32 values apart, added up by each of them. */ \
    template <int words, int lanes, int count> KFI_DEVICE void kfi_line_fold(type (&v)[count], const type *slot, int warps) \
    { \
        const int own = (int)threadIdx.x & (lanes - 1); \
        _Pragma("unroll") for (int i = 0; i < count; ++i) { \
            kfi_nothing(words >> 2 * i & 3, &v[i]); \
            if (own < warps) v[i] = slot[i * 32 + own]; \
        } \
        kfi_line_shuffle<words, lanes>(v); \
    } \
    /* And its blocks. */ \
    KFI_DEVICE type kfi_line_gather(int word, const type *slot, int blocks) \
    { \
        type v = slot[0]; \
        _Pragma("unroll") for (int i = 1; i < KFI_LINE_CLUSTER; ++i) \
            if (i < blocks) v = kfi_join(word, v, slot[i]); \
        return v; \
    } \
    /* What a pass reduces, of all threads of a row, `words` says how, 2 bits each. Of a kernel's `passes` it is number `pass`, of its */ \
    /* `all` reductions these begin at `first`. Shared memory: posts, then for each turn and reduction a value of each warp, then of */ \
    /* each block of a cluster. */ \
    /* alone: in a row that has one block the first warp alone needs the result. */ \
    template <int words, int split, int alone, int pass, int passes, int first, int all, int count> \
    KFI_DEVICE void kfi_line_reduce(type (&v)[count], const kfi_line &g, const kfi_spot &at) \
    { \
        unsigned long long *const post = (unsigned long long *)kfi_dynamic() + at.turn * passes + pass; \
        type *const slots = (type *)(kfi_dynamic() + 2 * passes * sizeof *post), *slot = slots + (at.turn * all + first) * 32; \
        if (g.lanes >= 32) kfi_line_shuffle<words, 32>(v); \
        else \
            for (int by = g.lanes >> 1; by > 0; by >>= 1) \
                _Pragma("unroll") for (int i = 0; i < count; ++i) v[i] = kfi_join(words >> 2 * i & 3, v[i], __shfl_xor_sync(0xffffffffu, v[i], by)); \
        if (g.lanes > 32) { \
            const int warps = g.lanes / 32; \
            if (threadIdx.x % 32 == 0) \
                _Pragma("unroll") for (int i = 0; i < count; ++i) slot[i * 32 + threadIdx.x / 32] = v[i]; \
            __syncthreads(); \
            if (alone && (!split || g.cluster == 1) && at.lane >= 32) return; \
            if (warps > 8) kfi_line_fold<words, 32>(v, slot + at.group * warps, warps); \
            else if (warps > 2) kfi_line_fold<words, 8>(v, slot + at.group * warps, warps); \
            else kfi_line_fold<words, 2>(v, slot + at.group * warps, warps); \
        } \
        KFI_LINE_ACROSS(type) \
    } \
    /* Partial sums of nothing, where they are not held. */ \
    template <int vec> KFI_DEVICE void kfi_line_clear(type *partial, int first, int step, kf_i64 stride) \
    { \
        _Pragma("unroll 1") for (kf_i64 c = first; c < stride; c += step) \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) \
                if (c + e < stride) partial[c + e] = 0; \
    } \
    /* A block's partial sums of one gradient: a thread's columns, in vectors `step` apart, added up over the block's rows: across a warp */ \
    /* that has several of them, then what its warps, or rows of whole warps, have left in buffer: places for all sums of each thread. */ \
    template <int held, int vec> \
    KFI_DEVICE void kfi_line_sums(type *partial, type (&sum)[held][vec], type *buffer, const kfi_line &g, int group, int first, int step) \
    { \
        const int padded = (int)kfi_ceil4(g.cols); \
        if (g.groups == 1) { \
            constexpr int piece = 16 / (int)sizeof(type) < vec ? 16 / (int)sizeof(type) : vec; /* padded is whole pieces */ \
            _Pragma("unroll") for (int s = 0; s < held; ++s) \
                _Pragma("unroll") for (int e = 0; e < vec; e += piece) \
                    if (first + s * step + e < padded) kfi_store<piece * (int)sizeof(type)>(partial + first + s * step + e, sum[s] + e); \
            return; \
        } \
        _Pragma("unroll 1") for (int by = 16; by >= g.lanes; by >>= 1) \
            _Pragma("unroll") for (int s = 0; s < held; ++s) \
                _Pragma("unroll") for (int e = 0; e < vec; ++e) sum[s][e] += __shfl_xor_sync(0xffffffffu, sum[s][e], by); \
        const int row = g.lanes < 32 ? (int)threadIdx.x / 32 : group, rows = g.lanes < 32 ? (int)blockDim.x / 32 : g.groups; \
        type *const own = buffer + row * held * step + first; \
        __syncthreads(); \
        if ((int)threadIdx.x % 32 < g.lanes) \
            _Pragma("unroll") for (int s = 0; s < held; ++s) \
                _Pragma("unroll") for (int e = 0; e < vec; ++e) own[s * step + e] = sum[s][e]; \
        __syncthreads(); \
        _Pragma("unroll 1") for (int c = (int)threadIdx.x; c < padded; c += (int)blockDim.x) { \
            type total = buffer[c]; \
            _Pragma("unroll 4") for (int y = 1; y < rows; ++y) total += buffer[y * held * step + c]; \
            partial[c] = total; \
        } \
    }
KFI_LINE_WORDS(float, f32)
KFI_LINE_WORDS(double, f64)

// Of [batch, heads, queries, cols] the row whose turn it is: a query's of all heads one after the other, which read the same row of
// what heads share. Behind the last one, a row that there is not.
KFI_DEVICE kf_i64 kfi_line_row(const kfi_line &g, kf_i64 turn)
{
    const kf_i64 unit = kfi_divide(turn, g.channels), batch = kfi_divide(unit, g.queries);
    return (batch * (kf_i64)g.channels.d + turn - unit * (kf_i64)g.channels.d) * (kf_i64)g.queries.d + unit - batch * (kf_i64)g.queries.d;
}
// A thread's s-th vector: elements from its first one to there, and that there are from there on. What is held is short: an int.
// A column, or what is compared with columns, as a place behind column `from`: those that are no place of a vector, and what lies beyond
// them, are before it or behind it. A row that is held has few columns: a is cut to 30 bits once a row.
template <int held> KFI_DEVICE int kfi_near(kf_i64 a, kf_i64 from)
{
    if (held) return (a < -1 ? -1 : a > 0x3fffffff ? 0x3fffffff : (int)a) - (int)from;
    return a < from ? -1 : a - from > 16 ? 16 : (int)(a - from);
}

template <int held> KFI_DEVICE kf_i64 kfi_line_off(int s, int step) { return held ? (kf_i64)(s * step) : (kf_i64)s * step; }
template <int held> KFI_DEVICE kf_i64 kfi_line_left(kf_i64 room, int s, int step)
{
    return held ? (kf_i64)((int)room - s * step) : room - (kf_i64)s * step;
}
// A vector of a row, of which `left` elements are in it; the others are zero. whole: rows hold whole vectors, aligned to 16.
template <int size, int vec, int whole>
KFI_DEVICE void kfi_line_load(void *dst, const void *src, kf_i64 left)
{
    if (whole) {
        constexpr int step = size * vec < 16 ? size * vec : 16;
#pragma unroll
        for (int i = 0; i < size * vec; i += step) {
            alignas(16) unsigned v[4] = {0, 0, 0, 0};
            if (left > 0) kfi_copy<step>(v, (const char *)src + i);
            kfi_copy<step>((char *)dst + i, v);
        }
    } else {
        const unsigned long long zero = 0;
#pragma unroll
        for (int e = 0; e < vec; ++e) kfi_copy<size>((char *)dst + e * size, e < left ? (const char *)src + e * size : (const char *)&zero);
    }
}
template <int size, int vec, int whole>
KFI_DEVICE void kfi_line_store(void *dst, const void *src, kf_i64 left)
{
    if (whole) {
        if (left > 0) kfi_store<size * vec>(dst, src);
    } else {
#pragma unroll
        for (int e = 0; e < vec; ++e)
            if (e < left) kfi_copy<size>((char *)dst + e * size, (const char *)src + e * size);
    }
}

// A thread's vectors of a row, or of a row operand, on their way through shared memory, and from there into registers. Its places
// of 16 bytes, of which conditions use fewer, lie side by side, an odd number of them, so that neighbours' do not fall into the same
// banks: an access needs no arithmetic. space, left: elements from its first one on that there are.
template <int size, int vec, int held> KFI_DEVICE void kfi_line_ahead(char *slot, const void *src, int step, int space)
{
    constexpr int bytes = size * vec < 16 ? size * vec : 16, parts = size * vec / bytes;
#pragma unroll
    for (int s = 0; s < held; ++s)
#pragma unroll
        for (int i = 0; i < parts; ++i)
            if (space - s * step > 0) kfi_fetch<bytes>(slot + (s * parts + i) * 16, (const char *)((const char(*)[size])src + s * step) + i * 16);
}
template <int bytes> KFI_DEVICE void kfi_line_take(void *dst, const char *slot, kf_i64 left)
{
    const uint4 zero = {0, 0, 0, 0};
    if (bytes < 16) {
        constexpr int few = bytes < 16 ? bytes : 1;
        alignas(16) unsigned char v[few] = {};
        if (left > 0) kfi_copy<few>(v, slot);
        kfi_copy<few>(dst, v);
    }
#pragma unroll
    for (int i = 0; i < bytes / 16; ++i) ((uint4 *)dst)[i] = left > 0 ? ((const uint4 *)slot)[i] : zero;
}
// All that a thread holds of a row, from its places (ringed) or from the tensor.
template <int size, int vec, int whole, int held>
KFI_DEVICE void kfi_line_hold(void *dst, bool ringed, const char *slot, const void *src, int step, int room)
{
#pragma unroll
    for (int s = 0; s < held; ++s) {
        void *const to = (char *)dst + s * size * vec;
        if (ringed) kfi_line_take<size * vec>(to, slot + s * (size * vec < 16 ? 16 : size * vec), room - s * step);
        else if (whole) kfi_line_load<size, vec, 1>(to, (const char(*)[size])src + s * step, room - s * step); // one instruction an address
        else kfi_line_load<size, vec, 0>(to, (const char *)src + (kf_i64)(s * step) * size, room - s * step);  // fewer registers
    }
}
// That all of it is on its way before the first value is looked at: ptxas likes to load the last vectors when the first ones are used up,
// a wait more. So the first word is made to depend on a word of each vector, by a mask that it cannot know to be 0. (Not of vectors of
// two bytes, as two conditions are: they hold no word.)
KFI_DEVICE unsigned kfi_line_zero(const kfi_line &g) { return (unsigned)((unsigned long long)g.cols >> 63); }
template <int asked, int bytes, int held> KFI_DEVICE void kfi_line_await(void *first, const void *values, const kfi_line &g)
{
#ifdef KFI_PTX
    const unsigned zero = kfi_line_zero(g);
#pragma unroll
    for (int s = 0; s < held && asked && bytes % 4 == 0; ++s) *(unsigned *)first ^= *(const unsigned *)((const char *)values + s * bytes) & zero;
#else
    (void)first, (void)values, (void)g;
#endif
}
// The same number, which the compiler cannot know to be the same.
KFI_DEVICE int kfi_piece_again(int first, const kfi_line &g)
{
#ifdef KFI_PTX
    const int zero = (int)kfi_line_zero(g);
    asm volatile("xor.b32 %0, %0, %1;" : "+r"(first) : "r"(zero));
#else
    (void)g;
#endif
    return first;
}
// A result as it is stored, where others are computed from it: rounded as one of two, which is one instruction of many a clock; that of
// one alone has a quarter of the throughput.
#define KFI_LINE_STORED(type, word) \
    KFI_DEVICE float kfi_stored_##word(float v) \
    { \
        const float two[2] = {v, 0}; \
        alignas(4) type stored[2]; \
        kfi_pack_##word<2>(stored, two); \
        kfi_unpack_##word<1>(&v, stored); \
        return v; \
    }
KFI_LINE_STORED(kf_f16, f16)
KFI_LINE_STORED(kf_bf16, bf16)
// The first element of a row.
KFI_DEVICE kf_i64 kfi_row_row(kf_i64 row, const kfi_pitch &p) { return row * p.row; }
KFI_DEVICE kf_i64 kfi_plane_row(kf_i64 row, const kfi_pitch &p, const kfi_line &g)
{
    kf_i64 at = row * p.row;
    if (p.outer) at += kfi_divide(row, g.channels) * p.outer; // not where all is dense: the same of all threads
    return at;
}
KFI_DEVICE kf_i64 kfi_head_row(kf_i64 row, const kfi_pitch &p, const kfi_line &g)
{
    kf_i64 at = row * p.row;
    if (p.head | p.outer) {
        const kf_i64 head = kfi_divide(row, g.queries);
        at += head * p.head + kfi_divide(head, g.channels) * p.outer;
    }
    return at;
}
// Rows in pieces, and where in one a column is.
KFI_DEVICE kf_i64 kfi_piece_row(kf_i64 row, const kfi_pitch &p, const kfi_line &g) { return kfi_plane_row(row, p, g); }
// What is held is short: 2 instructions, not 12. (Such a multiplier is exact for numerators below 2^31.)
template <int held> KFI_DEVICE kf_i64 kfi_piece_divide(kf_i64 n, const kfi_divisor &d)
{
    if (!held) return kfi_divide(n, d);
    const unsigned word = (unsigned)n, multiplier = (unsigned)(d.multiplier >> 32) + 1;
    return (kf_i64)(((unsigned)((unsigned long long)word * multiplier >> 32) >> d.shift) | (word & (unsigned)d.one));
}
template <int held> KFI_DEVICE kf_i64 kfi_piece_at(const kfi_groups &g, kf_i64 gap, kf_i64 column)
{
    return g.in.gaps ? column + kfi_piece_divide<held>(column, g.in.piece) * gap : column;
}
// From one column to the next without a division: where it is and how many from there on are in the piece; or the channel of the group
// and how many are of it.
struct kfi_along {
    kf_i64 at;
    int room; // at most 2^30, more than a vector
};
KFI_DEVICE int kfi_to_int(kf_i64 n) { return n < 1 << 30 ? (int)n : 1 << 30; }
template <int held> KFI_DEVICE kfi_along kfi_piece_along(const kfi_groups &g, kf_i64 gap, kf_i64 column)
{
    const kf_i64 piece = kfi_piece_divide<held>(column, g.in.piece);
    return {column + piece * gap, kfi_to_int((piece + 1) * (kf_i64)g.in.piece.d - column)};
}
KFI_DEVICE void kfi_piece_next(const kfi_groups &g, kf_i64 gap, kfi_along *p)
{
    ++p->at;
    if (--p->room == 0) {
        p->at += gap;
        p->room = kfi_to_int((kf_i64)g.in.piece.d);
    }
}
template <int held> KFI_DEVICE kfi_along kfi_channel_along(const kfi_groups &g, kf_i64 column)
{
    const kf_i64 in_piece = g.in.several ? column - kfi_piece_divide<held>(column, g.in.piece) * (kf_i64)g.in.piece.d : column;
    const kf_i64 channel = kfi_piece_divide<held>(in_piece, g.in.inner), room = (channel + 1) * (kf_i64)g.in.inner.d - in_piece;
    return {channel, held ? (int)room : kfi_to_int(room)};
}
KFI_DEVICE void kfi_channel_next(const kfi_groups &g, kfi_along *p)
{
    if (--p->room == 0) {
        p->at = p->at + 1 == g.in.parts ? 0 : p->at + 1;
        p->room = kfi_to_int((kf_i64)g.in.inner.d);
    }
}
// As kfi_line_load and the others; src, dst: the row's first element. whole: pieces hold whole vectors, of one channel and the next one, or
// (across) of one each.
template <int size, int vec, int whole, int held>
KFI_DEVICE void kfi_piece_load(void *dst, const void *src, kf_i64 gap, kf_i64 column, kf_i64 left, const kfi_groups &g)
{
    const char(*const row)[size] = (const char(*)[size])src;
    if (whole || !g.in.gaps) {
        kfi_line_load<size, vec, whole>(dst, row + kfi_piece_at<held>(g, gap, column), left);
    } else {
        const unsigned long long zero = 0;
        kfi_along p = kfi_piece_along<held>(g, gap, column);
#pragma unroll
        for (int e = 0; e < vec; ++e, kfi_piece_next(g, gap, &p))
            kfi_copy<size>((char *)dst + e * size, e < left ? (const char *)(row + p.at) : (const char *)&zero);
    }
}
template <int size, int vec, int whole, int held>
KFI_DEVICE void kfi_piece_store(void *dst, kf_i64 gap, kf_i64 column, const void *src, kf_i64 left, const kfi_groups &g)
{
    char(*const row)[size] = (char(*)[size])dst;
    if (whole || !g.in.gaps) {
        kfi_line_store<size, vec, whole>(row + kfi_piece_at<held>(g, gap, column), src, left);
    } else {
        kfi_along p = kfi_piece_along<held>(g, gap, column);
#pragma unroll
        for (int e = 0; e < vec; ++e, kfi_piece_next(g, gap, &p))
            if (e < left) kfi_copy<size>((char *)(row + p.at), (const char *)src + e * size);
    }
}
template <int size, int vec, int held>
KFI_DEVICE void kfi_piece_ahead(char *slot, const void *src, kf_i64 gap, int first, int step, int space, const kfi_groups &g)
{
#pragma unroll
    for (int s = 0; s < held; ++s)
        kfi_line_ahead<size, vec, 1>(slot + s * (size * vec < 16 ? 16 : size * vec), (const char(*)[size])src + kfi_piece_at<held>(g, gap, first + s * step), 0,
                                     space - s * step);
}
template <int size, int vec, int whole, int held>
KFI_DEVICE void kfi_piece_hold(void *dst, bool ringed, const char *slot, const void *src, kf_i64 gap, int first, int step, int room, const kfi_groups &g)
{
#pragma unroll
    for (int s = 0; s < held; ++s) {
        void *const to = (char *)dst + s * size * vec;
        if (ringed) kfi_line_take<size * vec>(to, slot + s * (size * vec < 16 ? 16 : size * vec), room - s * step);
        else kfi_piece_load<size, vec, whole, held>(to, src, gap, first + s * step, room - s * step, g);
    }
}
// A thread's place in its team, and what it has of an item.
struct kfi_team {
    int lanes, lane;
    kf_i64 first, count; // its first item, and from one to the next
};
struct kfi_item {
    kf_i64 slice, channel;   // of the thread, the first one of a vector that lies across channels
    kf_i64 unit, end;        // its first unit, and that behind its last one
    int step, left;          // from one unit to the next; elements across channels, or 1: there is such a channel
};
KFI_DEVICE kfi_team kfi_line_team(const kfi_line &g, const kfi_spot &at)
{
    kfi_team team;
    team.lanes = g.lanes < 32 ? g.lanes : 32;
    team.lane = at.lane & (team.lanes - 1);
    team.first = g.lanes < 32 ? 0 : at.rank * (g.lanes / 32) + at.lane / 32;
    team.count = g.lanes < 32 ? 1 : (g.lanes / 32) << g.cluster_bits;
    return team;
}
template <int vec> KFI_DEVICE kfi_item kfi_line_item(const kfi_groups &g, const kfi_team &team, kf_i64 item, bool there)
{
    kfi_item of;
    of.slice = kfi_divide(item, g.in.blocks);
    of.channel = ((item - of.slice * (kf_i64)g.in.blocks.d) * g.in.wide + (team.lane & (g.in.wide - 1))) * (g.in.across ? vec : 1);
    const kf_i64 left = there ? g.in.parts - of.channel : 0;
    of.left = left < 0 ? 0 : left < vec ? (int)left : vec;
    of.step = team.lanes / g.in.wide;
    of.unit = of.slice * KFI_SLICE + team.lane / g.in.wide;
    of.end = of.left == 0 ? 0 : (of.slice + 1) * KFI_SLICE < g.in.units ? (of.slice + 1) * KFI_SLICE : g.in.units;
    return of;
}
// A unit's first column, the piece that it is in, and how many elements it has.
template <int vec, int held> KFI_DEVICE kf_i64 kfi_line_unit(const kfi_groups &g, const kfi_item &of, kf_i64 unit, kf_i64 *piece, kf_i64 *left)
{
    *piece = g.in.across ? unit : kfi_piece_divide<held>(unit, g.in.vectors);
    const kf_i64 from = g.in.across ? 0 : (unit - *piece * (kf_i64)g.in.vectors.d) * vec;
    *left = g.in.across ? of.left : (kf_i64)g.in.inner.d - from;
    return *piece * (kf_i64)g.in.piece.d + of.channel * (kf_i64)g.in.inner.d + from;
}
// whole: pieces hold whole vectors.
template <int size, int vec, int whole> KFI_DEVICE void kfi_line_unit_load(void *dst, const void *src, kf_i64 left, const kfi_groups &g)
{
    if (whole && (g.in.across || g.in.even)) kfi_line_load<size, vec, 1>(dst, src, left);
    else kfi_line_load<size, vec, 0>(dst, src, left);
}
// What a team has added up of its channels, to their places among the partial sums.
#define KFI_LINE_LEAVE(type) \
    template <int vec> KFI_DEVICE void kfi_line_leave(type *partial, type (&sum)[vec], const kfi_groups &g, const kfi_team &team, const kfi_item &of) \
    { \
        if (!g.in.across) { \
            _Pragma("unroll") for (int e = 1; e < vec; ++e) sum[0] += sum[e]; \
            _Pragma("unroll 1") for (int by = team.lanes >> 1; by >= g.in.wide; by >>= 1) sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], by); \
            if (team.lane < g.in.wide && of.left > 0) partial[of.channel] = sum[0]; \
            return; \
        } \
        _Pragma("unroll 1") for (int by = team.lanes >> 1; by >= g.in.wide; by >>= 1) \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], by); \
        _Pragma("unroll") for (int e = 0; e < vec; ++e) \
            if (team.lane < g.in.wide && e < of.left) partial[of.channel + e] = sum[e]; \
    }
KFI_LINE_LEAVE(float)
KFI_LINE_LEAVE(double)
// A row operand on its way to the caches at a kernel's beginning, where there are so few rows that no other block will have brought
// it: the last pass loads it vector by vector, and each would wait for memory.
#define KFI_LINE_FEW 132 // blocks of one row: one an SM
template <int size, int held> KFI_DEVICE void kfi_line_prefetch(const void *src, int step, int space, const kfi_line &g)
{
#ifdef KFI_PTX
    const bool few = g.groups == 1 && gridDim.x <= KFI_LINE_FEW;
#pragma unroll
    for (int s = 0; s < held && few; ++s)
        if (space - s * step > 0) asm volatile("prefetch.global.L1 [%0];" ::"l"((const char(*)[size])src + s * step));
#else
    (void)src, (void)step, (void)space, (void)g;
#endif
}
// The value of a row operand that is absent.
#define KFI_LINE_ABSENT(type, number) \
    template <int count> KFI_DEVICE void kfi_line_absent(type *to, number v) \
    { \
        _Pragma("unroll") for (int e = 0; e < count; ++e) kfi_cast(to + e, v); \
    }
KFI_LINE_ABSENT(float, float)
KFI_LINE_ABSENT(double, double)
KFI_LINE_ABSENT(kf_f16, float)
KFI_LINE_ABSENT(kf_bf16, float)

// Hides from the compiler that these 2-byte values were converted before: it would keep the floats, twice the registers. Where there
// would not be enough of those (many), from ptxas too, which sees through an empty statement and spills: no size is negative.
template <int count, int many>
KFI_DEVICE void kfi_line_forget(void *values, const kfi_line &g)
{
#ifdef KFI_PTX
    unsigned *const words = (unsigned *)values;
    const unsigned zero = kfi_line_zero(g);
#pragma unroll
    for (int i = 0; i < count / 2; ++i) {
        if (many) asm volatile("xor.b32 %0, %0, %1;" : "+r"(words[i]) : "r"(zero));
        else asm volatile("" : "+r"(words[i]));
    }
#else
    (void)values, (void)g;
#endif
}
#endif

#ifdef KFI_HOST_PASS
// A way to hold a row (RowKernel.held), 8 bits each: vectors of a thread; in warps, the threads of a block, those where a row has a
// whole cluster, those where there are no clusters.
struct kfi_held {
    int vectors, threads, most, alone;
};
KF_FN kfi_held kfi_held_of(unsigned bits)
{
    const kfi_held found = {(int)(bits >> 24), (int)(bits >> 16 & 255) * 32, (int)(bits >> 8 & 255) * 32, (int)(bits & 255) * 32};
    return found;
}
// The kernels of one op x dtypes: for each entry of `held`, of which the last is that of blocks that walk down the rows (where
// gradients are added up there is no other), and then for rows that are not held, {whole, single}.
struct kfi_row {
    kfi_name name;
    kfi_arguments arguments;
    const void *const *kernels;
    const unsigned *held;
    int holds;
    int vec, sums, acc_size;
    int fixed, ring; // bytes of shared memory, in all and a thread
    bool per_row;    // some result is one per row
    int layout = KFI_LAYOUT_ROWS;
    int plane_sums = 0; // gradients of channels: of each plane (slice of a group's channel) a value, which the second stage adds up
    const unsigned char *runs = nullptr; // how many gradients each launch of the second stage adds up; nullptr: it is one
};

// How far a row may reach, by the architectures that the kernels are compiled for.
struct kfi_reach {
    int clusters; // blocks that may have a row: several where all are 9.0 or later
    bool narrow;  // a block may have 99 KiB of shared memory alone, as in all of 12.x
};
KF_FN kfi_reach kfi_line_reach()
{
#ifdef KF_EMULATE
    return {KFI_LINE_CLUSTER, false};
#else
    kfi_reach found = {kfi_overlaps() ? KFI_LINE_CLUSTER : 1, false};
#ifdef KFI_ARCHITECTURES
    const int list[] = {KFI_ARCHITECTURES};
    for (int arch : list) found.narrow = found.narrow || arch / 100 == 12;
#endif
    return found;
#endif
}
// Blocks that walk have their rows in shared memory, 208 KiB of it at most (RowKernel.held) beside what is fixed, or fewer threads.
KF_FN void kfi_line_fit(kfi_held *how)
{
    how->most = (int)kfi_clamp(how->most * 5 / 13 / 32 * 32, 32, how->most);
    how->threads = (int)kfi_clamp(how->threads, 0, how->most);
}
// Rows at a time, of blocks that walk down them: as many as an H200 has room for, 512 threads an SM, where gradients are added up
// at most as many blocks as have room for their shared memory. Clusters of more than two leave one SM in eleven alone.
#define KFI_LINE_RINGS 6
KF_FN KFI_SMALL kf_i64 kfi_line_parts(const kfi_line &g, int threads, bool sums)
{
    const kf_i64 blocks = KFI_MAP_SMS * kfi_clamp(512 / threads, 1, sums ? KFI_LINE_RINGS : 4);
    const kf_i64 most = (g.cluster > 2 ? blocks - blocks / 11 : blocks) / g.cluster;
    return kfi_clamp(kfi_ceil(g.rows, g.groups), 1, most > 1 ? most : 1);
}
// The schedule, by a row's length alone but for the number of blocks. Returns which kernel: an index of kfi_row's table.
KF_FN KFI_SMALL int kfi_make_line(kfi_line *g, kf_i64 rows, kf_i64 cols, int vec, const unsigned *held, int holds, bool sums,
                                  const kfi_reach &reach, int *threads)
{
    const kf_i64 vectors = kfi_ceil(cols, vec);
    const int clusters = reach.clusters;
    g->rows = rows;
    g->cols = cols;
    g->cluster_bits = 0;
    int found = 0;
    kfi_held how = {};
    for (; found < holds; ++found) {
        how = kfi_held_of(held[found]);
        if (found + 1 == holds && clusters > 1 && reach.narrow) kfi_line_fit(&how);
        const int limit = clusters > 1 ? how.most : how.alone, blocks = found + 1 < holds ? 1 : clusters;
        if (vectors <= (kf_i64)how.vectors * blocks * kfi_clamp(limit, 0, KFI_LINE_CAP)) break;
    }
    kf_i64 lanes = kfi_clamp(512, 1, KFI_LINE_CAP);
    if (found < holds) {
        const kf_i64 full = how.vectors * kfi_clamp(how.threads, 1, KFI_LINE_CAP); // of a block
        while (found + 1 == holds && 1 << g->cluster_bits < clusters && vectors > full << g->cluster_bits) ++g->cluster_bits;
        lanes = kfi_ceil(vectors, (kf_i64)how.vectors << g->cluster_bits);
    }
    g->cluster = 1 << g->cluster_bits;
    g->lanes = (int)kfi_ceil(lanes, 32) * 32;
    if (lanes <= 32)
        for (g->lanes = 1; g->lanes < lanes;) g->lanes *= 2;
    g->share = (int)kfi_ceil(1 << 20, g->lanes);
    const int block = sums ? KFI_LINE_SUM_BLOCK : KFI_LINE_BLOCK;
    g->groups = found < holds && g->cluster == 1 && g->lanes <= (sums ? block : 32) ? block / g->lanes : 1;
    *threads = g->lanes * g->groups;
    g->loops = (int)kfi_clamp(kfi_ceil(vectors, g->lanes), 0, 0x7fffffff);
    return found;
}
KF_FN KFI_SMALL size_t kfi_row_workspace(kf_i64 rows, kf_i64 cols, int vec, unsigned held, int sums, int acc_size)
{
    if (!kfi_fits(rows, cols, 1)) return 0;
#ifdef KFI_DRIVER // enough for any device: none is asked, a program may have several
    const kfi_reach all[] = { {1, false}, {KFI_LINE_CLUSTER, false}, {KFI_LINE_CLUSTER, true} };
#else
    const kfi_reach all[] = {kfi_line_reach()};
#endif
    kf_i64 most = 0;
    for (const kfi_reach &reach : all) {
        kfi_line g;
        int threads;
        kfi_make_line(&g, rows, cols, vec, &held, 1, true, reach, &threads);
        const kf_i64 parts = kfi_line_parts(g, threads, true);
        most = parts > most ? parts : most;
    }
    return kfi_workspace((size_t)(most * kfi_ceil(cols, 4) * 4) * (size_t)(sums * acc_size));
}

KF_FN KFI_SMALL size_t kfi_plane_workspace(kf_i64 outer, kf_i64 channels, kf_i64 inner, int sums, int acc_size)
{
    return kfi_fits(outer, channels, inner) ? kfi_workspace((size_t)(outer * kfi_ceil(channels, 4) * 4) * (size_t)(sums * acc_size)) : 0;
}

// Of each gradient a value for each channel and slice of it. As many channels and slices as the shape has, whatever the schedule is.
KF_FN KFI_SMALL void kfi_make_pieces(kfi_pieces *in, const kf_i64 *sizes, int vec)
{
    const kf_i64 length = sizes[1], inner = sizes[4];
    in->parts = sizes[3];
    in->piece = kfi_make_divisor(in->parts * inner);
    in->inner = kfi_make_divisor(inner);
    in->several = length > 1;
    in->across = inner == 1;
    in->even = inner % vec == 0;
    const kf_i64 vectors = in->across ? 1 : kfi_ceil(inner, vec), blocks = in->across ? kfi_ceil(in->parts, vec) : in->parts;
    in->vectors = kfi_make_divisor(vectors);
    in->units = length * vectors;
    in->slices = kfi_ceil(in->units, KFI_SLICE);
    in->items = blocks;
}
KF_FN KFI_SMALL void kfi_make_team(kfi_pieces *in, int lanes)
{
    const kf_i64 team = lanes < 32 ? lanes : 32, most = in->across ? in->items : team / kfi_clamp(in->units, 1, team);
    for (in->wide = 1; 2 * in->wide <= kfi_clamp(most, 1, team) && in->wide < in->items;) in->wide *= 2;
    const kf_i64 blocks = kfi_ceil(in->items, in->wide);
    in->blocks = kfi_make_divisor(blocks);
    in->items = blocks * in->slices;
}
KF_FN KFI_SMALL size_t kfi_group_workspace(kf_i64 outer, kf_i64 length, kf_i64 groups, kf_i64 channels, kf_i64 inner, int vec, int sums, int acc_size)
{
    const kf_i64 sizes[] = {outer, length, channels, inner};
    if (groups < 1 || !kfi_all_fit(sizes, 4) || !kfi_divides(groups, channels)) return 0;
    const kf_i64 pieces[] = {outer, length, groups, channels / groups, inner};
    kfi_pieces in;
    kfi_make_pieces(&in, pieces, vec);
    return kfi_plane_workspace(outer * in.slices, channels, 1, sums, acc_size);
}

// pitches: of each tensor, kernel arguments that are set here as g is.
KF_FN KFI_APART kf_result_t kfi_row_run(const kfi_row &m, const kf_i64 *sizes, const kfi_strides &strides, kfi_pitch *pitches, kfi_line *g, void **args,
                              kfi_sums *s, const void *const *sum_kernels, void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    kfi_shape shape = {0, 0, 0, 0, nullptr};
    kf_i64 pieces[5] = {0, 0, 0, 0, 0};
    kf_result_t result = kfi_check_layout(&m.name, m.layout, sizes, &shape, pieces);
    if (result != KF_SUCCESS) return result;
    kfi_operands operands;
    const kfi_levels levels = kfi_make_levels(m.layout, sizes);
    result = kfi_check_strides(&m.name, &m.arguments, &strides, &levels, &operands);
    if (result != KF_SUCCESS) return result;
    const kf_i64 outer = shape.rows, channels = shape.channels, cols = shape.cols, rows = m.layout == KFI_LAYOUT_ROWS ? outer : outer * channels;
    const bool nothing = rows == 0 || (cols == 0 && !m.per_row);
    const bool groups = m.layout >= KFI_LAYOUT_GROUPS; // or channels: rows are in pieces
    const kf_i64 summed = groups ? channels * shape.parts : channels; // where planes or groups are
    if (m.plane_sums ? summed == 0 : m.sums ? cols == 0 && !m.per_row : nothing) return KF_SUCCESS;
    result = kfi_check_operands(&m.name, &m.arguments, &shape, &levels, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    const int sums = m.sums + m.plane_sums;
    const bool wanted = kfi_sums_wanted(s, m.runs, sums);
    kfi_pieces *const in = groups ? &((kfi_groups *)g)->in : nullptr;
    if (groups) kfi_make_pieces(in, pieces, m.vec);
    const kf_i64 leaves = groups ? outer * in->slices : outer; // values of a channel
    const size_t needed = !sums ? 0 : m.plane_sums ? kfi_plane_workspace(leaves, summed, 1, sums, m.acc_size)
                                                     : kfi_row_workspace(rows, cols, m.vec, *m.held, sums, m.acc_size);
    result = kfi_check_workspace(&m.name, &m.arguments, &operands, workspace, workspace_bytes, needed);
    if (result != KF_SUCCESS) return result;
    int threads;
    const int found = kfi_make_line(g, rows, cols, m.vec, m.held, m.holds, m.sums > 0, kfi_line_reach(), &threads);
    const bool narrow = groups && pieces[4] > 1 && pieces[4] < m.vec; // a vector may touch more than two channels
    if (groups) in->gaps = 0;
    for (int i = 0; i < operands.count; ++i) {
        pitches[i] = kfi_make_pitch(m.layout, &levels, operands.of[i].apart);
        if (groups && strides.fields[i] != ' ') in->gaps |= pitches[i].gap != 0;
    }
    const bool whole = operands.bits % 16 == 0 && operands.steps % m.vec == 0 && (groups ? (kf_i64)in->piece.d : cols) % m.vec == 0 && !narrow;
    if (groups) kfi_make_team(in, g->lanes);
    const bool walk = m.sums || found + 1 == m.holds;
    const kf_i64 parts = walk ? kfi_line_parts(*g, threads, m.sums > 0) : kfi_ceil(rows, g->groups), blocks = parts * g->cluster;
    if (blocks > 0x7fffffff || g->loops == 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch", "of %lld x %lld elements needs more blocks than a launch may have", (long long)rows,
                        (long long)cols);
    if (sums) {
        s->partial = wanted ? workspace : nullptr;
        s->parts = !m.plane_sums ? parts : nothing ? 0 : leaves;
        s->count = m.plane_sums ? summed : cols;
        s->stride = kfi_ceil(s->count, 4) * 4;
    }
    if (m.layout != KFI_LAYOUT_ROWS) g->channels = kfi_make_divisor(channels);
    if (m.layout == KFI_LAYOUT_HEADS) g->queries = kfi_make_divisor(sizes[2]);
    const unsigned shared = (unsigned)(m.fixed + (found + 1 == m.holds ? m.ring * threads : 0));
    if (!nothing || m.sums)
        result = kfi_launch(&m.name, m.kernels[2 * found + !whole], dim3((unsigned)blocks), (unsigned)threads, args, stream, !walk, shared,
                            (unsigned)g->cluster);
    if (result != KF_SUCCESS || !wanted) return result;
    return kfi_launch_sums(&m.name, s, m.runs, sums, s->parts * s->stride * m.acc_size, sum_kernels, 1, kfi_ceil(s->count, 4 * KFI_SUM_LANES),
                           KFI_SUM_LANES * KFI_SUM_GROUPS, stream);
}
#endif

#endif
