/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/launchers.h: shared by the generated kf_launchers.h and kf_launchers_<dtype>.cu. */
#ifndef KF_CORE_LAUNCHERS_H
#define KF_CORE_LAUNCHERS_H

#include "kf/core/host.h"

#include <stddef.h>
#include <stdint.h>

#include "kf/core/dtype.h"
#include "kf/core/pitch.h"
#include "kf/core/result.h"
#include "kf/core/version.h"

struct CUstream_st; /* cudaStream_t and CUstream are pointers to it */

#define KFI_QUOTE(text) KFI_QUOTE_(text)
#define KFI_QUOTE_(text) #text
/* Each launcher `name` has a second symbol, name_abi1, to which compiled callers bind. A user's own
 * launcher has no ABI version: its symbol is name_abi1_<hash of the signature>. A program and
 * launchers that do not match fail to link or load, and the error names the missing symbol. Nothing
 * is checked at run time. */
#if defined(__GNUC__) && defined(__ELF__)
#define KFI_ABI_SYMBOL(name) name "_abi" KFI_QUOTE(KF_ABI_VERSION)
#define KFI_ABI_ALIAS(symbol, name)                                                                \
    __asm__(".globl " symbol "\n\t.type " symbol ", %function\n\t.set " symbol ", " name);
#endif
#if defined(KFI_ABI_SYMBOL) && !defined(KFI_LAUNCHERS_SOURCE)
#define KFI_LINKED(name) __asm__(KFI_ABI_SYMBOL(#name))
#define KFI_LINKED_AS(name, hash) __asm__(KFI_ABI_SYMBOL(#name) "_" #hash)
#else
#define KFI_LINKED(name)
#define KFI_LINKED_AS(name, hash)
#endif

/* Checks that launchers found at run time (dlopen, dlsym) match this header. file: name for the
 * message, "kf_launchers_f32"; built: the result of its kf_launchers_f32_abi_version(). */
KFI_HOST kf_result_t kf_check_abi(const char *file, int built)
{
    if (built == KF_ABI_VERSION) return KF_SUCCESS;
    snprintf(kfi_error_detail, sizeof kfi_error_detail,
             "kf: %.80s was built with ABI %d, this header is ABI %d: rebuild %.80s.cu", file,
             built, KF_ABI_VERSION, file);
    return KF_ERROR_UNSUPPORTED;
}

#endif
