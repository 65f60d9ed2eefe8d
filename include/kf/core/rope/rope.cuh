// SPDX-License-Identifier: Apache-2.0
// kf/core/rope/rope.cuh: the schedule of the pairs family. Some threads have a head of a row, each as
// many pairs as a vector has elements: two vectors that lie `pairs` elements apart, or side by
// side. The row's part of the tables comes from the L1 cache for all heads but the first. Elements
// behind the pairs are copied, a vector a thread.
#ifndef KF_CORE_ROPE_ROPE_CUH
#define KF_CORE_ROPE_ROPE_CUH

#include "kf/core/kernel.cuh"

#define KFI_PAIRS_THREADS 256

struct kfi_pairs {
    kf_i64 all;       // heads of all rows
    kf_i64 own, more; // of those of a row the first tensor's, another one's
    kf_i64 dim, pairs, positions;
    kf_i64 units; // of a head: vectors of pairs, and of what lies behind them
    kfi_divisor heads;
    unsigned across, per_block; // threads of a head, heads of a block
};

#ifdef KFI_HOST_PASS
#include "kf/core/rope/check.h"

struct kfi_pairing {
    kfi_name name;
    kfi_arguments arguments;
    const char *elements; // of each tensor: a as a table, n as the positions, e as rows x heads x
                          // dim, m as another one of more heads
    const void *const *kernels; // {vector}, {1}
    int vec;
};
KF_FN kf_result_t kfi_pairs_run(const kfi_pairing &m, kf_i64 rows, kf_i64 heads, kf_i64 more,
                                kf_i64 dim, kf_i64 pairs, kf_i64 positions, kfi_pairs *g,
                                void **args, cudaStream_t stream)
{
    kf_i64 elements[KFI_MAX_TENSORS] = {};
    kf_result_t result =
        kfi_check_pairs(&m.name, m.elements, rows, heads, more, dim, pairs, positions, elements);
    if (result != KF_SUCCESS || rows == 0 || heads + more == 0 || dim == 0) return result;
    const kfi_shape shape = {rows, 0, (heads > 0 ? heads : more) * dim, 0, elements};
    kfi_operands operands;
    result = kfi_check_operands(&m.name, &m.arguments, &shape, nullptr, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    const bool vectors = operands.bits % 16 == 0 && pairs % m.vec == 0 && dim % m.vec == 0;
    g->all = rows * (heads + more);
    g->own = heads;
    g->more = more;
    g->dim = dim;
    g->pairs = pairs;
    g->positions = positions;
    g->units = (dim - pairs) / (vectors ? m.vec : 1);
    g->heads = kfi_make_divisor(heads + more);
    g->across = (unsigned)kfi_clamp(g->units, 1, KFI_PAIRS_THREADS);
    g->per_block = KFI_PAIRS_THREADS / g->across;
    const kf_i64 blocks = kfi_ceil(g->all, g->per_block);
    if (blocks > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch",
                        "of %lld x %lld heads needs more blocks than a launch may have",
                        (long long)rows, (long long)(heads + more));
    return kfi_launch(&m.name, m.kernels[vectors ? 0 : 1], dim3((unsigned)blocks),
                      KFI_PAIRS_THREADS, args, stream);
}
#endif

#endif
