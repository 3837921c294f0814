// Fibers: flows of control with stacks of their own on one host thread, which switch where they say
// so. A fiber may be left forever in the middle of its work; that is how a failed launch ends.
#ifndef TESTS_CUDA_SIM_FIBER_H
#define TESTS_CUDA_SIM_FIBER_H

#include <cstddef>

namespace sim {

struct fiber {
    void *stack_pointer = nullptr;  // while it does not run
    char *stack = nullptr;          // lowest byte; nullptr: the host thread's own
    size_t stack_bytes = 0;
    void (*entry)(void *ctx) = nullptr;
    void *ctx = nullptr;
    void *fake_stack = nullptr;  // AddressSanitizer's
    void *tsan = nullptr;        // ThreadSanitizer's
    bool borrowed_tsan = false;  // the host thread's own
};

// Gives memory to the fiber, with an inaccessible page below. false: there is none.
bool fiber_create(fiber *self, unsigned index);
void fiber_destroy(fiber *self);
// The next switch to it calls entry(ctx), which must never return. What it did before is forgotten.
void fiber_prepare(fiber *self, void (*entry)(void *ctx), void *ctx);
// Makes `self` stand for the calling host thread.
void fiber_adopt_thread(fiber *self);
void fiber_release_thread(fiber *self);
void fiber_switch(fiber *from, fiber *to);

}  // namespace sim
#endif
