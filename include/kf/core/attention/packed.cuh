// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/packed.cuh: packed sequences of attention: their bounds in device memory, and
// the tiles of rows that a sequence has.
//
// A tile has up to `rows` query rows of one sequence and one head. Tile t belongs to the last part
// i with part(i) / rows + i <= t: parts are the rows in front of all sequences, the sequences, and
// the rows behind them. So many tiles suffice for any bounds, each part has at most one tile too
// many, and the host needs no length. Rows of no sequence see no key.
// Bounds outside the tensors are clamped, so that nothing outside is read or written.
#ifndef KF_CORE_ATTENTION_PACKED_CUH
#define KF_CORE_ATTENTION_PACKED_CUH

#include "kf/core/attention/args.cuh"
#include "kf/core/attention/bounds.h"

// Arguments of the kernels of packed sequences. a: sizes of all sequences, of which kernels make a
// sequence's (kfi_attention_own); row_blocks: tiles of a head.
struct kfi_attention_packed {
    kfi_attention a;
    const void *query_offsets, *key_offsets; // [batch + 1]
    bool wide;                               // 64-bit offsets; else 32-bit
    int batch, max_query, max_key;           // sequences, and the longest ones allowed
    kfi_attention_bound first, last;
};

// Rows of a sequence in q and in k. index: among the sequences, for a bias. refused: it is longer
// than max_query or max_key, and its results are NaN. inside: rows of a sequence, not those in
// front of all or behind them.
struct kfi_attention_sequence {
    int index, query, queries, key, keys;
    bool refused, inside;
};

#ifdef KFI_DEVICE_PASS
KFI_DEVICE int kfi_attention_offset(const kfi_attention_packed &p, const void *offsets, int i,
                                    int most)
{
    const kf_i64 at = p.wide ? ((const kf_i64 *)offsets)[i] : (kf_i64)((const int *)offsets)[i];
    return at < 0 ? 0 : at > most ? most : (int)at;
}
// First row of part i of batch + 2; of part batch + 2, the number of rows. keys: rows of k.
template <int keys> KFI_DEVICE int kfi_attention_start(const kfi_attention_packed &p, int i)
{
    const int rows = keys ? p.a.keys : p.a.queries;
    if (i == 0) return 0;
    if (i > p.batch + 1) return rows;
    return kfi_attention_offset(p, keys ? p.key_offsets : p.query_offsets, i - 1, rows);
}
// Finds the sequence of tile t of queries, or of keys. Returns the tile's block of rows in it, last
// blocks first; negative: the tile has no rows.
template <int rows, int keys = 0>
KFI_DEVICE int kfi_attention_find(kfi_attention_sequence *s, const kfi_attention_packed &p, int t)
{
    int i = 0, end = p.batch + 2;
#pragma unroll 1
    while (end - i > 1) {
        const int middle = (i + end) / 2;
        if (kfi_attention_start<keys>(p, middle) / rows + middle <= t)
            i = middle;
        else
            end = middle;
    }
    const int first = kfi_attention_start<keys>(p, i),
              count = kfi_max_i32(0, kfi_attention_start<keys>(p, i + 1) - first);
    int other = 0, others = 0; // rows of the other tensor
    s->index = 0;
    s->refused = false;
    s->inside = i > 0 && i <= p.batch;
    if (s->inside) {
        s->index = i - 1;
        other = kfi_attention_start<!keys>(p, i);
        others = kfi_max_i32(0, kfi_attention_start<!keys>(p, i + 1) - other);
        s->refused = (keys ? others : count) > p.max_query || (keys ? count : others) > p.max_key;
        if (s->refused) others = 0;
    }
    s->query = keys ? other : first, s->queries = keys ? others : count;
    s->key = keys ? first : other, s->keys = keys ? count : others;
    return (count + rows - 1) / rows - 1 - (t - first / rows - i);
}
// A bound of a sequence's keys.
KFI_DEVICE kfi_attention_bound kfi_attention_own_bound(const kfi_attention_bound &b,
                                                       const kfi_attention_sequence &s)
{
    const kf_i64 add = b.add + (kf_i64)b.of_queries * s.queries + (kf_i64)b.of_keys * s.keys;
    return kfi_attention_normalised(b.slope, add, s.queries, s.keys);
}
// Returns the arguments of one sequence and head, which kernels take for batch `index`. bytes: size
// of an element.
KFI_DEVICE kfi_attention kfi_attention_own(const kfi_attention_packed &p,
                                           const kfi_attention_sequence &s, int head, int bytes)
{
    const kfi_attention_bound first = kfi_attention_own_bound(p.first, s),
                              last = kfi_attention_own_bound(p.last, s);
    const kf_i64 real = bytes == 8 ? 8 : 4,
                 at = real * ((kf_i64)head * p.a.queries + s.query -
                              ((kf_i64)s.index * p.a.heads + head) * s.queries);
    kfi_attention a = p.a;
    a.queries = a.score.queries_total = s.queries;
    a.keys = a.score.keys_total = s.keys;
    a.range = {first.slope, (int)first.add, last.slope, (int)last.add};
    a.q = kfi_attention_row(p.a.q, p.a.q_strides, s.query, 0, 0, bytes);
    a.k = kfi_attention_row(p.a.k, p.a.k_strides, s.key, 0, 0, bytes);
    a.v = kfi_attention_row(p.a.v, p.a.v_strides, s.key, 0, 0, bytes);
    a.drop.number0 += s.query * a.drop.numbers.row + s.key;
    a.out = (void *)kfi_attention_row(p.a.out, p.a.out_strides, s.query, 0, 0, bytes);
    // kfi_attention_row_index counts as if all sequences had this one's length.
    if (a.lse) a.lse = (char *)a.lse + at;
    if (a.row_max) a.row_max = (char *)a.row_max + at;
    if (a.log_sum) a.log_sum = (char *)a.log_sum + at;
    return a;
}
#endif

#endif
