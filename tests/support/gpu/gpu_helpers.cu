// SPDX-License-Identifier: Apache-2.0
// Helpers of tests on a GPU: a kernel that runs until told, periodic data, comparisons on the
// device.
#include <cuda_runtime.h>

typedef long long i64;
typedef unsigned long long u64;
#define THREADS 256
#define BLOCKS 4096

// Runs until the host sets *flag, at most `seconds`, so that a failing test does not hang the GPU.
static __global__ void spin(volatile int *flag, u64 seconds)
{
    u64 begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (!*flag && now - begin < seconds * 1000000000ull);
}

// to[i] = from[i % period], in words of `size` bytes.
template <typename T> static __global__ void repeat(T *to, const T *from, i64 n, i64 period)
{
    for (i64 i = blockIdx.x * (i64)THREADS + threadIdx.x; i < n; i += (i64)gridDim.x * THREADS)
        to[i] = from[i % period];
}

// found[0]: number of different words; found[1]: index of the first.
static __device__ void note(u64 *found, i64 i)
{
    atomicAdd(&found[0], 1ull);
    atomicMin(&found[1], (u64)i);
}
static __global__ void differ(const unsigned char *a, const unsigned char *b, i64 n, u64 *found)
{
    for (i64 i = blockIdx.x * (i64)THREADS + threadIdx.x; i < n; i += (i64)gridDim.x * THREADS)
        if (a[i] != b[i]) note(found, i);
}
template <typename T>
static __global__ void differ_periodic(const T *a, const T *kept, const T *dropped, i64 n,
                                       i64 period, i64 first, u64 seed, u64 offset,
                                       unsigned threshold, u64 *found)
{
    for (i64 i = blockIdx.x * (i64)THREADS + threadIdx.x; i < n; i += (i64)gridDim.x * THREADS) {
        bool keep = true;
        if (dropped) { // Philox4x32-10, from the paper
            const u64 index = (u64)(first + i), group = index / 8;
            unsigned c[4] = {(unsigned)group, (unsigned)(group >> 32), (unsigned)offset,
                             (unsigned)(offset >> 32)};
            unsigned k[2] = {(unsigned)seed, (unsigned)(seed >> 32)};
            for (int round = 0; round < 10; ++round) {
                const u64 p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
                const unsigned next[4] = {(unsigned)(p1 >> 32) ^ c[1] ^ k[0], (unsigned)p1,
                                          (unsigned)(p0 >> 32) ^ c[3] ^ k[1], (unsigned)p0};
                for (int j = 0; j < 4; ++j) c[j] = next[j];
                k[0] += 0x9E3779B9u;
                k[1] += 0xBB67AE85u;
            }
            const int word = (int)(index % 8);
            keep = ((c[word / 2] >> (16 * (word % 2))) & 0xffffu) >= threshold;
        }
        if (a[i] != (keep ? kept : dropped)[i % period]) note(found, i);
    }
}

extern "C" {
int kfg_spin(int *flag, u64 seconds, void *stream)
{
    spin<<<1, 1, 0, (cudaStream_t)stream>>>(flag, seconds);
    return (int)cudaGetLastError();
}
int kfg_repeat(void *to, const void *from, i64 n, i64 period, int size, void *stream)
{
    const cudaStream_t s = (cudaStream_t)stream;
    if (size != 1 && size != 2 && size != 4 && size != 8) return (int)cudaErrorInvalidValue;
    if (size == 1)
        repeat<<<BLOCKS, THREADS, 0, s>>>((unsigned char *)to, (const unsigned char *)from, n,
                                          period);
    if (size == 2)
        repeat<<<BLOCKS, THREADS, 0, s>>>((unsigned short *)to, (const unsigned short *)from, n,
                                          period);
    if (size == 4)
        repeat<<<BLOCKS, THREADS, 0, s>>>((unsigned *)to, (const unsigned *)from, n, period);
    if (size == 8) repeat<<<BLOCKS, THREADS, 0, s>>>((u64 *)to, (const u64 *)from, n, period);
    return (int)cudaGetLastError();
}
int kfg_differ(const void *a, const void *b, i64 n, u64 *found, void *stream)
{
    differ<<<BLOCKS, THREADS, 0, (cudaStream_t)stream>>>((const unsigned char *)a,
                                                         (const unsigned char *)b, n, found);
    return (int)cudaGetLastError();
}
#define KFG_PERIODIC(T)                                                                            \
    differ_periodic<<<BLOCKS, THREADS, 0, s>>>((const T *)a, (const T *)kept, (const T *)dropped,  \
                                               n, period, first, seed, offset, threshold, found)
// a[i] is kept[i % period], or dropped[i % period] where the mask of element first + i says so
// (dropped NULL: no mask).
int kfg_differ_periodic(const void *a, const void *kept, const void *dropped, i64 n, i64 period,
                        i64 first, u64 seed, u64 offset, unsigned threshold, int size, u64 *found,
                        void *stream)
{
    const cudaStream_t s = (cudaStream_t)stream;
    if (size != 1 && size != 2 && size != 4 && size != 8) return (int)cudaErrorInvalidValue;
    if (size == 1) KFG_PERIODIC(unsigned char);
    if (size == 2) KFG_PERIODIC(unsigned short);
    if (size == 4) KFG_PERIODIC(unsigned);
    if (size == 8) KFG_PERIODIC(u64);
    return (int)cudaGetLastError();
}
}
