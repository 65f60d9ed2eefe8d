/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: ldmatrix and mma.sync, as warp collectives. Each lane passes the address of its
   registers, which lie on its fiber's stack; one lane computes for all. */
#ifndef KF_EMU_MATRICES_H
#define KF_EMU_MATRICES_H

#include "emu_meet.h"

struct matrices {
    unsigned *v;
    const uint4 *row;
    const void *shared;
    int transposed;
};
void kf_emu_matrices_of(unsigned *v, const uint4 *row, const void *shared, int transposed,
                        const char *file, int line)
{
    matrices own = {v, row, shared, transposed};
    warp_collective(
        transposed ? "ldmatrix.trans" : "ldmatrix",
        [](void *const *lanes) {
            for (int i = 0; i < 4; ++i) {
                unsigned banks = 0;
                for (int r = 0; r < 8; ++r)
                    banks |= 1u << (uintptr_t)((const matrices *)lanes[8 * i + r])->shared / 16 % 8;
                kf_emu_conflicts += banks != 0xff;
            }
            for (int lane = 0; lane < WARP; ++lane) {
                const matrices *const m = (const matrices *)lanes[lane];
                for (int i = 0; i < 4; ++i) {
                    unsigned short pair[2];
                    for (int e = 0; e < 2; ++e) {
                        const int row = m->transposed ? lane % 4 * 2 + e : lane / 4,
                                  column = m->transposed ? lane / 4 : lane % 4 * 2 + e;
                        pair[e] = ((const unsigned short *)((const matrices *)lanes[8 * i + row])
                                       ->row)[column];
                    }
                    m->v[i] = pair[0] | (unsigned)pair[1] << 16;
                }
            }
        },
        &own, file, line);
}

struct product {
    float *d;
    const unsigned *a, *b;
    bool bf16;
};
static float to_float(unsigned short bits, bool bf16)
{
    if (bf16) return kf_emu_bits<float>((unsigned)bits << 16);
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float sign = bits >> 15 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexpf(1.0f + (float)fraction / 1024.0f, exponent - 15)
                            : ldexpf((float)fraction, -24));
}
/* Exponent of the smallest normal number of a type, and exponent of a number as it is stored. */
static int min_exponent(int of) { return of == KF_EMU_F16 ? -14 : -126; }
static int stored_exponent(float x, int least)
{
    const int own = ilogbf(x);
    return own < least ? least : own;
}
static bool subnormal(float x, int least) { return x != 0 && fabsf(x) < ldexpf(1.0f, least); }
/* Adds products as a tensor core does: aligns them and the previous sum to the largest exponent,
   and truncates what is below the last bit. A product's exponent is the sum of its factors' stored
   exponents; a subnormal factor has the exponent of the smallest normal number. A subnormal factor
   times a large one therefore costs the other terms precision. */
#define KEPT_BITS 25 /* fraction bits when the largest exponent is 0 */
static float add_aligned(float sum, const float *a, int step_a, const float *b, int step_b,
                         int count, int least)
{
    int most = sum != 0 ? ilogbf(sum) : INT_MIN;
    for (int k = 0; k < count; ++k) {
        const float x = a[k * step_a], y = b[k * step_b];
        /* the caller handles NaN and infinity */
        if (!std::isfinite(x * y) || !std::isfinite(sum)) return NAN;
        if (x != 0 && y != 0)
            most = std::max(most, stored_exponent(x, least) + stored_exponent(y, least));
    }
    if (most == INT_MIN) return sum;
    double total = trunc(ldexp((double)sum, KEPT_BITS - most));
    for (int k = 0; k < count; ++k)
        total += trunc(ldexp((double)a[k * step_a] * (double)b[k * step_b], KEPT_BITS - most));
    const double value = ldexp(total, most - KEPT_BITS);
    const float near = (float)value;
    return fabs((double)near) > fabs(value) ? nextafterf(near, 0.0f) : near;
}
/* Adds `count` products (16, TF32: 8) in groups of four, in the order of wgmma (emu_wgmma.h),
   because a GPU gives the same bits for both. Plain float sums have the same error as aligned ones
   and are faster, except if a factor is subnormal. */
static void add_products(float *sum, const float *a, int step_a, const float *b, int step_b,
                         int count, bool small, int least)
{
    if (small) {
        const float aligned = add_aligned(*sum, a, step_a, b, step_b, count, least);
        if (aligned == aligned) {
            *sum = aligned;
            return;
        }
    }
    for (int k = 0; k < count; k += 4, a += 4 * step_a, b += 4 * step_b)
        *sum += a[0] * b[0] + a[step_a] * b[step_b] +
                (a[2 * step_a] * b[2 * step_b] + a[3 * step_a] * b[3 * step_b]);
}
static bool some_subnormal(const float *x, int step, int count, int least)
{
    bool found = false;
    for (int k = 0; k < count; ++k) found = found || subnormal(x[k * step], least);
    return found;
}
void kf_emu_multiply(float *d, const unsigned *a, const unsigned *b, bool bf16, const char *file,
                     int line)
{
    product own = {d, a, b, bf16};
    warp_collective(
        "mma",
        [](void *const *lanes) {
            float left[16][16], right[8][16];
            for (int lane = 0; lane < WARP; ++lane) {
                const product *const p = (const product *)lanes[lane];
                const int g = lane / 4, t = lane % 4 * 2;
                for (int i = 0; i < 4; ++i)
                    for (int e = 0; e < 2; ++e)
                        left[g + i % 2 * 8][t + e + i / 2 * 8] =
                            to_float((unsigned short)(p->a[i] >> 16 * e), p->bf16);
                for (int i = 0; i < 2; ++i)
                    for (int e = 0; e < 2; ++e)
                        right[g][t + e + i * 8] =
                            to_float((unsigned short)(p->b[i] >> 16 * e), p->bf16);
            }
            const int least =
                min_exponent(((const product *)lanes[0])->bf16 ? KF_EMU_BF16 : KF_EMU_F16);
            bool small[24];
            for (int i = 0; i < 24; ++i)
                small[i] = some_subnormal(i < 16 ? left[i] : right[i - 16], 1, 16, least);
            for (int lane = 0; lane < WARP; ++lane) {
                float *const sums = ((const product *)lanes[lane])->d;
                for (int i = 0; i < 4; ++i) {
                    const int row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
                    add_products(&sums[i], left[row], 1, right[col], 1, 16,
                                 small[row] || small[16 + col], least);
                }
            }
        },
        &own, file, line);
}
/* The lowest 13 bits of a TF32 factor are ignored. */
void kf_emu_multiply_tf32(float *d, const unsigned *a, const unsigned *b, const char *file,
                          int line)
{
    product own = {d, a, b, false};
    warp_collective(
        "mma.tf32",
        [](void *const *lanes) {
            float left[16][8], right[8][8];
            for (int lane = 0; lane < WARP; ++lane) {
                const product *const p = (const product *)lanes[lane];
                for (int i = 0; i < 4; ++i)
                    left[lane / 4 + i % 2 * 8][lane % 4 + i / 2 * 4] =
                        kf_emu_bits<float>(p->a[i] & ~0x1fffu);
                for (int i = 0; i < 2; ++i)
                    right[lane / 4][lane % 4 + i * 4] = kf_emu_bits<float>(p->b[i] & ~0x1fffu);
            }
            const int least = min_exponent(KF_EMU_TF32);
            bool small[24];
            for (int i = 0; i < 24; ++i)
                small[i] = some_subnormal(i < 16 ? left[i] : right[i - 16], 1, 8, least);
            for (int lane = 0; lane < WARP; ++lane) {
                float *const sums = ((const product *)lanes[lane])->d;
                for (int i = 0; i < 4; ++i) {
                    const int row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
                    add_products(&sums[i], left[row], 1, right[col], 1, 8,
                                 small[row] || small[16 + col], least);
                }
            }
        },
        &own, file, line);
}

#endif
