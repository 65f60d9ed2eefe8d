/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/multi_head.h: multi-head attention with its projections, as one call on tensors
 * (docs/runtime.md). Headers of `kfgen runtime` include it and define the array of ops that it
 * calls (gen/kfgen/entries/compositions.toml). */
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
    kf_tensor_t *out; /* [batch, queries, out_embed]; may share memory with query, key and value */
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

#ifdef __cplusplus
}
#endif

#endif

/* Outside the include guard: another header may have included the declarations before. */
#ifdef KF_RUNTIME_IMPLEMENTATION
#include "kf/runtime/multi_head_call.h"
#endif
