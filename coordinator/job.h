// A job: what was asked for, where it stands and why. Owned by the coordinator's loop.
//
// The states and which may follow which are here; who moves a job is job_control.h.
#ifndef COORDINATOR_JOB_H
#define COORDINATOR_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/job_id.h"
#include "core/status.h"
#include "rpc/json/json.h"
#include "rpc/schema/job_spec.h"

typedef enum gs_job_state {
    GS_JOB_QUEUED = 0,
    GS_JOB_STARTING,
    GS_JOB_RUNNING,
    GS_JOB_RECOVERING,
    GS_JOB_STOPPING,
    GS_JOB_SUCCEEDED,
    GS_JOB_FAILED,
    GS_JOB_CANCELLED,
    GS_NUM_JOB_STATES
} gs_job_state;

const char *gs_job_state_name(gs_job_state state);
bool gs_job_state_from_name(gs_job_state *state, const char *name);
bool gs_job_state_terminal(gs_job_state state);
// Whether a job in `from` may be shown in `to` next; staying is always allowed but for terminal ones.
bool gs_job_state_may_follow(gs_job_state from, gs_job_state to);

typedef struct gs_run gs_run;                    // run.h
typedef struct gs_job_metrics gs_job_metrics;    // job_metrics.h
typedef struct gs_job_log gs_job_log;            // job_log.h
typedef struct gs_checkpoints gs_checkpoints;    // checkpoints.h
typedef struct gs_left_timelines gs_left_timelines;  // timelines.c

#define GS_JOB_MAX_RESTART_TIMES 64

typedef struct gs_job {
    uint64_t id;
    char id_text[GS_JOB_ID_LEN];
    gs_job_spec spec;
    gs_json *spec_json;  // owned; the full effective specification

    gs_job_state state;
    char reason[48], message[320];
    int64_t created_ms, started_ms, ended_ms, state_since_ms;  // wall clock; 0: not yet
    uint64_t version;

    bool stop_asked;
    gs_job_state stop_outcome;  // SUCCEEDED, CANCELLED, or FAILED at the deadline
    char stop_reason[48];

    uint32_t generation;
    int world_size;
    int64_t step;        // largest applied step ever reported
    bool committed;      // some generation committed a step
    int64_t restarts;
    int64_t reached_step;  // of the run that failed last, until the next one has begun; 0: none
    int64_t lost_steps;    // that were taken again after failures, or will be
    int64_t restart_times_ms[GS_JOB_MAX_RESTART_TIMES];  // the newest; forgiven ones removed
    int num_restart_times;
    int startup_failures;  // in a row, without a committed step
    int plan_revision;

    gs_json *failure;     // owned; NULL while nothing failed
    gs_json *final_runs;  // owned; the members of the last generation, as GetJobWorkers shows them
    gs_json *plan;        // owned; as GetJobPlan shows it
    gs_json *plan_history;   // owned; of the plans so far, the newest last
    gs_json *plan_rebuilds;  // owned; {reason: how often}
    gs_json *ready_order;     // owned; [param…] that plans follow; NULL: none yet
    gs_json *observed_order;  // owned; the last one that a rank told
    char order_reason[16];    // who made plans follow it: "ready_order", "operator"
    char *sample;         // owned

    // Waiting.
    int slots_needed, slots_free;
    int64_t waiting_since_ms;
    int64_t spent_ms[GS_NUM_JOB_STATES];  // in each state until it last changed; this life of the coordinator
    int64_t enough_since_ns;  // when world.min slots became free; 0: they are not
    int64_t not_before_ns;    // back-off
    int world_wanted;         // restart with exactly that many; 0: any between min and max
    int64_t failed_ns;        // when the last generation failed; 0: it did not

    gs_run *run;  // owned; NULL while no trainer belongs to the job
    gs_job_metrics *metrics;      // owned
    gs_job_log *log;              // owned
    gs_checkpoints *checkpoints;  // owned
    gs_left_timelines *left_timelines;  // owned; NULL: none

    int ranks_shown;   // most ranks that the metrics page has shown
    bool on_page;      // its series are on the metrics page

    bool dirty;  // must be written
    int64_t dirty_since_ns;
    bool held_back;  // not scheduled: not durable yet, or being deleted
} gs_job;

// Takes spec_json. NULL: out of memory.
gs_job *gs_job_create(uint64_t id, const gs_job_spec *spec, gs_json *spec_json);
void gs_job_destroy(gs_job *job);  // but for run, metrics, log and checkpoints, which have their own

#endif
