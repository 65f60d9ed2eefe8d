// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/skinny.cuh: products of few rows, elements of 2 bytes, by wgmma (sm_90a). The
// operands change places: 64 columns of the result are the 64 rows of a wgmma, and its columns, 16
// or 64 of them, are the result's rows. So the right factor, which is nearly all that there is to
// read, is read once, and by as many blocks as there are.
//
// The blocks of a cluster share the depth of 64 columns. Each sends its partial sums to the block
// that finishes their columns, which adds them up in the order of the depth. How many share depends
// neither on the number of rows nor on what else is read: a row's bits do not.
//
// A warp loads boxes of both factors, 64 of the depth at a time, into a ring of stages, and a
// warpgroup multiplies.
//
// Of more rows a block has 64 of them at a time: where tiles of 128 x 128 would leave most SMs
// without one. Nobody shares a depth then.
#ifndef KF_CORE_MATMUL_SKINNY_CUH
#define KF_CORE_MATMUL_SKINNY_CUH

#include "kf/core/matmul/hopper.cuh"

#define KFI_FEW_ROWS 64 // at most
#define KFI_FEW_MULTIPLY 128
#define KFI_FEW_BLOCKS 3                                                       // of an SM, at most
KFI_BOTH constexpr int kfi_few_right(void) { return 64 * KFI_RING_DEPTH * 2; } // bytes of a stage
KFI_BOTH constexpr int kfi_few_stage(int wide, int layout)
{
    return kfi_few_right() + (layout & KFI_A_TRANSPOSED ? 64 : wide) * KFI_RING_DEPTH * 2;
}
KFI_BOTH constexpr int kfi_few_pitch(int wide) { return wide + 8; } // of a column's sums
KFI_BOTH constexpr int kfi_few_sums(int wide) { return 64 * kfi_few_pitch(wide) * 4; } // bytes

#ifdef KFI_DEVICE_PASS
#define KFI_FEW_BOUNDS                                                                             \
    __launch_bounds__(KFI_HOPPER ? kfi_policy(KFI_TILE_WGMMA_SKINNY).threads : 32, KFI_FEW_BLOCKS)
#else
#define KFI_FEW_BOUNDS
#endif

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

KFI_DEVICE void kfi_prefetch(const void *p)
{
#ifdef KFI_PTX
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#else
    (void)p;
#endif
}

struct kfi_few {
    unsigned stages, full, empty,
        sums;         // addresses; sums: [block of the cluster][product][column][row]
    const float *own; // the same as sums
    int rank, groups; // of 8 columns, of each product, that this block finishes
    int begin, count; // stages of the depth
};

// One stage's box of the right factor, or of those of two products; and of the left one, of as many
// rows as there are: what a box has outside of its tensor costs more than what it has inside. Sums
// of rows that are not there are of what there happened to be, and nobody takes them.
template <int wide, int layout, int products>
KFI_DEVICE void kfi_few_load_right(const kfi_few &f, const kfi_gemm_at &at, int i, int stage,
                                   const kfi_gemm_maps &maps)
{
    static_assert(products == 1 || !(layout & KFI_B_TRANSPOSED),
                  "kf: 32 columns of a product do not fill 128 bytes");
    const unsigned to = f.stages + stage * kfi_few_stage(wide, layout), bar = f.full + 8 * stage;
    const int depth = (f.begin + i) * KFI_RING_DEPTH;
    kfi_mbar_expect(bar, kfi_few_right() + maps.left_bytes);
#pragma unroll
    for (int p = 0; p < products; ++p) {
        const int of = (int)at.matrix * maps.turns_b[p];
        if (layout & KFI_B_TRANSPOSED)
            kfi_tma_load3(to, maps.b + p, bar, at.col, depth, of, KFI_READ_ONCE);
        else
            kfi_tma_load3(to + p * (64 / products * 128), maps.b + p, bar, depth, at.col, of,
                          KFI_READ_ONCE);
    }
}
template <int wide, int layout>
KFI_DEVICE void kfi_few_load_left(const kfi_few &f, const kfi_gemm_at &at, int i, int stage,
                                  const kfi_gemm_maps &maps)
{
    const unsigned to = f.stages + stage * kfi_few_stage(wide, layout) + kfi_few_right(),
                   bar = f.full + 8 * stage;
    const int depth = (f.begin + i) * KFI_RING_DEPTH, of = (int)at.matrix * maps.turns_a[0];
    if (layout & KFI_A_TRANSPOSED)
        kfi_tma_load3(to, maps.a, bar, at.row, depth, of, KFI_READ_OFTEN);
    else
        kfi_tma_load3(to, maps.a, bar, depth, at.row, of, KFI_READ_OFTEN);
}

// All threads come here, before kfi_begin, and may not have read anything that a kernel before this
// one wrote.
template <int wide, int layout, int products>
KFI_DEVICE kfi_few kfi_few_begin(const kfi_gemm_at &at, const kfi_gemm_maps &maps)
{
    kfi_few f;
    char *const memory = kfi_dynamic();
    const unsigned window = kfi_window(memory);
    f.stages = (window + 1023) & ~1023u;
    f.sums = f.stages + maps.stages * kfi_few_stage(wide, layout);
    f.full = f.sums + kfi_few_sums(wide);
    f.empty = f.full + 8 * maps.stages;
    f.own = (const float *)(memory + (f.sums - window));
    f.rank = maps.share_bits > 0 ? kfi_cluster_rank() : 0;
    f.groups = 8 / products >> maps.share_bits;
    const int all = (at.end + KFI_RING_DEPTH - 1) / KFI_RING_DEPTH;
    f.begin = all * f.rank >> maps.share_bits;
    f.count = (all * (f.rank + 1) >> maps.share_bits) - f.begin;
    if (threadIdx.x == KFI_FEW_MULTIPLY) {
        for (int i = 0; i < maps.stages; ++i) {
            kfi_mbar_init(f.full + 8 * i, 1);
            kfi_mbar_init(f.empty + 8 * i, 1);
        }
        kfi_mbar_made();
    }
    const int first =
        maps.stages < f.count ? maps.stages : f.count; // loaded before anybody waits for anybody
#ifdef KF_EARLY_WEIGHTS
    if (threadIdx.x == KFI_FEW_MULTIPLY)
        for (int i = 0; i < first; ++i)
            kfi_few_load_right<wide, layout, products>(f, at, i, i, maps);
#endif
    kfi_begin();
    if (threadIdx.x == KFI_FEW_MULTIPLY) {
        for (int i = 0; i < first; ++i) {
#ifndef KF_EARLY_WEIGHTS
            kfi_few_load_right<wide, layout, products>(f, at, i, i, maps);
#endif
            kfi_few_load_left<wide, layout>(f, at, i, i, maps);
        }
    }
    __syncwarp();
    if (maps.share_bits > 0) kfi_cluster_arrive();
    __syncthreads();
    return f;
}

// ---- the warp that loads

template <int wide, int layout, int products>
KFI_DEVICE void kfi_few_produce(const kfi_few &f, const kfi_gemm_at &at, const kfi_gemm_maps &maps)
{
    if (threadIdx.x == KFI_FEW_MULTIPLY) {
        int stage = 0, phase = 0;
#pragma unroll 1
        for (int i = maps.stages; i < f.count; ++i) {
            kfi_mbar_wait(f.empty + 8 * stage, phase);
            kfi_few_load_right<wide, layout, products>(f, at, i, stage, maps);
            kfi_few_load_left<wide, layout>(f, at, i, stage, maps);
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

// ---- the warpgroup that multiplies

template <int type, int wide, int layout>
KFI_DEVICE void kfi_few_multiply(float *sums, const kfi_few &f, const kfi_gemm_maps &maps)
{
    constexpr int turned_a = layout & KFI_A_TRANSPOSED ? 1 : 0,
                  turned_b = layout & KFI_B_TRANSPOSED ? 1 : 0;
    constexpr int step_a = turned_a ? 2048 : 32,
                  step_b = turned_b ? 2048 : 32; // bytes of 16 of the depth
    const bool tells = threadIdx.x == 0;
    unsigned last = 0;
    int stage = 0, phase = 0;
#pragma unroll 1
    for (int i = 0; i < f.count; ++i) {
        const unsigned at = f.stages + stage * kfi_few_stage(wide, layout);
        const unsigned long long b = kfi_wgmma_operand(at, 8192, 1024),
                                 a = kfi_wgmma_operand(at + kfi_few_right(), 8192, 1024);
        kfi_mbar_wait(f.full + 8 * stage, phase);
        kfi_wgmma_fence();
#pragma unroll
        for (int q = 0; q < KFI_RING_DEPTH / 16; ++q)
            kfi_wgmma<wide, type, turned_b, turned_a>(sums, b + q * step_b / 16,
                                                      a + q * step_a / 16, i > 0 || q > 0);
        kfi_wgmma_commit();
        kfi_wgmma_wait<1>(); // of the stage before
        if (i > 0 && tells) kfi_mbar_arrive(last);
        last = f.empty + 8 * stage;
        if (++stage < maps.stages) continue;
        stage = 0;
        phase ^= 1;
    }
    kfi_wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < wide / 2; ++i) kfi_wgmma_sum(sums[i]);
}

// The sums, to the blocks that finish their columns: 8 of them at a time are one product's and one
// block's. All come here, and may take what there is afterwards.
template <int wide, int products>
KFI_DEVICE void kfi_few_send(const float *sums, const kfi_few &f, const kfi_gemm_maps &maps)
{
    const int lane = (int)threadIdx.x % 32, bits = maps.share_bits;
    if (bits > 0) kfi_cluster_wait(); // all blocks are there
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int group = (int)threadIdx.x / 32 * 2 + h, product = group / (8 / products),
                  of_product = group % (8 / products);
        const int block = of_product / f.groups,
                  col = (product * f.groups + of_product % f.groups) * 8 + lane / 4;
        const unsigned own =
            f.sums + (((f.rank * 64 >> bits) + col) * kfi_few_pitch(wide) + lane % 4 * 2) * 4;
        const unsigned to = bits > 0 ? kfi_mapa(own, block) : own;
#pragma unroll
        for (int j = 0; j < wide / 8; ++j)
            kfi_store_remote(to + j * 32, sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]);
    }
    if (bits > 0) {
        kfi_cluster_arrive();
        kfi_cluster_wait();
    } else {
        kfi_named_sync<KFI_FEW_MULTIPLY>(1);
    }
}
// A thread's vectors of 8 columns, one after the other. left is not positive where there is
// nothing.
template <int wide>
KFI_DEVICE bool kfi_few_find(kfi_gemm_cell *cell, int turn, const kfi_few &f, const kfi_gemm_at &at,
                             const kfi_gemm &g)
{
    const int one = turn * KFI_FEW_MULTIPLY + (int)threadIdx.x, row = one % wide,
              group = one / wide;
    cell->row = at.row + row;
    cell->col = at.col + (f.rank * f.groups + group) * 8;
    cell->left = cell->row < g.rows && group < f.groups ? g.cols - cell->col : 0;
    cell->whole = g.wide && cell->left >= 8;
    cell->at = group * 8 * kfi_few_pitch(wide) + row;
    return group < f.groups;
}
template <int wide>
KFI_DEVICE void kfi_few_take(float *values, const kfi_few &f, const kfi_gemm_cell &cell,
                             int product, const kfi_gemm_maps &maps)
{
    const float *from = f.own + cell.at + product * f.groups * 8 * kfi_few_pitch(wide);
#pragma unroll
    for (int e = 0; e < 8; ++e) values[e] = from[e * kfi_few_pitch(wide)];
#pragma unroll 1
    for (int block = 1; block < 1 << maps.share_bits; ++block) {
        from += (64 >> maps.share_bits) * kfi_few_pitch(wide);
#pragma unroll
        for (int e = 0; e < 8; ++e) values[e] += from[e * kfi_few_pitch(wide)];
    }
}
#endif

#endif
