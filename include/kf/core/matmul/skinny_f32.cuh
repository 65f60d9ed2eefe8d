// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/skinny_f32.cuh: matrix products with skinny M (up to 64 rows) of float32 elements
// in layout nt, by mma.sync: 3xTF32 (tf32.cuh), as exact as float FMAs, or one TF32 product.
// Persistent, warp-specialised kernel for sm_90a: TMA pipelines, eight consumer warps, split-K over
// a cluster of 1, 2 or 4 blocks.
//
// The operands are swapped: 64 columns of the result are the M of four mma.sync, the result's rows
// are its N. The weight, nearly all of the traffic, is read once. Each block of a cluster sums its
// part of K in four quarters: (q0 + q1) + (q2 + q3). There is a pipeline per group of quarters:
// four pipelines of a quarter each, or for more than 24 rows two pipelines of two quarters in turn.
// A warp accumulates 32 columns and all rows (or half of them) of a pipeline. Partial tiles are
// exchanged through distributed shared memory, in two buffers, and each block reduces its share of
// the columns in the order of K.
//
// Grid: at most one block per SM, 384 threads; a cluster computes every n-th tile. Shared memory:
// kfi_skinny_f32_shared_bytes.
// Callers: kernels of ops (templates) through skinny_f32_host.cuh.
// The order of sums follows from columns, K and batch: a row's bits do not depend on the number of
// rows. Results that are not finite are recomputed by FMAs, except with one TF32 product.
#ifndef KF_CORE_MATMUL_SKINNY_F32_CUH
#define KF_CORE_MATMUL_SKINNY_F32_CUH

#include "kf/core/matmul/skinny.cuh"
#include "kf/core/matmul/tf32.cuh"

#define KFI_SKINNY_F32_COLS 64       // columns per tile over all products, at most
#define KFI_SKINNY_F32_CONSUMERS 256 // threads
#define KFI_SKINNY_F32_SHARE_BITS 2  // log2 of the blocks that split K, at most
#ifndef KFI_SKINNY_F32_STAGES
#define KFI_SKINNY_F32_STAGES 16 // per pipeline, at most
#endif
#define KFI_SKINNY_F32_SHARED (226 * 1024) // bytes of shared memory per block

// wide: rows that a kernel computes, a multiple of 8 (of 16 above 24).
// Warps that share columns and K, and divide the rows; pipelines of a block; rows of a warp.
KFI_BOTH constexpr int kfi_skinny_f32_groups(int wide) { return wide > 24 ? 2 : 1; }
KFI_BOTH constexpr int kfi_skinny_f32_pipelines(int wide)
{
    return 4 / kfi_skinny_f32_groups(wide);
}
KFI_BOTH constexpr int kfi_skinny_f32_warp_rows(int wide)
{
    return wide / kfi_skinny_f32_groups(wide);
}
// Bytes of B in a stage; of a stage; of a buffer of partial tiles.
KFI_BOTH constexpr int kfi_skinny_f32_b_bytes() { return KFI_SKINNY_F32_COLS * KFI_3XTF32_K * 4; }
KFI_BOTH constexpr int kfi_skinny_f32_stage_bytes(int wide)
{
    return kfi_skinny_f32_b_bytes() + wide * KFI_3XTF32_K * 4;
}
KFI_BOTH constexpr int kfi_skinny_f32_partial_bytes(int wide)
{
    return kfi_skinny_f32_pipelines(wide) * wide *
           (KFI_SKINNY_F32_COLS + (8 << KFI_SKINNY_F32_SHARE_BITS)) * 4;
}
// Stages per pipeline.
KFI_BOTH constexpr int kfi_skinny_f32_stages(int wide)
{
    const int room = KFI_SKINNY_F32_SHARED - 1024 - 2 * kfi_skinny_f32_partial_bytes(wide),
              most =
                  room / (kfi_skinny_f32_pipelines(wide) * (kfi_skinny_f32_stage_bytes(wide) + 16));
    return most < KFI_SKINNY_F32_STAGES ? most : KFI_SKINNY_F32_STAGES;
}
// Includes the padding that aligns stages to 1,024 bytes.
KFI_BOTH constexpr int kfi_skinny_f32_shared_bytes(int wide)
{
    return 1024 + 2 * kfi_skinny_f32_partial_bytes(wide) +
           kfi_skinny_f32_pipelines(wide) * kfi_skinny_f32_stages(wide) *
               (kfi_skinny_f32_stage_bytes(wide) + 16);
}

#ifdef KFI_DEVICE_PASS
#define KFI_SKINNY_F32_BOUNDS                                                                      \
    __launch_bounds__(KFI_HOPPER ? kfi_policy(KFI_TILE_SKINNY_F32).threads : 32, 1)
#else
#define KFI_SKINNY_F32_BOUNDS
#endif

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// State of a warp. Its pipeline is `pipe`; a producer warp without one has an index out of range.
struct kfi_skinny_f32 {
    char *memory;                       // stages
    unsigned stages, full, empty, sums; // shared addresses; full and empty: of this pipeline
    const float *own;                   // the buffer of partial tiles that this tile uses
    int warp, pipe, half, group, rank;  // half: which 32 columns; group: which rows
    int stage, phase, buffer;
    unsigned unit; // next tile
};

// First K-slice of quarter `quarter` of this block.
KFI_DEVICE int kfi_skinny_f32_slice(const kfi_skinny_f32 &f, int quarter, const kfi_gemm &g,
                                    const kfi_gemm_maps &maps)
{
    const int all = (g.depth + KFI_3XTF32_K - 1) / KFI_3XTF32_K;
    return all * (f.rank * 4 + quarter) >> (2 + maps.share_bits);
}
template <int wide> KFI_DEVICE void kfi_skinny_f32_advance(kfi_skinny_f32 *f)
{
    if (++f->stage < kfi_skinny_f32_stages(wide)) return;
    f->stage = 0;
    f->phase ^= 1;
}
// Sets the next tile. Returns false past the last one.
KFI_DEVICE bool kfi_skinny_f32_next_tile(kfi_skinny_f32 *f, kfi_gemm_tile *at, const kfi_gemm &g,
                                         const kfi_gemm_maps &maps)
{
    if (f->unit >= maps.units) return false;
    *at = {};
    at->matrix = kfi_divide(f->unit, g.tiles);
    at->col = (int)(f->unit - (unsigned)at->matrix * (unsigned)g.tiles.d) * maps.tile_cols;
    at->end = g.depth;
    f->unit += gridDim.x >> maps.share_bits;
    return true;
}

// Initialises mbarriers and the state of each warp. Called by all threads, which may not have read
// anything that the previous kernel wrote.
template <int wide> KFI_DEVICE kfi_skinny_f32 kfi_skinny_f32_init(const kfi_gemm_maps &maps)
{
    constexpr int stages = kfi_skinny_f32_stages(wide), groups = kfi_skinny_f32_groups(wide),
                  pipelines = kfi_skinny_f32_pipelines(wide);
    static_assert(stages >= 2 && kfi_skinny_f32_warp_rows(wide) % 8 == 0,
                  "kf: a warp has whole mma.sync, and a pipeline two stages");
    kfi_skinny_f32 f;
    char *const memory = kfi_dynamic();
    const unsigned window = kfi_shared_address(memory);
    f.stages = (window + 1023) & ~1023u;
    f.memory = memory + (f.stages - window);
    f.sums = f.stages + pipelines * stages * kfi_skinny_f32_stage_bytes(wide);
    f.full = f.sums + 2 * kfi_skinny_f32_partial_bytes(wide);
    f.empty = f.full + 8 * pipelines * stages;
    if (threadIdx.x == KFI_SKINNY_F32_CONSUMERS) {
        for (int i = 0; i < pipelines * stages; ++i) {
            kfi_mbar_init(f.full + 8 * i, 1);
            kfi_mbar_init(f.empty + 8 * i, 2 * groups);
        }
        kfi_mbar_fence_init();
    }
    __syncwarp();
    if (maps.share_bits > 0) kfi_cluster_arrive();
    __syncthreads();
    // Warp-uniform, and known to the compiler as such.
    f.warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
    const int producer = f.warp - KFI_SKINNY_F32_CONSUMERS / 32;
    f.half = f.warp & 1;
    f.group = (f.warp >> 1) % groups;
    f.pipe = producer < 0 ? (f.warp >> 1) / groups : producer;
    f.full += 8 * stages * f.pipe;
    f.empty += 8 * stages * f.pipe;
    f.stages += f.pipe * stages * kfi_skinny_f32_stage_bytes(wide);
    f.memory += f.pipe * stages * kfi_skinny_f32_stage_bytes(wide);
    f.own = nullptr;
    f.rank = maps.share_bits > 0 ? kfi_cluster_rank() : 0;
    f.stage = f.phase = f.buffer = 0;
    f.unit = blockIdx.x >> maps.share_bits;
    return f;
}

// ---- producer warps, one per pipeline

// Loads K-slice `slice` of B, of both products, and announces all bytes of the stage.
template <int wide, int products>
KFI_DEVICE void kfi_skinny_f32_load_b(const kfi_skinny_f32 &f, const kfi_gemm_tile &at, int stage,
                                      int slice, const kfi_gemm_maps &maps)
{
    const unsigned to = f.stages + stage * kfi_skinny_f32_stage_bytes(wide),
                   bar = f.full + 8 * stage;
    kfi_mbar_expect(bar, products * maps.tile_cols * KFI_3XTF32_K * 4 + maps.a_bytes);
#pragma unroll
    for (int p = 0; p < products; ++p)
        kfi_tma_load3(to + p * (kfi_skinny_f32_b_bytes() / products), maps.b + p, bar,
                      slice * KFI_3XTF32_K, at.col, (int)at.matrix * maps.batched_b[p],
                      KFI_READ_ONCE);
}
// The box of A has as many rows as the tensor: the stage's other rows hold garbage, and so do the
// accumulators of out-of-range rows, which are never stored.
template <int wide>
KFI_DEVICE void kfi_skinny_f32_load_a(const kfi_skinny_f32 &f, const kfi_gemm_tile &at, int stage,
                                      int slice, const kfi_gemm_maps &maps)
{
    kfi_tma_load3(f.stages + stage * kfi_skinny_f32_stage_bytes(wide) + kfi_skinny_f32_b_bytes(),
                  maps.a, f.full + 8 * stage, slice * KFI_3XTF32_K, 0,
                  (int)at.matrix * maps.batched_a[0], KFI_READ_OFTEN);
}
// Issues the loads of a tile. preloaded: leading K-slices whose B was loaded already.
template <int wide, int products>
KFI_DEVICE void kfi_skinny_f32_produce_tile(kfi_skinny_f32 *f, const kfi_gemm_tile &at, int begin,
                                            int count, int preloaded, const kfi_gemm_maps &maps)
{
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        if (i >= preloaded) {
            kfi_mbar_wait(f->empty + 8 * f->stage, f->phase ^ 1);
            kfi_skinny_f32_load_b<wide, products>(*f, at, f->stage, begin + i, maps);
        }
        kfi_skinny_f32_load_a<wide>(*f, at, f->stage, begin + i, maps);
        kfi_skinny_f32_advance<wide>(f);
    }
}
template <int wide, int products>
KFI_DEVICE void kfi_skinny_f32_produce(kfi_skinny_f32 *f, const kfi_gemm &g,
                                       const kfi_gemm_maps &maps)
{
    constexpr int groups = kfi_skinny_f32_groups(wide);
    kfi_setmaxnreg_dec<kfi_policy(KFI_TILE_SKINNY_F32).producer_registers>();
    if (f->pipe >= kfi_skinny_f32_pipelines(wide)) return;
    const int begin = kfi_skinny_f32_slice(*f, f->pipe * groups, g, maps),
              count = kfi_skinny_f32_slice(*f, (f->pipe + 1) * groups, g, maps) - begin;
    const bool issues = threadIdx.x % 32 == 0;
    kfi_gemm_tile at;
    bool some = kfi_skinny_f32_next_tile(f, &at, g, maps);
    int preloaded = 0;
#ifdef KF_EARLY_WEIGHTS
    preloaded = !some                                 ? 0
                : count < kfi_skinny_f32_stages(wide) ? count
                                                      : kfi_skinny_f32_stages(wide);
    for (int i = 0; issues && i < preloaded; ++i)
        kfi_skinny_f32_load_b<wide, products>(*f, at, i, begin + i, maps);
#endif
    kfi_begin();
    for (; some; some = kfi_skinny_f32_next_tile(f, &at, g, maps)) {
        if (issues)
            kfi_skinny_f32_produce_tile<wide, products>(f, at, begin, count, preloaded, maps);
        preloaded = 0;
        __syncwarp();
        if (maps.share_bits == 0) continue;
        kfi_cluster_wait();
        kfi_cluster_arrive();
    }
    if (maps.share_bits > 0) kfi_cluster_wait();
}

// ---- consumer warps

KFI_DEVICE void kfi_skinny_f32_start_consumer(const kfi_gemm_maps &maps)
{
    kfi_setmaxnreg_inc<kfi_policy(KFI_TILE_SKINNY_F32).consumer_registers>();
    kfi_begin();
    if (maps.share_bits > 0) kfi_cluster_wait(); // all blocks have started
}

// Loads 16 bytes of K of a row or column, and splits them if there are two parts. Element e goes to
// hi[step * e] and lo[step * e].
template <int parts, int step>
KFI_DEVICE void kfi_skinny_f32_load(unsigned *hi, unsigned *lo, const char *from)
{
    alignas(16) float v[4];
    kfi_copy<16>(v, from);
#pragma unroll
    for (int e = 0; e < 4; ++e)
        if (parts > 1)
            kfi_split_tf32(v[e], hi + step * e, lo + step * e);
        else
            hi[step * e] = __float_as_uint(v[e]);
}
// Adds a stage's product, with two parts the smallest products first. made[8 n + 4 m ...]: rows
// 8 n ..., columns 16 m .... b, a: the warp's columns and rows of the stage. K is permuted alike in
// both within groups of 16.
template <int rows, int parts>
KFI_DEVICE void kfi_skinny_f32_multiply(float *made, const char *b, const char *a)
{
    const int line = kfi_3xtf32_fragment_row<0>(0), own = (int)threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        unsigned hi[2][8], lo[2][8], row_hi[4], row_lo[4];
#pragma unroll
        for (int m = 0; m < 4; ++m)
            kfi_skinny_f32_load<parts, 2>(hi[m / 2] + m % 2, lo[m / 2] + m % 2,
                                          b + kfi_3xtf32_offset(m * 8 + line, half * 4 + own));
#pragma unroll
        for (int n = 0; n < rows / 8; ++n) {
            kfi_skinny_f32_load<parts, 1>(row_hi, row_lo,
                                          a + kfi_3xtf32_offset(n * 8 + line, half * 4 + own));
#pragma unroll
            for (int i = 0; i < (parts > 1 ? 6 : 2); ++i) // product, and 8 of the 16 of K
#pragma unroll
                for (int m = 0; m < 2; ++m)
                    kfi_mma_tf32(made + (n * 2 + m) * 4,
                                 (parts > 1 && i < 2 ? lo[m] : hi[m]) + i % 2 * 4,
                                 (i / 2 == 1 ? row_lo : row_hi) + i % 2 * 2);
        }
    }
}
// Accumulates a quarter of K. With two parts each stage starts new tensor core accumulators.
template <int wide, int parts>
KFI_DEVICE void kfi_skinny_f32_quarter(float *sums, kfi_skinny_f32 *f, int count)
{
    constexpr int rows = kfi_skinny_f32_warp_rows(wide);
#pragma unroll
    for (int i = 0; i < rows; ++i) sums[i] = 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        float part[parts > 1 ? rows : 1], *const made = parts > 1 ? part : sums;
        const char *const b = f->memory + f->stage * kfi_skinny_f32_stage_bytes(wide);
        kfi_mbar_wait(f->full + 8 * f->stage, f->phase);
#pragma unroll
        for (int j = 0; j < rows && parts > 1; ++j) part[j] = 0;
        kfi_skinny_f32_multiply<rows, parts>(
            made, b + f->half * (32 * 128), b + kfi_skinny_f32_b_bytes() + f->group * (rows * 128));
#pragma unroll
        for (int j = 0; j < rows && parts > 1; ++j) sums[j] += part[j];
        __syncwarp(); // all lanes have read
        if (threadIdx.x % 32 == 0) kfi_mbar_arrive(f->empty + 8 * f->stage);
        kfi_skinny_f32_advance<wide>(f);
    }
}
// Accumulates this warp's part of a tile: one quarter, or the sum of two.
template <int wide, int parts>
KFI_DEVICE void kfi_skinny_f32_mainloop(float *sums, kfi_skinny_f32 *f, const kfi_gemm &g,
                                        const kfi_gemm_maps &maps)
{
    constexpr int rows = kfi_skinny_f32_warp_rows(wide), groups = kfi_skinny_f32_groups(wide);
    const int first = f->pipe * groups;
    int begin = kfi_skinny_f32_slice(*f, first, g, maps);
#pragma unroll 1
    for (int q = 0; q < groups; ++q) {
        const int end = kfi_skinny_f32_slice(*f, first + q + 1, g, maps);
        float own[rows];
        kfi_skinny_f32_quarter<wide, parts>(own, f, end - begin);
#pragma unroll
        for (int i = 0; i < rows; ++i) sums[i] = q > 0 ? sums[i] + own[i] : own[i];
        begin = end;
    }
}

// Stores partial sums to the blocks that reduce their columns: [block][pipeline][row][column].
// Called by all consumers, which may load fragments afterwards. The next call fills the other
// buffer; the one after it is behind a barrier that all readers of this one pass first.
template <int wide, int products>
KFI_DEVICE void kfi_skinny_f32_store_partial(const float *sums, kfi_skinny_f32 *f,
                                             const kfi_gemm_maps &maps)
{
    constexpr int rows = kfi_skinny_f32_warp_rows(wide), pipelines = kfi_skinny_f32_pipelines(wide),
                  cols = KFI_SKINNY_F32_COLS / products, bytes = kfi_skinny_f32_partial_bytes(wide);
    const int bits = maps.share_bits, pitch = (KFI_SKINNY_F32_COLS >> bits) + 8,
              share_bits = (products > 1 ? 5 : 6) - bits, // log2 of a block's columns per product
        row = f->group * rows + (int)threadIdx.x % 4;
    const unsigned to =
        f->sums + f->buffer * bytes +
        (((f->rank * pipelines + f->pipe) * wide + row) * pitch + kfi_3xtf32_fragment_row<0>(0)) *
            4;
#pragma unroll
    for (int i = 0; i < 4; ++i) { // 8 columns
        const int first = f->half * 32 + i * 8, product = first / cols, col = first % cols,
                  block = col >> share_bits;
        const unsigned own = to + ((product << share_bits) + col - (block << share_bits)) * 4,
                       at = bits > 0 ? kfi_mapa(own, block) : own;
#pragma unroll
        for (int j = 0; j < rows / 4; ++j)
            kfi_store_remote(at + j * 4 * pitch * 4,
                             __float_as_uint(sums[j / 2 * 8 + i * 2 + j % 2]));
    }
    f->own = (const float *)(kfi_dynamic() + (f->sums - kfi_shared_address(kfi_dynamic())) +
                             f->buffer * bytes);
    f->buffer ^= 1;
    if (bits > 0) {
        kfi_cluster_arrive();
        kfi_cluster_wait();
    } else {
        kfi_named_sync<KFI_SKINNY_F32_CONSUMERS>(1);
    }
}
// Finds vector `turn` of a thread, 4 columns; false past the last. left <= 0: out of range.
template <int products>
KFI_DEVICE bool kfi_skinny_f32_lookup(kfi_gemm_coord *coord, int turn, const kfi_skinny_f32 &f,
                                      const kfi_gemm_tile &at, const kfi_gemm &g,
                                      const kfi_gemm_maps &maps)
{
    const int bits = (products > 1 ? 3 : 4) - maps.share_bits, // log2 of a row's vectors
        one = turn * KFI_SKINNY_F32_CONSUMERS + (int)threadIdx.x, row = one >> bits,
              col = (one - (row << bits)) * 4, of_tile = (f.rank << (bits + 2)) + col;
    coord->row = row;
    coord->col = at.col + of_tile;
    coord->left = of_tile < maps.tile_cols ? g.cols - coord->col : 0;
    coord->whole = g.wide && coord->left >= 4;
    coord->at = row * ((KFI_SKINNY_F32_COLS >> maps.share_bits) + 8) + col;
    return row < g.rows;
}
// Loads four results of a product and reduces them over pipelines, then over the cluster's blocks,
// in the order of K. With two parts those that are not finite are recomputed.
template <int wide, int products, int parts>
KFI_DEVICE void kfi_skinny_f32_load_fragment(float *values, const kfi_skinny_f32 &f,
                                             const kfi_gemm_coord &coord, int product,
                                             const kfi_gemm_matrix &a, const kfi_gemm_matrix &b,
                                             const kfi_gemm_tile &at, const kfi_gemm_maps &maps)
{
    constexpr int pipelines = kfi_skinny_f32_pipelines(wide);
    const int bits = maps.share_bits,
              apart = wide * ((KFI_SKINNY_F32_COLS >> bits) + 8); // floats between pipelines
    const float *from = f.own + coord.at + product * (KFI_SKINNY_F32_COLS / products >> bits);
#pragma unroll 1
    for (int block = 0; block < 1 << bits; ++block, from += pipelines * apart) {
        alignas(16) float v[pipelines][4];
#pragma unroll
        for (int p = 0; p < pipelines; ++p) kfi_copy<16>(v[p], from + p * apart);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float sum = v[0][e] + v[1][e];
            if (pipelines > 2) sum += v[pipelines - 2][e] + v[pipelines - 1][e];
            values[e] = block > 0 ? values[e] + sum : sum;
        }
    }
    if (parts > 1) kfi_3xtf32_mend<0, products>(values, coord, product, a, b, at, 1);
}
#endif

#endif
