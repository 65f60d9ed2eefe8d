// SPDX-License-Identifier: Apache-2.0
#ifndef UPDATES_CUH
#define UPDATES_CUH

#include "kf/core/list.cuh"
#include "kf/core/math.cuh"
#ifdef KFI_HOST_PASS
#include "updates/updates.h"
#endif

#define UPDATES_THREADS 256

#endif
