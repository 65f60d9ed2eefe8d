/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: threads as fibers. Each fiber has its own stack; the scheduler (main) switches
   to a fiber and gets control back when the thread waits or returns. */
#ifndef KF_EMU_FIBERS_H
#define KF_EMU_FIBERS_H

#include "emu_state.h"

/* Defined in emu_time.h. */
static void async_resume(int t);
static void async_end_thread(int t);

/* Saves the callee-saved registers on the current stack, stores its pointer in *from, and continues
   on stack `to`. */
extern "C" void kf_emu_switch(void **from, void *to);
#if defined(__x86_64__)
__asm__(".text\n.globl kf_emu_switch\n.hidden kf_emu_switch\n.type "
        "kf_emu_switch,@function\nkf_emu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size kf_emu_switch,.-kf_emu_switch\n");
#else
#error "the emulation switches stacks in assembler, written for x86-64"
#endif

static void switch_to_scheduler()
{
    fiber *f = emu.threads[emu.current].on;
#if defined(KF_EMU_TSAN)
    __tsan_switch_to_fiber(emu.main_tsan, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(KF_EMU_ASAN)
    __sanitizer_start_switch_fiber(&f->fake, emu.main_stack, emu.main_bytes);
#endif
    kf_emu_switch(&f->sp, emu.main_sp);
#if defined(KF_EMU_ASAN)
    __sanitizer_finish_switch_fiber(f->fake, &emu.main_stack, &emu.main_bytes);
#endif
}

static void end_thread(int t)
{
    block *const b = block_of(t);
    free(emu.threads[t].copies);
    emu.threads[t].copies = nullptr;
    emu.threads[t].state = DONE;
    ++emu.done;
    ++b->done;
    if (emu.threads[t].arrivals == emu.phase) ++emu.arrived;
/* AddressSanitizer: other blocks may still hold this address, which is now invalid. */
#if defined(KF_EMU_ASAN)
    if (b->dynamic && b->done == emu.count)
        __asan_poison_memory_region(b->dynamic, emu.dynamic_bytes);
#endif
}

static void fiber_main()
{
#if defined(KF_EMU_ASAN)
    __sanitizer_finish_switch_fiber(nullptr, &emu.main_stack, &emu.main_bytes);
#endif
    for (;;) { /* runs one thread after another */
        const int t = emu.current;
#if defined(KF_EMU_TSAN)
        __tsan_acquire(&emu.launch_mark);
#endif
        emu.call(emu.function, emu.args);
        async_end_thread(t);
#if defined(KF_EMU_TSAN)
        __tsan_release(&emu.done_mark);
#endif
        end_thread(t);
        switch_to_scheduler();
    }
}

static fiber *acquire_fiber()
{
    fiber *f = emu.free_fibers;
#if defined(KF_EMU_TSAN)
    /* ThreadSanitizer would take two threads of a launch that share a fiber for one. That hides
       races between them. */
    if (f && f->launch == kf_emu_launches && emu.fibers < MAX_FIBERS) f = nullptr;
#endif
    if (f) {
        emu.free_fibers = f->next;
        return f;
    }
    f = (fiber *)calloc(1, sizeof *f);
    const size_t page = 4096;
    f->stack = (char *)mmap(nullptr, STACK_BYTES + page, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->stack == MAP_FAILED || mprotect(f->stack, page, PROT_NONE) != 0) {
        perror("kf_emu: no memory for a thread's stack");
        abort();
    }
    f->stack += page;
    void **top = (void **)(f->stack + STACK_BYTES);
    *--top = nullptr; /* the ABI leaves the stack 8 bytes off 16 at a call */
    *--top = (void *)fiber_main;
    f->sp = top - 6; /* registers that kf_emu_switch pops */
    ++emu.fibers;
#if defined(KF_EMU_TSAN)
    f->tsan = __tsan_create_fiber(0);
#endif
    return f;
}

static void destroy_fiber(fiber *f)
{
#if defined(KF_EMU_ASAN)
    __asan_unpoison_memory_region(f->stack, STACK_BYTES);
#endif
#if defined(KF_EMU_TSAN)
    __tsan_destroy_fiber(f->tsan);
#endif
    munmap(f->stack - 4096, STACK_BYTES + 4096);
    free(f);
    --emu.fibers;
}

static void release_fiber(fiber *f)
{
#if defined(KF_EMU_TSAN)
    f->launch = kf_emu_launches;
    f->next = nullptr;
    *(emu.free_fibers ? &emu.last_free->next : &emu.free_fibers) = f;
    emu.last_free = f;
#else
    f->next = emu.free_fibers;
    emu.free_fibers = f;
#endif
}

static void run_thread(int t)
{
    thread *self = &emu.threads[t];
    const unsigned number = (unsigned)t % MAX_THREADS;
    emu.current = t;
    async_resume(t);
    if (emu.size > 1) blockIdx = block_of(t)->index;
    threadIdx.x = number % blockDim.x;
    threadIdx.y = number / blockDim.x % blockDim.y;
    threadIdx.z = number / blockDim.x / blockDim.y;
    if (self->state == NEW) {
        self->on = acquire_fiber();
        ++block_of(t)->begun;
    }
    self->state = READY;
#if defined(KF_EMU_TSAN)
    __tsan_switch_to_fiber(self->on->tsan, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(KF_EMU_ASAN)
    __sanitizer_start_switch_fiber(&emu.main_fake, self->on->stack, STACK_BYTES);
#endif
    emu.in_thread = true;
    kf_emu_switch(&emu.main_sp, self->on->sp);
    emu.in_thread = false;
#if defined(KF_EMU_ASAN)
    __sanitizer_finish_switch_fiber(emu.main_fake, nullptr, nullptr);
#endif
    if (self->state == DONE) release_fiber(self->on);
}

#endif
