// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/hopper.cuh: attention forward of 2-byte elements by wgmma (sm_90a).
// Persistent, warp-specialised kernel: a producer warpgroup loads Q, K and V by TMA; two or three
// consumer warpgroups have 64 query rows each.
//
// S = Q . K^T: Q comes from registers or shared memory. O += P . V: P stays in registers, since an
// accumulator has the layout of operand A; V is transposed by its descriptor. A step of a consumer
// issues S of the next key block and, behind it, O += P . V of this one; the softmax of the next
// block runs under that product. Consumers walk the keys from the last block to the first.
//
// K and V have a pipeline of stages each. Every warpgroup has its own range of key blocks and lets
// the tile's other blocks pass. Full, causal and windowed attention are one kernel: two affine
// bounds per query. Blocks outside are not loaded; only blocks at the bounds are masked.
//
// One thread of the producer draws tiles from a ticket and passes them on through shared memory.
// Grid: one block per SM at most. Shared memory: kfi_attention_shared_bytes.
// Callers: kernels of ops (templates), launched by hopper_host.cuh where rows of q, k, v and out
// begin at multiples of 16 bytes. Trap and integer arithmetic on scores would serialise wgmma.
// Accuracy: products in float, P rounded to the element type; the order of sums is fixed by the
// shape.
#ifndef KF_CORE_ATTENTION_HOPPER_CUH
#define KF_CORE_ATTENTION_HOPPER_CUH

#include "kf/core/attention/hopper_work.cuh"
#include "kf/core/attention/store.cuh"

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// A position in a pipeline.
struct kfi_attention_stage {
    int index, phase;
};
template <int tile> KFI_DEVICE void kfi_attention_advance(kfi_attention_stage *s)
{
    if (++s->index < kfi_attention_tile(tile).stages) return;
    s->index = 0;
    s->phase ^= 1;
}

// ---- producer

// Loads a block of K or V into a stage, in slabs of 64 columns.
template <int tile, int dim>
KFI_DEVICE void kfi_attention_load(const kfi_attention_stage &s, unsigned to, unsigned full,
                                   unsigned empty, const kfi_tensor_map *map, int block, int head,
                                   const kfi_attention_origin &o)
{
    constexpr int keys = kfi_attention_tile(tile).keys, bytes = keys * dim * 2;
    kfi_mbar_wait(empty + 8 * s.index, s.phase);
    kfi_mbar_expect(full + 8 * s.index, bytes);
#pragma unroll
    for (int j = 0; j < dim / 64; ++j)
        kfi_tma_load4(to + s.index * bytes + j * keys * 128, map, full + 8 * s.index, j * 64,
                      o.key + block * keys, head, o.batch, KFI_READ_OFTEN);
}
template <int tile>
KFI_DEVICE void kfi_attention_load_k(const kfi_attention_stage &s, unsigned base,
                                     const kfi_tensor_map *map, int block, int head,
                                     const kfi_attention_origin &o)
{
    constexpr kfi_attention_layout at = kfi_attention_layout_of(tile);
    kfi_attention_load<tile, kfi_attention_tile(tile).dim>(s, base + at.k, base + at.k_full,
                                                           base + at.k_empty, map, block, head, o);
}
template <int tile>
KFI_DEVICE void kfi_attention_load_v(const kfi_attention_stage &s, unsigned base,
                                     const kfi_tensor_map *map, int block, int head,
                                     const kfi_attention_origin &o)
{
    constexpr kfi_attention_layout at = kfi_attention_layout_of(tile);
    kfi_attention_load<tile, kfi_attention_tile(tile).dim_v>(
        s, base + at.v, base + at.v_full, base + at.v_empty, map, block, head, o);
}
template <int tile>
KFI_DEVICE void kfi_attention_load_q(int phase, unsigned base, const kfi_tensor_map *map,
                                     const kfi_attention_work &w, const kfi_attention_origin &o)
{
    constexpr kfi_attention_policy t = kfi_attention_tile(tile);
    constexpr kfi_attention_layout at = kfi_attention_layout_of(tile);
    // The unrolling that ptxas fits in the producer's registers.
    [[maybe_unused]] constexpr int unrolled = t.q_in_registers ? t.consumers : 1;
#pragma unroll unrolled
    for (int group = 0; group < t.consumers; ++group) {
        const unsigned full = base + at.q_full + 8 * group;
        kfi_mbar_wait(base + at.q_empty + 8 * group, phase);
        kfi_mbar_expect(full, t.dim * 128);
#pragma unroll
        for (int j = 0; j < t.dim / 64; ++j)
            kfi_tma_load4(base + group * t.dim * 128 + j * 8192, map, full, j * 64,
                          o.query + (w.row_block * t.consumers + group) * 64, w.head, o.batch,
                          KFI_READ_ONCE);
    }
}
template <int tile, class A>
KFI_DEVICE void kfi_attention_produce(unsigned base, volatile int *slots, const A &all,
                                      const kfi_tensor_map *q, const kfi_tensor_map *k,
                                      const kfi_tensor_map *v)
{
    const kfi_attention &a = kfi_attention_all(all);
    constexpr kfi_attention_policy t = kfi_attention_tile(tile);
    constexpr kfi_attention_layout at = kfi_attention_layout_of(tile);
    kfi_setmaxnreg_dec<t.producer_registers>();
    if (threadIdx.x != 0) return;
    // Waits for an empty stage name the phase before the first one, which counts as complete. K and
    // V of a block have the same position: K is loaded one block ahead.
    kfi_attention_stage s = {0, 1};
    int q_phase = 1, ticket = (int)blockIdx.x;
    for (int it = 0;; ++it) {
        kfi_mbar_wait(base + at.work_empty + 8 * (it % 2), (it / 2 & 1) ^ 1);
        kfi_attention_work w = {-1, 0, 0, 0, -1, {}};
        while (ticket < a.tiles) {
            w = kfi_attention_work_at<tile>(all, ticket);
            if (!kfi_attention_is_empty(all, w)) break;
            ticket = (int)gridDim.x + atomicAdd(a.ticket, 1);
        }
        kfi_attention_publish<tile>(w, base, slots, it, all);
        if (w.row_block < 0) return;
        ticket = (int)gridDim.x + atomicAdd(a.ticket, 1);
        if (w.last < w.first) continue;
        const kfi_attention_origin o = kfi_attention_origin_of(all, w);
        const int head = w.head / a.group;
        // Q in shared memory is free only after the last scores of the tile before.
        if (!t.q_in_registers) kfi_attention_load_k<tile>(s, base, k, w.last, head, o);
        kfi_attention_load_q<tile>(q_phase, base, q, w, o);
        q_phase ^= 1;
        if (t.q_in_registers) kfi_attention_load_k<tile>(s, base, k, w.last, head, o);
        for (int n = w.last; n >= w.first; --n) {
            kfi_attention_stage next = s;
            kfi_attention_advance<tile>(&next);
            if (n > w.first) kfi_attention_load_k<tile>(next, base, k, n - 1, head, o);
            kfi_attention_load_v<tile>(s, base, v, n, head, o);
            s = next;
        }
    }
}

// ---- consumers

struct kfi_attention_consumer {
    unsigned base;
    int group, row;             // consumer; the thread's first row in the tile
    unsigned long long q, k, v; // descriptors of the first stage
    kfi_attention_stage k_stage, v_stage;
    int q_phase;
};
template <int tile>
KFI_DEVICE kfi_attention_consumer kfi_attention_consumer_init(unsigned base, int group)
{
    constexpr kfi_attention_policy t = kfi_attention_tile(tile);
    constexpr kfi_attention_layout at = kfi_attention_layout_of(tile);
    kfi_attention_consumer w;
    w.base = base;
    w.group = group;
    w.row = group * 64 + (int)threadIdx.x % 128 / 32 * 16 + (int)threadIdx.x % 32 / 4;
    w.q = kfi_wgmma_descriptor(base + group * t.dim * 128, 0, 1024);
    w.k = kfi_wgmma_descriptor(base + at.k, 0, 1024);
    w.v = kfi_wgmma_descriptor(base + at.v, t.keys * 128, 1024);
    w.k_stage = w.v_stage = kfi_attention_stage{0, 0};
    w.q_phase = 0;
    return w;
}
// One arrival per warp, after all its lanes have passed the wait for what is released.
KFI_DEVICE void kfi_attention_arrive(unsigned bar)
{
    if (threadIdx.x % 32 == 0) kfi_mbar_arrive(bar);
}
template <int tile> KFI_DEVICE void kfi_attention_wait_k(const kfi_attention_consumer &w)
{
    kfi_mbar_wait(w.base + kfi_attention_layout_of(tile).k_full + 8 * w.k_stage.index,
                  w.k_stage.phase);
}
template <int tile> KFI_DEVICE void kfi_attention_wait_v(const kfi_attention_consumer &w)
{
    kfi_mbar_wait(w.base + kfi_attention_layout_of(tile).v_full + 8 * w.v_stage.index,
                  w.v_stage.phase);
}
template <int tile> KFI_DEVICE void kfi_attention_release_k(kfi_attention_consumer *w)
{
    kfi_attention_arrive(w->base + kfi_attention_layout_of(tile).k_empty + 8 * w->k_stage.index);
    kfi_attention_advance<tile>(&w->k_stage);
}
template <int tile> KFI_DEVICE void kfi_attention_release_v(kfi_attention_consumer *w)
{
    kfi_attention_arrive(w->base + kfi_attention_layout_of(tile).v_empty + 8 * w->v_stage.index);
    kfi_attention_advance<tile>(&w->v_stage);
}
template <int tile> KFI_DEVICE void kfi_attention_release_q(const kfi_attention_consumer &w)
{
    __syncwarp();
    kfi_attention_arrive(w.base + kfi_attention_layout_of(tile).q_empty + 8 * w.group);
}
// Let `count` blocks of the tile pass that this warpgroup does not need.
template <int tile> KFI_DEVICE void kfi_attention_pass_k(kfi_attention_consumer *w, int count)
{
    for (; count > 0; --count) {
        kfi_attention_wait_k<tile>(*w);
        __syncwarp();
        kfi_attention_release_k<tile>(w);
    }
}
template <int tile> KFI_DEVICE void kfi_attention_pass_v(kfi_attention_consumer *w, int count)
{
    for (; count > 0; --count) {
        kfi_attention_wait_v<tile>(*w);
        __syncwarp();
        kfi_attention_release_v<tile>(w);
    }
}

// Issues S = Q . K^T of the current stage of K.
template <int type, int tile>
KFI_DEVICE void kfi_attention_issue_scores(float *s, const unsigned *q,
                                           const kfi_attention_consumer &w)
{
    constexpr kfi_attention_policy t = kfi_attention_tile(tile);
    constexpr int bytes = t.keys * t.dim * 2;
#pragma unroll
    for (int k = 0; k < t.dim / 16; ++k) {
        const unsigned long long of_k =
            w.k + w.k_stage.index * bytes / 16 + (k / 4 * t.keys * 128 + k % 4 * 32) / 16;
        if constexpr (t.q_in_registers)
            kfi_wgmma_registers<t.keys, type>(s, q + 4 * k, of_k, k != 0);
        else
            kfi_wgmma<t.keys, type>(s, w.q + (k / 4 * 8192 + k % 4 * 32) / 16, of_k, k != 0);
    }
    kfi_wgmma_commit();
}
// Issues O += P . V of the current stage of V.
template <int type, int tile>
KFI_DEVICE void kfi_attention_issue_values(float *o, const unsigned *p,
                                           const kfi_attention_consumer &w)
{
    constexpr kfi_attention_policy t = kfi_attention_tile(tile);
    constexpr int bytes = t.keys * t.dim_v * 2;
#pragma unroll
    for (int k = 0; k < t.keys / 16; ++k)
        kfi_wgmma_registers<t.dim_v, type, 1>(o, p + 4 * k,
                                              w.v + w.v_stage.index * bytes / 16 + k * 128, 1);
    kfi_wgmma_commit();
}
template <int n> KFI_DEVICE void kfi_attention_opaque(float *x)
{
#pragma unroll
    for (int i = 0; i < n; ++i) kfi_wgmma_opaque(x[i]);
}

// Loads the warpgroup's 64 rows of Q from shared memory to registers.
template <int tile>
KFI_DEVICE void kfi_attention_q_fragments(unsigned *q, const char *memory,
                                          const kfi_attention_consumer &w)
{
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x % 128 / 32 * 16 + lane % 16;
    const char *const at = memory + w.group * kfi_attention_tile(tile).dim * 128 + row * 128;
#pragma unroll
    for (int k = 0; k < kfi_attention_tile(tile).dim / 16; ++k)
        kfi_ldmatrix<0>(q + 4 * k,
                        at + k / 4 * 8192 + (((k % 4 * 2 + lane / 16) ^ (row & 7)) << 4));
}

// Computes scores and their exponentials of a block, masked.
template <int score, int tile>
KFI_DEVICE bool
kfi_attention_exponentials(float *s, kfi_softmax *state,
                           const kfi_score_block<score, kfi_attention_tile(tile).keys> &loaded,
                           const kfi_attention &a, const kfi_attention_blocks &b, int block,
                           int row)
{
    constexpr int keys = kfi_attention_tile(tile).keys;
    kfi_score_all<score, keys, keys / 2>(s, loaded, a);
    kfi_attention_mask<keys / 2>(s, a, b, block, block, row,
                                 block * keys + 2 * ((int)threadIdx.x % 4));
    return kfi_softmax_block<score, keys>(s, state, a.log2_unit);
}

// Computes a warpgroup's rows of a tile: key blocks b.last down to b.first.
template <int type, int tile, int score>
KFI_DEVICE void kfi_attention_mainloop(float *o, kfi_softmax *state, kfi_attention_consumer *w,
                                       const char *memory, const kfi_attention &a,
                                       const kfi_attention_work &work,
                                       const kfi_attention_blocks &b)
{
    constexpr kfi_attention_policy t = kfi_attention_tile(tile);
    constexpr kfi_tag<score> tag;
    const int row = work.row_block * 64 * t.consumers + w->row, col = 2 * ((int)threadIdx.x % 4);
    float s[t.keys / 2];
    unsigned p[t.keys / 4], q[t.q_in_registers ? t.dim / 4 : 1];
    kfi_score_block<score, t.keys> loaded;
    if constexpr (t.q_in_registers) {
        kfi_attention_q_fragments<tile>(q, memory, *w);
        kfi_attention_release_q<tile>(*w);
    }
    int n = b.last;
    kfi_attention_pass_k<tile>(w, work.last - n);
    kfi_attention_wait_k<tile>(*w);
    kfi_wgmma_fence();
    kfi_attention_issue_scores<type, tile>(s, q, *w);
    kfi_score_load(tag, loaded, a, row, n * t.keys + col, work.head, work.batch);
    kfi_attention_pass_v<tile>(w, work.last - n);
    kfi_wgmma_wait<0>();
    kfi_attention_opaque<t.keys / 2>(s);
    kfi_attention_release_k<tile>(w);
    if (!t.q_in_registers && n == b.first) kfi_attention_release_q<tile>(*w);
    kfi_attention_exponentials<score, tile>(s, state, loaded, a, b, n, row);
    kfi_attention_convert<type, t.keys>(p, s);
    while (n > b.first) {
        --n;
        kfi_attention_wait_k<tile>(*w);
        kfi_wgmma_fence();
        kfi_attention_issue_scores<type, tile>(s, q, *w);
        kfi_score_load(tag, loaded, a, row, n * t.keys + col, work.head, work.batch);
        kfi_attention_wait_v<tile>(*w);
        kfi_wgmma_fence();
        kfi_attention_issue_values<type, tile>(o, p, *w);
        kfi_wgmma_wait<1>(); // the scores
        kfi_attention_opaque<t.keys / 2>(s);
        kfi_attention_release_k<tile>(w);
        if (!t.q_in_registers && n == b.first) kfi_attention_release_q<tile>(*w);
        if (kfi_attention_exponentials<score, tile>(s, state, loaded, a, b, n, row)) {
            kfi_wgmma_wait<0, 1>(); // a copy in each branch, or it moves before the exponentials
            kfi_attention_opaque<t.dim_v / 2>(o);
            kfi_attention_rescale<t.dim_v>(o, *state);
        } else {
            kfi_wgmma_wait<0>();
            kfi_attention_opaque<t.dim_v / 2>(o);
        }
        kfi_attention_opaque<t.keys / 2>(s);
        kfi_attention_release_v<tile>(w);
        kfi_attention_convert<type, t.keys>(p, s);
    }
    kfi_attention_wait_v<tile>(*w);
    kfi_wgmma_fence();
    kfi_attention_issue_values<type, tile>(o, p, *w);
    kfi_wgmma_wait<0>();
    kfi_attention_opaque<t.dim_v / 2>(o);
    kfi_attention_release_v<tile>(w);
    kfi_attention_pass_k<tile>(w, b.first - work.first);
    kfi_attention_pass_v<tile>(w, b.first - work.first);
}

template <int type, int tile, int score, class A>
KFI_DEVICE void kfi_attention_consume(unsigned base, const char *memory, const volatile int *slots,
                                      const A &all, int group)
{
    constexpr kfi_attention_policy t = kfi_attention_tile(tile);
    constexpr kfi_attention_layout at = kfi_attention_layout_of(tile);
    static_assert(64 * (t.consumers - 1) <= t.keys,
                  "kf: a warpgroup skips at most one block at each end of a tile");
    kfi_setmaxnreg_inc<t.consumer_registers>();
    kfi_attention_consumer w = kfi_attention_consumer_init<tile>(base, group);
    for (int it = 0;; ++it) {
        const kfi_attention_work work = kfi_attention_receive<tile>(base, slots, it, all);
        if (work.row_block < 0) return;
        const kfi_attention &a = kfi_attention_of(all, work);
        float o[t.dim_v / 2];
#pragma unroll
        for (int i = 0; i < t.dim_v / 2; ++i) o[i] = 0;
        kfi_softmax state = kfi_softmax_init<score>(a, work.head, kfi_attention_refused(all, work));
        const int begin = (work.row_block * t.consumers + group) * 64;
        const kfi_attention_blocks b =
            kfi_attention_blocks_of<t.keys>(a, begin, kfi_min_i32(begin + 63, a.queries - 1));
        if (work.last >= work.first) {
            kfi_mbar_wait(base + at.q_full + 8 * group, w.q_phase);
            w.q_phase ^= 1;
        }
        bool partial = false;
        if (b.last < b.first) {
            if (work.last >= work.first) kfi_attention_release_q<tile>(w);
            for (int n = work.last; n >= work.first; --n) {
                kfi_attention_pass_k<tile>(&w, 1);
                kfi_attention_pass_v<tile>(&w, 1);
            }
        } else {
            kfi_attention_mainloop<type, tile, score>(o, &state, &w, memory, a, work, b);
            partial = kfi_attention_partial<t.keys>(a, b, begin, kfi_attention_end(all, work));
        }
        const kfi_attention_row_state r = {
            work.row_block * 64 * t.consumers + w.row,
            work.head,
            work.batch,
            b.first * t.keys,
            kfi_min_i32(kfi_attention_end(all, work), (b.last + 1) * t.keys),
            0,
            0};
        kfi_attention_store<type, score, t.dim, t.dim_v>(o, state, a, b, r, partial);
    }
}

// Runs the kernel. Called by all threads.
template <int type, int tile, int score, class A>
KFI_DEVICE void kfi_attention_hopper(const A &a, const kfi_tensor_map *q, const kfi_tensor_map *k,
                                     const kfi_tensor_map *v)
{
    constexpr kfi_attention_policy t = kfi_attention_tile(tile);
    constexpr kfi_attention_layout at = kfi_attention_layout_of(tile);
    char *const memory = kfi_dynamic_1024();
    const unsigned base = kfi_shared_address(memory);
    volatile int *const slots = (volatile int *)(memory + at.slots);
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < t.stages; ++i) {
            kfi_mbar_init(base + at.k_full + 8 * i, 1);
            kfi_mbar_init(base + at.v_full + 8 * i, 1);
            kfi_mbar_init(base + at.k_empty + 8 * i, 4 * t.consumers);
            kfi_mbar_init(base + at.v_empty + 8 * i, 4 * t.consumers);
        }
        for (int i = 0; i < t.consumers; ++i) {
            kfi_mbar_init(base + at.q_full + 8 * i, 1);
            kfi_mbar_init(base + at.q_empty + 8 * i, 4);
        }
        for (int i = 0; i < 2; ++i) {
            kfi_mbar_init(base + at.work_full + 8 * i, 1);
            kfi_mbar_init(base + at.work_empty + 8 * i, 4 * t.consumers);
        }
        kfi_mbar_fence_init();
    }
    __syncthreads();
    if (group == 0)
        kfi_attention_produce<tile>(base, slots, a, q, k, v);
    else
        kfi_attention_consume<type, tile, score>(base, memory, slots, a, group - 1);
}
#endif

template <int type, int tile, int score>
KFI_KERNEL void KFI_ATTENTION_BOUNDS(tile)
    kfk_attention_hopper(const __grid_constant__ kfi_tensor_map q,
                         const __grid_constant__ kfi_tensor_map k,
                         const __grid_constant__ kfi_tensor_map v,
                         const __grid_constant__ kfi_attention a)
{
#if defined(KFI_DEVICE_PASS) && KFI_HOPPER
    kfi_begin();
    kfi_attention_hopper<type, tile, score>(a, &q, &k, &v);
#endif
}
template <int type, int tile, int score>
KFI_KERNEL void KFI_ATTENTION_BOUNDS(tile)
    kfk_attention_hopper_packed(const __grid_constant__ kfi_tensor_map q,
                                const __grid_constant__ kfi_tensor_map k,
                                const __grid_constant__ kfi_tensor_map v,
                                const __grid_constant__ kfi_attention_packed p)
{
#if defined(KFI_DEVICE_PASS) && KFI_HOPPER
    kfi_begin();
    kfi_attention_hopper<type, tile, score>(p, &q, &k, &v);
#endif
}
// Zeroes the ticket.
template <int = 0> KFI_KERNEL void kfk_attention_ticket(int *ticket)
{
#ifdef KFI_DEVICE_PASS
    kfi_begin();
    *ticket = 0;
#endif
}

#endif
