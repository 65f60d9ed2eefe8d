// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/score.cuh: the seam of the attention kernels: an op's score of a product q . k.
//
// An op is named by an integer tag; overloads on kfi_tag<tag> define it:
//   kfi_score_block<tag, keys>    what a thread keeps for one block of keys
//   kfi_score_load(...)           fills it, while the products are being computed
//   kfi_score_at(...)             returns the score of one product, in units of kfi_attention::unit
//   kfi_score_is_bounded(...)     1: |score| stays below 55, and no maximum is subtracted
//   kfi_score_sink<real>(...)     a score of the head without a value; -inf: none
//   kfi_score_bwd(...)       returns the gradient of a product from that of its score, and the
//                                 gradients of the score's tensors
//   kfi_score_gradients(...)      1: the score has tensors whose gradients are wanted
//   kfi_score_sums(...)           bit n: tensor n has a number per head and a gradient
//   kfi_score_store(...)          stores the gradient of an element of tensor n
// A score of -inf hides the key.
//
// Element i of a thread, a constant after unrolling, has query row + kfi_score_query<transposed>(i)
// and key key + kfi_score_column<transposed>(i). transposed: rows of the fragment are keys, as
// where a block computes gradients of k and v.
#ifndef KF_CORE_ATTENTION_SCORE_CUH
#define KF_CORE_ATTENTION_SCORE_CUH

#include "kf/core/attention/args.cuh"

#define KFI_SCORE_PLAIN 0 // q . k * scale

template <int score> KFI_BOTH constexpr bool kfi_score_is_bounded(kfi_tag<score>) { return false; }
template <int score> KFI_BOTH constexpr bool kfi_score_gradients(kfi_tag<score>) { return false; }
template <int score> KFI_BOTH constexpr int kfi_score_sums(kfi_tag<score>) { return 0; }

#ifdef KFI_DEVICE_PASS
template <int type> struct kfi_attention_element;
template <> struct kfi_attention_element<KFI_OF_BF16> {
    typedef kf_bf16 stored;
    typedef float real;
};
template <> struct kfi_attention_element<KFI_OF_F16> {
    typedef kf_f16 stored;
    typedef float real;
};
template <> struct kfi_attention_element<KFI_OF_F32> {
    typedef float stored;
    typedef float real;
};
template <> struct kfi_attention_element<KFI_OF_F64> {
    typedef double stored;
    typedef double real;
};
KFI_DEVICE float kfi_attention_widen(float v) { return v; }
KFI_DEVICE double kfi_attention_widen(double v) { return v; }
KFI_DEVICE float kfi_attention_widen(kf_f16 v) { return __half2float(v); }
KFI_DEVICE float kfi_attention_widen(kf_bf16 v) { return __bfloat162float(v); }
KFI_DEVICE float kfi_attention_widen(unsigned char v) { return (float)v; }

KFI_DEVICE constexpr int kfi_score_row(int i) { return i >> 1 & 1; }
KFI_DEVICE constexpr int kfi_score_key(int i) { return 8 * (i >> 2) + (i & 1); }
template <int transposed> KFI_DEVICE constexpr int kfi_score_query(int i)
{
    return transposed ? kfi_score_key(i) : 8 * kfi_score_row(i);
}
template <int transposed> KFI_DEVICE constexpr int kfi_score_column(int i)
{
    return transposed ? 8 * kfi_score_row(i) : kfi_score_key(i);
}

// keys: columns of the fragment, of which a thread has keys / 2 elements.
template <int score, int keys, int transposed = 0> struct kfi_score_block {};

template <int keys, int transposed>
KFI_DEVICE void kfi_score_load(kfi_tag<KFI_SCORE_PLAIN>,
                               kfi_score_block<KFI_SCORE_PLAIN, keys, transposed> &,
                               const kfi_attention &, int, int, int, int)
{
}

template <class real, int score>
KFI_DEVICE real kfi_score_sink(kfi_tag<score>, const kfi_attention &, int)
{
    return kfi_minus_infinity();
}
// Loads what a thread needs of tensor number i of the scores' shape.
template <int keys, int transposed, class T>
KFI_DEVICE void kfi_score_fetch(T *to, int tensor, const kfi_attention &a, int row, int key,
                                int head, int batch)
{
    const kfi_attention_strides &s = a.score.strides[tensor];
    const T *const from =
        (const T *)a.score.tensors[tensor] + batch * s.batch + head * s.head + key;
    // Rows that are recomputed key by key (store.cuh, bwd_mma.cuh) begin at odd keys, too.
    const bool paired = a.score.paired[tensor] && key % 2 == 0;
#pragma unroll
    for (int i = 0; i < keys / 2; i += 2) {
        const int r = row + kfi_score_query<transposed>(i), c = kfi_score_column<transposed>(i);
        const T *const p = from + r * s.row + c;
        if constexpr (transposed) {
            const bool in = key + c < a.keys;
            to[i] = in && r < a.queries ? p[0] : T{};
            to[i + 1] = in && r + 1 < a.queries ? p[s.row] : T{};
        } else if (paired && r < a.queries && key + c + 1 < a.keys) {
            kfi_copy<2 * sizeof(T)>(to + i, p);
        } else {
            to[i] = r < a.queries && key + c < a.keys ? p[0] : T{};
            to[i + 1] = r < a.queries && key + c + 1 < a.keys ? p[1] : T{};
        }
    }
}

// Replaces a thread's products by their scores.
template <int score, int keys, int n, class real>
KFI_DEVICE void kfi_score_all(real *s, const kfi_score_block<score, keys> &block,
                              const kfi_attention &a)
{
    if constexpr (score != KFI_SCORE_PLAIN) {
#pragma unroll
        for (int i = 0; i < n; ++i) s[i] = kfi_score_at(kfi_tag<score>(), a, block, s[i], i);
    } else if (a.scales) {
#pragma unroll
        for (int i = 0; i < n; ++i) s[i] *= sizeof(real) == 8 ? (real)a.factor_f64 : a.factor;
    }
}
#endif

#endif
