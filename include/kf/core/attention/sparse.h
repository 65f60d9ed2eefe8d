/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/sparse.h: lists of blocks of keys of attention in C: the keys of a packed block
   that a row sees.

   A list has the blocks of keys that `block` queries of one batch and head see, ascending, and for
   each a mask or -1: all of its keys are visible. Jobs walk all blocks of keys as without lists,
   with blocks of at most `block` keys, and skip those that no row of theirs lists: a hidden block
   changes no bit. Bounds of lists are clamped. Rows of a list with a number outside of the keys or
   of the masks, or with more entries than blocks of keys, are NaN. */
#ifndef KF_CORE_ATTENTION_SPARSE_H
#define KF_CORE_ATTENTION_SPARSE_H

#include "kf/core/host.h"

#include "kf/core/attention/plan.h"

KFI_C_BEGIN

struct kfi_cpu_attention_sparse {
    const int32_t *offsets; /* [batch, heads, blocks of queries + 1]: bounds of each list */
    kfi_cpu_attention_strides steps;  /* strides of offsets */
    const int32_t *entries;           /* [listed, 2]: a block of keys, and its mask or -1 */
    const int32_t *masks;             /* [masks, block, block / 32]: bits of queries and keys */
    kf_i64 block, listed, mask_count; /* block: queries, and keys, of a block */
};

/* A bound of a list, clamped to the entries. */
KFI_INLINE kf_i64 kfi_cpu_attention_list_bound(const kfi_cpu_attention_sparse *s,
                                               const int32_t *bound)
{
    return *bound < 0 ? 0 : kfi_cpu_gemm_least(*bound, s->listed);
}
/* Finds the list of a row. Returns 0 if it is wrong; it has no entries then. */
KFI_HOST int kfi_cpu_attention_start_list(const kfi_cpu_attention *m, kf_i64 batch,
                                          kfi_cpu_attention_row *row)
{
    const kfi_cpu_attention_sparse *const s = m->sparse;
    const kf_i64 blocks = kfi_cpu_gemm_parts(m->keys, s->block);
    const int32_t *const own =
        s->offsets + batch * s->steps.batch + row->head * s->steps.head + row->query / s->block;
    const kf_i64 end = kfi_cpu_attention_list_bound(s, own + 1);
    int right;
    row->next = row->end = kfi_cpu_attention_list_bound(s, own);
    right = end - row->next <= blocks;
    for (kf_i64 i = row->next; right && i < end; ++i) {
        const int32_t key = s->entries[2 * i], mask = s->entries[2 * i + 1];
        right = key >= 0 && key < blocks && mask >= -1 && mask < s->mask_count;
    }
    if (right && end > row->next) row->end = end;
    return right;
}
/* Sets the keys from key0 on that each row sees, ascending calls of one job. Returns whether a row
   lists their block. */
KFI_HOST int kfi_cpu_attention_listed(const kfi_cpu_attention *m, kfi_cpu_attention_row *rows,
                                      kf_i64 count, kf_i64 key0)
{
    const kfi_cpu_attention_sparse *const s = m->sparse;
    const kf_i64 number = key0 / s->block, words = s->block / 32;
    int any = 0;
    for (kf_i64 i = 0; i < count; ++i) {
        kfi_cpu_attention_row *const row = &rows[i];
        while (row->next < row->end && s->entries[2 * row->next] < number) ++row->next;
        row->bits = NULL;
        if (row->next < row->end && s->entries[2 * row->next] == number) {
            const int32_t mask = s->entries[2 * row->next + 1];
            row->visible = kfi_cpu_attention_visible(m, row->query);
            if (mask >= 0)
                row->bits = s->masks + (mask * s->block + row->query % s->block) * words +
                            key0 % s->block / 32;
            any = 1;
        } else {
            row->visible.first = 0, row->visible.last = -1;
        }
    }
    return any;
}

/* Limits the keys of a packed block to those of a block of the lists. */
KFI_HOST void kfi_cpu_attention_limit_keys(kfi_cpu_attention_plan *p, kf_i64 block, kf_i64 batch,
                                           kf_i64 keys, int unit)
{
    p->keys = kfi_cpu_gemm_least(p->keys, block);
    p->shared = 0, p->block = 0;
    kfi_cpu_attention_share(p, batch * p->kv_heads, keys, unit);
    (void)kfi_cpu_attention_rooms(p, unit, NULL, &p->bytes);
    p->slots = kfi_cpu_gemm_least(kfi_cpu_gemm_least(p->tiles, KFI_ATTENTION_SLOTS),
                                  kfi_cpu_attention_most_slots(p));
}
/* Workspace of a call in bytes. */
KFI_HOST size_t kfi_cpu_attention_sparse_bytes(kf_i64 batch, kf_i64 heads, kf_i64 group,
                                               kf_i64 queries, kf_i64 keys, kf_i64 dim,
                                               kf_i64 dim_v, kf_i64 block, int unit)
{
    kfi_cpu_attention_plan p;
    if (batch < 1 || heads < 1 || group < 1 || queries < 1) return KFI_GEMM_LINE;
    p = kfi_cpu_attention_make_plan(batch, heads, group, queries, keys, dim, dim_v, unit);
    kfi_cpu_attention_limit_keys(&p, block, batch, keys, unit);
    return (size_t)p.slots * p.bytes + (size_t)p.shared * p.head_bytes + KFI_GEMM_LINE;
}

KFI_C_END

#endif
