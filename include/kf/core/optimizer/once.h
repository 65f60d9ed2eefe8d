/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/optimizer/once.h: functions of the values that an optimizer computes once per call, in
 * float64: by the host, or by each block from numbers in device memory. */
#ifndef KF_CORE_OPTIMIZER_ONCE_H
#define KF_CORE_OPTIMIZER_ONCE_H

#include "kf/core/config.h"
#ifndef __CUDACC_RTC__
#include <math.h>
#endif

/* Returns a^n for a whole number n by repeated squaring: the same bits on host and device. */
KFI_BOTH double kfi_once_pow(double a, double n)
{
    double power = 1.0, square = a;
    for (unsigned long long left = n >= 1.0 ? (unsigned long long)n : 0; left; left >>= 1) {
        if (left & 1) power *= square;
        square *= square;
    }
    return power;
}
KFI_BOTH double kfi_once_sqrt(double a) { return sqrt(a); }
KFI_BOTH double kfi_once_exp(double a) { return exp(a); }
KFI_BOTH double kfi_once_log(double a) { return log(a); }
KFI_BOTH double kfi_once_abs(double a) { return a < 0.0 ? -a : a; }
/* NaN if an argument is NaN. */
KFI_BOTH double kfi_once_max(double a, double b) { return a > b || a != a ? a : b; }
KFI_BOTH double kfi_once_min(double a, double b) { return a < b || a != a ? a : b; }
KFI_BOTH double kfi_once_where(int condition, double a, double b) { return condition ? a : b; }

#endif
