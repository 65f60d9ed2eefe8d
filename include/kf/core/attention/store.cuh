// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/store.cuh: epilogue of the tensor-core attention kernels: normalises a warp's
// 16 rows, stores them and their statistics, and recomputes rows that a masked value reached.
//
// A masked probability is 0, but 0 times an infinite or NaN value is NaN. Rows of a tile with
// partly visible key blocks, and those of a score or a dropout that may hide keys, are therefore
// tested; a row that is not finite although its statistics are is computed again from global
// memory, over its visible keys only.
#ifndef KF_CORE_ATTENTION_STORE_CUH
#define KF_CORE_ATTENTION_STORE_CUH

#include "kf/core/attention/dropout.cuh"
#include "kf/core/attention/sparse.cuh"

#ifdef KFI_DEVICE_PASS

template <int type> KFI_DEVICE float kfi_attention_number(const char *row, int i)
{
    float v;
    if constexpr (type == KFI_OF_BF16)
        kfi_unpack_bf16<1>(&v, (const kf_bf16 *)row + i);
    else
        kfi_unpack_f16<1>(&v, (const kf_f16 *)row + i);
    return v;
}

// One row of a warp, as all its lanes know it.
struct kfi_attention_row_state {
    int row, head, batch;
    int begin, end; // loaded keys
    float reference, sum;
};

// Returns whether a loaded key that the row does not see has a value that is not finite.
template <int type>
KFI_DEVICE bool kfi_attention_reached(const kfi_attention &a, const kfi_attention_blocks &,
                                      const kfi_attention_row_state &r)
{
    const int lane = (int)threadIdx.x % 32,
              first = kfi_max_i32(0, kfi_attention_first_key(a, r.row)),
              last = kfi_attention_last_key(a, r.row);
    const char *const v = kfi_attention_row(a.v, a.v_strides, 0, r.head / a.group, r.batch, 2);
    float bad = 0;
#pragma unroll 1
    for (int key = r.begin; key < r.end; ++key) {
        if (key == first && last >= first) key = last + 1;
        if (key >= r.end) break;
        for (int i = lane; i < a.dim_v; i += 32)
            bad =
                __fmaf_rn(kfi_attention_number<type>(v + key * a.v_strides.row * 2, i), 0.0f, bad);
    }
    return __any_sync(0xffffffffu, bad != bad);
}

// A list hides keys one by one.
template <int type>
KFI_DEVICE bool kfi_attention_reached(const kfi_attention &, const kfi_attention_list &,
                                      const kfi_attention_row_state &)
{
    return true;
}

// Product of the row with a key, in all lanes.
template <int type, int lanes>
KFI_DEVICE float kfi_attention_dot(const float *q, const char *k, int dim)
{
    float dot = 0;
#pragma unroll
    for (int i = 0; i < lanes; ++i)
        if ((int)threadIdx.x % 32 + 32 * i < dim)
            dot =
                __fmaf_rn(q[i], kfi_attention_number<type>(k, (int)threadIdx.x % 32 + 32 * i), dot);
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) dot += __shfl_xor_sync(0xffffffffu, dot, step);
    return dot;
}

// Factor of a row's accumulators.
template <int drop> KFI_DEVICE float kfi_attention_inverse(const kfi_attention &a, float sum)
{
    const float inverse = sum == 0 ? 0.0f : kfi_rcp_ftz(sum);
    return drop >= 0 ? inverse * a.drop.rng.scale : inverse;
}
// Computes and stores a row over its visible keys, by all lanes of a warp.
template <int type, int score, int dim, int dim_v, int drop, class range>
KFI_DEVICE void kfi_attention_recompute(const kfi_attention &a, const range &b,
                                        const kfi_attention_row_state &r)
{
    const kfi_rng rng = kfi_attention_rng<drop>(a);
    const int lane = (int)threadIdx.x % 32;
    const char *const q = kfi_attention_row(a.q, a.q_strides, r.row, r.head, r.batch, 2);
    const char *k = kfi_attention_row(a.k, a.k_strides, 0, r.head / a.group, r.batch, 2);
    const char *v = kfi_attention_row(a.v, a.v_strides, 0, r.head / a.group, r.batch, 2);
    float own[dim / 32], sums[dim_v / 32];
#pragma unroll
    for (int i = 0; i < dim / 32; ++i)
        own[i] = lane + 32 * i < a.dim ? kfi_attention_number<type>(q, lane + 32 * i) : 0;
#pragma unroll
    for (int i = 0; i < dim_v / 32; ++i) sums[i] = 0;
    const float shift = r.reference == kfi_minus_infinity() ? 0.0f : r.reference * a.log2_unit;
    const kfi_attention_positions keys = kfi_attention_positions_of(a, b, r.row);
#pragma unroll 1
    for (int i = keys.begin; i <= keys.end; ++i) {
        if (!kfi_attention_sees(a, b, r.row, i)) continue;
        const int key = kfi_attention_key_at(b, i);
        float s[1] = {kfi_attention_dot<type, dim / 32>(own, k + key * a.k_strides.row * 2, a.dim)};
        kfi_score_block<score, 8> block;
        kfi_score_load(kfi_tag<score>(), block, a, r.row, key, r.head, r.batch);
        kfi_score_all<score, 8, 1>(s, block, a);
        if (score != KFI_SCORE_PLAIN && s[0] == kfi_minus_infinity()) continue;
        if (drop >= 0 &&
            !kfi_attention_keeps(rng, kfi_attention_number(a, r.row, r.head, r.batch) + key))
            continue;
        const unsigned packed =
            kfi_attention_pack<type>(kfi_ex2_ftz(__fmaf_rn(s[0], a.log2_unit, -shift)), 0.0f);
        const float p = kfi_attention_number<type>((const char *)&packed, 0);
#pragma unroll
        for (int c = 0; c < dim_v / 32; ++c)
            if (lane + 32 * c < a.dim_v)
                sums[c] = __fmaf_rn(
                    p, kfi_attention_number<type>(v + key * a.v_strides.row * 2, lane + 32 * c),
                    sums[c]);
        bool open = false; // a column that is not NaN yet
#pragma unroll
        for (int c = 0; c < dim_v / 32; ++c) open |= lane + 32 * c < a.dim_v && sums[c] == sums[c];
        if (!__any_sync(0xffffffffu, open)) break;
    }
    char *const out = (char *)kfi_attention_row(a.out, a.out_strides, r.row, r.head, r.batch, 2);
    const float inverse = kfi_attention_inverse<drop>(a, r.sum);
#pragma unroll
    for (int i = 0; i < dim_v / 32; ++i) {
        const unsigned packed = kfi_attention_pack<type>(sums[i] * inverse, 0.0f);
        if (lane + 32 * i < a.dim_v) kfi_copy<2>(out + 2 * (lane + 32 * i), &packed);
    }
}

// Recomputes those of the warp's 8 rows of half h that a masked value reached. Returns whether the
// thread's row is stored already.
template <int type, int score, int dim, int dim_v, int drop, class range>
KFI_DEVICE bool kfi_attention_mend(const float *o, int h, float sum, float reference,
                                   const kfi_attention &a, const range &b,
                                   kfi_attention_row_state r)
{
    float bad = 0;
#pragma unroll
    for (int i = 0; i < dim_v / 2; ++i)
        if ((i >> 1 & 1) == h) bad = __fmaf_rn(o[i], 0.0f, bad);
    const int row = r.row;
    unsigned rows = __ballot_sync(0xffffffffu, bad != bad && row < a.queries && sum == sum);
    bool stored = false;
#pragma unroll 1
    while (rows) {
        const int from = __ffs((int)rows) - 1;
        rows &= ~(0xfu << (from & ~3));
        r.row = __shfl_sync(0xffffffffu, row, from);
        r.sum = __shfl_sync(0xffffffffu, sum, from);
        r.reference = __shfl_sync(0xffffffffu, reference, from);
        if (score == KFI_SCORE_PLAIN && !kfi_attention_drops<drop>(a) &&
            !kfi_attention_reached<type>(a, b, r))
            continue;
        kfi_attention_recompute<type, score, dim, dim_v, drop>(a, b, r);
        stored = stored || r.row == row;
    }
    return stored;
}

// Stores a row's lse, row_max and log_sum. Called by the first lane of a quad.
KFI_DEVICE void kfi_attention_store_statistics(const kfi_attention &a, kf_i64 at, float reference,
                                               float sum)
{
    const float most = sum == 0 ? kfi_minus_infinity() : reference * a.unit,
                log = sum == 0 ? kfi_minus_infinity() : kfi_lg2_ftz(sum) * 0.6931471805599453f;
    if (a.lse) ((float *)a.lse)[at] = sum == 0 ? kfi_minus_infinity() : most + log;
    if (a.row_max) ((float *)a.row_max)[at] = most;
    if (a.log_sum) ((float *)a.log_sum)[at] = log;
}

// Stores half h of a fragment of accumulators, times `factor`. to: the thread's row, at the column
// 8 * (lane % 4). in: the row exists. whole, aligned: rows begin and end at multiples of 16 bytes.
// Called by all lanes of a warp.
template <int type, int dim, int whole>
KFI_DEVICE void kfi_attention_store_half(char *to, const float *o, int h, float factor, bool in,
                                         int cols, bool aligned = whole)
{
    const int col = 8 * ((int)threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < dim / 32; ++j) {
        unsigned u[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float *const pair = o + 4 * (4 * j + i) + 2 * h;
            u[i] = kfi_attention_pack<type>(pair[0] * factor, pair[1] * factor);
        }
        kfi_attention_transpose(u);
        if (!in || 32 * j + col >= cols) continue;
        if (whole || aligned) {
            *(uint4 *)(to + 64 * j) = make_uint4(u[0], u[1], u[2], u[3]);
        } else {
#pragma unroll
            for (int e = 0; e < 8; ++e)
                if (32 * j + col + e < cols)
                    kfi_copy<2>(to + 64 * j + 2 * e, (const char *)u + 2 * e);
        }
    }
}

// Normalises and stores a warp's rows. r.row: the thread's first row. partial: masked values may
// have reached rows (kfi_attention_partial). whole: rows of out begin and end at multiples of 16
// bytes.
template <int type, int score, int dim, int dim_v, int whole = 1, int drop = KFI_NO_DROPOUT,
          class range>
KFI_DEVICE void kfi_attention_store(const float *o, const kfi_softmax &state,
                                    const kfi_attention &a, const range &b,
                                    kfi_attention_row_state r, bool partial)
{
    const int col = 8 * ((int)threadIdx.x % 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float sum = state.sum[h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float inverse = kfi_attention_inverse<drop>(a, sum);
        kfi_attention_row_state own = r;
        own.row = r.row + 8 * h;
        bool in = own.row < a.queries;
        if (in && threadIdx.x % 4 == 0)
            kfi_attention_store_statistics(a, kfi_attention_row_index(a, own.row, r.head, r.batch),
                                           state.reference[h], sum);
        if ((partial || score != KFI_SCORE_PLAIN || kfi_attention_drops<drop>(a)) &&
            kfi_attention_mend<type, score, dim, dim_v, drop>(o, h, sum, state.reference[h], a, b,
                                                              own))
            in = false;
        char *const to =
            (char *)kfi_attention_row(a.out, a.out_strides, own.row, r.head, r.batch, 2) + 2 * col;
        kfi_attention_store_half<type, dim_v, whole>(to, o, h, inverse, in, a.dim_v);
    }
}
#endif

#endif
