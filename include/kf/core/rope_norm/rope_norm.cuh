// SPDX-License-Identifier: Apache-2.0
// kf/core/rope_norm/rope_norm.cuh: the schedule of heads that are normalised and turned. 1 to 32
// neighbouring threads of a warp have a head, add up by shuffles, and read it once where each has a
// vector of either side; where it takes more, once a pass. A block has heads of the first tensor,
// then of the other one.
//
// Forward: a block has a group of heads of either. Backward: as many blocks as the sizes say, each
// with every so manyth group of heads, so that a thread has the same elements of all its heads, and
// the gradient of their weights in registers, or, where they take more, in its own row of the
// workspace; then a second kernel adds up what the blocks have left.
#ifndef KF_CORE_ROPE_NORM_ROPE_NORM_CUH
#define KF_CORE_ROPE_NORM_ROPE_NORM_CUH

#include "kf/core/sums.cuh"

#define KFI_HEAD_THREADS 256
#define KFI_HEAD_LANES 32
#define KFI_HEAD_PARTS                                                                             \
    (KFI_HEAD_THREADS /                                                                            \
     KFI_HEAD_LANES) // rows of the workspace of a block whose threads have no sums in registers

struct kfi_heads {
    kf_i64 all[2];        // heads of all rows, of either tensor
    kfi_divisor heads[2]; // of a row
    kf_i64 dim, pairs, positions;
    kf_i64 units;    // of a head: vectors of pairs, and of what lies behind them
    unsigned across; // threads of a head: 1, 2, ... 32
    void *partial;   // [tensor][part][stride]; NULL: nobody wants a weight's gradient
    kf_i64 parts, stride;
};

#ifdef KFI_DEVICE_PASS
// The sum over the threads of a head, the same in all of them.
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
    const char *elements;       // of each tensor, as core/rope/check.h reads it
    const void *const *kernels; // {vector, once}, {vector}, {1, once}, {1}
    int vec, acc_size;
};
// Blocks that add up a weight's gradient: as many as there is work for, two an SM.
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
        kfi_check_pairs(&m.name, m.elements, rows, heads, more, dim, pairs, positions, elements);
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
