/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: Hopper instructions of several threads: stmatrix, st.shared::cluster, named
   barriers (bar.sync, bar.arrive) and setmaxnreg. */
#ifndef KF_EMU_GROUPS_H
#define KF_EMU_GROUPS_H

#include "emu_wgmma.h"

struct matrices_out {
    uint32_t address;
    const unsigned *v;
    int transposed;
};
void kf_emu_stmatrix(uint32_t address, const unsigned *v, bool transposed, const char *file,
                     int line)
{
    const call_site at = begin_instruction("stmatrix", file, line);
    matrices_out own = {address, v, transposed};
    bytes_at(address, 16, at, true);
    if (address % 16) fail(at, "a row of a matrix at %08x, no multiple of 16", address);
    check_write(address, 16, at, true);
    warp_collective(
        "stmatrix",
        [](void *const *lanes) {
            for (int i = 0; i < 4; ++i) {
                unsigned banks = 0;
                for (int r = 0; r < 8; ++r) {
                    const uint32_t to = ((const matrices_out *)lanes[8 * i + r])->address;
                    char *const row = emu.blocks[rank_of(to)].dynamic + offset_of(to);
                    const int transposed = ((const matrices_out *)lanes[0])->transposed;
                    banks |= 1u << to / 16 % 8;
                    /* Element (r, c) belongs to lane 4 r + c / 2 of the matrix; transposed to lane
                       4 c + r / 2. */
                    for (int c = 0; c < 8; ++c) {
                        const matrices_out *const m =
                            (const matrices_out *)lanes[transposed ? 4 * c + r / 2 : 4 * r + c / 2];
                        memcpy(row + 2 * c,
                               (const char *)&m->v[i] + 2 * (transposed ? r % 2 : c % 2), 2);
                    }
                    for_each_cell(to, 16, [](shadow_cell &g) { g.lanes = ~0u; });
                }
                kf_emu_conflicts += banks != 0xff;
            }
        },
        &own, file, line);
}

void kf_emu_store(uint32_t address, const void *v, int bytes, const char *file, int line)
{
    const call_site at = begin_instruction("st.shared::cluster", file, line);
    char *const to = bytes_at(address, (size_t)bytes, at, false);
    if (address % (unsigned)bytes) fail(at, "stores %d bytes at %08x, no multiple", bytes, address);
    check_write(address, (size_t)bytes, at, true);
    memcpy(to, v, (size_t)bytes);
}

void kf_emu_named(int id, int count, bool waits, const char *file, int line)
{
    const call_site at = begin_instruction(waits ? "bar.sync" : "bar.arrive", file, line);
    if (id < 1 || id > 15 || count < 32 || count % 32 || count > emu.count)
        fail(at, "barrier %d of %d threads", id, count);
    named_barrier &b = async.barriers[emu.current / MAX_THREADS][id];
    if (!b.who.empty() && b.expected != count)
        fail(at, "barrier %d of %d threads, others say %d", id, count, b.expected);
    if (std::find(b.who.begin(), b.who.end(), emu.current) != b.who.end())
        fail(at, "comes to barrier %d a second time before the others have come", id);
    b.expected = count;
    b.who.push_back(emu.current);
    if ((int)b.who.size() < count) {
        if (waits) wait_for(FOR_NAMED, "%d, %d threads", id, count);
        return;
    }
    for (int t : b.who) {
        const async_thread &p = async.threads[(size_t)t];
        if (emu.threads[t].state == AT_ASYNC && p.wait == FOR_NAMED && atoi(p.detail) == id)
            emu.threads[t].state = READY;
    }
    b.who.clear();
}

void kf_emu_registers(int count, bool more, const char *file, int line)
{
    const call_site at = begin_instruction("setmaxnreg", file, line);
    async_thread &p = self();
    if (count < 24 || count > 256 || count % 8) fail(at, "setmaxnreg of %d", count);
    if (more ? count < p.registers : count > p.registers)
        fail(at, "setmaxnreg.%s to %d of a thread that has %d", more ? "inc" : "dec", count,
             p.registers);
    p.amount = count - p.registers;
    long &pool = async.pool[emu.current / MAX_THREADS];
    while (p.amount > pool) wait_for(FOR_POOL, "%d more, %ld are free", p.amount, pool);
    pool -= p.amount;
    p.registers = count;
    if (!more) wake();
}

#endif
