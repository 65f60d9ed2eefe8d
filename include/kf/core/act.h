/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/act.h: activation functions as arguments of C functions.
 * Each op has one always-inlined function that takes its activation as a function pointer. Call
 * sites pass a constant, so the compiler inlines the activation. */
#ifndef KF_CORE_ACT_H
#define KF_CORE_ACT_H

#include "kf/core/host.h"

#include "kf/core/config.h"

#include <stdint.h>

#include "kf/core/limits.h"

KFI_C_BEGIN

typedef struct {
    float v[KFI_MAX_ACT_SCALARS];
} kfi_act_scalars_f32;
typedef struct {
    double v[KFI_MAX_ACT_SCALARS];
} kfi_act_scalars_f64;
/* The activation of x, and its gradient: of x (or of the result) and dout. */
typedef float (*kfi_act_fn_f32)(float, kfi_act_scalars_f32);
typedef float (*kfi_act_bwd_fn_f32)(float, float, kfi_act_scalars_f32);
typedef double (*kfi_act_fn_f64)(double, kfi_act_scalars_f64);
typedef double (*kfi_act_bwd_fn_f64)(double, double, kfi_act_scalars_f64);
typedef int32_t (*kfi_act_fn_i32)(int32_t, kfi_act_scalars_f32);
typedef int64_t (*kfi_act_fn_i64)(int64_t, kfi_act_scalars_f32);

/* Copies the activation's scalars, which follow the op's `first` scalars. The copy lives in
 * registers: memory that results may alias would be reloaded per element. */
KFI_INLINE kfi_act_scalars_f32 kfi_act_scalars_of_f32(const void *scalars, int first, int count)
{
    kfi_act_scalars_f32 s = {{0}};
    for (int i = 0; i < count; ++i) s.v[i] = ((const float *)scalars)[first + i];
    return s;
}
KFI_INLINE kfi_act_scalars_f64 kfi_act_scalars_of_f64(const void *scalars, int first, int count)
{
    kfi_act_scalars_f64 s = {{0}};
    for (int i = 0; i < count; ++i) s.v[i] = ((const double *)scalars)[first + i];
    return s;
}

KFI_C_END

#endif
