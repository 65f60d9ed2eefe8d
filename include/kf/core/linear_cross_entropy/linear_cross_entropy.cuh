// SPDX-License-Identifier: Apache-2.0
// kf/core/linear_cross_entropy/linear_cross_entropy.cuh: linear cross entropy in CUDA. For each
// chunk of rows the host calls the launchers of the layer, the loss and the layer's gradients on
// one stream. It does not synchronise.
#ifndef KF_CORE_LINEAR_CROSS_ENTROPY_LINEAR_CROSS_ENTROPY_CUH
#define KF_CORE_LINEAR_CROSS_ENTROPY_LINEAR_CROSS_ENTROPY_CUH

#include "kf/core/kernel.cuh"

#ifdef KFI_HOST_PASS
#include "kf/core/linear_cross_entropy/linear_cross_entropy.h"
#endif

#endif
