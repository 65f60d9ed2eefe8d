/* SPDX-License-Identifier: Apache-2.0 */
/* Drives the pool of frontends/python/kernel_fusion/native/pool.c: each chunk runs once, for
 * concurrent callers, before and after a fork. */
#include "packed.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int kfp_threads(void);
void kfp_set_threads(int threads);
void kfp_set_parallel_for(int (*fn)(int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void *),
                                    void *));

enum { CHUNKS = 1000, JOBS = 200, CALLERS = 4 };
static int through_host;

static void chunk(void *context, int64_t i) { ++((int *)context)[i]; }

static void *caller(void *wrong)
{
    for (int job = 0; job < JOBS; ++job) {
        int done[CHUNKS] = {0};
        const int count = job % 7 == 0 ? 2 : CHUNKS;
        kfp_parallel_for(count, chunk, done);
        for (int i = 0; i < CHUNKS; ++i) *(int *)wrong += done[i] != (i < count);
    }
    return NULL;
}

static int serial(int64_t begin, int64_t end, int64_t grain, void (*fn)(int64_t, int64_t, void *),
                  void *context)
{
    through_host = (int)grain;
    fn(begin, end, context);
    return 0;
}

int main(int argc, char **argv)
{
    (void)argv;
    pthread_t threads[CALLERS];
    int wrong[CALLERS] = {0}, all = 0;
    kfp_set_threads(4);
    for (int i = 0; i < CALLERS; ++i) pthread_create(&threads[i], NULL, caller, &wrong[i]);
    for (int i = 0; i < CALLERS; ++i) pthread_join(threads[i], NULL), all += wrong[i];
    if (argc == 1) { /* ThreadSanitizer does not support fork() in a process with several threads */
        const pid_t child = fork();
        int status = 1;
        if (child == 0) _exit(caller(&wrong[0]) != NULL || wrong[0]);
        waitpid(child, &status, 0);
        all += status != 0;
    }
    kfp_set_parallel_for(serial);
    caller(&all);
    through_host = 0;
    kfp_set_threads(0);
    if (argc == 1) { /* a child does not ask the host, whose threads it has not, and works alone */
        const pid_t child = fork();
        int status = 1;
        if (child == 0)
            _exit(caller(&wrong[0]) != NULL || wrong[0] || through_host || kfp_threads() != 1);
        waitpid(child, &status, 0);
        all += status != 0;
    }
    caller(&all);
    printf("%d wrong, host %d, %d threads\n", all, through_host, kfp_threads() >= 1);
    return all != 0;
}
