// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/registers.cuh: selections and copies of registers that the compiler cannot see
// through.
#ifndef KF_CORE_PTX_REGISTERS_CUH
#define KF_CORE_PTX_REGISTERS_CUH

#include "kf/core/config.h"

#ifdef KFI_DEVICE_PASS
// Returns c ? a : b with both computed. Opaque to the compiler, which would branch if one is
// expensive.
KFI_DEVICE float kfi_select(bool c, float a, float b)
{
    float r;
    asm("{ .reg .pred p; setp.ne.u32 p, %3, 0; selp.f32 %0, %1, %2, p; }"
        : "=f"(r)
        : "f"(a), "f"(b), "r"((unsigned)c));
    return r;
}
// Returns word >= threshold ? v : 0, with v computed.
KFI_DEVICE float kfi_select_from(unsigned word, unsigned threshold, float v)
{
    float r;
    asm("{ .reg .pred p; setp.ge.u32 p, %2, %3; selp.f32 %0, %1, 0f00000000, p; }"
        : "=f"(r)
        : "f"(v), "r"(word), "r"(threshold));
    return r;
}

// Makes a value opaque to nvcc.
KFI_DEVICE void kfi_opaque(unsigned &v) { asm volatile("" : "+r"(v)); }
// Makes a value opaque to ptxas too, which sees through an empty statement. zero: a 0 that the
// compiler cannot know.
KFI_DEVICE void kfi_opaque(unsigned &v, unsigned zero)
{
    asm volatile("xor.b32 %0, %0, %1;" : "+r"(v) : "r"(zero));
}
KFI_DEVICE void kfi_opaque(int &v, int zero)
{
    asm volatile("xor.b32 %0, %0, %1;" : "+r"(v) : "r"(zero));
}
KFI_DEVICE void kfi_opaque(long long &v, long long zero)
{
    asm volatile("xor.b64 %0, %0, %1;" : "+l"(v) : "l"(zero));
}
#endif

#endif
