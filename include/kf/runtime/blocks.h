/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/blocks.h: elements that lie in any way, of ops that visit them one by one: a block at a time by way of dense memory. */
#ifndef KF_RUNTIME_BLOCKS_H
#define KF_RUNTIME_BLOCKS_H

#include "kf/runtime/launch.h"

/* Elements of a block. On a GPU a launch takes microseconds, in which it moves megabytes. */
#define KFI_RT_BLOCK 2048
#ifndef KFI_RT_BLOCK_OF_GPU
#define KFI_RT_BLOCK_OF_GPU (1 << 22)
#endif

/* How all tensors of a call go over its elements, the innermost dimension last. */
typedef struct {
    int ndim;
    int64_t size[KF_MAX_DIMS], stride[KFI_RT_TENSORS][KF_MAX_DIMS];
} kfi_rt_grid;

static void kfi_rt_exchange(kfi_rt_grid *g, int count, int i)
{
    kfi_rt_swap(g->size, i);
    for (int k = 0; k < count; ++k) kfi_rt_swap(g->stride[k], i);
}
/* Dimensions in the order of the first output's memory; neighbours that all tensors go over as one are one. */
static kfi_rt_grid kfi_rt_make_grid(const kfi_rt_call *c, const kfi_rt_made *m)
{
    const int count = c->op->operand_count;
    kfi_rt_grid g;
    int by = 0;
    memset(&g, 0, sizeof g);
    while (by < count - 1 && !(c->tensors[by] && c->op->operands[by].is_out)) ++by;
    for (int d = 0; d < m->ndim; ++d) {
        if (m->shape[d] == 1) continue;
        g.size[g.ndim] = m->shape[d];
        for (int k = 0; k < count; ++k) {
            const kf_tensor_t *const t = c->tensors[k];
            const int own = t ? d - (m->ndim - t->ndim) : -1;
            g.stride[k][g.ndim] = own >= 0 && t->shape[own] != 1 ? t->strides[own] : 0;
        }
        for (int i = g.ndim++; i > 0 && g.stride[by][i - 1] < g.stride[by][i]; --i) kfi_rt_exchange(&g, count, i);
    }
    int last = 0;
    for (int i = 1; i < g.ndim; ++i) {
        int one = 1;
        for (int k = 0; k < count; ++k) one &= g.stride[k][last] == g.stride[k][i] * g.size[i];
        if (one)
            g.size[last] *= g.size[i];
        else
            g.size[++last] = g.size[i];
        for (int k = 0; k < count; ++k) g.stride[k][last] = g.stride[k][i];
    }
    if (g.ndim) g.ndim = last + 1;
    if (!g.ndim) g.ndim = 1, g.size[0] = 1;
    return g;
}
/* A block: of dimensions before `along` one index each, of that one `size` from `at` on, and the others whole. */
typedef struct {
    int along;
    int64_t index[KF_MAX_DIMS], most, inner; /* most: of size; inner: elements of one index of `along` */
} kfi_rt_block;
static kfi_rt_block kfi_rt_first_block(const kfi_rt_grid *g, int64_t limit)
{
    kfi_rt_block b;
    memset(&b, 0, sizeof b);
    b.inner = 1;
    for (b.along = g->ndim - 1; b.along > 0 && b.inner * g->size[b.along] < limit; --b.along) b.inner *= g->size[b.along];
    b.most = limit / b.inner;
    return b;
}
/* The next one; 0: there is none. */
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
/* Where a tensor's elements of a block begin, and how they lie beside those of dense memory. */
static int64_t kfi_rt_lay(const kfi_rt_grid *g, const kfi_rt_block *b, int k, int64_t size, kfi_rt_pair *dense_and_own)
{
    int64_t at = 0, dense = 1, side[KF_MAX_DIMS];
    memset(dense_and_own, 0, sizeof *dense_and_own);
    for (int d = 0; d <= b->along; ++d) at += b->index[d] * g->stride[k][d];
    for (int d = g->ndim - 1; d >= b->along; --d) {
        side[d] = dense;
        dense *= g->size[d];
    }
    for (int d = b->along; d < g->ndim; ++d)
        kfi_rt_add_dimension(dense_and_own, d == b->along ? size : g->size[d], side[d], g->stride[k][d]);
    kfi_rt_join_dimensions(dense_and_own);
    return at;
}
static int kfi_rt_lies_dense(const kfi_rt_pair *p) { return p->ndim == 1 && (p->size[0] == 1 || p->from[0] == 1); }
/* The op on one block: what lies dense where it is, the rest moved to or from `room`, of `place` bytes an operand. */
static kf_result_t kfi_rt_run_block(const kfi_rt_call *c, kfi_rt_made *m, const kfi_rt_grid *g, const kfi_rt_block *b, char *room,
                                    size_t place)
{
    const kfi_rt_op *const op = c->op;
    const kfi_rt_device *const device = c->ctx->device;
    const int64_t left = g->size[b->along] - b->index[b->along], size = left < b->most ? left : b->most;
    void *const *const whole = m->t;
    void *t[KFI_RT_TENSORS];
    kf_result_t result = KF_SUCCESS;
    m->n[0] = size * b->inner;
    for (int pass = 0; pass < 2; ++pass) {
        for (int k = 0; k < op->operand_count && result == KF_SUCCESS; ++k) {
            kfi_rt_pair p, back;
            if (pass == 0) t[k] = NULL;
            if (!whole[k] || (pass && !op->operands[k].is_out)) continue;
            const size_t width = kfi_rt_width(c->tensors[k]->dtype);
            char *const own = (char *)whole[k] + kfi_rt_lay(g, b, k, size, &p) * (int64_t)width, *const side = room + (size_t)k * place;
            const int is_dense = kfi_rt_lies_dense(&p);
            if (pass == 0) t[k] = is_dense ? own : side;
            if (is_dense || pass != op->operands[k].is_out) continue;
            back = p;
            memcpy(back.to, p.from, sizeof back.to);
            memcpy(back.from, p.to, sizeof back.from);
            result = pass ? device->move(op->name, c->ctx, own, side, &back, width, c->stream)
                          : device->move(op->name, c->ctx, side, own, &p, width, c->stream);
        }
        if (pass == 0 && result == KF_SUCCESS) result = kfi_rt_launch(c, m, t, NULL, NULL, 0);
    }
    return result;
}
static kf_result_t kfi_rt_run_blocks(const kfi_rt_call *c, kfi_rt_made *m)
{
    const int on_gpu = c->ctx->device->type == KF_DEVICE_CUDA;
    const kfi_rt_grid g = kfi_rt_make_grid(c, m);
    kfi_rt_block b = kfi_rt_first_block(&g, on_gpu ? KFI_RT_BLOCK_OF_GPU : KFI_RT_BLOCK);
    const int64_t count = m->n[0], block = b.most * b.inner, most = count < block ? count : block;
    const size_t place = ((size_t)most * 8 + 255) / 256 * 256; /* of the widest dtype */
    char *const room = (char *)kf_pool_allocate(c->ctx, (size_t)c->op->operand_count * place, c->stream);
    if (!room) return KF_ERROR_OUT_OF_MEMORY;
    kf_result_t result = KF_SUCCESS;
    int more = 1;
    while (more && result == KF_SUCCESS) {
        result = kfi_rt_run_block(c, m, &g, &b, room, place);
        more = kfi_rt_next_block(&g, &b);
    }
    m->n[0] = count;
    (void)kf_pool_deallocate(c->ctx, room, c->stream);
    return result;
}

#endif
