/* SPDX-License-Identifier: Apache-2.0 */
/* Device interface of the emulator for sm_90a: TMA and bulk copies, mbarriers, wgmma, setmaxnreg.
   include/kf/core/ptx/hopper.cuh and wgmma.cuh call it.

   Shared addresses have 32 bits, as in PTX. Bits 24 and up hold the block's rank in its cluster;
   dynamic memory begins at 0x400. */
#ifndef KF_EMU_HOPPER_H
#define KF_EMU_HOPPER_H

#include "emu.h"

uint32_t kf_emu_window(const void *p, KF_EMU_HERE); /* address in the calling block */
uint32_t kf_emu_mapa(uint32_t address, unsigned rank, KF_EMU_HERE);

/* ---- mbarriers */
void kf_emu_mbar_init(uint32_t bar, int count, KF_EMU_HERE);
void kf_emu_mbar_arrive(uint32_t bar, long expect,
                        KF_EMU_HERE); /* arrive; first expect_tx of `expect` bytes */
bool kf_emu_mbar_test(uint32_t bar, int parity, bool waits, KF_EMU_HERE);
void kf_emu_fence_init(KF_EMU_HERE);
void kf_emu_fence_async(KF_EMU_HERE);

/* ---- bulk copies. `at`: `rank` coordinates, the innermost first. */
void kf_emu_tma_load(uint32_t to, const void *map, uint32_t bar, const int *at, int rank,
                     unsigned blocks, KF_EMU_HERE); /* blocks: multicast mask, or 0 */
void kf_emu_tma_store(uint32_t from, const void *map, const int *at, int rank, KF_EMU_HERE);
void kf_emu_bulk_load(uint32_t to, const void *from, int bytes, uint32_t bar, KF_EMU_HERE);
void kf_emu_bulk_store(void *to, uint32_t from, int bytes, KF_EMU_HERE);
void kf_emu_bulk_add(void *to, uint32_t from, int bytes, KF_EMU_HERE); /* floats */
void kf_emu_bulk_commit(KF_EMU_HERE);
void kf_emu_bulk_wait(int most, bool read, KF_EMU_HERE);
void kf_emu_ticket_add(unsigned *ticket, KF_EMU_HERE);
void kf_emu_ticket_wait(const unsigned *ticket, unsigned value, KF_EMU_HERE);

/* ---- wgmma: D[64, n] += A[64, k] B[k, n] with k = 16 (TF32: 8). a: A in registers, or nullptr to
   read A by descriptor da. ta, tb: 1 if the operand is contiguous along its rows (MN-major). */
enum { KF_EMU_F16, KF_EMU_BF16, KF_EMU_TF32 }; /* element type of the factors */
void kf_emu_wgmma(int n, int of, float *d, const unsigned *a, uint64_t da, uint64_t db, int ta,
                  int tb, int add, KF_EMU_HERE);
void kf_emu_wgmma_fence(KF_EMU_HERE);
unsigned kf_emu_tf32(float x);
void kf_emu_wgmma_commit(KF_EMU_HERE);
void kf_emu_wgmma_wait(int most, KF_EMU_HERE);

/* ---- collectives of a warp, a warpgroup or a cluster */
void kf_emu_stmatrix(uint32_t address, const unsigned *v, bool transposed, KF_EMU_HERE);
void kf_emu_store(uint32_t address, const void *v, int bytes, KF_EMU_HERE); /* st.shared::cluster */
void kf_emu_named(int id, int threads, bool waits, KF_EMU_HERE);
void kf_emu_registers(int count, bool more, KF_EMU_HERE);

extern "C" {
/* Takes the arguments of cuTensorMapEncodeTiled. Returns nonzero for whatever that refuses and for
   whatever is not emulated. */
int kf_emu_encode(void *map, int type, unsigned rank, void *base, const uint64_t *dim,
                  const uint64_t *stride, const unsigned *box, const unsigned *step, int interleave,
                  int swizzle, int l2, int fill);
extern int kf_emu_hopper; /* nonzero: launchers find the sm_90a kernels */
/* Asynchronous operations complete within 2^kf_emu_delay thread switches; 0: at once. */
extern int kf_emu_delay;
}

#endif
