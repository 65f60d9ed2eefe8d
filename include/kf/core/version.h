/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/version.h: the one place the version is written. */
#ifndef KF_CORE_VERSION_H
#define KF_CORE_VERSION_H
#define KF_VERSION_MAJOR 0
#define KF_VERSION_MINOR 1
#define KF_VERSION_PATCH 0
#define KF_VERSION (KF_VERSION_MAJOR * 10000 + KF_VERSION_MINOR * 100 + KF_VERSION_PATCH)
/* Of compiled launchers (kf_launchers.h). Raised when a result code, dtype code, activation's id,
   struct or signature that was there before changes; what is only added leaves it.
   tests/golden/abi.golden holds all of them. */
#define KF_ABI_VERSION 1
#endif
