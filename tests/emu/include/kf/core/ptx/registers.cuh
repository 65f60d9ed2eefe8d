// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/registers.cuh of the emulator. `zero` must be 0, so an opaque copy is the value
// itself.
#ifndef KF_EMU_PTX_REGISTERS_CUH
#define KF_EMU_PTX_REGISTERS_CUH

#include "kf/core/config.h"

KFI_DEVICE float kfi_select(bool c, float a, float b) { return c ? a : b; }
KFI_DEVICE float kfi_select_from(unsigned word, unsigned threshold, float v)
{
    return word >= threshold ? v : 0.0f;
}
KFI_DEVICE void kfi_opaque(unsigned &) {}
template <class T> KFI_DEVICE void kfi_opaque(T &v, T zero) { v ^= zero; }

#endif
