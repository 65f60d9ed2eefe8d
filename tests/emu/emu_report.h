/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: fault reports: the reason, and the state and source line of every thread. */
#ifndef KF_EMU_REPORT_H
#define KF_EMU_REPORT_H

#include "emu_fibers.h"

static const char *async_detail(const thread *a); /* defined in emu_async.h */

static void append_report(const char *format, ...)
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
    append_report("%s, block (%u, %u, %u) of (%u, %u, %u)", emu.name, blockIdx.x, blockIdx.y,
                  blockIdx.z, gridDim.x, gridDim.y, gridDim.z);
    if (emu.size > 1) append_report(" in a cluster of %d", emu.size);
    append_report(": %s\n", text);
    emu.failed = true;
}

static bool same_state(const thread *a, const thread *b)
{
    if (a->state != b->state) return false;
    if (a->state == NEW || a->state == READY || a->state == DONE) return true;
    return a->line == b->line && a->mask == b->mask &&
           strcmp(async_detail(a), async_detail(b)) == 0 &&
           (a->instruction == b->instruction || strcmp(a->instruction, b->instruction) == 0) &&
           (a->file == b->file || strcmp(a->file, b->file) == 0);
}

/* Lists the threads, grouped by state: "  threads 0-31, 64: waits at __syncthreads, file:line". */
static void list_threads(int first, int count)
{
    bool listed[MAX_THREADS] = {};
    for (int t = first; t < first + count; ++t) {
        if (listed[t - first]) continue;
        const thread *a = &emu.threads[t];
        const char *between = "  threads ";
        for (int i = t; i < first + count; ++i) {
            if (listed[i - first] || !same_state(a, &emu.threads[i])) continue;
            int last = i;
            while (last + 1 < first + count && same_state(a, &emu.threads[last + 1])) ++last;
            for (int k = i; k <= last; ++k) listed[k - first] = true;
            append_report(last > i ? "%s%d-%d" : "%s%d", between, i % MAX_THREADS,
                          last % MAX_THREADS);
            between = ", ";
            i = last;
        }
        append_report(": %s", STATES[a->state]);
        if (a->state == AT_BARRIER || a->state == AT_CLUSTER || a->state == WRONG)
            append_report(" %s, %s:%d", a->instruction, a->file, a->line);
        if (a->state == AT_ASYNC)
            append_report(" %s %s, %s:%d", a->instruction, async_detail(a), a->file, a->line);
        if (a->state == AT_WARP)
            append_report(" %s of lanes %08x, %s:%d", a->instruction, a->mask, a->file, a->line);
        append_report("\n");
    }
}

static void list_cluster()
{
    for (int b = 0; b < emu.size; ++b) {
        const uint3 i = emu.blocks[b].index;
        if (emu.size > 1) append_report("  of block (%u, %u, %u):\n", i.x, i.y, i.z);
        list_threads(b * MAX_THREADS, emu.count);
    }
}

/* Stops the current thread for a fault; the scheduler writes the report. */
[[noreturn]] static void stop(const char *fault, unsigned number)
{
    emu.threads[emu.current].state = WRONG;
    emu.fault = fault;
    emu.fault_number = number;
    switch_to_scheduler();
    abort();
}

#endif
