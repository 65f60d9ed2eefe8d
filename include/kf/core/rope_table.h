/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/rope_table.h: the former path of <kf/rope_table.h>. */
#ifndef KF_CORE_ROPE_TABLE_H
#define KF_CORE_ROPE_TABLE_H
#include "kf/rope_table.h"
#endif
