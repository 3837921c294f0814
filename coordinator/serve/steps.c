#include "coordinator/serve/steps.h"

#include <stdlib.h>

#include "coordinator/model/memory.h"
#include "coordinator/observe/sights.h"
#include "coordinator/serve/completions.h"
#include "coordinator/store/trace.h"
#include "core/clock.h"
#include "core/random.h"

#define TRY_NS GS_NS_PER_SEC

static void note_drawn(const gs_steps *steps) {
    size_t count = 0;
    const uint64_t *numbers = gs_engine_drawn(steps->engine, &count);
    for (size_t i = 0; i < count; i++) gs_trace_drawn(steps->performer.trace, numbers[i]);
}

static void step(gs_steps *steps, gs_engine_event *event, void (*keep)(void *ctx), void *ctx) {
    event->now_ns = gs_now_ns();
    event->wall_ms = gs_wall_ms();
    event->random = gs_random_bag_draw(&steps->random);
    steps->is_stepping = true;
    gs_effects effects = gs_engine_step(steps->engine, event);
    steps->performer.observer->step_seconds = gs_seconds_since(event->now_ns);
    note_drawn(steps);
    if (keep && event->was_admitted) keep(ctx);
    gs_perform(&steps->performer, effects);
    steps->is_stepping = false;
    gs_engine_event_release(event);
}

// Of jobs and numbers: what readiness is about. A write that was late, of a job that was deleted meanwhile, is refused by a
// store that is well.
static bool tells_of_store(const gs_work *work) {
    bool is_of_jobs = work->kind <= GS_WORK_RESERVE_GENERATIONS || work->kind == GS_WORK_PRUNE_KEYS;
    return is_of_jobs && work->base.status.code != GS_FAILED_PRECONDITION;
}

static void take_done(gs_steps *steps) {
    gs_work *work = steps->done;
    steps->done = work->next;
    if (!steps->done) steps->done_end = &steps->done;
    if (tells_of_store(work)) gs_observer_note_store(steps->performer.observer, work->base.status);
    if (work->kind == GS_WORK_PUT_JOB)
        gs_observer_note_row(steps->performer.observer, work->job, work->version, work->base.status);
    if (work->kind == GS_WORK_PURGE || work->kind == GS_WORK_FORGET_PURGE || work->kind == GS_WORK_PUT_JOB)
        gs_perform_take_purged(&steps->performer, work);
    gs_engine_event event = {0};
    gs_completion_of(&event, work);
    if (event.kind != GS_ON_NOTHING) step(steps, &event, NULL, NULL);
    gs_work_destroy(work);
}

static void take_gone(gs_steps *steps) {
    const gs_gone_call *gone = &steps->gone[--steps->num_gone];
    gs_engine_event event = {.kind = GS_ON_CALL_GONE, .gone = {gone->call, gone->was_closed}};
    step(steps, &event, NULL, NULL);
}

static void take_large(gs_steps *steps) {
    const gs_large_order order = steps->large[--steps->num_large];
    gs_engine_event event = {.kind = GS_ON_TOO_LARGE,
                             .too_large = {order.incarnation, order.is_launch, order.is_replan, order.status.message}};
    step(steps, &event, NULL, NULL);
}

static void catch_up(gs_steps *steps) {
    while (!steps->is_stepping && (steps->num_gone > 0 || steps->num_large > 0 || steps->done)) {
        if (steps->num_gone > 0) take_gone(steps);
        else if (steps->num_large > 0) take_large(steps);
        else take_done(steps);
    }
}

static void call_gone(void *ctx, gs_call call, bool was_closed) {
    gs_steps *steps = ctx;
    steps->gone = gs_model_grow(steps->gone, steps->num_gone, &steps->max_gone, sizeof *steps->gone);
    steps->gone[steps->num_gone++] = (gs_gone_call){call, was_closed};
    catch_up(steps);
}

static void too_large(void *owner, const gs_effect *effect, gs_status status) {
    gs_steps *steps = owner;
    bool is_launch = effect->kind == GS_DO_TELL_AGENT;
    steps->large = gs_model_grow(steps->large, steps->num_large, &steps->max_large, sizeof *steps->large);
    steps->large[steps->num_large++] =
        (gs_large_order){effect->member->incarnation, is_launch,
                         !is_launch && effect->member_message.order == GS_TELL_REPLAN, status};
}

static void work_done(gs_write *base, gs_status status) {
    gs_work *work = (gs_work *)base;
    gs_steps *steps = work->owner;
    work->base.status = status;
    work->next = NULL;
    *steps->done_end = work;
    steps->done_end = &work->next;
    catch_up(steps);
}

void gs_steps_begin(gs_steps *steps, gs_engine *engine, gs_writer *writer, gs_observer *observer,
                    gs_trace *trace) {
    *steps = (gs_steps){.engine = engine, .state = gs_engine_state(engine)};
    steps->done_end = &steps->done;
    steps->calls.gone = call_gone;
    steps->calls.ctx = steps;
    steps->performer = (gs_performer){.state = steps->state,
                                      .calls = &steps->calls,
                                      .writer = writer,
                                      .observer = observer,
                                      .trace = trace,
                                      .too_large = too_large,
                                      .work_done = work_done,
                                      .owner = steps};
}

void gs_steps_end(gs_steps *steps) {
    gs_engine_destroy(steps->engine);
    free(steps->gone);
    free(steps->large);
    *steps = (gs_steps){0};
}

void gs_steps_take_and(gs_steps *steps, gs_engine_event *event, void (*keep)(void *ctx), void *ctx) {
    step(steps, event, keep, ctx);
    catch_up(steps);
}

void gs_steps_take(gs_steps *steps, gs_engine_event *event) { gs_steps_take_and(steps, event, NULL, NULL); }

void gs_steps_take_kind(gs_steps *steps, gs_engine_event_kind kind) {
    gs_steps_take(steps, &(gs_engine_event){.kind = kind});
}

void gs_steps_try_store(gs_steps *steps) {
    int64_t now_ns = steps->state->now_ns;
    if (!steps->performer.observer->store_failed || now_ns - steps->tried_ns < TRY_NS) return;
    steps->tried_ns = now_ns;
    gs_effect effect = {.kind = GS_DO_PRUNE_KEYS};  // small, and asked for at any time
    gs_perform(&steps->performer, (gs_effects){&effect, 1});
}
