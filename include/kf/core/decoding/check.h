/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/decoding/check.h: argument checks of decoding, for CUDA and C. */
#ifndef KF_CORE_DECODING_CHECK_H
#define KF_CORE_DECODING_CHECK_H

#include "kf/core/host.h"

#include "kf/core/check.h"
#include "kf/core/decoding/plan.h"
#include "kf/core/shape.h"

/* Letters of the shapes of a call's tensors. Other letters stand for contiguous tensors. */
enum {
    KFI_DECODING_QUERY = 'q',      /* [batch, queries, heads, dim]; parts that are merged, too */
    KFI_DECODING_OUT = 'o',        /* [batch, queries, heads, dim_v] */
    KFI_DECODING_NEW_KEYS = 'n',   /* [batch, queries, kv_heads, dim] */
    KFI_DECODING_NEW_VALUES = 'w', /* [batch, queries, kv_heads, dim_v] */
    KFI_DECODING_KEYS = 'k',       /* [blocks, page_size, kv_heads, dim] */
    KFI_DECODING_VALUES = 'v'      /* [blocks, page_size, kv_heads, dim_v] */
};

/* Reads the fields of a shape struct. */
KFI_ONCE kfi_decoding_sizes kfi_decoding_sizes_of(const int64_t *s)
{
    kfi_decoding_sizes p;
    p.batch = s[0], p.heads = s[1], p.kv_heads = s[2] ? s[2] : s[1], p.queries = s[3];
    p.blocks = s[4], p.page_size = s[5], p.pages = s[6], p.dim = s[7];
    p.dim_v = s[8] ? s[8] : s[7], p.positions = s[9], p.pairs = s[10];
    return p;
}
/* Rows that the cache of a sequence may have, at most KFI_DECODE_KEYS_MOST. table: whether there is
 * one. */
KFI_ONCE int kfi_decoding_rows(const kfi_decoding_sizes *p, int table)
{
    return kfi_decode_bound((table ? p->pages : 1) * p->page_size);
}
/* Returns whether a workspace query has sizes that a call would accept. */
KFI_ONCE int kfi_decoding_fits(const kfi_decoding_sizes *p)
{
    const kf_i64 q[] = {p->batch, p->heads, p->queries, p->dim},
                 out[] = {p->batch, p->heads, p->queries, p->dim_v},
                 k[] = {p->blocks, p->page_size, p->kv_heads, p->dim},
                 v[] = {p->blocks, p->page_size, p->kv_heads, p->dim_v},
                 table[] = {p->batch, p->pages}, rows[] = {p->pages, p->page_size};
    return kfi_all_fit(q, 4) && kfi_all_fit(out, 4) && kfi_all_fit(k, 4) && kfi_all_fit(v, 4) &&
           kfi_all_fit(table, 2) && kfi_all_fit(rows, 2) && kfi_divides(p->kv_heads, p->heads);
}
/* Refuses a number of heads that kv_heads does not divide, and rows beyond 2^58 of a sequence. */
KFI_ONCE kf_result_t kfi_decoding_check_sizes(const kfi_name *name, const kfi_decoding_sizes *p,
                                              int heads)
{
    const kf_i64 rows[] = {p->page_size, p->pages};
    if (heads && !kfi_divides(p->kv_heads, p->heads))
        return kfi_fail(KF_ERROR_INVALID_SIZE, name, "kv_heads",
                        "is %lld, expected a divisor of heads, %lld", (long long)p->kv_heads,
                        (long long)p->heads);
    return kfi_check_sizes(name, "page_size pages", rows, 2);
}
/* Refuses pairs that a head does not have. */
KFI_ONCE kf_result_t kfi_decoding_check_append(const kfi_name *name, const kfi_decoding_sizes *p)
{
    if (p->dim > 0 && p->kv_heads > 0 && p->batch > 0 && p->queries > 0 && p->pairs > p->dim / 2)
        return kfi_fail(KF_ERROR_INVALID_SIZE, name, "pairs",
                        "is %lld, expected at most half of dim, %lld", (long long)p->pairs,
                        (long long)p->dim);
    return kfi_decoding_check_sizes(name, p, 0);
}

/* Returns the strided levels of a tensor; count is 0 for a contiguous one. */
KFI_ONCE kfi_levels kfi_decoding_levels(const kfi_decoding_sizes *p, char letter)
{
    const int cache = letter == KFI_DECODING_KEYS || letter == KFI_DECODING_VALUES,
              of_kv = cache || letter == KFI_DECODING_NEW_KEYS || letter == KFI_DECODING_NEW_VALUES,
              wide = letter == KFI_DECODING_OUT || letter == KFI_DECODING_VALUES ||
                     letter == KFI_DECODING_NEW_VALUES;
    kfi_levels l;
    kfi_zero(&l, sizeof l);
    if (!of_kv && !wide && letter != KFI_DECODING_QUERY) return l;
    l.count = 3;
    l.line = wide ? p->dim_v : p->dim;
    l.size[0] = of_kv ? p->kv_heads : p->heads;
    l.size[1] = cache ? p->page_size : p->queries;
    l.size[2] = cache ? p->blocks : p->batch;
    l.words = cache ? "_head . _block" : "_head . _batch";
    return l;
}

/* Checks strides, pointers and overlap.
 * letters, elements: of each tensor. Sets the strides of all tensors, and all->wanted, the outputs
 * that will be written. */
KFI_ONCE kf_result_t kfi_decoding_check(const kfi_name *name, const kfi_arguments *arguments,
                                        const kfi_strides *given, const char *letters,
                                        const kf_i64 *elements, const kfi_decoding_sizes *p,
                                        kfi_decoding_strides *steps, kfi_operands *all)
{
    kfi_levels levels[KFI_MAX_TENSORS];
    kf_i64 counts[KFI_MAX_TENSORS];
    const kfi_shape shape = {1, 0, 1, 0, counts};
    int written = 0;
    kf_result_t code = KF_SUCCESS;
    kfi_zero(all, sizeof *all);
    kfi_zero(levels, sizeof levels);
    kfi_zero(steps, KFI_MAX_TENSORS * sizeof *steps);
    for (int i = 0; i < KFI_MAX_TENSORS; ++i) counts[i] = 1;
    for (int i = 0; code == KF_SUCCESS && letters[i]; ++i) {
        levels[i] = kfi_decoding_levels(p, letters[i]);
        counts[i] = elements[i];
        written |= elements[i] > 0 && kfi_flags_of(arguments, i) & KFI_OUT;
        if (!levels[i].count) continue;
        code = kfi_check_stride(name, arguments, given, &levels[i], all, i);
        steps[i].head = all->of[i].apart[0], steps[i].row = all->of[i].apart[1];
        steps[i].batch = all->of[i].apart[2];
        if (!elements[i]) all->of[i].extent = 0;
    }
    if (code != KF_SUCCESS || !written) return code;
    return kfi_check_operands(name, arguments, &shape, levels, all);
}
/* Refuses a contiguous cache without a block for each sequence. table: index of the table. */
KFI_ONCE kf_result_t kfi_decoding_check_blocks(const kfi_name *name, const kfi_arguments *arguments,
                                               const kfi_decoding_sizes *p, int table)
{
    const char *const word = kfi_word(arguments->words, table);
    if (arguments->tensors[table] || p->blocks >= p->batch) return KF_SUCCESS;
    return kfi_fail(KF_ERROR_INVALID_SIZE, name, "blocks",
                    "is %lld, expected at least batch, %lld: %.*s is NULL", (long long)p->blocks,
                    (long long)p->batch, (int)strcspn(word, " "), word);
}
/* Refuses one table of angles without the other. cosine: index of the first one. */
KFI_ONCE kf_result_t kfi_decoding_check_angles(const kfi_name *name, const kfi_arguments *arguments,
                                               int cosine)
{
    const int lacks = arguments->tensors[cosine] ? cosine + 1 : cosine;
    const char *const other = kfi_word(arguments->words, 2 * cosine + 1 - lacks);
    if (!arguments->tensors[cosine] == !arguments->tensors[cosine + 1]) return KF_SUCCESS;
    return kfi_fail(KF_ERROR_NULL_POINTER, name, kfi_word(arguments->words, lacks),
                    "is NULL, expected a pointer beside that of %.*s", (int)strcspn(other, " "),
                    other);
}
/* Checks a merge of results [batch, rows, heads, dim]. sizes: those four; sets p, with `queries`
 * for the rows. */
KFI_ONCE kf_result_t kfi_decoding_check_merge(const kfi_name *name, const kfi_arguments *arguments,
                                              const kfi_strides *given, int bwd,
                                              const kf_i64 *sizes, kfi_decoding_sizes *p,
                                              kfi_decoding_strides *steps, kfi_operands *all)
{
    const char *const letters = bwd ? "q.q.q.q.q." : "q.q.q.";
    kf_i64 elements[KFI_MAX_TENSORS];
    const kf_result_t code = kfi_check_sizes(name, "batch rows heads dim", sizes, 4);
    if (code != KF_SUCCESS) return code;
    kfi_zero(p, sizeof *p);
    p->batch = sizes[0], p->queries = sizes[1], p->heads = sizes[2], p->dim = sizes[3];
    for (int i = 0; letters[i]; ++i)
        elements[i] =
            sizes[0] * sizes[1] * sizes[2] * (letters[i] == KFI_DECODING_QUERY ? sizes[3] : 1);
    return kfi_decoding_check(name, arguments, given, letters, elements, p, steps, all);
}

#endif
