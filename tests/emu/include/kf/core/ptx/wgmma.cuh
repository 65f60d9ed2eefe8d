// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/wgmma.cuh of the emulator: warpgroup products (emu_wgmma.h).
#ifndef KF_EMU_PTX_WGMMA_CUH
#define KF_EMU_PTX_WGMMA_CUH

#include "kf/core/product_types.cuh"
#include "kf/core/ptx/hopper.cuh"

KFI_DEVICE void kfi_wgmma_fence(KF_EMU_HERE) { kf_emu_wgmma_fence(file, line); }
KFI_DEVICE void kfi_wgmma_commit(KF_EMU_HERE) { kf_emu_wgmma_commit(file, line); }
template <int most, int branch = 0> KFI_DEVICE void kfi_wgmma_wait(KF_EMU_HERE)
{
    kf_emu_wgmma_wait(most, file, line);
}
KFI_DEVICE void kfi_wgmma_opaque(float &) {}
KFI_DEVICE void kfi_wgmma_opaque(unsigned &) {}

template <int n, int type, int transposed_a = 0, int transposed_b = 0>
KFI_DEVICE void kfi_wgmma(float *d, unsigned long long a, unsigned long long b, int add,
                          KF_EMU_HERE)
{
    static_assert(n == 16 || n == 64 || n == 80 || n == 96 || n == 128 || n == 176 || n == 192 ||
                      n == 256,
                  "kf: a warpgroup product has 16, 64, 80, 96, 128, 176, 192 or 256 columns");
    static_assert(type != KFI_OF_TF32 || (n == 128 && !transposed_a && !transposed_b),
                  "kf: tf32 operands are K-contiguous and have 128 columns");
    constexpr int of = type == KFI_OF_BF16   ? KF_EMU_BF16
                       : type == KFI_OF_TF32 ? KF_EMU_TF32
                                             : KF_EMU_F16;
    kf_emu_wgmma(n, of, d, nullptr, a, b, transposed_a, transposed_b, add, file, line);
}
template <int n, int type, int transposed_a = 0, int transposed_b = 0>
KFI_DEVICE void kfi_wgmma_first(float *d, unsigned long long a, unsigned long long b, KF_EMU_HERE)
{
    static_assert(n == 64 || n == 128, "kf: a first warpgroup product has 64 or 128 columns");
    kfi_wgmma<n, type, transposed_a, transposed_b>(d, a, b, 0, file, line);
}
template <int n, int type, int transposed_b = 0>
KFI_DEVICE void kfi_wgmma_registers(float *d, const unsigned *a, unsigned long long b, int add,
                                    KF_EMU_HERE)
{
    static_assert(n == 64 || n == 128 || n == 192 || n == 256,
                  "kf: a warpgroup product with A in registers has 64, 128, 192 or 256 columns");
    constexpr int of = type == KFI_OF_BF16 ? KF_EMU_BF16 : KF_EMU_F16;
    kf_emu_wgmma(n, of, d, a, 0, b, 0, transposed_b, add, file, line);
}
KFI_DEVICE unsigned kfi_tf32(float x) { return kf_emu_tf32(x); }
KFI_DEVICE void kfi_wgmma_tf32(float *d, const unsigned *a, unsigned long long b, int add,
                               KF_EMU_HERE)
{
    kf_emu_wgmma(128, KF_EMU_TF32, d, a, 0, b, 0, 0, add, file, line);
}

#endif
