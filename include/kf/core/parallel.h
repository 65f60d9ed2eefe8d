/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/parallel.h: runs independent chunks of work on all available threads. */
#ifndef KF_CORE_PARALLEL_H
#define KF_CORE_PARALLEL_H

#include "kf/core/host.h"

#include "kf/core/dtype.h"
#include "kf/core/result.h"

#if !defined(KF_PARALLEL_FOR) && defined(_OPENMP)
#include <unistd.h>

/* Process that started OpenMP's threads. They do not exist in a forked child, whose next parallel
 * region would wait for them for ever. One variable per program. */
#ifdef __cplusplus
extern "C" {
#endif
__attribute__((weak)) int kfi_omp_process; /* several threads may read and write it concurrently */
#ifdef __cplusplus
}
#endif
KFI_ONCE void kfi_omp_start(void)
{
    if (!__atomic_load_n(&kfi_omp_process, __ATOMIC_RELAXED))
        __atomic_store_n(&kfi_omp_process, (int)getpid(), __ATOMIC_RELAXED);
}
#endif

KFI_HOST void kfi_parallel(kf_i64 count, void (*fn)(void *, kf_i64), void *context, int parallel)
{
#if defined(KF_PARALLEL_FOR)
    if (parallel && count > 1) {
        KF_PARALLEL_FOR(count, fn, context);
        return;
    }
#elif defined(_OPENMP)
#ifdef __ELF__
    /* Records the process at start-up, because the program may use OpenMP before kf does. A forked
     * child then runs serially, whoever started the threads. A constructor function would be
     * emitted in every unit; this pointer is emitted only in units that call kfi_parallel. */
    static void (*at_start)(void) __attribute__((section(".init_array"))) = kfi_omp_start;
    __asm__ volatile("" : : "r"(&at_start));
#else
    kfi_omp_start();
#endif
    const int process = (int)getpid(), before = __atomic_load_n(&kfi_omp_process, __ATOMIC_RELAXED);
    if (parallel && count > 1 && (before == 0 || before == process)) {
        __atomic_store_n(&kfi_omp_process, process, __ATOMIC_RELAXED);
#pragma omp parallel for schedule(static)
        for (kf_i64 i = 0; i < count; ++i) fn(context, i);
        return;
    }
#else
    (void)parallel;
#endif
    for (kf_i64 i = 0; i < count; ++i) fn(context, i);
}

#endif
