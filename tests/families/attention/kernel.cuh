// SPDX-License-Identifier: Apache-2.0
// Instances of the attention kernels of kf/core/attention, with three hand-written scores, behind
// one C function for the tests. A score is named as the op's tag would be.
#ifndef ATTENTION_KERNEL_CUH
#define ATTENTION_KERNEL_CUH

#include <kf/core/attention/score.cuh>

#define SCORE_SOFTCAP 1 // softcap * tanh(q . k * scale / softcap)
#define SCORE_BIAS 2    // q . k * scale + bias[query, key]

#ifdef KFI_DEVICE_PASS
template <int keys, int transposed>
KFI_DEVICE void kfi_score_load(kfi_tag<SCORE_SOFTCAP>,
                               kfi_score_block<SCORE_SOFTCAP, keys, transposed> &,
                               const kfi_attention &, int, int, int, int)
{
}
template <int keys, int transposed, class real>
KFI_DEVICE real kfi_score_at(kfi_tag<SCORE_SOFTCAP>, const kfi_attention &a,
                             const kfi_score_block<SCORE_SOFTCAP, keys, transposed> &, real dot,
                             int)
{
    const real cap = (real)a.score.scalars_f64[1];
    return cap * (real)tanh(dot * (real)a.score.scalars_f64[0] / cap);
}
template <int keys, int transposed, class real>
KFI_DEVICE real kfi_score_bwd(kfi_tag<SCORE_SOFTCAP>, const kfi_attention &a,
                              const kfi_score_block<SCORE_SOFTCAP, keys, transposed> &, real dot,
                              int, real dscore, real *)
{
    const real scale = (real)a.score.scalars_f64[0],
               t = (real)tanh(dot * scale / (real)a.score.scalars_f64[1]);
    return dscore * scale * (1 - t * t);
}

// float bias [queries, keys] with a row stride; half of a thread's elements belong to each row.
template <int keys, int transposed> struct kfi_score_block<SCORE_BIAS, keys, transposed> {
    double bias[keys / 2];
};
template <int keys, int transposed>
KFI_DEVICE void kfi_score_load(kfi_tag<SCORE_BIAS>,
                               kfi_score_block<SCORE_BIAS, keys, transposed> &block,
                               const kfi_attention &a, int row, int key, int head, int batch)
{
    float bias[keys / 2];
    kfi_score_fetch<keys, transposed>(bias, 0, a, row, key, head, batch);
    for (int i = 0; i < keys / 2; ++i) block.bias[i] = bias[i];
}
template <int keys, int transposed, class real>
KFI_DEVICE real kfi_score_at(kfi_tag<SCORE_BIAS>, const kfi_attention &a,
                             const kfi_score_block<SCORE_BIAS, keys, transposed> &block, real dot,
                             int i)
{
    return dot * (real)a.score.scalars_f64[0] + (real)block.bias[i];
}
template <int keys, int transposed, class real>
KFI_DEVICE real kfi_score_bwd(kfi_tag<SCORE_BIAS>, const kfi_attention &a,
                              const kfi_score_block<SCORE_BIAS, keys, transposed> &, real, int,
                              real dscore, real *tensors)
{
    tensors[0] = dscore;
    return dscore * (real)a.score.scalars_f64[0];
}
KFI_DEVICE void kfi_score_store(kfi_tag<SCORE_BIAS>, void *to, int, kf_i64 at, float v)
{
    ((float *)to)[at] = v;
}
#endif

KFI_BOTH constexpr bool kfi_score_gradients(kfi_tag<SCORE_BIAS>) { return true; }

#endif
