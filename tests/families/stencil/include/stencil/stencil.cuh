// SPDX-License-Identifier: Apache-2.0
#ifndef STENCIL_CUH
#define STENCIL_CUH

#include "kf/core/elementwise/elementwise.cuh"

struct stencil_row {
    kf_i64 all, cols;
};

#ifdef KFI_HOST_PASS
struct stencil_call {
    kfi_name name;
    kfi_arguments arguments;
    const void *kernel;
};
KF_FN kf_result_t stencil_run(const stencil_call &m, kf_i64 rows, kf_i64 cols, stencil_row *g,
                              void **args, cudaStream_t stream)
{
    const kf_i64 sizes[] = {rows, cols};
    kf_result_t result = kfi_check_sizes(&m.name, "rows cols", sizes, 2);
    if (result != KF_SUCCESS || rows == 0 || cols == 0) return result;
    kf_i64 elements[KFI_MAX_TENSORS];
    for (kf_i64 &n : elements) n = rows * cols;
    const kfi_shape shape = {rows, 0, cols, 0, elements};
    kfi_operands operands;
    result = kfi_check_operands(&m.name, &m.arguments, &shape, nullptr, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    g->all = rows * cols;
    g->cols = cols;
    return kfi_launch(&m.name, m.kernel, dim3((unsigned)kfi_ceil(g->all, 128)), 128, args, stream);
}
#endif

#endif
