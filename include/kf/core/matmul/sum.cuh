// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/sum.cuh: what gradients of products are made by, in CUDA. Products of tensors as
// they are, which all ops of a dtype share: no activation is in them. And strips: what a kernel of
// an op's own does element by element, and adds up over rows.
#ifndef KF_CORE_MATMUL_SUM_CUH
#define KF_CORE_MATMUL_SUM_CUH

#include "kf/core/matmul/matmul.cuh"

// The tensors of a call, in the order of its arguments: elements from a line to the next, and from
// a matrix to the next.
struct kfi_gemm_tensors {
    void *p[KFI_MAX_TENSORS];
    kf_i64 ld[KFI_MAX_TENSORS], matrix[KFI_MAX_TENSORS];
};

// out = beta * out + the sum of one or two products. Without out the sums are left where
// kfi_gemm::parts says.
struct kfi_gemm_terms {
    const void *a[2], *b[2];
    kf_i64 a_ld[2], a_matrix[2], b_ld[2], b_matrix[2];
    int count;
    void *out;
    kf_i64 out_ld, out_matrix;
    double beta;
};

// Elements that an op's own kernel goes over: a block has some columns and a part of the rows, of
// which a warp takes each eighth.
#define KFI_STRIP_THREADS 256
#define KFI_STRIP_LINES 8
struct kfi_strip {
    kf_i64 rows, cols; // of a matrix
    unsigned strips, parts;
    kf_i64 per;    // rows of a part
    int wide;      // as kfi_gemm::wide
    void *made[2]; // [matrix][row][pitch]: gradients of products, or the left factor; NULL: nobody
                   // wants them
    kf_i64 pitch;
    void *sums; // partial ones: [matrix][part][vector][cols]
    int vectors;
    kfi_gemm dot; // partial sums of a product, as tile.cuh leaves them
};

// A vector of sums over rows, whose parts are added up in their order.
struct kfi_totals {
    const void *parts; // the first; of a matrix, from a part to the next `apart` elements
    kf_i64 apart, count, matrices, cols;
    void *out;
    kf_i64 out_matrix;
    double beta;
};
#define KFI_TOTALS_THREADS 256 // of a block, which has 32 columns

#ifdef KFI_DEVICE_PASS
// Elements of what tensors are made of, and the numbers that are computed with.
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
// Where sums go, of a row: to = beta * to + values.
template <int of, int vec>
KFI_DEVICE void kfi_gemm_keep(typename kfi_real<kfi_of_real(of)>::type *values,
                              const kfi_gemm_cell &cell, kf_i64 matrix, const kfi_gemm_terms &t)
{
    typedef typename kfi_real<kfi_of_real(of)>::type real;
    constexpr int size = kfi_of_bytes(of);
    char *const to =
        (char *)t.out + (matrix * t.out_matrix + cell.row * t.out_ld + cell.col) * size;
    alignas(16) char stored[vec * size];
    if (t.beta != 0) { // what is there is read for no other
        real old[vec];
        kfi_load_each<size, vec, 1>(stored, to, 0, cell.left, cell.whole);
        kfi_gemm_unpack<of, vec>(old, stored);
#pragma unroll
        for (int e = 0; e < vec; ++e) values[e] += (real)t.beta * old[e];
    }
    kfi_gemm_pack<of, vec>(stored, values);
    kfi_store_each<size, vec, 1>(to, stored, 0, cell.left, cell.whole);
}

// Where a tile leaves its sums: behind tiles that are alone, in a place of its own, as if it were
// the whole matrix.
template <int size> KFI_DEVICE kfi_gemm_at kfi_gemm_apart(kfi_gemm *g, const kfi_gemm_at &at)
{
    kfi_gemm_at own = at;
    if (!g->alone) return own;
    g->rows = g->rows - at.row < KFI_ALONE_TILE ? g->rows - at.row : KFI_ALONE_TILE;
    g->cols = g->cols - at.col < KFI_ALONE_TILE ? g->cols - at.col : KFI_ALONE_TILE;
    g->pitch = KFI_ALONE_TILE;
    g->parts = (char *)g->parts + (kf_i64)at.place * (KFI_ALONE_TILE * KFI_ALONE_TILE * size);
    g->splits = 1;
    own.row = own.col = 0;
    own.split = 0;
    return own;
}
// A vector of such a tile, of which blockIdx.y is the number: the sums of those that share it, in
// the order of the depth. False: there is none.
template <int size, int vec>
KFI_DEVICE bool kfi_gemm_join_shared(typename kfi_real<size>::type *values, kfi_gemm_cell *cell,
                                     const kfi_gemm &g)
{
    typedef typename kfi_real<size>::type real;
    const int one = ((int)blockIdx.x * KFI_JOIN_THREADS + (int)threadIdx.x) * vec;
    const kfi_gemm_at at = kfi_gemm_locate<KFI_TILE_MMA_128x128, 1>(g, g.alone + blockIdx.y);
    static_assert(kfi_policy(KFI_TILE_MMA_128x128).rows == KFI_ALONE_TILE &&
                      kfi_policy(KFI_TILE_MMA_128x128).cols == KFI_ALONE_TILE,
                  "kf: one grid of tiles");
    cell->row = at.row + one / KFI_ALONE_TILE;
    cell->col = at.col + one % KFI_ALONE_TILE;
    cell->left = g.cols - cell->col;
    cell->whole = g.wide && cell->left >= vec;
    cell->at = 0;
    if (cell->row >= g.rows || cell->left <= 0) return false;
    const kf_i64 apart = (kf_i64)gridDim.y * (KFI_ALONE_TILE * KFI_ALONE_TILE);
    const real *from =
        (const real *)g.parts + (kf_i64)blockIdx.y * (KFI_ALONE_TILE * KFI_ALONE_TILE) + one;
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

// A thread's columns, and its rows of the block's part. left: columns; none of a thread that has
// nothing to do.
struct kfi_strip_part {
    kf_i64 matrix, row, end, col, left;
    unsigned part;
    bool whole;
};
template <int vec> KFI_DEVICE kfi_strip_part kfi_strip_find(const kfi_strip &s)
{
    kfi_strip_part at;
    const unsigned strip = blockIdx.x % s.strips, turn = blockIdx.x / s.strips;
    at.part = turn % s.parts;
    at.matrix = turn / s.parts;
    at.col = ((kf_i64)strip * 32 + threadIdx.x % 32) * vec;
    at.left = s.cols - at.col;
    at.whole = s.wide && at.left >= vec;
    at.row = at.part * s.per + threadIdx.x / 32;
    at.end = at.left <= 0 ? 0 : s.rows - at.part * s.per < s.per ? s.rows : (at.part + 1) * s.per;
    return at;
}
KFI_DEVICE kf_i64 kfi_strip_place(const kfi_gemm_tensors &t, int tensor, const kfi_strip_part &at,
                                  kf_i64 row)
{
    return at.matrix * t.matrix[tensor] + row * t.ld[tensor] + at.col;
}
template <int size>
KFI_DEVICE void *kfi_strip_made(const kfi_strip &s, const kfi_strip_part &at, int product,
                                kf_i64 row)
{
    return (char *)s.made[product] + ((at.matrix * s.rows + row) * s.pitch + at.col) * size;
}
// The product at a vector's place.
template <int size, int vec>
KFI_DEVICE void kfi_strip_dot(typename kfi_real<size>::type *values, const kfi_strip &s,
                              const kfi_strip_part &at, kf_i64 row)
{
    const kfi_gemm_cell cell = {(int)row, (int)at.col, 0, false, 0};
    if (s.dot.parts) {
        kfi_gemm_join<size, 1, vec>(values, cell, at.matrix, 0, s.dot);
    } else {
#pragma unroll
        for (int e = 0; e < vec; ++e) values[e] = 0;
    }
}
// Adds a block's sums up, in the order of its warps. All threads come here.
template <int size, int vec>
KFI_DEVICE void kfi_strip_leave(const typename kfi_real<size>::type *sums, const kfi_strip &s,
                                const kfi_strip_part &at, int vector)
{
    typedef typename kfi_real<size>::type real;
    __shared__ real buffer[KFI_STRIP_THREADS * vec];
    __syncthreads(); // the one before may still be read
#pragma unroll
    for (int e = 0; e < vec; ++e) buffer[threadIdx.x * vec + e] = sums[e];
    __syncthreads();
    const kf_i64 first = (kf_i64)(blockIdx.x % s.strips) * 32 * vec;
    real *const to =
        (real *)s.sums + ((at.matrix * s.parts + at.part) * s.vectors + vector) * s.cols + first;
    for (int c = (int)threadIdx.x; c < 32 * vec; c += KFI_STRIP_THREADS) {
        real total = buffer[c];
#pragma unroll
        for (int line = 1; line < KFI_STRIP_LINES; ++line) total += buffer[line * 32 * vec + c];
        if (first + c < s.cols) to[c] = total;
    }
}
#endif

#ifndef KFI_DRIVER
// of: what out is made of.
template <int type, int of, int tile, int how, int layout>
KFI_KERNEL void KFI_GEMM_BOUNDS(tile) kfk_gemm_sum(kfi_gemm_terms t, kfi_gemm g)
{
#ifdef KFI_DEVICE_PASS
    constexpr int size = kfi_of_real(type), vec = 16 / kfi_of_bytes(type);
    typedef typename kfi_real<size>::type real;
    kfi_begin();
    if (!kfi_gemm_runs<type, tile>()) return;
    const kfi_gemm_at at = kfi_gemm_locate<tile, 1>(g);
    real sums[kfi_tile_sums(tile)];
#pragma unroll
    for (int i = 0; i < kfi_tile_sums(tile); ++i) sums[i] = 0;
#pragma unroll 1
    for (int i = 0; i < t.count; ++i) {
        const bool second =
            i > 0; // by selection: an array that is read by a variable would be in memory
        const char *const a = (const char *)(second ? t.a[1] : t.a[0]),
                          *const b = (const char *)(second ? t.b[1] : t.b[0]);
        const kf_i64 a_matrix = second ? t.a_matrix[1] : t.a_matrix[0],
                     b_matrix = second ? t.b_matrix[1] : t.b_matrix[0];
        const kfi_gemm_side side_a = {{a + at.matrix * a_matrix * kfi_of_bytes(type), nullptr},
                                      {second ? t.a_ld[1] : t.a_ld[0], 0}};
        const kfi_gemm_side side_b = {{b + at.matrix * b_matrix * kfi_of_bytes(type), nullptr},
                                      {second ? t.b_ld[1] : t.b_ld[0], 0}};
        kfi_gemm_add<type, tile, layout, 1, how>(sums, side_a, side_b, at, g);
    }
    if (at.leaves || !t.out) {
        kfi_gemm in = g;
        const kfi_gemm_at own = kfi_gemm_apart<size>(&in, at);
        kfi_gemm_leave<tile, size, layout, 1, vec>(sums, own, in);
        return;
    }
#pragma unroll 1
    for (int number = 0; number < kfi_warp_rows(tile) / 16; ++number) {
        kfi_gemm_put<tile, size, layout>(sums, number);
#pragma unroll 1
        for (int turn = 0; turn < kfi_gemm_vectors<tile, 1, vec>(); ++turn) {
            kfi_gemm_cell cell;
            if (!kfi_gemm_find<tile, 1, vec>(&cell, number, turn, at, g)) continue;
            alignas(16) real values[vec];
            kfi_gemm_take<tile, size, 1, vec>(values, cell, 0);
            kfi_gemm_keep<of, vec>(values, cell, at.matrix, t);
        }
        __syncwarp();
    }
#endif
}
// By wgmma.
template <int type, int of, int layout>
KFI_KERNEL void KFI_RING_BOUNDS(KFI_TILE_WGMMA_128x128_PINGPONG)
    kfk_gemm_sum_wgmma(kfi_gemm_terms t, kfi_gemm g, const __grid_constant__ kfi_gemm_maps maps)
{
#if defined(KFI_DEVICE_PASS) && KFI_HOPPER
    constexpr int tile =
        type == KFI_OF_TF32 ? KFI_TILE_WGMMA_TF32 : KFI_TILE_WGMMA_128x128_PINGPONG;
    kfi_begin();
    kfi_ring ring = kfi_ring_begin<tile>();
    if (ring.group == 0) return kfi_ring_produce<tile, layout, 1>(&ring, g, maps);
    kfi_ring_consume<tile, 1>(&ring, g, maps);
    kfi_gemm_at at;
    while (kfi_ring_next<tile, 1>(&ring, &at, g, maps)) {
        float sums[kfi_policy(tile).rows / 64][kfi_policy(tile).cols / 2];
        kfi_ring_multiply<type, tile, layout>(sums, &ring);
        if (at.leaves || !t.out) {
            kfi_gemm in = g;
            const kfi_gemm_at own = kfi_gemm_apart<4>(&in, at);
            kfi_ring_leave<tile, 1>(sums, own, in);
            continue;
        }
#pragma unroll 1
        for (int slab = 0; slab < kfi_ring_slabs(tile); ++slab) {
            float own[KFI_RING_OWN];
            kfi_ring_put<tile, 1>(own, sums, slab);
#pragma unroll
            for (int vector = 0; vector < kfi_ring_vectors<1>(); ++vector) {
                kfi_gemm_cell cell;
                if (!kfi_ring_find<tile, 1>(&cell, slab, vector, at, g)) continue;
                alignas(16) float values[8];
                kfi_ring_take<1>(values, own, vector, 0);
                kfi_gemm_keep<of, 8>(values, cell, at.matrix, t);
            }
        }
    }
#endif
}
// Of floats, as the sum of so many of tf32.
template <int layout, int parts>
KFI_KERNEL void KFI_HALVES_BOUNDS kfk_gemm_floats_wgmma(kfi_gemm_terms t, kfi_gemm g,
                                                        const __grid_constant__ kfi_gemm_maps maps)
{
#if defined(KFI_DEVICE_PASS) && KFI_HOPPER
    kfi_begin();
    kfi_halves own = kfi_halves_begin<parts>();
    if (own.group == 3) return kfi_halves_load<layout, 1, parts>(&own, g, maps);
    if (own.group == 2) return kfi_halves_split<layout, 1, parts>(&own, g, maps);
    kfi_more_registers<kfi_policy(KFI_TILE_WGMMA_3XTF32).consumer_registers>();
    kfi_gemm_at at;
    int count;
    while (kfi_halves_next<1>(&own, &at, &count, g, maps)) {
        const kfi_gemm_side a = {{(const float *)t.a[0] + at.matrix * t.a_matrix[0],
                                  (const float *)t.a[1] + at.matrix * t.a_matrix[1]},
                                 {t.a_ld[0], t.a_ld[1]}};
        const kfi_gemm_side b = {{(const float *)t.b[0] + at.matrix * t.b_matrix[0],
                                  (const float *)t.b[1] + at.matrix * t.b_matrix[1]},
                                 {t.b_ld[0], t.b_ld[1]}};
        const bool leaves = at.leaves || !t.out;
        kfi_gemm in = g;
        const kfi_gemm_at there = kfi_gemm_apart<4>(&in, at);
        float sums[KFI_HALVES_SUMS];
        kfi_halves_multiply<layout, parts>(sums, &own, count);
#pragma unroll 1
        for (int slab = 0; slab < kfi_halves_slabs(); ++slab) {
            kfi_halves_put<layout, 1>(sums, own, slab);
#pragma unroll 1
            for (int vector = 0; vector < kfi_halves_vectors(1); ++vector) {
                kfi_gemm_cell cell;
                kfi_halves_find<1>(&cell, slab, vector, at, g);
                if (cell.left <= 0) continue;
                alignas(16) float values[4];
                kfi_halves_take<layout, 1, parts>(values, own, cell, 0, a, b, at, t.count);
                if (leaves) {
                    cell.row += there.row - at.row, cell.col += there.col - at.col;
                    kfi_store<16>(kfi_gemm_part<4, 1, 4>(cell, there.matrix, there.split, 0, in),
                                  values);
                } else
                    kfi_gemm_keep<KFI_OF_F32, 4>(values, cell, at.matrix, t);
            }
            __syncwarp();
        }
    }
#endif
}
// Where blocks share a depth.
template <int type, int of>
KFI_KERNEL void KFI_BOUNDS(KFI_JOIN_THREADS) kfk_gemm_sum_joint(kfi_gemm_terms t, kfi_gemm g)
{
#ifdef KFI_DEVICE_PASS
    constexpr int size = kfi_of_real(type), vec = 16 / kfi_of_bytes(type);
    kfi_begin();
    kfi_gemm_cell cell;
    kf_i64 matrix;
    alignas(16) typename kfi_real<size>::type values[vec];
    if (g.alone) {
        if (!kfi_gemm_join_shared<size, vec>(values, &cell, g)) return;
        matrix = 0;
    } else {
        if (!kfi_gemm_find_joint<vec>(&cell, &matrix, g)) return;
        kfi_gemm_join<size, 1, vec>(values, cell, matrix, 0, g);
    }
    kfi_gemm_keep<of, vec>(values, cell, matrix, t);
#endif
}
// of: what out is made of. A warp has 32 columns and each eighth part, so that a vector of few
// columns, of which there are many parts, does not wait for one after the other; the warps' sums
// are added up in their order. Few additions: float64 costs nothing here.
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
