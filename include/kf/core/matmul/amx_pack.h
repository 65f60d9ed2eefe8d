/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/amx_pack.h: packs panels of a bf16 operand for AMX. A panel has up to 32 rows of A
   or columns of B. For each 32 of K it holds two tiles of 16 of them: A as [row][K], B as
   [K / 2][column][2]. Elements past the end of K and of the lines are zeros in both, so that
   they add nothing to any sum.

   Included by core/matmul/amx.h. */
#ifndef KF_CORE_MATMUL_AMX_PACK_H
#define KF_CORE_MATMUL_AMX_PACK_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/amx.h"
#include "kf/core/matmul/amx_plan.h"
#include "kf/core/stream.h"

#if KFI_AMX

KFI_C_BEGIN

/* 16 pairs of elements. */
typedef uint32_t kfi_amx_pairs __attribute__((vector_size(64), may_alias));
typedef uint16_t kfi_amx_elements __attribute__((vector_size(32), may_alias));
#if defined(__clang__) || __GNUC__ >= 12
#define KFI_AMX_ZIP(a, b, ...) (kfi_amx_pairs) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define KFI_AMX_ZIP(a, b, ...) __builtin_shuffle(a, b, (kfi_amx_pairs){__VA_ARGS__})
#endif
#if defined(__clang__)
#define KFI_AMX_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KFI_AMX_UNROLL _Pragma("GCC unroll 16")
#endif

/* Transposes 16 x 16 pairs by four rounds of interleaving. */
KFI_AMX_TARGET KFI_INLINE void kfi_amx_transpose(kfi_amx_pairs *r)
{
    KFI_AMX_UNROLL
    for (int round = 0; round < 4; ++round) {
        kfi_amx_pairs t[16];
        KFI_AMX_UNROLL
        for (int i = 0; i < 8; ++i) {
            t[2 * i] =
                KFI_AMX_ZIP(r[i], r[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            t[2 * i + 1] = KFI_AMX_ZIP(r[i], r[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
                                       14, 30, 15, 31);
        }
        KFI_AMX_UNROLL
        for (int i = 0; i < 16; ++i) r[i] = t[i];
    }
}
/* *to = the pairs (low[i], high[i]). */
KFI_AMX_TARGET KFI_INLINE void kfi_amx_join(const uint16_t *low, const uint16_t *high,
                                            kfi_amx_pairs *to)
{
    kfi_amx_elements l, h;
    memcpy(&l, low, sizeof l);
    memcpy(&h, high, sizeof h);
    *to = __builtin_convertvector(l, kfi_amx_pairs) | __builtin_convertvector(h, kfi_amx_pairs)
                                                          << 16;
}

/* Packs a tile of K-contiguous columns of B: rows of pairs become columns. */
KFI_AMX_TARGET static KFI_APART __attribute__((unused)) void
kfi_amx_pack_columns(const uint16_t *from, kf_i64 line_step, char *to)
{
    kfi_amx_pairs r[16];
    KFI_AMX_UNROLL
    for (int i = 0; i < 16; ++i) {
        KFI_GEMM_PREFETCH(from + i * line_step + 128);
        memcpy(&r[i], from + i * line_step, sizeof r[i]);
    }
    kfi_amx_transpose(r);
    KFI_AMX_UNROLL
    for (int i = 0; i < 16; ++i) memcpy(to + i * 64, &r[i], sizeof r[i]);
}
/* Packs a tile of lines that are contiguous across K. */
KFI_AMX_TARGET static KFI_APART __attribute__((unused)) void
kfi_amx_pack_beside(const uint16_t *from, kf_i64 depth_step, int is_b, char *to)
{
    kfi_amx_pairs r[16];
    KFI_AMX_UNROLL
    for (int i = 0; i < 16; ++i)
        kfi_amx_join(from + 2 * i * depth_step, from + (2 * i + 1) * depth_step, &r[i]);
    if (!is_b) kfi_amx_transpose(r);
    KFI_AMX_UNROLL
    for (int i = 0; i < 16; ++i) memcpy(to + i * 64, &r[i], sizeof r[i]);
}

/* Copies `lines` lines of `depths` elements, at most 32 each, to [lines][32], or if lines are
   contiguous to [depths][32]; pads with zeros. */
KFI_HOST void kfi_amx_stage(const uint16_t *from, kf_i64 line_step, kf_i64 depth_step, int lines,
                            int depths, uint16_t *to)
{
    const int across = depth_step != 1;
    const kf_i64 outer_step = across ? depth_step : line_step,
                 inner_step = across ? line_step : depth_step;
    const int outer = across ? depths : lines, inner = across ? lines : depths;
    memset(to, 0, KFI_AMX_LINES * KFI_AMX_STEP * sizeof *to);
    for (int i = 0; i < outer; ++i)
        if (inner_step == 1)
            memcpy(to + i * 32, from + i * outer_step, (size_t)inner * sizeof *to);
        else
            for (int j = 0; j < inner; ++j) to[i * 32 + j] = from[i * outer_step + j * inner_step];
}
/* Packs 32 of K, or the last `depths`, of a panel. */
KFI_HOST void kfi_amx_pack_step(const uint16_t *from, kf_i64 line_step, kf_i64 depth_step, int is_b,
                                int lines, int depths, char *to)
{
    KFI_ON_A_LINE uint16_t stage[KFI_AMX_LINES * KFI_AMX_STEP];
    const int tiles = lines > 16 ? 2 : 1;
    if (lines < 16 * tiles || depths < KFI_AMX_STEP || (depth_step != 1 && line_step != 1)) {
        kfi_amx_stage(from, line_step, depth_step, lines, depths, stage);
        from = stage;
        line_step = depth_step == 1 ? 32 : 1;
        depth_step = depth_step == 1 ? 1 : 32;
    }
    if (depth_step == 1 && !is_b)
        for (int i = 0; i < 16 * tiles; ++i) memcpy(to + i * 64, from + i * line_step, 64);
    else
        for (int t = 0; t < tiles; ++t, to += KFI_AMX_TILE, from += 16 * line_step)
            if (depth_step == 1)
                kfi_amx_pack_columns(from, line_step, to);
            else
                kfi_amx_pack_beside(from, depth_step, is_b, to);
}
/* Packs a panel: `depths` elements of K of `lines` lines. */
KFI_HOST void kfi_amx_pack(const kfi_gemm_operand *o, int is_b, kf_i64 line, kf_i64 lines,
                           kf_i64 depth, kf_i64 depths, char *to)
{
    const uint16_t *from = (const uint16_t *)o->data + line * o->line_step + depth * o->depth_step;
    for (kf_i64 d = 0; d < depths; d += KFI_AMX_STEP, to += 2 * KFI_AMX_TILE)
        kfi_amx_pack_step(from + d * o->depth_step, o->line_step, o->depth_step, is_b, (int)lines,
                          (int)kfi_cpu_gemm_least(depths - d, KFI_AMX_STEP), to);
}

#undef KFI_AMX_ZIP

KFI_C_END

#endif

#endif
