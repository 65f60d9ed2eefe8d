// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/tf32.cuh: float32 matrix products by 3xTF32 wgmma (sm_90a), as exact as float
// FMAs. Persistent, warp-specialised kernel, 128 x 128 tiles, a 4-stage TMA pipeline: one producer
// warpgroup, one that splits B, two cooperative consumer warpgroups of 64 rows each.
//
// x = hi + lo with two tf32 numbers of 11 bits, and a . b = hi . hi + (hi . lo + lo . hi); lo . lo
// is below the rounding error. Tensor core accumulators lose bits, so that those of each K-slice
// (32 elements) are added to float accumulators. Consumers read A as it arrived and split it in
// registers; warpgroup 2 splits B, in place and behind it; one thread of warpgroup 3 loads both.
// K is permuted identically in A and B within groups of 16, so that each lane reads 16 contiguous
// bytes.
//
// tf32 wgmma requires K-contiguous operands. A transposed operand arrives as four boxes of 32 rows
// or columns: consumers read A from there, two rows at a time; each warp of warpgroup 2 transposes
// a box of B in place.
//
// Infinity times lo = 0 is NaN: results that are not finite are recomputed by FMAs.
//
// parts = 1 (tf32 where an operand is transposed): an element is hi alone, rounded by TMA;
// warpgroup 2 only permutes B, and accumulators are the tensor core's.
//
// Grid: one block per SM at most, 512 threads. Shared memory: kfi_3xtf32_shared_bytes.
// Callers: kernels of ops (templates), kfk_gemm_floats_wgmma (sum.cuh).
#ifndef KF_CORE_MATMUL_TF32_CUH
#define KF_CORE_MATMUL_TF32_CUH

#include "kf/core/matmul/hopper.cuh"

// Per row of a stage: 128 bytes of K. Epilogue: columns of the 16 rows that a warp takes at a time.
#define KFI_3XTF32_K 32
#define KFI_3XTF32_SLAB_COLS 32
#define KFI_3XTF32_PITCH (KFI_3XTF32_SLAB_COLS + 8)
#define KFI_3XTF32_OPERAND_BYTES (128 * KFI_3XTF32_K * 4) // an operand, or a part of it, per stage
#define KFI_3XTF32_ACCUMULATORS 64                        // per thread
#define KFI_3XTF32_STAGES_BYTES (12 * KFI_3XTF32_OPERAND_BYTES)
KFI_BOTH constexpr int kfi_3xtf32_stages(int parts) { return parts > 1 ? 4 : 6; }
// Bytes of a stage: A; B, which its hi replaces; B's lo.
KFI_BOTH constexpr int kfi_3xtf32_stage_bytes(int parts)
{
    return (1 + parts) * KFI_3XTF32_OPERAND_BYTES;
}
// Stages, the warps' slabs, mbarriers, and the padding that aligns stages to 1,024 bytes.
KFI_BOTH constexpr int kfi_3xtf32_shared_bytes()
{
    return 1024 + KFI_3XTF32_STAGES_BYTES + kfi_3xtf32_stages(1) * 3 * 8 +
           8 * 16 * KFI_3XTF32_PITCH * 4;
}

#ifdef KFI_DEVICE_PASS
#define KFI_3XTF32_BOUNDS                                                                          \
    __launch_bounds__(KFI_HOPPER ? kfi_policy(KFI_TILE_WGMMA_3XTF32).threads : 32, 1)
#else
#define KFI_3XTF32_BOUNDS
#endif

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// Pipeline state of a warpgroup.
struct kfi_3xtf32 {
    char *memory; // the stages
    // Shared addresses. A stage has three mbarriers: full (bytes arrived), split (B is split),
    // empty.
    unsigned stages, full, split, empty;
    float *slab; // this warp's part
    int group;   // 0 and 1: consumers, 2: splits B, 3: producer
    int stage, phase;
    unsigned unit; // next work unit
};
template <int parts> KFI_DEVICE void kfi_3xtf32_advance(kfi_3xtf32 *h)
{
    if (++h->stage < kfi_3xtf32_stages(parts)) return;
    h->stage = 0;
    h->phase ^= 1;
}
// K-slices of one term of a tile.
KFI_DEVICE int kfi_3xtf32_slices(const kfi_gemm_tile &at)
{
    return (at.end - at.begin + KFI_3XTF32_K - 1) / KFI_3XTF32_K;
}

// Initialises mbarriers and the state of each warpgroup. Called by all threads.
template <int parts> KFI_DEVICE kfi_3xtf32 kfi_3xtf32_init()
{
    constexpr int stages = kfi_3xtf32_stages(parts);
    static_assert(stages * kfi_3xtf32_stage_bytes(parts) == KFI_3XTF32_STAGES_BYTES,
                  "kf: stages fill the shared memory that is reserved for them");
    kfi_3xtf32 h;
    char *const memory = kfi_dynamic();
    const unsigned window = kfi_shared_address(memory);
    h.stages = (window + 1023) & ~1023u;
    h.memory = memory + (h.stages - window);
    h.full = h.stages + KFI_3XTF32_STAGES_BYTES + 8 * 16 * KFI_3XTF32_PITCH * 4;
    h.split = h.full + 8 * stages;
    h.empty = h.split + 8 * stages;
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; ++i) {
            kfi_mbar_init(h.full + 8 * i, 1);
            kfi_mbar_init(h.split + 8 * i, 4);
            kfi_mbar_init(h.empty + 8 * i, 8);
        }
        kfi_mbar_fence_init();
    }
    __syncthreads();
    // Warp-uniform, and known to the compiler as such.
    h.group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
    h.slab = (float *)(h.memory + KFI_3XTF32_STAGES_BYTES) +
             threadIdx.x / 32 % 8 * (16 * KFI_3XTF32_PITCH);
    h.stage = h.phase = 0;
    h.unit = blockIdx.x;
    return h;
}

// Swizzled offset of 16-byte chunk `chunk` of row `line` of a stage's operand.
KFI_DEVICE int kfi_3xtf32_offset(int line, int chunk)
{
    return line * 128 + ((chunk ^ (line & 7)) << 4);
}

// Splits x = hi + lo into tf32.
KFI_DEVICE void kfi_split_tf32(float x, unsigned *hi, unsigned *lo)
{
    *hi = kfi_tf32(x);
    *lo = kfi_tf32(x - __uint_as_float(*hi));
}

// Sets the next tile and its K-slices. Returns false past the last one.
template <int products>
KFI_DEVICE bool kfi_3xtf32_next_tile(kfi_3xtf32 *h, kfi_gemm_tile *at, int *count,
                                     const kfi_gemm &g, const kfi_gemm_maps &maps)
{
    if (h->unit >= maps.units) return false;
    *at = kfi_gemm_locate<KFI_TILE_WGMMA_3XTF32, products>(g, h->unit);
    *count = kfi_3xtf32_slices(*at) * maps.terms;
    h->unit += gridDim.x;
    return true;
}
// K index, within a group of 16, of element i of chunk j.
KFI_BOTH constexpr int kfi_3xtf32_permuted_k(int layout, int j, int i)
{
    return layout & KFI_A_TRANSPOSED ? j / 2 * 8 + 2 * i + j % 2 : 4 * i + j;
}

// ---- producer warpgroup

// Loads `lines` rows or columns of an operand, 32 of K: one box, or boxes of 32 if transposed.
template <int transposed, int lines>
KFI_DEVICE void kfi_3xtf32_load_operand(unsigned to, const kfi_tensor_map *map, unsigned bar,
                                        int line, int depth, int matrix)
{
    if (transposed) {
#pragma unroll
        for (int i = 0; i < lines; i += 32)
            kfi_tma_load3(to + i * 128, map, bar, line + i, depth, matrix);
    } else {
        kfi_tma_load3(to, map, bar, depth, line, matrix);
    }
}
template <int layout, int products, int parts>
KFI_DEVICE void kfi_3xtf32_produce(kfi_3xtf32 *h, const kfi_gemm &g, const kfi_gemm_maps &maps)
{
    constexpr int cols = 128 / products;
    kfi_setmaxnreg_dec<kfi_policy(KFI_TILE_WGMMA_3XTF32).producer_registers>();
    if (threadIdx.x % 128 != 0) return;
    kfi_gemm_tile at;
    int count;
    while (kfi_3xtf32_next_tile<products>(h, &at, &count, g, maps)) {
        const int each = kfi_3xtf32_slices(at);
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            const unsigned to = h->stages + h->stage * kfi_3xtf32_stage_bytes(parts),
                           bar = h->full + 8 * h->stage;
            const int term = i >= each, depth = at.begin + (i - term * each) * KFI_3XTF32_K;
            kfi_mbar_wait(h->empty + 8 * h->stage, h->phase ^ 1);
            kfi_mbar_expect(bar, 2 * KFI_3XTF32_OPERAND_BYTES);
            kfi_3xtf32_load_operand<layout & KFI_A_TRANSPOSED, 128>(
                to, maps.a + term, bar, at.row, depth, (int)at.matrix * maps.batched_a[term]);
#pragma unroll
            for (int p = 0; p < products; ++p) {
                const int of = products > 1 ? p : term;
                kfi_3xtf32_load_operand<layout & KFI_B_TRANSPOSED, cols>(
                    to + KFI_3XTF32_OPERAND_BYTES + p * cols * 128, maps.b + of, bar, at.col, depth,
                    (int)at.matrix * maps.batched_b[of]);
            }
            kfi_3xtf32_advance<parts>(h);
        }
    }
}

// ---- warpgroup that splits B

// Stores 16 elements of K of a column, split and permuted. half: which 16 of the 32.
template <int layout, int parts>
KFI_DEVICE void kfi_3xtf32_store_split(char *right, int line, int half, const float *f)
{
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        if constexpr (parts == 1) {
            const float4 all = {
                f[kfi_3xtf32_permuted_k(layout, j, 0)], f[kfi_3xtf32_permuted_k(layout, j, 1)],
                f[kfi_3xtf32_permuted_k(layout, j, 2)], f[kfi_3xtf32_permuted_k(layout, j, 3)]};
            *(float4 *)(right + kfi_3xtf32_offset(line, 4 * half + j)) = all;
            continue;
        }
        uint4 hi, lo;
        kfi_split_tf32(f[kfi_3xtf32_permuted_k(layout, j, 0)], &hi.x, &lo.x);
        kfi_split_tf32(f[kfi_3xtf32_permuted_k(layout, j, 1)], &hi.y, &lo.y);
        kfi_split_tf32(f[kfi_3xtf32_permuted_k(layout, j, 2)], &hi.z, &lo.z);
        kfi_split_tf32(f[kfi_3xtf32_permuted_k(layout, j, 3)], &hi.w, &lo.w);
        *(uint4 *)(right + kfi_3xtf32_offset(line, 4 * half + j)) = hi;
        *(uint4 *)(right + KFI_3XTF32_OPERAND_BYTES + kfi_3xtf32_offset(line, 4 * half + j)) = lo;
    }
}
// Splits columns that are contiguous along K.
template <int layout, int parts> KFI_DEVICE void kfi_3xtf32_split_columns(char *right)
{
#pragma unroll
    for (int n = (int)threadIdx.x % 128; n < 256; n += 128) {
        alignas(16) float f[16];
#pragma unroll
        for (int j = 0; j < 4; ++j)
            kfi_copy<16>(f + 4 * j, right + kfi_3xtf32_offset(n / 2, n % 2 * 4 + j));
        kfi_3xtf32_store_split<layout, parts>(right, n / 2, n % 2, f);
    }
}
// Transposes and splits a warp's box, one column per lane.
template <int layout, int parts> KFI_DEVICE void kfi_3xtf32_transpose_split(char *right)
{
    const int lane = (int)threadIdx.x % 32;
    char *const box = right + (int)threadIdx.x % 128 / 32 * 4096;
    float f[KFI_3XTF32_K];
#pragma unroll
    for (int d = 0; d < KFI_3XTF32_K; ++d)
        f[d] = *(const float *)(box + kfi_3xtf32_offset(d, lane / 4) + lane % 4 * 4);
    __syncwarp(); // all lanes have read
    kfi_3xtf32_store_split<layout, parts>(box, lane, 0, f);
    kfi_3xtf32_store_split<layout, parts>(box, lane, 1, f + 16);
}
// The warpgroup's loop over tiles and stages.
template <int layout, int products, int parts>
KFI_DEVICE void kfi_3xtf32_split_b(kfi_3xtf32 *h, const kfi_gemm &g, const kfi_gemm_maps &maps)
{
    kfi_setmaxnreg_dec<72>();
    kfi_gemm_tile at;
    int count;
    while (kfi_3xtf32_next_tile<products>(h, &at, &count, g, maps)) {
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            char *const right =
                h->memory + h->stage * kfi_3xtf32_stage_bytes(parts) + KFI_3XTF32_OPERAND_BYTES;
            kfi_mbar_wait(h->full + 8 * h->stage, h->phase);
            if (layout & KFI_B_TRANSPOSED)
                kfi_3xtf32_transpose_split<layout, parts>(right);
            else
                kfi_3xtf32_split_columns<layout, parts>(right);
            kfi_async_fence();
            __syncwarp();
            if (threadIdx.x % 32 == 0) kfi_mbar_arrive(h->split + 8 * h->stage);
            kfi_3xtf32_advance<parts>(h);
        }
    }
}

// ---- consumer warpgroups

// First or second row of a lane within its warp's 16. The rows are permuted against wgmma's order:
// without transposition for conflict-free 16-byte reads, with it so that both rows are adjacent.
template <int layout> KFI_DEVICE int kfi_3xtf32_fragment_row(int second)
{
    const int group = (int)threadIdx.x % 32 / 4;
    return layout & KFI_A_TRANSPOSED ? 2 * group + second
                                     : (group >> 1 | (group & 1) << 2) + 8 * second;
}
// Loads A of a stage, unsplit, for four wgmma of 8 of K.
template <int layout, int parts>
KFI_DEVICE void kfi_3xtf32_load_a(float (*v)[4], const kfi_3xtf32 &h)
{
    const char *const left = h.memory + h.stage * kfi_3xtf32_stage_bytes(parts);
    const int warp = (int)threadIdx.x / 32 * 16, own = (int)threadIdx.x % 4;
    kfi_mbar_wait(h.full + 8 * h.stage, h.phase);
    if (layout & KFI_A_TRANSPOSED) {
        const int row = warp + kfi_3xtf32_fragment_row<layout>(0);
        const char *const box = left + row / 32 * 4096 + row % 4 * 4;
#pragma unroll
        for (int q = 0; q < 4; ++q)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                kfi_copy<8>(v[q] + 2 * r,
                            box + kfi_3xtf32_offset(8 * q + 2 * own + r, row % 32 / 4));
    } else {
#pragma unroll
        for (int q = 0; q < 2; ++q)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float4 f =
                    *(const float4 *)(left +
                                      kfi_3xtf32_offset(warp + kfi_3xtf32_fragment_row<layout>(r),
                                                        4 * q + own));
                v[2 * q][r] = f.x, v[2 * q][r + 2] = f.y, v[2 * q + 1][r] = f.z,
                      v[2 * q + 1][r + 2] = f.w;
            }
    }
}
// Issues the wgmma of a stage, with two parts the smallest products first.
template <int parts>
KFI_DEVICE void kfi_3xtf32_mma_stage(float *sums, unsigned (*hi)[4], unsigned (*lo)[4],
                                     unsigned right, bool first)
{
    const unsigned long long right_hi = kfi_wgmma_descriptor(right, 0, 1024),
                             right_lo =
                                 kfi_wgmma_descriptor(right + KFI_3XTF32_OPERAND_BYTES, 0, 1024);
#pragma unroll
    for (int q = 0; q < 4 && parts > 1; ++q) {
        kfi_wgmma_tf32(sums, lo[q], right_hi + q * 2, q > 0);
        kfi_wgmma_tf32(sums, hi[q], right_lo + q * 2, 1);
    }
#pragma unroll
    for (int q = 0; q < 4; ++q)
        kfi_wgmma_tf32(sums, hi[q], right_hi + q * 2, parts > 1 || !first || q > 0);
}
// Accumulates a tile over K. With two parts each stage starts new tensor core accumulators. wgmma
// reads A from registers until the wait, which ptxas (13.0) does not see: with one part, whose A is
// the loaded value, the next A is loaded after the wait, or it could share the registers.
template <int layout, int parts>
KFI_DEVICE void kfi_3xtf32_mainloop(float *sums, kfi_3xtf32 *h, int count)
{
    float part[parts > 1 ? KFI_3XTF32_ACCUMULATORS : 1], *const made = parts > 1 ? part : sums;
    alignas(16) float v[4][4];
#pragma unroll
    for (int i = 0; i < KFI_3XTF32_ACCUMULATORS && parts > 1; ++i) sums[i] = 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        if (parts == 1 || i == 0) kfi_3xtf32_load_a<layout, parts>(v, *h);
        const unsigned right = h->stages + h->stage * kfi_3xtf32_stage_bytes(parts) +
                               KFI_3XTF32_OPERAND_BYTES,
                       done = h->empty + 8 * h->stage;
        unsigned hi[4][4], lo[4][4];
#pragma unroll
        for (int q = 0; q < 4; ++q)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (parts > 1)
                    kfi_split_tf32(v[q][j], &hi[q][j], &lo[q][j]);
                else
                    hi[q][j] = __float_as_uint(v[q][j]);
        kfi_mbar_wait(h->split + 8 * h->stage, h->phase);
        kfi_wgmma_fence();
        kfi_3xtf32_mma_stage<parts>(made, hi, lo, right, i == 0);
        kfi_wgmma_commit();
        kfi_3xtf32_advance<parts>(h);
        if (parts > 1 && i + 1 < count)
            kfi_3xtf32_load_a<layout, parts>(v, *h); // overlaps the wgmma
        kfi_wgmma_wait<0>();
#pragma unroll
        for (int j = 0; j < KFI_3XTF32_ACCUMULATORS; ++j) kfi_wgmma_opaque(made[j]);
        if (threadIdx.x % 32 == 0) kfi_mbar_arrive(done);
#pragma unroll
        for (int j = 0; j < KFI_3XTF32_ACCUMULATORS && parts > 1; ++j) sums[j] += made[j];
    }
}

// ---- epilogue: 16 rows and KFI_3XTF32_SLAB_COLS columns of a warp, over all products

KFI_BOTH constexpr int kfi_3xtf32_slabs() { return 128 / KFI_3XTF32_SLAB_COLS; }
// Vectors of 4 elements per lane.
KFI_BOTH constexpr int kfi_3xtf32_vectors(int products)
{
    return 16 * (KFI_3XTF32_SLAB_COLS / products) / 4 / 32;
}
// Stores slab `number` of the accumulators to the warp's shared memory. Called by all lanes, which
// may read afterwards and must __syncwarp before the next call.
template <int layout, int products>
KFI_DEVICE void kfi_3xtf32_store_fragment(float *sums, const kfi_3xtf32 &h, int number)
{
    constexpr int wide = KFI_3XTF32_SLAB_COLS / products; // columns of a product
    float *const to = h.slab + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < kfi_3xtf32_slabs(); ++n) {
        if (n != number) continue;
#pragma unroll
        for (int c = 0; c < KFI_3XTF32_SLAB_COLS; c += 8) {
            const float *const from =
                sums + (c / wide * (128 / products) + n * wide + c % wide) / 2;
            kfi_copy<8>(to + kfi_3xtf32_fragment_row<layout>(0) * KFI_3XTF32_PITCH + c, from);
            kfi_copy<8>(to + kfi_3xtf32_fragment_row<layout>(1) * KFI_3XTF32_PITCH + c, from + 2);
        }
    }
    __syncwarp();
}
// Finds vector `turn` of a lane. left <= 0: out of range.
template <int products>
KFI_DEVICE void kfi_3xtf32_lookup(kfi_gemm_coord *coord, int number, int turn,
                                  const kfi_gemm_tile &at, const kfi_gemm &g)
{
    constexpr int wide = KFI_3XTF32_SLAB_COLS / products, in_row = wide / 4;
    const int one = turn * 32 + (int)threadIdx.x % 32, row = one / in_row, col = one % in_row * 4;
    coord->row = at.row + (int)threadIdx.x / 32 * 16 + row;
    coord->col = at.col + number * wide + col;
    coord->left = coord->row < g.rows ? g.cols - coord->col : 0;
    coord->whole = g.wide && coord->left >= 4;
    coord->at = row * KFI_3XTF32_PITCH + col;
}
// Recomputes four results by FMAs, as the kernel without wgmma does. a, b: the operands of each
// term or product.
template <int layout, int products>
KFI_DEVICE void kfi_3xtf32_recompute(float *made, const kfi_gemm_coord &coord, int product,
                                     const kfi_gemm_matrix &a, const kfi_gemm_matrix &b,
                                     const kfi_gemm_tile &at, int terms)
{
    // Selections instead of indices, which would put the arrays into local memory.
#pragma unroll 1
    for (int term = 0; term < terms; ++term) {
        const bool of_a = term > 0, of_b = products > 1 ? product > 0 : term > 0;
        const float *const left = (const float *)(of_a ? a.p[1] : a.p[0]),
                           *const right = (const float *)(of_b ? b.p[1] : b.p[0]);
        const kf_i64 a_ld = of_a ? a.ld[1] : a.ld[0], b_ld = of_b ? b.ld[1] : b.ld[0];
        const kf_i64 row_step = layout & KFI_A_TRANSPOSED ? 1 : a_ld,
                     a_step = layout & KFI_A_TRANSPOSED ? a_ld : 1;
        const kf_i64 col_step = layout & KFI_B_TRANSPOSED ? 1 : b_ld,
                     b_step = layout & KFI_B_TRANSPOSED ? b_ld : 1;
#pragma unroll 1
        for (int i = at.begin; i < at.end; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                made[e] = fmaf(
                    left[coord.row * row_step + i * a_step],
                    right[(coord.col + (e < coord.left ? e : 0)) * col_step + i * b_step], made[e]);
    }
}
// Recomputes those of four results that are not finite.
template <int layout, int products>
KFI_DEVICE void kfi_3xtf32_mend(float *values, const kfi_gemm_coord &coord, int product,
                                const kfi_gemm_matrix &a, const kfi_gemm_matrix &b,
                                const kfi_gemm_tile &at, int terms)
{
    float none = 0, made[4] = {};
#pragma unroll
    for (int e = 0; e < 4; ++e) none = fmaf(values[e], 0.0f, none); // NaN if one is infinite or NaN
    if (none == 0 || coord.left <= 0) return;
    kfi_3xtf32_recompute<layout, products>(made, coord, product, a, b, at, terms);
#pragma unroll
    for (int e = 0; e < 4; ++e) values[e] = values[e] - values[e] == 0 ? values[e] : made[e];
}
// Loads four results of a product, recomputed where they are not finite.
template <int layout, int products, int parts>
KFI_DEVICE void kfi_3xtf32_load_fragment(float *values, const kfi_3xtf32 &h,
                                         const kfi_gemm_coord &coord, int product,
                                         const kfi_gemm_matrix &a, const kfi_gemm_matrix &b,
                                         const kfi_gemm_tile &at, int terms)
{
    kfi_copy<16>(values, h.slab + coord.at + product * (KFI_3XTF32_SLAB_COLS / products));
    if (parts > 1) kfi_3xtf32_mend<layout, products>(values, coord, product, a, b, at, terms);
}
#endif

#endif
