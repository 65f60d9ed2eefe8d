/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: reports accesses to misaligned addresses, which x86 allows and a GPU refuses
   (cudaErrorMisalignedAddress).

   g++ checks the plain accesses of compiled files (-fsanitize=alignment) and calls the handler
   below, which takes the place of the sanitizer's. AddressSanitizer's variant has the sanitizer's
   own handler; ThreadSanitizer's checks the instructions of kf_emu_align alone. */
#ifndef KF_EMU_ALIGN_H
#define KF_EMU_ALIGN_H

#include "emu_meet.h"

void kf_emu_misaligned(const char *instruction, unsigned bytes, const char *file, int line)
{
    if (!emu.in_thread) {
        fprintf(stderr, "%s:%d: %s at an address that is no multiple of %u, outside of a kernel\n",
                file, line, instruction, bytes);
        abort();
    }
    enter_state(READY, 0, instruction, file, line);
    stop("thread %u accesses an address that is no multiple of %u bytes: a GPU refuses it", bytes);
}

#if !defined(KF_EMU_ASAN)
/* The arguments that g++ passes to UndefinedBehaviorSanitizer's handler. */
struct mismatch {
    const char *file;
    unsigned line, column;
    const void *type;
    unsigned char log_bytes, kind;
};
extern "C" void __ubsan_handle_type_mismatch_v1(const mismatch *m, uintptr_t)
{
    /* g++ copies a vector by reference. */
    const char *const kinds[] = {"a load", "a store", "an access"};
    kf_emu_misaligned(kinds[m->kind < 2 ? m->kind : 2], 1u << m->log_bytes, m->file, (int)m->line);
}
#endif

#endif
