/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: the scheduler: runs the clusters of a grid one after the other, and the threads
   of a cluster in the order of kf_emu_order. */
#ifndef KF_EMU_RUN_H
#define KF_EMU_RUN_H

#include "emu_fetch.h"
#include "emu_shared.h"
#include "emu_time.h"

/* Permutation of 0 .. n - 1 by kf_emu_order. */
static void make_order(unsigned *list, unsigned n)
{
    for (unsigned i = 0; i < n; ++i) list[i] = kf_emu_order == 1 ? n - 1 - i : i;
    for (unsigned i = n; kf_emu_order == 2 && i > 1; --i) {
        const unsigned j = random_below(i), other = list[j];
        list[j] = list[i - 1];
        list[i - 1] = other;
    }
}

/* Prepares the blocks of a cluster; `first` is the linear index of its first block in the grid. */
static void begin_cluster(unsigned first)
{
    emu.done = emu.arrived = emu.phase = 0;
    for (int i = 0; i < emu.size; ++i) {
        block *b = &emu.blocks[i];
        const unsigned number = first + (unsigned)i;
        *b = block{};
        b->index.x = number % gridDim.x;
        b->index.y = number / gridDim.x % gridDim.y;
        b->index.z = number / gridDim.x / gridDim.y;
        b->dynamic = allocate_dynamic();
        for (int t = 0; t < emu.count; ++t) emu.threads[i * MAX_THREADS + t] = thread{};
    }
    blockIdx = emu.blocks[0].index;
    if (emu.size == 1) poison_shared();
#if defined(KF_EMU_TSAN)
    __tsan_release(&emu.launch_mark);
#endif
}
/* Runs a thread until it waits or returns, then completes what it was the last to reach. */
static void step_thread(int t)
{
    const int count = emu.size * emu.count;
    run_thread(t);
    if (block_of(t)->waiting == emu.count) end_barrier(block_of(t));
    if (emu.arrived == count && emu.done < count) end_cluster_barrier();
    if (emu.threads[t].state == AT_WARP) complete_warp(t);
    if (emu.threads[t].state == WRONG) {
        begin_report(emu.fault, (unsigned)t % MAX_THREADS, emu.fault_number);
        list_cluster();
    } else if (!emu.failed) {
        async_tick();
    }
}
static void run_cluster(unsigned first)
{
    unsigned order[MAX_CLUSTER * MAX_THREADS];
    const int count = emu.size * emu.count;
    begin_cluster(first);
    while (emu.done < count && !emu.failed) {
        bool moved = false;
        make_order(order, (unsigned)count);
        for (int i = 0; i < count && !emu.failed; ++i) {
            int t = (int)order[i];
            if (emu.size > 1) t = t / emu.count * MAX_THREADS + t % emu.count;
            if ((emu.threads[t].state != NEW && emu.threads[t].state != READY) || async_asleep(t))
                continue;
            moved = true;
            step_thread(t);
        }
        if (!moved && !async_advance()) {
            begin_report("no thread can go on: a barrier or a warp's word was not reached by all "
                         "that it waits for");
            list_cluster();
            list_mbarriers();
        }
    }
    async_end();
    for (int i = 0; i < emu.size; ++i) free_dynamic(emu.blocks[i].dynamic);
    emu.blocks_run += (unsigned)emu.size;
}

/* Frees the fibers of threads that a failed launch left waiting. */
static void free_waiting_threads()
{
    for (int i = 0; i < emu.size * emu.count; ++i) {
        thread *a = &emu.threads[i / emu.count * MAX_THREADS + i % emu.count];
        if (a->state != NEW && a->state != DONE) destroy_fiber(a->on);
        free(a->copies);
    }
}

static void run_grid()
{
    const unsigned clusters = gridDim.x * gridDim.y * gridDim.z / (unsigned)emu.size;
    unsigned *order = (unsigned *)malloc(clusters * sizeof *order);
    emu.random = kf_emu_seed * 0x9E3779B97F4A7C15ull | 1;
    make_order(order, clusters);
    if (emu.size > 1) poison_shared();
#if defined(KF_EMU_TSAN)
    emu.main_tsan = __tsan_get_current_fiber();
#endif
    for (unsigned i = 0; i < clusters && !emu.failed; ++i)
        run_cluster(order[i] * (unsigned)emu.size);
    if (emu.size > 1 && !emu.failed && wrote_shared())
        begin_report("a kernel wrote to static shared memory, of which the blocks of a cluster "
                     "have one copy here: take kf_emu_dynamic()");
    free(order);
#if defined(KF_EMU_TSAN)
    __tsan_acquire(&emu.done_mark);
#endif
}

#endif
