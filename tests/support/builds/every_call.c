/* SPDX-License-Identifier: Apache-2.0 */
/* Calls every function of the program on odd sizes, each tensor in heap memory of exactly its own
   size: what valgrind and the sanitizers are to look at.

       every_call             small tensors, one after the other
       every_call chunks      tensors of several chunks, which KF_PARALLEL_FOR gives to threads
       every_call callers     small ones, from four threads at once, whose results must agree
       every_call "small stack" BYTES   on a thread whose stack is as large, beside what any thread
   needs */
#include "every_call.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t
    small_1[][KFT_SIZES] = {{1}, {7}, {255}, {257}, {1021}},
    small_2[][KFT_SIZES] = {{1, 1}, {3, 5}, {5, 129}, {2, 2311}},
    small_3[][KFT_SIZES] = {{1, 1, 1}, {2, 3, 5}, {3, 33, 1}, {2, 5, 49}, {1, 3, 259}},
    small_4[][KFT_SIZES] = {{1, 1, 1, 1}, {2, 3, 2, 5}, {1, 2, 3, 129}, {2, 1, 1, 2311}},
    large_1[][KFT_SIZES] = {{50021}}, large_2[][KFT_SIZES] = {{2403, 61}, {61, 2311}},
    large_3[][KFT_SIZES] = {{67, 32, 66}, {2403, 61, 1}}, large_4[][KFT_SIZES] = {{9, 89, 3, 61}},
    small_5[][KFT_SIZES] = {{1, 1, 1, 1, 1},
                            {2, 3, 2, 4, 5},
                            {2, 1, 3, 15, 49},
                            {1, 9, 2, 20, 1},
                            {1, 2, 1, 2, 131}},
    large_5[][KFT_SIZES] = {{9, 1, 8, 88, 61}, {3, 89, 8, 184, 1}};
static const float special[] = {0.0f, -0.0f, 3e38f, -3e38f, 1e-40f, INFINITY, -INFINITY, NAN};
static const unsigned char element[] = {4, 2, 2, 8, 4, 8, 1};

static uint64_t next(uint64_t *state) /* a small generator: no test depends on its quality */
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void fill(const kft_tensor *t, unsigned char *at, int64_t count, uint64_t *state)
{
    for (int64_t i = 0; i < count; ++i) {
        float v = (float)(next(state) % 2001) / 250.0f - (t->is_positive ? -0.5f : 4.0f);
        if (!t->is_positive && i % 16 == 11) v = special[i / 16 % 8];
        const double d = v;
        const int given = t->first || t->step;
        const int32_t i32 =
            given ? t->first + (int32_t)i * t->step : (int32_t)next(state) - (1 << 30);
        const int64_t i64 = given ? i32 : (int64_t)i32 * 4097;
        uint32_t bits;
        memcpy(&bits, &v, 4);
        const uint16_t bf16 = (uint16_t)(bits >> 16);
        /* f16: +-0.25 to +-4, sometimes infinite or NaN */
        uint16_t f16 =
            (uint16_t)((next(state) & 0x0fff) + 0x3400 + (t->is_positive ? 0 : (bits >> 31) << 15));
        if (!t->is_positive && i % 64 == 11) f16 = (uint16_t)(f16 | 0x7c00);
        const unsigned char u8 = (unsigned char)(i % 3);
        const void *from[] = {&v, &f16, &bf16, &d, &i32, &i64, &u8};
        memcpy(at + i * element[t->dtype], from[t->dtype], element[t->dtype]);
    }
}

static int64_t elements(const kft_tensor *t, const int64_t *n)
{
    int64_t count = t->times;
    if (t->elements) return t->elements(n);
    for (int i = 0; i < KFT_SIZES; ++i) count *= t->extents >> i & 1 ? n[i] : 1;
    return count + t->plus;
}

static _Thread_local const char *called = "";

/* Calls f once; *sum becomes the sum of its outputs' bytes, so each is read. */
static int call_one(const kft_function *f, const int64_t *n, uint64_t *sum)
{
    void *p[KFT_TENSORS] = {0};
    size_t bytes[KFT_TENSORS] = {0};
    uint64_t state = 1;
    for (int k = 0; k < f->tensors; ++k) {
        const kft_tensor *t = &f->tensor[k];
        const int64_t count = elements(t, n);
        bytes[k] = (size_t)count * element[t->dtype];
        if (t->is_unread) continue;
        p[k] = malloc(bytes[k]);
        if (t->is_in) fill(t, (unsigned char *)p[k], count, &state);
    }
    const size_t need = f->workspace ? f->workspace(n) : 0;
    void *workspace = need ? aligned_alloc(256, need) : NULL;
    called = f->name;
    const int result = f->call(p, n, workspace, need);
    *sum = 0;
    for (int k = 0; k < f->tensors; ++k) {
        if (f->tensor[k].is_out)
            for (size_t i = 0; i < bytes[k]; ++i) *sum = *sum * 31 + ((unsigned char *)p[k])[i];
        free(p[k]);
    }
    free(workspace);
    if (*sum == 42)
        puts("unlikely"); /* depends on every byte of the outputs: memcheck says where one was not
                             written */
    return result;
}

static int all(int large, uint64_t *sum)
{
    int calls = 0;
    *sum = 0;
    for (int t = 0; t < kft_table_count; ++t)
        for (int k = 0; k < kft_tables[t].count; ++k) {
            const kft_function *f = &kft_tables[t].functions[k];
#define KFT_SET(s)                                                                                 \
    (f->sizes == 1   ? s##_1                                                                       \
     : f->sizes == 2 ? s##_2                                                                       \
     : f->sizes == 3 ? s##_3                                                                       \
     : f->sizes == 4 ? s##_4                                                                       \
                     : s##_5)
#define KFT_COUNT(s) (int)(sizeof s / sizeof *s)
#define KFT_LENGTH(s)                                                                              \
    (f->sizes == 1   ? KFT_COUNT(s##_1)                                                            \
     : f->sizes == 2 ? KFT_COUNT(s##_2)                                                            \
     : f->sizes == 3 ? KFT_COUNT(s##_3)                                                            \
     : f->sizes == 4 ? KFT_COUNT(s##_4)                                                            \
                     : KFT_COUNT(s##_5))
            const int64_t (*set)[KFT_SIZES] = f->shapes[large] ? f->shapes[large]
                                              : large          ? KFT_SET(large)
                                                               : KFT_SET(small);
            const int length = f->shapes[large] ? f->shape_counts[large]
                               : large          ? KFT_LENGTH(large)
                                                : KFT_LENGTH(small);
            for (int i = 0; i < length; ++i) {
                uint64_t one;
                if (call_one(f, set[i], &one) != 0) {
                    printf("%s refused a call\n", f->name);
                    exit(1);
                }
                *sum = *sum * 1000003 + one;
                ++calls;
            }
        }
    return calls;
}

/* Names the function whose thread ran out of stack. */
static void overflow(int number)
{
    (void)!write(2, called, strlen(called));
    _exit(128 + number);
}

static void *caller(void *sum) { return all(0, (uint64_t *)sum), (void *)0; }

static void *small_caller(void *sum)
{
    static char stack[1 << 16]; /* the handler's */
    const stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
    return sigaltstack(&own, NULL) ? sum : caller(sum);
}

static int on_a_small_stack(long bytes)
{
    pthread_attr_t attributes;
    pthread_t thread;
    uint64_t sum;
    const struct sigaction action = {.sa_handler = overflow, .sa_flags = SA_ONSTACK};
    sigaction(SIGSEGV, &action, NULL);
    const long least = sysconf(_SC_THREAD_STACK_MIN); /* it grows with the processor's registers:
                                                         PTHREAD_STACK_MIN may not know */
    if (pthread_attr_init(&attributes) ||
        pthread_attr_setstacksize(&attributes, (size_t)(bytes + (least > 16384 ? least : 16384))))
        return 2;
    if (pthread_create(&thread, &attributes, small_caller, &sum) || pthread_join(thread, NULL))
        return 2;
    return 0;
}

int main(int count, char **words)
{
    const char *mode = count > 1 ? words[1] : "";
    uint64_t sum, sums[4];
    if (!strcmp(mode, "small stack") && count > 2 && on_a_small_stack(atol(words[2]))) return 2;
    const int calls = all(!strcmp(mode, "chunks"), &sum);
    if (!strcmp(mode, "callers")) {
        pthread_t threads[4];
        for (int t = 0; t < 4; ++t)
            if (pthread_create(&threads[t], NULL, caller, &sums[t]) != 0) return 2;
        for (int t = 0; t < 4; ++t) pthread_join(threads[t], NULL);
        for (int t = 0; t < 4; ++t)
            if (sums[t] != sum) return puts("threads disagree"), 1;
    }
    printf("%d calls, sum %016llx\n", calls, (unsigned long long)sum);
    return 0;
}
