/* SPDX-License-Identifier: Apache-2.0 */
/* The emulation's cuda_runtime.h. It comes first on the include path and first in a file; then g++ compiles kf's CUDA
   headers as they are, kernels and launchers in one pass, and emu.cpp runs the kernels. Types, error codes and the launch's
   configuration are CUDA's own, and so are __half and __nv_bfloat16. __CUDACC__ stays undefined: CUDA's headers would take
   g++ for nvcc. */
#ifndef KF_EMU_CUDA_RUNTIME_H
#define KF_EMU_CUDA_RUNTIME_H

#define KF_EMULATE 1

#include <driver_types.h>
#include <vector_functions.h>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
/* One block runs at a time, so that a block's memory may be static; shared.ld collects it. */
#define __shared__ static

#include "emu.h"
#include "emu_math.h"

#endif
