// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/cluster.cuh: clusters of blocks that share a row, and asynchronous stores to the
// shared memory of other blocks, completed through mbarriers.
#ifndef KF_CORE_ROWS_CLUSTER_CUH
#define KF_CORE_ROWS_CLUSTER_CUH

#include "kf/core/cluster.cuh"
#include "kf/core/rows/args.cuh"

#ifdef KFI_DEVICE_PASS
#if KFI_CLUSTERS
// Exchange of values within a cluster. A block waits on its mbarrier; one thread of each block
// sends to it and announces the number of bytes (expect). A cluster barrier would be slower: it
// waits until all earlier stores have reached memory.
#ifdef KFI_PTX
KFI_DEVICE unsigned kfi_shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
KFI_DEVICE void kfi_mbarrier_open(unsigned long long *barrier)
{
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(
            kfi_shared(barrier))
        : "memory");
}
KFI_DEVICE void kfi_mbarrier_expect(unsigned long long *barrier, int bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(kfi_shared(barrier)),
        "r"(bytes)
        : "memory");
}
KFI_DEVICE void kfi_mbarrier_await(unsigned long long *barrier, int phase)
{
    asm volatile("{\n\t.reg .pred come;\nagain:\n\tmbarrier.try_wait.parity.shared::cta.b64 come, "
                 "[%0], %1;\n\t@!come bra again;\n\t}" ::"r"(kfi_shared(barrier)),
                 "r"(phase)
                 : "memory");
}
KFI_DEVICE unsigned kfi_cluster_place(const void *p, int rank)
{
    unsigned place;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(kfi_shared(p)), "r"(rank));
    return place;
}
KFI_DEVICE void kfi_cluster_send(float *slot, unsigned long long *barrier, int rank, float v)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
            kfi_cluster_place(slot, rank)),
        "f"(v), "r"(kfi_cluster_place(barrier, rank))
        : "memory");
}
KFI_DEVICE void kfi_cluster_send(double *slot, unsigned long long *barrier, int rank, double v)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f64 [%0], %1, [%2];" ::"r"(
            kfi_cluster_place(slot, rank)),
        "d"(v), "r"(kfi_cluster_place(barrier, rank))
        : "memory");
}
#else // the emulation uses the cluster barrier
KFI_DEVICE void kfi_mbarrier_open(unsigned long long *) {}
KFI_DEVICE void kfi_mbarrier_expect(unsigned long long *, int) {}
KFI_DEVICE void kfi_mbarrier_await(unsigned long long *, int)
{
    kfi_cluster_arrive();
    kfi_cluster_wait();
}
KFI_DEVICE void kfi_cluster_send(float *slot, unsigned long long *, int rank, float v)
{
    *kf_emu_remote(slot, (unsigned)rank) = v;
}
KFI_DEVICE void kfi_cluster_send(double *slot, unsigned long long *, int rank, double v)
{
    *kf_emu_remote(slot, (unsigned)rank) = v;
}
#endif
#endif
#endif

#endif
