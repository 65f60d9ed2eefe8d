// SPDX-License-Identifier: Apache-2.0
// kf/core/schedules.cuh: addresses in a launcher's table of kernels that KF_SCHEDULES, or an
// emulation, may leave out: NULL, and the kernel is not compiled.
#ifndef KF_CORE_SCHEDULES_CUH
#define KF_CORE_SCHEDULES_CUH

#include "kf/core/config.h"

// Kernels that load by cp.async, or through registers from any address (KF_SCHEDULES 2 and 1).
#if KF_SCHEDULES & 2
#define KFI_CP_ASYNC_ADDRESS KFI_ADDRESS
#define KFI_CP_ASYNC_STATE_ADDRESS KFI_STATE_ADDRESS
#else
#define KFI_CP_ASYNC_ADDRESS(...) nullptr
#define KFI_CP_ASYNC_STATE_ADDRESS(...) nullptr
#endif
#if KF_SCHEDULES & 1
#define KFI_VIA_REGISTERS_ADDRESS KFI_ADDRESS
#define KFI_VIA_REGISTERS_STATE_ADDRESS KFI_STATE_ADDRESS
#else
#define KFI_VIA_REGISTERS_ADDRESS(...) nullptr
#define KFI_VIA_REGISTERS_STATE_ADDRESS(...) nullptr
#endif
// Kernels for devices before sm_80. Their code for others never runs.
#ifndef KFI_PRE_SM80_ADDRESS
#if KF_SCHEDULES & 1
#define KFI_PRE_SM80_ADDRESS KFI_ADDRESS
#define KFI_PRE_SM80_STATE_ADDRESS KFI_STATE_ADDRESS
#else
#define KFI_PRE_SM80_ADDRESS(...) nullptr
#define KFI_PRE_SM80_STATE_ADDRESS(...) nullptr
#endif
#endif

// Kernels for sm_90a.
#ifndef KFI_SM90A_ADDRESS
#define KFI_SM90A_ADDRESS KFI_ADDRESS
#define KFI_SM90A_STATE_ADDRESS KFI_STATE_ADDRESS
#endif
#if KF_SCHEDULES & 4
#define KFI_HOPPER_ADDRESS KFI_SM90A_ADDRESS
#define KFI_HOPPER_STATE_ADDRESS KFI_SM90A_STATE_ADDRESS
#else
#define KFI_HOPPER_ADDRESS(...) nullptr
#define KFI_HOPPER_STATE_ADDRESS(...) nullptr
#endif

// Cooperative tiles for grids of a single wave.
#if KF_SCHEDULES & 8
#define KFI_SINGLE_WAVE_ADDRESS KFI_HOPPER_ADDRESS
#else
#define KFI_SINGLE_WAVE_ADDRESS(...) nullptr
#endif

#endif
