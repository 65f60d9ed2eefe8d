// SPDX-License-Identifier: Apache-2.0
// kf/core/rope/rope.cuh: launch of rotary embeddings (rope) in CUDA; templates/rope/kernel.cuh.j2
// is the kernel.
//
// Several threads rotate one head of a row. A thread loads as many pairs as a vector has elements:
// two vectors that are `pairs` elements apart, or adjacent. It copies elements behind the pairs by
// vectors. All heads of a row read the same row of the tables, which the L1 cache serves after the
// first head. Grid: ceil(rows * heads / heads per block), block: 256 threads, no shared memory.
#ifndef KF_CORE_ROPE_ROPE_CUH
#define KF_CORE_ROPE_ROPE_CUH

#include "kf/core/kernel.cuh"

#define KFI_ROPE_THREADS 256

struct kfi_rope {
    kf_i64 all;       // rows * heads of both tensors
    kf_i64 own, more; // heads per row of the first tensor and of the second one
    kf_i64 dim, pairs, positions;
    kf_i64 units; // vectors per head: of pairs and of the elements behind them
    kfi_divisor heads;
    unsigned across, per_block; // threads per head, heads per block
};

#ifdef KFI_HOST_PASS
#include "kf/core/rope/check.h"

struct kfi_rope_op {
    kfi_name name;
    kfi_arguments arguments;
    // Number of elements of each tensor, by the codes of kfi_rope_check.
    const char *elements;
    const void *const *kernels; // {vector}, {1}
    int vec = 0;
};
KF_FN kf_result_t kfi_rope_run(const kfi_rope_op &m, kf_i64 rows, kf_i64 heads, kf_i64 more,
                               kf_i64 dim, kf_i64 pairs, kf_i64 positions, kfi_rope *g, void **args,
                               cudaStream_t stream)
{
    kf_i64 elements[KFI_MAX_TENSORS] = {};
    kf_result_t result =
        kfi_rope_check(&m.name, m.elements, rows, heads, more, dim, pairs, positions, elements);
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
    g->across = (unsigned)kfi_clamp(g->units, 1, KFI_ROPE_THREADS);
    g->per_block = KFI_ROPE_THREADS / g->across;
    const kf_i64 blocks = kfi_ceil(g->all, g->per_block);
    if (blocks > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch",
                        "of %lld x %lld heads needs more blocks than a launch may have",
                        (long long)rows, (long long)(heads + more));
    return kfi_launch(&m.name, m.kernels[vectors ? 0 : 1], dim3((unsigned)blocks), KFI_ROPE_THREADS,
                      args, stream);
}
#endif

#endif
