// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/skinny.cuh: matrix products with skinny M (up to 64 rows), 2-byte elements, by
// wgmma (sm_90a). Warp-specialised kernel with swapped operands: one TMA producer warp, one
// consumer warpgroup, a pipeline as deep as shared memory allows, split-K over a cluster of 1, 2 or
// 4 blocks.
//
// The operands are swapped: 64 columns of the result are the M = 64 of a wgmma, and the result's
// rows are its N = 16 or 64. The weight, nearly all of the traffic, is read once, by all SMs.
// Each block of a cluster accumulates a part of K. Partial tiles are exchanged through distributed
// shared memory, and each block reduces its share of the columns in the order of K.
//
// Grid: one cluster per 64 columns, 64 rows and matrix; 160 threads; up to 3 blocks per SM.
// Callers: kernels of ops (templates) through skinny_host.cuh: forwards of up to 64 rows, and
// small grids of more rows, where tiles of 128 x 128 would leave SMs idle (without split-K then).
// The number of blocks that split K does not depend on the number of rows: neither does a row's
// result.
#ifndef KF_CORE_MATMUL_SKINNY_CUH
#define KF_CORE_MATMUL_SKINNY_CUH

#include "kf/core/matmul/hopper.cuh"
#include "kf/core/ptx/cluster.cuh"

#define KFI_SKINNY_ROWS 64       // rows per block, at most
#define KFI_SKINNY_CONSUMERS 128 // threads
#define KFI_SKINNY_BLOCKS 3      // per SM, at most
// Bytes of B in a stage; of a stage; pitch of a column's partial sums; bytes of a partial tile.
// wide: N of the wgmma, 16 or 64 rows.
KFI_BOTH constexpr int kfi_skinny_b_bytes(void) { return 64 * KFI_PIPELINE_K * 2; }
KFI_BOTH constexpr int kfi_skinny_stage_bytes(int wide, int layout)
{
    return kfi_skinny_b_bytes() + (layout & KFI_A_TRANSPOSED ? 64 : wide) * KFI_PIPELINE_K * 2;
}
KFI_BOTH constexpr int kfi_skinny_pitch(int wide) { return wide + 8; }
KFI_BOTH constexpr int kfi_skinny_partial_bytes(int wide)
{
    return 64 * kfi_skinny_pitch(wide) * 4;
}

#ifdef KFI_DEVICE_PASS
#define KFI_SKINNY_BOUNDS                                                                          \
    __launch_bounds__(KFI_HOPPER ? kfi_policy(KFI_TILE_WGMMA_SKINNY).threads : 32,                 \
                      KFI_SKINNY_BLOCKS)
#else
#define KFI_SKINNY_BOUNDS
#endif

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

struct kfi_skinny {
    unsigned stages, full, empty, sums; // shared addresses
    const float *own; // sums: partial sums [block of the cluster][product][column][row]
    int rank, groups; // groups of 8 columns per product that this block reduces
    int begin, count; // K-slices of this block
};

// Loads a stage's box of B (of both products), then of A. The box of A has as many rows as the
// tensor: out-of-range rows would cost more than real ones. Accumulators of out-of-range rows hold
// garbage and are never stored.
template <int wide, int layout, int products>
KFI_DEVICE void kfi_skinny_load_b(const kfi_skinny &f, const kfi_gemm_tile &at, int i, int stage,
                                  const kfi_gemm_maps &maps)
{
    static_assert(products == 1 || !(layout & KFI_B_TRANSPOSED),
                  "kf: 32 columns of a product do not fill 128 bytes");
    const unsigned to = f.stages + stage * kfi_skinny_stage_bytes(wide, layout),
                   bar = f.full + 8 * stage;
    const int depth = (f.begin + i) * KFI_PIPELINE_K;
    kfi_mbar_expect(bar, kfi_skinny_b_bytes() + maps.a_bytes);
#pragma unroll
    for (int p = 0; p < products; ++p) {
        const int of = (int)at.matrix * maps.batched_b[p];
        if (layout & KFI_B_TRANSPOSED)
            kfi_tma_load3(to, maps.b + p, bar, at.col, depth, of, KFI_READ_ONCE);
        else
            kfi_tma_load3(to + p * (64 / products * 128), maps.b + p, bar, depth, at.col, of,
                          KFI_READ_ONCE);
    }
}
template <int wide, int layout>
KFI_DEVICE void kfi_skinny_load_a(const kfi_skinny &f, const kfi_gemm_tile &at, int i, int stage,
                                  const kfi_gemm_maps &maps)
{
    const unsigned to = f.stages + stage * kfi_skinny_stage_bytes(wide, layout) +
                        kfi_skinny_b_bytes(),
                   bar = f.full + 8 * stage;
    const int depth = (f.begin + i) * KFI_PIPELINE_K, of = (int)at.matrix * maps.batched_a[0];
    if (layout & KFI_A_TRANSPOSED)
        kfi_tma_load3(to, maps.a, bar, at.row, depth, of, KFI_READ_OFTEN);
    else
        kfi_tma_load3(to, maps.a, bar, depth, at.row, of, KFI_READ_OFTEN);
}

// Initialises the pipeline, calls kfi_begin, and issues the first loads. Called by all threads,
// which may not have read anything that the previous kernel wrote.
template <int wide, int layout, int products>
KFI_DEVICE kfi_skinny kfi_skinny_init(const kfi_gemm_tile &at, const kfi_gemm_maps &maps)
{
    kfi_skinny f;
    char *const memory = kfi_dynamic();
    const unsigned window = kfi_shared_address(memory);
    f.stages = (window + 1023) & ~1023u;
    f.sums = f.stages + maps.stages * kfi_skinny_stage_bytes(wide, layout);
    f.full = f.sums + kfi_skinny_partial_bytes(wide);
    f.empty = f.full + 8 * maps.stages;
    f.own = (const float *)(memory + (f.sums - window));
    f.rank = maps.share_bits > 0 ? kfi_cluster_rank() : 0;
    f.groups = 8 / products >> maps.share_bits;
    const int all = (at.end + KFI_PIPELINE_K - 1) / KFI_PIPELINE_K;
    f.begin = all * f.rank >> maps.share_bits;
    f.count = (all * (f.rank + 1) >> maps.share_bits) - f.begin;
    if (threadIdx.x == KFI_SKINNY_CONSUMERS) {
        for (int i = 0; i < maps.stages; ++i) {
            kfi_mbar_init(f.full + 8 * i, 1);
            kfi_mbar_init(f.empty + 8 * i, 1);
        }
        kfi_mbar_fence_init();
    }
    const int first = maps.stages < f.count ? maps.stages : f.count; // loaded without waiting
#ifdef KF_EARLY_WEIGHTS
    if (threadIdx.x == KFI_SKINNY_CONSUMERS)
        for (int i = 0; i < first; ++i)
            kfi_skinny_load_b<wide, layout, products>(f, at, i, i, maps);
#endif
    kfi_begin();
    if (threadIdx.x == KFI_SKINNY_CONSUMERS) {
        for (int i = 0; i < first; ++i) {
#ifndef KF_EARLY_WEIGHTS
            kfi_skinny_load_b<wide, layout, products>(f, at, i, i, maps);
#endif
            kfi_skinny_load_a<wide, layout>(f, at, i, i, maps);
        }
    }
    __syncwarp();
    if (maps.share_bits > 0) kfi_cluster_arrive();
    __syncthreads();
    return f;
}

// ---- producer warp

template <int wide, int layout, int products>
KFI_DEVICE void kfi_skinny_produce(const kfi_skinny &f, const kfi_gemm_tile &at,
                                   const kfi_gemm_maps &maps)
{
    if (threadIdx.x == KFI_SKINNY_CONSUMERS) {
        int stage = 0, phase = 0;
#pragma unroll 1
        for (int i = maps.stages; i < f.count; ++i) {
            kfi_mbar_wait(f.empty + 8 * stage, phase);
            kfi_skinny_load_b<wide, layout, products>(f, at, i, stage, maps);
            kfi_skinny_load_a<wide, layout>(f, at, i, stage, maps);
            if (++stage < maps.stages) continue;
            stage = 0;
            phase ^= 1;
        }
    }
    __syncwarp();
    if (maps.share_bits == 0) return;
    kfi_cluster_wait();
    kfi_cluster_arrive();
    kfi_cluster_wait();
}

// ---- consumer warpgroup

template <int type, int wide, int layout>
KFI_DEVICE void kfi_skinny_mainloop(float *sums, const kfi_skinny &f, const kfi_gemm_maps &maps)
{
    constexpr int turned_a = layout & KFI_A_TRANSPOSED ? 1 : 0,
                  turned_b = layout & KFI_B_TRANSPOSED ? 1 : 0;
    constexpr int step_a = turned_a ? 2048 : 32,
                  step_b = turned_b ? 2048 : 32; // bytes per 16 of K
    const bool tells = threadIdx.x == 0;
    unsigned last = 0;
    int stage = 0, phase = 0;
#pragma unroll 1
    for (int i = 0; i < f.count; ++i) {
        const unsigned at = f.stages + stage * kfi_skinny_stage_bytes(wide, layout);
        const unsigned long long b = kfi_wgmma_descriptor(at, 8192, 1024),
                                 a = kfi_wgmma_descriptor(at + kfi_skinny_b_bytes(), 8192, 1024);
        kfi_mbar_wait(f.full + 8 * stage, phase);
        kfi_wgmma_fence();
#pragma unroll
        for (int q = 0; q < KFI_PIPELINE_K / 16; ++q)
            kfi_wgmma<wide, type, turned_b, turned_a>(sums, b + q * step_b / 16,
                                                      a + q * step_a / 16, i > 0 || q > 0);
        kfi_wgmma_commit();
        kfi_wgmma_wait<1>(); // the previous stage
        if (i > 0 && tells) kfi_mbar_arrive(last);
        last = f.empty + 8 * stage;
        if (++stage < maps.stages) continue;
        stage = 0;
        phase ^= 1;
    }
    kfi_wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < wide / 2; ++i) kfi_wgmma_opaque(sums[i]);
}

// Stores partial sums to the blocks that reduce their columns, 8 columns of one product at a time.
// Called by all consumers, which may load fragments afterwards.
template <int wide, int products>
KFI_DEVICE void kfi_skinny_store_partial(const float *sums, const kfi_skinny &f,
                                         const kfi_gemm_maps &maps)
{
    const int lane = (int)threadIdx.x % 32, bits = maps.share_bits;
    if (bits > 0) kfi_cluster_wait(); // all blocks have started
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int group = (int)threadIdx.x / 32 * 2 + h, product = group / (8 / products),
                  of_product = group % (8 / products);
        const int block = of_product / f.groups,
                  col = (product * f.groups + of_product % f.groups) * 8 + lane / 4;
        const unsigned own =
            f.sums + (((f.rank * 64 >> bits) + col) * kfi_skinny_pitch(wide) + lane % 4 * 2) * 4;
        const unsigned to = bits > 0 ? kfi_mapa(own, block) : own;
#pragma unroll
        for (int j = 0; j < wide / 8; ++j)
            kfi_store_remote(to + j * 32, sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]);
    }
    if (bits > 0) {
        kfi_cluster_arrive();
        kfi_cluster_wait();
    } else {
        kfi_named_sync<KFI_SKINNY_CONSUMERS>(1);
    }
}
// Finds vector `turn` of a thread, 8 columns; false past the last. left <= 0: out of range.
template <int wide>
KFI_DEVICE bool kfi_skinny_lookup(kfi_gemm_coord *coord, int turn, const kfi_skinny &f,
                                  const kfi_gemm_tile &at, const kfi_gemm &g)
{
    const int one = turn * KFI_SKINNY_CONSUMERS + (int)threadIdx.x, row = one % wide,
              group = one / wide;
    coord->row = at.row + row;
    coord->col = at.col + (f.rank * f.groups + group) * 8;
    coord->left = coord->row < g.rows && group < f.groups ? g.cols - coord->col : 0;
    coord->whole = g.wide && coord->left >= 8;
    coord->at = group * 8 * kfi_skinny_pitch(wide) + row;
    return group < f.groups;
}
// Loads a vector of a product and reduces it over the cluster's blocks, in the order of K.
template <int wide>
KFI_DEVICE void kfi_skinny_load_fragment(float *values, const kfi_skinny &f,
                                         const kfi_gemm_coord &coord, int product,
                                         const kfi_gemm_maps &maps)
{
    const float *from = f.own + coord.at + product * f.groups * 8 * kfi_skinny_pitch(wide);
#pragma unroll
    for (int e = 0; e < 8; ++e) values[e] = from[e * kfi_skinny_pitch(wide)];
#pragma unroll 1
    for (int block = 1; block < 1 << maps.share_bits; ++block) {
        from += (64 >> maps.share_bits) * kfi_skinny_pitch(wide);
#pragma unroll
        for (int e = 0; e < 8; ++e) values[e] += from[e * kfi_skinny_pitch(wide)];
    }
}
#endif

#endif
