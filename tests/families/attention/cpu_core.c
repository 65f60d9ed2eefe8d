/* SPDX-License-Identifier: Apache-2.0 */
/* Calls kf/core/attention/attention.h with hand-written scores, for attention_cpu.py. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kf/core/attention/attention.h"

enum { F32, F64, F16, BF16 };
enum { PLAIN, SOFTCAP, BIAS, MASK, ALIBI };

/* attention_cpu.py has the same fields. */
typedef struct {
    const void *q, *k, *v, *tensor, *sink;
    void *out, *lse, *row_max, *log_sum;
    int64_t strides[12], tensor_strides[4]; /* batch, row, head of q, k, v, out */
    int64_t batch, heads, kv_heads, queries, keys, dim, dim_v, shift, left, right, type, score;
    int64_t seed;
    double scale, softcap, p;
} attention_call;

#define SCORE(name, real, statement)                                                               \
    static void name(const kfi_attention_part *part, int count)                                    \
    {                                                                                              \
        real *const s = (real *)part->score;                                                       \
        const real *const value = (const real *)part->values[0];                                   \
        const attention_call *const call = (const attention_call *)part->scalars;                  \
        const real scale = (real)call->scale, softcap = (real)call->softcap;                       \
        (void)value, (void)scale, (void)softcap;                                                   \
        for (int j = 0; j < count; ++j) statement;                                                 \
    }
#define AWAY(real) ((real)(part->key + j - part->query))
SCORE(softcap_f32, float, s[j] = softcap * kfi_cpu_tanh_f32(s[j] * scale / softcap))
SCORE(softcap_f64, double, s[j] = softcap * kfi_cpu_tanh_f64(s[j] * scale / softcap))
SCORE(bias_f32, float, s[j] = s[j] * scale + value[j])
SCORE(bias_f64, double, s[j] = s[j] * scale + value[j])
SCORE(mask_f32, float, s[j] = value[j] != 0 ? s[j] * scale : -(float)INFINITY)
SCORE(mask_f64, double, s[j] = value[j] != 0 ? s[j] * scale : -(double)INFINITY)
SCORE(alibi_f32, float, s[j] = s[j] * scale + value[j] * AWAY(float))
SCORE(alibi_f64, double, s[j] = s[j] * scale + value[j] * AWAY(double))

static kfi_cpu_attention_strides strides(const int64_t *s)
{
    const kfi_cpu_attention_strides found = {s[0], s[1], s[2]};
    return found;
}
static void set_score(kfi_cpu_attention *m, const attention_call *c)
{
    static const kfi_attention_score_fn fns[][2] = {{NULL, NULL},
                                                    {softcap_f32, softcap_f64},
                                                    {bias_f32, bias_f64},
                                                    {mask_f32, mask_f64},
                                                    {alibi_f32, alibi_f64}};
    kfi_cpu_attention_tensor *const t = &m->score.tensor[0];
    m->score.fn = fns[c->score][c->type == F64];
    m->score.scalars = c;
    m->scale = m->score.fn ? 1 : c->scale;
    m->score.tensors = c->score >= BIAS;
    t->data = c->tensor;
    t->strides = strides(c->tensor_strides);
    t->key = c->tensor_strides[3];
    t->size = c->score == MASK ? 1 : m->type.element.size;
    t->widen = c->score != MASK ? m->type.element.widen
               : c->type == F64 ? kfi_attention_widen_u8_f64
                                : kfi_attention_widen_u8_f32;
}
#ifdef __cplusplus
extern "C" {
#endif
size_t attention_bytes(const attention_call *c)
{
    return kfi_cpu_attention_bytes(c->batch, c->heads, c->heads / c->kv_heads, c->queries, c->keys,
                                   c->dim, c->dim_v, c->type == F64 ? 8 : 4);
}
void attention(const attention_call *c, void *workspace)
{
    kfi_cpu_attention m;
    kfi_rng rng;
    memset(&m, 0, sizeof m);
    m.type = c->type == F32   ? kfi_cpu_attention_f32()
             : c->type == F64 ? kfi_cpu_attention_f64()
             : c->type == F16 ? kfi_cpu_attention_f16()
                              : kfi_cpu_attention_bf16();
    m.q = c->q, m.k = c->k, m.v = c->v, m.sink = c->sink, m.out = c->out;
    m.sink_type = m.type.element;
    m.lse = c->lse, m.row_max = c->row_max, m.log_sum = c->log_sum;
    m.q_strides = strides(c->strides), m.k_strides = strides(c->strides + 3);
    m.v_strides = strides(c->strides + 6), m.out_strides = strides(c->strides + 9);
    m.batch = c->batch, m.heads = c->heads, m.group = c->heads / c->kv_heads;
    m.queries = c->queries, m.keys = c->keys, m.dim = c->dim, m.dim_v = c->dim_v;
    m.row_head = c->queries, m.row_batch = c->heads * c->queries;
    m.range = kfi_cpu_attention_window(c->queries, c->keys, c->shift, c->left, c->right);
    set_score(&m, c);
    if (c->p > 0) {
        rng = kfi_make_rng(c->p, (kfi_u64)c->seed, 3, NULL, NULL);
        m.rng = &rng;
        m.numbers.row = c->keys, m.numbers.head = c->queries * c->keys;
        m.numbers.batch = c->heads * m.numbers.head;
    }
    kfi_cpu_attention_run(&m, workspace);
}
/* Bytes of a vector. */
int attention_width(void) { return kfi_cpu_gemm_lanes_f32().lanes * 4; }
#ifdef __cplusplus
}
#endif
