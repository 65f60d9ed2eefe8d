// SPDX-License-Identifier: Apache-2.0
// kf/core/embedding/embedding.cuh: launches of embedding (rows of a table by index) and of the
// table's gradient.
//
// lookup  Several threads copy one row, four vectors each (one vector for some row lengths), so
// that
//         the loads that depend on the index are in flight together. Grid: ceil(rows / rows per
//         block), block: 256 threads, no shared memory.
// sum     Gradient of the table. index_sort.cuh sorts the row indices by token; then several
// threads
//         sum one row of the table, one vector each, with four rows of dout in flight. Persistent
//         grid, block: 128 threads. The order of a sum is the order of the rows.
#ifndef KF_CORE_EMBEDDING_EMBEDDING_CUH
#define KF_CORE_EMBEDDING_EMBEDDING_CUH

#include "kf/core/index_sort.cuh"

#define KFI_EMBEDDING_THREADS 256
#define KFI_EMBEDDING_AHEAD 4
#define KFI_EMBEDDING_SUM_THREADS 128

struct kfi_embedding {
    kf_i64 rows, cols, vocab;
    // sum: start of each token's row indices, sorted row indices. begin NULL: no rows.
    const kf_i64 *begin, *ids;
    kfi_divisor tiles;          // sum: tiles per row of the table
    kf_i64 items;               // sum: tiles x groups of rows of the table
    unsigned across, per_block; // threads per row, rows per block
};

#ifdef KFI_HOST_PASS
struct kfi_embedding_op {
    kfi_name name;
    kfi_arguments arguments;
    // Number of elements of each tensor: 't' vocab x cols, 'n' rows, 'e' rows x cols.
    const char *elements;
    // lookup: {vector, 4}, {vector, 1}, {1, 1}; sum: {vector}, {1}, then the kernels of the sort.
    const void *const *kernels;
    int vec = 0;
};
// Checks sizes and tensors. made: rows of the result. Without rows or columns it checks only the
// sizes and sets operands->wanted to 0.
KF_FN KFI_SMALL kf_result_t kfi_embedding_check(const kfi_embedding_op &m, const kfi_embedding &g,
                                                kf_i64 made, kfi_operands *operands)
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
// Sets the threads per row and the rows per block.
KF_FN KFI_SMALL void kfi_embedding_share(kfi_embedding *g, kf_i64 across, int threads)
{
    g->across = (unsigned)across;
    g->per_block = (unsigned)(threads / across);
}
KF_FN kf_result_t kfi_embedding_run(const kfi_embedding_op &m, kfi_embedding *g, void **args,
                                    cudaStream_t stream)
{
    kfi_operands operands;
    const kf_result_t result = kfi_embedding_check(m, *g, g->rows, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    const bool vectors = operands.bits % 16 == 0 && g->cols % m.vec == 0;
    const kf_i64 all = vectors ? g->cols / m.vec : g->cols, quarter = all / KFI_EMBEDDING_AHEAD;
    kf_i64 across = kfi_clamp(quarter, 1, KFI_EMBEDDING_THREADS);
    while (vectors && all % KFI_EMBEDDING_AHEAD == 0 && quarter % across != 0) --across;
    // With fewer threads the loads of a row would serialise.
    const bool ahead =
        vectors && all % KFI_EMBEDDING_AHEAD == 0 && (across == quarter || across >= 32);
    kfi_embedding_share(g, ahead ? across : kfi_clamp(all, 1, KFI_EMBEDDING_THREADS),
                        KFI_EMBEDDING_THREADS);
    const kf_i64 blocks = kfi_ceil(g->rows, g->per_block);
    if (blocks > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch",
                        "of %lld rows needs more blocks than a launch may have",
                        (long long)g->rows);
    return kfi_launch(&m.name,
                      m.kernels[ahead     ? 0
                                : vectors ? 1
                                          : 2],
                      dim3((unsigned)blocks), KFI_EMBEDDING_THREADS, args, stream);
}
KF_FN KFI_SMALL size_t kfi_embedding_workspace(kf_i64 rows, kf_i64 cols, kf_i64 vocab)
{
    return cols > 0 && kfi_fits(rows, cols, 1) && kfi_fits(vocab, cols, 1)
               ? kfi_sort_workspace(rows, vocab)
               : 0;
}
KF_FN kf_result_t kfi_embedding_sum_run(const kfi_embedding_op &m, kfi_sort *s, kfi_embedding *g,
                                        void **args, void *workspace, size_t workspace_bytes,
                                        cudaStream_t stream)
{
    kfi_operands operands;
    kf_result_t result = kfi_embedding_check(m, *g, g->vocab, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    result = kfi_check_workspace(&m.name, &m.arguments, &operands, workspace, workspace_bytes,
                                 kfi_embedding_workspace(g->rows, g->cols, g->vocab));
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
    kfi_embedding_share(g, kfi_clamp(all, 1, KFI_EMBEDDING_SUM_THREADS), KFI_EMBEDDING_SUM_THREADS);
    const kf_i64 tiles = kfi_ceil(all, g->across);
    g->tiles = kfi_make_divisor(tiles);
    g->items = tiles * kfi_ceil(g->vocab, g->per_block);
    const kf_i64 blocks =
        kfi_clamp(g->items, 1, (kf_i64)KFI_MAP_SMS * (2048 / KFI_EMBEDDING_SUM_THREADS));
    return kfi_launch(&m.name, m.kernels[vectors ? 0 : 1], dim3((unsigned)blocks),
                      KFI_EMBEDDING_SUM_THREADS, args, stream, false);
}
#endif

#endif
