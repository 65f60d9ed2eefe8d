// SPDX-License-Identifier: Apache-2.0
// kf/core/copy.cuh: copies of a vector of known size by accesses of up to 16 bytes.
#ifndef KF_CORE_COPY_CUH
#define KF_CORE_COPY_CUH

#include "kf/core/config.h"

template <int tag> struct kfi_tag {};

#ifdef KFI_DEVICE_PASS
KFI_DEVICE void kfi_move(kfi_tag<16>, void *d, const void *s) { *(uint4 *)d = *(const uint4 *)s; }
KFI_DEVICE void kfi_move(kfi_tag<8>, void *d, const void *s) { *(uint2 *)d = *(const uint2 *)s; }
KFI_DEVICE void kfi_move(kfi_tag<4>, void *d, const void *s)
{
    *(unsigned *)d = *(const unsigned *)s;
}
KFI_DEVICE void kfi_move(kfi_tag<2>, void *d, const void *s)
{
    *(unsigned short *)d = *(const unsigned short *)s;
}
KFI_DEVICE void kfi_move(kfi_tag<1>, void *d, const void *s)
{
    *(unsigned char *)d = *(const unsigned char *)s;
}
template <int bytes> KFI_DEVICE void kfi_copy(void *d, const void *s)
{
    constexpr int step = bytes < 16 ? bytes : 16;
#pragma unroll
    for (int i = 0; i < bytes; i += step)
        kfi_move(kfi_tag<step>(), (char *)d + i, (const char *)s + i);
}
#endif

#endif
