// SPDX-License-Identifier: Apache-2.0
// kf/core/launch.cuh: the one way a kernel is launched. What it asks of CUDA is asked of the
// runtime, or of the driver.
#ifndef KF_CORE_LAUNCH_CUH
#define KF_CORE_LAUNCH_CUH

#include "kf/core/host.h"

#include "kf/core/launch_args.cuh"
#include "kf/core/result.h"
#ifdef KFI_DRIVER
#include "kf/core/launch_driver.cuh"
#else
#include "kf/core/launch_runtime.cuh"
#endif

// Whether kernels may be launched while the one before them still runs, and wait for it by
// themselves (kfi_begin): where all code of this file is for compute capability 9.0 or later. By
// the list of architectures, not by the device: a later one may run code that was compiled for an
// earlier one, which does not wait.
KF_FN bool kfi_overlaps()
{
#ifdef KFI_ARCHITECTURES
    const int list[] = {KFI_ARCHITECTURES};
    for (int arch : list)
        if (arch < 900) return false;
    return true;
#else
    return false;
#endif
}

// Of a number, or a pointer, that several threads may read and write at the same time.
KF_FN void *kfi_read_pointer(void *const *p)
{
#ifdef __GNUC__
    return __atomic_load_n(p, __ATOMIC_RELAXED);
#else
    return *(void *const volatile *)p;
#endif
}
KF_FN void kfi_write_pointer(void **p, void *value)
{
#ifdef __GNUC__
    __atomic_store_n(p, value, __ATOMIC_RELAXED);
#else
    *(void *volatile *)p = value;
#endif
}
KF_FN int kfi_read_shared(const int *p)
{
#ifdef __GNUC__
    return __atomic_load_n(p, __ATOMIC_RELAXED);
#else
    return *(const volatile int *)p;
#endif
}
KF_FN void kfi_write_shared(int *p, int value)
{
#ifdef __GNUC__
    __atomic_store_n(p, value, __ATOMIC_RELAXED);
#else
    *(volatile int *)p = value;
#endif
}

// The current device must be the stream's. CUDA itself launches all the same, and the kernel then
// reads another device's memory. Where there is one device there is nothing to ask; of a stream
// that is captured nothing may be asked.
KF_FN KFI_SMALL kf_result_t kfi_check_device(const kfi_name *name, cudaStream_t stream)
{
    static int known = 0; // threads that ask at the same time write the same number
    int devices = kfi_read_shared(&known);
    if (devices == 0) {
        if (!kfi_count_devices(&devices)) return KF_SUCCESS; // the launch says what is wrong
        kfi_write_shared(&known, devices);
    }
    int current = 0, own = 0;
    if (devices > 1 && kfi_devices_of(stream, &current, &own) && current != own)
        return kfi_fail(KF_ERROR_DEVICE, name, "stream",
                        "is of device %d, expected the current one, device %d", own, current);
    return KF_SUCCESS;
}

// early: whether the kernel may be launched while the one before it ends. Not one of as many blocks
// as there is room for, which stay: they would take the places that are free first, and be more on
// one SM than on another. shared: bytes of dynamic shared memory. cluster: blocks that belong
// together. most: bytes of shared memory that any launch of the kernel may take, where they are not
// always as many. The status is the call's own: cudaGetLastError might report somebody else's
// error.
KF_FN KFI_SMALL kf_result_t kfi_launch(const kfi_name *name, const void *kernel, dim3 blocks,
                                       unsigned threads, void **args, cudaStream_t stream,
                                       bool early = true, unsigned shared = 0, unsigned cluster = 1,
                                       unsigned most = 0)
{
    kf_result_t result = kfi_check_device(name, stream);
    if (result != KF_SUCCESS) return result;
    const kfi_call call = {blocks,
                           threads,
                           args,
                           stream,
                           early && kfi_overlaps(),
                           shared,
                           cluster,
                           most > shared ? most : shared};
    kfi_status status = KFI_NO_ERROR;
    result = kfi_enqueue(name, kernel, call, &status);
    if (result != KF_SUCCESS || status == KFI_NO_ERROR) return result;
    return kfi_fail(kfi_no_image(status) ? KF_ERROR_NO_KERNEL_IMAGE : KF_ERROR_CUDA, name, "launch",
                    "of %u x %u blocks of %u threads: CUDA error %d (%s)", blocks.x, blocks.y,
                    threads, (int)status, kfi_status_text(status));
}

#endif
