// SPDX-License-Identifier: Apache-2.0
// kf/core/decoding/args.cuh: arguments of the decoding kernels, the rows of a tile, and the sum of
// chunks, which all kernels compute by the same function.
//
// A unit is a sequence and a head of k. Its rows are the heads of q that read it, of all queries:
// row r is query r / group of head r % group. A tile has some rows of a unit.
#ifndef KF_CORE_DECODING_ARGS_CUH
#define KF_CORE_DECODING_ARGS_CUH

#include "kf/core/decoding/elements.cuh"
#include "kf/core/decoding/plan.h"

struct kfi_decode {
    const void *q, *k, *v;
    void *out, *lse; // lse: float, for f64 double; may be NULL
    const int *table, *counts;
    // Workspace: keys that an item should have, one number; of each chunk [unit][tile][slot][row]
    // the maximum and the sum, and the sums of values, [dim_v] each.
    int *goal;
    void *maxima, *totals, *sums;
    kfi_decoding_strides q_strides, k_strides, v_strides, out_strides;
    int batch, kv_heads, group, queries, tiles, tile_rows, rows; // rows: group * queries
    int keys, page_size, pages, blocks; // keys: rows that a sequence may have
    int slots, most, left, right, dim, dim_v, sum_pitch;
    unsigned page_multiplier, page_shift; // row / page_size
    float log2_unit;                      // scale * log2(e)
    double scale;
};

#ifdef KFI_DEVICE_PASS
// Powers of the scores' unit and their logarithm: of 2 for 2-byte elements, of e for others.
template <int type> KFI_DEVICE float kfi_decode_power(float x)
{
    return type <= KFI_OF_F16 ? kfi_ex2_ftz(x) : expf(x);
}
template <int type> KFI_DEVICE double kfi_decode_power(double x) { return exp(x); }
template <int type> KFI_DEVICE float kfi_decode_lse(float maximum, float total)
{
    return type <= KFI_OF_F16 ? (maximum + kfi_lg2(total)) * 0.693147180559945309f
                              : maximum + logf(total);
}
template <int type> KFI_DEVICE double kfi_decode_lse(double maximum, double total)
{
    return maximum + log(total);
}
KFI_DEVICE float kfi_decode_minus_infinity() { return __int_as_float((int)0xff800000u); }
KFI_DEVICE float kfi_decode_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
KFI_DEVICE double kfi_decode_fma(double a, double b, double c) { return __fma_rn(a, b, c); }
KFI_DEVICE float kfi_decode_multiply(float a, float b) { return __fmul_rn(a, b); }
KFI_DEVICE double kfi_decode_multiply(double a, double b) { return __dmul_rn(a, b); }

// Rows of a sequence, -1 if their number is out of range: results are NaN then.
KFI_DEVICE int kfi_decode_keys(const kfi_decode &a, int sequence)
{
    const int n = a.counts[sequence];
    return n >= 0 && n <= a.keys ? n : -1;
}
KFI_DEVICE kfi_decode_range kfi_decode_range_in(const kfi_decode &a, int keys)
{
    return kfi_decode_range_of(kfi_max_i32(keys, 0), a.queries, a.left, a.right, a.most);
}
KFI_DEVICE int kfi_decode_page(const kfi_decode &a, int row)
{
    if (a.page_size == 1) return row;
    const unsigned long long product = (unsigned long long)(unsigned)row * a.page_multiplier;
    return (int)((unsigned)(product >> 32) >> a.page_shift);
}
// Block that has a page of a sequence; -1: none.
KFI_DEVICE int kfi_decode_block(const kfi_decode &a, int sequence, int page)
{
    const int block = a.table ? a.table[(kf_i64)sequence * a.pages + page] : sequence;
    return (unsigned)block < (unsigned)a.blocks ? block : -1;
}
// Offset [elements] of a row of q or out.
KFI_DEVICE kf_i64 kfi_decode_offset(const kfi_decode &a, const kfi_decoding_strides &s,
                                    int sequence, int kv_head, int row)
{
    const int query = row / a.group, head = kv_head * a.group + row - query * a.group;
    return sequence * s.batch + query * s.row + head * s.head;
}
// Index of the first of a tile's rows among maxima and totals, for a slot.
KFI_DEVICE kf_i64 kfi_decode_slot(const kfi_decode &a, int sequence, int kv_head, int tile,
                                  int slot)
{
    const kf_i64 unit = ((kf_i64)sequence * a.kv_heads + kv_head) * a.tiles + tile;
    return (unit * a.slots + slot) * a.tile_rows;
}

// A sum over keys of count columns, with its reference.
template <class real, int count> struct kfi_decode_sum {
    real value[count], maximum, total;
};
template <class real, int count> KFI_DEVICE void kfi_decode_clear(kfi_decode_sum<real, count> *sum)
{
#pragma unroll
    for (int i = 0; i < count; ++i) sum->value[i] = 0;
    sum->maximum = kfi_decode_minus_infinity();
    sum->total = 0;
}
// Adds a chunk. This is the only place where chunks meet, so that their order alone decides.
template <int type, class real, int count>
KFI_DEVICE void kfi_decode_fold(kfi_decode_sum<real, count> *sum, const real *value, real maximum,
                                real total)
{
    const real none = kfi_decode_minus_infinity(),
               higher = maximum > sum->maximum ? maximum : sum->maximum,
               shift = higher == none ? real(0) : higher,
               old = kfi_decode_power<type>(sum->maximum - shift),
               own = kfi_decode_power<type>(maximum - shift);
    sum->maximum = higher;
#pragma unroll
    for (int i = 0; i < count; ++i)
        sum->value[i] = kfi_decode_fma(own, value[i], kfi_decode_multiply(old, sum->value[i]));
    sum->total = kfi_decode_fma(own, total, kfi_decode_multiply(old, sum->total));
}
// Stores `count` columns of a row's result from `col` on, if it has them, and its lse.
template <int type, class real, int count>
KFI_DEVICE void kfi_decode_store(const kfi_decode &a, int sequence, int kv_head, int row, int col,
                                 const kfi_decode_sum<real, count> &sum)
{
    typedef typename kfi_decoding_element<type>::stored stored;
    const bool valid = kfi_decode_keys(a, sequence) >= 0;
    const real nan = kfi_not_a_number(real(0)), inverse = real(1) / sum.total;
    stored *const out =
        (stored *)a.out + kfi_decode_offset(a, a.out_strides, sequence, kv_head, row) + col;
    alignas(16) stored v[count];
#pragma unroll
    for (int i = 0; i < count; ++i)
        kfi_cast(v + i, !valid                ? nan
                        : sum.total == 0      ? real(0)
                        : sizeof(stored) == 2 ? sum.value[i] * inverse
                                              : sum.value[i] / sum.total);
    if (col < a.dim_v) kfi_copy<count * sizeof(stored)>(out, v);
    if (col || !a.lse) return;
    const int query = row / a.group, head = kv_head * a.group + row - query * a.group;
    ((real *)a.lse)[((kf_i64)sequence * a.kv_heads * a.group + head) * a.queries + query] =
        !valid           ? nan
        : sum.total == 0 ? (real)kfi_decode_minus_infinity()
                         : kfi_decode_lse<type>(sum.maximum, sum.total);
}
#endif

#endif
