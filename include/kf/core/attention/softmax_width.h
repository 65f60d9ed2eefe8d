/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/softmax_width.h: rows of scores for one vector width, KFI_ATTENTION_BYTES.
   Included by core/attention/softmax.h once per width; empty otherwise. */
#ifdef KFI_ATTENTION_BYTES

#if KFI_ATTENTION_BYTES == 64
#define KFI_ATTENTION_TARGET __attribute__((target("avx512f,avx2,fma,f16c")))
#elif KFI_ATTENTION_BYTES == 32
#define KFI_ATTENTION_TARGET __attribute__((target("avx2,fma,f16c")))
#else
#define KFI_ATTENTION_TARGET
#endif

#define KFI_ATTENTION_TYPE f32
#define KFI_ATTENTION_REAL float
#define KFI_ATTENTION_INTEGER int32_t
#include "kf/core/attention/softmax_row.h"

#define KFI_ATTENTION_TYPE f64
#define KFI_ATTENTION_REAL double
#define KFI_ATTENTION_INTEGER int64_t
#include "kf/core/attention/softmax_row.h"

#undef KFI_ATTENTION_TARGET
#undef KFI_ATTENTION_BYTES

#endif
