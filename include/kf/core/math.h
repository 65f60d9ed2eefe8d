/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/math.h: the scalar words of the C backend, kfi_cpu_<word>_<f32|f64|lp>.
 *
 *   _f32   float, a few ulp over the whole range
 *   _lp    float in and out, for a result that is then rounded to f16 or bf16: relative error
 * 2^-13, and 2^-135 absolute where it is subnormal _f64   libm, scalar
 *
 * All but _f64 is written so that a constant-trip loop over it vectorises with any flags, SSE2 at
 * -O2 included: no branches, no libm (errno), no float ?: (control flow unless -fno-trapping-math)
 * but selects by integer masks. What stays scalar on plain SSE2 is integer compares and products of
 * 64 bits. The bounds hold with and without FMA, and where sums are added up in the order written.
 * Coefficients: gen/fit/fit_words_c.py. */
#ifndef KF_CORE_MATH_H
#define KF_CORE_MATH_H

#include "kf/core/host.h"

#include "kf/core/convert.h"
#include "kf/core/math_bits.h"
#include "kf/core/math_exp.h"
#include "kf/core/math_normal.h"

KFI_C_BEGIN

/* Words for which nothing is cheaper. */
KFI_INLINE float kfi_cpu_div_lp(float a, float b) { return a / b; }
KFI_INLINE float kfi_cpu_rcp_lp(float b) { return 1.0f / b; }
KFI_INLINE float kfi_cpu_max_lp(float a, float b) { return kfi_cpu_max_f32(a, b); }
KFI_INLINE float kfi_cpu_min_lp(float a, float b) { return kfi_cpu_min_f32(a, b); }
KFI_INLINE float kfi_cpu_abs_lp(float x) { return kfi_cpu_abs_f32(x); }

KFI_C_END

#endif
