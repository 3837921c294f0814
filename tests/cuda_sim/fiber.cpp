#include "tests/cuda_sim/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#ifndef __x86_64__
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace sim {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const size_t stack_bytes = 256 << 10;
#else
static const size_t stack_bytes = 128 << 10;
#endif

#ifdef __x86_64__
// What a call preserves goes to the old stack, and comes from the new one.
extern "C" void gs_sim_switch_stacks(void **save, void *load);
asm(R"(
    .text
    .p2align 4
    .globl gs_sim_switch_stacks
    .hidden gs_sim_switch_stacks
    .type gs_sim_switch_stacks, @function
gs_sim_switch_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size gs_sim_switch_stacks, .-gs_sim_switch_stacks
)");
#else
static void gs_sim_switch_stacks(void **save, void *load) {
    ucontext_t *from = static_cast<ucontext_t *>(*save);
    if (!from) *save = from = static_cast<ucontext_t *>(calloc(1, sizeof *from));
    swapcontext(from, static_cast<ucontext_t *>(load));
}
#endif

static thread_local fiber *starting;  // the one whose first instruction comes next
static thread_local fiber *leaving;

static void finish_switch(fiber *arrived) {
#if defined(__SANITIZE_ADDRESS__)
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(arrived->fake_stack, &bottom, &bytes);
    if (leaving && !leaving->stack) {  // the host thread's stack, learnt from the sanitizer
        leaving->stack_bytes = bytes;
        leaving->ctx = const_cast<void *>(bottom);
    }
#endif
    (void)arrived;
}

static void begin_fiber() {
    fiber *self = starting;
    finish_switch(self);
    self->entry(self->ctx);
    abort();
}

bool fiber_create(fiber *self, unsigned index) {
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void *memory = mmap(nullptr, stack_bytes + page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) return false;
    if (mprotect(memory, page, PROT_NONE)) {
        munmap(memory, stack_bytes + page);
        return false;
    }
    self->stack = static_cast<char *>(memory) + page;
    // Stacks that all begin at the same offset of a page would share a few cache lines.
    self->stack_bytes = stack_bytes - (index % 61) * 64;
    return true;
}

static void destroy_tsan(fiber *self) {
#if defined(__SANITIZE_THREAD__)
    if (self->tsan && !self->borrowed_tsan) __tsan_destroy_fiber(self->tsan);
#endif
    self->tsan = nullptr;
}

// Frames that were left forever: those above the stack pointer that it gave up the thread with. The
// rest of a stack was never written or has been returned from; to clear its shadow too would touch
// 32 KiB for each thread of a block.
static void clear_frames(fiber *self) {
#if defined(__SANITIZE_ADDRESS__)
    if (!self->stack_pointer) return;
    char *lowest = self->stack;
#ifdef __x86_64__
    lowest = static_cast<char *>(self->stack_pointer);
#endif
    __asan_unpoison_memory_region(lowest, static_cast<size_t>(self->stack + stack_bytes - lowest));
#else
    (void)self;
#endif
}

void fiber_destroy(fiber *self) {
    if (!self->stack) return;
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    destroy_tsan(self);
    clear_frames(self);
#ifndef __x86_64__
    free(self->stack_pointer);
#endif
    munmap(self->stack - page, stack_bytes + page);
    *self = fiber();
}

void fiber_prepare(fiber *self, void (*entry)(void *ctx), void *ctx) {
    self->entry = entry;
    self->ctx = ctx;
    self->fake_stack = nullptr;
    clear_frames(self);
    destroy_tsan(self);
#if defined(__SANITIZE_THREAD__)
    self->tsan = __tsan_create_fiber(0);
#endif
#ifdef __x86_64__
    // At its first instruction a function expects the stack 8 bytes off 16.
    uintptr_t top = (reinterpret_cast<uintptr_t>(self->stack) + self->stack_bytes) & ~uintptr_t(15);
    void **frame = reinterpret_cast<void **>(top) - 8;
    for (int i = 0; i < 6; i++) frame[i] = nullptr;
    frame[6] = reinterpret_cast<void *>(begin_fiber);
    frame[7] = nullptr;
    self->stack_pointer = frame;
#else
    ucontext_t *context = static_cast<ucontext_t *>(self->stack_pointer);
    if (!context)
        self->stack_pointer = context = static_cast<ucontext_t *>(calloc(1, sizeof *context));
    getcontext(context);
    context->uc_stack.ss_sp = self->stack;
    context->uc_stack.ss_size = self->stack_bytes;
    context->uc_link = nullptr;
    makecontext(context, begin_fiber, 0);
#endif
}

void fiber_adopt_thread(fiber *self) {
    *self = fiber();
#if defined(__SANITIZE_THREAD__)
    self->tsan = __tsan_get_current_fiber();
    self->borrowed_tsan = true;
#endif
}

void fiber_release_thread(fiber *self) {
#ifndef __x86_64__
    free(self->stack_pointer);
#endif
    *self = fiber();
}

void fiber_switch(fiber *from, fiber *to) {
    starting = to;
    leaving = from;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack ? to->stack : to->ctx,
                                   to->stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    gs_sim_switch_stacks(&from->stack_pointer, to->stack_pointer);
    finish_switch(from);
}

}  // namespace sim
