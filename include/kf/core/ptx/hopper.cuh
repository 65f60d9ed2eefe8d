// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/hopper.cuh: one function per asynchronous instruction of sm_90a: mbarriers, bulk
// copies, TMA tensor loads and stores, named barriers, setmaxnreg, stmatrix. ptx/wgmma.cuh has the
// products.
//
// Shared memory is named by 32-bit addresses in the cluster's window.
#ifndef KF_CORE_PTX_HOPPER_CUH
#define KF_CORE_PTX_HOPPER_CUH

#include "kf/core/config.h"
#include "kf/core/tensor_map.cuh"

// 1 in code for compute_90a, whose features no later architecture has. Host code cannot see it.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && defined(__CUDA_ARCH__)
#define KFI_HOPPER 1
#else
#define KFI_HOPPER 0
#endif

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// The 32-bit shared address of a pointer.
KFI_DEVICE unsigned kfi_shared_address(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}
// Maps a shared address to block `rank` of the cluster (mapa).
KFI_DEVICE unsigned kfi_mapa(unsigned address, unsigned rank)
{
    unsigned to;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(address), "r"(rank));
    return to;
}
KFI_DEVICE void kfi_store_remote(unsigned to, unsigned v)
{
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

KFI_DEVICE void kfi_store_remote(unsigned to, float v0, float v1)
{
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v0), "f"(v1)
                 : "memory");
}

// ---- mbarriers: 8 bytes of shared memory. A phase completes after `count` arrivals and all
// expected bytes.

KFI_DEVICE void kfi_mbar_init(unsigned bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
// Makes initialised mbarriers visible to asynchronous copies and other blocks. Called by the thread
// that initialised them.
KFI_DEVICE void kfi_mbar_fence_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
KFI_DEVICE void kfi_mbar_arrive(unsigned bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Arrives and expects `bytes` more bytes.
KFI_DEVICE void kfi_mbar_expect(unsigned bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
// Arrives at another block's mbarrier (kfi_mapa). Without .release.cluster, which would wait for
// all of the thread's memory accesses.
KFI_DEVICE void kfi_mbar_arrive_remote(unsigned bar)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Returns whether the phase of this parity has completed. A barrier begins in phase 0; the phase
// before it counts as complete.
KFI_DEVICE bool kfi_mbar_try(unsigned bar, int parity)
{
    int ended;
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], "
                 "%2;\n\tselp.b32 %0, 1, 0, p;\n\t}"
                 : "=r"(ended)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return ended;
}
// Waits until the phase has completed. Callers must not loop around kfi_mbar_try instead.
KFI_DEVICE void kfi_mbar_wait(unsigned bar, int parity)
{
    while (!kfi_mbar_try(bar, parity)) {
    }
}
// Proxy fence: makes this thread's writes to shared memory visible to later asynchronous copies and
// products.
KFI_DEVICE void kfi_async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- TMA: boxes of a tensor at coordinates, the innermost first. Elements outside the tensor load
// as zero and are not stored; a store clips rows at 16 bytes. An H200 raises an illegal instruction
// if the innermost coordinate is no multiple of 16 bytes, or a coordinate of a store is negative.

KFI_DEVICE void kfi_tma_load(unsigned to, const kfi_tensor_map *map, unsigned bar, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y)
                 : "memory");
}
KFI_DEVICE void kfi_tma_load3(unsigned to, const kfi_tensor_map *map, unsigned bar, int x, int y,
                              int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
// policy: KFI_READ_ONCE or KFI_READ_OFTEN.
KFI_DEVICE void kfi_tma_load3(unsigned to, const kfi_tensor_map *map, unsigned bar, int x, int y,
                              int z, unsigned long long policy)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
                 "L2::cache_hint [%0], [%1, {%3, %4, %5}], "
                 "[%2], %6;" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "l"(policy)
                 : "memory");
}
KFI_DEVICE void kfi_tma_load4(unsigned to, const kfi_tensor_map *map, unsigned bar, int x, int y,
                              int z, int w, unsigned long long policy)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
                 "L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], "
                 "[%2], %7;" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w), "l"(policy)
                 : "memory");
}
KFI_DEVICE void kfi_tma_load4(unsigned to, const kfi_tensor_map *map, unsigned bar, int x, int y,
                              int z, int w)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
// Multicasts to the same address in each block of the cluster that has a bit in `blocks`. The
// block's own mbarrier counts the bytes.
KFI_DEVICE void kfi_tma_multicast(unsigned to, const kfi_tensor_map *map, unsigned bar, int x,
                                  int y, unsigned blocks)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
                 "multicast::cluster [%0], [%1, {%3, %4}], "
                 "[%2], %5;" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "h"((unsigned short)blocks)
                 : "memory");
}
KFI_DEVICE void kfi_tma_store(unsigned from, const kfi_tensor_map *map, int x, int y)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%1, {%2, %3}], [%0];" ::"r"(
            from),
        "l"(map), "r"(x), "r"(y)
        : "memory");
}
KFI_DEVICE void kfi_tma_store3(unsigned from, const kfi_tensor_map *map, int x, int y, int z)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%1, {%2, %3, %4}], [%0];" ::
            "r"(from),
        "l"(map), "r"(x), "r"(y), "r"(z)
        : "memory");
}
KFI_DEVICE void kfi_tma_store4(unsigned from, const kfi_tensor_map *map, int x, int y, int z, int w)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%1, {%2, %3, %4, "
                 "%5}], [%0];" ::"r"(from),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

// ---- bulk copies: addresses and sizes are multiples of 16 bytes

KFI_DEVICE void kfi_bulk_load(unsigned to, const void *from, int bytes, unsigned bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(bar)
        : "memory");
}
KFI_DEVICE void kfi_bulk_store(void *to, unsigned from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}
// Adds floats to those in memory.
KFI_DEVICE void kfi_bulk_add(void *to, unsigned from, int bytes)
{
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
        "r"(from), "r"(bytes)
        : "memory");
}

// ---- bulk groups: a thread's stores since the last commit. Empty groups count, too.

KFI_DEVICE void kfi_bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until all but the last `most` groups are in memory, or (_read) have read shared memory,
// which may then be overwritten.
template <int most> KFI_DEVICE void kfi_bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(most) : "memory");
}
template <int most> KFI_DEVICE void kfi_bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(most) : "memory");
}

// ---- tickets: numbers in global memory that pass bulk stores on from one block to another. A
// store is complete after kfi_bulk_wait; kfi_global_async_fence stands between it and
// kfi_ticket_add, and between kfi_ticket_wait and the next access.

KFI_DEVICE void kfi_global_async_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }
// Adds 1, with release semantics for the device.
KFI_DEVICE void kfi_ticket_add(unsigned *ticket)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(ticket) : "memory");
}
// Waits until the ticket is `value`, with acquire semantics.
KFI_DEVICE void kfi_ticket_wait(const unsigned *ticket, unsigned value)
{
    unsigned seen;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(ticket) : "memory");
    } while (seen != value);
}

// ---- named barriers and registers

// Barrier `id`, 1 to 15, of `threads` threads. Arriving does not wait. Barrier 0 is __syncthreads'.
template <int threads> KFI_DEVICE void kfi_named_sync(int id)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(threads) : "memory");
}
template <int threads> KFI_DEVICE void kfi_named_arrive(int id)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(threads) : "memory");
}
// Sets the registers per thread (setmaxnreg), for a whole warpgroup. An increase waits until other
// warpgroups have released enough.
template <int count> KFI_DEVICE void kfi_setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count> KFI_DEVICE void kfi_setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// Stores four 8 x 8 matrices of 2-byte elements to shared memory (stmatrix.x4). Lane l supplies the
// address of row l % 8 of matrix l / 8, and of each matrix elements 2 (l % 4) and the next of row
// l / 4 (transposed: column l / 4).
template <int transposed> KFI_DEVICE void kfi_stmatrix(unsigned to, const unsigned *v)
{
    if (transposed)
        asm volatile(
            "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
            "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
            : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                     "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                     : "memory");
}
#endif

#endif
