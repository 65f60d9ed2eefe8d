/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: state of the running launch, its blocks and its threads. */
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
/* ThreadSanitizer takes a third of a millisecond, a MiB and up to 14 of the process's 65,530
   mappings for a fiber. */
#define MAX_FIBERS 2048
#endif
#define MAX_THREADS 1024
#define MAX_CLUSTER 8              /* blocks of a cluster */
#define DEFAULT_DYNAMIC (48 << 10) /* bytes without cudaFuncSetAttribute */
#define MAX_DYNAMIC (227 << 10)
#define WARP 32

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

extern "C" {
int kf_emu_order, kf_emu_sms = 132, kf_emu_gemm_sms = 1, kf_emu_gemm_class = 64,
                  kf_emu_gemm_tile = -1, kf_emu_fill = 1056, kf_emu_failure, kf_emu_aborts = 1;
unsigned long long kf_emu_seed = 1;
long kf_emu_launches, kf_emu_conflicts;
}

enum { NEW, READY, AT_BARRIER, AT_WARP, AT_CLUSTER, AT_ASYNC, WRONG, DONE };
static const char *const STATES[] = {"has not begun", "can go on", "waits at", "waits at",
                                     "waits at",      "waits at",  "is at",    "has returned"};

struct fiber {
    void *sp;
    char *stack;
    fiber *next; /* free list */
    long launch; /* last launch that used it */
    void *fake;  /* AddressSanitizer's */
    void *tsan;  /* ThreadSanitizer's */
};

struct thread {
    int state, line;
    fiber *on;
    const char *instruction, *file; /* instruction that it executes, and the source position */
    int kind, predicate;            /* block barrier only */
    int phase, warp_phase;          /* block barriers passed; full-warp __syncwarp calls */
    unsigned mask;
    int source;
    int arrivals, waits; /* cluster barriers so far */
    uint64_t value, result;
    /* collective: computes a warp collective for all lanes, from the pointers in their `value`. */
    void (*collective)(void *const *lanes);
    struct copies *copies; /* cp.async copies in flight */
};

struct block {
    uint3 index;
    int begun, waiting, done; /* numbers of threads */
    char *dynamic;
};

static struct {
    void *main_sp, *main_fake, *main_tsan;
    const void *main_stack;
    size_t main_bytes;
    /* ThreadSanitizer reuses the fiber that has been free for longest */
    fiber *free_fibers, *last_free;
    int fibers;
    block blocks[MAX_CLUSTER];
    int count, size; /* threads per block, blocks per cluster */
    int current;     /* index of the current thread */
    bool in_thread;  /* a kernel's code is running */
    /* Cluster: done counts returned threads; arrived and phase belong to its barrier. */
    int done, arrived, phase;
    size_t dynamic_bytes;
    /* Format of the report for a thread in state WRONG: prints its index and fault_number. */
    const char *fault;
    unsigned fault_number;
    const void *function;
    kf_emu_call call;
    void *const *args;
    const char *name;
    bool failed;
    unsigned long long random;
    char launch_mark, done_mark; /* ThreadSanitizer marks */
    unsigned blocks_run;
    char report[4096];
    /* Threads of block b begin at b * MAX_THREADS. */
    thread threads[MAX_CLUSTER * MAX_THREADS];
} emu;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static block *block_of(int t) { return &emu.blocks[(unsigned)t / MAX_THREADS]; }

static unsigned random_below(unsigned n)
{
    emu.random ^= emu.random << 13;
    emu.random ^= emu.random >> 7;
    emu.random ^= emu.random << 17;
    return (unsigned)(emu.random % n);
}

#endif
