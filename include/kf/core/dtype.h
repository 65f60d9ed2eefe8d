/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/dtype.h: the element types. On its own it defines kf_f16, kf_bf16 and kf_i64. */
#ifndef KF_CORE_DTYPE_H
#define KF_CORE_DTYPE_H

/* CUDA's own types under nvcc and NVRTC, in both passes of nvcc, so that host and device agree. */
#if defined(__CUDACC__) || defined(__CUDACC_RTC__) || defined(KF_EMULATE)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
typedef __half kf_f16;
typedef __nv_bfloat16 kf_bf16;
typedef long long kf_i64; /* NVRTC has no <stdint.h> */
#else
#include <stdint.h>
/* Structs, not integers, so that adding two of them by mistake does not compile. */
typedef struct {
    uint16_t bits;
} kf_f16;
typedef struct {
    uint16_t bits;
} kf_bf16;
typedef int64_t kf_i64;
#endif

/* ABI: the numbers never change. KF_U8 also stands for bool: one byte, 0 or nonzero. */
enum kf_dtype_t {
    KF_F32 = 0,
    KF_F16 = 1,
    KF_BF16 = 2,
    KF_F64 = 3,
    KF_I32 = 4,
    KF_I64 = 5,
    KF_U8 = 6
};
#ifndef __cplusplus
typedef enum kf_dtype_t kf_dtype_t; /* C++ defines the name with the enum */
#endif

#endif
