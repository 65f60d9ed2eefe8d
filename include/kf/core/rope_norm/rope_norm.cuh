// SPDX-License-Identifier: Apache-2.0
// kf/core/rope_norm/rope_norm.cuh: heads that are normalised and rotated (rope): CUDA schedule and
// launches.
//
// 1 to 32 adjacent lanes of a warp share a head and reduce by shuffles. They read the head once if
// each lane has one vector per side, otherwise once per pass. A block processes heads of the first
// tensor, then of the second one.
//
// Forward: one group of heads of each tensor per block. Backward: the grid size depends only on the
// shape, and blocks take groups of heads grid-stride. A thread has the same elements of all its
// heads, so it sums the gradient of their weight in registers, or in its own row of the workspace
// if a head needs several vectors. A second kernel adds up the partial sums of the blocks.
#ifndef KF_CORE_ROPE_NORM_ROPE_NORM_CUH
#define KF_CORE_ROPE_NORM_ROPE_NORM_CUH

#include "kf/core/sums.cuh"

#define KFI_HEAD_THREADS 256
#define KFI_HEAD_LANES 32
// Rows of the workspace per block whose threads have no sums in registers.
#define KFI_HEAD_PARTS (KFI_HEAD_THREADS / KFI_HEAD_LANES)

struct kfi_heads {
    kf_i64 all[2];        // heads of all rows, per tensor
    kfi_divisor heads[2]; // per row
    kf_i64 dim, pairs, positions;
    kf_i64 units;    // per head: vectors of pairs and of the elements after them
    unsigned across; // threads per head: 1, 2, ... 32
    void *partial;   // [tensor][part][stride]; NULL: no weight's gradient is wanted
    kf_i64 parts, stride;
};

#ifdef KFI_DEVICE_PASS
// Sum over the threads of a head, returned to all of them.
template <class R> KFI_DEVICE R kfi_head_sum(R v, unsigned across)
{
    for (unsigned by = across / 2; by > 0; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, (int)by);
    return v;
}
#endif

#ifdef KFI_HOST_PASS
#include "kf/core/rope/check.h"

struct kfi_normed {
    kfi_name name;
    kfi_arguments arguments;
    const char *elements;       // sizes of the tensors, one code each (core/rope/check.h)
    const void *const *kernels; // {vector, once}, {vector}, {1, once}, {1}
    int vec = 0, acc_size = 0;
};
// Number of blocks that sum a weight's gradient: by the amount of work, at most two per SM.
KF_FN KFI_SMALL kf_i64 kfi_head_parts(kf_i64 rows, kf_i64 heads, kf_i64 dim)
{
    return KFI_HEAD_PARTS * kfi_clamp(rows * heads * dim / (KFI_HEAD_PARTS * 4096), 1,
                                      KFI_MAP_SMS * 2 / KFI_HEAD_PARTS);
}
KF_FN KFI_SMALL size_t kfi_heads_workspace(kf_i64 rows, kf_i64 heads, kf_i64 more, kf_i64 dim,
                                           kf_i64 pairs, kf_i64 positions, int acc_size)
{
    if (!kfi_fits(rows, heads, dim) || !kfi_fits(rows, more, dim) || !kfi_fits(positions, pairs, 1))
        return 0;
    return kfi_workspace(
        (size_t)(2 * kfi_head_parts(rows, heads + more, dim) * kfi_ceil(dim, 4) * 4) *
        (size_t)acc_size);
}
// s: nullptr in a forward.
KF_FN kf_result_t kfi_heads_run(const kfi_normed &m, kf_i64 rows, kf_i64 heads, kf_i64 more,
                                kf_i64 dim, kf_i64 pairs, kf_i64 positions, kfi_heads *g,
                                void **args, kfi_sums *s, const void *const *sum_kernels,
                                void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    kf_i64 elements[KFI_MAX_TENSORS] = {};
    kf_result_t result =
        kfi_rope_check(&m.name, m.elements, rows, heads, more, dim, pairs, positions, elements);
    if (result != KF_SUCCESS || dim == 0 || (!s && (rows == 0 || heads + more == 0))) return result;
    const kfi_shape shape = {rows, 0, (heads > 0 ? heads : more) * dim, 0, elements};
    kfi_operands operands;
    result = kfi_check_operands(&m.name, &m.arguments, &shape, nullptr, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    if (s)
        result = kfi_check_workspace(
            &m.name, &m.arguments, &operands, workspace, workspace_bytes,
            kfi_heads_workspace(rows, heads, more, dim, pairs, positions, m.acc_size));
    if (result != KF_SUCCESS) return result;
    const bool vectors = operands.bits % 16 == 0 && pairs % m.vec == 0 && dim % m.vec == 0;
    const bool wanted = s && kfi_sums_wanted(s, nullptr, 2);
    g->all[0] = rows * heads;
    g->all[1] = rows * more;
    g->heads[0] = kfi_make_divisor(heads > 0 ? heads : 1);
    g->heads[1] = kfi_make_divisor(more > 0 ? more : 1);
    g->dim = dim;
    g->pairs = pairs;
    g->positions = positions;
    g->units = (dim - pairs) / (vectors ? m.vec : 1);
    g->across = 1;
    while (g->across < KFI_HEAD_LANES && g->across < g->units) g->across *= 2;
    const bool once = g->units <= g->across;
    const kf_i64 most = heads > more ? heads : more,
                 groups = kfi_ceil(rows * most, KFI_HEAD_THREADS / g->across);
    g->partial = wanted ? workspace : nullptr;
    g->parts = s ? kfi_head_parts(rows, heads + more, dim) : 0;
    g->stride = kfi_ceil(dim, 4) * 4;
    const kf_i64 blocks = !s ? groups : once ? g->parts : g->parts / KFI_HEAD_PARTS;
    if (blocks > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch",
                        "of %lld x %lld heads needs more blocks than a launch may have",
                        (long long)rows, (long long)most);
    result = kfi_launch(&m.name, m.kernels[(vectors ? 0 : 2) + !once], dim3((unsigned)blocks),
                        KFI_HEAD_THREADS, args, stream);
    if (result != KF_SUCCESS || !wanted) return result;
    s->partial = workspace;
    s->parts = g->parts;
    s->count = dim;
    s->stride = g->stride;
    return kfi_launch_sums(&m.name, s, nullptr, 2, g->parts * g->stride * m.acc_size, sum_kernels,
                           1, kfi_ceil(dim, 4 * KFI_SUM_LANES), KFI_SUM_LANES * KFI_SUM_GROUPS,
                           stream);
}
#endif

#endif
