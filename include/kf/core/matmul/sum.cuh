// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/sum.cuh: kernels of matmul backwards in CUDA that all ops of a dtype share.
//   kfk_gemm_sum, _wgmma     out = beta * out + a . b (+ a2 . b2), plain operands, no activation;
//                            split-K where few tiles would leave SMs idle
//   kfk_gemm_floats_wgmma    the same of float32, by 3xTF32
//   kfk_gemm_sum_reduce      reduces the partial tiles of split-K in the order of the splits
//   kfk_gemm_totals          sums over rows: reduces the partial sums of the elementwise passes
// It also has the device code of elementwise passes (templates): kernels of an op that compute
// gradients per element, with partial sums over rows.
//
// Elementwise pass: a block of 8 warps takes 32 vectors of columns and a part of the rows; each
// warp takes every eighth row. Grid: matrices x row parts x column blocks. Callers: backward.cuh.
#ifndef KF_CORE_MATMUL_SUM_CUH
#define KF_CORE_MATMUL_SUM_CUH

#include "kf/core/matmul/matmul.cuh"

// The tensors of a call, in the order of its arguments. ld, matrix: elements between rows as
// stored, and between matrices.
struct kfi_gemm_tensors {
    void *p[KFI_MAX_TENSORS];
    kf_i64 ld[KFI_MAX_TENSORS], matrix[KFI_MAX_TENSORS];
};

// out = beta * out + the sum of one or two products. NULL out: the product is stored as partial
// sums (kfi_gemm::parts).
struct kfi_gemm_terms {
    const void *a[2], *b[2];
    kf_i64 a_ld[2], a_matrix[2], b_ld[2], b_matrix[2];
    int count;
    void *out;
    kf_i64 out_ld, out_matrix;
    double beta;
};

// Arguments of an elementwise pass.
#define KFI_PASS_THREADS 256
#define KFI_PASS_WARPS 8
struct kfi_gemm_pass {
    kf_i64 rows, cols; // size of a matrix
    unsigned col_blocks, parts;
    kf_i64 per;    // rows per part
    int wide;      // see kfi_gemm::wide
    void *made[2]; // dacc of each product, or the made left factor [matrix][row][pitch]; or NULL
    kf_i64 pitch;
    void *sums; // partial sums over rows [matrix][part][vector][cols]
    int vectors;
    kfi_gemm dot; // the product that the pass reads, as partial sums
};

// A vector of sums over rows.
struct kfi_totals {
    const void *parts; // partial sums, `apart` elements from one to the next
    kf_i64 apart, count, matrices, cols;
    void *out;
    kf_i64 out_matrix;
    double beta;
};
#define KFI_TOTALS_THREADS 256 // block size; a block reduces 32 columns

#ifdef KFI_DEVICE_PASS
// Converts stored elements of type `of` to accumulators, and back.
template <int of, int vec>
KFI_DEVICE void kfi_gemm_unpack(typename kfi_real<kfi_of_real(of)>::type *values, const void *from)
{
    if constexpr (of == KFI_OF_BF16)
        kfi_unpack_bf16<vec>(values, (const kf_bf16 *)from);
    else if constexpr (of == KFI_OF_F16)
        kfi_unpack_f16<vec>(values, (const kf_f16 *)from);
    else
        kfi_copy<kfi_of_bytes(of) * vec>(values, from);
}
template <int of, int vec>
KFI_DEVICE void kfi_gemm_pack(void *to, const typename kfi_real<kfi_of_real(of)>::type *values)
{
    if constexpr (of == KFI_OF_BF16)
        kfi_pack_bf16<vec>((kf_bf16 *)to, values);
    else if constexpr (of == KFI_OF_F16)
        kfi_pack_f16<vec>((kf_f16 *)to, values);
    else
        kfi_copy<kfi_of_bytes(of) * vec>(to, values);
}
// Stores a vector of results: out = beta * out + values.
template <int of, int vec>
KFI_DEVICE void kfi_gemm_store_result(typename kfi_real<kfi_of_real(of)>::type *values,
                                      const kfi_gemm_coord &coord, kf_i64 matrix,
                                      const kfi_gemm_terms &t)
{
    typedef typename kfi_real<kfi_of_real(of)>::type real;
    constexpr int size = kfi_of_bytes(of);
    char *const to =
        (char *)t.out + (matrix * t.out_matrix + coord.row * t.out_ld + coord.col) * size;
    alignas(16) char stored[vec * size];
    if (t.beta != 0) { // beta = 0 does not read out
        real old[vec];
        kfi_load_each<size, vec, 1>(stored, to, 0, coord.left, coord.whole);
        kfi_gemm_unpack<of, vec>(old, stored);
#pragma unroll
        for (int e = 0; e < vec; ++e) values[e] += (real)t.beta * old[e];
    }
    kfi_gemm_pack<of, vec>(stored, values);
    kfi_store_each<size, vec, 1>(to, stored, 0, coord.left, coord.whole);
}

// Returns where a tile stores its partial sums. With whole_tiles it is a dense tile of its own, to
// which g is narrowed.
template <int size>
KFI_DEVICE kfi_gemm_tile kfi_gemm_partial_tile(kfi_gemm *g, const kfi_gemm_tile &at)
{
    kfi_gemm_tile own = at;
    if (!g->whole_tiles) return own;
    g->rows = g->rows - at.row < KFI_PARTIAL_TILE ? g->rows - at.row : KFI_PARTIAL_TILE;
    g->cols = g->cols - at.col < KFI_PARTIAL_TILE ? g->cols - at.col : KFI_PARTIAL_TILE;
    g->pitch = KFI_PARTIAL_TILE;
    g->parts =
        (char *)g->parts + (kf_i64)at.partial_index * (KFI_PARTIAL_TILE * KFI_PARTIAL_TILE * size);
    g->splits = 1;
    own.row = own.col = 0;
    own.split = 0;
    return own;
}
// Reduces a vector of partial tile blockIdx.y over the splits, in the order of K. Returns false if
// it is out of range.
template <int size, int vec>
KFI_DEVICE bool kfi_gemm_reduce_partial_tile(typename kfi_real<size>::type *values,
                                             kfi_gemm_coord *coord, const kfi_gemm &g)
{
    typedef typename kfi_real<size>::type real;
    const int one = ((int)blockIdx.x * KFI_REDUCE_SPLITS_THREADS + (int)threadIdx.x) * vec;
    const kfi_gemm_tile at =
        kfi_gemm_locate<KFI_TILE_MMA_128x128, 1>(g, g.whole_tiles + blockIdx.y);
    static_assert(kfi_policy(KFI_TILE_MMA_128x128).rows == KFI_PARTIAL_TILE &&
                      kfi_policy(KFI_TILE_MMA_128x128).cols == KFI_PARTIAL_TILE,
                  "kf: one grid of tiles");
    coord->row = at.row + one / KFI_PARTIAL_TILE;
    coord->col = at.col + one % KFI_PARTIAL_TILE;
    coord->left = g.cols - coord->col;
    coord->whole = g.wide && coord->left >= vec;
    coord->at = 0;
    if (coord->row >= g.rows || coord->left <= 0) return false;
    const kf_i64 apart = (kf_i64)gridDim.y * (KFI_PARTIAL_TILE * KFI_PARTIAL_TILE);
    const real *from =
        (const real *)g.parts + (kf_i64)blockIdx.y * (KFI_PARTIAL_TILE * KFI_PARTIAL_TILE) + one;
    alignas(16) real part[vec];
    kfi_copy<size * vec>(values, from);
    for (unsigned split = 1; split < g.splits; ++split) {
        from += apart;
        kfi_copy<size * vec>(part, from);
#pragma unroll
        for (int e = 0; e < vec; ++e) values[e] += part[e];
    }
    return true;
}

// Columns and rows of a thread in an elementwise pass. left: columns from col on; <= 0: none.
struct kfi_pass_part {
    kf_i64 matrix, row, end, col, left;
    unsigned part;
    bool whole;
};
template <int vec> KFI_DEVICE kfi_pass_part kfi_pass_lookup(const kfi_gemm_pass &s)
{
    kfi_pass_part at;
    const unsigned col_block = blockIdx.x % s.col_blocks, turn = blockIdx.x / s.col_blocks;
    at.part = turn % s.parts;
    at.matrix = turn / s.parts;
    at.col = ((kf_i64)col_block * 32 + threadIdx.x % 32) * vec;
    at.left = s.cols - at.col;
    at.whole = s.wide && at.left >= vec;
    at.row = at.part * s.per + threadIdx.x / 32;
    at.end = at.left <= 0 ? 0 : s.rows - at.part * s.per < s.per ? s.rows : (at.part + 1) * s.per;
    return at;
}
KFI_DEVICE kf_i64 kfi_pass_offset(const kfi_gemm_tensors &t, int tensor, const kfi_pass_part &at,
                                  kf_i64 row)
{
    return at.matrix * t.matrix[tensor] + row * t.ld[tensor] + at.col;
}
template <int size>
KFI_DEVICE void *kfi_pass_output(const kfi_gemm_pass &s, const kfi_pass_part &at, int product,
                                 kf_i64 row)
{
    return (char *)s.made[product] + ((at.matrix * s.rows + row) * s.pitch + at.col) * size;
}
// Loads the pass's product at a vector, reduced over its splits; zeros if there is none.
template <int size, int vec>
KFI_DEVICE void kfi_pass_load_product(typename kfi_real<size>::type *values, const kfi_gemm_pass &s,
                                      const kfi_pass_part &at, kf_i64 row)
{
    const kfi_gemm_coord coord = {(int)row, (int)at.col, 0, false, 0};
    if (s.dot.parts) {
        kfi_gemm_reduce_partials<size, 1, vec>(values, coord, at.matrix, 0, s.dot);
    } else {
#pragma unroll
        for (int e = 0; e < vec; ++e) values[e] = 0;
    }
}
// Reduces a block's sums over its warps, in their order, and stores them. Called by all threads.
template <int size, int vec>
KFI_DEVICE void kfi_pass_store_partial(const typename kfi_real<size>::type *sums,
                                       const kfi_gemm_pass &s, const kfi_pass_part &at, int vector)
{
    typedef typename kfi_real<size>::type real;
    __shared__ real buffer[KFI_PASS_THREADS * vec];
    __syncthreads(); // the previous call may still read
#pragma unroll
    for (int e = 0; e < vec; ++e) buffer[threadIdx.x * vec + e] = sums[e];
    __syncthreads();
    const kf_i64 first = (kf_i64)(blockIdx.x % s.col_blocks) * 32 * vec;
    real *const to =
        (real *)s.sums + ((at.matrix * s.parts + at.part) * s.vectors + vector) * s.cols + first;
    for (int c = (int)threadIdx.x; c < 32 * vec; c += KFI_PASS_THREADS) {
        real total = buffer[c];
#pragma unroll
        for (int line = 1; line < KFI_PASS_WARPS; ++line) total += buffer[line * 32 * vec + c];
        if (first + c < s.cols) to[c] = total;
    }
}
#endif

#ifndef KFI_DRIVER
// of: dtype of out.
template <int type, int of, int tile, int how, int layout>
KFI_KERNEL void KFI_GEMM_BOUNDS(tile) kfk_gemm_sum(kfi_gemm_terms t, kfi_gemm g)
{
#ifdef KFI_DEVICE_PASS
    constexpr int size = kfi_of_real(type), vec = 16 / kfi_of_bytes(type);
    typedef typename kfi_real<size>::type real;
    kfi_begin();
    if (!kfi_gemm_runs<type, tile>()) return;
    const kfi_gemm_tile at = kfi_gemm_locate<tile, 1>(g);
    real sums[kfi_tile_accumulators(tile)];
#pragma unroll
    for (int i = 0; i < kfi_tile_accumulators(tile); ++i) sums[i] = 0;
#pragma unroll 1
    for (int i = 0; i < t.count; ++i) {
        const bool second = i > 0; // selections: an indexed array would be in local memory
        const char *const a = (const char *)(second ? t.a[1] : t.a[0]),
                          *const b = (const char *)(second ? t.b[1] : t.b[0]);
        const kf_i64 a_matrix = second ? t.a_matrix[1] : t.a_matrix[0],
                     b_matrix = second ? t.b_matrix[1] : t.b_matrix[0];
        const kfi_gemm_matrix side_a = {{a + at.matrix * a_matrix * kfi_of_bytes(type), nullptr},
                                        {second ? t.a_ld[1] : t.a_ld[0], 0}};
        const kfi_gemm_matrix side_b = {{b + at.matrix * b_matrix * kfi_of_bytes(type), nullptr},
                                        {second ? t.b_ld[1] : t.b_ld[0], 0}};
        kfi_gemm_add<type, tile, layout, 1, how>(sums, side_a, side_b, at, g);
    }
    if (at.partial || !t.out) {
        kfi_gemm in = g;
        const kfi_gemm_tile own = kfi_gemm_partial_tile<size>(&in, at);
        kfi_gemm_store_partial<tile, size, layout, 1, vec>(sums, own, in);
        return;
    }
#pragma unroll 1
    for (int number = 0; number < kfi_warp_rows(tile) / 16; ++number) {
        kfi_gemm_store_fragment<tile, size, layout>(sums, number);
#pragma unroll 1
        for (int turn = 0; turn < kfi_gemm_vectors<tile, 1, vec>(); ++turn) {
            kfi_gemm_coord coord;
            if (!kfi_gemm_lookup<tile, 1, vec>(&coord, number, turn, at, g)) continue;
            alignas(16) real values[vec];
            kfi_gemm_load_fragment<tile, size, 1, vec>(values, coord, 0);
            kfi_gemm_store_result<of, vec>(values, coord, at.matrix, t);
        }
        __syncwarp();
    }
#endif
}
template <int type, int of, int layout>
KFI_KERNEL void KFI_PIPELINE_BOUNDS(KFI_TILE_WGMMA_128x128_PINGPONG)
    kfk_gemm_sum_wgmma(kfi_gemm_terms t, kfi_gemm g, const __grid_constant__ kfi_gemm_maps maps)
{
#if defined(KFI_DEVICE_PASS) && KFI_HOPPER
    constexpr int tile =
        type == KFI_OF_TF32 ? KFI_TILE_WGMMA_TF32 : KFI_TILE_WGMMA_128x128_PINGPONG;
    kfi_begin();
    kfi_pipeline ring = kfi_pipeline_init<tile>();
    if (ring.group == 0) return kfi_pipeline_produce<tile, layout, 1>(&ring, g, maps);
    kfi_pipeline_start_consumer<tile, 1>(&ring, g, maps);
    kfi_gemm_tile at;
    while (kfi_pipeline_next_tile<tile, 1>(&ring, &at, g, maps)) {
        float sums[kfi_policy(tile).rows / 64][kfi_policy(tile).cols / 2];
        kfi_pipeline_mainloop<type, tile, layout>(sums, &ring);
        if (at.partial || !t.out) {
            kfi_gemm in = g;
            const kfi_gemm_tile own = kfi_gemm_partial_tile<4>(&in, at);
            kfi_pipeline_store_partial<tile, 1>(sums, own, in);
            continue;
        }
#pragma unroll 1
        for (int slab = 0; slab < kfi_pipeline_slabs(tile); ++slab) {
            float own[KFI_PIPELINE_PER_THREAD];
            kfi_pipeline_store_fragment<tile, 1>(own, sums, slab);
#pragma unroll
            for (int vector = 0; vector < kfi_pipeline_vectors<1>(); ++vector) {
                kfi_gemm_coord coord;
                if (!kfi_pipeline_lookup<tile, 1>(&coord, slab, vector, at, g)) continue;
                alignas(16) float values[8];
                kfi_pipeline_load_fragment<1>(values, own, vector, 0);
                kfi_gemm_store_result<of, 8>(values, coord, at.matrix, t);
            }
        }
    }
#endif
}
// float32; parts: tf32 numbers per element (2: 3xTF32, 1: tf32).
template <int layout, int parts>
KFI_KERNEL void KFI_3XTF32_BOUNDS kfk_gemm_floats_wgmma(kfi_gemm_terms t, kfi_gemm g,
                                                        const __grid_constant__ kfi_gemm_maps maps)
{
#if defined(KFI_DEVICE_PASS) && KFI_HOPPER
    kfi_begin();
    kfi_3xtf32 own = kfi_3xtf32_init<parts>();
    if (own.group == 3) return kfi_3xtf32_produce<layout, 1, parts>(&own, g, maps);
    if (own.group == 2) return kfi_3xtf32_split_b<layout, 1, parts>(&own, g, maps);
    kfi_setmaxnreg_inc<kfi_policy(KFI_TILE_WGMMA_3XTF32).consumer_registers>();
    kfi_gemm_tile at;
    int count;
    while (kfi_3xtf32_next_tile<1>(&own, &at, &count, g, maps)) {
        const kfi_gemm_matrix a = {{(const float *)t.a[0] + at.matrix * t.a_matrix[0],
                                    (const float *)t.a[1] + at.matrix * t.a_matrix[1]},
                                   {t.a_ld[0], t.a_ld[1]}};
        const kfi_gemm_matrix b = {{(const float *)t.b[0] + at.matrix * t.b_matrix[0],
                                    (const float *)t.b[1] + at.matrix * t.b_matrix[1]},
                                   {t.b_ld[0], t.b_ld[1]}};
        const bool leaves = at.partial || !t.out;
        kfi_gemm in = g;
        const kfi_gemm_tile there = kfi_gemm_partial_tile<4>(&in, at);
        float sums[KFI_3XTF32_ACCUMULATORS];
        kfi_3xtf32_mainloop<layout, parts>(sums, &own, count);
#pragma unroll 1
        for (int slab = 0; slab < kfi_3xtf32_slabs(); ++slab) {
            kfi_3xtf32_store_fragment<layout, 1>(sums, own, slab);
#pragma unroll 1
            for (int vector = 0; vector < kfi_3xtf32_vectors(1); ++vector) {
                kfi_gemm_coord coord;
                kfi_3xtf32_lookup<1>(&coord, slab, vector, at, g);
                if (coord.left <= 0) continue;
                alignas(16) float values[4];
                kfi_3xtf32_load_fragment<layout, 1, parts>(values, own, coord, 0, a, b, at,
                                                           t.count);
                if (leaves) {
                    coord.row += there.row - at.row, coord.col += there.col - at.col;
                    kfi_store<16>(
                        kfi_gemm_partial_address<4, 1, 4>(coord, there.matrix, there.split, 0, in),
                        values);
                } else
                    kfi_gemm_store_result<KFI_OF_F32, 4>(values, coord, at.matrix, t);
            }
            __syncwarp();
        }
    }
#endif
}
// Reduces partial tiles.
template <int type, int of>
KFI_KERNEL void KFI_BOUNDS(KFI_REDUCE_SPLITS_THREADS)
    kfk_gemm_sum_reduce(kfi_gemm_terms t, kfi_gemm g)
{
#ifdef KFI_DEVICE_PASS
    constexpr int size = kfi_of_real(type), vec = 16 / kfi_of_bytes(type);
    kfi_begin();
    kfi_gemm_coord coord;
    kf_i64 matrix;
    alignas(16) typename kfi_real<size>::type values[vec];
    if (g.whole_tiles) {
        if (!kfi_gemm_reduce_partial_tile<size, vec>(values, &coord, g)) return;
        matrix = 0;
    } else {
        if (!kfi_gemm_lookup_reduced<vec>(&coord, &matrix, g)) return;
        kfi_gemm_reduce_partials<size, 1, vec>(values, coord, matrix, 0, g);
    }
    kfi_gemm_store_result<of, vec>(values, coord, matrix, t);
#endif
}
// Reduces partial sums over rows. of: dtype of out. A warp takes 32 columns and every eighth part,
// so that narrow vectors with many parts are reduced in parallel; the warps' sums are added in
// their order, in float64.
template <int type, int of>
KFI_KERNEL void KFI_BOUNDS(KFI_TOTALS_THREADS) kfk_gemm_totals(kfi_totals t)
{
#ifdef KFI_DEVICE_PASS
    typedef typename kfi_real<kfi_of_real(type)>::type real;
    constexpr int warps = KFI_TOTALS_THREADS / 32;
    __shared__ double sums[KFI_TOTALS_THREADS];
    kfi_begin();
    const kf_i64 one = (kf_i64)blockIdx.x * 32 + threadIdx.x % 32, matrix = one / t.cols,
                 col = one - matrix * t.cols;
    const bool there = matrix < t.matrices;
    const real *const from = (const real *)t.parts + matrix * t.count * t.apart + col;
    double total = 0;
#pragma unroll 8
    for (kf_i64 part = threadIdx.x / 32; part < (there ? t.count : 0); part += warps)
        total += (double)from[part * t.apart];
    sums[threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.x >= 32 || !there) return;
#pragma unroll
    for (int warp = 1; warp < warps; ++warp) total += sums[warp * 32 + threadIdx.x];
    char *const to = (char *)t.out + (matrix * t.out_matrix + col) * kfi_of_bytes(of);
    real value = (real)total, old;
    if (t.beta != 0) {
        kfi_gemm_unpack<of, 1>(&old, to);
        value += (real)t.beta * old;
    }
    kfi_gemm_pack<of, 1>(to, &value);
#endif
}
#endif

#endif
