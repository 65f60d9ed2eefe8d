/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/amx.h: kf_cpu_enable_amx, the permission to use AMX, Intel's matrix instructions.

   Linux gives a process the tiles' state only if it asks. kf does not ask by itself, because every
   thread's signal frames grow by 8 KiB and because results change: see kf_cpu_enable_amx. */
#ifndef KF_CORE_AMX_H
#define KF_CORE_AMX_H

#include "kf/core/host.h"

#include "kf/core/amx_tile.h"
#include "kf/core/result.h"

#if KFI_AMX
/* Whether kf may use AMX. One variable per program; several threads may read and write it. */
#ifdef __cplusplus
extern "C" {
#endif
__attribute__((weak)) int kfi_amx_allowed;
#ifdef __cplusplus
}
#endif
KFI_INLINE int kfi_amx_enabled(void) { return __atomic_load_n(&kfi_amx_allowed, __ATOMIC_RELAXED); }
#endif

/* Lets C functions of this program multiply bf16 matrices by AMX from now on.

   Asks the Linux kernel for permission, for the whole process and its children. Call it once, at
   start-up; calling it again does no harm. Without it nothing of kf uses AMX. Products then
   - accumulate in float32 as before, in another order: 32 elements of K at a time, even and odd
     ones apart. A result may differ in its last bits from the same call without AMX.
   - count subnormal elements (below 2^-126) as 0, and subnormal sums become 0.
   They stay the same in every run and for any number of threads; NaN and infinity follow.

   Returns KF_SUCCESS; KF_ERROR_UNSUPPORTED where the compiler, the processor or the kernel lacks
   AMX for bf16, and then nothing changes. kf_get_last_error_detail() says which. */
#ifdef KFI_LAUNCHER_NAMES
kf_result_t kf_cpu_enable_amx(void);
#else
KFI_ONCE kf_result_t kf_cpu_enable_amx(void)
{
    static const kfi_name name = {"kf_cpu_enable_amx", "none"};
#if KFI_AMX
    if (!kfi_amx_exists())
        return kfi_fail(KF_ERROR_UNSUPPORTED, &name, "processor",
                        "has no AMX for bf16, or the kernel does not save its tiles");
    const long result = kfi_amx_request();
    if (result != 0)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &name, "kernel",
                        "answers error %ld, expected permission to use AMX (Linux 5.16 or later)",
                        -result);
    __atomic_store_n(&kfi_amx_allowed, 1, __ATOMIC_RELAXED);
    return KF_SUCCESS;
#else
    return kfi_fail(KF_ERROR_UNSUPPORTED, &name, "compiler",
                    "compiles no AMX, expected gcc 11 or clang 12 or later, on Linux for x86-64");
#endif
}
#endif

#endif
