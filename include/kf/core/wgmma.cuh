// SPDX-License-Identifier: Apache-2.0
// kf/core/wgmma.cuh: operands of warpgroup products (ptx/wgmma.cuh). B is in shared memory, A in
// shared memory or registers.
#ifndef KF_CORE_WGMMA_CUH
#define KF_CORE_WGMMA_CUH

#include "kf/core/ptx/mma.cuh"
#include "kf/core/ptx/wgmma.cuh"

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// Builds the matrix descriptor of an operand in rows of 128 bytes with 128-byte swizzle, aligned to
// 1,024 bytes. K-contiguous: `step` bytes between groups of 8 rows; `lead` is ignored. Transposed:
// `lead` bytes between groups of 64 rows or columns, `step` between groups of 8 of K. (PTX ISA,
// "Shared Memory Matrix Layout".)
KFI_DEVICE unsigned long long kfi_wgmma_descriptor(unsigned at, unsigned lead, unsigned step)
{
    return (unsigned long long)((at & 0x3ffff) >> 4) | (unsigned long long)(lead >> 4) << 16 |
           (unsigned long long)(step >> 4) << 32 | 1ull << 62;
}
#endif

#endif
