/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/blocks.h: ops on tensors whose strides no launcher takes, if the op computes elements,
 * or batch indices, independently. Each block is gathered into contiguous memory, computed, and
 * scattered. */
#ifndef KF_RUNTIME_BLOCKS_H
#define KF_RUNTIME_BLOCKS_H

#include "kf/runtime/launch.h"

/* Elements per block. A GPU launch takes microseconds, in which it moves megabytes, hence larger
 * blocks. For batched ops a block is at least one batch index; it never is the whole tensor: making
 * such a copy is the caller's decision. */
#define KFI_RT_BLOCK 2048
#define KFI_RT_BLOCK_TRANSPOSED 32768 /* for transposed tensors: tiles need several rows */
#define KFI_RT_WIDEST (1 << 20)
#ifndef KFI_RT_BLOCK_OF_GPU
#define KFI_RT_BLOCK_OF_GPU (1 << 22)
#endif

/* Iteration space of a call: the dimensions that are cut into blocks, innermost last, with the
 * strides of all tensors. For elementwise ops these are all dimensions, otherwise those of the
 * batch. The remaining dimensions of a tensor, `rest`, move as a whole. */
typedef struct {
    int ndim;
    int64_t size[KF_MAX_DIMS], stride[KFI_RT_TENSORS][KF_MAX_DIMS];
    int rest[KFI_RT_TENSORS];         /* first remaining dimension of each tensor */
    int64_t elements[KFI_RT_TENSORS]; /* elements of the remaining dimensions */
    int64_t widest;                   /* maximum of `elements` over the tensors that are cut */
} kfi_rt_grid;

static void kfi_rt_exchange(kfi_rt_grid *g, int count, int i)
{
    kfi_rt_swap(g->size, i);
    for (int k = 0; k < count; ++k) kfi_rt_swap(g->stride[k], i);
}
/* Returns whether an operand has the dimensions that are cut; otherwise all blocks share it. */
static int kfi_rt_is_cut(const kfi_rt_op *op, int k)
{
    return op->any_order || op->operands[k].layout.extent[0].size == op->batch;
}
/* Returns the number of dimensions that are cut, counted from the first. */
static int kfi_rt_cut(const kfi_rt_op *op, const kfi_rt_prepared *m)
{
    return m->layout.end[op->any_order ? 0 : op->batch];
}
/* Merges neighbouring dimensions that are contiguous in all tensors. */
static void kfi_rt_join_grid(kfi_rt_grid *g, int count)
{
    int last = 0;
    for (int i = 1; i < g->ndim; ++i) {
        int one = 1;
        for (int k = 0; k < count; ++k) one &= g->stride[k][last] == g->stride[k][i] * g->size[i];
        if (one)
            g->size[last] *= g->size[i];
        else
            g->size[++last] = g->size[i];
        for (int k = 0; k < count; ++k) g->stride[k][last] = g->stride[k][i];
    }
    if (g->ndim) g->ndim = last + 1;
    if (!g->ndim) g->ndim = 1, g->size[0] = 1;
}
/* Returns the index of the first output that is present. */
static int kfi_rt_first_output(const kfi_rt_call *c)
{
    int by = 0;
    while (by < c->op->operand_count - 1 && !(c->tensors[by] && c->op->operands[by].is_out)) ++by;
    return by;
}
/* Builds the iteration space, in the order of operand `by` in memory. */
static kfi_rt_grid kfi_rt_make_grid(const kfi_rt_call *c, const kfi_rt_prepared *m, int by)
{
    const kfi_rt_op *const op = c->op;
    const int count = op->operand_count, cut = kfi_rt_cut(op, m);
    kfi_rt_grid g;
    memset(&g, 0, sizeof g);
    g.widest = 1;
    for (int k = 0; k < count; ++k) {
        const kf_tensor_t *const t = c->tensors[k];
        g.rest[k] = !t || op->any_order ? KF_MAX_DIMS : kfi_rt_is_cut(op, k) ? cut : 0;
        g.elements[k] = 1;
        for (int d = g.rest[k]; t && d < t->ndim; ++d) g.elements[k] *= t->shape[d];
        if (kfi_rt_is_cut(op, k) && g.elements[k] > g.widest) g.widest = g.elements[k];
    }
    for (int d = 0; d < cut; ++d) {
        if (m->layout.dim[d] == 1) continue;
        g.size[g.ndim] = m->layout.dim[d];
        for (int k = 0; k < count; ++k) {
            const kf_tensor_t *const t = c->tensors[k];
            const int own = !t || !kfi_rt_is_cut(op, k) ? -1
                            : op->any_order             ? d - (m->layout.dims - t->ndim)
                                                        : d;
            g.stride[k][g.ndim] = own >= 0 && t->shape[own] != 1 ? t->strides[own] : 0;
        }
        for (int i = g.ndim++; i > 0 && g.stride[by][i - 1] < g.stride[by][i]; --i)
            kfi_rt_exchange(&g, count, i);
    }
    kfi_rt_join_grid(&g, count);
    return g;
}
/* A block: one index of each dimension before `along`, up to `most` indices of `along`, and all
 * indices of the dimensions after it. */
typedef struct {
    int along;
    int64_t index[KF_MAX_DIMS], most, inner; /* inner: elements per index of `along` */
} kfi_rt_block;
static kfi_rt_block kfi_rt_first_block(const kfi_rt_grid *g, int64_t limit)
{
    kfi_rt_block b;
    memset(&b, 0, sizeof b);
    b.inner = 1;
    for (b.along = g->ndim - 1; b.along > 0 && b.inner * g->size[b.along] < limit; --b.along)
        b.inner *= g->size[b.along];
    b.most = limit / b.inner < g->size[b.along] ? limit / b.inner : g->size[b.along];
    return b;
}
/* Advances to the next block; returns 0 after the last. */
static int kfi_rt_next_block(const kfi_rt_grid *g, kfi_rt_block *b)
{
    b->index[b->along] += b->most;
    for (int d = b->along; d >= 0; --d) {
        if (b->index[d] < g->size[d]) return 1;
        b->index[d] = 0;
        if (d > 0) ++b->index[d - 1];
    }
    return 0;
}
/* Returns the offset of tensor k in a block, in elements, and its strides beside those of
 * contiguous memory. */
static int64_t kfi_rt_block_layout(const kfi_rt_call *c, const kfi_rt_grid *g,
                                   const kfi_rt_block *b, int k, int64_t size,
                                   kfi_rt_pair *dense_and_own)
{
    const kf_tensor_t *const t = c->tensors[k];
    int64_t at = 0, dense = 1, side[2 * KF_MAX_DIMS];
    memset(dense_and_own, 0, sizeof *dense_and_own);
    for (int d = t->ndim - 1; d >= g->rest[k]; --d)
        side[KF_MAX_DIMS + d] = dense, dense *= t->shape[d];
    if (kfi_rt_is_cut(c->op, k)) {
        for (int d = 0; d <= b->along; ++d) at += b->index[d] * g->stride[k][d];
        for (int d = g->ndim - 1; d >= b->along; --d) side[d] = dense, dense *= g->size[d];
        for (int d = b->along; d < g->ndim; ++d)
            kfi_rt_add_dimension(dense_and_own, d == b->along ? size : g->size[d], side[d],
                                 g->stride[k][d]);
    }
    for (int d = g->rest[k]; d < t->ndim; ++d)
        kfi_rt_add_dimension(dense_and_own, t->shape[d], side[KF_MAX_DIMS + d], t->strides[d]);
    kfi_rt_join_dimensions(dense_and_own);
    return at;
}
/* Returns whether a block is contiguous, or empty (factors of a product over a dimension of size
 * 0). */
static int kfi_rt_is_contiguous(const kfi_rt_pair *p)
{
    return (p->ndim == 1 && (p->size[0] == 1 || p->from[0] == 1)) ||
           !kfi_layout_product(p->size, 0, p->ndim);
}

/* Temporary memory from the pool: a part for each operand that is copied, and the launcher's
 * workspace. moved: bit mask of those operands. */
typedef struct {
    char *of[KFI_RT_TENSORS], *workspace;
    size_t workspace_bytes;
    void *all;
} kfi_rt_scratch;
static kf_result_t kfi_rt_make_scratch(const kfi_rt_call *c, kfi_rt_prepared *m,
                                       const kfi_rt_grid *g, const kfi_rt_block *b, unsigned moved,
                                       kfi_rt_scratch *scratch)
{
    const kfi_rt_launcher *const launcher = kfi_rt_launcher_of(m->entry, c->ctx->device->type);
    size_t at[KFI_RT_TENSORS], bytes = 0;
    int64_t *const cut = &m->layout.n[c->op->any_order ? 0 : c->op->batch];
    const int64_t sizes[] = {b->most * b->inner, g->size[b->along] % b->most * b->inner},
                  whole = *cut;
    memset(scratch, 0, sizeof *scratch);
    for (int i = 0; i < 2 && launcher->space; ++i) {
        *cut = sizes[i];
        const size_t wanted = sizes[i] ? launcher->space(m->layout.n) : 0;
        if (wanted > scratch->workspace_bytes) scratch->workspace_bytes = wanted;
    }
    *cut = whole;
    bytes = (scratch->workspace_bytes + 255) / 256 * 256;
    for (int k = 0; k < c->op->operand_count; ++k) {
        at[k] = bytes;
        if (!m->t[k] || !(moved >> k & 1)) continue;
        const int64_t elements = g->elements[k] * (kfi_rt_is_cut(c->op, k) ? sizes[0] : 1);
        bytes += ((size_t)elements * kfi_rt_width(c->tensors[k]->dtype) + 255) / 256 * 256;
    }
    const kf_result_t result = kfi_rt_borrow(c->op->name, c->ctx, bytes, c->stream, &scratch->all);
    if (result != KF_SUCCESS) return result;
    scratch->workspace = (char *)scratch->all;
    for (int k = 0; k < c->op->operand_count; ++k) scratch->of[k] = scratch->workspace + at[k];
    return KF_SUCCESS;
}
/* Runs the op on one block. Contiguous operands stay in place; the others are copied to and from
 * the temporary memory. */
static kf_result_t kfi_rt_run_block(const kfi_rt_call *c, kfi_rt_prepared *m, const kfi_rt_grid *g,
                                    const kfi_rt_block *b, const kfi_rt_scratch *scratch)
{
    const kfi_rt_op *const op = c->op;
    const kfi_rt_device *const device = c->ctx->device;
    const int64_t left = g->size[b->along] - b->index[b->along],
                  size = left < b->most ? left : b->most;
    int64_t *const cut = &m->layout.n[op->any_order ? 0 : op->batch];
    const int64_t whole = *cut;
    void *t[KFI_RT_TENSORS];
    kf_result_t result = KF_SUCCESS;
    *cut = size * b->inner;
    for (int pass = 0; pass < 2; ++pass) {
        for (int k = 0; k < op->operand_count && result == KF_SUCCESS; ++k) {
            kfi_rt_pair p, back;
            if (pass == 0) t[k] = NULL;
            const int goes_out = op->operands[k].is_out,
                      goes_in = !goes_out || (op->operands[k].is_added && c->beta != 0);
            if (!m->t[k] || (pass && !goes_out)) continue;
            const size_t width = kfi_rt_width(c->tensors[k]->dtype);
            char *const own =
                (char *)m->t[k] + kfi_rt_block_layout(c, g, b, k, size, &p) * (int64_t)width;
            const int is_dense = kfi_rt_is_contiguous(&p);
            if (pass == 0) t[k] = is_dense ? own : scratch->of[k];
            if (is_dense || !(pass ? goes_out : goes_in)) continue;
            back = p;
            memcpy(back.to, p.from, sizeof back.to);
            memcpy(back.from, p.to, sizeof back.from);
            result =
                pass ? device->move(op->name, c->ctx, own, scratch->of[k], &back, width, c->stream)
                     : device->move(op->name, c->ctx, scratch->of[k], own, &p, width, c->stream);
        }
        if (pass == 0 && result == KF_SUCCESS)
            result =
                kfi_rt_launch(c, m, t, NULL, scratch->workspace_bytes ? scratch->workspace : NULL,
                              scratch->workspace_bytes, 0);
    }
    *cut = whole;
    return result;
}
/* Returns whether the smallest stride of some tensor is not that of its last dimension. */
static int kfi_rt_has_transposed(const kfi_rt_call *c, const kfi_rt_grid *g)
{
    for (int k = 0; k < c->op->operand_count; ++k) {
        const kf_tensor_t *const t = c->tensors[k];
        if (!t || !kfi_rt_is_cut(c->op, k)) continue;
        const int in_rest = g->rest[k] < t->ndim;
        const int64_t last = in_rest ? t->strides[t->ndim - 1] : g->stride[k][g->ndim - 1];
        for (int d = 0; d < (in_rest ? g->ndim : g->ndim - 1); ++d)
            if (g->stride[k][d] && g->stride[k][d] < last) return 1;
    }
    return 0;
}
static kf_result_t kfi_rt_run_blocks(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    const kfi_rt_grid g = kfi_rt_make_grid(c, m, kfi_rt_first_output(c));
    const int64_t limit = c->ctx->device->type == KF_DEVICE_CUDA ? KFI_RT_BLOCK_OF_GPU
                          : kfi_rt_has_transposed(c, &g)         ? KFI_RT_BLOCK_TRANSPOSED
                                                                 : KFI_RT_BLOCK;
    kfi_rt_block b = kfi_rt_first_block(&g, limit > g.widest ? limit / g.widest : 1);
    kfi_rt_scratch scratch;
    kf_result_t result = kfi_rt_make_scratch(c, m, &g, &b, ~0u, &scratch);
    if (result != KF_SUCCESS) return result;
    int more = 1;
    while (more && result == KF_SUCCESS) {
        result = kfi_rt_run_block(c, m, &g, &b, &scratch);
        more = kfi_rt_next_block(&g, &b);
    }
    (void)kfi_rt_give_back(c->op->name, c->ctx, scratch.all, c->stream);
    return result;
}

#endif
