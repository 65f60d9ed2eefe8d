/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/implementation.h: the definitions of kf/runtime.h, for the one file of a program that
 * defines KF_RUNTIME_IMPLEMENTATION. */
#ifndef KF_RUNTIME_IMPLEMENTATION_H
#define KF_RUNTIME_IMPLEMENTATION_H

#if !defined(__GNUC__) || !defined(__ELF__)
#error "kf: the runtime needs gcc or clang on a POSIX system with ELF objects"
#endif

/* Tests define KF_RUNTIME_CUDA, over their own CUDA runtime. */
#if defined(__CUDACC__) || defined(KF_RUNTIME_CUDA)
#define KFI_RT_CUDA 1
#if defined(__CUDACC__) || defined(KF_EMULATE)
#define KFI_RT_KERNELS 1
#endif
#endif

#include "kf/runtime/state.h"

#include "kf/runtime/device_cpu.h"
#ifdef KFI_RT_CUDA
#include "kf/runtime/device_cuda.cuh"
#endif
#include "kf/runtime/context.h"
#include "kf/runtime/pool.h"
#include "kf/runtime/stream.h"
#include "kf/runtime/tensor.h"
#include "kf/runtime/view.h"
#include "kf/runtime/copy.h"
#include "kf/runtime/dlpack.h"
#include "kf/runtime/lookup.h"

#endif
