/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/multi_head.h: multi-head attention with its projections, and its gradients, as one
 * call each on tensors (docs/runtime.md). Headers of `kfgen runtime` include it and define the
 * array of ops that it calls (gen/kfgen/entries/compositions.toml). */
#ifndef KF_RUNTIME_MULTI_HEAD_H
#define KF_RUNTIME_MULTI_HEAD_H

#include "kf/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- multi-head attention: in headers of `kfgen runtime` with linear and at least one of
 * attention, causal_attention, mask_attention and bias_attention. */
/* Arguments of kf_fused_multi_head_attention. All tensors have the dtype of `query`, but a mask may
 * be of bytes. NULL tensors are absent, and 0 is the default of every number. The weights are those
 * of torch.nn.MultiheadAttention. */
typedef struct kf_multi_head_attention_t {
    /* [batch, queries, embed], [batch, keys, key_embed], [batch, keys, value_embed]; key NULL:
     * query; value NULL: key */
    const kf_tensor_t *query, *key, *value;
    /* One weight [(heads + 2 * kv_heads) * dim, embed], with the rows of q, k and v in this order,
     * or three: [heads * dim, embed], [kv_heads * dim, key_embed], [kv_heads * dim_v,
     * value_embed]. The bias has the rows of all three. */
    const kf_tensor_t *in_proj_weight;
    const kf_tensor_t *q_proj_weight, *k_proj_weight, *v_proj_weight;
    const kf_tensor_t *in_proj_bias;
    const kf_tensor_t *out_proj_weight; /* [out_embed, heads * dim_v] */
    const kf_tensor_t *out_proj_bias;   /* [out_embed] */
    /* broadcasts to [batch, heads, queries, keys]: numbers to add to the scores, or, in uint8, 0
     * where a query does not see a key; excludes is_causal */
    const kf_tensor_t *mask;
    /* [batch, queries, out_embed]; without `saved` it may share memory with query, key and value */
    kf_tensor_t *out;
    /* Memory that the backward reads: contiguous uint8, at least as many as
     * kf_fused_multi_head_attention_saved_bytes returns. NULL: a call without a backward */
    kf_tensor_t *saved;
    int64_t heads;
    int64_t kv_heads;  /* a divisor of heads; 0: heads */
    double scale;      /* factor of the scores; 0: 1 / sqrt(dim) */
    int32_t is_causal; /* 1: the last query sees all keys, each query before it one key less */
} kf_multi_head_attention_t;
/* Projects query, key and value, computes attention, and projects its result. The three steps
 * round to the dtype; the memory between them comes from the context's pool. */
kf_result_t kf_fused_multi_head_attention(kf_context_t *ctx,
                                          const kf_multi_head_attention_t *arguments,
                                          kf_stream_t *stream);
/* Size of `saved` for these arguments, in bytes. It follows from the sizes and the dtype alone;
 * `out` and `saved` are not read. -1: the arguments are wrong. */
int64_t kf_fused_multi_head_attention_saved_bytes(kf_context_t *ctx,
                                                  const kf_multi_head_attention_t *arguments);

/* Gradients of kf_fused_multi_head_attention_bwd. Each has the shape of its argument and the dtype
 * of `query`; those of weights and biases may be float32 beside 2-byte tensors. NULL gradients are
 * not computed. */
typedef struct kf_multi_head_attention_gradients_t {
    const kf_tensor_t *dout; /* gradient of `out`; read */
    /* If the forward's key is NULL, dquery is the sum for query and key, and dkey NULL. If its
     * value is NULL, value counts where key does, and dvalue is NULL. */
    kf_tensor_t *dquery, *dkey, *dvalue;
    kf_tensor_t *din_proj_weight;
    kf_tensor_t *dq_proj_weight, *dk_proj_weight, *dv_proj_weight;
    kf_tensor_t *din_proj_bias;
    kf_tensor_t *dout_proj_weight;
    kf_tensor_t *dout_proj_bias;
    kf_tensor_t *dmask; /* for a mask of numbers; summed over the axes along which it broadcasts */
    /* Gradients of weights and biases are added to beta times what their tensors hold; 0: overwrite
     * them. */
    double beta;
} kf_multi_head_attention_gradients_t;
/* Gradients of kf_fused_multi_head_attention. `arguments` are those of the forward, with its
 * `saved` and unchanged tensors; `out` is not used and may be NULL. Gradients overlap no tensor
 * that is read and no other gradient. */
kf_result_t kf_fused_multi_head_attention_bwd(kf_context_t *ctx,
                                              const kf_multi_head_attention_t *arguments,
                                              const kf_multi_head_attention_gradients_t *gradients,
                                              kf_stream_t *stream);

#ifdef __cplusplus
}
#endif

#endif

/* Outside the include guard: another header may have included the declarations before. */
#ifdef KF_RUNTIME_IMPLEMENTATION
#include "kf/runtime/multi_head_call.h"
#include "kf/runtime/multi_head_bwd.h"
#endif
