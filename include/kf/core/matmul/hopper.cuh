// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/hopper.cuh: products of elements of 2 bytes by wgmma (sm_90a). As many blocks as
// there are SMs stay, and each has one tile after the other. A thread of its first warpgroup loads
// boxes of both factors, 64 of the depth at a time, into a ring of stages; the two other warpgroups
// have every second tile, and take turns at multiplying: while one does, the other goes on with
// what it has multiplied. A stage's mbarrier `full` counts the bytes that come, `empty` the
// warpgroup that is done with it.
//
// Floats that both lie along the depth go the same way, as tf32, to which TMA rounds them: 32 of
// the depth at a time.
//
// The order in which a result's products are added up is that of the depth, whatever the sizes.
#ifndef KF_CORE_MATMUL_HOPPER_CUH
#define KF_CORE_MATMUL_HOPPER_CUH

#include "kf/core/matmul/tile.cuh"
#include "kf/core/wgmma.cuh"

#define KFI_SLAB_BYTES 2048 // 16 rows of 64 results of 2 bytes at most, swizzled as TMA has them
#define KFI_RING_DEPTH 64   // of a stage of 2-byte elements: 128 bytes of a line
#define KFI_RING_SLAB 64    // columns of 16 rows that a warp goes on with at a time
#define KFI_RING_OWN (16 * KFI_RING_SLAB / 32) // sums of a lane

KFI_BOTH constexpr int kfi_ring_rows(int tile) // of a warpgroup
{
    return kfi_policy(tile).cooperative ? 64 : kfi_policy(tile).rows;
}
KFI_BOTH constexpr int kfi_ring_a(int tile) // bytes of a stage
{
    return kfi_policy(tile).rows * KFI_RING_DEPTH * 2;
}
KFI_BOTH constexpr int kfi_ring_stage(int tile)
{
    return kfi_ring_a(tile) + kfi_policy(tile).cols * KFI_RING_DEPTH * 2;
}
KFI_BOTH constexpr int kfi_ring_across(int tile)
{
    return kfi_policy(tile).cols / kfi_policy(tile).slab_cols;
}
KFI_BOTH constexpr int kfi_ring_slabs(int tile) // of a warp
{
    return kfi_ring_rows(tile) / 64 * kfi_ring_across(tile);
}
// Bytes of the slabs of all warps, and of the values of a row of both consumer warpgroups.
KFI_BOTH constexpr int kfi_slab_bytes(int tile)
{
    return kfi_policy(tile).slab_buffers > 0
               ? 8 * kfi_policy(tile).slab_buffers * KFI_SLAB_BYTES + 2 * kfi_policy(tile).cols * 2
               : 0;
}
// Stages, mbarriers; from a multiple of 1,024 bytes on.
KFI_BOTH constexpr int kfi_ring_shared(int tile)
{
    return 1024 + kfi_policy(tile).stages * (kfi_ring_stage(tile) + 2 * 8) + kfi_slab_bytes(tile);
}

// The factors, as TMA knows them: of two products of one A, or of two products that are added up
// (terms). turns: 1, or 0 where all matrices of the batch have the same one.
struct kfi_gemm_maps {
    kfi_tensor_map a[2], b[2];
    int turns_a[2], turns_b[2], terms;
    unsigned units; // tiles of all matrices and splits
    // skinny.cuh: of a ring, 2 at least; bytes of the left factor in each; 2^share_bits blocks
    // share a depth
    int stages, left_bytes, share_bits;
    // Results of 2 bytes, in boxes of a slab
    kfi_tensor_map results[2];
    int turns_results[2];
};

// Where there are no such instructions the code is empty. Host code sees it by how many threads the
// kernel may have.
#ifdef KFI_DEVICE_PASS
#define KFI_RING_BOUNDS(tile) __launch_bounds__(KFI_HOPPER ? kfi_policy(tile).threads : 32, 1)
#else
#define KFI_RING_BOUNDS(tile)
#endif

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// A warpgroup's place in the ring.
struct kfi_ring {
    unsigned stages, full, empty; // addresses
    unsigned slabs, row;          // of this warp's slabs; of this warpgroup's values of a row
    int used, ahead;  // slabs since the kernel began; stages that were loaded at its start
    int group;        // 0 loads, 1 and 2 multiply
    int count, other; // stages of this warpgroup's tile, and of the other one's behind it
    int stage, phase;
    unsigned unit; // the tile that comes next
};

template <int tile> KFI_DEVICE void kfi_ring_go(kfi_ring *r, int count)
{
    constexpr int stages = kfi_policy(tile).stages;
    r->stage += count % stages;
    r->phase ^= count / stages & 1;
    if (r->stage < stages) return;
    r->stage -= stages;
    r->phase ^= 1;
}

template <int tile> KFI_DEVICE int kfi_ring_each(const kfi_gemm_at &at)
{
    return (at.end - at.begin + kfi_policy(tile).stage_k - 1) / kfi_policy(tile).stage_k;
} // stages of a term
// Stages of a tile; none behind the last one.
template <int tile, int products>
KFI_DEVICE int kfi_ring_count(unsigned unit, const kfi_gemm &g, const kfi_gemm_maps &maps)
{
    return unit < maps.units
               ? kfi_ring_each<tile>(kfi_gemm_locate<tile, products>(g, unit)) * maps.terms
               : 0;
}

template <int tile, int layout, int products>
KFI_DEVICE void kfi_ring_load(const kfi_ring &r, const kfi_gemm_at &at, int term, int depth,
                              const kfi_gemm_maps &maps);

// All threads come here. ahead: of tiles of one turn the ring's first loads begin before the others
// know of its mbarriers.
template <int tile, int layout = 0, int products = 1>
KFI_DEVICE kfi_ring kfi_ring_begin(const kfi_gemm *g = nullptr,
                                   const kfi_gemm_maps *ahead = nullptr)
{
    kfi_ring r;
    r.stages = (kfi_window(kfi_dynamic()) + 1023) & ~1023u;
    constexpr int stages = kfi_policy(tile).stages;
    r.slabs = r.stages + stages * kfi_ring_stage(tile);
    r.full = r.slabs + kfi_slab_bytes(tile);
    r.empty = r.full + 8 * stages;
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; ++i) {
            kfi_mbar_init(r.full + 8 * i, 1);
            kfi_mbar_init(r.empty + 8 * i, kfi_policy(tile).cooperative ? 2 : 1);
        }
        kfi_mbar_made();
    }
    r.ahead = r.stage = r.phase = 0;
    if (kfi_policy(tile).producer_registers == 0 && ahead &&
        threadIdx.x == 0) { // more than one turn does not gain by it
        const kfi_gemm_at at = kfi_gemm_locate<tile, products>(*g, blockIdx.x);
        const int each = kfi_ring_each<tile>(at);
        for (; r.ahead < each && r.ahead < stages; ++r.ahead) {
            r.stage = r.ahead;
            kfi_ring_load<tile, layout, products>(
                r, at, 0, at.begin + r.ahead * kfi_policy(tile).stage_k, *ahead);
        }
        r.stage = 0;
        kfi_ring_go<tile>(&r, r.ahead);
    }
    __syncthreads();
    r.group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128,
                          0); // the same for a warp, and the compiler knows it
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0) - 4;
    r.row = r.slabs + 8 * kfi_policy(tile).slab_buffers * KFI_SLAB_BYTES +
            (r.group - 1) * kfi_policy(tile).cols * 2;
    r.slabs += warp * kfi_policy(tile).slab_buffers * KFI_SLAB_BYTES;
    r.count = r.other = r.used = 0;
    r.unit = blockIdx.x;
    return r;
}

// ---- the first warpgroup

template <int tile, int layout, int products>
KFI_DEVICE void kfi_ring_load(const kfi_ring &r, const kfi_gemm_at &at, int term, int depth,
                              const kfi_gemm_maps &maps)
{
    constexpr int cols = kfi_policy(tile).cols / products;
    const unsigned to = r.stages + r.stage * kfi_ring_stage(tile), bar = r.full + 8 * r.stage;
    const kfi_tensor_map *const a = maps.a + term;
    const int of_a = (int)at.matrix * maps.turns_a[term];
    kfi_mbar_expect(bar, kfi_ring_stage(tile));
    if (layout & KFI_A_TRANSPOSED) {
#pragma unroll
        for (int i = 0; i < kfi_policy(tile).rows; i += 64)
            kfi_tma_load3(to + i * 128, a, bar, at.row + i, depth, of_a);
    } else {
        kfi_tma_load3(to, a, bar, depth, at.row, of_a);
    }
#pragma unroll
    for (int p = 0; p < products; ++p) {
        const unsigned own = to + kfi_ring_a(tile) + p * cols * 128;
        const kfi_tensor_map *const b = maps.b + (products > 1 ? p : term);
        const int of_b = (int)at.matrix * maps.turns_b[products > 1 ? p : term];
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
KFI_DEVICE void kfi_ring_produce(kfi_ring *r, const kfi_gemm &g, const kfi_gemm_maps &maps)
{
    if constexpr (kfi_policy(tile).producer_registers > 0)
        kfi_fewer_registers<kfi_policy(tile).producer_registers>();
    if (threadIdx.x != 0) return;
    for (; r->unit < maps.units; r->unit += gridDim.x) {
        const kfi_gemm_at at = kfi_gemm_locate<tile, products>(g, r->unit);
        const int each = kfi_ring_each<tile>(at);
        int i = r->ahead;
        r->ahead = 0;
#pragma unroll 1
        for (; i < each * maps.terms; ++i) {
            const int term = i >= each;
            kfi_mbar_wait(r->empty + 8 * r->stage, r->phase ^ 1);
            kfi_ring_load<tile, layout, products>(
                *r, at, term, at.begin + (i - term * each) * kfi_policy(tile).stage_k, maps);
            kfi_ring_go<tile>(r, 1);
        }
    }
}

// ---- the two others

// The second one begins with the second tile, and with the other's turn.
template <int tile, int products>
KFI_DEVICE void kfi_ring_consume(kfi_ring *r, const kfi_gemm &g, const kfi_gemm_maps &maps)
{
    if constexpr (kfi_policy(tile).consumer_registers > 0)
        kfi_more_registers<kfi_policy(tile).consumer_registers>();
    r->stage = r->phase = 0; // the compiler does not know that only the first thread went ahead,
                             // and wgmma wants uniform registers
    if (kfi_policy(tile).cooperative || r->group == 1) return;
    kfi_ring_go<tile>(r, kfi_ring_count<tile, products>(r->unit, g, maps));
    r->unit += gridDim.x;
    kfi_named_arrive<256>(1);
}
template <int tile, int products>
KFI_DEVICE bool kfi_ring_next(kfi_ring *r, kfi_gemm_at *at, const kfi_gemm &g,
                              const kfi_gemm_maps &maps)
{
    if (r->unit >= maps.units) return false;
    *at = kfi_gemm_locate<tile, products>(g, r->unit);
    r->count = kfi_ring_each<tile>(*at) * maps.terms;
    if (!kfi_policy(tile).cooperative)
        r->other = kfi_ring_count<tile, products>(r->unit + gridDim.x, g, maps);
    r->unit += kfi_policy(tile).cooperative ? gridDim.x : 2 * gridDim.x;
    return true;
}

template <int type, int tile, int layout>
KFI_DEVICE void kfi_ring_stage_add(float (*sums)[kfi_policy(tile).cols / 2], const kfi_ring &r,
                                   bool first)
{
    constexpr int step_a = layout & KFI_A_TRANSPOSED ? 2048 : 32,
                  step_b = layout & KFI_B_TRANSPOSED ? 2048
                                                     : 32; // bytes of a quarter of a stage's depth
    constexpr int transposed_a = layout & KFI_A_TRANSPOSED ? 1 : 0,
                  transposed_b = layout & KFI_B_TRANSPOSED ? 1 : 0;
    const unsigned at = r.stages + r.stage * kfi_ring_stage(tile),
                   own = kfi_policy(tile).cooperative ? (r.group - 1) * 8192 : 0;
    const unsigned long long a = kfi_wgmma_operand(at + own, 8192, 1024),
                             b = kfi_wgmma_operand(at + kfi_ring_a(tile), 8192, 1024);
#pragma unroll
    for (int q = 0; q < 4; ++q)
#pragma unroll
        for (int m = 0; m < kfi_ring_rows(tile) / 64; ++m)
            kfi_wgmma<kfi_policy(tile).cols, type, transposed_a, transposed_b>(
                sums[m], a + (m * 8192 + q * step_a) / 16, b + q * step_b / 16, !first || q > 0);
}
// The sums of a tile. A warpgroup multiplies only in its turn: a waiter that is laps ahead of an
// mbarrier takes an old phase for its own.
template <int type, int tile, int layout>
KFI_DEVICE void kfi_ring_multiply(float (*sums)[kfi_policy(tile).cols / 2], kfi_ring *r)
{
    const bool tells = threadIdx.x % 128 == 0;
    unsigned last = 0;
    if (!kfi_policy(tile).cooperative) kfi_named_sync<256>(r->group);
#pragma unroll 1
    for (int i = 0; i < r->count; ++i) {
        kfi_mbar_wait(r->full + 8 * r->stage, r->phase);
        kfi_wgmma_fence();
        kfi_ring_stage_add<type, tile, layout>(sums, *r, i == 0);
        kfi_wgmma_commit();
        kfi_wgmma_wait<1>(); // of the stage before
        if (i > 0 && tells) kfi_mbar_arrive(last);
        last = r->empty + 8 * r->stage;
        kfi_ring_go<tile>(r, 1);
    }
    if (!kfi_policy(tile).cooperative) kfi_named_arrive<256>(3 - r->group);
    kfi_wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < kfi_ring_rows(tile) / 64; ++m)
#pragma unroll
        for (int i = 0; i < kfi_policy(tile).cols / 2; ++i) kfi_wgmma_sum(sums[m][i]);
    if (tells) kfi_mbar_arrive(last);
    if (!kfi_policy(tile).cooperative) kfi_ring_go<tile>(r, r->other);
}

// ---- results of 2 bytes as wgmma leaves them: a warp's slabs of 16 rows and 64 columns. Of lane
// l, with e = 4 j + 2 h + i, an array of 32 has row l / 4 + 8 h, column 8 j + 2 (l % 4) + i.

struct kfi_slab {
    int row, col;        // of the result
    unsigned at, values; // addresses: of its buffer; of a row's values at its columns
};
KFI_DEVICE char *kfi_slab_memory(unsigned at)
{
    return kfi_dynamic() + (at - kfi_window(kfi_dynamic()));
}
// Nothing of an earlier slab is read from this one's buffer any more.
template <int tile>
KFI_DEVICE kfi_slab kfi_slab_begin(const kfi_ring &r, const kfi_gemm_at &at, int number)
{
    constexpr int across = kfi_ring_across(tile);
    kfi_slab s;
    s.row = at.row + (kfi_policy(tile).cooperative ? (r.group - 1) * 64 : number / across * 64) +
            (int)threadIdx.x / 32 % 4 * 16;
    s.col = at.col + number % across * kfi_policy(tile).slab_cols;
    s.values = r.row + number % across * kfi_policy(tile).slab_cols * 2;
    return s;
}
// The next buffer, which is the next one till something is stored from it.
template <int tile> KFI_DEVICE void kfi_slab_take(kfi_slab *s, const kfi_ring &r)
{
    s->at = r.slabs + (r.used & (kfi_policy(tile).slab_buffers - 1)) * KFI_SLAB_BYTES;
    if (threadIdx.x % 32 == 0) kfi_bulk_wait_read<kfi_policy(tile).slab_buffers - 1>();
    __syncwarp();
}
// A row's values, of a tile: read before the product, put where the slabs find them behind it.
template <int tile>
KFI_DEVICE void kfi_slab_read_row(unsigned short *own, const void *p, const kfi_gemm_at &at,
                                  const kfi_gemm &g)
{
#pragma unroll
    for (int i = 0; i < kfi_policy(tile).cols; i += 128) {
        const int col = i + (int)threadIdx.x % 128;
        own[i / 128] = p && col < kfi_policy(tile).cols && at.col + col < g.cols
                           ? ((const unsigned short *)p)[at.col + col]
                           : 0;
    }
}
template <int tile> KFI_DEVICE void kfi_slab_put_row(const unsigned short *own, const kfi_ring &r)
{
    if (kfi_policy(tile).cooperative)
        kfi_named_sync<128>(
            2 +
            r.group); // in turns, all of the warpgroup have been at a barrier since they read them
#pragma unroll
    for (int i = 0; i < kfi_policy(tile).cols; i += 128) {
        const int col = i + (int)threadIdx.x % 128;
        if (col < kfi_policy(tile).cols)
            *(unsigned short *)kfi_slab_memory(r.row + 2 * col) = own[i / 128];
    }
    kfi_named_sync<128>(2 + r.group);
}
// So many of a lane, from value `first` on.
template <int count> KFI_DEVICE void kfi_slab_row(void *v, const kfi_slab &s, int first)
{
#pragma unroll
    for (int j = 0; j < count / 4; ++j)
        ((unsigned *)v)[2 * j] = ((unsigned *)v)[2 * j + 1] =
            *(const unsigned *)kfi_slab_memory(s.values + 4 * first + 16 * j + threadIdx.x % 4 * 4);
}
// Where 16 bytes of a row are, of 128 bytes or of 64.
template <int cols> KFI_DEVICE unsigned kfi_slab_line(const kfi_slab &s, int row, int chunk)
{
    return cols == 64 ? s.at + row * 128 + ((chunk ^ (row & 7)) << 4)
                      : s.at + row * 64 + ((chunk ^ (row >> 1 & 3)) << 4);
}
// A tensor of the result's shape, p at its matrix: whole lines of it come to the buffer, and from
// there as the sums lie.
template <int cols>
KFI_DEVICE void kfi_slab_fetch(void *v, const void *p, kf_i64 ld, const kfi_slab &s,
                               const kfi_gemm &g)
{
    constexpr int across = cols / 8, down = 32 / across;
    const int lane = (int)threadIdx.x % 32, col = s.col + lane % across * 8;
    alignas(16) unsigned short got[16 / down][8];
#pragma unroll
    for (int i = 0; i < 16 / down; ++i) {
        const int row = s.row + i * down + lane / across, left = row < g.rows ? g.cols - col : 0;
        kfi_load_each<2, 8, 1>(got[i], (const unsigned short *)p + row * ld + col, 0, left,
                               left >= 8);
    }
#pragma unroll
    for (int i = 0; i < 16 / down; ++i)
        kfi_copy<16>(
            kfi_slab_memory(kfi_slab_line<cols>(s, i * down + lane / across, lane % across)),
            got[i]);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < cols / 16; ++j)
        kfi_matrices<0>((unsigned *)v + 4 * j,
                        kfi_slab_memory(kfi_slab_line<cols>(s, lane & 15, 2 * j + (lane >> 4))));
    __syncwarp();
}
// Values of a result go to the buffer; and all of it to memory.
template <int cols, int count>
KFI_DEVICE void kfi_slab_put(const void *v, const kfi_slab &s, int first)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < count / 8; ++j)
        kfi_stmatrix<0>(kfi_slab_line<cols>(s, lane & 15, first / 4 + 2 * j + (lane >> 4)),
                        (const unsigned *)v + 4 * j);
}
KFI_DEVICE void kfi_slab_send(const kfi_tensor_map *map, int matrix, const kfi_slab &s, kfi_ring *r)
{
    ++r->used;
    kfi_async_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        kfi_tma_store3(s.at, map, s.col, s.row, matrix);
        kfi_bulk_commit();
    }
}
KFI_DEVICE void kfi_slab_end()
{
    if (threadIdx.x % 32 == 0) kfi_bulk_wait_read<0>();
}

// ---- what a kernel's own code is given: vectors of 8 sums, or of 4, from 16 rows and
// KFI_RING_SLAB columns of a warp, of all products together

// Vectors of a lane.
template <int products, int vec = 8> KFI_DEVICE constexpr int kfi_ring_vectors()
{
    return 16 * (KFI_RING_SLAB / products) / vec / 32;
}
// Four lanes have 32 columns of a row, each of them two of every 8: afterwards 8 that lie side by
// side. Columns 8 i + 2 t and the next are in v[2 i] and v[2 i + 1] of lane t; then columns 8 t + 2
// i.
KFI_DEVICE void kfi_ring_gather(float *v)
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
// A lane's vectors. All lanes come here.
template <int tile, int products>
KFI_DEVICE void kfi_ring_put(float *own, float (*sums)[kfi_policy(tile).cols / 2], int number)
{
    constexpr int across = kfi_policy(tile).cols / KFI_RING_SLAB;
#pragma unroll
    for (int n = 0; n < kfi_ring_slabs(tile); ++n) {
        if (n != number) continue;
#pragma unroll
        for (int i = 0; i < KFI_RING_OWN;
             ++i) { // own: [row, 8 further on][32 columns, of a product][8 columns][2]
            const int half = i / 8 % 2, j = i / 2 % 4,
                      col = products > 1 ? half * (kfi_policy(tile).cols / 2) + n % across * 32
                                         : n % across * 64 + half * 32;
            own[i] = sums[n / across][(col + 8 * j) / 2 + i / 16 * 2 + i % 2];
        }
    }
#pragma unroll
    for (int i = 0; i < KFI_RING_OWN; i += 8) kfi_ring_gather(own + i);
}
// left is not positive where there is nothing.
template <int tile, int products, int vec = 8>
KFI_DEVICE bool kfi_ring_find(kfi_gemm_cell *cell, int number, int vector, const kfi_gemm_at &at,
                              const kfi_gemm &g)
{
    constexpr int across = kfi_policy(tile).cols / KFI_RING_SLAB, wide = KFI_RING_SLAB / products;
    const int lane = (int)threadIdx.x % 32, turn = vector / (8 / vec),
              second = products > 1 ? turn : turn / 2;
    cell->row =
        at.row + number / across * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * second;
    cell->col = at.col + number % across * wide + (products > 1 ? 0 : turn % 2 * 32) +
                lane % 4 * 8 + vector % (8 / vec) * vec;
    cell->left = cell->row < g.rows ? g.cols - cell->col : 0;
    cell->whole = g.wide && cell->left >= vec;
    cell->at = 0;
    return cell->left > 0;
}
template <int products, int vec = 8>
KFI_DEVICE void kfi_ring_take(float *values, const float *own, int vector, int product)
{
    const int turn = vector / (8 / vec);
#pragma unroll
    for (int e = 0; e < vec; ++e)
        values[e] =
            own[(products > 1 ? 2 * turn + product : turn) * 8 + vector % (8 / vec) * vec + e];
}
// Partial sums, where blocks share the depth of a tile (kfi_gemm_leave).
template <int tile, int products>
KFI_DEVICE void kfi_ring_leave(float (*sums)[kfi_policy(tile).cols / 2], const kfi_gemm_at &at,
                               const kfi_gemm &g)
{
#pragma unroll 1
    for (int number = 0; number < kfi_ring_slabs(tile); ++number) {
        float own[KFI_RING_OWN];
        kfi_ring_put<tile, products>(own, sums, number);
#pragma unroll
        for (int turn = 0; turn < kfi_ring_vectors<products>(); ++turn) {
            kfi_gemm_cell cell;
            if (!kfi_ring_find<tile, products>(&cell, number, turn, at, g)) continue;
            alignas(16) float values[8];
#pragma unroll
            for (int p = 0; p < products; ++p) {
                kfi_ring_take<products>(values, own, turn, p);
                kfi_store<32>(kfi_gemm_part<4, products, 8>(cell, at.matrix, at.split, p, g),
                              values);
            }
        }
    }
}
#endif

#endif
