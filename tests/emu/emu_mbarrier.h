/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: mbarriers: arrivals, transaction bytes and phases.

   A thread that passes a phase has waited for the transfers that completed in it. Reports a missing
   or unfenced init, wrong byte counts, and too many arrivals. Reports a phase that ends before the
   threads woken by the previous one have run, and a thread that passes a phase twice. */
#ifndef KF_EMU_MBARRIER_H
#define KF_EMU_MBARRIER_H

#include "emu_async.h"

static mbar *bar_at(uint32_t a, const call_site &at)
{
    const auto i = async.bars.find(a);
    if (i == async.bars.end()) fail(at, "no mbarrier was made at shared address %08x", a);
    return i == async.bars.end() ? nullptr : &i->second;
}

/* Ends the phase if all arrivals and bytes have come. */
static void end_phase(uint32_t a, mbar *b, const call_site &at)
{
    if (b->pending || b->bytes) return;
    if (b->in_flight)
        fail(at,
             "the mbarrier at %08x (%s:%d) ends a phase while %ld bytes for it are under way: "
             "expect_tx said too few",
             a, b->init_at.file, b->init_at.line, b->in_flight);
    if (b->waking)
        fail(at,
             "the mbarrier at %08x (%s:%d) ends phase %u before all that waited for the one before "
             "it have gone on: they may miss it",
             a, b->init_at.file, b->init_at.line, b->phase);
    ++b->phase;
    b->pending = b->count;
    wake();
}

void kf_emu_mbar_init(uint32_t a, int count, const char *file, int line)
{
    const call_site at = begin_instruction("mbarrier.init", file, line);
    bytes_at(a, 8, at, true);
    if (a % 8 || count < 1) fail(at, "an mbarrier at %08x for %d arrivals", a, count);
    async.bars[a] = mbar{count, count, 0, 0, 0, false, emu.current, 0, at, {}};
}
void kf_emu_fence_init(const char *file, int line)
{
    begin_instruction("fence.mbarrier_init", file, line);
    for (auto &i : async.bars)
        if (i.second.owner == emu.current) i.second.fenced = true;
}

void kf_emu_mbar_arrive(uint32_t a, long expect, const char *file, int line)
{
    const call_site at = begin_instruction("mbarrier.arrive", file, line);
    bytes_at(a, 8, at, expect != 0);
    mbar *const b = bar_at(a, at);
    b->bytes += expect;
    if (b->bytes >= 1 << 20)
        fail(at, "the mbarrier at %08x expects %ld bytes, more than 2^20 - 1", a, b->bytes);
    if (b->pending == 0)
        fail(at, "more arrivals at the mbarrier at %08x (%s:%d) in phase %u than its %d", a,
             b->init_at.file, b->init_at.line, b->phase, b->count);
    --b->pending;
    end_phase(a, b, at);
}

/* Retires the transfers that completed up to `phase`: a thread has waited for them. */
static void retire_arrivals(mbar *b, unsigned phase)
{
    for (size_t i = 0; i < b->arrived.size();) {
        const arrival x = b->arrived[i];
        if ((int)(x.phase - phase) > 0) {
            ++i;
            continue;
        }
        for_each_cell(x.smem, (size_t)x.bytes, [](shadow_cell &g) { --g.writes; });
        b->arrived.erase(b->arrived.begin() + (long)i);
    }
}

bool kf_emu_mbar_test(uint32_t a, int parity, bool waits, const char *file, int line)
{
    const call_site at = begin_instruction("mbarrier wait", file, line);
    bytes_at(a, 8, at, true);
    mbar *const b = bar_at(a, at);
    if (parity != 0 && parity != 1) fail(at, "waits for parity %d", parity);
    async_thread &p = self();
    unsigned by = b->phase;
    if ((b->phase & 1) == (unsigned)parity) {
        if (!waits) return false;
        p.bar = a;
        p.phase = by;
        wait_for(FOR_PHASE, "%08x+%ld, phase %u", a & 0xff000000u, offset_of(a), by);
    } else {
        by = b->phase - 1;
    }
    const auto passed = p.passed.find(a);
    if (passed != p.passed.end() && passed->second == by)
        fail(at,
             "is let through twice by phase %d of the mbarrier at %08x (%s:%d): wrong parity, or "
             "laps ahead of it",
             (int)by, a, b->init_at.file, b->init_at.line);
    p.passed[a] = by;
    retire_arrivals(b, by);
    return true;
}

/* ---- transaction bytes */

static void expect_bytes(uint32_t bar, int bytes, const call_site &at)
{
    mbar *const b = bar_at(bar, at);
    if (!b->fenced)
        fail(at, "the mbarrier at %08x (%s:%d) was made without fence.mbarrier_init after it", bar,
             b->init_at.file, b->init_at.line);
    b->in_flight += bytes;
}
static void arrive_bytes(const async_op_ptr &f)
{
    mbar *const b = bar_at(f->bar, f->at);
    if (!b) return;
    b->in_flight -= f->bytes;
    b->arrived.push_back({b->phase, f->smem, f->bytes});
    b->bytes -= f->bytes;
    if (b->pending == 0 && b->bytes < 0)
        return fail(f->at, "%ld bytes more than expected came to the mbarrier at %08x", -b->bytes,
                    f->bar);
    end_phase(f->bar, b, f->at);
}

void kf_emu_fence_async(const char *file, int line)
{
    begin_instruction("fence.proxy.async", file, line);
    self().epoch = async.fenced[emu.current / MAX_THREADS] = ++async.epoch;
    ++async.epoch;
}

/* Lists the mbarriers that threads wait for, after a deadlock. */
static void list_mbarriers()
{
    for (const auto &i : async.bars) {
        const mbar &b = i.second;
        bool wanted = false;
        for (size_t t = 0; t < async.threads.size(); ++t)
            wanted |= emu.threads[t].state == AT_ASYNC && async.threads[t].wait == FOR_PHASE &&
                      async.threads[t].bar == i.first;
        if (wanted)
            append_report(
                "  mbarrier %08x+%ld (%s:%d): phase %u waits for %d of %d arrivals and %ld bytes, "
                "of which %ld are under way\n",
                i.first & 0xff000000u, offset_of(i.first), b.init_at.file, b.init_at.line, b.phase,
                b.pending, b.count, b.bytes, b.in_flight);
    }
}

#endif
