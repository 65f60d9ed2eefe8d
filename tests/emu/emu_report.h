/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: what is wrong with a launch, and where its threads are. */
#ifndef KF_EMU_REPORT_H
#define KF_EMU_REPORT_H

#include "emu_fibers.h"

static const char *async_detail(const thread *a); /* emu_async.h */

static void say(const char *format, ...)
{
    const size_t used = strlen(emu.report);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(emu.report + used, sizeof emu.report - used, format, arguments);
    va_end(arguments);
}

static void begin_report(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    emu.report[0] = 0;
    say("%s, block (%u, %u, %u) of (%u, %u, %u)", emu.name, blockIdx.x, blockIdx.y, blockIdx.z,
        gridDim.x, gridDim.y, gridDim.z);
    if (emu.size > 1) say(" in a cluster of %d", emu.size);
    say(": %s\n", text);
    emu.failed = true;
}

static bool same_place(const thread *a, const thread *b)
{
    if (a->state != b->state) return false;
    if (a->state == NEW || a->state == READY || a->state == DONE) return true;
    return a->line == b->line && a->mask == b->mask &&
           strcmp(async_detail(a), async_detail(b)) == 0 &&
           (a->word == b->word || strcmp(a->word, b->word) == 0) &&
           (a->file == b->file || strcmp(a->file, b->file) == 0);
}

/* The threads, those at one place together: "  0-31, 64: wait at __syncthreads, file:line". */
static void list_threads(int first, int count)
{
    bool told[MOST_THREADS] = {};
    for (int t = first; t < first + count; ++t) {
        if (told[t - first]) continue;
        const thread *a = &emu.threads[t];
        const char *between = "  threads ";
        for (int i = t; i < first + count; ++i) {
            if (told[i - first] || !same_place(a, &emu.threads[i])) continue;
            int last = i;
            while (last + 1 < first + count && same_place(a, &emu.threads[last + 1])) ++last;
            for (int k = i; k <= last; ++k) told[k - first] = true;
            say(last > i ? "%s%d-%d" : "%s%d", between, i % MOST_THREADS, last % MOST_THREADS);
            between = ", ";
            i = last;
        }
        say(": %s", STATES[a->state]);
        if (a->state == AT_BARRIER || a->state == AT_CLUSTER || a->state == WRONG)
            say(" %s, %s:%d", a->word, a->file, a->line);
        if (a->state == AT_ASYNC) say(" %s %s, %s:%d", a->word, async_detail(a), a->file, a->line);
        if (a->state == AT_WARP)
            say(" %s of lanes %08x, %s:%d", a->word, a->mask, a->file, a->line);
        say("\n");
    }
}

static void list_cluster()
{
    for (int b = 0; b < emu.size; ++b) {
        const uint3 i = emu.blocks[b].index;
        if (emu.size > 1) say("  of block (%u, %u, %u):\n", i.x, i.y, i.z);
        list_threads(b * MOST_THREADS, emu.count);
    }
}

/* The thread that runs ends the launch; main writes the report. */
[[noreturn]] static void stop(const char *fault, unsigned number)
{
    emu.threads[emu.current].state = WRONG;
    emu.fault = fault;
    emu.fault_number = number;
    to_main();
    abort();
}

#endif
