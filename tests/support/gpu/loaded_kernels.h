// SPDX-License-Identifier: Apache-2.0
// loaded.py includes it before kf's headers: NVRTC compiles every kernel, with KFT_OPTIONS. All
// files of a library share one loader.
#ifndef KFT_LOADED_KERNELS_H
#define KFT_LOADED_KERNELS_H

#include "../../../examples/nvrtc_loader.h"

inline CUresult kft_load(const char *name, CUfunction *function)
{
    static nvrtc_loader loader = {"#include <kf/kf.cuh>\n", {KFT_OPTIONS}, {}, {}};
    return loader.load(name, function);
}
#define KF_LOAD_KERNEL(name, function) kft_load(name, function)

#endif
