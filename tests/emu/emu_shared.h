/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: shared memory: full of NaN. Dynamic memory is a block of the heap, so that
   AddressSanitizer sees its end. ThreadSanitizer would take it for a race that main frees or fills
   again what threads used; it forgets what it saw where memory is mapped anew. */
#ifndef KF_EMU_SHARED_H
#define KF_EMU_SHARED_H

#include "emu_state.h"

static char *take_dynamic()
{
    void *p = nullptr;
    if (emu.dynamic_bytes == 0) return nullptr;
#if defined(KF_EMU_TSAN)
    p = mmap(nullptr, MOST_DYNAMIC, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const bool good = p != MAP_FAILED;
#else
    const bool good = posix_memalign(&p, 1024, emu.dynamic_bytes) == 0;
#endif
    if (!good) {
        perror("kf_emu: no memory for a block");
        abort();
    }
    return (char *)memset(p, 0xff, emu.dynamic_bytes);
}

static void give_dynamic(char *p)
{
#if defined(KF_EMU_TSAN)
    if (p) munmap(p, MOST_DYNAMIC);
#else
    free(p);
#endif
}

/* Static memory is filled by mapping a file again whose bytes are all ones. What a block has not
 * touched costs nothing then. */

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
        bool good = file >= 0;
        for (size_t at = 0; good && at < bytes; at += sizeof block)
            good = write(file, block, sizeof block) == (ssize_t)sizeof block;
        if (!good) {
            perror("kf_emu: shared memory cannot be mapped");
            abort();
        }
    } else {
#if !defined(                                                                                      \
    KF_EMU_TSAN) /* which forgets what it saw of the block before where memory is mapped anew */
        if (madvise(kf_emu_shared_begin, bytes, MADV_DONTNEED) == 0)
            return; /* as in the file again */
#endif
    }
    if (mmap(kf_emu_shared_begin, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file,
             0) != kf_emu_shared_begin)
        abort();
}

/* Whether anybody wrote to static memory since: a page of it is no longer the file's (Linux:
 * admin-guide/mm/pagemap). */
static bool wrote_shared()
{
    const size_t page = 4096, most = 512,
                 pages = (size_t)(kf_emu_shared_end - kf_emu_shared_begin) / page;
    const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    uint64_t entries[most] = {};
    bool wrote = false;
    for (size_t at = 0; file >= 0 && at < pages && !wrote; at += most) {
        const size_t n = pages - at < most ? pages - at : most;
        const off_t place = (off_t)(((uintptr_t)kf_emu_shared_begin / page + at) * sizeof *entries);
        if (pread(file, entries, n * sizeof *entries, place) != (ssize_t)(n * sizeof *entries))
            break;
        for (size_t i = 0; i < n; ++i)
            wrote |= entries[i] >> 62 != 0 && (entries[i] >> 61 & 1) == 0;
    }
    if (file >= 0) close(file);
    return wrote;
}

#endif
