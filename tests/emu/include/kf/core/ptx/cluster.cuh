// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/cluster.cuh of the emulator: thread block clusters.
#ifndef KF_EMU_PTX_CLUSTER_CUH
#define KF_EMU_PTX_CLUSTER_CUH

#include "kf/core/config.h"

#define KFI_CLUSTERS 1

KFI_DEVICE int kfi_cluster_rank() { return (int)kf_emu_cluster_rank(); }
KFI_DEVICE void kfi_cluster_arrive(KF_EMU_HERE) { kf_emu_cluster_arrive(file, line); }
KFI_DEVICE void kfi_cluster_wait(KF_EMU_HERE) { kf_emu_cluster_wait(file, line); }
// The cluster barrier stands in for the mbarrier.
KFI_DEVICE void kfi_mbarrier_open(unsigned long long *) {}
KFI_DEVICE void kfi_mbarrier_expect(unsigned long long *, int) {}
KFI_DEVICE void kfi_mbarrier_await(unsigned long long *, int, KF_EMU_HERE)
{
    kf_emu_cluster_arrive(file, line);
    kf_emu_cluster_wait(file, line);
}
template <class T> KFI_DEVICE void kfi_cluster_store(T *slot, int rank, T v, KF_EMU_HERE)
{
    *kf_emu_remote(slot, (unsigned)rank, file, line) = v;
}
template <class T>
KFI_DEVICE void kfi_cluster_send(T *slot, unsigned long long *, int rank, T v, KF_EMU_HERE)
{
    *kf_emu_remote(slot, (unsigned)rank, file, line) = v;
}

#endif
