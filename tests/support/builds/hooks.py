# SPDX-License-Identifier: Apache-2.0
"""Definitions of KF_PARALLEL_FOR for the thread tests: chunks in reverse order on the calling
thread, or on pthreads."""

REVERSED = """
#ifndef KFT_HOOK
#define KFT_HOOK
__attribute__((weak)) long kft_chunks;
static inline void kft_for(long long count, void (*fn)(void *, long), void *context)
{
    while (count-- > 0) {
        __atomic_fetch_add(&kft_chunks, 1, __ATOMIC_RELAXED);
        fn(context, (long)count);
    }
}
#define KF_PARALLEL_FOR(count, fn, context) kft_for(count, fn, context)
#endif
"""
PTHREADS = """
#ifndef KFT_HOOK
#define KFT_HOOK
#include <pthread.h>
__attribute__((weak)) long kft_chunks;
#define KFT_THREADS 3
/* Chunk i runs on thread i mod 3, so chunks that share data wrongly do so on different threads. */
typedef struct { long long first, count; void (*fn)(void *, long); void *context; } kft_job;
static inline void *kft_work(void *p)
{
    const kft_job *job = (const kft_job *)p;
    for (long long i = job->first; i < job->count; i += KFT_THREADS) {
        __atomic_fetch_add(&kft_chunks, 1, __ATOMIC_RELAXED);
        job->fn(job->context, (long)i);
    }
    return 0;
}
static inline void kft_for(long long count, void (*fn)(void *, long), void *context)
{
    kft_job job[KFT_THREADS];
    pthread_t threads[KFT_THREADS];
    for (int t = 0; t < KFT_THREADS; ++t) {
        kft_job one = {t, count, fn, context};
        job[t] = one;
        pthread_create(&threads[t], 0, kft_work, &job[t]);
    }
    for (int t = 0; t < KFT_THREADS; ++t) pthread_join(threads[t], 0);
}
#define KF_PARALLEL_FOR(count, fn, context) kft_for(count, fn, context)
#endif
"""
