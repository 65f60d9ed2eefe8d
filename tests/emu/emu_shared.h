/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: shared memory, filled with NaN before each block.

   Dynamic memory is a heap block of the exact size, so AddressSanitizer detects overruns. Under
   ThreadSanitizer it is mapped anew for each block: freeing or refilling memory that threads used
   would look like a race, and a new mapping clears the history. */
#ifndef KF_EMU_SHARED_H
#define KF_EMU_SHARED_H

#include "emu_state.h"

static char *allocate_dynamic()
{
    void *p = nullptr;
    if (emu.dynamic_bytes == 0) return nullptr;
#if defined(KF_EMU_TSAN)
    p = mmap(nullptr, MAX_DYNAMIC, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const bool ok = p != MAP_FAILED;
#else
    const bool ok = posix_memalign(&p, 1024, emu.dynamic_bytes) == 0;
#endif
    if (!ok) {
        perror("kf_emu: no memory for a block");
        abort();
    }
    return (char *)memset(p, 0xff, emu.dynamic_bytes);
}

static void free_dynamic(char *p)
{
#if defined(KF_EMU_TSAN)
    if (p) munmap(p, MAX_DYNAMIC);
#else
    free(p);
#endif
}

/* Static memory is filled by remapping a file whose bytes are all ones, which costs nothing for
   untouched pages. */

extern "C" char kf_emu_shared_begin[] __attribute__((visibility("hidden")));
extern "C" char kf_emu_shared_end[] __attribute__((visibility("hidden")));

static void poison_shared()
{
    static int file = -1;
    const size_t bytes = (size_t)(kf_emu_shared_end - kf_emu_shared_begin);
    if (bytes == 0) return;
    if (file < 0) {
        char block[4096];
        memset(block, 0xff, sizeof block);
        file = memfd_create("kf_emu_shared", MFD_CLOEXEC);
        bool ok = file >= 0;
        for (size_t at = 0; ok && at < bytes; at += sizeof block)
            ok = write(file, block, sizeof block) == (ssize_t)sizeof block;
        if (!ok) {
            perror("kf_emu: shared memory cannot be mapped");
            abort();
        }
    } else {
/* ThreadSanitizer forgets the previous block's accesses only after a new mapping. */
#if !defined(KF_EMU_TSAN)
        if (madvise(kf_emu_shared_begin, bytes, MADV_DONTNEED) == 0)
            return; /* pages read from the file again */
#endif
    }
    if (mmap(kf_emu_shared_begin, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file,
             0) != kf_emu_shared_begin)
        abort();
}

/* True if a kernel has written static memory: the page is no longer the file's (Linux:
   admin-guide/mm/pagemap). */
static bool wrote_shared()
{
    const size_t page = 4096, most = 512,
                 pages = (size_t)(kf_emu_shared_end - kf_emu_shared_begin) / page;
    const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    uint64_t entries[most] = {};
    bool wrote = false;
    for (size_t at = 0; file >= 0 && at < pages && !wrote; at += most) {
        const size_t n = pages - at < most ? pages - at : most;
        const off_t offset =
            (off_t)(((uintptr_t)kf_emu_shared_begin / page + at) * sizeof *entries);
        if (pread(file, entries, n * sizeof *entries, offset) != (ssize_t)(n * sizeof *entries))
            break;
        for (size_t i = 0; i < n; ++i)
            wrote |= entries[i] >> 62 != 0 && (entries[i] >> 61 & 1) == 0;
    }
    if (file >= 0) close(file);
    return wrote;
}

#endif
