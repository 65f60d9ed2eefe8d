// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/args.cuh: arguments of the attention kernels, and the keys that a query sees.
//
// out[i] = sum over visible keys j of softmax(score(q[i] . k[j])) v[j]. Tensors have strides for
// batch, row and head; their last axis is contiguous.
#ifndef KF_CORE_ATTENTION_ARGS_CUH
#define KF_CORE_ATTENTION_ARGS_CUH

#include "kf/core/attention/strides.h"
#include "kf/core/kernel.cuh"
#include "kf/core/philox.h"
#include "kf/core/product_types.cuh"

// Visible keys of query i: i * first_slope + first_add to i * last_slope + last_add, both included,
// clamped to the keys. A slope is 0 or 1. kfi_attention_bind normalises the addends.
struct kfi_attention_range {
    int first_slope, first_add, last_slope, last_add;
};

#define KFI_SCORE_TENSORS 2
#define KFI_SCORE_SCALARS 8
// Arguments of a score (score.cuh): tensors with their strides, and scalars.
struct kfi_score_args {
    const void *tensors[KFI_SCORE_TENSORS];
    kfi_attention_strides strides[KFI_SCORE_TENSORS];
    bool paired[KFI_SCORE_TENSORS]; // pairs of elements from an even key on are aligned
    float scalars[KFI_SCORE_SCALARS];
    double scalars_f64[KFI_SCORE_SCALARS];
    // Positions of the call's first query, key and head; queries and keys in all.
    int query_base, key_base, head_base, queries_total, keys_total;
    const void *sink; // [heads], a score of each head's queries without a value; or NULL
};

#define KFI_NO_DROPOUT (-1)
// Dropout of the weights. The number of a weight, which its random bits follow from, is number0 and
// the steps to its batch, query and head, and its key.
struct kfi_attention_dropout {
    kfi_rng rng;
    kfi_attention_strides numbers;
    kf_i64 number0;
};

struct kfi_attention {
    const void *q, *k, *v;
    void *out;
    // [batch, heads, queries], each may be NULL. lse = row_max + log_sum, natural logarithms.
    // row_max: the reference that the exponentials subtract, at most 8 log2 units below the row's
    // maximum; -inf if the query sees no key. log_sum: the logarithm of their sum. double for f64.
    void *lse, *row_max, *log_sum;
    kfi_attention_strides q_strides, k_strides, v_strides, out_strides;
    int queries, keys, heads, group; // group: query heads per key head
    int dim, dim_v;
    kfi_attention_range range;
    // score = unit * at, and log2(e) * score = log2_unit * at, where `at` is the seam's result
    // (score.cuh) and log2_unit > 0. A plain score with a scale <= 0 is multiplied by `factor`
    // first (scales), and has unit 1.
    float unit, log2_unit, factor;
    double unit_f64, factor_f64;
    bool scales;
    // Work order of the persistent kernel: `span` heads form a group whose K and V stay in L2; in a
    // group the last row block of every head comes first.
    int row_blocks, tiles, span, group_tiles, batch_heads;
    int *ticket; // next tile, 0 at the launch
    kfi_score_args score;
    kfi_attention_dropout drop; // read by kernels with dropout
};

#ifdef KFI_DEVICE_PASS

// Rows that a block computes. begin: the first one. refused: their results are NaN.
struct kfi_attention_place {
    int begin, head, batch;
    bool refused;
};
// Place of a block among blocks of `rows` rows, the last rows of a head first.
template <int rows> KFI_DEVICE kfi_attention_place kfi_attention_place_of(const kfi_attention &a)
{
    const int bh = (int)blockIdx.x / a.row_blocks, batch = bh / a.heads;
    const kfi_attention_place at = {(a.row_blocks - 1 - ((int)blockIdx.x - bh * a.row_blocks)) *
                                        rows,
                                    bh - batch * a.heads, batch, false};
    return at;
}

// NVRTC has no INFINITY and no NAN.
KFI_DEVICE float kfi_attention_nan() { return __int_as_float(0x7fffffff); }
KFI_DEVICE float kfi_minus_infinity() { return __int_as_float((int)0xff800000u); }

// Key blocks that rows [begin, end] need: first to last, of which first_whole to last_whole need no
// mask. last < first: none.
struct kfi_attention_blocks {
    int first, last, first_whole, last_whole;
};
KFI_DEVICE int kfi_attention_first_key(const kfi_attention &a, int row)
{
    return row * a.range.first_slope + a.range.first_add;
}
KFI_DEVICE int kfi_attention_last_key(const kfi_attention &a, int row)
{
    return kfi_min_i32(a.keys - 1, row * a.range.last_slope + a.range.last_add);
}
template <int keys>
KFI_DEVICE kfi_attention_blocks kfi_attention_blocks_of(const kfi_attention &a, int begin, int end)
{
    const int low = kfi_max_i32(0, kfi_attention_first_key(a, begin)),
              high = kfi_attention_last_key(a, end);
    kfi_attention_blocks b;
    b.first = low / keys;
    b.last = high < low || begin >= a.queries ? b.first - 1 : high / keys;
    b.first_whole = (kfi_max_i32(0, kfi_attention_first_key(a, end)) + keys - 1) / keys;
    b.last_whole = (kfi_max_i32(-1, kfi_attention_last_key(a, begin)) + 1) / keys - 1;
    return b;
}
// Whether a loaded key may be invisible to some row that another row sees: its value then meets a
// probability of 0 (store.cuh). Keys from `end` on load as zeros.
template <int keys>
KFI_DEVICE bool kfi_attention_partial(const kfi_attention &a, const kfi_attention_blocks &b,
                                      int begin, int end)
{
    return b.first < b.first_whole ||
           kfi_attention_last_key(a, begin) < kfi_min_i32(end, (b.last + 1) * keys) - 1;
}
// A range of keys is kfi_attention_blocks or a list of blocks (sparse.cuh). Kernels walk its steps
// from `last` to `first`; for one row they walk positions of keys. A step of these blocks is the
// block, a position the key.
struct kfi_attention_positions {
    int begin, end; // both included
};
KFI_DEVICE int kfi_attention_block_at(const kfi_attention_blocks &, int step) { return step; }
KFI_DEVICE kfi_attention_positions kfi_attention_positions_of(const kfi_attention &a,
                                                              const kfi_attention_blocks &, int row)
{
    const kfi_attention_positions s = {kfi_max_i32(0, kfi_attention_first_key(a, row)),
                                       kfi_attention_last_key(a, row)};
    return s;
}
KFI_DEVICE int kfi_attention_key_at(const kfi_attention_blocks &, int position) { return position; }
// Whether a range hides keys within the bounds.
KFI_DEVICE bool kfi_attention_hides(const kfi_attention_blocks &) { return false; }
// Whether the bounds hide keys of a block from some rows.
KFI_DEVICE bool kfi_attention_is_masked(const kfi_attention_blocks &b, int block)
{
    return block > b.last_whole || block < b.first_whole;
}
// Whether a row sees the key at a position of its span.
KFI_DEVICE bool kfi_attention_sees(const kfi_attention &, const kfi_attention_blocks &, int, int)
{
    return true;
}
// Index of a row's lse.
KFI_DEVICE kf_i64 kfi_attention_row_index(const kfi_attention &a, int row, int head, int batch)
{
    return ((kf_i64)batch * a.heads + head) * a.queries + row;
}
KFI_DEVICE const char *kfi_attention_row(const void *p, const kfi_attention_strides &s, int row,
                                         int head, int batch, int bytes)
{
    return (const char *)p + (batch * s.batch + row * s.row + head * s.head) * bytes;
}
#endif

#ifdef KFI_HOST_PASS
// Sets the units of a plain score q . k * scale, for any finite scale.
KF_FN void kfi_attention_scale(kfi_attention *a, double scale)
{
    const double log2e = 1.4426950408889634, most = 3.4028234663852886e38;
    a->scales = !(scale > 0);
    a->unit_f64 = a->scales ? 1 : scale;
    a->unit = (float)a->unit_f64;
    a->log2_unit = (float)(a->unit_f64 * log2e < most ? a->unit_f64 * log2e : most);
    a->factor_f64 = scale;
    a->factor = (float)scale;
}
// Sets dropout's random numbers. With a probability of 1 all weights are 0, and no factor is
// infinite.
KF_FN void kfi_attention_random(kfi_attention *a, const kfi_rng &rng)
{
    a->drop.rng = rng;
    if (rng.threshold > 65535) a->drop.rng.scale_f64 = a->drop.rng.scale = 0;
}
#endif

#endif
