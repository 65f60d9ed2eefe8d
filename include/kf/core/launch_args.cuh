// SPDX-License-Identifier: Apache-2.0
// kf/core/launch_args.cuh: the launch parameters, common to the CUDA runtime and the driver API.
#ifndef KF_CORE_LAUNCH_ARGS_CUH
#define KF_CORE_LAUNCH_ARGS_CUH

#include "kf/core/host.h"

#include "kf/core/config.h"
#ifdef KFI_DRIVER
#include <cuda.h>
#include <vector_types.h>
typedef CUstream cudaStream_t; // the runtime's name for the same type
#else
#include <cuda_runtime.h>
#endif

struct kfi_call {
    dim3 blocks;
    unsigned threads;
    void **args;
    cudaStream_t stream;
    bool early;      // may start while the previous kernel runs
    unsigned shared; // bytes of dynamic shared memory
    unsigned cluster;
    // dynamic shared memory that the kernel is allowed: the same for all its launches, since other
    // threads launch it too
    unsigned most;
};

#endif
