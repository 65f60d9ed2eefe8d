/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/optimizer/optimizer.h: loads and stores of optimizers in C. A part of KFI_PART elements
 * is converted to the arithmetic type in L1, updated by a loop of constant length, and converted
 * back. */
#ifndef KF_CORE_OPTIMIZER_OPTIMIZER_H
#define KF_CORE_OPTIMIZER_OPTIMIZER_H

#include "kf/core/host.h"

#include "kf/core/math.h"
#include "kf/core/optimizer/check.h"
#include "kf/core/tile.h"

KFI_C_BEGIN

/* Load n elements; the rest of the part becomes 0. */
KFI_HOST void kfi_load_part_f32(const float *from, float *to, int n)
{
    for (int j = n; j < KFI_PART; ++j) to[j] = 0.0f;
    memcpy(to, from, (size_t)n * sizeof *to);
}
KFI_HOST void kfi_load_part_f64(const double *from, double *to, int n)
{
    for (int j = n; j < KFI_PART; ++j) to[j] = 0.0;
    memcpy(to, from, (size_t)n * sizeof *to);
}
KFI_HOST void kfi_load_part_f16(const kf_f16 *from, float *to, int n)
{
    kf_f16 part[KFI_PART];
    if (n == KFI_PART) {
        kfi_widen_f16(from, to, KFI_PART);
        return;
    }
    kfi_zero(part, sizeof part);
    memcpy((void *)part, (const void *)from, (size_t)n * sizeof *part);
    kfi_widen_f16(part, to, KFI_PART);
}
KFI_HOST void kfi_load_part_bf16(const kf_bf16 *from, float *to, int n)
{
    kf_bf16 part[KFI_PART];
    if (n == KFI_PART) {
        kfi_widen_bf16(from, to, KFI_PART);
        return;
    }
    kfi_zero(part, sizeof part);
    memcpy((void *)part, (const void *)from, (size_t)n * sizeof *part);
    kfi_widen_bf16(part, to, KFI_PART);
}

/* Store n elements of a part. */
KFI_HOST void kfi_store_part_f32(const float *from, float *to, int n)
{
    memcpy(to, from, (size_t)n * sizeof *to);
}
KFI_HOST void kfi_store_part_f64(const double *from, double *to, int n)
{
    memcpy(to, from, (size_t)n * sizeof *to);
}
KFI_HOST void kfi_store_part_f16(const float *from, kf_f16 *to, int n)
{
    kf_f16 part[KFI_PART];
    if (n == KFI_PART) {
        kfi_narrow_f16(from, to, KFI_PART);
        return;
    }
    kfi_narrow_f16(from, part, KFI_PART);
    memcpy((void *)to, (const void *)part, (size_t)n * sizeof *part);
}
KFI_HOST void kfi_store_part_bf16(const float *from, kf_bf16 *to, int n)
{
    kf_bf16 part[KFI_PART];
    if (n == KFI_PART) {
        kfi_narrow_bf16(from, to, KFI_PART);
        return;
    }
    kfi_narrow_bf16(from, part, KFI_PART);
    memcpy((void *)to, (const void *)part, (size_t)n * sizeof *part);
}

KFI_C_END

#endif
