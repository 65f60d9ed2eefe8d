// SPDX-License-Identifier: Apache-2.0
// kf/core/dropout.cuh: device functions that draw dropout's random bits (Philox) and apply its
// mask.
#ifndef KF_CORE_DROPOUT_CUH
#define KF_CORE_DROPOUT_CUH

#include "kf/core/philox.h"
#include "kf/core/vector.cuh"

#ifdef KFI_DEVICE_PASS

template <int state> KFI_DEVICE void kfi_rng_begin(kfi_rng &rng)
{
    if (state) {
        kfi_set_seed(&rng, *rng.seed_at);
        rng.offset += *rng.offset_at;
    }
}
// Draws 16 random bits per element: keep[e] belongs to element index + e. `index` is a multiple of
// vec, which divides 8.
template <int vec> KFI_DEVICE void kfi_keep(kfi_u32 *keep, const kfi_rng &rng, kf_i64 index)
{
    kfi_u32 w[4];
    kfi_philox(&rng, (kfi_u64)index >> 3, &w[0], &w[1], &w[2], &w[3]);
    const unsigned first = (unsigned)index & 7u;
    if (vec < 8) { // selects words without a computed index, which would need local memory
        if (first & 4u) {
            w[0] = w[2];
            w[1] = w[3];
        }
        if (vec < 4 && (first & 2u)) w[0] = w[1];
        if (vec < 2 && (first & 1u)) w[0] >>= 16;
    }
#pragma unroll
    for (int e = 0; e < vec; ++e) keep[e] = e % 2 ? w[e / 2] >> 16 : w[e / 2] & 0xffffu;
}
// Draws random bits at any index. whole: `index` is a multiple of vec; otherwise the vector may
// reach into the next counter's eight elements.
template <int vec, int whole>
KFI_DEVICE void kfi_row_keep(kfi_u32 *keep, const kfi_rng &rng, kf_i64 index)
{
    if (whole) {
        kfi_keep<vec>(keep, rng, index);
        return;
    }
    const unsigned first = (unsigned)index & 7u;
    kfi_u32 w[8] = {};
    kfi_philox(&rng, (kfi_u64)index >> 3, &w[0], &w[1], &w[2], &w[3]);
    if (first + vec > 8) kfi_philox(&rng, ((kfi_u64)index >> 3) + 1, &w[4], &w[5], &w[6], &w[7]);
    // Selects words without a computed index.
#pragma unroll
    for (int i = 0; i < 6; ++i)
        if (first & 4u) w[i] = w[i + 2];
#pragma unroll
    for (int i = 0; i < 5; ++i)
        if (first & 2u) w[i] = w[i + 1];
#pragma unroll
    for (int e = 0; e < vec; ++e) {
        const kfi_u32 even = w[e / 2] & 0xffffu, odd = w[e / 2] >> 16,
                      next = w[e / 2 + 1] & 0xffffu;
        keep[e] = first & 1u ? (e % 2 ? next : odd) : (e % 2 ? odd : even);
    }
}
// Returns v if the element is kept, else 0. Opaque to the compiler, which would otherwise branch
// around the activation of every element to skip the few that are dropped.
KFI_DEVICE float kfi_select_kept(kfi_u32 word, const kfi_rng &rng, float v)
{
    return kfi_select_from(word, rng.threshold, v);
}
KFI_DEVICE double kfi_select_kept(kfi_u32 word, const kfi_rng &rng, double v)
{
    return word >= rng.threshold ? v : 0.0;
}

#endif

#endif
