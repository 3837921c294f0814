// All that leaves: answers, messages to ranks, orders to agents, records, looks at files, notes, what is shown and
// counted. Performed by coordinator/serve in their order, after the step and before the next one.
//
// Pointers are borrowed: they hold until the next step, also those to what the step has ended.
#ifndef COORDINATOR_ENGINE_BASE_EFFECT_H
#define COORDINATOR_ENGINE_BASE_EFFECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/model/agent.h"
#include "coordinator/model/job_table.h"
#include "coordinator/model/request_keys.h"
#include "coordinator/model/run.h"
#include "core/status.h"

typedef enum gs_effect_kind {
    // To who called.
    GS_DO_REPLY = 0,  // ends a call
    GS_DO_END,        // ends a stream
    GS_DO_TELL_MEMBER,
    GS_DO_TELL_AGENT,
    // To the store. Each is answered by GS_ON_STORED with its ticket, job and directory.
    GS_DO_WRITE_JOB,
    GS_DO_DELETE_JOB,
    GS_DO_RESERVE_GENERATIONS,
    GS_DO_WRITE_CHECKPOINT,
    GS_DO_DELETE_CHECKPOINT,
    GS_DO_PRUNE_KEYS,  // not answered
    // To files.
    GS_DO_VERIFY,            // reads a checkpoint; GS_ON_VERIFIED
    GS_DO_LOOK_AT_PARTS,     // makes a checkpoint of parts where all are there; GS_ON_PARTS_LOOKED
    GS_DO_FIND_DIRECTORIES,  // that are checkpoints and not known; GS_ON_DIRECTORIES_FOUND
    GS_DO_CHECK_CHECKPOINTS, // which good ones are gone; GS_ON_CHECKPOINTS_CHECKED
    GS_DO_LOOK_FOR_LIFE,     // of ranks that are gone, and closes their directory to them when asked to; GS_ON_LIFE_LOOKED
    GS_DO_REMOVE_CHECKPOINT, // its files; GS_ON_FILES_REMOVED
    GS_DO_REMOVE_PARTS,      // of a save that will never be one; not answered
    GS_DO_SWEEP,             // what saves have left long ago; not answered
    GS_DO_PURGE,             // all files of a job; not answered
    // To people.
    GS_DO_NOTE,             // an entry of the event log
    GS_DO_LOG,              // a line for who runs the coordinator
    GS_DO_ADD_JOB,          // there is a new job: what is seen of it begins
    GS_DO_SHOW_JOB,         // its state or the reason for it has changed
    GS_DO_END_JOB,          // it is terminal
    GS_DO_DROP_JOB,         // it is gone
    GS_DO_BEGIN_GENERATION, // ranks start anew
    GS_DO_END_RUN,          // how its members ended is kept
    GS_DO_SHOW_FAILURE,     // run->cause is complete
    GS_DO_SHOW_PLAN,
    GS_DO_SHOW_WORKER,
    GS_DO_SHOW_CHECKPOINT,  // a new one that was recorded
    GS_DO_COUNT,
    GS_NUM_EFFECTS
} gs_effect_kind;

typedef enum gs_reply_kind {
    GS_REPLY_EMPTY = 0,  // {}
    GS_REPLY_NOTHING,    // no body
    GS_REPLY_REFUSAL,    // details of an error
    GS_REPLY_JOB,        // effect.job as people see it; `replayed` where a key was used again
    GS_REPLY_DRY_RUN,
    GS_REPLY_REPLAN,
    GS_REPLY_SETTLE,
    GS_REPLY_EXCHANGE  // everybody's bytes
} gs_reply_kind;

typedef struct gs_reply {
    gs_status status;
    gs_reply_kind kind;
    const char *code, *hint;  // of a refusal: "wrong_state", what to do; NULL: the status says all
    const char *job_text;     // of an ambiguous one: what was asked for
    bool replayed;
    const gs_job_spec *spec;  // of a dry run
    bool apply, save;         // of a settlement
    const gs_exchange_round *round;
} gs_reply;

typedef enum gs_member_order {
    GS_TELL_WELCOME = 0,
    GS_TELL_PREPARE,
    GS_TELL_START,
    GS_TELL_GO,
    GS_TELL_ABORT,
    GS_TELL_DRAIN,
    GS_TELL_REPLAN,
    GS_TELL_CADENCE
} gs_member_order;

// Everything else is in effect.run and effect.member.
typedef struct gs_member_message {
    gs_member_order order;
    gs_cadence cadence;           // welcome, cadence
    int64_t orphan_ns;            // welcome
    bool send_params;             // welcome
    const gs_bucket_plan *plan;   // prepare, replan
    const gs_plan_facts *facts;   // of that plan
    bool is_observed;             // it follows an order that was observed
} gs_member_message;

typedef enum gs_agent_order { GS_TELL_AGENT_WELCOME = 0, GS_TELL_START_RANK, GS_TELL_STOP_RANK, GS_TELL_DESCRIBE_RANK, GS_TELL_ADOPT_RANK, GS_TELL_AGENT_CADENCE } gs_agent_order;

typedef struct gs_agent_message {
    gs_agent_order order;
    int64_t heartbeat_ns;  // welcome, cadence
    int slot;              // stop, describe, adopt
    uint64_t incarnation;  // the same
    bool kill;             // stop
    double grace_seconds;  // stop
    const gs_checkpoint *resume;  // start; NULL: from the beginning. The rest is in effect.job and effect.member
} gs_agent_message;

typedef enum gs_severity { GS_SEVERITY_INFO = 0, GS_SEVERITY_WARNING, GS_SEVERITY_ERROR } gs_severity;

// As it was when it happened.
typedef struct gs_note {
    gs_severity severity;
    const char *reason, *message;
    uint32_t generation;           // 0: none
    int64_t step;                  // −1: none was committed
    int rank;                      // −1: none
    const char *worker;            // NULL: none
    const gs_fault_facts *fault;   // NULL: it is none
} gs_note;

typedef struct gs_plan_display {
    const gs_bucket_plan *plan;
    const gs_param_spec *params;
    size_t num_params;
    const gs_plan_facts *facts;
    bool is_new;  // enters the history; else the same layout is shown again
} gs_plan_display;

typedef enum gs_count_kind {
    GS_COUNT_RENDEZVOUS = 0,  // label: outcome; seconds
    GS_COUNT_RESTART,         // label: reason
    GS_COUNT_FAULT,           // label: kind; second: verdict
    GS_COUNT_RESCALE,         // label: direction
    GS_COUNT_RECOVERY,        // seconds
    GS_COUNT_SAVE_FAILED,     // failure
    GS_COUNT_FORGOTTEN,       // label: why; seconds: how many jobs
    GS_COUNT_LIMIT,           // label: what reached its bound
} gs_count_kind;

typedef struct gs_count {
    gs_count_kind kind;
    const char *label, *second;
    double seconds;  // or a number
    gs_save_failure failure;
} gs_count;

typedef struct gs_effect {
    gs_effect_kind kind;
    gs_call call;  // of replies, ends, and what is told on a stream
    gs_job *job;
    gs_run *run;
    gs_member *member;
    gs_agent *agent;
    uint64_t ticket, job_id;
    const char *text;  // DO_LOG: its fields; of checkpoints: the directory
    union {
        gs_reply reply;
        gs_status ending;
        gs_member_message member_message;
        gs_agent_message agent_message;
        struct {
            const gs_request_key *key;  // NULL: none is stored beside the job
        } write;
        gs_tombstone tombstone;  // DELETE_JOB: what is left of it
        uint32_t generation_end;
        const gs_checkpoint *checkpoint;
        struct {
            const gs_checkpoint *item;
            const gs_checkpoint_report *report;  // NULL: as its manifest says
        } verify;
        bool all_reported;
        gs_life_look life;
        gs_note note;
        struct {
            const char *event;  // what has happened; its fields are effect.text
            gs_severity severity;
        } log;
        gs_plan_display plan;
        const char *worker_state;
        gs_count count;
    };
} gs_effect;

typedef struct gs_effects {
    const gs_effect *items;
    size_t count;
} gs_effects;

const char *gs_effect_name(gs_effect_kind kind);  // "write_job"

#endif
