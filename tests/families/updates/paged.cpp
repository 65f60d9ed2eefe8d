// SPDX-License-Identifier: Apache-2.0
// Reads and writes rows of caches of blocks (kf/core/paged.h) in a kernel, run by the emulator, and
// on the host. Arguments are those of kfi_pages, then of each call.
#include <cuda_runtime.h>

#include <kf/core/elementwise/elementwise.cuh>
#include <kf/core/paged.h>

// One thread per value: out[s][r][c] of rows `first` to `first + count` of each sequence.
static void gather(kfi_pages p, const float *cache, float *out, kf_i64 first, kf_i64 width)
{
    const kf_i64 s = blockIdx.x, r = blockIdx.y;
    const float *const row =
        (const float *)kfi_page_at(&p, (void *)cache, s, first + r, width * (kf_i64)sizeof(float));
    float *const to = out + (s * gridDim.y + r) * width;
    for (kf_i64 c = threadIdx.x; c < width; c += blockDim.x)
        to[c] = row ? row[c] : kfi_not_a_number(0.0f);
}
static void scatter(kfi_pages p, float *cache, const float *x, kf_i64 first, kf_i64 width)
{
    const kf_i64 s = blockIdx.x, r = blockIdx.y;
    float *const row = (float *)kfi_page_at(&p, cache, s, first + r, width * (kf_i64)sizeof(float));
    for (kf_i64 c = threadIdx.x; row && c < width; c += blockDim.x)
        row[c] = x[(s * gridDim.y + r) * width + c];
}

template <class... A> static int launch(void (*kernel)(A...), dim3 grid, A... arguments)
{
    void *args[] = {(void *)&arguments...};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(32);
    return (int)cudaLaunchKernelExC(&config, kf_emu_kernel(kernel, "paged"), args);
}

extern "C" int kft_gather(const int *table, kf_i64 sequences, kf_i64 pages, kf_i64 rows,
                          kf_i64 blocks, const float *cache, float *out, kf_i64 first, kf_i64 count,
                          kf_i64 width)
{
    const kfi_pages p = {table, sequences, pages, rows, blocks};
    return launch(gather, dim3((unsigned)sequences, (unsigned)count), p, cache, out, first, width);
}
extern "C" int kft_scatter(const int *table, kf_i64 sequences, kf_i64 pages, kf_i64 rows,
                           kf_i64 blocks, float *cache, const float *x, kf_i64 first, kf_i64 count,
                           kf_i64 width)
{
    const kfi_pages p = {table, sequences, pages, rows, blocks};
    return launch(scatter, dim3((unsigned)sequences, (unsigned)count), p, cache, x, first, width);
}
