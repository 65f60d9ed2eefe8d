/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of kf's C libraries: the host's parallel loop if it has set one, else a small pool, which
   all libraries of a process share. OpenMP is not used: in a process with two OpenMP libraries
   (PyTorch ships one) both would create threads independently. */
#define _GNU_SOURCE
#include "packed.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

typedef void (*range_fn)(int64_t begin, int64_t end, void *context);
/* Signature of torch_parallel_for in libtorch's stable ABI. */
typedef int (*host_fn)(int64_t begin, int64_t end, int64_t grain, range_fn fn, void *context);
typedef struct {
    void (*fn)(void *, int64_t);
    void *context;
    int64_t count;
    _Atomic int64_t next;
} job;

enum { MAX_THREADS = 256 };
typedef void (*loop_fn)(int64_t count, void (*fn)(void *, int64_t), void *context);
static _Atomic(loop_fn) shared; /* another library's kfp_parallel_for; NULL uses this one */
static _Atomic(host_fn) host;
static _Atomic int wanted; /* number of threads; 0 uses all processors of the process */
/* Held while a job runs; a concurrent caller's job runs on its own thread. */
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begun = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Guarded by `lock`: */
static job *current;
static int made;        /* number of helper threads */
static int helpers;     /* threads that may still join the current job */
static int running;     /* threads that work on the current job */
static uint64_t round_; /* number of jobs so far */

KFP_EXPORT void kfp_share_pool(loop_fn fn) { atomic_store(&shared, fn); }

KFP_EXPORT void kfp_set_threads(int threads) { atomic_store(&wanted, threads < 0 ? 0 : threads); }

KFP_EXPORT int kfp_threads(void)
{
    const int asked = atomic_load(&wanted);
    if (asked) return asked < MAX_THREADS ? asked : MAX_THREADS;
    cpu_set_t mask;
    const int found = sched_getaffinity(0, sizeof mask, &mask) ? 1 : CPU_COUNT(&mask);
    return found < MAX_THREADS ? found : MAX_THREADS;
}

static void work(job *j)
{
    for (int64_t i; (i = atomic_fetch_add(&j->next, 1)) < j->count;) j->fn(j->context, i);
}

static void *helper(void *unused)
{
    uint64_t seen = 0;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!helpers || seen == round_) pthread_cond_wait(&begun, &lock);
        seen = round_;
        job *j = current;
        --helpers, ++running;
        pthread_mutex_unlock(&lock);
        work(j);
        pthread_mutex_lock(&lock);
        if (--running == 0) pthread_cond_signal(&done);
    }
    return unused;
}

/* Resets the state in a forked child, which has only the forking thread, and locks in any state.
   The host's threads do not exist there, and its loop would wait for them forever: the child uses
   one thread until kfp_set_threads changes that. */
static void reset_in_child(void)
{
    pthread_mutex_init(&busy, NULL);
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&begun, NULL);
    pthread_cond_init(&done, NULL);
    current = NULL;
    made = helpers = running = 0;
    if (atomic_exchange(&host, NULL)) atomic_store(&wanted, 1);
}

static void at_start(void) { pthread_atfork(NULL, NULL, reset_in_child); }

KFP_EXPORT void kfp_set_parallel_for(host_fn fn)
{
    pthread_once(&once, at_start);
    atomic_store(&host, fn);
}

static void start(int threads)
{
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (pthread_t thread; made < threads && pthread_create(&thread, &detached, helper, NULL) == 0;)
        ++made;
    pthread_attr_destroy(&detached);
}

static void run_range(int64_t begin, int64_t end, void *context)
{
    const job *j = context;
    for (int64_t i = begin; i < end; ++i) j->fn(j->context, i);
}

KFP_EXPORT void kfp_parallel_for(int64_t count, void (*fn)(void *, int64_t), void *context)
{
    const loop_fn other = atomic_load(&shared);
    if (other) {
        other(count, fn, context);
        return;
    }
    job j = {fn, context, count, 0};
    const host_fn given = atomic_load(&host);
    if (given) {
        given(0, count, 1, run_range, &j);
        return;
    }
    pthread_once(&once, at_start);
    const int threads = kfp_threads();
    if (threads == 1 || pthread_mutex_trylock(&busy)) {
        work(&j);
        return;
    }
    pthread_mutex_lock(&lock);
    start(threads - 1);
    current = &j, ++round_;
    helpers = threads - 1 < count - 1 ? threads - 1 : (int)(count - 1);
    pthread_cond_broadcast(&begun);
    pthread_mutex_unlock(&lock);
    work(&j);
    pthread_mutex_lock(&lock);
    helpers = 0;
    while (running) pthread_cond_wait(&done, &lock);
    current = NULL;
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&busy);
}
