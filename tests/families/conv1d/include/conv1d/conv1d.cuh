// SPDX-License-Identifier: Apache-2.0
#ifndef CONV1D_CUH
#define CONV1D_CUH

#include "kf/core/elementwise/elementwise.cuh"

#include "conv1d/plan.h"

#ifdef KFI_DEVICE_PASS
KFI_DEVICE float conv1d_load(const float *s) { return *s; }
KFI_DEVICE double conv1d_load(const double *s) { return *s; }
KFI_DEVICE float conv1d_load(const kf_f16 *s) { return __half2float(*s); }
KFI_DEVICE float conv1d_load(const kf_bf16 *s) { return __bfloat162float(*s); }
#endif

#ifdef KFI_HOST_PASS
struct conv1d_call {
    kfi_name name;
    kfi_arguments arguments;
    bool packed;
    int inputs;
    const void *kernel;
};
KF_FN kf_result_t conv1d_run(const conv1d_call &m, const kfi_shape_values &v, conv1d_shape *g,
                             void **args, cudaStream_t stream)
{
    int wanted = 0;
    const kf_result_t result =
        conv1d_check(&m.name, &m.arguments, m.packed, m.inputs, &v, g, &wanted);
    kf_i64 threads = 0;
    for (int i = 0; i < 3; ++i)
        if (wanted && g->count[i] && m.arguments.tensors[m.inputs + i]) threads += g->count[i];
    if (threads == 0) return result;
    const kf_i64 blocks = kfi_ceil(threads, 128);
    if (blocks > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch",
                        "of %lld elements needs too many blocks", (long long)threads);
    return kfi_launch(&m.name, m.kernel, dim3((unsigned)blocks), 128, args, stream);
}
#endif

#endif
