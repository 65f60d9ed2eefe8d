/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that test the emulator: correct ones for each of its features, and one for each fault
   that it must report.

   kft_run(which, threads, blocks, cluster, bytes, out) launches one on `out`, an array of 64-bit
   words, with `cluster` blocks per cluster (0: no clusters) and `bytes` of dynamic memory. */
#include <cuda_runtime.h>

#include "kf/core/dtype.h"

typedef long long word;

#include "misaligned.h"

/* Reads uninitialised shared memory. */
template <int unused> static __global__ void unwritten(word *out)
{
    __shared__ double buffer[64];
    alignas(16) __shared__ char bytes[40];
    out[2 * blockIdx.x] = buffer[threadIdx.x % 64] != buffer[threadIdx.x % 64];
    out[2 * blockIdx.x + 1] = (unsigned char)bytes[3] == 0xff;
    buffer[threadIdx.x % 64] = 1.0;
    bytes[3] = 1;
}

/* Reverses the threads' values; needs both barriers. */
template <int unused> static __global__ void reversal(word *out)
{
    __shared__ word buffer[1024];
    buffer[threadIdx.x] = threadIdx.x;
    __syncthreads();
    const word other = buffer[blockDim.x - 1 - threadIdx.x];
    __syncthreads();
    buffer[threadIdx.x] = other;
    out[blockIdx.x * blockDim.x + threadIdx.x] = buffer[threadIdx.x] + 10000 * blockIdx.x;
}

/* Each thread writes an element of its own and reads uninitialised memory first. */
static __global__ void dynamic(word *out)
{
    double *const buffer = (double *)kf_emu_dynamic();
    word *const mine = out + 2 * (blockIdx.x * blockDim.x + threadIdx.x);
    mine[0] = buffer[threadIdx.x] != buffer[threadIdx.x];
    buffer[threadIdx.x] = 1000.0 * blockIdx.x + threadIdx.x;
    __syncthreads();
    mine[1] = (word)buffer[blockDim.x - 1 - threadIdx.x];
}
static __global__ void no_dynamic(word *out)
{
    out[0] =
        (kf_emu_dynamic() == nullptr) + 10 * kf_emu_cluster_size() + 100 * kf_emu_cluster_rank();
}

static __device__ void cluster_sync()
{
    kf_emu_cluster_arrive();
    kf_emu_cluster_wait();
}

/* Each thread sends a value to every block of its cluster, sums what its neighbour received, and
   then adds the sums of all blocks. */
static __global__ void all_to_all(word *out)
{
    word *const box = (word *)kf_emu_dynamic(), *const sums =
                                                    box + kf_emu_cluster_size() * blockDim.x;
    const unsigned rank = kf_emu_cluster_rank(), size = kf_emu_cluster_size(),
                   next = (threadIdx.x + 1) % blockDim.x;
    word sum = 0, total = 0;
    kf_emu_cluster_arrive();
    sums[threadIdx.x] = -1; /* own memory, between arrive and wait */
    kf_emu_cluster_wait();
    for (unsigned r = 0; r < size; ++r)
        *kf_emu_remote(box + rank * blockDim.x + threadIdx.x, r) =
            1000 * blockIdx.x + threadIdx.x + 7 * r;
    cluster_sync();
    for (unsigned r = 0; r < size; ++r) sum += box[r * blockDim.x + next];
    sums[threadIdx.x] = sum;
    __syncthreads();
    sum = sums[next];
    cluster_sync();
    for (unsigned r = 0; r < size; ++r) total += *kf_emu_remote(&sums[threadIdx.x], r);
    kf_emu_cluster_arrive(); /* keeps the block alive until all have read */
    out[2 * (blockIdx.x * blockDim.x + threadIdx.x)] = sum;
    out[2 * (blockIdx.x * blockDim.x + threadIdx.x) + 1] = total;
    kf_emu_cluster_wait();
}

/* Threads that returned count as arrived, whether or not they had arrived. */
static __global__ void some_return(word *out)
{
    if (threadIdx.x % 3 == 0) return;
    kf_emu_cluster_arrive();
    if (threadIdx.x % 3 == 1) return;
    kf_emu_cluster_wait();
    cluster_sync();
    out[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

static __global__ void shuffles(word *out)
{
    const int lane = (int)threadIdx.x % 32;
    word *const mine = out + 8 * (blockIdx.x * blockDim.x + threadIdx.x);
    mine[0] = __shfl_sync(0xffffffffu, lane, 5);
    mine[1] = __shfl_xor_sync(0xffffffffu, lane, 3);
    mine[2] = __shfl_up_sync(0xffffffffu, lane, 2u);
    mine[3] = (word)__shfl_down_sync(0xffffffffu, 0.5 * lane, 4u, 8);
    mine[4] = __ballot_sync(0xffffffffu, lane % 3 == 0);
    if (lane < 7)
        mine[5] = __any_sync(0x7fu, lane == 6) + 10 * __all_sync(0x7fu, lane < 6) +
                  100 * __all_sync(0x7fu, 1);
    __syncwarp();
    mine[6] = __shfl_sync(0xffffffffu, lane, lane + 1, 4);
    mine[7] = 0;
    if (lane < 8)
        mine[7] = __shfl_sync(0xffu, (int)threadIdx.x, 20) ==
                  -1; /* a lane outside the mask provides no value */
}

/* Stores what a thread sees of two cp.async copies: before the first wait, between, and after the
   last. */
static __global__ void copies(word *out)
{
    alignas(16) __shared__ word buffer[2 * 64];
    const word first[2] = {1000 + threadIdx.x, 2000 + threadIdx.x},
               second[2] = {3000 + threadIdx.x, 4000 + threadIdx.x};
    word *const mine = out + 4 * threadIdx.x, *const own = buffer + 2 * threadIdx.x;
    kf_emu_fetch(own, first, 16, 8); /* reads 8 bytes, zero-fills the rest */
    kf_emu_fetch_commit();
    kf_emu_fetch_wait(1);
    mine[0] = own[0];
    kf_emu_fetch_wait(0);
    mine[1] = own[0] + own[1];
    kf_emu_fetch(own, second, 16, 16);
    kf_emu_fetch_commit();
    kf_emu_fetch_commit();
    kf_emu_fetch_wait(1); /* all groups but the empty one */
    mine[2] = own[0] + 10000 * own[1];
    kf_emu_fetch(own, first, 8, 8);
    kf_emu_fetch_commit();
    mine[3] = own[0]; /* not waited for */
}
/* Loads four matrices whose elements are their indices, 64 per matrix. */
static __global__ void four_matrices(word *out)
{
    alignas(16) __shared__ unsigned short rows[32][8];
    for (int e = 0; e < 8; ++e)
        rows[threadIdx.x][e] = (unsigned short)(threadIdx.x * 8 + (unsigned)e);
    __syncwarp();
    for (int transposed = 0; transposed < 2; ++transposed) {
        unsigned v[4];
        kf_emu_matrices(v, rows[threadIdx.x], transposed);
        for (int i = 0; i < 4; ++i) out[(transposed * 32 + threadIdx.x) * 4 + i] = v[i];
    }
}
/* Row r of A is r + 1 at k = r and 1 at k = 15 - r. Column c of B is 2^k (c + 1). Tests both
   types. */
static __global__ void multiplied(word *out)
{
    const int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4 * 2;
    for (int bf16 = 0; bf16 < 2; ++bf16) {
        float d[4] = {0.5f, 0.5f, 0.5f, 0.5f};
        unsigned a[4] = {}, b[2] = {};
        const auto bits = [bf16](float v) {
            return (unsigned)(bf16 ? kf_emu_bits<unsigned short>(__float2bfloat16_rn(v))
                                   : kf_emu_bits<unsigned short>(__float2half_rn(v)));
        };
        for (int i = 0; i < 4; ++i)
            for (int e = 0; e < 2; ++e) {
                const int row = g + i % 2 * 8, depth = t + e + i / 2 * 8;
                a[i] |= bits((float)((depth == row ? row + 1 : 0) + (depth == 15 - row))) << 16 * e;
            }
        for (int i = 0; i < 2; ++i)
            for (int e = 0; e < 2; ++e)
                b[i] |= bits(ldexpf((float)(g + 1), t + e + i * 8 - 8)) << 16 * e;
        kf_emu_multiply(d, a, b, bf16 != 0);
        for (int i = 0; i < 4; ++i)
            out[bf16 * 128 + (g + i / 2 * 8) * 8 + t + i % 2] = (word)(d[i] * 512.0f);
    }
}
static __global__ void product_without_a_lane(word *out)
{
    float d[4] = {};
    const unsigned a[4] = {}, b[2] = {};
    if (threadIdx.x != 9) kf_emu_multiply(d, a, b, true);
    out[threadIdx.x] = (word)d[0];
}
static __global__ void too_many_copies(word *out)
{
    __shared__ word buffer;
    for (int i = 0; i < 300; ++i) kf_emu_fetch(&buffer, out, 8, 8);
}

static __global__ void votes(word *out)
{
    const word all = __syncthreads_and(threadIdx.x < 1000),
               any = __syncthreads_or(threadIdx.x == 7),
               count = __syncthreads_count(threadIdx.x % 2 == 0);
    out[threadIdx.x] = all + 10 * any + 100 * count;
}

static __global__ void atomics(word *out)
{
    atomicAdd((int *)&out[0], 3);
    atomicMax(&out[1], (word)threadIdx.x);
    atomicMin(&out[2], -(word)threadIdx.x);
    atomicAdd((double *)&out[3], 0.5);
    if (atomicCAS(&out[4], (word)0, (word)1) == 0)
        atomicAdd(&out[5], (word)1); /* exactly one of all threads */
    if (atomicExch(&out[6], (word)7) != 7) atomicAdd(&out[7], (word)1);
}

static __global__ void indices(word *out)
{
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

/* Records the order of threads, on which no result may depend. */
static __global__ void order(word *out)
{
    const word position = out[0]++;
    out[1 + position] = blockIdx.x * blockDim.x + threadIdx.x;
}

static __global__ void barrier_not_reached(word *out)
{
    if (threadIdx.x % 32 == 3 || threadIdx.x > 60) return;
    __syncthreads(); /* the tests know this line */
    out[0] = 1;
}

static __global__ void two_barriers(word *out)
{
    if (threadIdx.x < 8)
        __syncthreads();
    else
        __syncthreads();
    out[0] = 1;
}

static __global__ void not_all_of_the_cluster(word *out)
{
    if (blockIdx.x == 1 && threadIdx.x < 32) __syncthreads();
    cluster_sync();
    out[0] = 1;
}
static __global__ void arrives_twice(word *)
{
    kf_emu_cluster_arrive();
    if (blockIdx.x == 1 && threadIdx.x == 5) kf_emu_cluster_arrive(); /* the tests know this one */
    kf_emu_cluster_wait();
}
static __global__ void waits_first(word *)
{
    cluster_sync();
    if (blockIdx.x == 1 && threadIdx.x == 5) kf_emu_cluster_wait();
    cluster_sync();
}
static __global__ void not_its_memory(word *out)
{
    cluster_sync();
    if (blockIdx.x == 1 && threadIdx.x == 5) kf_emu_remote(out, 0);
    cluster_sync();
}
static __global__ void beyond_its_memory(word *)
{
    cluster_sync();
    if (blockIdx.x == 1 && threadIdx.x == 5)
        kf_emu_remote((word *)(kf_emu_dynamic() + 60), 0); /* only 64 bytes exist */
    cluster_sync();
}
static __global__ void no_such_block(word *)
{
    cluster_sync();
    if (blockIdx.x == 1 && threadIdx.x == 5) kf_emu_remote(kf_emu_dynamic(), 2);
    cluster_sync();
}
static __global__ void has_not_begun(word *)
{
    *kf_emu_remote(kf_emu_dynamic(), 1 - kf_emu_cluster_rank()) = 1;
}
static __global__ void has_ended(word *)
{
    cluster_sync();
    if (blockIdx.x == 0) return;
    cluster_sync();
    *kf_emu_remote(kf_emu_dynamic(), 0) = 1;
}
static __global__ void ended_since(word *)
{
    cluster_sync();
    char *const other = kf_emu_remote(kf_emu_dynamic(), 0);
    cluster_sync();
    if (blockIdx.x == 0) return;
    cluster_sync();
    *other = 1; /* memory of a block that has ended */
}
static __global__ void static_in_a_cluster(word *out)
{
    __shared__ word sum;
    if (threadIdx.x == 0) sum = blockIdx.x;
    __syncthreads();
    out[blockIdx.x] = sum;
}

static __global__ void lane_is_missing(word *out)
{
    if (threadIdx.x != 9) out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}

static __global__ void masks_differ(word *out)
{
    out[threadIdx.x] = __shfl_sync(threadIdx.x < 16 ? 0xffffffffu : 0xffff0000u, 1, 16);
}
static __global__ void not_in_its_mask(word *out) { out[threadIdx.x] = __shfl_sync(0xffu, 1, 1); }
static __global__ void beyond_the_warp(word *out)
{
    out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 1);
}

/* Lacks a barrier, which goes unnoticed in forward order. */
static __global__ void race(word *out)
{
    __shared__ word buffer[1024];
    buffer[threadIdx.x] = threadIdx.x;
    out[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x == 0 ? 0 : buffer[threadIdx.x - 1];
}
/* Lacks the second barrier of reversal(): a value is overwritten before all threads have read
   it. */
static __global__ void late_readers(word *out)
{
    __shared__ word buffer[1024];
    buffer[threadIdx.x] = threadIdx.x;
    __syncthreads();
    const word other = buffer[blockDim.x - 1 - threadIdx.x];
    buffer[threadIdx.x] = other; /* too early */
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = buffer[threadIdx.x];
}
/* No race: the same thread, and memory of another block. */
static __global__ void no_race(word *out)
{
    __shared__ word buffer[1024];
    buffer[threadIdx.x] = threadIdx.x;
    out[blockIdx.x * blockDim.x + threadIdx.x] = buffer[threadIdx.x];
}
static __global__ void race_of_blocks(word *out) { out[threadIdx.x] = blockIdx.x; }

/* Uses a block barrier where values from another block require a cluster barrier. */
static __global__ void race_in_a_cluster(word *out)
{
    word *const box = (word *)kf_emu_dynamic();
    cluster_sync();
    *kf_emu_remote(box + threadIdx.x, 1 - kf_emu_cluster_rank()) = threadIdx.x;
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = box[threadIdx.x]; /* too early for a block */
    cluster_sync();
}

static __global__ void beyond_dynamic(word *out)
{
    char *const mine = kf_emu_dynamic() + threadIdx.x;
    *mine = 1; /* 42 threads write 41 bytes */
    out[threadIdx.x] = *mine;
}

static __global__ void beyond_shared(word *out)
{
    __shared__ word buffer[16];
    word *const mine = buffer + threadIdx.x;
    *mine = 1; /* 17 threads write 16 elements */
    out[threadIdx.x] = *mine;
}

extern "C" int kft_run(const char *which, unsigned threads, unsigned blocks, unsigned cluster,
                       unsigned bytes, word *out)
{
    static const struct {
        const char *name;
        void (*kernel)(word *);
    } kernels[] = {{"unwritten", unwritten<0>},
                   {"reversal", reversal<0>},
                   {"dynamic", dynamic},
                   {"no_dynamic", no_dynamic},
                   {"all_to_all", all_to_all},
                   {"some_return", some_return},
                   {"shuffles", shuffles},
                   {"copies", copies},
                   {"four_matrices", four_matrices},
                   {"multiplied", multiplied},
                   {"product_without_a_lane", product_without_a_lane},
                   {"too_many_copies", too_many_copies},
                   {"votes", votes},
                   {"atomics", atomics},
                   {"indices", indices},
                   {"order", order},
                   {"barrier_not_reached", barrier_not_reached},
                   {"two_barriers", two_barriers},
                   {"not_all_of_the_cluster", not_all_of_the_cluster},
                   {"arrives_twice", arrives_twice},
                   {"waits_first", waits_first},
                   {"not_its_memory", not_its_memory},
                   {"beyond_its_memory", beyond_its_memory},
                   {"no_such_block", no_such_block},
                   {"has_not_begun", has_not_begun},
                   {"has_ended", has_ended},
                   {"ended_since", ended_since},
                   {"static_in_a_cluster", static_in_a_cluster},
                   {"lane_is_missing", lane_is_missing},
                   {"masks_differ", masks_differ},
                   {"not_in_its_mask", not_in_its_mask},
                   {"misaligned_vector", misaligned_vector},
                   {"misaligned_store", misaligned_store},
                   {"misaligned_copy", misaligned_copy},
                   {"misaligned_source", misaligned_source},
                   {"misaligned_rows", misaligned_rows},
                   {"misaligned_atomic", misaligned_atomic},
                   {"beyond_the_warp", beyond_the_warp},
                   {"race", race},
                   {"late_readers", late_readers},
                   {"no_race", no_race},
                   {"race_of_blocks", race_of_blocks},
                   {"race_in_a_cluster", race_in_a_cluster},
                   {"beyond_dynamic", beyond_dynamic},
                   {"beyond_shared", beyond_shared}};
    for (const auto &k : kernels) {
        if (strcmp(k.name, which) != 0) continue;
        cudaLaunchConfig_t config = {};
        const bool cube = strcmp(which, "indices") == 0;
        config.gridDim = cube ? dim3(blocks, 3, 2) : dim3(blocks);
        config.blockDim = cube ? dim3(threads, 2, 4) : dim3(threads);
        config.dynamicSmemBytes = bytes;
        cudaLaunchAttribute attributes[2] = {}; /* a cluster of 0 x 0 x 0 blocks means none */
        attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[0].val.programmaticStreamSerializationAllowed = 1;
        attributes[1].id = cudaLaunchAttributeClusterDimension;
        attributes[1].val.clusterDim.x = cluster;
        attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = cluster != 0;
        config.attrs = attributes;
        config.numAttrs = 2;
        void *args[] = {&out};
        return cudaLaunchKernelExC(&config, kf_emu_kernel(k.kernel, k.name), args);
    }
    return -1;
}

extern "C" int kft_launch_nothing(void)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = dim3(1);
    return cudaLaunchKernelExC(&config, nullptr, nullptr);
}

extern "C" int kft_launch_flat_cluster(void)
{
    word out[1], *p = out;
    void *args[] = {&p};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = attribute.val.clusterDim.y = 2;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2, 2);
    config.blockDim = dim3(1);
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelExC(&config, kf_emu_kernel(no_dynamic, "no_dynamic"), args);
}

extern "C" int kft_allow_dynamic(int bytes)
{
    return cudaFuncSetAttribute(kf_emu_kernel(dynamic, "dynamic"),
                                cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

extern "C" const char *kft_detail(void) { return ""; }
extern "C" const char *kft_string(int) { return ""; }
