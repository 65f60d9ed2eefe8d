/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: cp.async. Each thread queues its late copies; cp.async.wait_group performs
   them. */
#ifndef KF_EMU_FETCH_H
#define KF_EMU_FETCH_H

#include "emu_align.h"

#define MAX_COPIES 256
struct copies {
    int count, group; /* group: number of commits so far */
    struct {
        void *to;
        unsigned char bytes[16];
        int count, group;
    } of[MAX_COPIES];
};

bool kf_emu_fetch_is_late() { return kf_emu_order == 0 || (kf_emu_order == 2 && random_below(2)); }

void kf_emu_fetch_late(void *shared, const void *bytes, int count, const char *file, int line)
{
    thread *self = enter_state(READY, 0, "cp.async", file, line);
    if (!self->copies) self->copies = (copies *)calloc(1, sizeof *self->copies);
    copies *const c = self->copies;
    if (c->count == MAX_COPIES)
        stop("thread %u has more copies under way than there is room for, %u", MAX_COPIES);
    auto *const one = &c->of[c->count++];
    one->to = shared;
    one->count = count;
    one->group = c->group;
    memcpy(one->bytes, bytes, (size_t)count);
}

void kf_emu_fetch_commit()
{
    thread *self = &emu.threads[emu.current];
    if (!self->copies) self->copies = (copies *)calloc(1, sizeof *self->copies);
    ++self->copies->group;
}

void kf_emu_fetch_wait(int pending)
{
    copies *const c = emu.threads[emu.current].copies;
    int kept = 0;
    for (int i = 0; c && i < c->count; ++i) {
        if (c->of[i].group < c->group - pending)
            memcpy(c->of[i].to, c->of[i].bytes, (size_t)c->of[i].count);
        else
            c->of[kept++] = c->of[i];
    }
    if (c) c->count = kept;
}

#endif
