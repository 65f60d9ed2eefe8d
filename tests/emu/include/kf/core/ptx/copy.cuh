// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/copy.cuh of the emulator: asynchronous copies, which land late (emu_fetch.h), and
// prefetches, which do nothing.
#ifndef KF_EMU_PTX_COPY_CUH
#define KF_EMU_PTX_COPY_CUH

#include "kf/core/copy.cuh"

template <int bytes> KFI_DEVICE void kfi_fetch(void *shared, const void *global, KF_EMU_HERE)
{
    if (bytes < 4)
        kfi_copy<bytes>(shared, global);
    else
        kf_emu_fetch(shared, global, bytes, bytes, file, line);
}
KFI_DEVICE void kfi_fetch_commit() { kf_emu_fetch_commit(); }
template <int pending> KFI_DEVICE void kfi_fetch_wait() { kf_emu_fetch_wait(pending); }
KFI_DEVICE void kfi_prefetch_l1(const void *) {}
KFI_DEVICE void kfi_prefetch_l2(const void *) {}

#endif
