// SPDX-License-Identifier: Apache-2.0
// kf/core/logits.cuh: ops over the rows of a product that is never all there, in CUDA: their parts'
// launchers are called for a chunk of rows after the other, on one stream, and nobody waits for
// them.
#ifndef KF_CORE_LOGITS_CUH
#define KF_CORE_LOGITS_CUH

#include "kf/core/map.cuh"

#ifdef KFI_HOST_PASS
#include "kf/core/logits.h"
#endif

#endif
