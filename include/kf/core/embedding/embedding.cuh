// SPDX-License-Identifier: Apache-2.0
// kf/core/embedding/embedding.cuh: the schedules of the lookup family.
//
// lookup  some threads have a row, each four vectors of it (one, where its length has it so): loads
// that depend on the row's number are on
//         their way together.
// sum     the gradient of the table. The places of equal numbers are sorted (index_sort.cuh); some
// threads have a row of the table, each a vector
//         of it, and add up what belongs to it, four rows on their way.
#ifndef KF_CORE_EMBEDDING_EMBEDDING_CUH
#define KF_CORE_EMBEDDING_EMBEDDING_CUH

#include "kf/core/index_sort.cuh"

#define KFI_LOOKUP_THREADS 256
#define KFI_LOOKUP_AHEAD 4
#define KFI_LOOKUP_SUM_THREADS 128

struct kfi_lookup {
    kf_i64 rows, cols, vocab;
    const kf_i64 *begin,
        *ids; // sum: where each number's places begin, the places; begin NULL: there are none
    kfi_divisor tiles;          // sum: of a row of the table
    kf_i64 items;               // sum: tiles of as many rows as a block has
    unsigned across, per_block; // threads of a row, rows of a block
};

#ifdef KFI_HOST_PASS
struct kfi_looking {
    kfi_name name;
    kfi_arguments arguments;
    const char *elements; // of each tensor: t as the table, n as the numbers, e as rows x cols
    const void *const
        *kernels; // lookup: {vector, 4}, {vector, 1}, {1, 1}; sum: {vector}, {1}, those of the sort
    int vec;
};
// made: rows of what is made. Without any, and without columns, nothing but sizes is asked:
// operands->wanted is 0.
KF_FN KFI_SMALL kf_result_t kfi_lookup_check(const kfi_looking &m, const kfi_lookup &g, kf_i64 made,
                                             kfi_operands *operands)
{
    const kf_i64 result[] = {g.rows, g.cols}, table[] = {g.vocab, g.cols};
    kf_result_t code = kfi_check_sizes(&m.name, "rows cols", result, 2);
    if (code == KF_SUCCESS) code = kfi_check_sizes(&m.name, "vocab cols", table, 2);
    operands->wanted = 0;
    if (code != KF_SUCCESS || made == 0 || g.cols == 0) return code;
    kf_i64 elements[KFI_MAX_TENSORS];
    for (int i = 0; m.elements[i]; ++i)
        elements[i] = m.elements[i] == 't'   ? g.vocab * g.cols
                      : m.elements[i] == 'n' ? g.rows
                                             : g.rows * g.cols;
    const kfi_shape shape = {g.rows, 0, g.cols, 0, elements};
    return kfi_check_operands(&m.name, &m.arguments, &shape, nullptr, operands);
}
// How many threads have a row of so many vectors, and how many such rows a block has.
KF_FN KFI_SMALL void kfi_lookup_share(kfi_lookup *g, kf_i64 across, int threads)
{
    g->across = (unsigned)across;
    g->per_block = (unsigned)(threads / across);
}
KF_FN kf_result_t kfi_lookup_run(const kfi_looking &m, kfi_lookup *g, void **args,
                                 cudaStream_t stream)
{
    kfi_operands operands;
    const kf_result_t result = kfi_lookup_check(m, *g, g->rows, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    const bool vectors = operands.bits % 16 == 0 && g->cols % m.vec == 0;
    const kf_i64 all = vectors ? g->cols / m.vec : g->cols, quarter = all / KFI_LOOKUP_AHEAD;
    kf_i64 across = kfi_clamp(quarter, 1, KFI_LOOKUP_THREADS);
    while (vectors && all % KFI_LOOKUP_AHEAD == 0 && quarter % across != 0) --across;
    // Fewer threads than this, and a row's loads follow each other.
    const bool ahead =
        vectors && all % KFI_LOOKUP_AHEAD == 0 && (across == quarter || across >= 32);
    kfi_lookup_share(g, ahead ? across : kfi_clamp(all, 1, KFI_LOOKUP_THREADS), KFI_LOOKUP_THREADS);
    const kf_i64 blocks = kfi_ceil(g->rows, g->per_block);
    if (blocks > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch",
                        "of %lld rows needs more blocks than a launch may have",
                        (long long)g->rows);
    return kfi_launch(&m.name,
                      m.kernels[ahead     ? 0
                                : vectors ? 1
                                          : 2],
                      dim3((unsigned)blocks), KFI_LOOKUP_THREADS, args, stream);
}
KF_FN KFI_SMALL size_t kfi_lookup_workspace(kf_i64 rows, kf_i64 cols, kf_i64 vocab)
{
    return cols > 0 && kfi_fits(rows, cols, 1) && kfi_fits(vocab, cols, 1)
               ? kfi_sort_workspace(rows, vocab)
               : 0;
}
KF_FN kf_result_t kfi_lookup_sum_run(const kfi_looking &m, kfi_sort *s, kfi_lookup *g, void **args,
                                     void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    kfi_operands operands;
    kf_result_t result = kfi_lookup_check(m, *g, g->vocab, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    result = kfi_check_workspace(&m.name, &m.arguments, &operands, workspace, workspace_bytes,
                                 kfi_lookup_workspace(g->rows, g->cols, g->vocab));
    if (result != KF_SUCCESS) return result;
    s->count = g->rows;
    s->below = g->vocab;
    if (g->rows > 0) {
        result = kfi_sort_run(&m.name, m.kernels + 2, s, workspace, stream);
        if (result != KF_SUCCESS) return result;
        g->begin = s->begin;
        g->ids = s->to;
    }
    const bool vectors = operands.bits % 16 == 0 && g->cols % m.vec == 0;
    const kf_i64 all = vectors ? g->cols / m.vec : g->cols;
    kfi_lookup_share(g, kfi_clamp(all, 1, KFI_LOOKUP_SUM_THREADS), KFI_LOOKUP_SUM_THREADS);
    const kf_i64 tiles = kfi_ceil(all, g->across);
    g->tiles = kfi_make_divisor(tiles);
    g->items = tiles * kfi_ceil(g->vocab, g->per_block);
    const kf_i64 blocks =
        kfi_clamp(g->items, 1, (kf_i64)KFI_MAP_SMS * (2048 / KFI_LOOKUP_SUM_THREADS));
    return kfi_launch(&m.name, m.kernels[vectors ? 0 : 1], dim3((unsigned)blocks),
                      KFI_LOOKUP_SUM_THREADS, args, stream, false);
}
#endif

#endif
