/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/apart.h: elementwise ops on strided tensors on a GPU, through the strided kernel of
 * the op. Tensors that are transposed relative to most others are copied first (outputs: last), one
 * block at a time. */
#ifndef KF_RUNTIME_APART_H
#define KF_RUNTIME_APART_H

#include "kf/runtime/blocks.h"

#ifdef KFI_RT_KERNELS
#include "kf/core/elementwise/strided.cuh"

/* Returns whether tensor k is transposed: its last dimension, the innermost of the others, does not
 * have its smallest stride. A warp would read a 32-byte sector per element. */
static int kfi_rt_is_transposed(const kfi_rt_grid *g, int k)
{
    const int in = g->ndim - 1;
    int across = 0;
    for (int d = 0; d < in; ++d)
        across |= g->stride[k][d] && g->size[d] >= 8 && g->stride[k][d] < g->stride[k][in];
    return across && g->size[in] >= 8;
}
/* Writes the layout of a block as the kernel reads it: dimensions, sizes, strides. */
static void kfi_rt_write_layout(const kfi_rt_call *c, const kfi_rt_grid *g, const kfi_rt_block *b,
                                int64_t size, unsigned transposed, int64_t *layout)
{
    int64_t *const sizes = layout + 1;
    const int count = g->ndim - b->along;
    layout[0] = count;
    for (int i = 0; i < count; ++i) sizes[i] = i ? g->size[b->along + i] : size;
    for (int k = 0; k < c->op->operand_count; ++k) {
        int64_t *const strides = sizes + (k + 1) * KFI_STRIDED_DIMS, dense = 1;
        for (int i = count - 1; i >= 0; dense *= sizes[i--])
            strides[i] = transposed >> k & 1 ? dense : g->stride[k][b->along + i];
    }
}
/* Copies the transposed tensors of a block between their memory and the temporary memory. */
static kf_result_t kfi_rt_copy_transposed(const kfi_rt_call *c, const kfi_rt_grid *g,
                                          const kfi_rt_block *b, int64_t size, unsigned transposed,
                                          int goes_out, const kfi_rt_scratch *scratch)
{
    const kfi_rt_op *const op = c->op;
    kf_result_t result = KF_SUCCESS;
    for (int k = 0; k < op->operand_count && result == KF_SUCCESS; ++k) {
        kfi_rt_pair in, out;
        if (!(transposed >> k & 1) || op->operands[k].is_out != goes_out) continue;
        const size_t width = kfi_rt_width(c->tensors[k]->dtype);
        char *const own =
            c->tensors[k]->data + kfi_rt_block_layout(c, g, b, k, size, &in) * (int64_t)width;
        out = in;
        memcpy(out.to, in.from, sizeof out.to);
        memcpy(out.from, in.to, sizeof out.from);
        result = goes_out ? c->ctx->device->move(op->name, c->ctx, own, scratch->of[k], &out, width,
                                                 c->stream)
                          : c->ctx->device->move(op->name, c->ctx, scratch->of[k], own, &in, width,
                                                 c->stream);
    }
    return result;
}
static kf_result_t kfi_rt_run_apart_block(const kfi_rt_call *c, kfi_rt_prepared *m,
                                          const kfi_rt_grid *g, const kfi_rt_block *b,
                                          unsigned transposed, const kfi_rt_scratch *scratch)
{
    const int64_t left = g->size[b->along] - b->index[b->along],
                  size = left < b->most ? left : b->most, whole = m->layout.n[0];
    int64_t layout[KFI_STRIDED_LAYOUT];
    void *t[KFI_RT_TENSORS];
    kf_result_t result = kfi_rt_copy_transposed(c, g, b, size, transposed, 0, scratch);
    for (int k = 0; k < c->op->operand_count; ++k) {
        int64_t at = 0;
        for (int d = 0; d <= b->along; ++d) at += b->index[d] * g->stride[k][d];
        t[k] = !m->t[k] ? NULL
               : transposed >> k & 1
                   ? scratch->of[k]
                   : (char *)m->t[k] + at * (int64_t)kfi_rt_width(c->tensors[k]->dtype);
    }
    kfi_rt_write_layout(c, g, b, size, transposed, layout);
    m->layout.n[0] = size * b->inner;
    if (result == KF_SUCCESS) result = kfi_rt_launch(c, m, t, layout, NULL, 0, 1);
    m->layout.n[0] = whole;
    return result == KF_SUCCESS ? kfi_rt_copy_transposed(c, g, b, size, transposed, 1, scratch)
                                : result;
}
static int kfi_rt_has_apart(const kfi_rt_call *c, const kfi_rt_prepared *m)
{
    return kfi_rt_launcher_of(m->entry, c->ctx->device->type)->apart &&
           c->op->operand_count <= KFI_STRIDED_TENSORS;
}
/* Returns a bit mask of the transposed tensors. */
static unsigned kfi_rt_transposed(const kfi_rt_call *c, const kfi_rt_prepared *m,
                                  const kfi_rt_grid *g)
{
    unsigned transposed = 0;
    for (int k = 0; k < c->op->operand_count; ++k)
        transposed |= (unsigned)(m->t[k] && kfi_rt_is_transposed(g, k)) << k;
    return transposed;
}
/* Orders the dimensions as in the first output, or as in a tensor transposed to it if fewer tensors
 * need a copy then. */
static kfi_rt_grid kfi_rt_best_grid(const kfi_rt_call *c, const kfi_rt_prepared *m,
                                    unsigned *transposed)
{
    kfi_rt_grid best = kfi_rt_make_grid(c, m, kfi_rt_first_output(c));
    *transposed = kfi_rt_transposed(c, m, &best);
    for (unsigned others = *transposed; others & (others - 1);
         others &= others - 1) { /* while two or more are transposed */
        const kfi_rt_grid g = kfi_rt_make_grid(c, m, __builtin_ctz(others));
        const unsigned own = kfi_rt_transposed(c, m, &g);
        if (__builtin_popcount(own) < __builtin_popcount(*transposed)) best = g, *transposed = own;
    }
    return best;
}
static kf_result_t kfi_rt_run_apart(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    kfi_rt_scratch scratch;
    unsigned transposed;
    const kfi_rt_grid g = kfi_rt_best_grid(c, m, &transposed);
    kfi_rt_block b = kfi_rt_first_block(&g, transposed ? KFI_RT_BLOCK_OF_GPU : INT64_MAX);
    memset(&scratch, 0, sizeof scratch);
    kf_result_t result =
        transposed ? kfi_rt_make_scratch(c, m, &g, &b, transposed, &scratch) : KF_SUCCESS;
    int more = result == KF_SUCCESS;
    while (more && result == KF_SUCCESS) {
        result = kfi_rt_run_apart_block(c, m, &g, &b, transposed, &scratch);
        more = kfi_rt_next_block(&g, &b);
    }
    if (scratch.all) (void)kfi_rt_give_back(c->op->name, c->ctx, scratch.all, c->stream);
    return result;
}
#endif

#endif
