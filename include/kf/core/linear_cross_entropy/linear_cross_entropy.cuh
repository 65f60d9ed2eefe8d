// SPDX-License-Identifier: Apache-2.0
// kf/core/linear_cross_entropy/linear_cross_entropy.cuh: ops over the rows of a product that is never all there, in CUDA: their parts'
// launchers are called for a chunk of rows after the other, on one stream, and nobody waits for
// them.
#ifndef KF_CORE_LINEAR_CROSS_ENTROPY_LINEAR_CROSS_ENTROPY_CUH
#define KF_CORE_LINEAR_CROSS_ENTROPY_LINEAR_CROSS_ENTROPY_CUH

#include "kf/core/kernel.cuh"

#ifdef KFI_HOST_PASS
#include "kf/core/linear_cross_entropy/linear_cross_entropy.h"
#endif

#endif
