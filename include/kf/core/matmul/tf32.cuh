// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/tf32.cuh: products of floats by wgmma of tf32 (sm_90a), as exact as in float. Each
// element is the sum of two of tf32, of 11 bits: x = hi + lo, and a . b = hi . hi + (hi . lo + lo .
// hi); lo . lo is less than what is rounded off. A tensor core's sums lose bits, so that those of
// 32 of the depth are added to sums in float.
//
// As many blocks as there are SMs stay, and each has one tile after the other. Of its four
// warpgroups two multiply, 64 rows each: they read the left factor as it came and split it in
// registers; the third one splits the right factor, in place and beside it; a thread of the last
// one loads boxes of both, 32 of the depth at a time, into a ring of stages. In groups of 16 of the
// depth the order of both factors is changed alike, so that a lane reads 16 bytes at a time.
//
// wgmma has tf32 along the depth only. A factor that lies across it comes as four boxes of 32 rows
// or columns: the left one is read from there, two rows at a time; each warp of the third warpgroup
// turns a box of the right one, which has the place of the 32 columns that it becomes.
//
// Infinity times lo, which is 0, is NaN: sums that are no numbers are made again, by fused
// multiply-adds.
//
// Where an element is hi alone (parts is 1: tf32), TMA rounds it, and the third warpgroup changes
// the right factor's order alone; sums are a tensor core's.
#ifndef KF_CORE_MATMUL_TF32_CUH
#define KF_CORE_MATMUL_TF32_CUH

#include "kf/core/matmul/hopper.cuh"

#define KFI_HALVES_DEPTH 32 // of a stage: 128 bytes of a line
#define KFI_HALVES_SLAB 32  // columns of 16 rows that a warp puts into its shared memory at a time
#define KFI_HALVES_PITCH (KFI_HALVES_SLAB + 8)
#define KFI_HALVES_BYTES (128 * KFI_HALVES_DEPTH * 4) // of an operand, or a half of one, in a stage
#define KFI_HALVES_SUMS 64                            // of a thread
#define KFI_HALVES_ROOM (12 * KFI_HALVES_BYTES)       // all stages
KFI_BOTH constexpr int kfi_halves_stages(int parts) { return parts > 1 ? 4 : 6; }
KFI_BOTH constexpr int
kfi_halves_stage(int parts) // bytes: left, right and its hi in the same place, right's lo
{
    return (1 + parts) * KFI_HALVES_BYTES;
}
// Stages, the warps' slabs, mbarriers; from a multiple of 1,024 bytes on.
KFI_BOTH constexpr int kfi_halves_shared()
{
    return 1024 + KFI_HALVES_ROOM + kfi_halves_stages(1) * 3 * 8 + 8 * 16 * KFI_HALVES_PITCH * 4;
}

#ifdef KFI_DEVICE_PASS
#define KFI_HALVES_BOUNDS                                                                          \
    __launch_bounds__(KFI_HOPPER ? kfi_policy(KFI_TILE_WGMMA_3XTF32).threads : 32, 1)
#else
#define KFI_HALVES_BOUNDS
#endif

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// A warpgroup's place in the ring, and its part of shared memory. group: 0 and 1 multiply, 2
// splits, 3 loads.
struct kfi_halves {
    char *memory;                        // the stages
    unsigned stages, full, split, empty; // addresses; a stage's mbarriers: its bytes have come,
                                         // right is split, nobody reads any more
    float *slab;                         // of this thread's warp
    int group, stage, phase;
    unsigned unit; // the tile that comes next
};
template <int parts> KFI_DEVICE void kfi_halves_go(kfi_halves *h)
{
    if (++h->stage < kfi_halves_stages(parts)) return;
    h->stage = 0;
    h->phase ^= 1;
}
KFI_DEVICE int kfi_halves_each(const kfi_gemm_at &at)
{
    return (at.end - at.begin + KFI_HALVES_DEPTH - 1) / KFI_HALVES_DEPTH;
} // stages of a term

// All threads come here.
template <int parts> KFI_DEVICE kfi_halves kfi_halves_begin()
{
    constexpr int stages = kfi_halves_stages(parts);
    static_assert(stages * kfi_halves_stage(parts) == KFI_HALVES_ROOM,
                  "kf: stages fill their room");
    kfi_halves h;
    char *const memory = kfi_dynamic();
    const unsigned window = kfi_window(memory);
    h.stages = (window + 1023) & ~1023u;
    h.memory = memory + (h.stages - window);
    h.full = h.stages + KFI_HALVES_ROOM + 8 * 16 * KFI_HALVES_PITCH * 4;
    h.split = h.full + 8 * stages;
    h.empty = h.split + 8 * stages;
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; ++i) {
            kfi_mbar_init(h.full + 8 * i, 1);
            kfi_mbar_init(h.split + 8 * i, 4);
            kfi_mbar_init(h.empty + 8 * i, 8);
        }
        kfi_mbar_made();
    }
    __syncthreads();
    h.group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128,
                          0); // the same for a warp, and the compiler knows it
    h.slab = (float *)(h.memory + KFI_HALVES_ROOM) + threadIdx.x / 32 % 8 * (16 * KFI_HALVES_PITCH);
    h.stage = h.phase = 0;
    h.unit = blockIdx.x;
    return h;
}

// Where chunk `chunk` of 16 bytes of a line is, in a stage's operand.
KFI_DEVICE int kfi_halves_at(int line, int chunk)
{
    return line * 128 + ((chunk ^ (line & 7)) << 4);
}

// x = hi + lo, as tf32.
KFI_DEVICE void kfi_split_tf32(float x, unsigned *hi, unsigned *lo)
{
    *hi = kfi_tf32(x);
    *lo = kfi_tf32(x - __uint_as_float(*hi));
}

// The tile that comes next; of how many stages. False: there is none.
template <int products>
KFI_DEVICE bool kfi_halves_next(kfi_halves *h, kfi_gemm_at *at, int *count, const kfi_gemm &g,
                                const kfi_gemm_maps &maps)
{
    if (h->unit >= maps.units) return false;
    *at = kfi_gemm_locate<KFI_TILE_WGMMA_3XTF32, products>(g, h->unit);
    *count = kfi_halves_each(*at) * maps.terms;
    h->unit += gridDim.x;
    return true;
}
// Which of 16 of the depth comes to place i of chunk j.
KFI_BOTH constexpr int kfi_halves_depth(int layout, int j, int i)
{
    return layout & KFI_A_TRANSPOSED ? j / 2 * 8 + 2 * i + j % 2 : 4 * i + j;
}

// ---- the last warpgroup

// `lines` rows or columns of a factor, 32 of the depth: as they lie, or in boxes of 32.
template <int transposed, int lines>
KFI_DEVICE void kfi_halves_fetch(unsigned to, const kfi_tensor_map *map, unsigned bar, int line,
                                 int depth, int matrix)
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
KFI_DEVICE void kfi_halves_load(kfi_halves *h, const kfi_gemm &g, const kfi_gemm_maps &maps)
{
    constexpr int cols = 128 / products;
    kfi_fewer_registers<kfi_policy(KFI_TILE_WGMMA_3XTF32).producer_registers>();
    if (threadIdx.x % 128 != 0) return;
    kfi_gemm_at at;
    int count;
    while (kfi_halves_next<products>(h, &at, &count, g, maps)) {
        const int each = kfi_halves_each(at);
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            const unsigned to = h->stages + h->stage * kfi_halves_stage(parts),
                           bar = h->full + 8 * h->stage;
            const int term = i >= each, depth = at.begin + (i - term * each) * KFI_HALVES_DEPTH;
            kfi_mbar_wait(h->empty + 8 * h->stage, h->phase ^ 1);
            kfi_mbar_expect(bar, 2 * KFI_HALVES_BYTES);
            kfi_halves_fetch<layout & KFI_A_TRANSPOSED, 128>(to, maps.a + term, bar, at.row, depth,
                                                             (int)at.matrix * maps.turns_a[term]);
#pragma unroll
            for (int p = 0; p < products; ++p) {
                const int of = products > 1 ? p : term;
                kfi_halves_fetch<layout & KFI_B_TRANSPOSED, cols>(
                    to + KFI_HALVES_BYTES + p * cols * 128, maps.b + of, bar, at.col, depth,
                    (int)at.matrix * maps.turns_b[of]);
            }
            kfi_halves_go<parts>(h);
        }
    }
}

// ---- the third one

// 16 of the depth of a column, in their new order.
template <int layout, int parts>
KFI_DEVICE void kfi_halves_keep(char *right, int line, int half, const float *f)
{
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        if constexpr (parts == 1) {
            const float4 all = {
                f[kfi_halves_depth(layout, j, 0)], f[kfi_halves_depth(layout, j, 1)],
                f[kfi_halves_depth(layout, j, 2)], f[kfi_halves_depth(layout, j, 3)]};
            *(float4 *)(right + kfi_halves_at(line, 4 * half + j)) = all;
            continue;
        }
        uint4 hi, lo;
        kfi_split_tf32(f[kfi_halves_depth(layout, j, 0)], &hi.x, &lo.x);
        kfi_split_tf32(f[kfi_halves_depth(layout, j, 1)], &hi.y, &lo.y);
        kfi_split_tf32(f[kfi_halves_depth(layout, j, 2)], &hi.z, &lo.z);
        kfi_split_tf32(f[kfi_halves_depth(layout, j, 3)], &hi.w, &lo.w);
        *(uint4 *)(right + kfi_halves_at(line, 4 * half + j)) = hi;
        *(uint4 *)(right + KFI_HALVES_BYTES + kfi_halves_at(line, 4 * half + j)) = lo;
    }
}
template <int layout, int parts> KFI_DEVICE void kfi_halves_split_lines(char *right)
{
#pragma unroll
    for (int n = (int)threadIdx.x % 128; n < 256; n += 128) {
        alignas(16) float f[16];
#pragma unroll
        for (int j = 0; j < 4; ++j)
            kfi_copy<16>(f + 4 * j, right + kfi_halves_at(n / 2, n % 2 * 4 + j));
        kfi_halves_keep<layout, parts>(right, n / 2, n % 2, f);
    }
}
// A warp's box: a lane has one of its 32 columns.
template <int layout, int parts> KFI_DEVICE void kfi_halves_turn(char *right)
{
    const int lane = (int)threadIdx.x % 32;
    char *const box = right + (int)threadIdx.x % 128 / 32 * 4096;
    float f[KFI_HALVES_DEPTH];
#pragma unroll
    for (int d = 0; d < KFI_HALVES_DEPTH; ++d)
        f[d] = *(const float *)(box + kfi_halves_at(d, lane / 4) + lane % 4 * 4);
    __syncwarp(); // all lanes have read
    kfi_halves_keep<layout, parts>(box, lane, 0, f);
    kfi_halves_keep<layout, parts>(box, lane, 1, f + 16);
}
template <int layout, int products, int parts>
KFI_DEVICE void kfi_halves_split(kfi_halves *h, const kfi_gemm &g, const kfi_gemm_maps &maps)
{
    kfi_fewer_registers<72>();
    kfi_gemm_at at;
    int count;
    while (kfi_halves_next<products>(h, &at, &count, g, maps)) {
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            char *const right = h->memory + h->stage * kfi_halves_stage(parts) + KFI_HALVES_BYTES;
            kfi_mbar_wait(h->full + 8 * h->stage, h->phase);
            if (layout & KFI_B_TRANSPOSED)
                kfi_halves_turn<layout, parts>(right);
            else
                kfi_halves_split_lines<layout, parts>(right);
            kfi_async_fence();
            __syncwarp();
            if (threadIdx.x % 32 == 0) kfi_mbar_arrive(h->split + 8 * h->stage);
            kfi_halves_go<parts>(h);
        }
    }
}

// ---- the two that multiply

// A lane's first row of its warp's 16, and its second one: other ones than kfi_wgmma says. Along
// the depth so that 16 bytes of a quarter of the lanes are in all banks; across it side by side,
// since they are read together.
template <int layout> KFI_DEVICE int kfi_halves_row(int second)
{
    const int group = (int)threadIdx.x % 32 / 4;
    return layout & KFI_A_TRANSPOSED ? 2 * group + second
                                     : (group >> 1 | (group & 1) << 2) + 8 * second;
}
// The left factor of a stage, as it came, for four wgmma of 8 of the depth.
template <int layout, int parts> KFI_DEVICE void kfi_halves_left(float (*v)[4], const kfi_halves &h)
{
    const char *const left = h.memory + h.stage * kfi_halves_stage(parts);
    const int warp = (int)threadIdx.x / 32 * 16, own = (int)threadIdx.x % 4;
    kfi_mbar_wait(h.full + 8 * h.stage, h.phase);
    if (layout & KFI_A_TRANSPOSED) {
        const int row = warp + kfi_halves_row<layout>(0);
        const char *const box = left + row / 32 * 4096 + row % 4 * 4;
#pragma unroll
        for (int q = 0; q < 4; ++q)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                kfi_copy<8>(v[q] + 2 * r, box + kfi_halves_at(8 * q + 2 * own + r, row % 32 / 4));
    } else {
#pragma unroll
        for (int q = 0; q < 2; ++q)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float4 f =
                    *(const float4 *)(left +
                                      kfi_halves_at(warp + kfi_halves_row<layout>(r), 4 * q + own));
                v[2 * q][r] = f.x, v[2 * q][r + 2] = f.y, v[2 * q + 1][r] = f.z,
                      v[2 * q + 1][r + 2] = f.w;
            }
    }
}
// A stage's products: of two parts each what is smallest first.
template <int parts>
KFI_DEVICE void kfi_halves_add(float *sums, unsigned (*hi)[4], unsigned (*lo)[4], unsigned right,
                               bool first)
{
    const unsigned long long right_hi = kfi_wgmma_operand(right, 0, 1024),
                             right_lo = kfi_wgmma_operand(right + KFI_HALVES_BYTES, 0, 1024);
#pragma unroll
    for (int q = 0; q < 4 && parts > 1; ++q) {
        kfi_wgmma_tf32(sums, lo[q], right_hi + q * 2, q > 0);
        kfi_wgmma_tf32(sums, hi[q], right_lo + q * 2, 1);
    }
#pragma unroll
    for (int q = 0; q < 4; ++q)
        kfi_wgmma_tf32(sums, hi[q], right_hi + q * 2, parts > 1 || !first || q > 0);
}
// The sums of a tile. Of two parts those of a stage begin anew. A left operand in registers is read
// till the wait, and ptxas (13.0) does not know: where it is what was loaded, the next one is
// loaded after the wait, or it would be in the same registers.
template <int layout, int parts>
KFI_DEVICE void kfi_halves_multiply(float *sums, kfi_halves *h, int count)
{
    float part[parts > 1 ? KFI_HALVES_SUMS : 1], *const made = parts > 1 ? part : sums;
    alignas(16) float v[4][4];
#pragma unroll
    for (int i = 0; i < KFI_HALVES_SUMS && parts > 1; ++i) sums[i] = 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        if (parts == 1 || i == 0) kfi_halves_left<layout, parts>(v, *h);
        const unsigned right = h->stages + h->stage * kfi_halves_stage(parts) + KFI_HALVES_BYTES,
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
        kfi_halves_add<parts>(made, hi, lo, right, i == 0);
        kfi_wgmma_commit();
        kfi_halves_go<parts>(h);
        if (parts > 1 && i + 1 < count)
            kfi_halves_left<layout, parts>(v, *h); // while they multiply
        kfi_wgmma_wait<0>();
#pragma unroll
        for (int j = 0; j < KFI_HALVES_SUMS; ++j) kfi_wgmma_sum(made[j]);
        if (threadIdx.x % 32 == 0) kfi_mbar_arrive(done);
#pragma unroll
        for (int j = 0; j < KFI_HALVES_SUMS && parts > 1; ++j) sums[j] += made[j];
    }
}

// ---- what a kernel's own code is given: 16 rows and KFI_HALVES_SLAB columns of a warp, of all
// products together

KFI_BOTH constexpr int kfi_halves_slabs() { return 128 / KFI_HALVES_SLAB; }
// Vectors of a lane, of 4 elements.
KFI_BOTH constexpr int kfi_halves_vectors(int products)
{
    return 16 * (KFI_HALVES_SLAB / products) / 4 / 32;
}
// All lanes come here, and may read afterwards; before the next ones, they __syncwarp.
template <int layout, int products>
KFI_DEVICE void kfi_halves_put(float *sums, const kfi_halves &h, int number)
{
    constexpr int wide = KFI_HALVES_SLAB / products; // columns of a product
    float *const to = h.slab + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < kfi_halves_slabs(); ++n) {
        if (n != number) continue;
#pragma unroll
        for (int c = 0; c < KFI_HALVES_SLAB; c += 8) {
            const float *const from =
                sums + (c / wide * (128 / products) + n * wide + c % wide) / 2;
            kfi_copy<8>(to + kfi_halves_row<layout>(0) * KFI_HALVES_PITCH + c, from);
            kfi_copy<8>(to + kfi_halves_row<layout>(1) * KFI_HALVES_PITCH + c, from + 2);
        }
    }
    __syncwarp();
}
// left is not positive where there is nothing.
template <int products>
KFI_DEVICE void kfi_halves_find(kfi_gemm_cell *cell, int number, int turn, const kfi_gemm_at &at,
                                const kfi_gemm &g)
{
    constexpr int wide = KFI_HALVES_SLAB / products, in_row = wide / 4;
    const int one = turn * 32 + (int)threadIdx.x % 32, row = one / in_row, col = one % in_row * 4;
    cell->row = at.row + (int)threadIdx.x / 32 * 16 + row;
    cell->col = at.col + number * wide + col;
    cell->left = cell->row < g.rows ? g.cols - cell->col : 0;
    cell->whole = g.wide && cell->left >= 4;
    cell->at = row * KFI_HALVES_PITCH + col;
}
// Of four results, those that fused multiply-adds make, as without wgmma. a, b: with a factor for
// each term, or of each product.
template <int layout, int products>
KFI_DEVICE void kfi_halves_again(float *made, const kfi_gemm_cell &cell, int product,
                                 const kfi_gemm_side &a, const kfi_gemm_side &b,
                                 const kfi_gemm_at &at, int terms)
{
#pragma unroll 1
    for (int term = 0; term < terms;
         ++term) { // by selection: an array that is read by a variable would be in memory
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
                made[e] = fmaf(left[cell.row * row_step + i * a_step],
                               right[(cell.col + (e < cell.left ? e : 0)) * col_step + i * b_step],
                               made[e]);
    }
}
// Four results of a product.
template <int layout, int products, int parts>
KFI_DEVICE void kfi_halves_take(float *values, const kfi_halves &h, const kfi_gemm_cell &cell,
                                int product, const kfi_gemm_side &a, const kfi_gemm_side &b,
                                const kfi_gemm_at &at, int terms)
{
    kfi_copy<16>(values, h.slab + cell.at + product * (KFI_HALVES_SLAB / products));
    if (parts == 1) return;
    float none = 0, made[4] = {};
#pragma unroll
    for (int e = 0; e < 4; ++e)
        none = fmaf(values[e], 0.0f, none); // NaN where one is infinite or NaN
    if (none == 0 || cell.left <= 0) return;
    kfi_halves_again<layout, products>(made, cell, product, a, b, at, terms);
#pragma unroll
    for (int e = 0; e < 4; ++e) values[e] = values[e] - values[e] == 0 ? values[e] : made[e];
}
#endif

#endif
