// SPDX-License-Identifier: Apache-2.0
// Instances of the attention kernels of kf/core/attention, with three hand-written scores, behind
// one C function for the tests. A score is named as the op's tag would be.
#ifndef ATTENTION_KERNEL_CUH
#define ATTENTION_KERNEL_CUH

#include <kf/core/attention/score.cuh>

#define SCORE_SOFTCAP 1 // softcap * tanh(q . k * scale / softcap)
#define SCORE_BIAS 2    // q . k * scale + bias[query, key]

#ifdef KFI_DEVICE_PASS
template <int keys>
KFI_DEVICE void kfi_score_load(kfi_tag<SCORE_SOFTCAP>, kfi_score_block<SCORE_SOFTCAP, keys> &,
                               const kfi_attention &, int, int, int, int)
{
}
template <int keys, class real>
KFI_DEVICE real kfi_score_at(kfi_tag<SCORE_SOFTCAP>, const kfi_attention &a,
                             const kfi_score_block<SCORE_SOFTCAP, keys> &, real dot, int)
{
    const real cap = (real)a.score.scalars_f64[1];
    return cap * (real)tanh(dot * (real)a.score.scalars_f64[0] / cap);
}

// float bias [queries, keys] with a row stride; half of a thread's keys belong to each row.
template <int keys> struct kfi_score_block<SCORE_BIAS, keys> {
    double bias[keys / 2];
};
template <int keys>
KFI_DEVICE void kfi_score_load(kfi_tag<SCORE_BIAS>, kfi_score_block<SCORE_BIAS, keys> &block,
                               const kfi_attention &a, int row, int key, int head, int)
{
    const float *const bias = (const float *)a.score.tensors[0] + head * a.score.strides[0].head;
    for (int i = 0; i < keys / 2; ++i) {
        const int r = row + 8 * kfi_score_row(i), k = key + kfi_score_key(i);
        block.bias[i] = r < a.queries && k < a.keys ? bias[r * a.score.strides[0].row + k] : 0.0;
    }
}
template <int keys, class real>
KFI_DEVICE real kfi_score_at(kfi_tag<SCORE_BIAS>, const kfi_attention &a,
                             const kfi_score_block<SCORE_BIAS, keys> &block, real dot, int i)
{
    return dot * (real)a.score.scalars_f64[0] + (real)block.bias[i];
}
#endif

#endif
