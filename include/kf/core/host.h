/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/host.h: included first by headers for the host alone, so that whoever meets one under
   NVRTC reads what to do, and not that there is no <stdint.h>. */
#ifndef KF_CORE_HOST_H
#define KF_CORE_HOST_H

#ifdef __CUDACC_RTC__
#error                                                                                             \
    "kf: this header is for the host; under NVRTC include kf/kf.cuh, kf/ops/<op>.cuh or the kf/core/*.cuh of device code"
#endif

#endif
