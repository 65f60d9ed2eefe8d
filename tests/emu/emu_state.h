/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: what is known of the launch that runs, its blocks and its threads. */
#ifndef KF_EMU_STATE_H
#define KF_EMU_STATE_H

#include "cuda_runtime.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(KF_EMU_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES ((size_t)1 << 18)
#else
#define STACK_BYTES ((size_t)1 << 16)
#endif
#if defined(KF_EMU_TSAN)
#include <sanitizer/tsan_interface.h>
#define MOST_FIBERS                                                                                \
    2048 /* it makes one in a third of a millisecond, of a MiB and up to 14 mappings, of which a   \
            process has 65,530 */
#endif
#define MOST_THREADS 1024
#define MOST_BLOCKS 8            /* of a cluster */
#define USUAL_DYNAMIC (48 << 10) /* of a kernel that nobody asked more for */
#define MOST_DYNAMIC (227 << 10)
#define WARP 32

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

extern "C" {
int kf_emu_order, kf_emu_sms = 132, kf_emu_gemm_sms = 1, kf_emu_gemm_class = 64, kf_emu_gemm_tile = -1,
                  kf_emu_fill = 1056,
                  kf_emu_failure, kf_emu_aborts = 1;
unsigned long long kf_emu_seed = 1;
long kf_emu_launches, kf_emu_conflicts;
}

enum { NEW, READY, AT_BARRIER, AT_WARP, AT_CLUSTER, AT_ASYNC, WRONG, DONE };
static const char *const STATES[] = {"has not begun", "can go on", "waits at", "waits at",
                                     "waits at",      "waits at",  "is at",    "has returned"};

struct fiber {
    void *sp;
    char *stack;
    fiber *next; /* of those that are free */
    long launch; /* that it was last in */
    void *fake;  /* AddressSanitizer's */
    void *tsan;  /* ThreadSanitizer's */
};

struct thread {
    int state, line;
    fiber *on;
    const char *word, *file; /* what it waits at, in `line` */
    int kind, predicate;     /* of a barrier */
    int phase, warp_phase;   /* barriers so far; meetings of the whole warp */
    unsigned mask;
    int source;
    int arrivals, waits; /* at the cluster's barrier so far */
    uint64_t value, result;
    void (*together)(void *const *lanes); /* a warp's word that one of the lanes does for all: of
                                             what `value` of each points at */
    struct copies *copies;                /* that are under way */
};

struct block {
    uint3 index;
    int begun, waiting, done; /* threads */
    char *dynamic;
};

static struct {
    void *main_sp, *main_fake, *main_tsan;
    const void *main_stack;
    size_t main_bytes;
    fiber *free_fibers, *last_free; /* ThreadSanitizer: in the order in which they became free */
    int fibers;
    block blocks[MOST_BLOCKS];
    int count, size;          /* threads of a block, blocks of a cluster */
    int current;              /* thread */
    int done, arrived, phase; /* of the cluster: threads that returned; of its barrier, those that
                                 came and how often it was */
    size_t dynamic_bytes;
    const char *fault; /* what the current thread is WRONG for: takes its number and another one */
    unsigned fault_number;
    const void *function;
    kf_emu_call call;
    void *const *args;
    const char *name;
    bool failed;
    unsigned long long random;
    char launch_mark, done_mark; /* what ThreadSanitizer orders by, and mark_of() */
    unsigned blocks_run;
    char report[4096];
    thread threads[MOST_BLOCKS * MOST_THREADS]; /* those of a cluster's next block begin
                                                   MOST_THREADS further on */
} emu;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static block *block_of(int t) { return &emu.blocks[(unsigned)t / MOST_THREADS]; }

static unsigned random_below(unsigned n)
{
    emu.random ^= emu.random << 13;
    emu.random ^= emu.random >> 7;
    emu.random ^= emu.random << 17;
    return (unsigned)(emu.random % n);
}

#endif
