// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/score.cuh: the seam of the attention kernels: an op's score of a product q . k.
//
// An op is named by an integer tag; overloads on kfi_tag<tag> define it:
//   kfi_score_block<tag, keys>    what a thread keeps for one block of keys
//   kfi_score_load(...)           fills it, while the products are being computed
//   kfi_score_at(...)             returns the score of one product, in units of kfi_attention::unit
//   kfi_score_is_bounded(...)     1: |score| stays below 55, and no maximum is subtracted
// A thread has rows row + 8 * kfi_score_row(i) and keys key + kfi_score_key(i); i is a constant
// after unrolling.
#ifndef KF_CORE_ATTENTION_SCORE_CUH
#define KF_CORE_ATTENTION_SCORE_CUH

#include "kf/core/attention/args.cuh"

#define KFI_SCORE_PLAIN 0 // q . k * scale

template <int score> KFI_BOTH constexpr bool kfi_score_is_bounded(kfi_tag<score>) { return false; }

#ifdef KFI_DEVICE_PASS
KFI_DEVICE constexpr int kfi_score_row(int i) { return i >> 1 & 1; }
KFI_DEVICE constexpr int kfi_score_key(int i) { return 8 * (i >> 2) + (i & 1); }

template <int score, int keys> struct kfi_score_block {};

template <int keys>
KFI_DEVICE void kfi_score_load(kfi_tag<KFI_SCORE_PLAIN>, kfi_score_block<KFI_SCORE_PLAIN, keys> &,
                               const kfi_attention &, int, int, int, int)
{
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
