/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: wgmma.

   Each thread's call is recorded. The product is in flight when the 128th thread of the warpgroup
   has issued it. It reads A and B by their descriptors, and is computed at its completion, when
   their bytes must be unchanged. wgmma owns the accumulators until wgmma.wait_group: they hold a
   NaN pattern, and a thread that overwrites it is reported. A in registers must not change
   either. */
#ifndef KF_EMU_WGMMA_H
#define KF_EMU_WGMMA_H

#include "emu_bulk.h"
#include "emu_matrices.h"

/* Shared address of element (row, k) of an operand (PTX ISA, "Shared Memory Matrix Layout"). major:
   0 K-major, 1 MN-major. Elements have 2 bytes; a TF32 number, always K-major, is two of them. */
static uint32_t operand_at(uint64_t desc, int major, int row, int k, uint32_t rank)
{
    const uint32_t base = (uint32_t)(desc & 0x3fff) << 4,
                   lead = (uint32_t)(desc >> 16 & 0x3fff) << 4,
                   step = (uint32_t)(desc >> 32 & 0x3fff) << 4;
    const int layout = (int)(desc >> 62),
              mode = layout == 0 ? 0 : 4 - layout; /* 1: 32 bytes, 2: 64, 3: 128 */
    const uint32_t row_bytes = 16u << mode;
    uint32_t off;
    if (major == 0 && mode)
        off = (uint32_t)(row / 8) * step + (uint32_t)(row % 8) * row_bytes + (uint32_t)k * 2;
    else if (major == 0)
        off = (uint32_t)(row / 8) * step + (uint32_t)(row % 8) * 16 + (uint32_t)(k / 8) * lead +
              (uint32_t)(k % 8) * 2;
    else if (mode)
        off = (uint32_t)(row / (8 << mode)) * lead + (uint32_t)(row % (8 << mode)) * 2 +
              (uint32_t)(k / 8) * step + (uint32_t)(k % 8) * row_bytes;
    else
        off = (uint32_t)(row / 8) * step + (uint32_t)(row % 8) * 2 + (uint32_t)(k / 8) * lead +
              (uint32_t)(k % 8) * 16;
    return rank << 24 | swizzled(base + off, mode);
}
template <class F>
/* Calls call(is B, row, k, shared address) for each element. */
static void operands(const async_op &f, F call)
{
    const uint32_t rank = (uint32_t)(f.thread / MAX_THREADS);
    for (int r = 0; !f.registers && r < 64; ++r)
        for (int k = 0; k < 16; ++k) call(false, r, k, operand_at(f.da, f.ta, r, k, rank));
    for (int r = 0; r < f.n; ++r)
        for (int k = 0; k < 16; ++k) call(true, r, k, operand_at(f.db, f.tb, r, k, rank));
}
template <class F> static void for_each_operand_cell(const async_op &f, F call)
{
    std::vector<uint32_t> all;
    operands(f, [&](bool, int, int k, uint32_t a) {
        if (k % 8 == 0 || f.ta || f.tb) all.push_back(a & ~15u);
    });
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    for (uint32_t a : all) call(a);
}

/* Row and column of accumulator i of thread t. */
static int row_of(int t, int i) { return t / 32 * 16 + t % 32 / 4 + 8 * (i >> 1 & 1); }
static int col_of(int t, int i) { return 8 * (i >> 2) + 2 * (t % 4) + (i & 1); }
static size_t sum_at(const accumulators &c, int t, int i)
{
    return (size_t)(row_of(t, i) * c.n + col_of(t, i));
}

void kf_emu_wgmma_fence(const char *file, int line)
{
    begin_instruction("wgmma.fence", file, line);
    self().fenced = true;
}

/* ---- issue */

static void new_accumulators(const async_op_ptr &f, warpgroup &g)
{
    f->sum = std::make_shared<accumulators>();
    f->sum->n = f->n;
    f->sum->unreturned = 128;
    memset(f->sum->d, 0, sizeof f->sum->d);
    f->sum->sum.assign((size_t)(64 * f->n), 0.0f);
    g.chains.push_back(f->sum);
}
/* Begins a product, at the call of the warpgroup's first thread. */
static void begin_product(const async_op_ptr &f, warpgroup &g, const float *d)
{
    const call_site &at = f->at;
    f->group = emu.current / 128;
    for (const auto &c : g.chains)
        if (c->d[emu.current % 128] == d && c->n == f->n) f->sum = c;
    if (!f->sum) new_accumulators(f, g);
    f->sum->last = g.first + g.products.size();
    if (f->da >> 49 & 7 || f->db >> 49 & 7)
        fail(at, "a descriptor with a base offset: not emulated");
    for_each_operand_cell(*f, [&](uint32_t x) {
        bytes_at(x, 16, at, true);
        check_read(x, 16, at);
        for_each_cell(x, 16, [](shadow_cell &y) { ++y.reads; });
    });
    operands(*f, [&](bool, int, int, uint32_t x) {
        const char *const q = bytes_at(x, 2, at, true);
        f->before.insert(f->before.end(), q, q + 2);
    });
    g.products.push_back(f);
}
/* Hands a thread's accumulators over to wgmma. */
static void give_accumulators(const async_op &f, float *d, int t, const call_site &at)
{
    accumulators &c = *f.sum;
    if (c.d[t] && c.d[t] != d) fail(at, "the threads of a warpgroup chain different accumulators");
    for (int i = 0; c.d[t] && i < f.n / 2; ++i)
        if (kf_emu_bits<unsigned>(d[i]) != POISON)
            fail(at, "accumulators were written while a wgmma that has them was not waited for");
    if (c.d[t]) return;
    c.d[t] = d;
    for (int i = 0; i < f.n / 2; ++i) {
        if (f.add) c.sum[sum_at(c, t, i)] = d[i];
        d[i] = kf_emu_bits<float>(POISON);
    }
}
void kf_emu_wgmma(int n, int of, float *d, const unsigned *a, uint64_t da, uint64_t db, int ta,
                  int tb, int add, const char *file, int line)
{
    const call_site at = begin_instruction("wgmma.mma_async", file, line);
    async_thread &p = self();
    const int t = emu.current % 128;
    warpgroup &g = async.groups[(size_t)(emu.current / 128)];
    if (!p.fenced) fail(at, "wgmma without wgmma.fence since its registers may have been used");
    const size_t number = p.products++;
    if (number - g.first == g.products.size()) {
        const async_op_ptr f = new_op(PRODUCT, 0, 0, at);
        f->n = n;
        f->of = of;
        f->registers = a != nullptr;
        f->da = da;
        f->db = db;
        f->ta = ta;
        f->tb = tb;
        f->add = add != 0;
        begin_product(f, g, d);
    }
    const async_op_ptr f = g.products[number - g.first];
    if (f->n != n || f->of != of || f->registers != (a != nullptr) || (!a && f->da != da) ||
        f->db != db || f->ta != ta || f->tb != tb || f->add != (add != 0))
        fail(at, "the threads of a warpgroup give different wgmma, or operands of it");
    give_accumulators(*f, d, t, at);
    if (a) {
        f->a_at[t] = a;
        memcpy(f->a[t], a, sizeof f->a[t]);
    }
    if (++f->arrived < 128) return;
    f->due = g.due = std::max(g.due + 1, random_due_time());
    async.in_flight.push_back(f);
}
void kf_emu_wgmma_commit(const char *file, int line)
{
    begin_instruction("wgmma.commit_group", file, line);
    self().ends.push_back(self().products);
}

/* ---- product */

struct factors {
    float a[64][16], b[16][256];
};
/* Rounds to nearest, ties to even. */
unsigned kf_emu_tf32(float x)
{
    const unsigned bits = kf_emu_bits<unsigned>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bits | 0x400000u;
    return (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
}
/* Stores one half of a TF32 number, whose lowest 13 bits are ignored. */
static void put_half(float *number, unsigned short v, int upper)
{
    const unsigned bits = kf_emu_bits<unsigned>(*number);
    *number = kf_emu_bits<float>(upper ? (bits & 0xffffu) | (unsigned)v << 16 : v & 0xe000u);
}
/* Reads A and B; returns whether their bytes are unchanged since the issue. */
static bool read_operands(const async_op &f, factors *x)
{
    size_t i = 0;
    bool same = true;
    operands(f, [&](bool of_b, int r, int k, uint32_t at) {
        unsigned short v, was;
        memcpy(&v, emu.blocks[rank_of(at)].dynamic + offset_of(at), 2);
        memcpy(&was, &f.before[i], 2);
        i += 2;
        same = same && v == was;
        if (f.of == KF_EMU_TF32)
            put_half(of_b ? &x->b[k / 2][r] : &x->a[r][k / 2], v, k % 2);
        else
            (of_b ? x->b[k][r] : x->a[r][k]) = to_float(v, f.of == KF_EMU_BF16);
    });
    for (int t = 0; f.registers && f.of == KF_EMU_TF32 && t < 128; ++t)
        for (int j = 0; j < 4; ++j)
            x->a[t / 32 * 16 + t % 32 / 4 + 8 * (j & 1)][t % 4 + 4 * (j >> 1)] =
                kf_emu_bits<float>(f.a[t][j] & ~0x1fffu);
    for (int t = 0; f.registers && f.of != KF_EMU_TF32 && t < 128; ++t)
        for (int j = 0; j < 4; ++j)
            for (int h = 0; h < 2; ++h)
                x->a[t / 32 * 16 + t % 32 / 4 + 8 * (j & 1)][2 * (t % 4) + h + 8 * (j >> 1)] =
                    to_float((unsigned short)(f.a[t][j] >> 16 * h), f.of == KF_EMU_BF16);
    return same;
}
static factors product_factors;
static void multiply(const async_op &f)
{
    const factors &x = product_factors;
    if (!read_operands(f, &product_factors))
        return fail(f.at, "shared memory that a wgmma reads changed before its end");
    accumulators &c = *f.sum;
    if (!f.add) std::fill(c.sum.begin(), c.sum.end(), 0.0f);
    const int depth = f.of == KF_EMU_TF32 ? 8 : 16, least = min_exponent(f.of);
    bool small[256], some = false;
    for (int j = 0; j < f.n; ++j) some |= small[j] = some_subnormal(&x.b[0][j], 256, depth, least);
    for (int m = 0; m < 64; ++m) {
        float *const to = &c.sum[(size_t)(m * f.n)];
        const bool own = some_subnormal(x.a[m], 1, depth, least);
        if (own || some) {
            for (int j = 0; j < f.n; ++j)
                add_products(&to[j], x.a[m], 1, &x.b[0][j], 256, depth, own || small[j], least);
            continue;
        }
        for (int k = 0; k < depth; k += 4)
            for (int j = 0; j < f.n; ++j)
                to[j] += x.a[m][k] * x.b[k][j] + x.a[m][k + 1] * x.b[k + 1][j] +
                         (x.a[m][k + 2] * x.b[k + 2][j] + x.a[m][k + 3] * x.b[k + 3][j]);
    }
}

/* ---- wait */

static void return_accumulators(warpgroup &g, size_t end, int t, const call_site &at)
{
    for (size_t i = 0; i < g.chains.size(); ++i) {
        accumulators &c = *g.chains[i];
        if (!c.d[t] || c.last >= end) continue;
        for (int j = 0; j < c.n / 2; ++j) {
            if (kf_emu_bits<unsigned>(c.d[t][j]) != POISON)
                fail(at, "accumulators were written before the wait for their wgmma");
            c.d[t][j] = c.sum[sum_at(c, t, j)];
        }
        c.d[t] = nullptr;
        if (--c.unreturned == 0) g.chains.erase(g.chains.begin() + (long)i--);
    }
}
void kf_emu_wgmma_wait(int most, const char *file, int line)
{
    const call_site at = begin_instruction("wgmma.wait_group", file, line);
    async_thread &p = self();
    warpgroup &g = async.groups[(size_t)(emu.current / 128)];
    const int t = emu.current % 128, first = emu.current / 128 * 128;
    const size_t end = p.ends.size() > (size_t)most ? p.ends[p.ends.size() - 1 - (size_t)most] : 0;
    p.product = end;
    if (end > g.first && !g.products[end - 1 - g.first]->done)
        wait_for(FOR_PRODUCT, "%d, product %d", most, (int)end);
    for (size_t i = std::max(p.retired, g.first); i < end; ++i) {
        async_op &f = *g.products[i - g.first];
        if (f.registers && memcmp(f.a_at[t], f.a[t], sizeof f.a[t]))
            fail(f.at, "registers that a wgmma reads changed before a wait for it");
        if (!f.retired)
            for_each_operand_cell(
                f, [](uint32_t x) { for_each_cell(x, 16, [](shadow_cell &y) { --y.reads; }); });
        f.retired = true;
    }
    if (end > p.retired) {
        p.retired = end;
        p.fenced = false;
    }
    return_accumulators(g, end, t, at);
    size_t all = ~(size_t)0; /* products that all threads have waited for; these are dropped */
    for (int i = 0; i < 128; ++i) all = std::min(all, async.threads[(size_t)(first + i)].retired);
    for (; g.first < all; ++g.first) g.products.pop_front();
}

#endif
