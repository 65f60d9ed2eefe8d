/* SPDX-License-Identifier: Apache-2.0 */
/* A double of kf/core/amx_tile.h in C, for machines without AMX: its folder comes first on the
   include path. Tiles hold NaN before ldtilecfg, and every instruction checks that the thread has
   configured them and that a load or store has rows of whole tiles.

   TDPBF16PS as the manual has it (Intel SDM, volume 2): the even and the odd elements of a pair are
   summed apart by fused multiply-adds, then both sums are added, then the accumulator; to the
   nearest, subnormal arguments and results are 0. */
#ifndef KF_CORE_AMX_TILE_H
#define KF_CORE_AMX_TILE_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kf/core/config.h"

#define KFI_AMX 1
#define KFI_AMX_TARGET

static __thread struct {
    int configured;
    unsigned char data[8][16][64];
} amx_tiles;
#define KFI_AMX_DOUBLE 1
/* Permission was asked for; products of tiles so far. One of each per program. */
__attribute__((weak)) int amx_granted, amx_dots;

static inline unsigned char *amx_tile_at(int number)
{
    if (!amx_tiles.configured || number < 0 || number > 7) {
        fprintf(stderr, "tile %d without ldtilecfg\n", number);
        abort();
    }
    return &amx_tiles.data[number][0][0];
}
static inline void KFI_AMX_LOAD(int number, const void *from, int64_t step)
{
    for (int i = 0; i < 16; ++i)
        memcpy(amx_tile_at(number) + 64 * i, (const char *)from + i * step, 64);
}
static inline void KFI_AMX_STORE(int number, void *to, int64_t step)
{
    for (int i = 0; i < 16; ++i) memcpy((char *)to + i * step, amx_tile_at(number) + 64 * i, 64);
}
static inline void KFI_AMX_ZERO(int number) { memset(amx_tile_at(number), 0, 1024); }

static inline float amx_flushed(float v) { return fabsf(v) < 0x1p-126f ? copysignf(0, v) : v; }
static inline float amx_brain(const unsigned char *from)
{
    uint16_t u;
    memcpy(&u, from, sizeof u);
    const uint32_t bits = (uint32_t)u << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return amx_flushed(v);
}
static inline void KFI_AMX_DOT(int c, int a, int b)
{
    for (int m = 0; m < 16; ++m)
        for (int n = 0; n < 16; ++n) {
            float sum[2] = {0, 0}, old;
            for (int k = 0; k < 16; ++k)
                for (int i = 0; i < 2; ++i)
                    sum[i] = amx_flushed(fmaf(amx_brain(amx_tile_at(a) + 64 * m + 4 * k + 2 * i),
                                              amx_brain(amx_tile_at(b) + 64 * k + 4 * n + 2 * i),
                                              sum[i]));
            memcpy(&old, amx_tile_at(c) + 64 * m + 4 * n, sizeof old);
            old = amx_flushed(amx_flushed(old) + amx_flushed(sum[0] + sum[1]));
            memcpy(amx_tile_at(c) + 64 * m + 4 * n, &old, sizeof old);
        }
    __atomic_add_fetch(&amx_dots, 1, __ATOMIC_RELAXED);
}
static inline void kfi_amx_configure(void)
{
    if (amx_tiles.configured || !amx_granted) abort();
    amx_tiles.configured = 1;
    memset(amx_tiles.data, 0xff, sizeof amx_tiles.data);
}
static inline void kfi_amx_release(void) { amx_tiles.configured = 0; }
static inline int kfi_amx_exists(void) { return 1; }
static inline long kfi_amx_request(void)
{
    amx_granted = 1;
    return 0;
}

#endif
