/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/version.h: the only place that defines the version. */
#ifndef KF_CORE_VERSION_H
#define KF_CORE_VERSION_H
#define KF_VERSION_MAJOR 0
#define KF_VERSION_MINOR 1
#define KF_VERSION_PATCH 0
#define KF_VERSION (KF_VERSION_MAJOR * 10000 + KF_VERSION_MINOR * 100 + KF_VERSION_PATCH)
/* ABI version of compiled launchers (kf_launchers.h). It rises when an existing result code, dtype
 * code, activation id, struct or signature changes; additions do not change it.
 * tests/golden/abi.golden lists them all. */
#define KF_ABI_VERSION 1
#endif
