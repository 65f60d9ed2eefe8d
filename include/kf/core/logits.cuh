// SPDX-License-Identifier: Apache-2.0
// kf/core/logits.cuh: linear cross entropy in CUDA. For each chunk of rows the host calls the
// launchers of the layer, the loss and the layer's gradients on one stream. It does not
// synchronise.
#ifndef KF_CORE_LOGITS_CUH
#define KF_CORE_LOGITS_CUH

#include "kf/core/map.cuh"

#ifdef KFI_HOST_PASS
#include "kf/core/logits.h"
#endif

#endif
