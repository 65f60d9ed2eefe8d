/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/amx_tile.h: the AMX instructions, one macro each, and what the processor and the kernel
   say about them. Tiles are tmm0 to tmm7, of 16 rows x 64 bytes; a tile's number is a literal.

   Inline assembly, because the compilers' intrinsics do not tell that they read memory. Compiled
   by gcc 11 and clang 12 or later on Linux for x86-64; elsewhere KFI_AMX is 0. Tests replace this
   file by a double in C (tests/families/matmul/tiles). */
#ifndef KF_CORE_AMX_TILE_H
#define KF_CORE_AMX_TILE_H

#include "kf/core/host.h"

#include <stdint.h>
#include <string.h>

#include "kf/core/config.h"

#if defined(__x86_64__) && defined(__linux__) && !defined(__CUDACC__) && !defined(__ILP32__) &&    \
    ((defined(__clang__) && __clang_major__ >= 12) ||                                              \
     (defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11))
#define KFI_AMX 1
#else
#define KFI_AMX 0
#endif

#if KFI_AMX
#define KFI_AMX_TARGET __attribute__((target("amx-tile,amx-bf16,avx512f")))

/* A tile from and to memory: 16 rows of 64 bytes, `step` bytes from one to the next. */
#define KFI_AMX_LOAD(tile, from, step)                                                             \
    __asm__ volatile("{tileloadd\t(%0,%1,1), %%tmm" #tile "|tileloadd\ttmm" #tile ", [%0+%1*1]}"   \
                     :                                                                             \
                     : "r"((const void *)(from)), "r"((int64_t)(step))                             \
                     : "memory")
#define KFI_AMX_STORE(tile, to, step)                                                              \
    __asm__ volatile("{tilestored\t%%tmm" #tile ", (%0,%1,1)|tilestored\t[%0+%1*1], tmm" #tile "}" \
                     :                                                                             \
                     : "r"((void *)(to)), "r"((int64_t)(step))                                     \
                     : "memory")
#define KFI_AMX_ZERO(tile) __asm__ volatile("tilezero\t{%%}tmm" #tile::)
/* c[16][16] += a[16][32] . b, floats += bf16 . bf16; b: 16 rows of 16 pairs, [K / 2][column][2]. */
#define KFI_AMX_DOT(c, a, b)                                                                       \
    __asm__ volatile("{tdpbf16ps\t%%tmm" #b ", %%tmm" #a ", %%tmm" #c "|tdpbf16ps\ttmm" #c         \
                     ", tmm" #a ", tmm" #b "}" ::)

/* Gives all tiles of this thread 16 rows of 64 bytes. */
KFI_HOST void kfi_amx_configure(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int i = 0; i < 8; ++i) config.bytes[i] = 64, config.rows[i] = 16;
    __asm__ volatile("ldtilecfg\t%0" : : "m"(config));
}
KFI_HOST void kfi_amx_release(void) { __asm__ volatile("tilerelease" ::); }

/* Returns whether the processor has AMX for bf16 and the kernel saves the tiles. */
KFI_ONCE int kfi_amx_exists(void)
{
    uint32_t a, b, c, d, low, high;
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(0), "c"(0));
    if (a < 7) return 0;
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(1), "c"(0));
    if (!(c >> 27 & 1)) return 0; /* OSXSAVE: xgetbv works */
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    const int avx512 = b >> 16 & 1, bf16 = d >> 22 & 1, tile = d >> 24 & 1;
    /* States: 1 and 2 AVX, 5 to 7 AVX-512, 17 and 18 tiles. */
    return avx512 && bf16 && tile && (low & 0x600E6u) == 0x600E6u;
}
/* Asks the kernel for this process's permission to use tiles: 0, or a negative error number.
   arch_prctl(ARCH_REQ_XCOMP_PERM, 18); libc declares syscall() in some dialects alone. */
KFI_ONCE long kfi_amx_request(void)
{
    long result = 158;
    __asm__ volatile("syscall" : "+a"(result) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
    return result;
}
#endif

#endif
