// The engine and all that it acts on: an event goes in, its effects are performed, and what they lead to at once goes
// in behind them, one after the other. The only place that reads clocks and random numbers for the engine. Loop thread.
#ifndef COORDINATOR_SERVE_STEPS_H
#define COORDINATOR_SERVE_STEPS_H

#include "coordinator/engine/engine.h"
#include "coordinator/serve/calls.h"
#include "coordinator/serve/perform.h"
#include "coordinator/store/work.h"
#include "core/random.h"

typedef struct gs_gone_call {
    gs_call call;
    bool was_closed;
} gs_gone_call;

// An order that nobody got.
typedef struct gs_large_order {
    uint64_t incarnation;  // of the rank that it is about
    bool is_launch, is_replan;
    gs_status status;
} gs_large_order;

typedef struct gs_steps {
    gs_engine *engine;    // owned
    const gs_state *state;
    gs_calls calls;
    gs_performer performer;
    gs_random_bag random;
    bool is_stepping;
    gs_work *done, **done_end;  // owned; finished while a step was performed
    gs_gone_call *gone;         // owned; the same
    size_t num_gone, max_gone;
    gs_large_order *large;      // owned; the same
    size_t num_large, max_large;
    int64_t tried_ns;           // the store, since it failed
} gs_steps;

// Takes the engine, and does not move afterwards. `trace` NULL: none.
void gs_steps_begin(gs_steps *steps, gs_engine *engine, gs_writer *writer, gs_observer *observer,
                    gs_trace *trace);
// No more steps; calls have parted. {0} is fine.
void gs_steps_end(gs_steps *steps);

// Releases the event; event->was_admitted says whether it was listened to.
void gs_steps_take(gs_steps *steps, gs_engine_event *event);
// The same; `keep` is called for one that was listened to, before its effects are performed: they show what it keeps.
void gs_steps_take_and(gs_steps *steps, gs_engine_event *event, void (*keep)(void *ctx), void *ctx);
void gs_steps_take_kind(gs_steps *steps, gs_engine_event_kind kind);
// Behind each tick: a store that has failed is tried, though nobody writes. Else who is not ready for that stays so.
void gs_steps_try_store(gs_steps *steps);

#endif
