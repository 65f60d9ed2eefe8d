// SPDX-License-Identifier: Apache-2.0
// kf/core/vector.cuh: vector memory access, and conversion between storage and compute types. A
// vector is an array of `vec` elements in registers; one access moves up to 16 bytes.
#ifndef KF_CORE_VECTOR_CUH
#define KF_CORE_VECTOR_CUH

#include "kf/core/config.h"
#include "kf/core/dtype.h"
#include "kf/core/limits.h"
#include "kf/core/ptx/copy.cuh"
#include "kf/core/ptx/kernel.cuh"
#include "kf/core/ptx/registers.cuh"

typedef int kf_i32;

// Kernels that compute the gradient from the activation's result use another tag: the complement of
// the id, which is negative. These are the defaults of an activation without such a gradient.
template <int act> KFI_BOTH constexpr int kfi_act_by(kfi_tag<act>) { return act; }
template <int act>
KFI_BOTH constexpr const char *
// names of its scalars that must not be negative if the gradient is computed from the result
// (core/check.h)
kfi_act_rising(kfi_tag<act>)
{
    return nullptr;
}

// Scalars of an activation, passed by value.
struct kfi_scalars_f32 {
    float v[KFI_MAX_ACT_SCALARS];
};
struct kfi_scalars_f64 {
    double v[KFI_MAX_ACT_SCALARS];
};

#ifdef KFI_DEVICE_PASS
// Stores to global memory in vectors: the compiler would split an assembled vector into single
// words.
template <int bytes> KFI_DEVICE void kfi_store(void *d, const void *s)
{
    if (bytes < 16) kfi_copy<bytes>(d, s);
#pragma unroll
    for (int i = 0; i + 16 <= bytes; i += 16)
        __stwb((uint4 *)((char *)d + i), *(const uint4 *)((const char *)s + i));
}

// kfi_select of floats: ptx/registers.cuh.
KFI_DEVICE double kfi_select(bool c, double a, double b) { return c ? a : b; }

KFI_DEVICE float kfi_not_a_number(float) { return __int_as_float(0x7fffffff); }
KFI_DEVICE double kfi_not_a_number(double) { return __longlong_as_double(0x7fffffffffffffffll); }

// Loads `unroll` vectors of `size`-byte elements, `step` elements apart. If `full`, all lie inside
// the tensor. Otherwise `left` is the number of elements from src to the end; the rest becomes
// zero.
template <int size, int vec, int unroll>
KFI_DEVICE void kfi_load_each(void *dst, const void *src, kf_i64 step, kf_i64 left, bool full)
{
    if (full) {
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            kfi_copy<size * vec>((char *)dst + u * (size * vec),
                                 (const char *)src + u * step * size);
    } else {
        const unsigned long long zero = 0;
#pragma unroll
        for (int u = 0; u < unroll; ++u)
#pragma unroll
            for (int e = 0; e < vec; ++e)
                kfi_copy<size>((char *)dst + (u * vec + e) * size,
                               u * step + e < left ? (const char *)src + (u * step + e) * size
                                                   : (const char *)&zero);
    }
}
template <int size, int vec, int unroll>
KFI_DEVICE void kfi_store_each(void *dst, const void *src, kf_i64 step, kf_i64 left, bool full)
{
    if (full) {
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            kfi_store<size * vec>((char *)dst + u * step * size,
                                  (const char *)src + u * (size * vec));
    } else {
#pragma unroll
        for (int u = 0; u < unroll; ++u)
#pragma unroll
            for (int e = 0; e < vec; ++e)
                if (u * step + e < left)
                    kfi_copy<size>((char *)dst + (u * step + e) * size,
                                   (const char *)src + (u * vec + e) * size);
    }
}

// Convert storage to compute type, exactly.
template <int vec> KFI_DEVICE void kfi_unpack_f32(float *d, const float *s)
{
#pragma unroll
    for (int e = 0; e < vec; ++e) d[e] = s[e];
}
template <int vec> KFI_DEVICE void kfi_unpack_f16(float *d, const kf_f16 *s)
{
#pragma unroll
    for (int e = 0; e < vec; ++e) d[e] = __half2float(s[e]);
}
template <int vec> KFI_DEVICE void kfi_unpack_bf16(float *d, const kf_bf16 *s)
{
#pragma unroll
    for (int e = 0; e + 1 < vec;
         e += 2) { // converts two at a time: one instruction each, while unpacking first costs two
        const unsigned w = *(const unsigned *)(s + e);
        d[e] = __uint_as_float(w << 16);
        d[e + 1] = __uint_as_float(w & 0xffff0000u);
    }
    if (vec % 2) d[vec - 1] = __bfloat162float(s[vec - 1]);
}
template <int vec> KFI_DEVICE void kfi_unpack_f64(double *d, const double *s)
{
#pragma unroll
    for (int e = 0; e < vec; ++e) d[e] = s[e];
}
template <int vec> KFI_DEVICE void kfi_unpack_i32(kf_i32 *d, const kf_i32 *s)
{
#pragma unroll
    for (int e = 0; e < vec; ++e) d[e] = s[e];
}
template <int vec> KFI_DEVICE void kfi_unpack_i64(kf_i64 *d, const kf_i64 *s)
{
#pragma unroll
    for (int e = 0; e < vec; ++e) d[e] = s[e];
}

// Convert conditions to 0 or 1 by comparison: an SM converts only 16 numbers per clock.
template <int vec> KFI_DEVICE void kfi_unpack_u8(float *d, const unsigned char *s)
{
#pragma unroll
    for (int e = 0; e < vec; ++e) d[e] = s[e] ? 1.0f : 0.0f;
}
template <int vec> KFI_DEVICE void kfi_unpack_u8(double *d, const unsigned char *s)
{
#pragma unroll
    for (int e = 0; e < vec; ++e) d[e] = s[e] ? 1.0 : 0.0;
}
template <int vec> KFI_DEVICE void kfi_unpack_u8(kf_i32 *d, const unsigned char *s)
{
#pragma unroll
    for (int e = 0; e < vec; ++e) d[e] = s[e] ? 1 : 0;
}
template <int vec> KFI_DEVICE void kfi_unpack_u8(kf_i64 *d, const unsigned char *s)
{
#pragma unroll
    for (int e = 0; e < vec; ++e) d[e] = s[e] ? 1 : 0;
}

// Convert compute to storage type: one rounding to nearest even; integers saturate and NaN becomes
// 0.
KFI_DEVICE void kfi_cast(float *d, float s) { *d = s; }
KFI_DEVICE void kfi_cast(kf_f16 *d, float s) { *d = __float2half_rn(s); }
KFI_DEVICE void kfi_cast(kf_bf16 *d, float s) { *d = __float2bfloat16_rn(s); }
KFI_DEVICE void kfi_cast(double *d, float s) { *d = s; }
KFI_DEVICE void kfi_cast(kf_i32 *d, float s) { *d = __float2int_rz(s); }
KFI_DEVICE void kfi_cast(kf_i64 *d, float s) { *d = s != s ? 0 : __float2ll_rz(s); }
KFI_DEVICE void kfi_cast(float *d, double s) { *d = (float)s; }
KFI_DEVICE void kfi_cast(kf_f16 *d, double s) { *d = __double2half(s); }
KFI_DEVICE void kfi_cast(double *d, double s) { *d = s; }
KFI_DEVICE void kfi_cast(kf_i32 *d, double s) { *d = s != s ? 0 : __double2int_rz(s); }
KFI_DEVICE void kfi_cast(kf_i64 *d, double s) { *d = s != s ? 0 : __double2ll_rz(s); }
// Round to odd. A second rounding then gives the same result as a single one, because the last bit
// is sticky.
KFI_DEVICE float kfi_odd(double s)
{
    const float z = __double2float_rz(s);
    return (double)z == s || s != s ? z : __uint_as_float(__float_as_uint(z) | 1u);
}
KFI_DEVICE double kfi_odd(kf_i64 s)
{
    const double z = __ll2double_rz(s);
    return __double2ll_rz(z) == s ? z : __longlong_as_double(__double_as_longlong(z) | 1);
}
KFI_DEVICE void kfi_cast(kf_bf16 *d, double s) { *d = __float2bfloat16_rn(kfi_odd(s)); }
KFI_DEVICE void kfi_cast(float *d, kf_i32 s) { *d = (float)s; }
KFI_DEVICE void kfi_cast(double *d, kf_i32 s) { *d = s; }
KFI_DEVICE void kfi_cast(kf_i32 *d, kf_i32 s) { *d = s; }
KFI_DEVICE void kfi_cast(kf_i64 *d, kf_i32 s) { *d = s; }
KFI_DEVICE void kfi_cast(kf_f16 *d, kf_i32 s) { *d = __int2half_rn(s); }
KFI_DEVICE void kfi_cast(kf_bf16 *d, kf_i32 s) { kfi_cast(d, (double)s); }
KFI_DEVICE void kfi_cast(float *d, kf_i64 s) { *d = (float)s; }
KFI_DEVICE void kfi_cast(double *d, kf_i64 s) { *d = (double)s; }
KFI_DEVICE void kfi_cast(kf_i64 *d, kf_i64 s) { *d = s; }
KFI_DEVICE void kfi_cast(kf_f16 *d, kf_i64 s) { *d = __ll2half_rn(s); }
KFI_DEVICE void kfi_cast(kf_bf16 *d, kf_i64 s) { kfi_cast(d, kfi_odd(s)); }
KFI_DEVICE void kfi_cast(kf_i32 *d, kf_i64 s)
{
    *d = (kf_i32)(s > 2147483647 ? 2147483647 : s < -2147483647 - 1 ? -2147483647 - 1 : s);
}

// Conditions: 1 where the value is not 0.
KFI_DEVICE void kfi_cast(unsigned char *d, float s) { *d = s != 0.0f; }
KFI_DEVICE void kfi_cast(unsigned char *d, double s) { *d = s != 0.0; }
KFI_DEVICE void kfi_cast(unsigned char *d, kf_i32 s) { *d = s != 0; }
KFI_DEVICE void kfi_cast(unsigned char *d, kf_i64 s) { *d = s != 0; }

// Convert two floats at a time to 2-byte storage: one instruction for both.
template <int vec> KFI_DEVICE void kfi_pack_f16(kf_f16 *d, const float *s)
{
    if (vec == 1) kfi_cast(d, s[0]);
#pragma unroll
    for (int e = 0; e + 1 < vec; e += 2) *(__half2 *)(d + e) = __floats2half2_rn(s[e], s[e + 1]);
}
template <int vec> KFI_DEVICE void kfi_pack_bf16(kf_bf16 *d, const float *s)
{
    if (vec == 1) kfi_cast(d, s[0]);
#pragma unroll
    for (int e = 0; e + 1 < vec; e += 2)
        *(__nv_bfloat162 *)(d + e) = __floats2bfloat162_rn(s[e], s[e + 1]);
}

// Integers wrap: computed as unsigned, where overflow is defined.
KFI_DEVICE kf_i32 kfi_add_i32(kf_i32 a, kf_i32 b) { return (kf_i32)((unsigned)a + (unsigned)b); }
KFI_DEVICE kf_i32 kfi_sub_i32(kf_i32 a, kf_i32 b) { return (kf_i32)((unsigned)a - (unsigned)b); }
KFI_DEVICE kf_i32 kfi_mul_i32(kf_i32 a, kf_i32 b) { return (kf_i32)((unsigned)a * (unsigned)b); }
KFI_DEVICE kf_i32 kfi_max_i32(kf_i32 a, kf_i32 b) { return a > b ? a : b; }
KFI_DEVICE kf_i32 kfi_min_i32(kf_i32 a, kf_i32 b) { return a < b ? a : b; }
KFI_DEVICE kf_i64 kfi_add_i64(kf_i64 a, kf_i64 b)
{
    return (kf_i64)((unsigned long long)a + (unsigned long long)b);
}
KFI_DEVICE kf_i64 kfi_sub_i64(kf_i64 a, kf_i64 b)
{
    return (kf_i64)((unsigned long long)a - (unsigned long long)b);
}
KFI_DEVICE kf_i64 kfi_mul_i64(kf_i64 a, kf_i64 b)
{
    return (kf_i64)((unsigned long long)a * (unsigned long long)b);
}
KFI_DEVICE kf_i64 kfi_max_i64(kf_i64 a, kf_i64 b) { return a > b ? a : b; }
KFI_DEVICE kf_i64 kfi_min_i64(kf_i64 a, kf_i64 b) { return a < b ? a : b; }
#endif

#endif
