// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/mma.cuh of the emulator: the instructions of sm_80 (emu_fetch.h, emu_matrices.h).
#ifndef KF_EMU_PTX_MMA_CUH
#define KF_EMU_PTX_MMA_CUH

#include "kf/core/config.h"
#include "kf/core/product_types.cuh"

#define KFI_MMA 1

template <int bytes>
KFI_DEVICE void kfi_cp_async(void *shared, const void *global, int read, KF_EMU_HERE)
{
    static_assert(bytes == 4 || bytes == 8 || bytes == 16,
                  "kf: an asynchronous copy has 4, 8 or 16 bytes");
    kf_emu_fetch(shared, global, bytes, read, file, line);
}
template <int transposed> KFI_DEVICE void kfi_ldmatrix(unsigned *v, const void *shared, KF_EMU_HERE)
{
    kf_emu_matrices(v, shared, transposed, file, line);
}
template <int type>
KFI_DEVICE void kfi_mma(float *d, const unsigned *a, const unsigned *b, KF_EMU_HERE)
{
    kf_emu_multiply(d, a, b, type == KFI_OF_BF16, file, line);
}
KFI_DEVICE void kfi_mma_tf32(float *d, const unsigned *a, const unsigned *b, KF_EMU_HERE)
{
    kf_emu_multiply_tf32(d, a, b, file, line);
}

#endif
