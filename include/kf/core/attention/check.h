/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/check.h: sizes and visible keys of an attention call, in CUDA and C,
 * and the checks of its arguments. */
#ifndef KF_CORE_ATTENTION_CHECK_H
#define KF_CORE_ATTENTION_CHECK_H

#include "kf/core/host.h"

#include "kf/core/attention/bounds.h"
#include "kf/core/attention/strides.h"
#include "kf/core/shape.h"

/* Letters of the shapes of a call, one per tensor. */
enum {
    KFI_ATTENTION_Q = 'q',          /* [batch, queries, heads, dim] */
    KFI_ATTENTION_K = 'k',          /* [batch, keys, kv_heads, dim] */
    KFI_ATTENTION_V = 'v',          /* [batch, keys, kv_heads, dim_v] */
    KFI_ATTENTION_OUT = 'o',        /* [batch, queries, heads, dim_v] */
    KFI_ATTENTION_SCORES = 'x',     /* [batch, heads, queries, keys] */
    KFI_ATTENTION_HEADS = 'h',      /* [heads] */
    KFI_ATTENTION_SINK = 'i',       /* [heads]: a score without a value */
    KFI_ATTENTION_OF_QUERIES = 'u', /* [batch + 1]: bounds of packed sequences in q */
    KFI_ATTENTION_OF_KEYS = 'w',    /* and in k */
    KFI_ATTENTION_LISTS = 'b',      /* [batch, heads, blocks of queries + 1]: bounds of lists */
    KFI_ATTENTION_LISTED = 'c',     /* [listed, 2]: a block of keys, and its mask or -1 */
    KFI_ATTENTION_MASKS = 'd',      /* [masks, block, block / 32]: bits of queries and keys */
    KFI_ATTENTION_LSE = 'l',        /* [batch, heads, queries], as the next two */
    KFI_ATTENTION_ROW_MAX = 'm',    /* see core/attention/args.cuh */
    KFI_ATTENTION_LOG_SUM = 's',
    /* Gradients, each of its tensor's shape: the capital letter. */
    KFI_ATTENTION_DOUT = 'O',
    KFI_ATTENTION_DLSE = 'L',
    KFI_ATTENTION_DQ = 'Q',
    KFI_ATTENTION_DK = 'K',
    KFI_ATTENTION_DV = 'V',
    KFI_ATTENTION_DSCORES = 'X',
    KFI_ATTENTION_DHEADS = 'H',
    KFI_ATTENTION_DSINK = 'I'
};
/* Letter of the tensor that has the shape of a gradient; another letter is its own. */
KFI_ONCE char kfi_attention_shaped_as(char letter)
{
    return (char)(letter >= 'A' && letter <= 'Z' ? letter + ('a' - 'A') : letter);
}

/* The shape struct with its defaults (family.py has its order), and what a call adds to it. */
typedef struct {
    kf_i64 batch, heads, kv_heads, queries, keys, dim, dim_v;
    /* Position of the call's first query, key and head in the whole tensors, and their sizes. */
    kf_i64 query_base, key_base, head_base, queries_total, keys_total, heads_total;
    kf_i64 max_query, max_key;       /* extents of packed scores */
    kf_i64 block, listed, masks;     /* lists of blocks of keys */
    int packed;                      /* whether sequences are packed along the rows */
    kfi_attention_bound first, last; /* visible keys of query i, both included */
} kfi_attention_plan;

/* a + b and a - b, saturated. */
KFI_ONCE kf_i64 kfi_attention_add(kf_i64 a, kf_i64 b)
{
    if (b > 0 && a > INT64_MAX - b) return INT64_MAX;
    if (b < 0 && a < INT64_MIN - b) return INT64_MIN;
    return a + b;
}
KFI_ONCE kf_i64 kfi_attention_sub(kf_i64 a, kf_i64 b)
{
    if (b < 0 && a > INT64_MAX + b) return INT64_MAX;
    if (b > 0 && a < INT64_MIN + b) return INT64_MIN;
    return a - b;
}

/* Reads the fields of a shape struct. All keys are visible. */
KFI_ONCE kfi_attention_plan kfi_attention_plan_of(const int64_t *s)
{
    kfi_attention_plan p;
    p.batch = s[0], p.heads = s[1], p.kv_heads = s[2] ? s[2] : s[1], p.queries = s[3];
    p.keys = s[4], p.dim = s[5], p.dim_v = s[6] ? s[6] : s[5];
    p.query_base = s[7], p.key_base = s[8], p.head_base = s[9];
    p.queries_total = s[10] ? s[10] : p.query_base + p.queries;
    p.keys_total = s[11] ? s[11] : p.key_base + p.keys;
    p.heads_total = s[12] ? s[12] : p.head_base + p.heads;
    p.max_query = s[13], p.max_key = s[14];
    p.block = s[15] ? s[15] : 64, p.listed = s[16], p.masks = s[17];
    p.packed = 0;
    kfi_zero(&p.first, sizeof p.first);
    kfi_zero(&p.last, sizeof p.last);
    p.last.add = p.keys;
    return p;
}
/* The same for packed sequences. */
KFI_ONCE kfi_attention_plan kfi_attention_packed_plan_of(const int64_t *s)
{
    kfi_attention_plan p = kfi_attention_plan_of(s);
    p.packed = p.last.of_keys = 1;
    p.last.add = 0;
    return p;
}

/* Returns whether a workspace query has sizes that a call would accept. */
KFI_ONCE int kfi_attention_fits(const kfi_attention_plan *p)
{
    const kf_i64 batch = p->packed ? 1 : p->batch;
    const kf_i64 q[] = {batch, p->heads, p->queries, p->dim},
                 k[] = {batch, p->kv_heads, p->keys, p->dim},
                 v[] = {batch, p->kv_heads, p->keys, p->dim_v},
                 out[] = {batch, p->heads, p->queries, p->dim_v};
    return kfi_all_fit(&p->batch, 1) && kfi_all_fit(q, 4) && kfi_all_fit(k, 4) &&
           kfi_all_fit(v, 4) && kfi_all_fit(out, 4) && kfi_divides(p->kv_heads, p->heads);
}

/* Sets a bound slope * query + add of the whole tensors, normalised: sums of the call's query and
 * addend stay within (-queries, queries + keys). add: INT64_MIN and INT64_MAX are unbounded. */
KFI_ONCE kfi_attention_bound kfi_attention_bind(const kfi_attention_plan *p, int slope, kf_i64 add)
{
    const kf_i64 own =
        kfi_attention_sub(kfi_attention_add(add, slope ? p->query_base : 0), p->key_base);
    return kfi_attention_normalised(slope, own, p->queries, p->keys);
}
/* The same for packed sequences; queries, keys: how often the bound adds a sequence's. */
KFI_ONCE kfi_attention_bound kfi_attention_bind_packed(int slope, int queries, int keys, kf_i64 add)
{
    const kf_i64 most = (kf_i64)1 << 40; /* beyond all keys, and sums do not overflow */
    kfi_attention_bound b;
    b.slope = slope, b.of_queries = queries, b.of_keys = keys;
    b.add = add > most ? most : add < -most ? -most : add;
    return b;
}

/* Checks that a part of `count` from `base` on lies in a whole of `total`. */
KFI_ONCE kf_result_t kfi_attention_inside(const kfi_name *name, const char *word, kf_i64 base,
                                          kf_i64 count, kf_i64 total)
{
    if (base + count <= total) return KF_SUCCESS;
    return kfi_fail(KF_ERROR_INVALID_SIZE, name, word, "is %lld, expected at least %lld",
                    (long long)total, (long long)(base + count));
}

/* Checks the options of packed sequences. */
KFI_ONCE kf_result_t kfi_attention_check_packed(const kfi_name *name, const kfi_attention_plan *p)
{
    const struct {
        const char *word;
        kf_i64 value, expected;
    } given[] = {{"query_base", p->query_base, 0},
                 {"key_base", p->key_base, 0},
                 {"queries_total", p->queries_total, p->queries},
                 {"keys_total", p->keys_total, p->keys}};
    for (int i = 0; i < 4; ++i)
        if (given[i].value != given[i].expected)
            return kfi_fail(KF_ERROR_INVALID_SIZE, name, given[i].word,
                            "is %lld, expected 0 for packed sequences", (long long)given[i].value);
    return KF_SUCCESS;
}

/* Checks the size of the blocks of lists. */
KFI_ONCE kf_result_t kfi_attention_check_lists(const kfi_name *name, const kfi_attention_plan *p)
{
    if (p->block == 64 || p->block == 128) return KF_SUCCESS;
    return kfi_fail(KF_ERROR_INVALID_SIZE, name, "block_size", "is %lld, expected 64 or 128",
                    (long long)p->block);
}

/* Numbers the weights for dropout: sets the steps to the next batch, query and head, and the number
 * of the call's first weight. Weights are [batch, heads, queries, keys] of the whole tensors; those
 * of packed sequences [heads, queries, keys] of all rows. */
KFI_ONCE kf_result_t kfi_attention_numbers(const kfi_name *name, const kfi_attention_plan *p,
                                           kfi_attention_strides *steps, kf_i64 *first)
{
    const kf_i64 sizes[] = {p->packed ? 1 : p->batch, p->heads_total, p->queries_total,
                            p->keys_total};
    if (!kfi_all_fit(sizes, 4))
        return kfi_fail(KF_ERROR_INVALID_SIZE, name, "keys",
                        "is %lld of %lld, with %lld queries of %lld, expected at most 2^58 scores",
                        (long long)p->keys, (long long)p->keys_total, (long long)p->queries,
                        (long long)p->queries_total);
    steps->row = p->keys_total;
    steps->head = p->queries_total * steps->row;
    steps->batch = p->packed ? 0 : p->heads_total * steps->head;
    *first = p->head_base * steps->head + p->query_base * steps->row + p->key_base;
    return KF_SUCCESS;
}

/* Returns the strided levels of a tensor; count is 0 for a contiguous one. */
KFI_ONCE kfi_levels kfi_attention_levels(const kfi_attention_plan *p, char of)
{
    const char letter = kfi_attention_shaped_as(of);
    const int keys = letter == KFI_ATTENTION_K || letter == KFI_ATTENTION_V,
              wide = letter == KFI_ATTENTION_V || letter == KFI_ATTENTION_OUT,
              scores = letter == KFI_ATTENTION_SCORES;
    kfi_levels l;
    kfi_zero(&l, sizeof l);
    if (scores) {
        l.line = p->packed ? p->max_key : p->keys;
        l.size[0] = p->packed ? p->max_query : p->queries, l.size[1] = p->heads;
        l.words = ". _head _batch";
    } else if (keys || wide || letter == KFI_ATTENTION_Q) {
        l.line = wide ? p->dim_v : p->dim;
        l.size[0] = keys ? p->kv_heads : p->heads;
        l.size[1] = keys ? p->keys : p->queries;
        l.words = p->packed ? "_head ." : "_head . _batch";
    } else if (letter == KFI_ATTENTION_LISTS) {
        l.line = (p->queries + p->block - 1) / p->block + 1;
        l.size[0] = p->heads, l.size[1] = p->batch;
        l.words = "_head _batch";
        l.count = 2;
        return l;
    } else {
        return l;
    }
    l.count = p->packed && !scores ? 2 : 3;
    l.size[2] = p->batch;
    return l;
}

/* Checks a call. shapes: a letter per tensor; further tensors (dropout's) have one element. Sets
 * the strides of all tensors, and all->wanted, the outputs that will be written. */
KFI_ONCE kf_result_t kfi_attention_check(const kfi_name *name, const kfi_arguments *arguments,
                                         const kfi_strides *given, const char *shapes,
                                         const kfi_shape_values *v, const kfi_attention_plan *p,
                                         kfi_attention_strides *steps, kfi_operands *all)
{
    kfi_levels levels[KFI_MAX_TENSORS];
    kf_i64 elements[KFI_MAX_TENSORS];
    const kfi_shape shape = {1, 0, 1, 0, elements};
    int written = 0;
    kfi_zero(all, sizeof *all);
    kfi_zero(levels, sizeof levels);
    kfi_zero(steps, KFI_MAX_TENSORS * sizeof *steps);
    if (!kfi_divides(p->kv_heads, p->heads))
        return kfi_fail(KF_ERROR_INVALID_SIZE, name, "kv_heads",
                        "is %lld, expected a divisor of heads, %lld", (long long)p->kv_heads,
                        (long long)p->heads);
    kf_result_t code =
        kfi_attention_inside(name, "queries_total", p->query_base, p->queries, p->queries_total);
    if (code == KF_SUCCESS)
        code = kfi_attention_inside(name, "keys_total", p->key_base, p->keys, p->keys_total);
    if (code == KF_SUCCESS)
        code = kfi_attention_inside(name, "heads_total", p->head_base, p->heads, p->heads_total);
    if (code == KF_SUCCESS && p->packed) code = kfi_attention_check_packed(name, p);
    if (code == KF_SUCCESS && strchr(shapes, KFI_ATTENTION_LISTS))
        code = kfi_attention_check_lists(name, p);
    for (int i = 0; i < KFI_MAX_TENSORS; ++i) elements[i] = 1;
    for (int i = 0; code == KF_SUCCESS && shapes[i]; ++i) {
        levels[i] = kfi_attention_levels(p, shapes[i]);
        elements[i] = v->elements[i];
        written |= elements[i] > 0 && kfi_flags_of(arguments, i) & KFI_OUT;
        if (!levels[i].count) continue;
        code = kfi_check_stride(name, arguments, given, &levels[i], all, i);
        const kf_i64 *const apart = all->of[i].apart;
        const int scores = kfi_attention_shaped_as(shapes[i]) == KFI_ATTENTION_SCORES;
        if (shapes[i] == KFI_ATTENTION_LISTS) {
            steps[i].head = apart[0], steps[i].row = 1, steps[i].batch = apart[1];
            if (elements[i]) elements[i] = all->of[i].extent; /* shared lists are fewer */
        } else {
            steps[i].head = apart[scores], steps[i].row = apart[!scores];
            steps[i].batch = levels[i].count > 2 ? apart[2] : 0;
        }
        if (!elements[i]) all->of[i].extent = 0;
    }
    if (code != KF_SUCCESS || !written) return code;
    return kfi_check_operands(name, arguments, &shape, levels, all);
}

#endif
