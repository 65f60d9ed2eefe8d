/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by both backends of the demo: random tensors, the clock, the table. The ops are in
 * demo_ops.h. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUNS 15

typedef struct {
    void *host, *device;
    size_t bytes;
} tensor;

static int failures, slower;

static void must(kf_result_t result)
{
    if (result == KF_SUCCESS) return;
    fprintf(stderr, "demo: %s (%s)\n", kf_get_error_string(result), kf_get_last_error_detail());
    exit(1);
}

/* Returns element i of a host tensor. bf16 is the upper half of a float. */
static double value(const void *host, int is_bf16, int64_t i)
{
    float f;
    uint32_t bits;
    if (!is_bf16) return ((const float *)host)[i];
    bits = (uint32_t)((const uint16_t *)host)[i] << 16;
    memcpy(&f, &bits, 4);
    return f;
}

static void poison(tensor t)
{
    memset(t.host, 0xff, t.bytes); /* NaN in every dtype */
    device_write(t.device, t.host, t.bytes);
}

static void fetch(tensor t) { device_read(t.host, t.device, t.bytes); }

/* Makes a tensor of uniform random numbers in [low, low + width), or of NaN if width is 0. All
 * tensors are aligned to 256 bytes, as a workspace must be. */
static tensor make(int64_t count, int is_bf16, float low, float width)
{
    tensor t = {NULL, NULL, (size_t)count * (is_bf16 ? 2 : 4)};
    t.host = aligned_alloc(256, (t.bytes + 255) / 256 * 256);
    t.device = t.host ? device_tensor(t.host, t.bytes) : NULL;
    if (!t.device) exit((fprintf(stderr, "demo: out of memory\n"), 1));
    if (width == 0) poison(t);
    for (int64_t i = 0; width != 0 && i < count; ++i) {
        static uint64_t state = 0x9E3779B97F4A7C15u;
        uint32_t bits;
        state ^= state << 13, state ^= state >> 7, state ^= state << 17; /* xorshift64 */
        const float f = low + width * (float)(state >> 40) * 0x1p-24f;
        memcpy(&bits, &f, 4);
        if (is_bf16)
            ((uint16_t *)t.host)[i] = (uint16_t)(bits >> 16);
        else
            ((float *)t.host)[i] = f;
    }
    device_write(t.device, t.host, t.bytes);
    return t;
}

static void drop(tensor t)
{
    device_free(t.device);
    free(t.host);
}

static int by_time(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : 1;
}

static double median(double *times)
{
    qsort(times, RUNS, sizeof *times, by_time);
    return times[RUNS / 2];
}

/* Returns the larger error. NaN is the largest, and stays. */
static double worse(double worst, double got, double want)
{
    const double error = fabs(got - want) / fmax(1, fabs(want));
    return error <= worst ? worst : error == error ? error : INFINITY;
}

static void row(const char *op, const char *dtype, double fused, double passes, double error,
                double bound)
{
    const int good = error <= bound;
    failures += !good;
    slower += passes < fused;
    printf("%-20s %-5s %5d x %d %9.3f ms %9.3f ms %7.2fx   %.1e%s\n", op, dtype, ROWS, COLS, fused,
           passes, passes / fused, error, good ? "" : "  ABOVE ITS BOUND");
}

/* The float64 references. */
static double relu(double x) { return x <= 0 ? 0 : x; }
static double gelu(double x) { return 0.5 * x * erfc(-x * sqrt(0.5)); }
static double gelu_slope(double x)
{
    return 0.5 * erfc(-x * sqrt(0.5)) + x * exp(-0.5 * x * x) / sqrt(2 * 3.141592653589793);
}
static double silu(double x) { return x / (1 + exp(-x)); }
static double silu_slope(double x) { return (1 + x / (1 + exp(x))) / (1 + exp(-x)); }

/* x * 1 / (1 - p) or 0. Element i uses 16-bit word i mod 8 of Philox4x32-10 with key `seed` and
 * counter {i / 8, offset}. */
static double dropout(double x, int64_t i, double p, uint64_t seed, uint64_t offset)
{
    const uint64_t group = (uint64_t)i / 8;
    uint32_t c[4] = {(uint32_t)group, (uint32_t)(group >> 32), (uint32_t)offset,
                     (uint32_t)(offset >> 32)};
    uint32_t k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int round = 0; round < 10; ++round, k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u) {
        const uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
                                  (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
        memcpy(c, next, sizeof c);
    }
    return (c[i % 8 / 2] >> (16 * (i % 2)) & 0xffff) < floor(65536 * p + 0.5) ? 0 : x / (1 - p);
}

#define DTYPE f32
#define T float
#define IS_BF16 0
#define BOUND 2e-6
#include "demo_ops.h"
#undef DTYPE
#undef T
#undef IS_BF16
#undef BOUND

#define DTYPE bf16
#define T kf_bf16
#define IS_BF16 1
#define BOUND 0x1p-7 /* 1 ulp */
#include "demo_ops.h"

int main(void)
{
    if (!device_open()) return 77;
    printf("; kf %d.%d.%d; medians of %d runs; errors against float64\n", KF_VERSION_MAJOR,
           KF_VERSION_MINOR, KF_VERSION_PATCH, RUNS);
    printf("%-20s %-5s %12s %12s %12s %8s   %s\n", "op", "dtype", "shape", "fused", "passes",
           "speed-up", "max error");
    demo_f32();
    demo_bf16();
    if (slower)
        puts("Below 1.00x arithmetic, not memory, bounds both forms: a fused gradient computes x + "
             "bias "
             "again,\nwhich the passes read, rounded, from the tensor that their forward saved.");
    if (failures) printf("%d errors are above their bounds\n", failures);
    return failures ? 1 : 0;
}
