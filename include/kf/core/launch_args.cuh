// SPDX-License-Identifier: Apache-2.0
// kf/core/launch_args.cuh: a launch in the words of CUDA's runtime and, the same, of its driver.
#ifndef KF_CORE_LAUNCH_ARGS_CUH
#define KF_CORE_LAUNCH_ARGS_CUH

#include "kf/core/host.h"

#include "kf/core/config.h"
#ifdef KFI_DRIVER
#include <cuda.h>
#include <vector_types.h>
typedef CUstream cudaStream_t; // the runtime's name of the same type
#else
#include <cuda_runtime.h>
#endif

struct kfi_call {
    dim3 blocks;
    unsigned threads;
    void **args;
    cudaStream_t stream;
    bool early;      // may begin while the kernel before it ends
    unsigned shared; // bytes of dynamic shared memory
    unsigned cluster;
    unsigned most; // that the kernel is allowed of it: the same whatever this launch has, since
                   // other threads launch the kernel too
};

#endif
