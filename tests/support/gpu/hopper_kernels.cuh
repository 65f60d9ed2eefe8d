// SPDX-License-Identifier: Apache-2.0
// Kernels that each run one instruction of kf/core/ptx/hopper.cuh and wgmma.cuh, or a few that
// belong together. test_hopper.py runs them in the emulation and on a GPU.
#ifndef HOPPER_KERNELS_CUH
#define HOPPER_KERNELS_CUH

#include <kf/core/ptx/cluster.cuh>
#include <kf/core/ptx/kernel.cuh>
#include <kf/core/wgmma.cuh>

#define MAP const __grid_constant__ kfi_tensor_map
#if KFI_HOPPER
// One thread initialises `count` mbarriers for one arrival each, from byte `at` on.
KFI_DEVICE unsigned open_bars(char *memory, int at, int count, int arrivals = 1)
{
    const unsigned bar = kfi_shared_address(memory) + at;
    if (threadIdx.x == 0) {
        for (int i = 0; i < count; ++i) kfi_mbar_init(bar + 8 * i, arrivals);
        kfi_mbar_fence_init();
    }
    __syncthreads();
    return bar;
}
#endif

// Bulk copy in, add one to each float, bulk copy out.
KFI_KERNEL void bulk(const float *in, float *out, int bytes)
{
#if KFI_HOPPER
    char *const memory = kfi_dynamic();
    const unsigned at = kfi_shared_address(memory), bar = open_bars(memory, 16384, 1);
    if (threadIdx.x == 0) {
        kfi_mbar_expect(bar, bytes);
        kfi_bulk_load(at, in, bytes, bar);
    }
    kfi_mbar_wait(bar, 0);
    for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) ((float *)memory)[i] += 1;
    kfi_async_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
        kfi_bulk_store(out, at, bytes);
        kfi_bulk_commit();
        kfi_bulk_wait<0>();
    }
#endif
}

// Loads a box to shared memory, copies its bytes out as stored there, and stores the box to another
// tensor. depth: the box has three coordinates.
KFI_KERNEL void box(MAP from, MAP to, const int *where, int bytes, int deep, unsigned short *seen)
{
#if KFI_HOPPER
    char *const memory = kfi_dynamic();
    const unsigned at = kfi_shared_address(memory), bar = open_bars(memory, 16384, 1);
    if (threadIdx.x == 0) {
        kfi_mbar_expect(bar, bytes);
        if (deep)
            kfi_tma_load3(at, &from, bar, where[0], where[1], where[2]);
        else
            kfi_tma_load(at, &from, bar, where[0], where[1]);
    }
    kfi_mbar_wait(bar, 0);
    for (int i = threadIdx.x; i < bytes / 2; i += blockDim.x)
        seen[i] = ((const unsigned short *)memory)[i];
    kfi_async_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
        if (deep)
            kfi_tma_store3(at, &to, where[3], where[4], where[5]);
        else
            kfi_tma_store(at, &to, where[3], where[4]);
        kfi_bulk_commit();
        kfi_bulk_wait_read<0>();
        kfi_bulk_wait<0>();
    }
#endif
}

// d [64][n] = a . b with K = 64. a is [64 rows][64], or transposed [64][64 rows]; b likewise, with
// n rows. In registers a is never transposed.
template <int n, int type, int transposed_a, int transposed_b, int registers>
KFI_KERNEL void product(MAP a, MAP b, const unsigned short *plain, float *d, int add)
{
#if KFI_HOPPER
    char *const memory = kfi_dynamic();
    constexpr int boxes = (n + 63) / 64; // each has 64 rows or columns of b
    const unsigned of_a = kfi_shared_address(memory), of_b = of_a + 8192,
                   bar = open_bars(memory, 8192 + boxes * 8192, 1);
    const int t = (int)threadIdx.x, row = t / 32 * 16 + t % 32 / 4, col = t % 4 * 2;
    if (t == 0) {
        kfi_mbar_expect(bar, (registers ? 0 : 8192) + boxes * 8192);
        if (!registers) kfi_tma_load(of_a, &a, bar, 0, 0);
        for (int i = 0; i < boxes; ++i)
            kfi_tma_load(of_b + i * 8192, &b, bar, transposed_b ? 64 * i : 0,
                         transposed_b ? 0 : 64 * i);
    }
    float sums[n / 2];
#pragma unroll
    for (int i = 0; i < n / 2; ++i) sums[i] = 1.0f;
    unsigned own[4][4];
#pragma unroll
    for (int q = 0; q < 4; ++q)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const unsigned short *const at =
                plain + (row + j % 2 * 8) * 64 + q * 16 + col + j / 2 * 8;
            own[q][j] = at[0] | (unsigned)at[1] << 16;
        }
    kfi_mbar_wait(bar, 0);
    kfi_wgmma_fence();
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        const unsigned long long left = transposed_a
                                            ? kfi_wgmma_descriptor(of_a + q * 2048, 8192, 1024)
                                            : kfi_wgmma_descriptor(of_a + q * 32, 0, 1024),
                                 right = transposed_b
                                             ? kfi_wgmma_descriptor(of_b + q * 2048, 8192, 1024)
                                             : kfi_wgmma_descriptor(of_b + q * 32, 0, 1024);
        if constexpr (registers)
            kfi_wgmma_registers<n, type, transposed_b>(sums, own[q], right, add || q > 0);
        else
            kfi_wgmma<n, type, transposed_a, transposed_b>(sums, left, right, add || q > 0);
        if (q == 1) kfi_wgmma_commit();
    }
    kfi_wgmma_commit();
    kfi_wgmma_wait<1>();
    kfi_wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
        kfi_wgmma_opaque(sums[i]);
        d[(row + i / 2 % 2 * 8) * n + i / 4 * 8 + col + i % 2] = sums[i];
    }
#endif
}

// Loads and stores four matrices through registers, transposed or not in each direction.
template <int in, int back> KFI_KERNEL void matrices(const unsigned short *from, unsigned short *to)
{
#if KFI_HOPPER
    char *const memory = kfi_dynamic();
    const int lane = (int)threadIdx.x;
    for (int i = lane; i < 256; i += 32) ((unsigned short *)memory)[i] = from[i];
    __syncwarp();
    unsigned v[4];
    kfi_ldmatrix<in>(v, memory + lane * 16);
    kfi_stmatrix<back>(kfi_shared_address(memory) + 1024 + lane * 16, v);
    __syncwarp();
    for (int i = lane; i < 256; i += 32) to[i] = ((const unsigned short *)memory)[512 + i];
#endif
}

// Each block of a cluster multicasts its box, and stores to and arrives at every block.
KFI_KERNEL void cluster(MAP map, float *out, int blocks)
{
#if KFI_HOPPER
    char *const memory = kfi_dynamic();
    const unsigned at = kfi_shared_address(memory), bar = at + 16384, came = bar + 8;
    const int rank = kfi_cluster_rank();
    if (threadIdx.x == 0) {
        kfi_mbar_init(bar, blocks);
        kfi_mbar_init(came, 1);
        kfi_mbar_fence_init();
        kfi_mbar_expect(came, 1024 * blocks);
    }
    kfi_cluster_arrive();
    kfi_cluster_wait();
    if (threadIdx.x == 0) {
        kfi_tma_multicast(at + 1024 * rank, &map, came, 0, 8 * rank, (1u << blocks) - 1);
        for (int other = 0; other < blocks; ++other)
            kfi_store_remote(kfi_mapa(at + 8192 + 4 * rank, other), 10 * rank + other);
    }
    kfi_cluster_arrive();
    kfi_cluster_wait();
    if ((int)threadIdx.x < blocks) kfi_mbar_arrive_remote(kfi_mapa(bar, threadIdx.x));
    kfi_mbar_wait(bar, 0);
    kfi_mbar_wait(came, 0);
    float sum = 0;
    for (int i = threadIdx.x; i < 512 * blocks; i += blockDim.x)
        sum += (float)((const unsigned short *)memory)[i];
    float *const own = out + (rank * blockDim.x + threadIdx.x) * 2;
    own[0] = sum;
    own[1] =
        (int)threadIdx.x < blocks ? (float)((const unsigned *)(memory + 8192))[threadIdx.x] : 0;
    kfi_cluster_arrive();
    kfi_cluster_wait();
#endif
}

// A pipeline of two stages of 1,024 bytes: a producer warpgroup with few registers loads, and two
// consumer warpgroups sum the stages in ping-pong.
KFI_KERNEL void KFI_BOUNDS(384, 1) roles(const unsigned *in, unsigned *out, int count)
{
#if KFI_HOPPER
    char *const memory = kfi_dynamic();
    const unsigned at = kfi_shared_address(memory), full = at + 4096, empty = full + 16;
    const int group = (int)threadIdx.x / 128, t = (int)threadIdx.x % 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            kfi_mbar_init(full + 8 * i, 1);
            kfi_mbar_init(empty + 8 * i, 128);
        }
        kfi_mbar_fence_init();
    }
    __syncthreads();
    if (group == 0) {
        kfi_setmaxnreg_dec<24>();
        for (int i = 0; t == 0 && i < count; ++i) {
            kfi_mbar_wait(empty + 8 * (i % 2), (i / 2 + 1) % 2);
            kfi_mbar_expect(full + 8 * (i % 2), 1024);
            kfi_bulk_load(at + 1024 * (i % 2), in + 256 * i, 1024, full + 8 * (i % 2));
        }
        return;
    }
    kfi_setmaxnreg_inc<240>();
    unsigned sum = 0;
    if (group == 2) kfi_named_arrive<256>(1); // the other warpgroup begins
    for (int i = group - 1; i < count; i += 2) {
        kfi_named_sync<256>(group);
        kfi_mbar_wait(full + 8 * (i % 2), i / 2 % 2);
        sum += (i + 1) * (((const unsigned *)memory)[256 * (i % 2) + t] +
                          ((const unsigned *)memory)[256 * (i % 2) + 128 + t]);
        kfi_mbar_arrive(empty + 8 * (i % 2));
        kfi_named_arrive<256>(3 - group);
    }
    out[threadIdx.x - 128] = sum;
#endif
}

#ifdef KF_EMULATE
// Mistakes that the emulation must report.
enum {
    LEFT_LOAD,
    TWICE,
    NOT_COMMITTED,
    HALF_A_BARRIER,
    ODD_BYTES,
    TOO_FEW_BYTES,
    NO_BARRIER,
    NO_BLOCK,
    NOT_READ,
    NO_WGMMA_FENCE,
    SUMS_TOO_SOON,
    NOT_MADE,
    NEGATIVE,
    ODD_PLACE,
    NO_REGISTERS,
    NO_ASYNC_FENCE,
    TOO_MANY,
    NOT_WAITED,
    STAGE_TOO_SOON,
    MISUSES
};
KFI_KERNEL void misuse(MAP map, float *out, int how)
{
    char *const memory = kfi_dynamic();
    const unsigned at = kfi_shared_address(memory), bar = at + 16384;
    const int t = (int)threadIdx.x;
    if (t == 0) {
        kfi_mbar_init(bar, 1);
        if (how != NOT_MADE) kfi_mbar_fence_init();
    }
    __syncthreads();
    if (how == NO_WGMMA_FENCE || how == SUMS_TOO_SOON || how == NOT_WAITED ||
        how == STAGE_TOO_SOON) {
        float sums[32] = {};
        if (how != NO_WGMMA_FENCE) kfi_wgmma_fence();
        kfi_wgmma<64, KFI_OF_BF16>(sums, kfi_wgmma_descriptor(at, 0, 1024),
                                   kfi_wgmma_descriptor(at, 0, 1024), 1);
        kfi_wgmma_commit();
        if (how == NOT_WAITED) return;
        if (how == SUMS_TOO_SOON) sums[0] = 1;
        if (how == STAGE_TOO_SOON && t == 0) {
            kfi_mbar_expect(bar, 64);
            kfi_bulk_load(at, out, 64, bar);
            kfi_mbar_wait(bar, 0);
        }
        kfi_wgmma_wait<0>();
        out[t] = sums[0];
    }
    if (how == NO_REGISTERS) kfi_setmaxnreg_inc<256>();
    if (t > 0) return;
    if (how == LEFT_LOAD || how == TOO_FEW_BYTES || how == NOT_MADE) {
        kfi_mbar_expect(bar, how == TOO_FEW_BYTES ? 32 : 64);
        kfi_bulk_load(at, out, 64, bar);
        if (how != LEFT_LOAD) kfi_mbar_wait(bar, 0);
    }
    if (how == TWICE) {
        kfi_mbar_arrive(bar);
        kfi_mbar_wait(bar, 0);
        kfi_mbar_wait(bar, 0);
    }
    if (how == NOT_COMMITTED || how == ODD_BYTES)
        kfi_bulk_store(out, at, how == ODD_BYTES ? 24 : 64);
    if (how == HALF_A_BARRIER) kfi_named_sync<64>(3);
    if (how == NO_BARRIER) kfi_mbar_wait(at + 512, 0);
    if (how == NO_BLOCK) kfi_store_remote(at + 0x1000000, 0);
    if (how == NOT_READ || how == NO_ASYNC_FENCE) {
        if (how == NO_ASYNC_FENCE) ((float *)memory)[3] = 1;
        kfi_bulk_store(out, at, 64);
        kfi_bulk_commit();
        if (how == NO_ASYNC_FENCE) kfi_bulk_wait<0>();
    }
    if (how == NEGATIVE || how == ODD_PLACE) {
        kfi_tma_store(at, &map, how == ODD_PLACE ? 4 : 0, how == ODD_PLACE ? 0 : -1);
        kfi_bulk_commit();
        kfi_bulk_wait<0>();
    }
    if (how == TOO_MANY) {
        kfi_mbar_expect(bar, 64);
        kfi_mbar_arrive(bar);
        kfi_mbar_arrive(bar);
    }
}
#endif

#endif
