/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/rng.h: random state as a kernel argument, made on the host in C, C++ and CUDA.
 * docs/device.md documents it. */
#ifndef KF_CORE_RNG_H
#define KF_CORE_RNG_H

#include "kf/core/philox.h"

typedef kfi_rng kf_rng_t; /* passed by value; same layout on host and device */

/* ABI: kernels compiled separately from the host code receive this struct. */
#ifdef __cplusplus
static_assert(sizeof(kf_rng_t) == 120 && alignof(kf_rng_t) == 8,
              "kf_rng_t is not what kf's ABI says");
#else
_Static_assert(sizeof(kf_rng_t) == 120 && _Alignof(kf_rng_t) == 8,
               "kf_rng_t is not what kf's ABI says");
#endif

#ifndef __CUDACC_RTC__
#include "kf/core/check.h"

/* Initialises *rng for dropout with probability p. */
KFI_HOST kf_result_t kf_make_rng(kf_rng_t *rng, double p, uint64_t seed, uint64_t offset)
{
    const kfi_name name = {"kf_make_rng", "none"};
    if (!rng)
        return kfi_fail(KF_ERROR_NULL_POINTER, &name, "rng",
                        "is NULL, expected a pointer to a kf_rng_t");
    const kf_result_t valid = kfi_check_probability(&name, p);
    if (valid == KF_SUCCESS) *rng = kfi_make_rng(p, seed, offset, NULL, NULL);
    return valid;
}
#endif

#endif
