/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: what Hopper's instructions do behind the threads' backs, and which shared memory
   that concerns.

   Time is counted in switches of threads. What is asynchronous is under way from its issue until a
   random later switch. What it reads or writes is marked, from its issue until a wait has told a
   thread of its end, by 16 bytes of shared memory: who touches it before is reported, whatever the
   timing of this run was. All of it begins with a cluster's first such instruction: others cost
   nothing. */
#ifndef KF_EMU_ASYNC_H
#define KF_EMU_ASYNC_H

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "emu_cluster.h"

#define WINDOW 0x400u
#define POISON 0x7fc0deadu /* a NaN: accumulators that a product has */
#define MAP_MAGIC 0x6b666d6170ull

int kf_emu_delay = 14, kf_emu_hopper = 0;

struct place {
    const char *file;
    int line;
};

struct tensor_map { /* 128 bytes, as CUtensorMap */
    uint64_t magic;
    char *base;
    uint64_t stride[4];
    uint32_t dim[5];
    unsigned short box[5];
    unsigned char rank, element,
        swizzle; /* bytes of an element; 0 none, 1 of 32 bytes, 2 of 64, 3 of 128 */
    bool rounds; /* floats, to tf32 */
    char rest[43];
};

/* Transfers that nobody was told of: in which phase they came. */
struct arrival {
    unsigned phase;
    uint32_t smem;
    int bytes;
};
struct mbar {
    int count, pending;
    long bytes, flying; /* still expected; of transfers under way */
    unsigned phase;
    bool fenced;
    int maker, late; /* threads that this phase's end woke and that did not run since */
    place made;
    std::vector<arrival> came;
};

struct granule {                  /* 16 bytes of shared memory */
    unsigned short reads, writes; /* by what is asynchronous */
    unsigned short warp;
    unsigned lanes,
        stamp; /* of the last write by threads that no fence.proxy.async of its lanes followed */
    unsigned seen; /* when the copy in `shadow` was made */
};

struct chain {   /* accumulators of a warpgroup that are not the threads' own at present */
    int n, mine; /* threads that have not got them back */
    size_t last; /* product */
    float *d[128];
    std::vector<float> sum; /* 64 x n */
};

enum { LOAD, STORE, STORED, PRODUCT };
struct flight {
    int kind;
    uint64_t due;
    int thread;
    place at;
    uint32_t smem, bar;
    char *global;
    tensor_map map;
    int c[5], bytes;
    bool tensor, done, told;
    std::vector<unsigned char> before; /* the source, as it was */
    /* products */
    int n, ta, tb, add, came, group, of;
    bool registers;
    uint64_t da, db;
    std::shared_ptr<chain> sum;
    const unsigned *a_at[128];
    unsigned a[128][4];
};
typedef std::shared_ptr<flight> fly;

struct warpgroup {
    std::deque<fly> products;
    size_t first; /* number of products[0] */
    std::vector<std::shared_ptr<chain>> chains;
    uint64_t due;
};

enum { FOR_PHASE, FOR_BULK, FOR_PRODUCT, FOR_NAMED, FOR_POOL };
struct async_thread {
    int wait, amount; /* AT_ASYNC: for what */
    char detail[56];
    uint32_t bar;
    unsigned phase;
    bool read, late, fenced;
    size_t product;
    unsigned stamp; /* of its last fence.proxy.async */
    int registers;
    std::vector<fly> open;
    std::deque<std::vector<fly>> groups;
    size_t products, told;             /* issued; told to be over */
    std::vector<size_t> ends;          /* of its groups of products */
    std::map<uint32_t, unsigned> seen; /* phases it was let through by */
};
struct named_barrier {
    int expected;
    std::vector<int> who;
};

static struct {
    bool on, in_thread; /* in_thread: a thread runs, not the scheduler */
    uint64_t now;
    unsigned stamp, random, delay;
    std::vector<fly> flying;
    std::map<uint32_t, mbar> bars;
    std::vector<granule> granules[MOST_BLOCKS];
    std::vector<char> shadow[MOST_BLOCKS]; /* what asynchronous reads may have seen: tells of plain
                                              stores, which nobody announces */
    unsigned fenced[MOST_BLOCKS];          /* when a thread of the block last fenced */
    named_barrier barriers[MOST_BLOCKS][16];
    long pool[MOST_BLOCKS]; /* registers that are free */
    std::vector<async_thread> threads;
    std::vector<warpgroup> groups;
    uint64_t asleep[MOST_BLOCKS * MOST_THREADS / WARP], lane_asleep[MOST_BLOCKS * MOST_THREADS];
    char text[768];
} async;

static async_thread &self() { return async.threads[(size_t)emu.current]; }
static int rank_of(uint32_t a) { return (int)(a >> 24); }
static long offset_of(uint32_t a) { return (long)(a & 0xffffffu) - (long)WINDOW; }

/* From a thread: it stops. From the scheduler, where something ended: the launch does. */
static void fail(const place &at, const char *format, ...)
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
        if (!a->word) a->word = "its end";
        snprintf(async.text, sizeof async.text, "thread %%u: %s", text);
        stop(async.text, 0);
    }
    if (emu.failed) return;
    begin_report("%s (issued at %s:%d)", text, at.file, at.line);
}

/* What a thread waits for. */
static const char *async_detail(const thread *a)
{
    return async.on && a->state == AT_ASYNC ? async.threads[(size_t)(a - emu.threads)].detail : "";
}

static unsigned any(unsigned n)
{
    async.random = async.random * 1664525u + 1013904223u;
    return n ? (unsigned)(((uint64_t)async.random * n) >> 32) : 0;
}
static uint64_t later() /* mostly soon, at times very late */
{
    const unsigned most = any(async.delay + 1);
    return async.now + (async.delay ? 1 + any(1u << most) : 0);
}

static void async_begin()
{
    async.on = true;
    async.now = 0;
    async.stamp = 1;
    async.random =
        (unsigned)(emu.random >> 16) ^ (unsigned)kf_emu_seed * 2654435761u ^ blockIdx.x * 40503u;
    async.delay = kf_emu_delay > 4 ? 4 + any((unsigned)kf_emu_delay - 3)
                                   : (unsigned)kf_emu_delay; /* a launch's own */
    async.flying.clear();
    async.bars.clear();
    memset(async.lane_asleep, 0, sizeof async.lane_asleep);
    for (uint64_t &until : async.asleep)
        until = kf_emu_order == 2 && any(4) == 0 ? 1u << any(13) : 0;
    const size_t threads = (size_t)(emu.size * MOST_THREADS);
    async.threads.assign(threads, async_thread{});
    async.groups.assign(threads / 128, warpgroup{});
    const int registers = std::min(65536 / emu.count / 8 * 8, 255);
    for (async_thread &p : async.threads) p.registers = registers;
    for (int b = 0; b < emu.size; ++b) {
        async.granules[b].assign(emu.dynamic_bytes / 16 + 1, granule{});
        async.shadow[b].assign(emu.dynamic_bytes, (char)0xff);
        for (named_barrier &n : async.barriers[b]) n = named_barrier{};
        async.fenced[b] = 0;
        async.pool[b] = 0;
    }
}

/* An instruction begins. */
static place come(const char *word, const char *file, int line)
{
    if (!async.on) async_begin();
    async.in_thread = true;
    come_to(READY, 0, word, file, line);
    return {file, line};
}

/* ---- shared memory */

static char *bytes_at(uint32_t a, size_t bytes, const place &at, bool own)
{
    const int rank = rank_of(a), mine = emu.current / MOST_THREADS;
    const long off = offset_of(a);
    if (rank >= emu.size) fail(at, "shared address %08x: the cluster has no block %d", a, rank);
    const block *const b = &emu.blocks[rank % MOST_BLOCKS];
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

template <class F> static void granules_of(uint32_t a, size_t bytes, F f)
{
    std::vector<granule> &g = async.granules[rank_of(a)];
    const size_t off = (size_t)offset_of(a);
    for (size_t i = off / 16; i < (off + bytes + 15) / 16 && i < g.size(); ++i) f(g[i]);
}
/* The bytes of a granule: where they are in their block, and how many. */
static size_t granule_at(int rank, const granule &g)
{
    return (size_t)(&g - async.granules[rank].data()) * 16;
}
static size_t granule_bytes(size_t off) { return std::min((size_t)16, emu.dynamic_bytes - off); }

static void show(uint32_t a, size_t bytes) /* asynchronous reads see what is there */
{
    const int rank = rank_of(a);
    granules_of(a, bytes, [&](granule &g) {
        const size_t off = granule_at(rank, g);
        memcpy(&async.shadow[rank][off], emu.blocks[rank].dynamic + off, granule_bytes(off));
        g.seen = async.stamp;
    });
}
static bool plainly_written(uint32_t a, size_t bytes) /* since, and nobody fenced */
{
    const int rank = rank_of(a);
    bool found = false;
    granules_of(a, bytes, [&](granule &g) {
        const size_t off = granule_at(rank, g);
        found |= g.stamp == 0 && async.fenced[rank] <= g.seen &&
                 memcmp(&async.shadow[rank][off], emu.blocks[rank].dynamic + off,
                        granule_bytes(off)) != 0;
    });
    return found;
}

/* By what is asynchronous. */
static void check_read(uint32_t a, size_t bytes, const place &at)
{
    bool writes = false, unfenced = plainly_written(a, bytes);
    granules_of(a, bytes, [&](granule &g) {
        writes |= g.writes != 0;
        for (int lane = 0; g.stamp && lane < WARP; ++lane)
            if (g.lanes >> lane & 1 &&
                async.threads[(size_t)(g.warp * WARP + lane)].stamp <= g.stamp)
                unfenced = true;
    });
    if (writes)
        fail(at,
             "reads shared memory (at %ld) that an asynchronous copy may still be writing: nobody "
             "waited for it",
             offset_of(a));
    if (!unfenced) return show(a, bytes);
    fail(at,
         "reads, asynchronously, shared memory (at %ld) that was written without fence.proxy.async "
         "after it",
         offset_of(a));
}
static void mark_written(granule &g) /* by this thread */
{
    const unsigned short warp = (unsigned short)(emu.current / WARP);
    if (g.stamp == 0 || g.warp != warp) g.lanes = 0;
    for (int lane = 0; lane < WARP && g.lanes; ++lane) /* those that fenced theirs since */
        if (g.lanes >> lane & 1 && async.threads[(size_t)(warp * WARP + lane)].stamp > g.stamp)
            g.lanes &= ~(1u << lane);
    g.warp = warp;
    g.stamp = async.stamp;
    g.lanes |= 1u << emu.current % WARP;
}
static void check_write(uint32_t a, size_t bytes, const place &at, bool by_thread)
{
    const char *what = nullptr;
    granules_of(a, bytes, [&](granule &g) {
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
        fail(come("shared address", file, line),
             "has an address outside of its block's dynamic memory");
    return (uint32_t)(emu.current / MOST_THREADS) << 24 | (uint32_t)(off + WINDOW);
}
uint32_t kf_emu_mapa(uint32_t address, unsigned rank, const char *file, int line)
{
    const place at = come("mapa", file, line);
    if (rank >= (unsigned)emu.size)
        fail(at, "wants memory of block %u of the cluster, which is smaller", rank);
    return (address & 0xffffffu) | rank << 24;
}

/* ---- who waits goes on when what it waits for is there */

static bool bulk_left(const async_thread &p, int most, bool read)
{
    for (size_t i = 0; i + (size_t)most < p.groups.size(); ++i)
        for (const fly &f : p.groups[i])
            if (!(read ? f->kind != STORE || f->done : f->done)) return true;
    return false;
}
static bool is_there(const async_thread &p, int t)
{
    if (p.wait == FOR_PHASE) return async.bars[p.bar].phase != p.phase;
    if (p.wait == FOR_BULK) return !bulk_left(p, p.amount, p.read);
    if (p.wait == FOR_POOL) return async.pool[t / MOST_THREADS] >= p.amount;
    if (p.wait == FOR_PRODUCT) {
        const warpgroup &g = async.groups[(size_t)(t / 128)];
        return p.product <= g.first || g.products[p.product - 1 - g.first]->done;
    }
    return false; /* FOR_NAMED: the last to come says so */
}
static void wake()
{
    for (int b = 0; b < emu.size; ++b)
        for (int t = b * MOST_THREADS; t < b * MOST_THREADS + emu.count; ++t) {
            async_thread &p = async.threads[(size_t)t];
            if (emu.threads[t].state != AT_ASYNC || !is_there(p, t)) continue;
            emu.threads[t].state = READY;
            if (p.wait != FOR_PHASE) continue;
            p.late = true;
            ++async.bars[p.bar].late;
        }
}
template <class... A> static void wait_for(int what, const char *format, A... a)
{
    self().wait = what;
    snprintf(self().detail, sizeof self().detail, format, a...);
    emu.threads[emu.current].state = AT_ASYNC;
    to_main();
}

#endif
