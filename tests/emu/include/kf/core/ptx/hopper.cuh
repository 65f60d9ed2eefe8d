// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/hopper.cuh of the emulator: the asynchronous instructions of sm_90a (emu_hopper.h).
// Each function reports misuse with the caller's file and line.
#ifndef KF_EMU_PTX_HOPPER_CUH
#define KF_EMU_PTX_HOPPER_CUH

#include "kf/core/config.h"
#include "kf/core/tensor_map.cuh"

#define KFI_HOPPER 1

KFI_DEVICE unsigned kfi_shared_address(const void *p, KF_EMU_HERE)
{
    return kf_emu_window(p, file, line);
}
KFI_DEVICE unsigned kfi_mapa(unsigned address, unsigned rank, KF_EMU_HERE)
{
    return kf_emu_mapa(address, rank, file, line);
}
KFI_DEVICE void kfi_store_remote(unsigned to, unsigned v, KF_EMU_HERE)
{
    kf_emu_store(to, &v, 4, file, line);
}
KFI_DEVICE void kfi_store_remote(unsigned to, float v0, float v1, KF_EMU_HERE)
{
    const float v[] = {v0, v1};
    kf_emu_store(to, v, 8, file, line);
}

KFI_DEVICE void kfi_mbar_init(unsigned bar, int count, KF_EMU_HERE)
{
    kf_emu_mbar_init(bar, count, file, line);
}
KFI_DEVICE void kfi_mbar_fence_init(KF_EMU_HERE) { kf_emu_fence_init(file, line); }
KFI_DEVICE void kfi_mbar_arrive(unsigned bar, KF_EMU_HERE)
{
    kf_emu_mbar_arrive(bar, 0, file, line);
}
KFI_DEVICE void kfi_mbar_expect(unsigned bar, int bytes, KF_EMU_HERE)
{
    kf_emu_mbar_arrive(bar, bytes, file, line);
}
KFI_DEVICE void kfi_mbar_arrive_remote(unsigned bar, KF_EMU_HERE)
{
    kf_emu_mbar_arrive(bar, 0, file, line);
}
KFI_DEVICE bool kfi_mbar_try(unsigned bar, int parity, KF_EMU_HERE)
{
    return kf_emu_mbar_test(bar, parity, false, file, line);
}
// Switches threads until the phase has completed. A loop around kfi_mbar_try would never switch.
KFI_DEVICE void kfi_mbar_wait(unsigned bar, int parity, KF_EMU_HERE)
{
    kf_emu_mbar_test(bar, parity, true, file, line);
}
KFI_DEVICE void kfi_async_fence(KF_EMU_HERE) { kf_emu_fence_async(file, line); }

KFI_DEVICE void kfi_tma_load(unsigned to, const kfi_tensor_map *map, unsigned bar, int x, int y,
                             KF_EMU_HERE)
{
    const int at[] = {x, y};
    kf_emu_tma_load(to, map, bar, at, 2, 0, file, line);
}
KFI_DEVICE void kfi_tma_load3(unsigned to, const kfi_tensor_map *map, unsigned bar, int x, int y,
                              int z, KF_EMU_HERE)
{
    const int at[] = {x, y, z};
    kf_emu_tma_load(to, map, bar, at, 3, 0, file, line);
}
KFI_DEVICE void kfi_tma_load3(unsigned to, const kfi_tensor_map *map, unsigned bar, int x, int y,
                              int z, unsigned long long, KF_EMU_HERE)
{
    const int at[] = {x, y, z};
    kf_emu_tma_load(to, map, bar, at, 3, 0, file, line);
}
KFI_DEVICE void kfi_tma_load4(unsigned to, const kfi_tensor_map *map, unsigned bar, int x, int y,
                              int z, int w, unsigned long long, KF_EMU_HERE)
{
    const int at[] = {x, y, z, w};
    kf_emu_tma_load(to, map, bar, at, 4, 0, file, line);
}
KFI_DEVICE void kfi_tma_load4(unsigned to, const kfi_tensor_map *map, unsigned bar, int x, int y,
                              int z, int w, KF_EMU_HERE)
{
    const int at[] = {x, y, z, w};
    kf_emu_tma_load(to, map, bar, at, 4, 0, file, line);
}
KFI_DEVICE void kfi_tma_multicast(unsigned to, const kfi_tensor_map *map, unsigned bar, int x,
                                  int y, unsigned blocks, KF_EMU_HERE)
{
    const int at[] = {x, y};
    kf_emu_tma_load(to, map, bar, at, 2, blocks, file, line);
}
KFI_DEVICE void kfi_tma_store(unsigned from, const kfi_tensor_map *map, int x, int y, KF_EMU_HERE)
{
    const int at[] = {x, y};
    kf_emu_tma_store(from, map, at, 2, file, line);
}
KFI_DEVICE void kfi_tma_store3(unsigned from, const kfi_tensor_map *map, int x, int y, int z,
                               KF_EMU_HERE)
{
    const int at[] = {x, y, z};
    kf_emu_tma_store(from, map, at, 3, file, line);
}
KFI_DEVICE void kfi_tma_store4(unsigned from, const kfi_tensor_map *map, int x, int y, int z, int w,
                               KF_EMU_HERE)
{
    const int at[] = {x, y, z, w};
    kf_emu_tma_store(from, map, at, 4, file, line);
}

KFI_DEVICE void kfi_bulk_load(unsigned to, const void *from, int bytes, unsigned bar, KF_EMU_HERE)
{
    kf_emu_bulk_load(to, from, bytes, bar, file, line);
}
KFI_DEVICE void kfi_bulk_store(void *to, unsigned from, int bytes, KF_EMU_HERE)
{
    kf_emu_bulk_store(to, from, bytes, file, line);
}
KFI_DEVICE void kfi_bulk_add(void *to, unsigned from, int bytes, KF_EMU_HERE)
{
    kf_emu_bulk_add(to, from, bytes, file, line);
}
KFI_DEVICE void kfi_bulk_commit(KF_EMU_HERE) { kf_emu_bulk_commit(file, line); }
template <int most> KFI_DEVICE void kfi_bulk_wait(KF_EMU_HERE)
{
    kf_emu_bulk_wait(most, false, file, line);
}
template <int most> KFI_DEVICE void kfi_bulk_wait_read(KF_EMU_HERE)
{
    kf_emu_bulk_wait(most, true, file, line);
}

KFI_DEVICE void kfi_global_async_fence(KF_EMU_HERE) { kf_emu_fence_async(file, line); }
KFI_DEVICE void kfi_ticket_add(unsigned *ticket, KF_EMU_HERE)
{
    kf_emu_ticket_add(ticket, file, line);
}
// Switches threads until the ticket has the value.
KFI_DEVICE void kfi_ticket_wait(const unsigned *ticket, unsigned value, KF_EMU_HERE)
{
    kf_emu_ticket_wait(ticket, value, file, line);
}

template <int threads> KFI_DEVICE void kfi_named_sync(int id, KF_EMU_HERE)
{
    kf_emu_named(id, threads, true, file, line);
}
template <int threads> KFI_DEVICE void kfi_named_arrive(int id, KF_EMU_HERE)
{
    kf_emu_named(id, threads, false, file, line);
}
template <int count> KFI_DEVICE void kfi_setmaxnreg_dec(KF_EMU_HERE)
{
    kf_emu_registers(count, false, file, line);
}
template <int count> KFI_DEVICE void kfi_setmaxnreg_inc(KF_EMU_HERE)
{
    kf_emu_registers(count, true, file, line);
}
template <int transposed> KFI_DEVICE void kfi_stmatrix(unsigned to, const unsigned *v, KF_EMU_HERE)
{
    kf_emu_stmatrix(to, v, transposed != 0, file, line);
}

#endif
