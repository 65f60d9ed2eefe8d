/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: state and checks of asynchronous operations (TMA, bulk copies, wgmma).

   Time counts thread switches. An operation is in flight from its issue to a random later switch.
   A shadow cell describes each 16 bytes of dynamic shared memory: it counts the operations in
   flight that read and write them. The count drops when a wait has made the completion visible to a
   thread. A conflicting access before that is reported, whether or not this run's timing showed it.
   This state is created at a cluster's first Hopper instruction, so other kernels pay nothing. */
#ifndef KF_EMU_ASYNC_H
#define KF_EMU_ASYNC_H

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "emu_cluster.h"

#define WINDOW 0x400u
#define POISON 0x7fc0deadu /* NaN pattern of accumulators that a wgmma owns */
#define MAP_MAGIC 0x6b666d6170ull

int kf_emu_delay = 14, kf_emu_hopper = 0;

struct call_site {
    const char *file;
    int line;
};

struct tensor_map { /* 128 bytes, like CUtensorMap */
    uint64_t magic;
    char *base;
    uint64_t stride[4];
    uint32_t dim[5];
    unsigned short box[5];
    /* element: bytes. swizzle: 0 none, 1 of 32 bytes, 2 of 64, 3 of 128. */
    unsigned char rank, element, swizzle;
    bool rounds; /* rounds floats to TF32 */
    char rest[43];
};

/* Phase and destination of a completed transfer that no thread has waited for yet. */
struct arrival {
    unsigned phase;
    uint32_t smem;
    int bytes;
};
struct mbar {
    int count, pending;
    long bytes, in_flight; /* expected bytes; bytes in flight */
    unsigned phase;
    bool fenced;
    /* owner: thread that initialised it. waking: threads woken but not run since. */
    int owner, waking;
    call_site init_at;
    std::vector<arrival> arrived;
};

/* State of 16 bytes of shared memory. */
struct shadow_cell {
    unsigned short reads, writes; /* asynchronous operations in flight */
    unsigned short warp;
    /* lanes: threads of `warp` that wrote and did not fence since. epoch: last such write. */
    unsigned lanes, epoch;
    unsigned copied; /* epoch of the copy in `shadow` */
};

/* Accumulators of a warpgroup that wgmma owns. */
struct accumulators {
    /* unreturned: threads that have not got their registers back */
    int n, unreturned;
    size_t last; /* index of the last product */
    float *d[128];
    std::vector<float> sum; /* [64, n] */
};

enum { LOAD, STORE, STORED, PRODUCT };
struct async_op {
    int kind;
    uint64_t due;
    int thread;
    call_site at;
    uint32_t smem, bar;
    char *global;
    tensor_map map;
    int c[5], bytes;
    bool tensor, done, retired, adds;  /* adds: floats, to those in memory */
    std::vector<unsigned char> before; /* source bytes at issue */
    /* wgmma only */
    int n, ta, tb, add, arrived, group, of;
    bool registers;
    uint64_t da, db;
    std::shared_ptr<accumulators> sum;
    const unsigned *a_at[128];
    unsigned a[128][4];
};
typedef std::shared_ptr<async_op> async_op_ptr;

struct warpgroup {
    std::deque<async_op_ptr> products;
    size_t first; /* index of products[0] */
    std::vector<std::shared_ptr<accumulators>> chains;
    uint64_t due;
};

enum { FOR_PHASE, FOR_BULK, FOR_PRODUCT, FOR_NAMED, FOR_POOL, FOR_TICKET };
struct async_thread {
    int wait, amount; /* state AT_ASYNC: kind and amount of the wait */
    char detail[56];
    uint32_t bar;
    unsigned phase;
    bool read, waking, fenced;
    size_t product;
    unsigned epoch; /* epoch of its last fence.proxy.async */
    int registers;
    const unsigned *ticket;
    std::vector<async_op_ptr> open;
    std::deque<std::vector<async_op_ptr>> groups;
    size_t products, retired;            /* wgmma issued; wgmma waited for */
    std::vector<size_t> ends;            /* products issued before each commit */
    std::map<uint32_t, unsigned> passed; /* last phase that the thread passed, by mbarrier */
};
struct named_barrier {
    int expected;
    std::vector<int> who;
};

static struct {
    bool on, in_thread; /* in_thread: a thread runs, not the scheduler */
    uint64_t now;
    unsigned epoch, random, delay;
    std::vector<async_op_ptr> in_flight;
    std::map<uint32_t, mbar> bars;
    std::vector<shadow_cell> cells[MAX_CLUSTER];
    /* shadow: bytes that asynchronous reads saw; reveals plain stores, which are not
     instrumented. */
    std::vector<char> shadow[MAX_CLUSTER];
    unsigned fenced[MAX_CLUSTER]; /* epoch of the last fence by a thread of the block */
    named_barrier barriers[MAX_CLUSTER][16];
    long pool[MAX_CLUSTER]; /* registers in the block's pool (setmaxnreg) */
    std::vector<async_thread> threads;
    std::vector<warpgroup> groups;
    uint64_t asleep[MAX_CLUSTER * MAX_THREADS / WARP], lane_asleep[MAX_CLUSTER * MAX_THREADS];
    char text[768];
} async;

static async_thread &self() { return async.threads[(size_t)emu.current]; }
static int rank_of(uint32_t a) { return (int)(a >> 24); }
static long offset_of(uint32_t a) { return (long)(a & 0xffffffu) - (long)WINDOW; }

/* Reports a fault. Stops the thread if called from one, else fails the launch. */
static void fail(const call_site &at, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (async.in_thread) {
        thread *a = &emu.threads[emu.current];
        a->file = at.file;
        a->line = at.line;
        a->mask = 0;
        if (!a->instruction) a->instruction = "its end";
        snprintf(async.text, sizeof async.text, "thread %%u: %s", text);
        stop(async.text, 0);
    }
    if (emu.failed) return;
    begin_report("%s (issued at %s:%d)", text, at.file, at.line);
}

/* Describes the operation that a thread waits for. */
static const char *async_detail(const thread *a)
{
    return async.on && a->state == AT_ASYNC ? async.threads[(size_t)(a - emu.threads)].detail : "";
}

static unsigned async_random(unsigned n)
{
    async.random = async.random * 1664525u + 1013904223u;
    return n ? (unsigned)(((uint64_t)async.random * n) >> 32) : 0;
}
/* Due time of a new operation: mostly soon, sometimes very late. */
static uint64_t random_due_time()
{
    const unsigned most = async_random(async.delay + 1);
    return async.now + (async.delay ? 1 + async_random(1u << most) : 0);
}

static void async_begin()
{
    async.on = true;
    async.now = 0;
    async.epoch = 1;
    async.random =
        (unsigned)(emu.random >> 16) ^ (unsigned)kf_emu_seed * 2654435761u ^ blockIdx.x * 40503u;
    async.delay = kf_emu_delay > 4 ? 4 + async_random((unsigned)kf_emu_delay - 3)
                                   : (unsigned)kf_emu_delay; /* drawn per launch */
    async.in_flight.clear();
    async.bars.clear();
    memset(async.lane_asleep, 0, sizeof async.lane_asleep);
    for (uint64_t &until : async.asleep)
        until = kf_emu_order == 2 && async_random(4) == 0 ? 1u << async_random(13) : 0;
    const size_t threads = (size_t)(emu.size * MAX_THREADS);
    async.threads.assign(threads, async_thread{});
    async.groups.assign(threads / 128, warpgroup{});
    const int registers = std::min(65536 / emu.count / 8 * 8, 255);
    for (async_thread &p : async.threads) p.registers = registers;
    for (int b = 0; b < emu.size; ++b) {
        async.cells[b].assign(emu.dynamic_bytes / 16 + 1, shadow_cell{});
        async.shadow[b].assign(emu.dynamic_bytes, (char)0xff);
        for (named_barrier &n : async.barriers[b]) n = named_barrier{};
        async.fenced[b] = 0;
        async.pool[b] = 0;
    }
}

/* Begins an instruction of the current thread. */
static call_site begin_instruction(const char *instruction, const char *file, int line)
{
    if (!async.on) async_begin();
    async.in_thread = true;
    enter_state(READY, 0, instruction, file, line);
    return {file, line};
}

/* ---- shared memory */

static char *bytes_at(uint32_t a, size_t bytes, const call_site &at, bool own)
{
    const int rank = rank_of(a), mine = emu.current / MAX_THREADS;
    const long off = offset_of(a);
    if (rank >= emu.size) fail(at, "shared address %08x: the cluster has no block %d", a, rank);
    const block *const b = &emu.blocks[rank % MAX_CLUSTER];
    if (off < 0 || (size_t)off + bytes > emu.dynamic_bytes)
        fail(at,
             "shared address %08x: %zu bytes from %ld on are outside of the block's %zu bytes of "
             "dynamic memory",
             a, bytes, off, emu.dynamic_bytes);
    if (async.in_thread && own && rank != mine)
        fail(at, "shared address %08x is another block's", a);
    if (async.in_thread && rank != mine) {
        if (emu.threads[emu.current].waits == 0 || b->begun == 0)
            fail(at,
                 "block %d of the cluster need not have begun: this thread has waited at no "
                 "barrier of it",
                 rank);
        if (b->done == emu.count) fail(at, "block %d of the cluster has ended", rank);
    }
    return emu.failed ? emu.blocks[0].dynamic : b->dynamic + off;
}

template <class F> static void for_each_cell(uint32_t a, size_t bytes, F f)
{
    std::vector<shadow_cell> &g = async.cells[rank_of(a)];
    const size_t off = (size_t)offset_of(a);
    for (size_t i = off / 16; i < (off + bytes + 15) / 16 && i < g.size(); ++i) f(g[i]);
}
/* Offset of a cell's bytes in the block's memory, and their number. */
static size_t cell_offset(int rank, const shadow_cell &g)
{
    return (size_t)(&g - async.cells[rank].data()) * 16;
}
static size_t cell_bytes(size_t off) { return std::min((size_t)16, emu.dynamic_bytes - off); }

/* Records the bytes that an asynchronous read sees. */
static void snapshot(uint32_t a, size_t bytes)
{
    const int rank = rank_of(a);
    for_each_cell(a, bytes, [&](shadow_cell &g) {
        const size_t off = cell_offset(rank, g);
        memcpy(&async.shadow[rank][off], emu.blocks[rank].dynamic + off, cell_bytes(off));
        g.copied = async.epoch;
    });
}
/* True if a plain store changed the bytes since the snapshot and no thread has fenced. */
static bool written_unfenced(uint32_t a, size_t bytes)
{
    const int rank = rank_of(a);
    bool found = false;
    for_each_cell(a, bytes, [&](shadow_cell &g) {
        const size_t off = cell_offset(rank, g);
        found |=
            g.epoch == 0 && async.fenced[rank] <= g.copied &&
            memcmp(&async.shadow[rank][off], emu.blocks[rank].dynamic + off, cell_bytes(off)) != 0;
    });
    return found;
}

/* Checks an asynchronous read of shared memory. */
static void check_read(uint32_t a, size_t bytes, const call_site &at)
{
    bool writes = false, unfenced = written_unfenced(a, bytes);
    for_each_cell(a, bytes, [&](shadow_cell &g) {
        writes |= g.writes != 0;
        for (int lane = 0; g.epoch && lane < WARP; ++lane)
            if (g.lanes >> lane & 1 &&
                async.threads[(size_t)(g.warp * WARP + lane)].epoch <= g.epoch)
                unfenced = true;
    });
    if (writes)
        fail(at,
             "reads shared memory (at %ld) that an asynchronous copy may still be writing: nobody "
             "waited for it",
             offset_of(a));
    if (!unfenced) return snapshot(a, bytes);
    fail(at,
         "reads, asynchronously, shared memory (at %ld) that was written without fence.proxy.async "
         "after it",
         offset_of(a));
}
/* Records a write by the current thread. */
static void mark_written(shadow_cell &g)
{
    const unsigned short warp = (unsigned short)(emu.current / WARP);
    if (g.epoch == 0 || g.warp != warp) g.lanes = 0;
    /* drops lanes that have fenced since their write */
    for (int lane = 0; lane < WARP && g.lanes; ++lane)
        if (g.lanes >> lane & 1 && async.threads[(size_t)(warp * WARP + lane)].epoch > g.epoch)
            g.lanes &= ~(1u << lane);
    g.warp = warp;
    g.epoch = async.epoch;
    g.lanes |= 1u << emu.current % WARP;
}
static void check_write(uint32_t a, size_t bytes, const call_site &at, bool by_thread)
{
    const char *what = nullptr;
    for_each_cell(a, bytes, [&](shadow_cell &g) {
        if (g.reads)
            what =
                "that an asynchronous store or product may still be reading: nobody waited for it";
        if (g.writes) what = "that an asynchronous copy may still be writing: nobody waited for it";
        if (by_thread && async.in_thread) mark_written(g);
    });
    if (what) fail(at, "writes shared memory (at %ld) %s", offset_of(a), what);
}

uint32_t kf_emu_window(const void *p, const char *file, int line)
{
    const size_t off = (uintptr_t)p - (uintptr_t)block_of(emu.current)->dynamic;
    if (off > emu.dynamic_bytes)
        fail(begin_instruction("shared address", file, line),
             "has an address outside of its block's dynamic memory");
    return (uint32_t)(emu.current / MAX_THREADS) << 24 | (uint32_t)(off + WINDOW);
}
uint32_t kf_emu_mapa(uint32_t address, unsigned rank, const char *file, int line)
{
    const call_site at = begin_instruction("mapa", file, line);
    if (rank >= (unsigned)emu.size)
        fail(at, "wants memory of block %u of the cluster, which is smaller", rank);
    return (address & 0xffffffu) | rank << 24;
}

/* ---- waits: a thread becomes ready when the condition it waits for holds */

static bool bulk_pending(const async_thread &p, int most, bool read)
{
    for (size_t i = 0; i + (size_t)most < p.groups.size(); ++i)
        for (const async_op_ptr &f : p.groups[i])
            if (!(read ? f->kind != STORE || f->done : f->done)) return true;
    return false;
}
static bool wait_is_over(const async_thread &p, int t)
{
    if (p.wait == FOR_PHASE) return async.bars[p.bar].phase != p.phase;
    if (p.wait == FOR_BULK) return !bulk_pending(p, p.amount, p.read);
    if (p.wait == FOR_TICKET) return *p.ticket == (unsigned)p.amount;
    if (p.wait == FOR_POOL) return async.pool[t / MAX_THREADS] >= p.amount;
    if (p.wait == FOR_PRODUCT) {
        const warpgroup &g = async.groups[(size_t)(t / 128)];
        return p.product <= g.first || g.products[p.product - 1 - g.first]->done;
    }
    return false; /* FOR_NAMED: the last thread to arrive wakes the others */
}
static void wake()
{
    for (int b = 0; b < emu.size; ++b)
        for (int t = b * MAX_THREADS; t < b * MAX_THREADS + emu.count; ++t) {
            async_thread &p = async.threads[(size_t)t];
            if (emu.threads[t].state != AT_ASYNC || !wait_is_over(p, t)) continue;
            emu.threads[t].state = READY;
            if (p.wait != FOR_PHASE) continue;
            p.waking = true;
            ++async.bars[p.bar].waking;
        }
}
template <class... A> static void wait_for(int what, const char *format, A... a)
{
    self().wait = what;
    snprintf(self().detail, sizeof self().detail, format, a...);
    emu.threads[emu.current].state = AT_ASYNC;
    switch_to_scheduler();
}

#endif
