// SPDX-License-Identifier: Apache-2.0
// kf/core/launch.cuh: launches a kernel through the CUDA runtime or the driver API. All of kf's
// kernels are launched here.
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

// Returns whether kernels may use programmatic dependent launch: they start while the previous
// kernel runs, and wait for it themselves (kfi_begin). Requires that all code of this file is
// compiled for compute capability 9.0 or later. The list of architectures decides, not the device:
// a newer device may run code compiled for an older one, which does not wait.
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

// Relaxed atomic access to a number or pointer that several threads read and write.
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

// Checks that the current device is the stream's. CUDA would launch anyway, and the kernel would
// read another device's memory. With a single device there is nothing to check; a capturing stream
// must not be queried.
KF_FN KFI_SMALL kf_result_t kfi_check_device(const kfi_name *name, cudaStream_t stream)
{
    static int known = 0; // concurrent threads store the same number
    int devices = kfi_read_shared(&known);
    if (devices == 0) {
        if (!kfi_count_devices(&devices)) return KF_SUCCESS; // the launch reports the error
        kfi_write_shared(&known, devices);
    }
    int current = 0, own = 0;
    if (devices > 1 && kfi_devices_of(stream, &current, &own) && current != own)
        return kfi_fail(KF_ERROR_DEVICE, name, "stream",
                        "is of device %d, expected the current one, device %d", own, current);
    return KF_SUCCESS;
}

// Launches a kernel; returns the status of the launch call itself, since cudaGetLastError could
// report an unrelated error.
// early: allows programmatic dependent launch. Persistent kernels must not use it: their CTAs would
// fill the slots that are free first, and load the SMs unevenly.
// shared: bytes of dynamic shared memory. cluster: CTAs per cluster.
// most: maximum bytes of dynamic shared memory over all launches of this kernel, if they differ.
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
