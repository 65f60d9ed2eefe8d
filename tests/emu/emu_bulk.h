/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: TMA and bulk copies.

   The destination of a load holds ones (NaN) until the copy completes. A tensor map holds base,
   sizes, strides, box and swizzle; kf_emu_encode() accepts only what cuTensorMapEncodeTiled accepts
   and this file emulates. */
#ifndef KF_EMU_BULK_H
#define KF_EMU_BULK_H

#include "emu_mbarrier.h"

extern "C" int kf_emu_encode(void *to, int type, unsigned rank, void *base, const uint64_t *dim,
                             const uint64_t *stride, const unsigned *box, const unsigned *step,
                             int interleave, int swizzle, int, int fill)
{
    /* Bytes of an element, indexed by CUtensorMapDataType. */
    const int sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    tensor_map m = {};
    static_assert(sizeof m == 128, "a tensor map");
    if (rank < 1 || rank > 5 || (uintptr_t)base % 16 || interleave || fill || type < 0 ||
        type > 12 || (uintptr_t)to % 64)
        return 1;
    m.magic = MAP_MAGIC;
    m.base = (char *)base;
    m.rank = (unsigned char)rank;
    m.element = (unsigned char)sizes[type];
    m.swizzle = (unsigned char)swizzle;
    m.rounds = type == 11 || type == 12; /* types TFLOAT32 */
    for (unsigned i = 0; i < rank; ++i) {
        if (dim[i] == 0 || dim[i] > 1ull << 32 || box[i] == 0 || box[i] > 256 || step[i] != 1)
            return 1;
        if (i && (stride[i - 1] % 16 || stride[i - 1] >> 40)) return 1;
        m.dim[i] = (uint32_t)dim[i];
        m.box[i] = (unsigned short)box[i];
        if (i) m.stride[i - 1] = stride[i - 1];
    }
    const unsigned inner = box[0] * m.element;
    if (inner % 16 || (swizzle && inner > 16u << swizzle)) return 1;
    memcpy(to, &m, sizeof m);
    return 0;
}

/* Applies the swizzle of 16-byte chunks to an address. */
static uint32_t swizzled(uint32_t a, int mode) { return a ^ ((a >> 7 & ((1u << mode) - 1)) << 4); }

/* Calls f(shared address, global address or nullptr, bytes) for chunks of up to 16 bytes. A store
   clips rows of the tensor at 16 bytes, like an H200: it writes the padding after an odd end. */
template <class F> static void chunks(const async_op &f, F call)
{
    if (!f.tensor) {
        for (int i = 0; i < f.bytes; i += 16) call(f.smem + (uint32_t)i, f.global + i, 16);
        return;
    }
    const tensor_map &m = f.map;
    const int e = m.element, inner = m.box[0] * e;
    for (int lin = 0; lin < f.bytes; lin += 16) {
        int row = lin / inner;
        long offset = 0;
        bool in = true;
        for (int d = 1; d < m.rank; ++d) {
            const long i = f.c[d] + row % m.box[d];
            row /= m.box[d];
            in = in && i >= 0 && i < (long)m.dim[d];
            offset += i * (long)m.stride[d - 1];
        }
        const long x = f.c[0] + lin % inner / e;
        const uint32_t s = swizzled(f.smem + (uint32_t)lin, m.swizzle);
        const long whole = f.kind == STORE ? 1 : 16 / e;
        if (in && x >= 0 && x + whole <= (long)m.dim[0]) {
            call(s, m.base + offset + x * e, 16);
            continue;
        }
        for (int i = 0; i < 16 / e; ++i)
            call(s + (uint32_t)(i * e),
                 in && x + i >= 0 && x + i < (long)m.dim[0] ? m.base + offset + (x + i) * e
                                                            : nullptr,
                 e);
    }
}
static void check_global(const void *p, int bytes, const call_site &at)
{
#if defined(KF_EMU_ASAN)
    if (p && __asan_region_is_poisoned(const_cast<void *>(p), (size_t)bytes))
        fail(at, "a copy touches global memory that is nobody's");
#else
    (void)p, (void)bytes, (void)at;
#endif
}

static async_op_ptr new_op(int kind, uint32_t smem, int bytes, const call_site &at)
{
    async_op_ptr f = std::make_shared<async_op>();
    f->kind = kind;
    f->smem = smem;
    f->bytes = bytes;
    f->at = at;
    f->thread = emu.current;
    f->due = random_due_time();
    return f;
}
static void set_tensor(async_op *f, const void *map, const int *c, int rank)
{
    memcpy(&f->map, map, sizeof f->map);
    const tensor_map &m = f->map;
    if (m.magic != MAP_MAGIC || m.rank != rank) fail(f->at, "no tensor map of %d dimensions", rank);
    if ((uintptr_t)map % 64) fail(f->at, "a tensor map at an address that is no multiple of 64");
    if (c[0] * m.element % 16)
        fail(f->at,
             "a box from coordinate %d on, no multiple of 16 bytes: a GPU takes that for an "
             "illegal instruction",
             c[0]);
    f->tensor = true;
    f->bytes = m.element;
    for (int i = 0; i < rank; ++i) {
        f->c[i] = c[i];
        f->bytes *= m.box[i];
    }
    if (f->smem % (m.swizzle ? 128 : 16))
        fail(f->at, "shared address %08x is not aligned for this tensor map", f->smem);
}

/* ---- loads */

static void send_load(const async_op_ptr &f)
{
    bytes_at(f->bar, 8, f->at, false);
    expect_bytes(f->bar, f->bytes, f->at);
    char *const to = bytes_at(f->smem, (size_t)f->bytes, f->at, false);
    check_write(f->smem, (size_t)f->bytes, f->at, false);
    memset(to, 0xff, (size_t)f->bytes);
    for_each_cell(f->smem, (size_t)f->bytes, [](shadow_cell &g) {
        ++g.writes;
        g.epoch = 0;
    });
    async.in_flight.push_back(f);
}
void kf_emu_tma_load(uint32_t to, const void *map, uint32_t bar, const int *c, int rank,
                     unsigned blocks, const char *file, int line)
{
    const call_site at = begin_instruction("cp.async.bulk.tensor load", file, line);
    const unsigned own = 1u << emu.current / MAX_THREADS;
    for (int b = 0; b < MAX_CLUSTER; ++b) {
        if (!((blocks ? blocks : own) >> b & 1)) continue;
        const async_op_ptr f =
            new_op(LOAD, blocks ? (to & 0xffffffu) | (uint32_t)b << 24 : to, 0, at);
        f->bar = blocks ? (bar & 0xffffffu) | (uint32_t)b << 24 : bar;
        set_tensor(f.get(), map, c, rank);
        send_load(f);
    }
}
void kf_emu_bulk_load(uint32_t to, const void *from, int bytes, uint32_t bar, const char *file,
                      int line)
{
    const call_site at = begin_instruction("cp.async.bulk load", file, line);
    if (bytes % 16 || to % 16 || (uintptr_t)from % 16)
        fail(at, "a bulk copy of %d bytes, or from or to an address, that is no multiple of 16",
             bytes);
    const async_op_ptr f = new_op(LOAD, to, bytes, at);
    f->bar = bar;
    f->global = (char *)const_cast<void *>(from);
    send_load(f);
}

/* ---- stores */

static void keep_source(async_op *f)
{
    f->before.clear();
    chunks(*f, [&](uint32_t s, char *, int n) {
        const char *const p = bytes_at(s, (size_t)n, f->at, true);
        f->before.insert(f->before.end(), p, p + n);
    });
}
static void send_store(const async_op_ptr &f)
{
    bytes_at(f->smem, (size_t)f->bytes, f->at, true);
    check_read(f->smem, (size_t)f->bytes, f->at);
    for_each_cell(f->smem, (size_t)f->bytes, [](shadow_cell &g) { ++g.reads; });
    keep_source(f.get());
    self().open.push_back(f);
    async.in_flight.push_back(f);
}
void kf_emu_tma_store(uint32_t from, const void *map, const int *c, int rank, const char *file,
                      int line)
{
    const call_site at = begin_instruction("cp.async.bulk.tensor store", file, line);
    for (int i = 0; i < rank; ++i)
        if (c[i] < 0)
            fail(at,
                 "stores a box from coordinate %d on: a GPU takes that for an illegal instruction",
                 c[i]);
    const async_op_ptr f = new_op(STORE, from, 0, at);
    set_tensor(f.get(), map, c, rank);
    send_store(f);
}
static void send_bulk(void *to, uint32_t from, int bytes, bool adds, const call_site &at)
{
    if (bytes % 16 || from % 16 || (uintptr_t)to % 16)
        fail(at, "a bulk copy of %d bytes, or from or to an address, that is no multiple of 16",
             bytes);
    const async_op_ptr f = new_op(STORE, from, bytes, at);
    f->global = (char *)to;
    f->adds = adds;
    send_store(f);
}
void kf_emu_bulk_store(void *to, uint32_t from, int bytes, const char *file, int line)
{
    send_bulk(to, from, bytes, false, begin_instruction("cp.async.bulk store", file, line));
}
void kf_emu_bulk_add(void *to, uint32_t from, int bytes, const char *file, int line)
{
    send_bulk(to, from, bytes, true, begin_instruction("cp.reduce.async.bulk", file, line));
}

/* ---- tickets. A store that has not completed at kf_emu_ticket_add would not be visible. */

void kf_emu_ticket_add(unsigned *ticket, const char *file, int line)
{
    const call_site at = begin_instruction("red.release", file, line);
    for (const async_op_ptr &f : async.in_flight)
        if (f->thread == emu.current && (f->kind == STORE || f->kind == STORED) && !f->done)
            fail(at, "passes on a bulk store that is not in memory: no wait_group");
    ++*ticket;
    wake();
}
void kf_emu_ticket_wait(const unsigned *ticket, unsigned value, const char *file, int line)
{
    begin_instruction("ld.acquire", file, line);
    self().ticket = ticket;
    self().amount = (int)value;
    if (*ticket != value)
        wait_for(FOR_TICKET, "%u of ticket %p, which is %u", value, (const void *)ticket, *ticket);
}

void kf_emu_bulk_commit(const char *file, int line)
{
    begin_instruction("cp.async.bulk.commit_group", file, line);
    self().groups.emplace_back();
    self().groups.back().swap(self().open);
}
void kf_emu_bulk_wait(int most, bool read, const char *file, int line)
{
    begin_instruction(read ? "cp.async.bulk.wait_group.read" : "cp.async.bulk.wait_group", file,
                      line);
    async_thread &p = self();
    p.amount = most;
    p.read = read;
    if (bulk_pending(p, most, read))
        wait_for(FOR_BULK, "%d of %d groups", most, (int)p.groups.size());
    for (size_t i = 0; i + (size_t)most < p.groups.size(); ++i)
        for (const async_op_ptr &f : p.groups[i]) {
            if (!f->retired)
                for_each_cell(f->smem, (size_t)f->bytes, [](shadow_cell &g) { --g.reads; });
            f->retired = true;
        }
    while (p.groups.size() > (size_t)most) { /* drops completed groups */
        bool done = true;
        for (const async_op_ptr &f : p.groups.front()) done = done && f->done;
        if (!done) break;
        p.groups.pop_front();
    }
}

#endif
