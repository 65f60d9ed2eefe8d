// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/portable_host.cuh: host side of the portable attention kernels (portable.cuh,
// simt.cuh): tiles and the launch.
#ifndef KF_CORE_ATTENTION_PORTABLE_HOST_CUH
#define KF_CORE_ATTENTION_PORTABLE_HOST_CUH

#include "kf/core/attention/portable.cuh"
#include "kf/core/attention/simt.cuh"

#ifdef KFI_HOST_PASS
#include "kf/core/attention/check.h"

// Returns the smallest tile of mma.sync, padded to the larger head dimension, that has a kernel;
// -1: none.
KF_FN int kfi_attention_pick_mma(const void *const *kernels, kf_i64 dim, kf_i64 dim_v)
{
    const kf_i64 most = dim > dim_v ? dim : dim_v;
    for (int tile = KFI_ATTENTION_MMA_64; tile <= KFI_ATTENTION_MMA_256; ++tile)
        if (kernels[tile] && most <= kfi_attention_mma_dim(tile)) return tile;
    return -1;
}
// Returns the smallest tile of FMAs that has a kernel, from `first` on; -1: none.
KF_FN int kfi_attention_pick_simt(const void *const *kernels, kf_i64 dim_v, int first)
{
    for (int tile = first; tile < 3; ++tile)
        if (kernels[tile] && dim_v <= kfi_attention_simt_dim_v(tile)) return tile;
    return -1;
}
// The same of 2-byte elements, whose tiles may have empty code. Without any code that is known to
// run, returns a tile that is not loaded, whose launch reports the cause.
KF_FN KFI_SMALL int kfi_attention_pick_small_simt(const void *const *kernels, kf_i64 dim_v)
{
    int unknown = -1, tile = kfi_attention_pick_simt(kernels, dim_v, 0);
    for (; tile >= 0; tile = kfi_attention_pick_simt(kernels, dim_v, tile + 1)) {
        const int most = kfi_most_threads(kernels[tile]);
        if (most >= KFI_ATTENTION_SIMT_THREADS) return tile;
        if (most == 0) unknown = tile;
    }
    return unknown;
}
// Fills in the blocks of `rows` rows of a head, and the heads of all batches. Packed sequences have
// enough for any bounds (packed.cuh).
KF_FN void kfi_attention_plan_rows(kfi_attention *a, const kfi_attention_plan &p, int rows)
{
    a->row_blocks = (int)(p.packed ? p.queries / rows + p.batch + 2 : kfi_ceil(p.queries, rows));
    a->batch_heads = (int)(p.packed ? p.heads : p.batch * p.heads);
}
// Launches one block per `rows` rows and head. Of packed sequences, `a` begins their arguments.
KF_FN kf_result_t kfi_attention_launch_rows(const kfi_name *name, const void *kernel,
                                            kfi_attention *a, const kfi_attention_plan &p, int rows,
                                            int shared, int threads, cudaStream_t stream)
{
    void *args[] = {a};
    kfi_attention_plan_rows(a, p, rows);
    return kfi_launch(name, kernel, dim3((unsigned)(a->row_blocks * a->batch_heads)),
                      (unsigned)threads, args, stream, true, (unsigned)shared);
}
KF_FN kf_result_t kfi_attention_launch_mma(const kfi_name *name, const void *kernel,
                                           kfi_attention *a, int tile, const kfi_attention_plan &p,
                                           cudaStream_t stream)
{
    return kfi_attention_launch_rows(name, kernel, a, p, KFI_ATTENTION_MMA_ROWS,
                                     kfi_attention_mma_shared_bytes(tile),
                                     KFI_ATTENTION_MMA_THREADS, stream);
}
KF_FN kf_result_t kfi_attention_launch_simt(const kfi_name *name, const void *kernel,
                                            kfi_attention *a, int type, int tile,
                                            const kfi_attention_plan &p, cudaStream_t stream)
{
    return kfi_attention_launch_rows(name, kernel, a, p, kfi_attention_simt_rows(type, tile),
                                     kfi_attention_simt_shared_bytes(type, tile),
                                     KFI_ATTENTION_SIMT_THREADS, stream);
}
#endif

#endif
