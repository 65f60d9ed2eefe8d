/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/stream.h: non-temporal stores, which bypass the caches. Ordinary stores to an output
 * larger than the caches read each cache line before they write it, and evict data still needed.
 * That read is a third of the traffic of an elementwise function. */
#ifndef KF_CORE_STREAM_H
#define KF_CORE_STREAM_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/config.h"
#include "kf/core/tile.h"

#define KFI_LINE 64 /* bytes of a cache line; streamed memory starts on one */

/* Uses vectors of at least 32 bytes: 16-byte streams were slower than ordinary stores
 * (bench/NOTES/cpu.md). */
#if defined(__AVX__) && defined(__GNUC__) && !defined(__CUDACC__)
#define KFI_STREAMS 1
#if defined(__AVX512F__)
typedef long long kfi_streamed __attribute__((vector_size(64)));
#else
typedef long long kfi_streamed __attribute__((vector_size(32)));
#endif
KFI_INLINE void kfi_stream_one(kfi_streamed *to, kfi_streamed v)
{
#if defined(__clang__)
    __builtin_nontemporal_store(v, to);
#elif defined(__AVX512F__)
    __builtin_ia32_movntdq512(to, v);
#else
    __builtin_ia32_movntdq256(to, v);
#endif
}
/* Streams `bytes` bytes, a multiple of KFI_LINE, to `to`, which starts a cache line. */
KFI_INLINE void kfi_stream(void *to, const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += sizeof(kfi_streamed)) {
        kfi_streamed v;
        memcpy(&v, (const char *)from + i, sizeof v);
        kfi_stream_one((kfi_streamed *)(void *)((char *)to + i), v);
    }
}
/* Orders the streamed stores before later stores. Call it before another thread may read them. */
KFI_HOST void kfi_stream_end(void) { __builtin_ia32_sfence(); }
#else
#define KFI_STREAMS 0
KFI_INLINE void kfi_stream(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
KFI_HOST void kfi_stream_end(void) {}
#endif

/* Hides from the compiler where a pointer points, so that it does not version a loop by target. It
 * may swap the operands of a product in one version, which changes the sign of a NaN. */
#if KFI_STREAMS
#define KFI_OPAQUE(pointer) __asm__("" : "+r"(pointer))
#else
#define KFI_OPAQUE(pointer) (void)(pointer)
#endif

#if defined(__GNUC__)
#define KFI_ON_A_LINE __attribute__((aligned(KFI_LINE)))
#else
#define KFI_ON_A_LINE
#endif
#define KFI_STREAM_BUFFER(type, name, count) KFI_ON_A_LINE type name[count]

#endif
