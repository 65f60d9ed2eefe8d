/* SPDX-License-Identifier: Apache-2.0 */
/* What kf/core/hopper.cuh and wgmma.cuh call in the emulation: asynchronous copies and products,
   their barriers, registers by role. Shared memory is named by addresses of 32 bits, as in PTX: the
   block's rank in its cluster in bits 24 and up, dynamic memory from 0x400 on. */
#ifndef KF_EMU_HOPPER_H
#define KF_EMU_HOPPER_H

#include "emu.h"

uint32_t kf_emu_window(const void *p, KF_EMU_HERE); /* of the block that asks */
uint32_t kf_emu_mapa(uint32_t address, unsigned rank, KF_EMU_HERE);

/* ---- mbarriers */
void kf_emu_mbar_init(uint32_t bar, int count, KF_EMU_HERE);
void kf_emu_mbar_arrive(uint32_t bar, long expect,
                        KF_EMU_HERE); /* expect_tx first, of so many bytes */
bool kf_emu_mbar_test(uint32_t bar, int parity, bool waits, KF_EMU_HERE);
void kf_emu_fence_init(KF_EMU_HERE);
void kf_emu_fence_async(KF_EMU_HERE);

/* ---- bulk copies; `at` has `rank` coordinates, the innermost first */
void kf_emu_tma_load(uint32_t to, const void *map, uint32_t bar, const int *at, int rank,
                     unsigned blocks, KF_EMU_HERE); /* blocks: multicast, or 0 */
void kf_emu_tma_store(uint32_t from, const void *map, const int *at, int rank, KF_EMU_HERE);
void kf_emu_bulk_load(uint32_t to, const void *from, int bytes, uint32_t bar, KF_EMU_HERE);
void kf_emu_bulk_store(void *to, uint32_t from, int bytes, KF_EMU_HERE);
void kf_emu_bulk_commit(KF_EMU_HERE);
void kf_emu_bulk_wait(int most, bool read, KF_EMU_HERE);

/* ---- products of a warpgroup: 64 x n, 16 of the depth. a: registers, or nullptr and da. ta, tb:
 * the operand lies along its rows. */
enum { KF_EMU_F16, KF_EMU_BF16, KF_EMU_TF32 }; /* what a product is of */
void kf_emu_wgmma(int n, int of, float *d, const unsigned *a, uint64_t da, uint64_t db, int ta,
                  int tb, int add, KF_EMU_HERE);
void kf_emu_wgmma_fence(KF_EMU_HERE);
unsigned kf_emu_tf32(float x);
void kf_emu_wgmma_commit(KF_EMU_HERE);
void kf_emu_wgmma_wait(int most, KF_EMU_HERE);

/* ---- the threads of a warp, a warpgroup, a cluster */
void kf_emu_stmatrix(uint32_t address, const unsigned *v, bool transposed, KF_EMU_HERE);
void kf_emu_store(uint32_t address, const void *v, int bytes, KF_EMU_HERE); /* st.shared::cluster */
void kf_emu_named(int id, int threads, bool waits, KF_EMU_HERE);
void kf_emu_registers(int count, bool more, KF_EMU_HERE);

extern "C" {
/* cuTensorMapEncodeTiled's arguments. What it refuses is refused; what is not emulated too. */
int kf_emu_encode(void *map, int type, unsigned rank, void *base, const uint64_t *dim,
                  const uint64_t *stride, const unsigned *box, const unsigned *step, int interleave,
                  int swizzle, int l2, int fill);
extern int kf_emu_hopper; /* whether launchers find kernels of sm_90a */
extern int kf_emu_delay;  /* what is asynchronous ends within 2^kf_emu_delay switches of threads; 0:
                             at once */
}

#endif
