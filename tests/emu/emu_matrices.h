/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: sm_80's matrices. A lane's registers are on its stack, where those of the others can be reached. */
#ifndef KF_EMU_MATRICES_H
#define KF_EMU_MATRICES_H

#include "emu_meet.h"

struct matrices {
    unsigned *v;
    const uint4 *row;
    const void *shared;
    int transposed;
};
void kf_emu_matrices_of(unsigned *v, const uint4 *row, const void *shared, int transposed, const char *file, int line)
{
    matrices own = {v, row, shared, transposed};
    meet(
        transposed ? "ldmatrix.trans" : "ldmatrix",
        [](void *const *lanes) {
            for (int i = 0; i < 4; ++i) {
                unsigned banks = 0;
                for (int r = 0; r < 8; ++r) banks |= 1u << (uintptr_t)((const matrices *)lanes[8 * i + r])->shared / 16 % 8;
                kf_emu_conflicts += banks != 0xff;
            }
            for (int lane = 0; lane < WARP; ++lane) {
                const matrices *const m = (const matrices *)lanes[lane];
                for (int i = 0; i < 4; ++i) {
                    unsigned short pair[2];
                    for (int e = 0; e < 2; ++e) {
                        const int row = m->transposed ? lane % 4 * 2 + e : lane / 4, column = m->transposed ? lane / 4 : lane % 4 * 2 + e;
                        pair[e] = ((const unsigned short *)((const matrices *)lanes[8 * i + row])->row)[column];
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
static float number_of(unsigned short bits, bool bf16)
{
    if (bf16) return kf_emu_bits<float>((unsigned)bits << 16);
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float sign = bits >> 15 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexpf(1.0f + (float)fraction / 1024.0f, exponent - 15) : ldexpf((float)fraction, -24));
}
/* 16 of the depth: in fours, as products of a warpgroup are added up (emu_wgmma.h), since a GPU has the same bits of both. */
static void add_products(float *sum, const float *a, const float *b)
{
    for (int k = 0; k < 16; k += 4) *sum += a[k] * b[k] + a[k + 1] * b[k + 1] + (a[k + 2] * b[k + 2] + a[k + 3] * b[k + 3]);
}
void kf_emu_multiply(float *d, const unsigned *a, const unsigned *b, bool bf16, const char *file, int line)
{
    product own = {d, a, b, bf16};
    meet(
        "mma",
        [](void *const *lanes) {
            float left[16][16], right[8][16];
            for (int lane = 0; lane < WARP; ++lane) {
                const product *const p = (const product *)lanes[lane];
                const int g = lane / 4, t = lane % 4 * 2;
                for (int i = 0; i < 4; ++i)
                    for (int e = 0; e < 2; ++e)
                        left[g + i % 2 * 8][t + e + i / 2 * 8] = number_of((unsigned short)(p->a[i] >> 16 * e), p->bf16);
                for (int i = 0; i < 2; ++i)
                    for (int e = 0; e < 2; ++e) right[g][t + e + i * 8] = number_of((unsigned short)(p->b[i] >> 16 * e), p->bf16);
            }
            for (int lane = 0; lane < WARP; ++lane) {
                float *const sums = ((const product *)lanes[lane])->d;
                for (int i = 0; i < 4; ++i)
                    add_products(&sums[i], left[lane / 4 + i / 2 * 8], right[lane % 4 * 2 + i % 2]);
            }
        },
        &own, file, line);
}

#endif
