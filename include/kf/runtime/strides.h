/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/strides.h: strided rows, described by the strides struct of a launcher. */
#ifndef KF_RUNTIME_STRIDES_H
#define KF_RUNTIME_STRIDES_H

#include "kf/runtime/sizes.h"

/* Sets an operand's fields in the struct; returns 0 if no number describes its strides. */
static int kfi_rt_set_strides(const kfi_rt_call *c, kfi_rt_prepared *m, const kfi_rt_operand *o,
                              const kf_tensor_t *t)
{
    return t->is_dense || kfi_layout_strides(&c->op->rules, &m->layout, &o->layout, t->shape,
                                             t->strides, o->is_out, m->strides, &m->apart);
}

#endif
