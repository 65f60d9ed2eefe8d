/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/matmul.h under hand-written prologues and epilogues: random products of every type
   and layout against the next wider type's, in tensors that end where their memory ends. Arguments:
   the seed, the number of products. ALLOW_AMX: bf16 by AMX, or by its double. Prints the worst
   error as a share of the bound, and a sum of all results' bits, which must not depend on the
   number of threads. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kf/core/matmul/matmul.h"

enum { F32, F64, F16, BF16 };
typedef struct {
    int type, products, seam_a, seam_b, nobody;
    kf_i64 batch, rows, cols, depth;
    void *data[3], *bias;
    kfi_gemm_operand of[3];
    double *out;
    int *written;
} product;

static uint64_t state;
static kf_i64 pick(kf_i64 from, kf_i64 to) /* splitmix64, Steele et al. 2014 */
{
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return from + (kf_i64)((z ^ (z >> 31)) % (uint64_t)(to - from + 1));
}
static double value(int type, const void *p, kf_i64 i)
{
    if (type == F32) return (double)((const float *)p)[i];
    if (type == F64) return ((const double *)p)[i];
    const uint16_t u = ((const uint16_t *)p)[i];
    return (double)(type == F16 ? kfi_cpu_f16_bits_to_f32(u) : kfi_cpu_bf16_bits_to_f32(u));
}
static void put(int type, void *p, kf_i64 i, double v)
{
    if (type == F32)
        ((float *)p)[i] = (float)v;
    else if (type == F64)
        ((double *)p)[i] = v;
    else
        ((uint16_t *)p)[i] =
            type == F16 ? kfi_cpu_f32_to_f16_bits((float)v) : kfi_cpu_f32_to_bf16_bits((float)v);
}
static double operand(const product *p, int o, kf_i64 batch, kf_i64 line, kf_i64 depth)
{
    const kfi_gemm_operand *const f = &p->of[o];
    const double v = value(p->type, f->data,
                           batch * f->batch_step + line * f->line_step + depth * f->depth_step);
    return (o == 0 ? p->seam_a : p->seam_b) && v < 0 ? 0 : v; /* relu, as the prologue */
}
static void load(const product *p, int o, kf_i64 batch, kf_i64 line0, kf_i64 lines, kf_i64 depth0,
                 kf_i64 depths, void *to)
{
    for (kf_i64 i = 0; i < lines; ++i)
        for (kf_i64 d = 0; d < depths; ++d)
            put(p->type == F64 ? F64 : F32, to, i * depths + d,
                operand(p, o, batch, line0 + i, depth0 + d));
}
static void load_a(const void *seam, kf_i64 batch, kf_i64 line0, kf_i64 lines, kf_i64 depth0,
                   kf_i64 depths, void *to)
{
    load((const product *)seam, 0, batch, line0, lines, depth0, depths, to);
}
static void load_b(const void *seam, kf_i64 batch, kf_i64 line0, kf_i64 lines, kf_i64 depth0,
                   kf_i64 depths, void *to)
{
    load((const product *)seam, 1, batch, line0, lines, depth0, depths, to);
}
static void store(const void *seam, kf_i64 batch, kf_i64 row0, kf_i64 rows, kf_i64 col0,
                  kf_i64 cols, const void *block, const void *second, kf_i64 ld)
{
    const product *const p = (const product *)seam;
    const int real = p->type == F64 ? F64 : F32;
    if (rows < 1 || cols < 1 || row0 + rows > p->rows || col0 + cols > p->cols || ld < cols ||
        row0 % KFI_GEMM_UNIT || rows > KFI_GEMM_UNIT || (second != NULL) != (p->products > 1))
        abort();
    for (kf_i64 i = 0; i < rows; ++i)
        for (kf_i64 j = 0; j < cols; ++j) {
            const kf_i64 at = (batch * p->rows + row0 + i) * p->cols + col0 + j;
            p->out[p->products * at] = value(real, block, i * ld + j);
            if (second) p->out[2 * at + 1] = value(real, second, i * ld + j);
            ++p->written[at];
        }
}

/* A tensor that ends with its last element, and steps of one of the layouts: contiguous along the
 * depth, along the lines, neither. */
static void make(product *p, int o, kf_i64 lines, int spread)
{
    const int size = p->type == F64 ? 8 : p->type == F32 ? 4 : 2;
    const kf_i64 gap = pick(0, 2) ? 0 : pick(1, 33), layout = pick(0, 9);
    kfi_gemm_operand *const f = &p->of[o];
    f->line_step = layout < 5 ? p->depth + gap : layout < 9 ? 1 : 2;
    f->depth_step = layout < 5 ? 1 : layout < 9 ? lines + gap : 2 * lines + gap;
    const kf_i64 last =
        (lines - 1) * f->line_step + (p->depth > 0 ? p->depth - 1 : 0) * f->depth_step;
    f->batch_step = spread && pick(0, 2) ? last + 1 : 0; /* or one for all */
    const kf_i64 count = p->depth > 0 ? last + 1 + (p->batch - 1) * f->batch_step : 0;
    p->data[o] = count ? malloc((size_t)(count * size)) : NULL;
    f->data = p->data[o];
    f->load = NULL;
    for (kf_i64 i = 0; i < count; ++i)
        put(p->type, p->data[o], i,
            (double)pick(-1000, 1000) / 512.0 + (double)pick(-(1 << 30), 1 << 30) * 0x1p-50);
}
static void run(const product *p, kf_i64 batch, const kfi_gemm_operand *of)
{
    static void (*const runs[])(kf_i64, kf_i64, kf_i64, kf_i64, const kfi_gemm_operand *,
                                const kfi_gemm_operand *, const kfi_gemm_operand *, kfi_gemm_store,
                                const void *, const kfi_gemm_result *, void *) = {
        kfi_gemm_run_f32, kfi_gemm_run_f64, kfi_gemm_run_f16, kfi_gemm_run_bf16};
    static size_t (*const bytes[])(kf_i64, kf_i64, kf_i64, int) = {
        kfi_gemm_bytes_f32, kfi_gemm_bytes_f64, kfi_gemm_bytes_f16, kfi_gemm_bytes_bf16};
    const kfi_gemm_result result = {p->out, p->cols * p->products, p->rows * p->cols * p->products,
                                    (int)sizeof *p->out}; /* about there */
    void *const workspace = malloc(bytes[p->type](p->rows, p->cols, p->depth, p->products));
    runs[p->type](batch, p->rows, p->cols, p->depth, &of[0], &of[1],
                  p->products > 1 ? &of[2] : NULL, store, p, &result, workspace);
    free(workspace);
}
/* The largest error, as a share of its bound: so many units in the last place of the sum of the
   terms' sizes. Where all terms have one sign, the sums on the way are larger, and more is rounded.
 */
static double check(const product *p)
{
    const double unit = (p->seam_a && p->seam_b ? 16 : 8) * (p->type == F64 ? 0x1p-53 : 0x1p-24);
    double worst = 0;
    for (kf_i64 i = 0; i < p->batch * p->rows * p->cols * p->products; ++i) {
        const kf_i64 at = i / p->products, o = 1 + i % p->products, col = at % p->cols,
                     row = at / p->cols % p->rows, batch = at / p->cols / p->rows;
        long double sum = 0;
        double near = 0, sizes = 0;
        for (kf_i64 d = 0; d < p->depth; ++d) {
            const double x = operand(p, 0, batch, row, d), y = operand(p, (int)o, batch, col, d);
            if (p->type == F64)
                sum += (long double)x * y;
            else
                near += x * y;
            sizes += x * y < 0 ? -x * y : x * y;
        }
        sum += near;
        const double error = (double)(p->out[i] - sum), bound = sizes * unit;
        const double share = (error < 0 ? -error : error) / (bound > 0 ? bound : unit);
        if (!(share <= worst)) worst = share;
        if (p->written[at] != 1) worst = 1000;
    }
    return worst;
}
static double one(product *p, uint64_t *bits)
{
    const kf_i64 elements = p->batch * p->rows * p->cols, count = elements * p->products;
    make(p, 0, p->rows, 1);
    make(p, 1, p->cols, 1);
    make(p, 2, p->cols, 1);
    p->of[0].load = p->seam_a ? load_a : NULL;
    p->of[1].load = p->seam_b ? load_b : NULL;
    if (p->seam_b) p->products = 1;
    p->out = (double *)malloc((size_t)count * sizeof *p->out);
    p->written = (int *)calloc((size_t)elements, sizeof *p->written);
    memset(p->out, 0xff, (size_t)count * sizeof *p->out);
    run(p, p->batch, p->of);
    double worst = check(p);
    for (kf_i64 i = 0; i < count; ++i) {
        uint64_t u;
        memcpy(&u, &p->out[i], 8);
        *bits = (*bits ^ u) * 0x100000001B3ull;
    }
    if (p->batch > 1 && !p->seam_a && !p->seam_b) { /* a batch alone: the same bits */
        double *const first = p->out;
        p->out = (double *)malloc((size_t)count * sizeof *p->out);
        run(p, 1, p->of);
        if (memcmp(first, p->out, (size_t)(count / p->batch) * sizeof *first) != 0) worst = 2000;
        free(first);
    }
    for (int o = 0; o < 3; ++o) free(p->data[o]);
    free(p->out);
    free(p->written);
    return worst;
}

int main(int argc, char **argv)
{
    static const kf_i64 depths[] = {0, 1, 2, 15, 16, 17, 130, 511, 513, 1030, 2100};
    const int count = argc > 2 ? atoi(argv[2]) : 40;
    uint64_t bits = 0xCBF29CE484222325ull;
    double worst[4] = {0, 0, 0, 0};
#ifdef ALLOW_AMX
    if (kf_cpu_enable_amx() != KF_SUCCESS) return puts(kf_get_last_error_detail()), 2;
#endif
    state = (uint64_t)(argc > 1 ? atoi(argv[1]) : 1);
    for (int i = 0; i < count; ++i) {
        product p;
        memset(&p, 0, sizeof p);
        p.type = i % 4;
        p.products = pick(0, 3) ? 1 : 2;
        p.seam_a = !pick(0, 5);
        p.seam_b = !pick(0, 5);
        p.batch = pick(0, 3) ? 1 : pick(2, 11);
        p.rows = pick(0, 1) ? pick(1, 13) : pick(1, 70);
        p.cols = pick(0, 1) ? pick(1, 40) : pick(1, 150);
        p.depth = pick(0, 2) ? pick(1, 140) : depths[pick(0, 10)];
        if (i % 16 < 4)
            p.batch = 1, p.rows = pick(190, 400), p.cols = pick(120, 300),
            p.depth = pick(1, 40); /* several jobs */
        if (i % 64 < 4) p.rows = pick(1024, 1100), p.cols = pick(1, 40);
        if (i % 64 > 59) p.rows = pick(1, 30), p.cols = pick(1024, 1200);
        const double w = one(&p, &bits);
        if (!(w <= 1))
            printf("wrong: type %d, batch %lld, %lld x %lld x %lld, products %d, seams %d %d, "
                   "steps %lld %lld, %lld %lld: %g\n",
                   p.type, (long long)p.batch, (long long)p.rows, (long long)p.cols,
                   (long long)p.depth, p.products, p.seam_a, p.seam_b, (long long)p.of[0].line_step,
                   (long long)p.of[0].depth_step, (long long)p.of[1].line_step,
                   (long long)p.of[1].depth_step, w);
        if (!(w <= worst[p.type])) worst[p.type] = w;
    }
    const kfi_cpu_gemm_lanes v = kfi_cpu_gemm_lanes_f32();
    printf("%d products, vectors of %d bytes, worst %.2f %.2f %.2f %.2f, bits %016llx\n", count,
           v.lanes * 4, worst[0], worst[1], worst[2], worst[3], (unsigned long long)bits);
    for (int t = 0; t < 4; ++t)
        if (!(worst[t] <= 1)) return 1;
    return 0;
}
