// What the parts of the engine share: the state, the effects so far, what the step has ended. Open to this room alone.
#ifndef COORDINATOR_ENGINE_BASE_MIND_H
#define COORDINATOR_ENGINE_BASE_MIND_H

#include "coordinator/engine/base/effect.h"
#include "coordinator/engine/base/event.h"
#include "coordinator/model/state.h"
#include "coordinator/model/transitions.h"

typedef struct gs_engine gs_engine;  // the same for who uses it: engine.h

typedef struct gs_text_block gs_text_block;

// An answer that waits until what it says is durable.
typedef enum gs_late_kind {
    GS_LATE_CREATE = 0,
    GS_LATE_STOP,
    GS_LATE_DELETE,
    GS_LATE_REPLAN,
    GS_LATE_RELEASE,
    GS_LATE_GO_BACK,  // waits for no write: for the disk, which is asked whether the step is there
    GS_LATE_ADOPT,
    GS_LATE_ADOPT_AGAIN
} gs_late_kind;

typedef enum gs_forget_reason { GS_FORGET_ASKED = 0, GS_FORGET_OLD, GS_FORGET_MANY } gs_forget_reason;

typedef struct gs_late_answer {
    uint64_t ticket, job;
    gs_late_kind kind;
    gs_kept_call held;
    char *key;  // owned; of an idempotent request; NULL: none
    bool purges;
    gs_forget_reason why;  // of a deletion
    bool shows_end;  // what is written shows that the job has ended
    int64_t step, until_ns;  // of GO_BACK
    struct gs_late_answer *next;
} gs_late_answer;

// Ended by this step: effects may point at it, so it goes with the next one.
typedef struct gs_grave {
    void *what;
    void (*release)(void *what);
} gs_grave;

typedef struct gs_adoption gs_adoption;  // engine/adoption.c

struct gs_engine {
    gs_state state;
    gs_effect *effects;  // owned
    size_t num_effects, max_effects;
    gs_text_block *texts;  // owned; what effects point at
    gs_grave *graves;      // owned
    size_t num_graves, max_graves;
    gs_u64_map kept;         // gs_kept_call by its number
    gs_late_answer *late;    // owned
    gs_adoption *adoptions;  // owned; that wait for what agents say
    uint64_t random, last_ticket;
    const uint64_t *draws;  // of the event
    size_t num_draws;
    uint64_t *drawn;  // owned; in this step
    size_t num_drawn, max_drawn;
    uint64_t taken[GS_NUM_MACHINES][GS_MAX_TRANSITIONS];
};

// The next effect, empty; valid until the one after it.
gs_effect *gs_mind_do(gs_engine *engine, gs_effect_kind kind);
// Memory that lasts as long as the effects of this step.
const char *gs_mind_text(gs_engine *engine, const char *format, ...) GS_PRINTF(2, 3);
const void *gs_mind_copy(gs_engine *engine, const void *bytes, size_t num_bytes);
void gs_mind_bury(gs_engine *engine, void *what, void (*release)(void *what));  // NULL is fine
void gs_mind_forget_step(gs_engine *engine);  // effects, texts and graves of the last one
uint64_t gs_mind_draw(gs_engine *engine);     // a random number; never 0

void gs_mind_log(gs_engine *engine, gs_severity severity, const char *event, const char *format, ...)
    GS_PRINTF(4, 5);
void gs_mind_count(gs_engine *engine, const gs_job *job, gs_count_kind kind, const char *label,
                   const char *second, double seconds);

// Calls that wait. Each is answered once: gs_kept_take says its number and forgets it.
void gs_kept_set(gs_engine *engine, gs_kept_call *kept, gs_call call, gs_call_use use, void *keeper);
gs_call gs_kept_take(gs_engine *engine, gs_kept_call *kept);  // 0: none was kept

// Answers; call 0 wants none.
void gs_reply_ok(gs_engine *engine, gs_call call);
void gs_reply_error(gs_engine *engine, gs_call call, gs_status status);
void gs_reply_refusal(gs_engine *engine, gs_call call, gs_status status, const char *code, const char *hint);
// ok: an empty answer; else the error.
void gs_reply_status(gs_engine *engine, gs_call call, gs_status status);
gs_effect *gs_reply_with(gs_engine *engine, gs_call call, gs_reply_kind kind, gs_job *job);
void gs_end_stream(gs_engine *engine, gs_call call, gs_status status);

#endif
