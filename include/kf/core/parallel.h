/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/parallel.h: runs independent pieces of work on the threads there are. */
#ifndef KF_CORE_PARALLEL_H
#define KF_CORE_PARALLEL_H

#include "kf/core/host.h"

#include "kf/core/dtype.h"
#include "kf/core/result.h"

#if !defined(KF_PARALLEL_FOR) && defined(_OPENMP)
#include <unistd.h>

/* The process in which OpenMP's threads were started: in a forked child they do not exist, and its next parallel region
   would wait for them for ever. One per program. */
#ifdef __cplusplus
extern "C" {
#endif
__attribute__((weak)) int kfi_omp_process;
#ifdef __cplusplus
}
#endif
/* At start-up: the program may use OpenMP before kf does. A forked child runs serially, whoever started threads before. */
__attribute__((constructor, unused)) static void kfi_omp_start(void)
{
    if (!kfi_omp_process) kfi_omp_process = (int)getpid();
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
    const int process = (int)getpid();
    if (parallel && count > 1 && (kfi_omp_process == 0 || kfi_omp_process == process)) {
        kfi_omp_process = process;
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
