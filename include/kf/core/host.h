/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/host.h: the first include of host-only headers. Under NVRTC it reports which headers to
 * include, before the compiler complains about a missing <stdint.h>. */
#ifndef KF_CORE_HOST_H
#define KF_CORE_HOST_H

#ifdef __CUDACC_RTC__
#error "kf: this header is for the host; under NVRTC include kf/kf.cuh, \
kf/ops/<op>.cuh or the kf/core/*.cuh of device code"
#endif

#endif
