/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/philox.h: the random bits of dropout: Philox4x32-10 (Salmon et al., SC 2011; constants
 * from its table 2).
 *
 * Element i uses 16-bit word (i mod 8), low half first, of the 128 bits at counter i / 8. The mask
 * therefore depends on the seed, the offset and the element index alone. */
#ifndef KF_CORE_PHILOX_H
#define KF_CORE_PHILOX_H

#include "kf/core/config.h"
#include "kf/core/dtype.h"

typedef unsigned kfi_u32;
typedef unsigned long long kfi_u64;

typedef struct {
    kfi_u32 keys[20]; /* keys of the ten rounds */
    kfi_u64 offset;
    /* Device pointers: a seed that replaces `keys`, and a number added to `offset`; or NULL. The
     * memory must belong to the device that runs the kernel. */
    const kfi_u64 *seed_at, *offset_at;
    kfi_u32 threshold; /* the element is dropped if its word is below round(65536 p) */
    float scale;       /* 1 / (1 - p) */
    double scale_f64;
} kfi_rng;

KFI_BOTH void kfi_set_seed(kfi_rng *rng, kfi_u64 seed)
{
    kfi_u32 k0 = (kfi_u32)seed, k1 = (kfi_u32)(seed >> 32);
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int round = 0; round < 10; ++round) {
        rng->keys[2 * round] = k0;
        rng->keys[2 * round + 1] = k1;
        k0 += 0x9E3779B9u; /* the golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
}

/* key = seed; counter words 0-1 = group, 2-3 = offset, low word first. Named results instead of an
 * array, which the compiler would index in memory. */
KFI_BOTH void kfi_philox(const kfi_rng *rng, kfi_u64 group, kfi_u32 *w0, kfi_u32 *w1, kfi_u32 *w2,
                         kfi_u32 *w3)
{
    kfi_u32 c0 = (kfi_u32)group, c1 = (kfi_u32)(group >> 32), c2 = (kfi_u32)rng->offset,
            c3 = (kfi_u32)(rng->offset >> 32);
#if defined(__CUDA_ARCH__)
#pragma unroll
#elif defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#pragma GCC unroll 10
#endif
    for (int round = 0; round < 10; ++round) {
        const kfi_u64 p0 = (kfi_u64)0xD2511F53u * c0, p1 = (kfi_u64)0xCD9E8D57u * c2;
        c0 = (kfi_u32)(p1 >> 32) ^ c1 ^ rng->keys[2 * round];
        c1 = (kfi_u32)p1;
        c2 = (kfi_u32)(p0 >> 32) ^ c3 ^ rng->keys[2 * round + 1];
        c3 = (kfi_u32)p0;
    }
    *w0 = c0;
    *w1 = c1;
    *w2 = c2;
    *w3 = c3;
}

#ifndef __CUDACC_RTC__
#include "kf/core/result.h"
KFI_HOST kfi_rng kfi_make_rng(double p, kfi_u64 seed, kfi_u64 offset, const void *seed_at,
                              const void *offset_at)
{
    kfi_rng rng;
    kfi_set_seed(&rng, seed);
    rng.offset = offset;
    rng.seed_at = (const kfi_u64 *)seed_at;
    rng.offset_at = (const kfi_u64 *)offset_at;
    rng.threshold = (kfi_u32)(65536.0 * p + 0.5);
    rng.scale_f64 = 1.0 / (1.0 - p); /* infinite for p = 1, where every element is dropped */
    rng.scale = (float)rng.scale_f64;
    return rng;
}
#endif

#endif
