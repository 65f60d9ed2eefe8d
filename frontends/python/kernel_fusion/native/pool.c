/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of kf's C library: the host's parallel loop where it has given one, else a small pool
   of its own. No OpenMP: a process that has two libraries of it (PyTorch brings its own) has two
   pools that do not know of each other. */
#define _GNU_SOURCE
#include "packed.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

typedef void (*range_fn)(int64_t begin, int64_t end, void *context);
/* As torch_parallel_for of libtorch's stable ABI. */
typedef int (*host_fn)(int64_t begin, int64_t end, int64_t grain, range_fn fn, void *context);
typedef struct {
    void (*fn)(void *, int64_t);
    void *context;
    int64_t count;
    _Atomic int64_t next;
} job;

enum { MOST = 256 };
static _Atomic(host_fn) host;
static _Atomic int wanted; /* threads; 0: as many as the process may use */
static pthread_mutex_t busy =
    PTHREAD_MUTEX_INITIALIZER; /* held while a job runs: another caller's runs on its own thread */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begun = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Under `lock`: */
static job *current;
static int made; /* threads there are */
static int helpers,
    running; /* of the current job: threads that may still join it, that have and are not through */
static uint64_t round_; /* jobs so far */

KFP_EXPORT void kfp_set_threads(int threads) { atomic_store(&wanted, threads < 0 ? 0 : threads); }

KFP_EXPORT int kfp_threads(void)
{
    const int asked = atomic_load(&wanted);
    if (asked) return asked < MOST ? asked : MOST;
    cpu_set_t mask;
    const int found = sched_getaffinity(0, sizeof mask, &mask) ? 1 : CPU_COUNT(&mask);
    return found < MOST ? found : MOST;
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

/* A forked child has the thread that forked alone, and locks as other threads left them. The host's
   threads do not exist there either: its loop would wait for them for ever, so the child works on
   its own thread, until somebody says otherwise. */
static void forget(void)
{
    pthread_mutex_init(&busy, NULL);
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&begun, NULL);
    pthread_cond_init(&done, NULL);
    current = NULL;
    made = helpers = running = 0;
    if (atomic_exchange(&host, NULL)) atomic_store(&wanted, 1);
}

static void at_start(void) { pthread_atfork(NULL, NULL, forget); }

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

void kfp_parallel_for(int64_t count, void (*fn)(void *, int64_t), void *context)
{
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
