/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONV1D_H
#define CONV1D_H

#include <math.h>

#include "kf/core/elementwise/elementwise.h"

#include "conv1d/plan.h"

#endif
