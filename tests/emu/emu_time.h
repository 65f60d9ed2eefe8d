/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: completion of asynchronous operations, and threads that sleep at random so that
   others run far ahead of them. */
#ifndef KF_EMU_TIME_H
#define KF_EMU_TIME_H

#include "emu_groups.h"

static void round_to_tf32(char *at, int bytes)
{
    for (int i = 0; i < bytes; i += 4) {
        float x;
        memcpy(&x, at + i, 4);
        const unsigned rounded = kf_emu_tf32(x);
        memcpy(at + i, &rounded, 4);
    }
}
static void end_load(const async_op_ptr &f)
{
    if (emu.blocks[rank_of(f->smem)].done == emu.count)
        return fail(f->at, "a block has ended before a copy to it has");
    chunks(*f, [&](uint32_t s, const char *from, int n) {
        char *const to = bytes_at(s, (size_t)n, f->at, false);
        check_global(from, n, f->at);
        if (from)
            memcpy(to, from, (size_t)n);
        else
            memset(to, 0, (size_t)n);
        if (f->tensor && f->map.rounds) round_to_tf32(to, n);
    });
    snapshot(f->smem, (size_t)f->bytes);
    arrive_bytes(f);
}
/* Ends the read of a store's source; its write completes later. */
static void end_read(const async_op_ptr &f)
{
    const std::vector<unsigned char> was = f->before;
    keep_source(f.get());
    if (was != f->before)
        return fail(f->at, "shared memory that a bulk store reads changed before its end");
    f->kind = STORED;
    f->done = false;
    f->due = random_due_time();
    wake();
}
static void add_floats(char *to, const unsigned char *from, int bytes)
{
    for (int i = 0; i < bytes; i += 4) {
        float sum, x;
        memcpy(&sum, to + i, 4);
        memcpy(&x, from + i, 4);
        sum += x;
        memcpy(to + i, &sum, 4);
    }
}
static void end_store(const async_op_ptr &f)
{
    size_t i = 0;
    chunks(*f, [&](uint32_t, char *to, int n) {
        check_global(to, n, f->at);
        if (to && !emu.failed && f->adds) add_floats(to, &f->before[i], n);
        if (to && !emu.failed && !f->adds) memcpy(to, &f->before[i], (size_t)n);
        i += (size_t)n;
    });
    wake();
}
static void complete_op(const async_op_ptr &f)
{
    f->done = true;
    if (f->kind == LOAD) return end_load(f);
    if (f->kind == STORE) return end_read(f);
    if (f->kind == STORED) return end_store(f);
    multiply(*f);
    wake();
}
static void run_due()
{
    for (size_t i = 0; i < async.in_flight.size() && !emu.failed;) {
        const async_op_ptr f = async.in_flight[i];
        if (f->due <= async.now) complete_op(f);
        if (f->due <= async.now && f->done)
            async.in_flight.erase(async.in_flight.begin() + (long)i);
        else
            ++i;
    }
}

/* ---- hooks of the scheduler */

static void async_resume(int t)
{
    if (!async.on) return;
    async_thread &p = async.threads[(size_t)t];
    if (p.waking) --async.bars[p.bar].waking;
    p.waking = false;
    async.in_thread = true;
}
static void async_tick()
{
    if (!async.on) return;
    async.in_thread = false;
    ++async.now;
    if (!async.in_flight.empty()) run_due();
}
/* A warp, a warpgroup or a single lane sleeps now and then in random order. Plain scheduling is too
   fair, and only warp instructions keep lanes together. */
static bool async_asleep(int t)
{
    if (!async.on || kf_emu_order != 2) return false;
    uint64_t &until = async.asleep[t / WARP];
    if (until <= async.now && t % WARP == 0 && async_random(24) == 0) {
        until = async.now + (1u << async_random(13));
        for (int w = t / 128 * 4, end = async_random(2) ? w + 4 : w; w < end; ++w)
            async.asleep[w] = until;
    }
    if (async.lane_asleep[t] <= async.now && async_random(1500) == 0)
        async.lane_asleep[t] = async.now + (1u << async_random(14));
    return until > async.now || async.lane_asleep[t] > async.now;
}
/* Advances time when no thread can run: to the next completion or to the end of a sleep. */
static bool async_advance()
{
    if (!async.on) return false;
    async.in_thread = false;
    uint64_t next = ~0ull;
    for (const async_op_ptr &f : async.in_flight) next = std::min(next, f->due);
    for (int b = 0; b < emu.size; ++b)
        for (int t = b * MAX_THREADS; t < b * MAX_THREADS + emu.count; ++t)
            for (uint64_t until : {async.asleep[t / WARP], async.lane_asleep[t]})
                if (until > async.now && emu.threads[t].state <= READY)
                    next = std::min(next, until);
    if (next == ~0ull) return false;
    async.now = std::max(async.now, next);
    run_due();
    return true;
}

/* Checks that a returning thread leaves no operation without its wait. */
static void async_end_thread(int t)
{
    if (!async.on) return;
    const async_thread &p = async.threads[(size_t)t];
    const thread *const a = &emu.threads[t];
    for (const async_op_ptr &f : p.open)
        if (!f->retired) fail(f->at, "returns with a bulk store that was not committed");
    for (const auto &g : p.groups)
        for (const async_op_ptr &f : g)
            if (!f->retired)
                fail(f->at,
                     "returns before its bulk store has read shared memory: no wait_group.read");
    if (p.retired != p.products)
        fail({a->file ? a->file : "?", a->line}, "returns without waiting for its wgmma");
}
/* Checks the same at the end of a cluster, and completes all stores. */
static void async_end()
{
    if (!async.on) return;
    async.in_thread = false;
    for (const auto &i : async.bars)
        if (!i.second.arrived.empty() && !emu.failed)
            fail(i.second.init_at,
                 "a block ended and nobody waited for what came to its mbarrier at %08x", i.first);
    while (!emu.failed && !async.in_flight.empty()) {
        async.now = ~0ull;
        run_due();
    }
    async.in_flight.clear();
    async.on = false;
}

#endif
