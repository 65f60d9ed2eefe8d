/* SPDX-License-Identifier: Apache-2.0 */
/* Part of faults.cpp: kernels of which thread 5 alone accesses a misaligned address, by each kind
   of instruction that the emulator checks. */
#ifndef KF_EMU_MISALIGNED_H
#define KF_EMU_MISALIGNED_H

#include "kf/core/copy.cuh"

static __device__ char *shifted(void *p) { return (char *)p + (threadIdx.x == 5 ? 2 : 0); }

static __global__ void misaligned_vector(word *out)
{
    uint2 v;
    kfi_copy<8>(&v, shifted(out));
}
static __global__ void misaligned_store(word *out) { *(int *)shifted(out) = 1; }
static __global__ void misaligned_atomic(word *out) { atomicAdd((int *)shifted(out), 1); }
static __global__ void misaligned_copy(word *out)
{
    alignas(16) __shared__ char buffer[32];
    kf_emu_fetch(shifted(buffer), out, 16, 16);
}
static __global__ void misaligned_source(word *out)
{
    alignas(16) __shared__ char buffer[16];
    kf_emu_fetch(buffer, shifted(out), 4, 0); /* also if it reads no byte */
}
static __global__ void misaligned_rows(word *out)
{
    alignas(16) __shared__ char rows[32 * 16 + 16];
    unsigned v[4];
    kf_emu_matrices(v, shifted(rows + threadIdx.x * 16), 0);
    out[threadIdx.x] = v[0];
}

#endif
