// SPDX-License-Identifier: Apache-2.0
// kf/core/optimizer/optimizer.cuh: a step of an optimizer over lists of tensors in CUDA;
// templates/optimizer/kernel.cuh.j2 is the kernel.
//
// Grid: one block per KFI_MAX_CHUNK elements of a tensor (core/list.cuh), block: 256 threads. A
// thread updates vectors of 16 bytes of the widest list; of tensors that are not aligned to 16
// bytes, element by element. Values that depend on numbers in device memory are computed by the
// block's first thread, in float64, and shared.
#ifndef KF_CORE_OPTIMIZER_OPTIMIZER_CUH
#define KF_CORE_OPTIMIZER_OPTIMIZER_CUH

#include "kf/core/list.cuh"
#include "kf/core/math.cuh"
#include "kf/core/optimizer/once.h"
#ifdef KFI_HOST_PASS
#include "kf/core/optimizer/check.h"
#endif

#define KFI_OPTIMIZER_THREADS 256
#define KFI_OPTIMIZER_BLOCKS 4 // blocks that an SM holds: at most 64 registers per thread

#endif
