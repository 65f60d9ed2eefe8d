// SPDX-License-Identifier: Apache-2.0
// kf/core/decoding/elements.cuh: elements as the numbers of the arithmetic, in decoding kernels.
#ifndef KF_CORE_DECODING_ELEMENTS_CUH
#define KF_CORE_DECODING_ELEMENTS_CUH

#include "kf/core/kernel.cuh"
#include "kf/core/product_types.cuh"

#ifdef KFI_DEVICE_PASS
template <int type> struct kfi_decoding_element;
template <> struct kfi_decoding_element<KFI_OF_BF16> {
    typedef kf_bf16 stored;
    typedef float real;
};
template <> struct kfi_decoding_element<KFI_OF_F16> {
    typedef kf_f16 stored;
    typedef float real;
};
template <> struct kfi_decoding_element<KFI_OF_F32> {
    typedef float stored;
    typedef float real;
};
template <> struct kfi_decoding_element<KFI_OF_F64> {
    typedef double stored;
    typedef double real;
};
KFI_DEVICE float kfi_decoding_widen(float v) { return v; }
KFI_DEVICE double kfi_decoding_widen(double v) { return v; }
KFI_DEVICE float kfi_decoding_widen(kf_f16 v) { return __half2float(v); }
KFI_DEVICE float kfi_decoding_widen(kf_bf16 v) { return __bfloat162float(v); }

// Loads `vec` elements at a multiple of their bytes.
template <int vec, class stored, class real>
KFI_DEVICE void kfi_decoding_load(real *to, const stored *from)
{
    alignas(16) stored v[vec];
    kfi_copy<vec *(int)sizeof(stored)>(v, from);
#pragma unroll
    for (int e = 0; e < vec; ++e) to[e] = kfi_decoding_widen(v[e]);
}
template <int vec, class stored, class real>
KFI_DEVICE void kfi_decoding_store(stored *to, const real *from)
{
    alignas(16) stored v[vec];
#pragma unroll
    for (int e = 0; e < vec; ++e) kfi_cast(v + e, from[e]);
    kfi_copy<vec *(int)sizeof(stored)>(to, v);
}
#endif

#endif
