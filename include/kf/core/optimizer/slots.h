/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/optimizer/slots.h: slots of a tensor, in C and CUDA. A slot is a run of chunks whose
 * elements a CTA or a task adds up. The slots of a tensor depend on its length alone, and so do the
 * bits of sums over it. */
#ifndef KF_CORE_OPTIMIZER_SLOTS_H
#define KF_CORE_OPTIMIZER_SLOTS_H

#include "kf/core/config.h"
#include "kf/core/dtype.h"
#include "kf/core/limits.h"

#ifndef KFI_TENSOR_SLOTS
#define KFI_TENSOR_SLOTS 512       /* slots of a tensor, at most */
#define KFI_TENSOR_SLOTS_ALL 16384 /* slots of a launch, at most */
#endif

/* Returns the elements of a slot; the last one of a tensor may have fewer. */
KFI_BOTH kf_i64 kfi_slot_length(kf_i64 length)
{
    const kf_i64 most = (kf_i64)KFI_MAX_CHUNK * KFI_TENSOR_SLOTS;
    return (length / most + (length % most != 0)) * KFI_MAX_CHUNK;
}
/* Returns the slots of a tensor; 0 if it is empty. */
KFI_BOTH int kfi_slots_of(kf_i64 length)
{
    const kf_i64 one = kfi_slot_length(length);
    return length > 0 ? (int)((length - 1) / one) + 1 : 0;
}

#endif
