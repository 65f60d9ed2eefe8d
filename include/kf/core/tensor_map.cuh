// SPDX-License-Identifier: Apache-2.0
// kf/core/tensor_map.cuh: the tensor map and the L2 eviction policies of TMA copies.
#ifndef KF_CORE_TENSOR_MAP_CUH
#define KF_CORE_TENSOR_MAP_CUH

// A TMA tensor map, encoded by cuTensorMapEncodeTiled and passed as a `const __grid_constant__`
// kernel parameter.
struct alignas(128) kfi_tensor_map {
    unsigned long long words[16];
};

// L2 eviction policies (createpolicy.fractional, fraction 1): evict_first for data that is read
// once, evict_last for data that all blocks read.
#define KFI_READ_ONCE 0x12f0000000000000ull
#define KFI_READ_OFTEN 0x14f0000000000000ull

#endif
