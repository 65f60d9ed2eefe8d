/* SPDX-License-Identifier: Apache-2.0 */
/* The demo on the CPU. To compile it by hand:
 *   gcc -O3 -march=native -fopenmp -Iinclude -Ibuild/include examples/demo_cpu.c -lm */
#include <kf/kf.h>

#include <stdlib.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#ifndef ROWS
#define ROWS 4096
#define COLS 4096
#endif
#define CALL(name, dtype, ...) kf_cpu_##name##_##dtype(__VA_ARGS__)
#define WORKSPACE_BYTES(name, dtype, ...) kf_cpu_##name##_##dtype##_workspace_bytes(__VA_ARGS__)

static double started;

static double seconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void timer_start(void) { started = seconds(); }
static double timer_stop(void) { return 1e3 * (seconds() - started); }

/* Tensors use host memory. */
static void *device_tensor(void *host, size_t bytes) { return bytes ? host : NULL; }
static void device_write(void *device, const void *host, size_t bytes)
{
    (void)device, (void)host, (void)bytes;
}
static void device_read(void *host, const void *device, size_t bytes)
{
    (void)host, (void)device, (void)bytes;
}
static void device_free(void *device) { (void)device; }

static int device_open(void)
{
#ifdef _OPENMP
    printf("CPU, %d threads (OpenMP)", omp_get_max_threads());
#else
    printf("CPU, one thread (compiled without OpenMP)");
#endif
    return 1;
}

#include "demo.h"
