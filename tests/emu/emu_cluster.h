/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: thread block clusters: cluster barrier and distributed shared memory. */
#ifndef KF_EMU_CLUSTER_H
#define KF_EMU_CLUSTER_H

#include "emu_meet.h"

unsigned kf_emu_cluster_rank() { return (unsigned)emu.current / MAX_THREADS; }
unsigned kf_emu_cluster_size() { return (unsigned)emu.size; }

void kf_emu_cluster_arrive(const char *file, int line)
{
    thread *self = enter_state(READY, 0, "barrier.cluster.arrive", file, line);
    if (self->arrivals > self->waits)
        stop("thread %u comes to the cluster's barrier twice without a wait between", 0);
#if defined(KF_EMU_TSAN)
    __tsan_release(mark_of(33, self->arrivals));
#endif
    ++self->arrivals;
    ++emu.arrived;
}

void kf_emu_cluster_wait(const char *file, int line)
{
    thread *self = enter_state(READY, 0, "barrier.cluster.wait", file, line);
    if (self->arrivals == self->waits)
        stop("thread %u waits at the cluster's barrier without having come to it", 0);
    if (++self->waits > emu.phase) {
        self->state = AT_CLUSTER;
        switch_to_scheduler();
    }
#if defined(KF_EMU_TSAN)
    __tsan_acquire(mark_of(33, self->waits - 1));
#endif
}

/* Completes the barrier: all threads have arrived or returned. A returned thread counts as arrived
   in all later phases. This does not order its last writes, so ThreadSanitizer is not told. */
static void end_cluster_barrier()
{
    ++emu.phase;
    emu.arrived = emu.done;
    for (int b = 0; b < emu.size; ++b)
        for (thread *a = &emu.threads[b * MAX_THREADS], *end = a + emu.count; a < end; ++a)
            if (a->state == AT_CLUSTER) a->state = READY;
}

char *kf_emu_dynamic() { return block_of(emu.current)->dynamic; }

void *kf_emu_remote_bytes(const void *p, size_t bytes, unsigned rank, const char *file, int line)
{
    const block *const own = block_of(emu.current), *const other = &emu.blocks[rank % MAX_CLUSTER];
    const size_t at = (uintptr_t)p - (uintptr_t)own->dynamic;
    enter_state(READY, 0, "mapa", file, line);
    if (!own->dynamic || at > emu.dynamic_bytes || bytes > emu.dynamic_bytes - at)
        stop("thread %u has an address outside of its block's dynamic memory", 0);
    if (rank >= (unsigned)emu.size)
        stop("thread %u wants memory of block %u of the cluster, which is smaller", rank);
    if (other->begun == 0)
        stop("thread %u wants memory of block %u of the cluster, which need not have begun: no "
             "barrier came before",
             rank);
    if (other->done == emu.count)
        stop("thread %u wants memory of block %u of the cluster, which has ended", rank);
    return other->dynamic + at;
}

#endif
