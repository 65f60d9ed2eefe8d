/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/strides.h: tensors as launchers take them: rows that lie apart by the struct of strides; elements that lie in any way, where
   they are visited one by one, a block at a time by way of dense memory. */
#ifndef KF_RUNTIME_STRIDES_H
#define KF_RUNTIME_STRIDES_H

#include "kf/core/pitch.h"
#include "kf/runtime/sizes.h"

/* ---- rows */

/* The distance of neighbours along dimensions [begin, end) of a tensor that are one level; 0: dense or nothing to say. -1: there is none.
 */
static int64_t kfi_rt_distance(const kf_tensor_t *t, int begin, int end)
{
    int64_t found = 0, wanted = 0;
    for (int d = end - 1; d >= begin; --d) {
        if (t->shape[d] == 1) continue;
        if (!found) found = wanted = t->strides[d] ? t->strides[d] : KF_BROADCAST;
        if ((wanted == KF_BROADCAST ? 0 : wanted) != t->strides[d]) return -1;
        if (wanted != KF_BROADCAST) wanted *= t->shape[d];
    }
    return found;
}
static int kfi_rt_side_by_side(const kf_tensor_t *t, int begin, int end)
{
    int64_t wanted = 1;
    for (int d = end - 1; d >= begin; --d) {
        if (t->shape[d] != 1 && t->strides[d] != wanted) return 0;
        wanted *= t->shape[d];
    }
    return 1;
}
/* Sets an operand's fields of the struct. Returns 0 where no number says how it lies. Its levels are the extents of its shape from the
   first on, the fields begin with the innermost. */
static int kfi_rt_set_strides(const kfi_rt_call *c, kfi_rt_made *m, const kfi_rt_operand *o, const kf_tensor_t *t)
{
    if (t->is_dense) return 1;
    if (!o->levels) return 0;
    int begin[KFI_RT_SIZES + 1] = {0}, levels = o->levels, at = 0;
    for (int k = 0; k < o->extents; ++k) {
        const int what = c->op->size[o->extent[k]];
        begin[k] = at;
        at += kfi_rt_end(m, what) - kfi_rt_begin(m, what);
    }
    begin[o->extents] = at;
    int64_t behind = 1;
    for (int d = begin[levels]; d < at; ++d) behind *= t->shape[d];
    /* The first extent that lies side by side. */
    const int first = c->op->joined == KFI_RT_ALWAYS || (c->op->joined == KFI_RT_ALONE && behind == 1) ? levels - 1 : levels;
    if (!kfi_rt_side_by_side(t, begin[first], at)) return 0;
    for (int k = 0; k < first; ++k) {
        const int64_t distance = kfi_rt_distance(t, begin[k], begin[k + 1]);
        if (distance == -1 || (distance == KF_BROADCAST && o->is_out)) return 0;
        m->strides[o->field + levels - 1 - k] = distance;
        m->apart |= distance != 0;
    }
    return 1;
}

/* ---- elements one by one */

#define KFI_RT_BLOCK 2048

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
/* Moves `n` elements of a tensor, from number `first` on, to or from dense memory. */
static void kfi_rt_move(const kfi_rt_grid *g, int k, char *data, size_t width, int64_t first, int64_t n, char *dense, int is_out)
{
    const int in = g->ndim - 1;
    while (n > 0) {
        int64_t at = 0, rest = first;
        for (int d = in; d >= 0; --d) {
            at += rest % g->size[d] * g->stride[k][d];
            rest /= g->size[d];
        }
        const int64_t left = g->size[in] - first % g->size[in], run = left < n ? left : n;
        char *const there = data + at * (int64_t)width;
        if (is_out)
            kfi_rt_scatter(there, dense, g->stride[k][in], width, (int)run);
        else
            kfi_rt_gather(dense, there, g->stride[k][in], width, (int)run);
        dense += run * (int64_t)width;
        first += run;
        n -= run;
    }
}
/* A block at a time: gathered, given to the launcher, put back. */
static kf_result_t kfi_rt_run_blocks(const kfi_rt_call *c, kfi_rt_made *m)
{
    const kfi_rt_op *const op = c->op;
    const kfi_rt_grid g = kfi_rt_make_grid(c, m);
    const int64_t count = m->n[0];
    char *const room = (char *)kf_pool_allocate(c->ctx, (size_t)op->operand_count * KFI_RT_BLOCK * 8, c->stream);
    kf_result_t result = room ? KF_SUCCESS : KF_ERROR_OUT_OF_MEMORY;
    void *t[KFI_RT_TENSORS];
    for (int64_t first = 0; first < count && result == KF_SUCCESS; first += KFI_RT_BLOCK) {
        const int64_t n = count - first < KFI_RT_BLOCK ? count - first : KFI_RT_BLOCK;
        for (int pass = 0; pass < 2 && result == KF_SUCCESS; ++pass) {
            for (int k = 0; k < op->operand_count; ++k) {
                t[k] = m->t[k] ? room + (size_t)k * KFI_RT_BLOCK * 8 : NULL;
                if (m->t[k] && op->operands[k].is_out == pass)
                    kfi_rt_move(&g, k, (char *)m->t[k], kfi_rt_width(c->tensors[k]->dtype), first, n, (char *)t[k], pass);
            }
            m->n[0] = n;
            if (pass == 0) result = m->entry->run(t, m->n, NULL, m->s, c->rng, NULL, 0);
        }
    }
    m->n[0] = count;
    if (room) (void)kf_pool_deallocate(c->ctx, room, c->stream);
    return result;
}

#endif
