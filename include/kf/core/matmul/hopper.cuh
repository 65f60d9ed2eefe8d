// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/hopper.cuh: matrix products of 2-byte elements, and of tf32, by wgmma (sm_90a).
// Persistent, warp-specialised kernel with a TMA pipeline of 4 to 6 stages; two consumer
// warpgroups run ping-pong (alternate tiles) or cooperatively (halves of one tile).
//
// Warpgroup 0 produces: one thread loads K-slices of A and B, 128 bytes of each row, into a stage
// and waits on the stage's `empty` mbarrier; `full` counts the bytes that TMA delivers. Warpgroups
// 1 and 2 consume. Ping-pong: each computes every second tile, and an ordering barrier lets one run
// its mainloop while the other runs its epilogue. Cooperative: each computes 64 rows of the tile.
// tf32 takes the same path where K is contiguous in A and B (layout nt): TMA rounds to tf32.
//
// Grid: one block per SM at most, 384 threads; each block computes every gridDim.x-th tile.
// Shared memory: stages, epilogue slabs, mbarriers (kfi_pipeline_shared_bytes).
// Callers: kernels of ops (templates), kfk_gemm_sum_wgmma (sum.cuh); hopper_host.cuh
// launches them where operands are 16-byte aligned and have more than 64 rows.
// Every tile accumulates K in the same order, in float: results do not depend on the tile.
#ifndef KF_CORE_MATMUL_HOPPER_CUH
#define KF_CORE_MATMUL_HOPPER_CUH

#include "kf/core/matmul/tile.cuh"
#include "kf/core/wgmma.cuh"

#define KFI_SLAB_BYTES 2048 // 16 rows of at most 64 results of 2 bytes, swizzled as TMA expects
#define KFI_PIPELINE_K 64   // a stage's row has 128 bytes: 64 elements of 2 bytes, 32 of tf32
#define KFI_PIPELINE_SLAB_COLS 64 // columns of the 16 rows that a warp's epilogue takes at a time
#define KFI_PIPELINE_PER_THREAD (16 * KFI_PIPELINE_SLAB_COLS / 32) // accumulators of those

KFI_BOTH constexpr int kfi_pipeline_warpgroup_rows(int tile)
{
    return kfi_policy(tile).cooperative ? 64 : kfi_policy(tile).rows;
}
KFI_BOTH constexpr int kfi_pipeline_a_bytes(int tile) // A's part of a stage
{
    return kfi_policy(tile).rows * KFI_PIPELINE_K * 2;
}
KFI_BOTH constexpr int kfi_pipeline_stage_bytes(int tile)
{
    return kfi_pipeline_a_bytes(tile) + kfi_policy(tile).cols * KFI_PIPELINE_K * 2;
}
KFI_BOTH constexpr int kfi_pipeline_slabs_across(int tile)
{
    return kfi_policy(tile).cols / kfi_policy(tile).slab_cols;
}
KFI_BOTH constexpr int kfi_pipeline_slabs(int tile) // per warp
{
    return kfi_pipeline_warpgroup_rows(tile) / 64 * kfi_pipeline_slabs_across(tile);
}
// Bytes of all warps' slabs, and of the tile's bias for both consumer warpgroups.
KFI_BOTH constexpr int kfi_slab_bytes(int tile)
{
    return kfi_policy(tile).slab_buffers > 0
               ? 8 * kfi_policy(tile).slab_buffers * KFI_SLAB_BYTES + 2 * kfi_policy(tile).cols * 2
               : 0;
}
// Includes the padding that aligns stages to 1,024 bytes.
KFI_BOTH constexpr int kfi_pipeline_shared_bytes(int tile)
{
    return 1024 + kfi_policy(tile).stages * (kfi_pipeline_stage_bytes(tile) + 2 * 8) +
           kfi_slab_bytes(tile);
}

// Tensor maps of the operands: of two products that share A, or of the `terms` products that are
// summed (2 in gradients of two products, else 1). batched_*: 1, or 0 where all matrices of the
// batch share the operand.
struct kfi_gemm_maps {
    kfi_tensor_map a[2], b[2];
    int batched_a[2], batched_b[2], terms;
    unsigned units; // work units: tiles of all matrices and splits
    // skinny.cuh: pipeline stages (at least 2); bytes of A per stage; 2^share_bits blocks of a
    // cluster split K
    int stages, a_bytes, share_bits;
    int tile_cols; // skinny_f32.cuh: columns of a tile, per product
    // Results of 2 bytes, in boxes of a slab.
    kfi_tensor_map results[2];
    int batched_results[2];
};

// Without wgmma a kernel's code is empty and its launch bound is one warp. The host recognises it
// by that (kfi_has_wgmma).
#ifdef KFI_DEVICE_PASS
#define KFI_PIPELINE_BOUNDS(tile) __launch_bounds__(KFI_HOPPER ? kfi_policy(tile).threads : 32, 1)
#else
#define KFI_PIPELINE_BOUNDS(tile)
#endif

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// Pipeline state of a warpgroup.
struct kfi_pipeline {
    unsigned stages, full, empty; // shared addresses; full and empty: mbarriers, 8 bytes each
    unsigned slabs, row_values;   // shared addresses of this warp's slabs, this warpgroup's bias
    int slabs_used,
        preloaded; // slabs stored, which select a buffer; stages loaded by kfi_pipeline_init
    int group;     // 0: producer, 1 and 2: consumers
    int count, next_count; // K-slices of this tile, and of the other warpgroup's next tile
    int stage, phase;
    unsigned unit; // next work unit
};

// Advances the stage and phase by `count` K-slices.
template <int tile> KFI_DEVICE void kfi_pipeline_advance(kfi_pipeline *r, int count)
{
    constexpr int stages = kfi_policy(tile).stages;
    r->stage += count % stages;
    r->phase ^= count / stages & 1;
    if (r->stage < stages) return;
    r->stage -= stages;
    r->phase ^= 1;
}

// K-slices of one term of a tile.
template <int tile> KFI_DEVICE int kfi_pipeline_slices(const kfi_gemm_tile &at)
{
    return (at.end - at.begin + kfi_policy(tile).stage_k - 1) / kfi_policy(tile).stage_k;
}
// K-slices of all terms of a work unit; 0 past the last unit.
template <int tile, int products>
KFI_DEVICE int kfi_pipeline_tile_slices(unsigned unit, const kfi_gemm &g, const kfi_gemm_maps &maps)
{
    return unit < maps.units
               ? kfi_pipeline_slices<tile>(kfi_gemm_locate<tile, products>(g, unit)) * maps.terms
               : 0;
}

template <int tile, int layout, int products>
KFI_DEVICE void kfi_pipeline_load_slice(const kfi_pipeline &r, const kfi_gemm_tile &at, int term,
                                        int depth, const kfi_gemm_maps &maps);

// Initialises mbarriers and the state of each warpgroup. Called by all threads. ahead: the kernel's
// maps; the tiles of a single wave then issue the first loads before the block synchronises.
template <int tile, int layout = 0, int products = 1>
KFI_DEVICE kfi_pipeline kfi_pipeline_init(const kfi_gemm *g = nullptr,
                                          const kfi_gemm_maps *ahead = nullptr)
{
    kfi_pipeline r;
    r.stages = (kfi_shared_address(kfi_dynamic()) + 1023) & ~1023u;
    constexpr int stages = kfi_policy(tile).stages;
    r.slabs = r.stages + stages * kfi_pipeline_stage_bytes(tile);
    r.full = r.slabs + kfi_slab_bytes(tile);
    r.empty = r.full + 8 * stages;
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; ++i) {
            kfi_mbar_init(r.full + 8 * i, 1);
            kfi_mbar_init(r.empty + 8 * i, kfi_policy(tile).cooperative ? 2 : 1);
        }
        kfi_mbar_fence_init();
    }
    r.preloaded = r.stage = r.phase = 0;
    if (kfi_policy(tile).producer_registers == 0 && ahead && threadIdx.x == 0) {
        const kfi_gemm_tile at = kfi_gemm_locate<tile, products>(*g, blockIdx.x);
        const int each = kfi_pipeline_slices<tile>(at);
        for (; r.preloaded < each && r.preloaded < stages; ++r.preloaded) {
            r.stage = r.preloaded;
            kfi_pipeline_load_slice<tile, layout, products>(
                r, at, 0, at.begin + r.preloaded * kfi_policy(tile).stage_k, *ahead);
        }
        r.stage = 0;
        kfi_pipeline_advance<tile>(&r, r.preloaded);
    }
    __syncthreads();
    // Warp-uniform, and known to the compiler as such.
    r.group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0) - 4;
    r.row_values = r.slabs + 8 * kfi_policy(tile).slab_buffers * KFI_SLAB_BYTES +
                   (r.group - 1) * kfi_policy(tile).cols * 2;
    r.slabs += warp * kfi_policy(tile).slab_buffers * KFI_SLAB_BYTES;
    r.count = r.next_count = r.slabs_used = 0;
    r.unit = blockIdx.x;
    return r;
}

// ---- producer warpgroup

// Loads one K-slice of A and B into the current stage. depth: its first element of K.
template <int tile, int layout, int products>
KFI_DEVICE void kfi_pipeline_load_slice(const kfi_pipeline &r, const kfi_gemm_tile &at, int term,
                                        int depth, const kfi_gemm_maps &maps)
{
    constexpr int cols = kfi_policy(tile).cols / products;
    static_assert(!(layout & KFI_B_TRANSPOSED) || cols % 64 == 0,
                  "kf: boxes of 64 columns would write behind the stage");
    const unsigned to = r.stages + r.stage * kfi_pipeline_stage_bytes(tile),
                   bar = r.full + 8 * r.stage;
    const kfi_tensor_map *const a = maps.a + term;
    const int of_a = (int)at.matrix * maps.batched_a[term];
    kfi_mbar_expect(bar, kfi_pipeline_stage_bytes(tile));
    if (layout & KFI_A_TRANSPOSED) {
#pragma unroll
        for (int i = 0; i < kfi_policy(tile).rows; i += 64)
            kfi_tma_load3(to + i * 128, a, bar, at.row + i, depth, of_a);
    } else {
        kfi_tma_load3(to, a, bar, depth, at.row, of_a);
    }
#pragma unroll
    for (int p = 0; p < products; ++p) {
        const unsigned own = to + kfi_pipeline_a_bytes(tile) + p * cols * 128;
        const kfi_tensor_map *const b = maps.b + (products > 1 ? p : term);
        const int of_b = (int)at.matrix * maps.batched_b[products > 1 ? p : term];
        if (layout & KFI_B_TRANSPOSED) {
#pragma unroll
            for (int i = 0; i < cols; i += 64)
                kfi_tma_load3(own + i * 128, b, bar, at.col + i, depth, of_b);
        } else {
            kfi_tma_load3(own, b, bar, depth, at.col, of_b);
        }
    }
}
template <int tile, int layout, int products>
KFI_DEVICE void kfi_pipeline_produce(kfi_pipeline *r, const kfi_gemm &g, const kfi_gemm_maps &maps)
{
    if constexpr (kfi_policy(tile).producer_registers > 0)
        kfi_setmaxnreg_dec<kfi_policy(tile).producer_registers>();
    if (threadIdx.x != 0) return;
    for (; r->unit < maps.units; r->unit += gridDim.x) {
        const kfi_gemm_tile at = kfi_gemm_locate<tile, products>(g, r->unit);
        const int each = kfi_pipeline_slices<tile>(at);
        int i = r->preloaded;
        r->preloaded = 0;
#pragma unroll 1
        for (; i < each * maps.terms; ++i) {
            const int term = i >= each;
            kfi_mbar_wait(r->empty + 8 * r->stage, r->phase ^ 1);
            kfi_pipeline_load_slice<tile, layout, products>(
                *r, at, term, at.begin + (i - term * each) * kfi_policy(tile).stage_k, maps);
            kfi_pipeline_advance<tile>(r, 1);
        }
    }
}

// ---- consumer warpgroups

// Ping-pong: warpgroup 2 starts at the second tile and gives the first mainloop to warpgroup 1.
template <int tile, int products>
KFI_DEVICE void kfi_pipeline_start_consumer(kfi_pipeline *r, const kfi_gemm &g,
                                            const kfi_gemm_maps &maps)
{
    if constexpr (kfi_policy(tile).consumer_registers > 0)
        kfi_setmaxnreg_inc<kfi_policy(tile).consumer_registers>();
    r->stage = r->phase = 0; // only thread 0 preloaded; wgmma requires uniform registers
    if (kfi_policy(tile).cooperative || r->group == 1) return;
    kfi_pipeline_advance<tile>(r, kfi_pipeline_tile_slices<tile, products>(r->unit, g, maps));
    r->unit += gridDim.x;
    kfi_named_arrive<256>(1);
}
// Sets the next tile of this warpgroup. Returns false past the last one.
template <int tile, int products>
KFI_DEVICE bool kfi_pipeline_next_tile(kfi_pipeline *r, kfi_gemm_tile *at, const kfi_gemm &g,
                                       const kfi_gemm_maps &maps)
{
    if (r->unit >= maps.units) return false;
    *at = kfi_gemm_locate<tile, products>(g, r->unit);
    r->count = kfi_pipeline_slices<tile>(*at) * maps.terms;
    if (!kfi_policy(tile).cooperative)
        r->next_count = kfi_pipeline_tile_slices<tile, products>(r->unit + gridDim.x, g, maps);
    r->unit += kfi_policy(tile).cooperative ? gridDim.x : 2 * gridDim.x;
    return true;
}

// Issues the wgmma of one stage. first: overwrites the accumulators.
template <int type, int tile, int layout>
KFI_DEVICE void kfi_pipeline_mma_stage(float (*sums)[kfi_policy(tile).cols / 2],
                                       const kfi_pipeline &r, bool first)
{
    constexpr int step_a = layout & KFI_A_TRANSPOSED ? 2048 : 32,
                  step_b = layout & KFI_B_TRANSPOSED ? 2048 : 32; // bytes per quarter of a K-slice
    constexpr int transposed_a = layout & KFI_A_TRANSPOSED ? 1 : 0,
                  transposed_b = layout & KFI_B_TRANSPOSED ? 1 : 0;
    const unsigned at = r.stages + r.stage * kfi_pipeline_stage_bytes(tile),
                   own = kfi_policy(tile).cooperative ? (r.group - 1) * 8192 : 0;
    const unsigned long long a = kfi_wgmma_descriptor(at + own, 8192, 1024),
                             b = kfi_wgmma_descriptor(at + kfi_pipeline_a_bytes(tile), 8192, 1024);
#pragma unroll
    for (int q = 0; q < 4; ++q)
#pragma unroll
        for (int m = 0; m < kfi_pipeline_warpgroup_rows(tile) / 64; ++m)
            kfi_wgmma<kfi_policy(tile).cols, type, transposed_a, transposed_b>(
                sums[m], a + (m * 8192 + q * step_a) / 16, b + q * step_b / 16, !first || q > 0);
}
// Accumulates a tile over K. In ping-pong a named barrier orders the two mainloops: without it a
// consumer could run a whole lap ahead and take an old phase of an mbarrier for its own.
template <int type, int tile, int layout>
KFI_DEVICE void kfi_pipeline_mainloop(float (*sums)[kfi_policy(tile).cols / 2], kfi_pipeline *r)
{
    const bool tells = threadIdx.x % 128 == 0;
    unsigned last = 0;
    if (!kfi_policy(tile).cooperative) kfi_named_sync<256>(r->group);
#pragma unroll 1
    for (int i = 0; i < r->count; ++i) {
        kfi_mbar_wait(r->full + 8 * r->stage, r->phase);
        kfi_wgmma_fence();
        kfi_pipeline_mma_stage<type, tile, layout>(sums, *r, i == 0);
        kfi_wgmma_commit();
        kfi_wgmma_wait<1>(); // the previous stage
        if (i > 0 && tells) kfi_mbar_arrive(last);
        last = r->empty + 8 * r->stage;
        kfi_pipeline_advance<tile>(r, 1);
    }
    if (!kfi_policy(tile).cooperative) kfi_named_arrive<256>(3 - r->group);
    kfi_wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < kfi_pipeline_warpgroup_rows(tile) / 64; ++m)
#pragma unroll
        for (int i = 0; i < kfi_policy(tile).cols / 2; ++i) kfi_wgmma_opaque(sums[m][i]);
    if (tells) kfi_mbar_arrive(last);
    if (!kfi_policy(tile).cooperative) kfi_pipeline_advance<tile>(r, r->next_count);
}

// ---- epilogue with direct stores: vectors of 8 (or 4) accumulators of a row, from 16 rows and
// KFI_PIPELINE_SLAB_COLS columns of a warp, over all products

// Vectors per lane.
template <int products, int vec = 8> KFI_DEVICE constexpr int kfi_pipeline_vectors()
{
    return 16 * (KFI_PIPELINE_SLAB_COLS / products) / vec / 32;
}
// Transposes 32 columns of a row over four lanes by shuffles. On entry v[2 i] and v[2 i + 1] of
// lane t hold columns 8 i + 2 t and the next; on exit they hold columns 8 t + 2 i and the next.
KFI_DEVICE void kfi_pipeline_transpose(float *v)
{
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const bool upper = threadIdx.x & bit;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & bit) continue;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float *const low = v + 2 * i + e, *const high = v + 2 * (i + bit) + e;
                const float come = __shfl_xor_sync(0xffffffffu, upper ? *low : *high, bit);
                *low = upper ? come : *low;
                *high = upper ? *high : come;
            }
        }
    }
}
// Copies the lane's accumulators of slab `number` to `own`, its vectors of results, for direct
// stores. Called by all lanes.
template <int tile, int products>
KFI_DEVICE void kfi_pipeline_store_fragment(float *own, float (*sums)[kfi_policy(tile).cols / 2],
                                            int number)
{
    constexpr int across = kfi_policy(tile).cols / KFI_PIPELINE_SLAB_COLS;
#pragma unroll
    for (int n = 0; n < kfi_pipeline_slabs(tile); ++n) {
        if (n != number) continue;
        // own[16 * (row + 8) + 8 * half of the columns + 2 * group of 8 columns + one of a pair]
#pragma unroll
        for (int i = 0; i < KFI_PIPELINE_PER_THREAD; ++i) {
            const int half = i / 8 % 2, j = i / 2 % 4,
                      col = products > 1 ? half * (kfi_policy(tile).cols / 2) + n % across * 32
                                         : n % across * 64 + half * 32;
            own[i] = sums[n / across][(col + 8 * j) / 2 + i / 16 * 2 + i % 2];
        }
    }
#pragma unroll
    for (int i = 0; i < KFI_PIPELINE_PER_THREAD; i += 8) kfi_pipeline_transpose(own + i);
}
// Finds a vector of a slab. Returns false, with left <= 0, if it is out of range.
template <int tile, int products, int vec = 8>
KFI_DEVICE bool kfi_pipeline_lookup(kfi_gemm_coord *coord, int number, int vector,
                                    const kfi_gemm_tile &at, const kfi_gemm &g)
{
    constexpr int across = kfi_policy(tile).cols / KFI_PIPELINE_SLAB_COLS,
                  wide = KFI_PIPELINE_SLAB_COLS / products;
    const int lane = (int)threadIdx.x % 32, turn = vector / (8 / vec),
              second = products > 1 ? turn : turn / 2;
    coord->row =
        at.row + number / across * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * second;
    coord->col = at.col + number % across * wide + (products > 1 ? 0 : turn % 2 * 32) +
                 lane % 4 * 8 + vector % (8 / vec) * vec;
    coord->left = coord->row < g.rows ? g.cols - coord->col : 0;
    coord->whole = g.wide && coord->left >= vec;
    coord->at = 0;
    return coord->left > 0;
}
template <int products, int vec = 8>
KFI_DEVICE void kfi_pipeline_load_fragment(float *values, const float *own, int vector, int product)
{
    const int turn = vector / (8 / vec);
#pragma unroll
    for (int e = 0; e < vec; ++e)
        values[e] =
            own[(products > 1 ? 2 * turn + product : turn) * 8 + vector % (8 / vec) * vec + e];
}
// Split-K: stores a partial tile (kfi_gemm_store_partial).
template <int tile, int products>
KFI_DEVICE void kfi_pipeline_store_partial(float (*sums)[kfi_policy(tile).cols / 2],
                                           const kfi_gemm_tile &at, const kfi_gemm &g)
{
#pragma unroll 1
    for (int number = 0; number < kfi_pipeline_slabs(tile); ++number) {
        float own[KFI_PIPELINE_PER_THREAD];
        kfi_pipeline_store_fragment<tile, products>(own, sums, number);
#pragma unroll
        for (int turn = 0; turn < kfi_pipeline_vectors<products>(); ++turn) {
            kfi_gemm_coord coord;
            if (!kfi_pipeline_lookup<tile, products>(&coord, number, turn, at, g)) continue;
            alignas(16) float values[8];
#pragma unroll
            for (int p = 0; p < products; ++p) {
                kfi_pipeline_load_fragment<products>(values, own, turn, p);
                kfi_store<32>(
                    kfi_gemm_partial_address<4, products, 8>(coord, at.matrix, at.split, p, g),
                    values);
            }
        }
    }
}
#endif

#endif
