// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/softmax.cuh: online softmax of the tensor-core kernels, on fragments of 16 rows
// per warp: a thread has rows g and g + 8 (g = lane / 4) and of each 8 keys two. (The layout of
// mma.sync and of wgmma.)
//
// Lazy rescaling: a row keeps its reference while exponents stay below 2^8, so that sums and
// accumulators are rarely rescaled. Sums stay per thread until the end. float, ex2.approx.
#ifndef KF_CORE_ATTENTION_SOFTMAX_CUH
#define KF_CORE_ATTENTION_SOFTMAX_CUH

#include "kf/core/attention/score.cuh"
#include "kf/core/ptx/math.cuh"

#ifdef KFI_DEVICE_PASS

// Softmax state of a thread's two rows.
struct kfi_softmax {
    float reference[2]; // units of log2_unit
    float sum[2];       // exponentials of this thread
    float rescale[2];   // factor of what was summed before
};
// A sink is a first score, which one thread of the quad adds. refused: results are NaN.
template <int score>
KFI_DEVICE kfi_softmax kfi_softmax_init(const kfi_attention &a, int head, bool refused)
{
    const float sink = kfi_score_sink<float>(kfi_tag<score>(), a, head),
                sum = refused                                                ? kfi_attention_nan()
                      : sink != kfi_minus_infinity() && threadIdx.x % 4 == 0 ? 1.0f
                                                                             : 0.0f;
    const kfi_softmax s = {{sink, sink}, {sum, sum}, {1, 1}};
    return s;
}

// Sets scores of invisible keys to -inf. block: the key block of a step, `key` the thread's first
// key of it.
template <int n, class real>
KFI_DEVICE void kfi_attention_mask(real *s, const kfi_attention &a, const kfi_attention_blocks &b,
                                   int, int block, int row, int key)
{
    if (block > b.last_whole) {
        const int most0 = kfi_attention_last_key(a, row) - key,
                  most1 = kfi_attention_last_key(a, row + 8) - key;
#pragma unroll
        for (int i = 0; i < n; ++i)
            if (kfi_score_key(i) > (kfi_score_row(i) ? most1 : most0)) s[i] = kfi_minus_infinity();
    }
    if (block < b.first_whole) {
        const int least0 = kfi_attention_first_key(a, row) - key,
                  least1 = kfi_attention_first_key(a, row + 8) - key;
#pragma unroll
        for (int i = 0; i < n; ++i)
            if (kfi_score_key(i) < (kfi_score_row(i) ? least1 : least0))
                s[i] = kfi_minus_infinity();
    }
}

// Maximum over the row of a thread's quad.
template <int keys> KFI_DEVICE float kfi_softmax_row_max(const float *s, int h)
{
    float x0 = s[2 * h], x1 = s[2 * h + 1];
#pragma unroll
    for (int j = 1; j < keys / 8; ++j) {
        x0 = fmaxf(x0, s[4 * j + 2 * h]);
        x1 = fmaxf(x1, s[4 * j + 2 * h + 1]);
    }
    x0 = fmaxf(x0, x1);
    x0 = fmaxf(x0, __shfl_xor_sync(0xffffffffu, x0, 1));
    return fmaxf(x0, __shfl_xor_sync(0xffffffffu, x0, 2));
}

// Turns scores into exponentials in place. Returns, for the whole warp alike, whether the
// accumulators must be rescaled. The vote reads the sums: what stands behind a branch on it, a wait
// for wgmma, stays behind the exponentials, where ptxas would hoist it.
template <int score, int keys>
KFI_DEVICE bool kfi_softmax_block(float *s, kfi_softmax *state, float log2_unit)
{
    bool any = false;
#pragma unroll
    for (int h = 0; h < 2;
         ++h) { // row by row: the maxima of one run under the exponentials of the other
        float shift = 0;
        if constexpr (kfi_score_is_bounded(kfi_tag<score>())) {
            state->reference[h] = 0;
            state->rescale[h] = 1;
        } else {
            const float old = state->reference[h],
                        most = fmaxf(old, kfi_softmax_row_max<keys>(s, h));
            const bool up = (most - old) * log2_unit > 8.0f;
            state->rescale[h] = up ? kfi_ex2_ftz((old - most) * log2_unit) : 1.0f;
            state->reference[h] = up ? most : old;
            any |= up;
            shift = state->reference[h] == kfi_minus_infinity() ? 0.0f
                                                                : state->reference[h] * log2_unit;
        }
        float y0 = 0, y1 = 0;
#pragma unroll
        for (int j = 0; j < keys / 8; ++j) {
            float *const pair = s + 4 * j + 2 * h;
            y0 += pair[0] = kfi_ex2_ftz(__fmaf_rn(pair[0], log2_unit, -shift));
            y1 += pair[1] = kfi_ex2_ftz(__fmaf_rn(pair[1], log2_unit, -shift));
        }
        state->sum[h] = state->sum[h] * state->rescale[h] + (y0 + y1);
    }
    return __any_sync(0xffffffffu, any || state->sum[0] + state->sum[1] < 0.0f);
}

// Packs two values of a type into a word, the first one low.
template <int type> KFI_DEVICE unsigned kfi_attention_pack(float low, float high)
{
    const float pair[] = {low, high};
    alignas(4) unsigned packed;
    if constexpr (type == KFI_OF_BF16)
        kfi_pack_bf16<2>((kf_bf16 *)(void *)&packed, pair);
    else
        kfi_pack_f16<2>((kf_f16 *)(void *)&packed, pair);
    return packed;
}
// Converts exponentials to fragments of the second product.
template <int type, int keys> KFI_DEVICE void kfi_attention_convert(unsigned *p, const float *s)
{
#pragma unroll
    for (int i = 0; i < keys / 4; ++i) p[i] = kfi_attention_pack<type>(s[2 * i], s[2 * i + 1]);
}
template <int dim_v> KFI_DEVICE void kfi_attention_rescale(float *o, const kfi_softmax &state)
{
#pragma unroll
    for (int i = 0; i < dim_v / 2; ++i) o[i] *= state.rescale[i >> 1 & 1];
}
#endif

#endif
