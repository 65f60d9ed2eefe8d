/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/act.h: an activation that a function of C is given. What an op computes with its
   activations is one always-inlined function, whose argument is a constant where it is called:
   compilers make of it what they would make of the activation's own text. */
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
/* The value of x; the gradient, of x or of the result and of dout. */
typedef float (*kfi_act_fn_f32)(float, kfi_act_scalars_f32);
typedef float (*kfi_act_bwd_fn_f32)(float, float, kfi_act_scalars_f32);
typedef double (*kfi_act_fn_f64)(double, kfi_act_scalars_f64);
typedef double (*kfi_act_bwd_fn_f64)(double, double, kfi_act_scalars_f64);
typedef int32_t (*kfi_act_fn_i32)(int32_t, kfi_act_scalars_f32);
typedef int64_t (*kfi_act_fn_i64)(int64_t, kfi_act_scalars_f32);

/* The activation's own scalars, behind `first` of the op's. In registers: memory that results may
 * share would be read again for each. */
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
