/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/philox_tile.h: random bits for a tile of elements on the CPU, vectorised if the compiler
 * supports it. */
#ifndef KF_CORE_PHILOX_TILE_H
#define KF_CORE_PHILOX_TILE_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/philox.h"
#include "kf/core/tile.h"

KFI_C_BEGIN

/* Philox on x86. Each 64-bit lane holds one counter word in its low half. A shift extracts the high
 * half of a product; the low half is already in place for the next round, which ignores the bits
 * above. The vector types and, for GCC, the instructions are explicit: from a loop over lanes GCC
 * makes three instructions per product, or no vectors at -O2. */
#if defined(__GNUC__) && defined(__SSE2__) && defined(__has_builtin) && !defined(__CUDACC__)
#if defined(__AVX512F__) && (defined(__clang__) || __has_builtin(__builtin_ia32_pmuludq512_mask))
#define KFI_LANES 8
#elif defined(__AVX2__) && (defined(__clang__) || __has_builtin(__builtin_ia32_pmuludq256))
#define KFI_LANES 4
#elif defined(__clang__) || __has_builtin(__builtin_ia32_pmuludq128)
#define KFI_LANES 2
#endif
#endif

#ifdef KFI_LANES
typedef kfi_u64 kfi_lanes __attribute__((vector_size(8 * KFI_LANES)));
typedef kfi_u32 kfi_lane_halves __attribute__((vector_size(8 * KFI_LANES)));
typedef int kfi_lane_ints __attribute__((vector_size(8 * KFI_LANES)));
typedef long long kfi_lane_longs __attribute__((vector_size(8 * KFI_LANES)));
typedef struct {
    kfi_lanes c0, c1, c2, c3;
} kfi_counters;

/* Broadcasts into both halves, which takes fewer instructions than into one. */
KFI_INLINE kfi_lanes kfi_lanes_of(kfi_u32 word)
{
    const kfi_lane_halves zero = {0};
    return (kfi_lanes)(zero + word);
}
KFI_INLINE kfi_lanes kfi_lanes_multiply(kfi_lanes a, kfi_u32 word)
{
#if defined(__clang__)
    return (a & 0xFFFFFFFFu) * word; /* clang selects pmuludq by itself */
#elif KFI_LANES == 8
    return (kfi_lanes)__builtin_ia32_pmuludq512_mask(
        (kfi_lane_ints)a, (kfi_lane_ints)kfi_lanes_of(word), (kfi_lane_longs)a, (unsigned char)255);
#elif KFI_LANES == 4
    return (kfi_lanes)__builtin_ia32_pmuludq256((kfi_lane_ints)a,
                                                (kfi_lane_ints)kfi_lanes_of(word));
#else
    return (kfi_lanes)__builtin_ia32_pmuludq128((kfi_lane_ints)a,
                                                (kfi_lane_ints)kfi_lanes_of(word));
#endif
}
KFI_INLINE kfi_counters kfi_counters_from(kfi_u64 group, kfi_u64 offset)
{
    static const kfi_u64 steps[] = {0, 1, 2, 3, 4, 5, 6, 7};
    kfi_counters c;
    memcpy(&c.c0, steps, sizeof c.c0);
    c.c0 += group;
    c.c1 = c.c0 >> 32;
    c.c2 = kfi_lanes_of((kfi_u32)offset);
    c.c3 = kfi_lanes_of((kfi_u32)(offset >> 32));
    return c;
}
KFI_INLINE void kfi_counters_round(kfi_counters *c, kfi_lanes k0, kfi_lanes k1)
{
    const kfi_lanes p0 = kfi_lanes_multiply(c->c0, 0xD2511F53u),
                    p1 = kfi_lanes_multiply(c->c2, 0xCD9E8D57u);
    c->c0 = (p1 >> 32) ^ c->c1 ^ k0;
    c->c1 = p1;
    c->c2 = (p0 >> 32) ^ c->c3 ^ k1;
    c->c3 = p0;
}
KFI_INLINE void kfi_counters_store(const kfi_counters *c, kfi_u64 *low, kfi_u64 *high)
{
    const kfi_lanes w01 = (c->c0 & 0xFFFFFFFFu) | c->c1 << 32,
                    w23 = (c->c2 & 0xFFFFFFFFu) | c->c3 << 32;
    memcpy(low, &w01, sizeof w01);
    memcpy(high, &w23, sizeof w23);
}
#endif

/* Fills `words`: element first + j uses words[first % 8 + j]. */
KFI_HOST void kfi_random_tile(uint16_t *words, const kfi_rng *rng, kf_i64 first)
{
    const kfi_u64 group = (kfi_u64)first / 8;
#ifdef KFI_LANES
    kfi_u64 low[KFI_TILE / 8], high[KFI_TILE / 8];
    for (int g = 0; g < KFI_TILE / 8;
         g += 2 * KFI_LANES) { /* two at a time: a round waits for its products */
        const int h = g + KFI_LANES;
        kfi_counters a = kfi_counters_from(group + (kfi_u64)g, rng->offset),
                     b = kfi_counters_from(group + (kfi_u64)h, rng->offset);
#if !defined(__clang__)
#pragma GCC unroll 10
#endif
        for (int round = 0; round < 10; ++round) {
            const kfi_lanes k0 = kfi_lanes_of(rng->keys[2 * round]),
                            k1 = kfi_lanes_of(rng->keys[2 * round + 1]);
            kfi_counters_round(&a, k0, k1);
            kfi_counters_round(&b, k0, k1);
        }
        kfi_counters_store(&a, low + g, high + g);
        kfi_counters_store(&b, low + h, high + h);
    }
    for (int g = 0; g < KFI_TILE / 8; ++g) {
        memcpy(words + 8 * g, low + g, 8);
        memcpy(words + 8 * g + 4, high + g, 8);
    }
    if (first % 8) {
        kfi_u32 w[4];
        kfi_philox(rng, group + KFI_TILE / 8, &w[0], &w[1], &w[2], &w[3]);
        memcpy(words + KFI_TILE, w, sizeof w);
    }
#else
    kfi_u32 w[(KFI_TILE + 8) / 2];
    for (int g = 0; g < KFI_TILE / 8 + 1; ++g)
        kfi_philox(rng, group + (kfi_u64)g, &w[4 * g], &w[4 * g + 1], &w[4 * g + 2], &w[4 * g + 3]);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    for (int i = 0; i < (KFI_TILE + 8) / 2; ++i) w[i] = w[i] << 16 | w[i] >> 16;
#endif
    memcpy(words, w, sizeof w);
#endif
}

KFI_INLINE uint32_t kfi_cpu_keep(uint16_t word, uint32_t from)
{
    return 0u - (uint32_t)(word >= from);
}
/* A condition per element of 8 bytes from one of 4. */
KFI_INLINE uint64_t kfi_cpu_wide(uint32_t mask) { return (uint64_t)(int64_t)(int32_t)mask; }

KFI_C_END

#endif
