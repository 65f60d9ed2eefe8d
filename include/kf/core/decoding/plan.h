/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/decoding/plan.h: sizes of calls with caches, and the chunks of keys that attention to a
 * cache is computed in, for host and device. */
#ifndef KF_CORE_DECODING_PLAN_H
#define KF_CORE_DECODING_PLAN_H

#include "kf/core/config.h"
#include "kf/core/dtype.h"

/* Fields of the shape struct with their defaults, in its order (gen/kfgen/families/decoding). */
typedef struct {
    kf_i64 batch, heads, kv_heads, queries, blocks, page_size, pages, dim, dim_v, positions, pairs;
} kfi_decoding_sizes;

/* Distances [elements] between consecutive batches (or blocks), rows and heads. */
typedef struct {
    kf_i64 batch, row, head;
} kfi_decoding_strides;

#define KFI_DECODE_LEAST 128 /* keys of a chunk, at least; twice that beyond 1024 keys */
/* Rows of a sequence, queries, and distances of `left` and `right`, at most: sums are ints. */
#define KFI_DECODE_KEYS_MOST 0x3fffffff

/* Keys that a sequence's queries see, [first, end), and its chunks of `chunk` keys from a multiple
 * of `chunk` on: number `begin` and the following ones, `count` in all, at least one. Chunks follow
 * from the sequence's length and from `left` alone, so a sequence has the same bits in any batch.
 */
typedef struct {
    int first, end, chunk, begin, count;
} kfi_decode_range;

/* Returns a number within KFI_DECODE_KEYS_MOST, which is beyond all keys. */
KFI_BOTH int kfi_decode_bound(kf_i64 given)
{
    const kf_i64 most = KFI_DECODE_KEYS_MOST;
    return (int)(given > most ? most : given < -most ? -most : given);
}
/* Chunks that a sequence is divided into, at most: fewer heads of k have more chunks each. */
KFI_BOTH int kfi_decode_most(kf_i64 kv_heads)
{
    return kv_heads >= 8 ? 16 : kv_heads > 0 ? 128 / (int)kv_heads : 128;
}
/* Returns the keys of a chunk. keys: those that a query may see; most: kfi_decode_most. */
KFI_BOTH int kfi_decode_chunk(int keys, int most)
{
    const int each = ((keys + most - 1) / most + KFI_DECODE_LEAST - 1) / KFI_DECODE_LEAST,
              least = keys > 1024 ? 2 : 1;
    return (each > least ? each : least) * KFI_DECODE_LEAST;
}
/* keys: the sequence's; queries, left, right: of kfi_decode_bound. */
KFI_BOTH kfi_decode_range kfi_decode_range_of(int keys, int queries, int left, int right, int most)
{
    const int end = right < 0 ? keys + right : keys, first = keys - queries - left;
    kfi_decode_range r;
    r.chunk = kfi_decode_chunk(left >= keys ? keys : left < 0 ? 1 : left + 1, most);
    r.end = end < 0 ? 0 : end;
    r.first = first < 0 ? 0 : first < r.end ? first : r.end;
    r.begin = r.first / r.chunk;
    r.count = (r.end + r.chunk - 1) / r.chunk - r.begin;
    if (r.count < 1) r.count = 1;
    return r;
}
/* Chunks of any sequence of a call, at most. rows: the cached rows that a sequence may have. */
KFI_BOTH int kfi_decode_slots(int rows, int queries, kf_i64 kv_heads)
{
    const int of_rows = rows / KFI_DECODE_LEAST + 1,
              of_most = kfi_decode_most(kv_heads) + 2 + queries / KFI_DECODE_LEAST;
    return of_rows < of_most ? of_rows : of_most;
}

#endif
