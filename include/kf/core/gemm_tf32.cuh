// SPDX-License-Identifier: Apache-2.0
// kf/core/gemm_tf32.cuh: products of floats, as exact as in float, by wgmma of tf32 (sm_90a). Each element is the sum of two of tf32, of 11 bits:
// x = hi + lo, and a . b = hi . hi + (hi . lo + lo . hi); lo . lo is less than what is rounded off. A tensor core's sums lose bits, so
// that those of 32 of the depth are added to sums in float.
//
// As many blocks as there are SMs stay, and each has one tile after the other. Of its four warpgroups two multiply, 64 rows each: they read
// the left factor as it came and split it in registers; the third one splits the right factor, in place and beside it; a thread of the last one loads
// boxes of both, 32 of the depth at a time, into a ring of stages. In groups of 16 of the depth the order of both factors is changed alike, so that a lane reads
// 16 bytes at a time.
//
// Infinity times lo, which is 0, is NaN: sums that are no numbers are made again, by fused multiply-adds.
#ifndef KF_CORE_GEMM_TF32_CUH
#define KF_CORE_GEMM_TF32_CUH

#include "kf/core/gemm_hopper.cuh"

#define KFI_HALVES_STAGES 4
#define KFI_HALVES_DEPTH 32 // of a stage: 128 bytes of a line
#define KFI_HALVES_SLAB 32  // columns of 16 rows that a warp puts into its shared memory at a time
#define KFI_HALVES_PITCH (KFI_HALVES_SLAB + 8)
#define KFI_HALVES_BYTES (128 * KFI_HALVES_DEPTH * 4) // of an operand, or a half of one, in a stage
#define KFI_HALVES_STAGE (3 * KFI_HALVES_BYTES)       // left, right and its hi in the same place, right's lo
#define KFI_HALVES_SUMS 64                            // of a thread
// Stages, the warps' slabs, mbarriers; from a multiple of 1,024 bytes on.
KFI_BOTH constexpr int kfi_halves_shared()
{
    return 1024 + KFI_HALVES_STAGES * (KFI_HALVES_STAGE + 3 * 8) + 8 * 16 * KFI_HALVES_PITCH * 4;
}

#ifdef KFI_DEVICE_PASS
#define KFI_HALVES_BOUNDS __launch_bounds__(KFI_HOPPER ? kfi_tile_threads(KFI_TILE_HALVES) : 32, 1)
#else
#define KFI_HALVES_BOUNDS
#endif

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// A warpgroup's place in the ring, and its part of shared memory. group: 0 and 1 multiply, 2 splits, 3 loads.
struct kfi_halves {
    char *memory;                       // the stages
    unsigned stages, full, split, empty; // addresses; a stage's mbarriers: its bytes have come, right is split, nobody reads any more
    float *slab;                        // of this thread's warp
    int group, stage, phase;
    unsigned unit; // the tile that comes next
};
KFI_DEVICE void kfi_halves_go(kfi_halves *h)
{
    if (++h->stage < KFI_HALVES_STAGES) return;
    h->stage = 0;
    h->phase ^= 1;
}
KFI_DEVICE int kfi_halves_count(const kfi_gemm &g) { return (g.depth + KFI_HALVES_DEPTH - 1) / KFI_HALVES_DEPTH; }

// All threads come here.
KFI_DEVICE kfi_halves kfi_halves_begin()
{
    kfi_halves h;
    char *const memory = kfi_dynamic();
    const unsigned window = kfi_window(memory);
    h.stages = (window + 1023) & ~1023u;
    h.memory = memory + (h.stages - window);
    h.full = h.stages + KFI_HALVES_STAGES * KFI_HALVES_STAGE + 8 * 16 * KFI_HALVES_PITCH * 4;
    h.split = h.full + 8 * KFI_HALVES_STAGES;
    h.empty = h.split + 8 * KFI_HALVES_STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < KFI_HALVES_STAGES; ++i) {
            kfi_mbar_init(h.full + 8 * i, 1);
            kfi_mbar_init(h.split + 8 * i, 4);
            kfi_mbar_init(h.empty + 8 * i, 8);
        }
        kfi_mbar_made();
    }
    __syncthreads();
    h.group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0); // the same for a warp, and the compiler knows it
    h.slab = (float *)(h.memory + KFI_HALVES_STAGES * KFI_HALVES_STAGE) + threadIdx.x / 32 % 8 * (16 * KFI_HALVES_PITCH);
    h.stage = h.phase = 0;
    h.unit = blockIdx.x;
    return h;
}

// Where chunk `chunk` of 16 bytes of a line is, in a stage's operand.
KFI_DEVICE int kfi_halves_at(int line, int chunk) { return line * 128 + ((chunk ^ (line & 7)) << 4); }

// x = hi + lo, as tf32.
KFI_DEVICE void kfi_split_tf32(float x, unsigned *hi, unsigned *lo)
{
    *hi = kfi_tf32(x);
    *lo = kfi_tf32(x - __uint_as_float(*hi));
}

// ---- the last warpgroup

KFI_DEVICE void kfi_halves_load(kfi_halves *h, const kfi_gemm &g, const kfi_gemm_maps &maps)
{
    kfi_fewer_registers<24>();
    if (threadIdx.x % 128 != 0) return;
    const int count = kfi_halves_count(g);
    for (; h->unit < maps.units; h->unit += gridDim.x) {
        const kfi_gemm_at at = kfi_gemm_locate<KFI_TILE_HALVES, 1>(g, h->unit);
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            const unsigned to = h->stages + h->stage * KFI_HALVES_STAGE, bar = h->full + 8 * h->stage;
            kfi_mbar_wait(h->empty + 8 * h->stage, h->phase ^ 1);
            kfi_mbar_expect(bar, 2 * KFI_HALVES_BYTES);
            kfi_tma_load3(to, maps.a, bar, i * KFI_HALVES_DEPTH, at.row, (int)at.matrix * maps.turns_a[0]);
            kfi_tma_load3(to + KFI_HALVES_BYTES, maps.b, bar, i * KFI_HALVES_DEPTH, at.col, (int)at.matrix * maps.turns_b[0]);
            kfi_halves_go(h);
        }
    }
}

// ---- the third one

// Half a line of the right factor: 16 of the depth, of which number 4 p + j comes to place 4 j + p.
KFI_DEVICE void kfi_halves_split_line(char *right, int line, int half)
{
    float4 v[4];
    float f[16];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = *(const float4 *)(right + kfi_halves_at(line, 4 * half + j));
#pragma unroll
    for (int j = 0; j < 4; ++j) f[4 * j] = v[j].x, f[4 * j + 1] = v[j].y, f[4 * j + 2] = v[j].z, f[4 * j + 3] = v[j].w;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        uint4 hi, lo;
        kfi_split_tf32(f[j], &hi.x, &lo.x);
        kfi_split_tf32(f[4 + j], &hi.y, &lo.y);
        kfi_split_tf32(f[8 + j], &hi.z, &lo.z);
        kfi_split_tf32(f[12 + j], &hi.w, &lo.w);
        *(uint4 *)(right + kfi_halves_at(line, 4 * half + j)) = hi;
        *(uint4 *)(right + KFI_HALVES_BYTES + kfi_halves_at(line, 4 * half + j)) = lo;
    }
}
KFI_DEVICE void kfi_halves_split(kfi_halves *h, const kfi_gemm &g, const kfi_gemm_maps &maps)
{
    kfi_fewer_registers<72>();
    const int own = (int)threadIdx.x % 128, count = kfi_halves_count(g);
    for (; h->unit < maps.units; h->unit += gridDim.x) {
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            char *const right = h->memory + h->stage * KFI_HALVES_STAGE + KFI_HALVES_BYTES;
            kfi_mbar_wait(h->full + 8 * h->stage, h->phase);
#pragma unroll
            for (int n = own; n < 256; n += 128) kfi_halves_split_line(right, n / 2, n % 2);
            kfi_async_fence();
            __syncwarp();
            if (own % 32 == 0) kfi_mbar_arrive(h->split + 8 * h->stage);
            kfi_halves_go(h);
        }
    }
}

// ---- the two that multiply

KFI_DEVICE bool kfi_halves_next(kfi_halves *h, kfi_gemm_at *at, const kfi_gemm &g, const kfi_gemm_maps &maps)
{
    if (h->unit >= maps.units) return false;
    *at = kfi_gemm_locate<KFI_TILE_HALVES, 1>(g, h->unit);
    h->unit += gridDim.x;
    return true;
}
// A lane's first row of its warp's 16, the other one is 8 further on: another one than kfi_wgmma says, of eight, so that 16 bytes of a quarter of the
// lanes are in all banks.
KFI_DEVICE int kfi_halves_row()
{
    const int group = (int)threadIdx.x % 32 / 4;
    return group >> 1 | (group & 1) << 2;
}
// The left factor of a stage, as it came: in v[q][r] of the row 8 r further on, four of the depth from 16 q + 4 (lane % 4) on.
KFI_DEVICE void kfi_halves_left(float4 (*v)[2], const kfi_halves &h)
{
    const char *const left = h.memory + h.stage * KFI_HALVES_STAGE;
    const int row = (int)threadIdx.x / 32 * 16 + kfi_halves_row();
    kfi_mbar_wait(h.full + 8 * h.stage, h.phase);
#pragma unroll
    for (int q = 0; q < 2; ++q)
#pragma unroll
        for (int r = 0; r < 2; ++r) v[q][r] = *(const float4 *)(left + kfi_halves_at(row + 8 * r, 4 * q + (int)threadIdx.x % 4));
}
// Its halves, for four wgmma of 8 of the depth.
KFI_DEVICE void kfi_halves_split_left(unsigned (*hi)[4], unsigned (*lo)[4], const float4 (*v)[2])
{
#pragma unroll
    for (int q = 0; q < 2; ++q)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            kfi_split_tf32(v[q][r].x, &hi[2 * q][r], &lo[2 * q][r]);
            kfi_split_tf32(v[q][r].y, &hi[2 * q][r + 2], &lo[2 * q][r + 2]);
            kfi_split_tf32(v[q][r].z, &hi[2 * q + 1][r], &lo[2 * q + 1][r]);
            kfi_split_tf32(v[q][r].w, &hi[2 * q + 1][r + 2], &lo[2 * q + 1][r + 2]);
        }
}
// The sums of a tile. Those of a stage begin anew, with what is smallest.
KFI_DEVICE void kfi_halves_multiply(float *sums, kfi_halves *h, const kfi_gemm &g)
{
    const int count = kfi_halves_count(g);
    float part[KFI_HALVES_SUMS];
    float4 v[2][2];
#pragma unroll
    for (int i = 0; i < KFI_HALVES_SUMS; ++i) sums[i] = 0;
    kfi_halves_left(v, *h);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        const unsigned right = h->stages + h->stage * KFI_HALVES_STAGE + KFI_HALVES_BYTES, done = h->empty + 8 * h->stage;
        const unsigned long long right_hi = kfi_wgmma_operand(right, 0, 1024), right_lo = kfi_wgmma_operand(right + KFI_HALVES_BYTES, 0, 1024);
        unsigned hi[4][4], lo[4][4];
        kfi_halves_split_left(hi, lo, v);
        kfi_mbar_wait(h->split + 8 * h->stage, h->phase);
        kfi_wgmma_fence();
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            kfi_wgmma_tf32(part, lo[q], right_hi + q * 2, q > 0);
            kfi_wgmma_tf32(part, hi[q], right_lo + q * 2, 1);
        }
#pragma unroll
        for (int q = 0; q < 4; ++q) kfi_wgmma_tf32(part, hi[q], right_hi + q * 2, 1);
        kfi_wgmma_commit();
        kfi_halves_go(h);
        if (i + 1 < count) kfi_halves_left(v, *h); // while they multiply
        kfi_wgmma_wait<0>();
#pragma unroll
        for (int j = 0; j < KFI_HALVES_SUMS; ++j) kfi_wgmma_sum(part[j]);
        if (threadIdx.x % 32 == 0) kfi_mbar_arrive(done);
#pragma unroll
        for (int j = 0; j < KFI_HALVES_SUMS; ++j) sums[j] += part[j];
    }
}

// ---- what a kernel's own code is given: 16 rows and KFI_HALVES_SLAB columns of a warp

KFI_BOTH constexpr int kfi_halves_slabs() { return 128 / KFI_HALVES_SLAB; }
KFI_BOTH constexpr int kfi_halves_vectors() { return 16 * KFI_HALVES_SLAB / 4 / 32; } // of a lane, of 4 elements
// All lanes come here, and may read afterwards; before the next ones, they __syncwarp.
KFI_DEVICE void kfi_halves_put(float *sums, const kfi_halves &h, int number)
{
    float *const to = h.slab + kfi_halves_row() * KFI_HALVES_PITCH + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < kfi_halves_slabs(); ++n) {
        if (n != number) continue;
#pragma unroll
        for (int c = 0; c < KFI_HALVES_SLAB; c += 8) {
            const float *const from = sums + (n * KFI_HALVES_SLAB + c) / 2;
            kfi_copy<8>(to + c, from);
            kfi_copy<8>(to + c + 8 * KFI_HALVES_PITCH, from + 2);
        }
    }
    __syncwarp();
}
// left is not positive where there is nothing.
KFI_DEVICE void kfi_halves_find(kfi_gemm_cell *cell, int number, int turn, const kfi_gemm_at &at, const kfi_gemm &g)
{
    const int one = turn * 32 + (int)threadIdx.x % 32, row = one / (KFI_HALVES_SLAB / 4), col = one % (KFI_HALVES_SLAB / 4) * 4;
    cell->row = at.row + (int)threadIdx.x / 32 * 16 + row;
    cell->col = at.col + number * KFI_HALVES_SLAB + col;
    cell->left = cell->row < g.rows ? g.cols - cell->col : 0;
    cell->whole = g.wide && cell->left >= 4;
    cell->at = row * KFI_HALVES_PITCH + col;
}
// Four results. Of those that are no numbers, what fused multiply-adds make of them, as without wgmma.
KFI_DEVICE void kfi_halves_take(float *values, const kfi_halves &h, const kfi_gemm_cell &cell, const kfi_gemm_side &a, const kfi_gemm_side &b,
                                const kfi_gemm &g)
{
    kfi_copy<16>(values, h.slab + cell.at);
    float none = 0, made[4] = {};
#pragma unroll
    for (int e = 0; e < 4; ++e) none = fmaf(values[e], 0.0f, none); // NaN where one is infinite or NaN
    if (none == 0 || cell.left <= 0) return;
    const float *const row = (const float *)a.p[0] + cell.row * a.ld[0], *const col = (const float *)b.p[0] + cell.col * b.ld[0];
#pragma unroll 1
    for (int i = 0; i < g.depth; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) made[e] = fmaf(row[i], col[(e < cell.left ? e : 0) * b.ld[0] + i], made[e]);
#pragma unroll
    for (int e = 0; e < 4; ++e) values[e] = values[e] - values[e] == 0 ? values[e] : made[e];
}
#endif

#endif
