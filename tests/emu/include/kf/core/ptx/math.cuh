// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/math.cuh of the emulator: the same functions, correctly rounded.
#ifndef KF_EMU_PTX_MATH_CUH
#define KF_EMU_PTX_MATH_CUH

#include "kf/core/config.h"

KFI_DEVICE float kfi_ftz(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
KFI_DEVICE float kfi_ex2_ftz(float x) { return kfi_ftz((float)exp2((double)kfi_ftz(x))); }
KFI_DEVICE float kfi_rcp_ftz(float x) { return kfi_ftz(1.0f / kfi_ftz(x)); }
KFI_DEVICE float kfi_lg2_ftz(float x) { return (float)log2((double)kfi_ftz(x)); }
KFI_DEVICE float kfi_lg2(float x) { return (float)log2((double)x); }
KFI_DEVICE float kfi_sqrt_approx(float x) { return sqrtf(x); }
KFI_DEVICE float kfi_max_f32(float a, float b) { return a > b || a != a ? a : b; }
KFI_DEVICE float kfi_min_f32(float a, float b) { return a < b || a != a ? a : b; }
#define KFI_PACKED_MAX 0 // the code for devices before sm_80

#endif
