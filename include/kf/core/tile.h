/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/tile.h: the unit of work of the C backend: 512 elements, in loops that compilers
 * vectorise. */
#ifndef KF_CORE_TILE_H
#define KF_CORE_TILE_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/config.h"
#include "kf/core/limits.h"
#include "kf/core/math.h"

KFI_C_BEGIN

/* KFI_TILE: elements per step of a traversal. KFI_PART: elements computed at a time. A part is
 * small enough to overlap its computation with streaming stores (core/stream.h), and smaller for
 * ops with many operands, whose parts are converted on the stack. */
#define KFI_TILE 512
#define KFI_PART KFI_MAX_PART
#define KFI_CHUNK 32 /* tiles that a thread takes at a time */
#define KFI_SIMD 16  /* elements of a vector, at most */

/* Tells the compiler that iterations are independent, also in place (an output that is an input).
 * `restrict` would be false in that case. */
#if defined(__clang__)
#define KFI_TILE_LOOP _Pragma("clang loop vectorize(assume_safety)")
#define KFI_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define KFI_TILE_LOOP _Pragma("GCC ivdep")
#if defined(__CUDACC__) /* its front end rejects the pragma */
#define KFI_UNROLL
#else
#define KFI_UNROLL _Pragma("GCC unroll 4")
#endif
#else
#define KFI_TILE_LOOP
#define KFI_UNROLL
#endif

/* Tiles of 2-byte elements are converted before and after the loop of the op, which is faster than
 * inside it (bench/NOTES/cpu.md). F16C has instructions that gcc does not generate by itself. n: a
 * multiple of the vector length. */
#if defined(__F16C__) && defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
typedef float kfi_8_floats __attribute__((vector_size(32)));
typedef short kfi_8_halves __attribute__((vector_size(16)));
KFI_HOST void kfi_widen_f16(const kf_f16 *from, float *to, int n)
{
    for (int j = 0; j < n; j += 8) {
        kfi_8_halves h;
        memcpy(&h, (const void *)(from + j), sizeof h);
        const kfi_8_floats f = __builtin_ia32_vcvtph2ps256(h);
        memcpy(to + j, &f, sizeof f);
    }
}
KFI_HOST void kfi_narrow_f16(const float *from, kf_f16 *to, int n)
{
    for (int j = 0; j < n; j += 8) {
        kfi_8_floats f;
        memcpy(&f, from + j, sizeof f);
        const kfi_8_halves h = __builtin_ia32_vcvtps2ph256(f, 0 /* round to nearest even */);
        memcpy((void *)(to + j), &h, sizeof h);
    }
}
#else
KFI_HOST void kfi_widen_f16(const kf_f16 *from, float *to, int n)
{
    KFI_TILE_LOOP
    for (int j = 0; j < n; ++j) to[j] = kfi_cpu_load_f16(from[j]);
}
KFI_HOST void kfi_narrow_f16(const float *from, kf_f16 *to, int n)
{
    KFI_TILE_LOOP
    for (int j = 0; j < n; ++j) to[j] = kfi_cpu_cast_f32_f16(from[j]);
}
#endif
KFI_HOST void kfi_widen_bf16(const kf_bf16 *from, float *to, int n)
{
    KFI_TILE_LOOP
    for (int j = 0; j < n; ++j) to[j] = kfi_cpu_load_bf16(from[j]);
}
KFI_HOST void kfi_narrow_bf16(const float *from, kf_bf16 *to, int n)
{
    KFI_TILE_LOOP
    for (int j = 0; j < n; ++j) to[j] = kfi_cpu_cast_f32_bf16(from[j]);
}

KFI_C_END

#endif
