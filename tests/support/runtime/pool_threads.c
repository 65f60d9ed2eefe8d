/* SPDX-License-Identifier: Apache-2.0 */
/* Eight threads that allocate from one pool, write a pattern of their own over each allocation and
   look whether it is still there when they give it back: pool_threads ALLOCATIONS. Prints what the
   pool counted; sizes and lifetimes are random, and the same in every run. */
#define KF_RUNTIME_IMPLEMENTATION
#include <kf/runtime.h>

enum { THREADS = 8, STREAMS = 4, LIVING = 64 };
static kf_context_t *ctx;
static long allocations;

static uint32_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}
typedef struct {
    unsigned char *at;
    size_t bytes;
    unsigned char pattern;
} living;

static int give(living *l, kf_stream_t *stream)
{
    if (!l->at) return 0;
    for (size_t i = 0; i < l->bytes; i += l->bytes < 4096 ? 1 : 509)
        if (l->at[i] != l->pattern) return puts("two have one allocation"), 1;
    const int failed = kf_pool_deallocate(ctx, l->at, stream) != KF_SUCCESS;
    l->at = NULL;
    return failed;
}
static void *work(void *number)
{
    const long me = (long)number;
    uint64_t state = 1234567u * (uint64_t)(me + 1);
    living own[LIVING] = {{0}};
    kf_stream_t *streams[STREAMS];
    int failed = 0;
    for (int s = 0; s < STREAMS; ++s) failed |= !(streams[s] = kf_stream_create(ctx, NULL));
    for (long i = 0; i < allocations && !failed; ++i) {
        living *const l = &own[next(&state) % LIVING];
        kf_stream_t *const stream = streams[next(&state) % STREAMS];
        failed |= give(l, stream);
        l->bytes = 1u + next(&state) % (next(&state) % 16 ? 8192u : 262144u);
        l->pattern = (unsigned char)(me * 31 + i);
        if (!(l->at = (unsigned char *)kf_pool_allocate(ctx, l->bytes, stream)))
            return puts(kf_get_last_error_detail()), (void *)1;
        memset(l->at, l->pattern, l->bytes);
    }
    for (int k = 0; k < LIVING; ++k) failed |= give(&own[k], NULL);
    for (int s = 0; s < STREAMS; ++s) failed |= kf_stream_destroy(streams[s]) != KF_SUCCESS;
    return failed ? (void *)1 : NULL;
}

int main(int count, char **words)
{
    pthread_t threads[THREADS];
    kf_pool_stats_t stats;
    int failed = 0;
    allocations = count > 1 ? atol(words[1]) : 1000;
    if (!(ctx = kf_context_create(-1))) return 2;
    for (long t = 0; t < THREADS; ++t)
        if (pthread_create(&threads[t], NULL, work, (void *)t)) return 2;
    for (int t = 0; t < THREADS; ++t) {
        void *found;
        pthread_join(threads[t], &found);
        failed |= found != NULL;
    }
    if (kf_pool_get_stats(ctx, &stats) != KF_SUCCESS) return 2;
    printf("%zu in use, %zu reserved, %zu at the peak, %zu hits\n", stats.in_use, stats.reserved,
           stats.peak, stats.hits);
    if (kf_pool_clear(ctx) != KF_SUCCESS || kf_pool_get_stats(ctx, &stats) != KF_SUCCESS ||
        stats.reserved)
        return 2;
    return failed || kf_context_destroy(ctx) != KF_SUCCESS;
}
