// SPDX-License-Identifier: Apache-2.0
// kf/core/product_types.cuh: element types of matrix products.
#ifndef KF_CORE_PRODUCT_TYPES_CUH
#define KF_CORE_PRODUCT_TYPES_CUH

#define KFI_OF_BF16 0
#define KFI_OF_F16 1
#define KFI_OF_F32 2
#define KFI_OF_F64 3
#define KFI_OF_TF32 4 // float storage, rounded to 11 bits in products

#endif
