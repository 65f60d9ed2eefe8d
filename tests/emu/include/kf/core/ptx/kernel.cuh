// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/kernel.cuh of the emulator: dynamic shared memory. A launch begins after the previous
// one has ended.
#ifndef KF_EMU_PTX_KERNEL_CUH
#define KF_EMU_PTX_KERNEL_CUH

#include "kf/core/config.h"

KFI_DEVICE char *kfi_dynamic() { return kf_emu_dynamic(); }
// Aligned as a shared address (emu_hopper.h).
KFI_DEVICE char *kfi_dynamic_1024() { return kf_emu_dynamic(); }
KFI_DEVICE void kfi_begin() {}

#endif
