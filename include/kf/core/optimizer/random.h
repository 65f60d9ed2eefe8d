/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/optimizer/random.h: rounding at random to bfloat16, in C and CUDA.
 *
 * An element is rounded up with the probability of its distance from the value below. 16 random
 * bits are added to its float32 bits, which then lose their lower half. Element i of list k and of
 * tensor n, counted without empty tensors, uses 16-bit word (i mod 8) of Philox4x32-10 at counter
 * (k 2^60 + n 2^36 + i / 8, offset). Infinities and NaN stay. */
#ifndef KF_CORE_OPTIMIZER_RANDOM_H
#define KF_CORE_OPTIMIZER_RANDOM_H

#include "kf/core/philox.h"

KFI_BOTH kfi_u64 kfi_random_group(int list, int tensor, kf_i64 element)
{
    return ((kfi_u64)list << 60) + ((kfi_u64)tensor << 36) + ((kfi_u64)element >> 3);
}

/* Returns the bits of a bfloat16. bits: of the float32. word: 16 random bits. */
KFI_BOTH kfi_u32 kfi_round_at_random(kfi_u32 bits, kfi_u32 word)
{
    const kfi_u32 nan = bits & 0x7fffffu ? 0x40u : 0u;
    return (bits & 0x7f800000u) == 0x7f800000u ? bits >> 16 | nan : (bits + word) >> 16;
}

#endif
