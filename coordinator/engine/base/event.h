// All that comes in. An event carries its time, the wall clock for people, and a random number, so that the same
// events lead to the same state wherever they are replayed.
//
// Pointers are borrowed for the step unless they are called taken: those the engine may keep, by setting them to
// NULL or {0}; gs_engine_event_release frees what is left.
#ifndef COORDINATOR_ENGINE_BASE_EVENT_H
#define COORDINATOR_ENGINE_BASE_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/engine/base/identity.h"
#include "coordinator/model/agent.h"
#include "coordinator/model/agent_devices.h"
#include "coordinator/model/call.h"
#include "coordinator/model/checkpoint.h"
#include "coordinator/model/cluster.h"
#include "coordinator/model/exchange.h"
#include "coordinator/model/fault.h"
#include "coordinator/model/run.h"
#include "core/status.h"
#include "rpc/schema/role.h"

typedef enum gs_engine_event_kind {
    GS_ON_NOTHING = 0,
    // Time.
    GS_ON_START,  // everything that was stored has been adopted
    GS_ON_TICK,   // deadlines are looked at
    GS_ON_TURN,   // behind a batch of events: what ended is ended, what is free is dealt
    GS_ON_DRAIN,  // the coordinator goes down: no new jobs
    // Agents.
    GS_ON_AGENT_HELLO,
    GS_ON_AGENT_HEARTBEAT,
    GS_ON_EXITED,
    GS_ON_DESCRIBED,
    // Trainers.
    GS_ON_HELLO,
    GS_ON_PARAMS,  // Ready with a page of the parameter list
    GS_ON_READY,
    GS_ON_EXCHANGE,
    GS_ON_COMM_UP,
    GS_ON_HEARTBEAT,
    GS_ON_STEP,
    GS_ON_FAULT,
    GS_ON_SETTLE,
    GS_ON_CHECKPOINTED,
    GS_ON_BYE,
    GS_ON_READY_ORDER,
    // People.
    GS_ON_CREATE_JOB,
    GS_ON_STOP_JOB,
    GS_ON_DELETE_JOB,
    GS_ON_REPLAN_JOB,
    GS_ON_RELEASE_JOB,
    GS_ON_ADOPT_JOB,
    // What effects led to.
    GS_ON_CALL_GONE,  // its caller went away, or is too slow to be told anything
    GS_ON_TOO_LARGE,  // no message holds an order: nobody has got it
    GS_ON_STORED,
    GS_ON_VERIFIED,
    GS_ON_PARTS_LOOKED,
    GS_ON_DIRECTORIES_FOUND,
    GS_ON_FILES_REMOVED,
    GS_ON_CHECKPOINTS_CHECKED,
    GS_ON_LIFE_LOOKED,
    GS_NUM_ENGINE_EVENTS
} gs_engine_event_kind;

typedef struct gs_origin {
    gs_call call;  // 0: one-way, or not from outside
    gs_identity who;
    int64_t generation;    // that the message is bound to; −1: it names none
    const char *asked_by;  // of people: whom the API names, by whose word alone; NULL or "": nobody was asked
} gs_origin;

// What an agent says that runs in one of its slots.
typedef struct gs_running_trainer {
    int64_t slot, pid;
    uint64_t incarnation, job;  // job 0: its id was none
    const char *cluster;        // that it belongs to; NULL or "": not told
    int rank, world_size;       // world_size 0: not told
    uint32_t generation;
    int64_t step;
    gs_membership membership;
} gs_running_trainer;

// The same, as it is now, with what it takes to be its coordinator.
typedef struct gs_described_trainer {
    gs_status refusal;
    gs_running_trainer running;
    uint64_t launch_token;
    uint32_t last_generation;  // of those that its coordinator had given out when it started this trainer; 0: not told
    bool is_on_gpu;
    const char *checkpoints_dir;  // "": not where this coordinator would look
    const char *writes_as;                 // the cluster that started it: its fence has that name, whoever has adopted it since; "": not told
    gs_job_spec *spec;                     // taken
    char spec_digest[GS_DIGEST_TEXT_LEN];
} gs_described_trainer;

typedef struct gs_agent_hello {
    gs_status refusal;  // of what is said wrongly; ok: none
    const char *worker, *host, *boot_id, *network, *build, *data_root;  // network: its name space of that boot; NULL or "": not told
    gs_seen_life seen;
    int64_t pid, cores;
    int num_slots;
    bool is_leaving;  // it ends when its trainers have
    bool takes_cadence;
    bool looks_out;   // for signs in checkpoint directories, when it hears nobody
    bool shows_tokens;  // its trainers show their launch tokens with each message
    bool tells_place;  // heartbeats say where it sees checkpoints, the first of them as soon as it has looked
    gs_agent_devices devices;  // taken
    gs_running_trainer *running;  // owned by the event
    size_t num_running;
    int64_t proven_end;  // another life of this cluster had reserved generations below, as what it was given shows; 0: it shows nothing
} gs_agent_hello;

typedef struct gs_exit_report {
    gs_status refusal;
    uint64_t incarnation;
    int exit_code, signal;  // exit_code −1: not known
    char *log_tail;         // taken; opaque; NULL: none
} gs_exit_report;

typedef struct gs_trainer_hello {
    gs_status refusal;  // it does not speak our protocol, or said no number where one belongs
    const char *job;    // id as text
    const char *cluster;  // that it belongs to; NULL or "": not told
    gs_seen_life seen;
    uint64_t incarnation, launch_token;
    int64_t pid, applied_step;
    const char *host, *boot_id, *params_digest, *data_digest;
    // What it reduces over in a generation, and why; NULL: not told.
    const char *backend, *backend_reason;
    uint32_t backend_generation;
    uint64_t arithmetic;  // a hash; 0: not told
    bool takes_cadence;
} gs_trainer_hello;

typedef struct gs_ready_report {
    const char *plan_hash, *state_digest;
    int64_t applied_step;  // −1: not told
} gs_ready_report;

// Of plans, as heartbeats and Bye tell it.
typedef struct gs_plan_report {
    bool told;
    uint64_t plan, next_plan;  // folded digests
    int64_t plan_step;
} gs_plan_report;

typedef struct gs_heartbeat_report {
    int64_t applied_step, rss_bytes;  // rss −1: not told
    const char *phase;                // NULL: not told
    gs_activity activity;
    gs_membership membership;
    gs_plan_report plan;
} gs_heartbeat_report;

typedef struct gs_settle_question {
    int64_t applied_step;  // −1: not told
    bool complete, apart;
} gs_settle_question;

// A checkpoint, a part of one, or a save that failed.
typedef struct gs_save_report {
    gs_status refusal;      // of members that are not what they can be
    const char *directory;  // as told; a path or a name
    bool is_part;
    int64_t part, num_parts;
    bool failed;
    bool settling;      // survivors save before they end
    gs_save_failure cause;  // where it failed
    const char *error;
    gs_checkpoint_report found;  // taken; step and seconds also where it failed
} gs_save_report;

typedef struct gs_bye_report {
    gs_bye_reason reason;
    int exit_code;
    const char *class, *error, *hint;
    int64_t applied_step;
    gs_plan_report plan;
    bool has_sample;  // what a model wrote at the end; kept by who observes
} gs_bye_report;

typedef struct gs_order_report {
    gs_status refusal;
    gs_param_order order;  // taken; each of its numbers once
    bool settled;
    gs_link_report link;   // taken; empty: not told
    gs_plan_offers offers; // likewise
} gs_order_report;

typedef struct gs_create_request {
    gs_job_spec *spec;        // owned by the event; decoded and checked
    const char *key;          // NULL: not idempotent
    const char *fingerprint;  // of the specification as it was sent
    bool dry_run;
} gs_create_request;

typedef struct gs_stop_request {
    const char *job;
    bool now;
    gs_job_state outcome;
    double grace_seconds;  // below 0: the coordinator's own
} gs_stop_request;

typedef struct gs_delete_request {
    const char *job;
    bool purge;
} gs_delete_request;

// What became of something that was asked of the store or of its threads.
typedef enum gs_stored_kind {
    GS_STORED_JOB = 0,
    GS_STORED_JOB_DELETED,
    GS_STORED_GENERATIONS,
    GS_STORED_CHECKPOINT,
    GS_STORED_CHECKPOINT_DELETED
} gs_stored_kind;

typedef struct gs_completion {
    gs_status status;
    gs_stored_kind stored;   // GS_ON_STORED
    uint64_t ticket;         // of the effect; 0: nobody waits for this one
    uint64_t job;
    const char *directory;   // of a checkpoint; "" otherwise
    uint32_t generation_end;
    bool all_reported;                 // as in the look
    gs_checkpoint_report found;        // of GS_ON_PARTS_LOOKED that found a whole one; taken
    const char *const *names;          // of directories: found, or missing
    size_t num_names;
    gs_life_look life;                 // of GS_ON_LIFE_LOOKED
    uint32_t left_by;                  // of GS_ON_DIRECTORIES_FOUND: which generation of this cluster left the fence there; 0: none
} gs_completion;

typedef struct gs_engine_event {
    gs_engine_event_kind kind;
    int64_t now_ns;   // monotonic, of this process; never earlier than the event before
    int64_t wall_ms;  // for people
    uint64_t random;  // what numbers are drawn from, behind those that are given
    const uint64_t *draws;
    size_t num_draws;
    gs_origin from;
    bool was_admitted;  // out: it came from where it may, and was listened to
    union {
        gs_agent_hello agent_hello;
        struct {
            bool is_leaving;
            gs_agent_place place;
        } agent_heartbeat;
        gs_exit_report exited;
        gs_trainer_hello hello;
        struct {
            gs_status refusal;
            gs_param_page page;  // taken
        } params;
        gs_ready_report ready;
        struct {
            gs_status refusal;
            gs_exchange_request request;
        } exchange;
        struct {
            const char *backend, *reason;  // why that one; NULL: not told
        } comm_up;
        gs_heartbeat_report heartbeat;
        struct {
            int64_t applied_step;
            double step_seconds;
        } step;
        struct {
            const gs_fault_facts *facts;
            const char *text;
        } fault;
        gs_settle_question settle;
        gs_save_report checkpointed;
        gs_bye_report bye;
        gs_order_report ready_order;
        gs_create_request create;
        gs_stop_request stop;
        gs_delete_request remove;
        struct {
            const char *job;
        } replan;
        struct {
            const char *job;
            int64_t step;  // to go on from; 0: none is named
        } release;
        struct {
            const char *job;
        } adopt;
        gs_described_trainer described;
        struct {
            gs_call call;
            bool was_closed;  // at its end, as the end of a process does; not by silence
        } gone;
        struct {
            uint64_t incarnation;  // of the rank that it is about
            bool is_launch;        // told its agent
            bool is_replan;        // of a plan that training can do without
            const char *text;      // how large it is, and how large a message
        } too_large;
        gs_completion done;
    };
} gs_engine_event;

const char *gs_engine_event_name(gs_engine_event_kind kind);  // "hello"
void gs_engine_event_release(gs_engine_event *event);

#endif
