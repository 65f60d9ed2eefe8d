/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: barriers, and what the lanes of a warp do together. */
#ifndef KF_EMU_MEET_H
#define KF_EMU_MEET_H

#include "emu_report.h"

#if defined(KF_EMU_TSAN)
/* What those who meet are ordered by: place 0 is the block's barrier, 1 + w its warp w, 33 its
   cluster's barrier (the mark of the first block). Another mark every other phase, since one who is
   late must not see what others did after the meeting, and for the next block. */
static char *mark_of(int place, int phase)
{
    static char marks[1 << 16];
    const unsigned block =
        emu.blocks_run + (place == 33 ? 0 : (unsigned)emu.current / MOST_THREADS);
    return &marks[((block * 34 + (unsigned)place) * 2 + (unsigned)phase % 2) % sizeof marks];
}
#endif

/* ---- barriers and warps. A thread that waits goes back to main, which goes on with it when its
 * state is READY again. */

static thread *come_to(int state, unsigned mask, const char *word, const char *file, int line)
{
    thread *self = &emu.threads[emu.current];
    self->state = state;
    self->mask = mask;
    self->word = word;
    self->file = file;
    self->line = line;
    return self;
}

int kf_emu_barrier(int kind, int predicate, const char *file, int line)
{
    const char *const words[] = {"__syncthreads", "__syncthreads_and", "__syncthreads_or",
                                 "__syncthreads_count"};
    thread *self = come_to(AT_BARRIER, 0, words[kind], file, line);
    self->kind = kind;
    self->predicate = predicate != 0;
    ++block_of(emu.current)->waiting;
#if defined(KF_EMU_TSAN)
    char *const mark = mark_of(0, self->phase++);
    __tsan_release(mark);
#endif
    to_main();
#if defined(KF_EMU_TSAN)
    __tsan_acquire(mark);
#endif
    return (int)self->result;
}

/* All threads of a block are at a barrier. */
static void end_barrier(block *b)
{
    thread *const threads = &emu.threads[(b - emu.blocks) * MOST_THREADS];
    int sum = 0;
    b->waiting = 0;
    for (int t = 0; t < emu.count; ++t) {
        if (!same_place(&threads[t], &threads[0])) {
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

uint64_t kf_emu_exchange(const char *word, unsigned mask, uint64_t value, int source,
                         const char *file, int line)
{
    thread *self = come_to(AT_WARP, mask, word, file, line);
    self->value = value;
    self->source = source;
    to_main();
    return self->result;
}

void kf_emu_syncwarp(unsigned mask, const char *file, int line)
{
#if defined(KF_EMU_TSAN)
    thread *self = &emu.threads[emu.current];
    char *const mark = mark_of(1 + emu.current % MOST_THREADS / WARP,
                               mask == 0xffffffffu ? self->warp_phase++ : 0);
    __tsan_release(mark);
#endif
    kf_emu_exchange("__syncwarp", mask, 0, -1, file, line);
#if defined(KF_EMU_TSAN)
    __tsan_acquire(mark);
#endif
}

/* Thread t has come to a warp word: when all lanes of its mask have, each gets its result. */
static void meet_lanes(int t)
{
    const thread *self = &emu.threads[t];
    const int first = t / WARP * WARP;
    uint64_t bits = 0;
    if (!(self->mask >> (t - first) & 1)) {
        begin_report("thread %d is not in the mask that it gives", t % MOST_THREADS);
        list_threads(t, 1);
        return;
    }
    for (int i = 0; i < WARP; ++i) {
        const int lane = kf_emu_order == 0
                             ? WARP - 1 - i
                             : i; /* who comes last first: mostly that one is missing */
        if (!(self->mask >> lane & 1)) continue;
        if (first % MOST_THREADS + lane >= emu.count ||
            !same_place(&emu.threads[first + lane], self))
            return;
        bits |= (emu.threads[first + lane].value & 1) << lane;
    }
    if (self->together) {
        void *lanes[WARP];
        for (int lane = 0; lane < WARP; ++lane)
            lanes[lane] = (void *)emu.threads[first + lane].value;
        self->together(lanes);
    }
    for (int lane = 0; lane < WARP; ++lane) {
        if (!(self->mask >> lane & 1)) continue;
        thread *a = &emu.threads[first + lane];
        a->together = nullptr;
        /* A lane outside of the mask has no value to give: all ones, a NaN. */
        a->result = a->source < 0                 ? bits
                    : self->mask >> a->source & 1 ? emu.threads[first + a->source].value
                                                  : ~(uint64_t)0;
    }
    for (int lane = 0; lane < WARP; ++lane)
        if (self->mask >> lane & 1) emu.threads[first + lane].state = READY;
}

/* A word of the whole warp that one of its lanes does for all, with what each gives. */
static void meet(const char *word, void (*together)(void *const *lanes), void *own,
                 const char *file, int line)
{
    emu.threads[emu.current].together = together;
    kf_emu_exchange(word, 0xffffffffu, (uint64_t)own, -1, file, line);
}

#endif
