// The coordinator's mind: state, event → state, effects. No clock, no file, no socket, no JSON; what decides is here, and a
// test of its symbols says so. One thread at a time.
#ifndef COORDINATOR_ENGINE_ENGINE_H
#define COORDINATOR_ENGINE_ENGINE_H

#include "coordinator/engine/base/effect.h"
#include "coordinator/engine/base/event.h"
#include "coordinator/model/state.h"
#include "coordinator/model/transitions.h"

typedef struct gs_engine gs_engine;

typedef struct gs_engine_options {
    const gs_timing *timing;
    gs_retention retention;
    const char *checkpoints_dir;
    const char *cluster;  // id
    uint32_t epoch;
    uint64_t life;
    uint32_t first_generation;  // [first, first + GS_GENERATION_BLOCK) are reserved already
} gs_engine_options;

// INVALID_ARGUMENT: deadlines in the wrong order.
GS_NODISCARD gs_status gs_engine_create(gs_engine **out, const gs_engine_options *options);
void gs_engine_destroy(gs_engine *engine);

// Before the first step: what was stored. Jobs come oldest first, with their checkpoints and the run that was
// recorded; all are taken.
void gs_engine_adopt_job(gs_engine *engine, gs_job *job);
void gs_engine_adopt_key(gs_engine *engine, const char *key, const char *fingerprint, uint64_t job,
                         int64_t expires_ns);

// A job that has ended and was deleted.
void gs_engine_adopt_tombstone(gs_engine *engine, const gs_tombstone *tombstone);
void gs_engine_adopt_unreadable(gs_engine *engine, uint64_t job);  // whose row could not be read

// A former start, and which life it was.
void gs_engine_adopt_life(gs_engine *engine, uint64_t epoch, uint64_t life);

// What the event leads to; holds until the next step.
gs_effects gs_engine_step(gs_engine *engine, gs_engine_event *event);

// The numbers that the last step drew, in their order: for a record of it.
const uint64_t *gs_engine_drawn(const gs_engine *engine, size_t *count);

const gs_state *gs_engine_state(const gs_engine *engine);
// How often row `row` of a table of transitions has been taken.
uint64_t gs_engine_taken(const gs_engine *engine, int machine, int row);

#endif
