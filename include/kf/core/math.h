/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/math.h: the scalar primitives of the C backend, kfi_cpu_<name>_<f32|f64|lp>.
 *
 *   _f32: float, accurate to a few ulp over the whole range
 *
 *   _lp: float in and out, for a result that is then rounded to f16 or bf16: relative error 2^-13,
 *   absolute error 2^-135 for subnormal results
 *
 *   _f64: libm, scalar
 *
 * All but _f64 vectorise in a constant-trip loop with any flags, SSE2 at -O2 included. They have no
 * branches, no libm calls (errno) and no float ?: (control flow unless -fno-trapping-math); integer
 * masks select instead. On plain SSE2 only 64-bit integer compares and products stay scalar.
 *
 * The bounds hold with and without FMA, if sums are evaluated in the order written. Coefficients:
 * gen/fit/fit_words_c.py. */
#ifndef KF_CORE_MATH_H
#define KF_CORE_MATH_H

#include "kf/core/host.h"

#include "kf/core/convert.h"
#include "kf/core/math_bits.h"
#include "kf/core/math_exp.h"
#include "kf/core/math_normal.h"

KFI_C_BEGIN

/* Primitives that have no cheaper low-precision form. */
KFI_INLINE float kfi_cpu_div_lp(float a, float b) { return a / b; }
KFI_INLINE float kfi_cpu_rcp_lp(float b) { return 1.0f / b; }
KFI_INLINE float kfi_cpu_max_lp(float a, float b) { return kfi_cpu_max_f32(a, b); }
KFI_INLINE float kfi_cpu_min_lp(float a, float b) { return kfi_cpu_min_f32(a, b); }
KFI_INLINE float kfi_cpu_abs_lp(float x) { return kfi_cpu_abs_f32(x); }

KFI_C_END

#endif
