/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: block barriers and warp collectives (shuffles, votes, __syncwarp, ldmatrix,
   mma). */
#ifndef KF_EMU_MEET_H
#define KF_EMU_MEET_H

#include "emu_report.h"

#if defined(KF_EMU_TSAN)
/* ThreadSanitizer mark of a barrier. slot: 0 block barrier, 1 + w __syncwarp of warp w, 33 cluster
   barrier (mark of the first block). Marks alternate by phase: a slow thread must not acquire what
   others wrote after the barrier. Each block has its own marks. */
static char *mark_of(int slot, int phase)
{
    static char marks[1 << 16];
    const unsigned block = emu.blocks_run + (slot == 33 ? 0 : (unsigned)emu.current / MAX_THREADS);
    return &marks[((block * 34 + (unsigned)slot) * 2 + (unsigned)phase % 2) % sizeof marks];
}
#endif

/* ---- barriers and warps. A waiting thread switches to the scheduler, which resumes it when its
   state is READY. */

static thread *enter_state(int state, unsigned mask, const char *instruction, const char *file,
                           int line)
{
    thread *self = &emu.threads[emu.current];
    self->state = state;
    self->mask = mask;
    self->instruction = instruction;
    self->file = file;
    self->line = line;
    return self;
}

void kf_emu_assume(bool holds, const char *file, int line)
{
    if (holds) return;
    enter_state(READY, 0, "__builtin_assume", file, line);
    stop("thread %u assumes what does not hold", 0);
}

int kf_emu_barrier(int kind, int predicate, const char *file, int line)
{
    const char *const names[] = {"__syncthreads", "__syncthreads_and", "__syncthreads_or",
                                 "__syncthreads_count"};
    thread *self = enter_state(AT_BARRIER, 0, names[kind], file, line);
    self->kind = kind;
    self->predicate = predicate != 0;
    ++block_of(emu.current)->waiting;
#if defined(KF_EMU_TSAN)
    char *const mark = mark_of(0, self->phase++);
    __tsan_release(mark);
#endif
    switch_to_scheduler();
#if defined(KF_EMU_TSAN)
    __tsan_acquire(mark);
#endif
    return (int)self->result;
}

/* Completes a barrier that all threads of the block have reached. */
static void end_barrier(block *b)
{
    thread *const threads = &emu.threads[(b - emu.blocks) * MAX_THREADS];
    int sum = 0;
    b->waiting = 0;
    for (int t = 0; t < emu.count; ++t) {
        if (!same_state(&threads[t], &threads[0])) {
            begin_report("threads meet at different barriers");
            list_threads((int)(threads - emu.threads), emu.count);
            return;
        }
        sum += threads[t].predicate;
    }
    for (int t = 0; t < emu.count; ++t) {
        thread *a = &threads[t];
        a->result = (uint64_t)(a->kind == KF_EMU_AND  ? sum == emu.count
                               : a->kind == KF_EMU_OR ? sum > 0
                                                      : sum);
        a->state = READY;
    }
}

unsigned kf_emu_lane() { return (unsigned)emu.current % WARP; }

uint64_t kf_emu_exchange(const char *instruction, unsigned mask, uint64_t value, int source,
                         const char *file, int line)
{
    thread *self = enter_state(AT_WARP, mask, instruction, file, line);
    self->value = value;
    self->source = source;
    switch_to_scheduler();
    return self->result;
}

void kf_emu_syncwarp(unsigned mask, const char *file, int line)
{
#if defined(KF_EMU_TSAN)
    thread *self = &emu.threads[emu.current];
    char *const mark =
        mark_of(1 + emu.current % MAX_THREADS / WARP, mask == 0xffffffffu ? self->warp_phase++ : 0);
    __tsan_release(mark);
#endif
    kf_emu_exchange("__syncwarp", mask, 0, -1, file, line);
#if defined(KF_EMU_TSAN)
    __tsan_acquire(mark);
#endif
}

/* Completes a warp instruction if all lanes of thread t's mask have reached it: gives each lane its
   result. */
static void complete_warp(int t)
{
    const thread *self = &emu.threads[t];
    const int first = t / WARP * WARP;
    uint64_t bits = 0;
    if (!(self->mask >> (t - first) & 1)) {
        begin_report("thread %d is not in the mask that it gives", t % MAX_THREADS);
        list_threads(t, 1);
        return;
    }
    for (int i = 0; i < WARP; ++i) {
        const int lane = kf_emu_order == 0 ? WARP - 1 - i
                                           /* Checks the lane that runs last first, since it is
                                              usually the missing one. */
                                           : i;
        if (!(self->mask >> lane & 1)) continue;
        if (first % MAX_THREADS + lane >= emu.count ||
            !same_state(&emu.threads[first + lane], self))
            return;
        bits |= (emu.threads[first + lane].value & 1) << lane;
    }
    if (self->collective) {
        void *lanes[WARP];
        for (int lane = 0; lane < WARP; ++lane)
            lanes[lane] = (void *)emu.threads[first + lane].value;
        self->collective(lanes);
    }
    for (int lane = 0; lane < WARP; ++lane) {
        if (!(self->mask >> lane & 1)) continue;
        thread *a = &emu.threads[first + lane];
        a->collective = nullptr;
        /* A lane outside the mask provides no value: all ones, a NaN. */
        a->result = a->source < 0                 ? bits
                    : self->mask >> a->source & 1 ? emu.threads[first + a->source].value
                                                  : ~(uint64_t)0;
    }
    for (int lane = 0; lane < WARP; ++lane)
        if (self->mask >> lane & 1) emu.threads[first + lane].state = READY;
}

/* Executes a warp collective: one lane computes for all from what each lane passes in `own`. */
static void warp_collective(const char *instruction, void (*collective)(void *const *lanes),
                            void *own, const char *file, int line)
{
    emu.threads[emu.current].collective = collective;
    kf_emu_exchange(instruction, 0xffffffffu, (uint64_t)own, -1, file, line);
}

#endif
