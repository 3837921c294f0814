#include "gradsync/comm/shm/comm_thread.h"

#include <stdlib.h>

#include "core/thread.h"
#include "gradsync/comm/waiter.h"

#define IDLE_SPIN_POLLS 500
#define IDLE_SLEEP_NS (100 * GS_NS_PER_MS)

enum { STARTING, ENTERED, REFUSED };

struct gs_comm_thread {
    gs_thread *thread;
    const gs_comm_thread_ops *ops;
    void *ctx;
    gs_futex_event kicked;
    gs_futex_event entered;
    atomic_int state;
    gs_status refusal;  // valid in state REFUSED
};

static void wait_for_work(gs_comm_thread *self, const atomic_bool *stopping) {
    gs_waiter waiter = {
        .event = &self->kicked, .spin_polls = IDLE_SPIN_POLLS, .sleep_ns = IDLE_SLEEP_NS};
    gs_deadline never = gs_deadline_in_ns(GS_DEADLINE_MAX_NS);
    while (!atomic_load(stopping) && !self->ops->has_work(self->ctx))
        gs_waiter_pause(&waiter, never);
    gs_waiter_reset(&waiter);
}

static void run_thread(void *ctx, const atomic_bool *stopping) {
    gs_comm_thread *self = ctx;
    self->refusal = self->ops->enter(self->ctx);
    bool entered = !self->refusal.code;
    atomic_store(&self->state, entered ? ENTERED : REFUSED);
    gs_futex_event_notify(&self->entered);
    if (!entered) return;
    while (!atomic_load(stopping)) {
        wait_for_work(self, stopping);
        self->ops->serve(self->ctx, stopping);
    }
    self->ops->leave(self->ctx);
}

static gs_status wait_until_entered(gs_comm_thread *self) {
    // The thread runs or the process ends; `enter` waits for nobody.
    gs_waiter waiter = {.event = &self->entered};
    gs_deadline deadline = gs_deadline_in_ns(GS_DEADLINE_MAX_NS);
    while (atomic_load(&self->state) == STARTING) gs_waiter_pause(&waiter, deadline);
    gs_waiter_reset(&waiter);
    return atomic_load(&self->state) == REFUSED ? self->refusal : gs_ok();
}

gs_status gs_comm_thread_start(gs_comm_thread **out, const gs_comm_thread_ops *ops, void *ctx) {
    gs_comm_thread *self = aligned_alloc(_Alignof(gs_comm_thread), sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "communication thread: out of memory");
    *self = (gs_comm_thread){.ops = ops, .ctx = ctx};
    gs_status status = gs_thread_start(&self->thread, "comm", run_thread, self);
    if (!status.code) status = wait_until_entered(self);
    if (status.code) {
        gs_comm_thread_stop(self);
        return status;
    }
    *out = self;
    return gs_ok();
}

void gs_comm_thread_kick(gs_comm_thread *thread) {
    gs_futex_event_notify(&thread->kicked);
}

void gs_comm_thread_stop(gs_comm_thread *thread) {
    if (!thread) return;
    gs_thread_ask_to_stop(thread->thread);
    gs_futex_event_notify(&thread->kicked);
    gs_thread_stop(thread->thread);
    free(thread);
}
