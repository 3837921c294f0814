// A job: what was asked for, where it stands and why. Plain: who moves it is coordinator/engine.
#ifndef COORDINATOR_MODEL_JOB_H
#define COORDINATOR_MODEL_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/model/checkpoint.h"
#include "coordinator/model/cluster.h"
#include "coordinator/model/job_id.h"
#include "coordinator/rules/avoidance.h"
#include "core/digest.h"
#include "rpc/schema/job_spec.h"
#include "rpc/plan/link_message.h"
#include "rpc/plan/offers_message.h"

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

// Of the plan that a job has: what decides about the next one.
typedef struct gs_plan_facts {
    char hash[GS_DIGEST_TEXT_LEN];  // "": there is none yet
    char reason[16];                // "size_based", "one_host", "owner_based", "ready_order", "link", "operator"
    int revision;
    int64_t since_step;
    size_t num_buckets;
} gs_plan_facts;

// Parameters in the order in which their gradients come.
typedef struct gs_param_order {
    size_t *params;  // owned; NULL: none is known
    size_t count;
} gs_param_order;

void gs_param_order_release(gs_param_order *order);
void gs_param_order_copy(gs_param_order *out, const gs_param_order *order);  // releases what `out` had
bool gs_param_order_equal(const gs_param_order *a, const gs_param_order *b);

// Why a waiting job waits. Its reason and message say it to people.
typedef enum gs_job_wait { GS_JOB_WAITS_FOR_SLOTS = 0, GS_JOB_WAITS_FOR_DEVICE } gs_job_wait;

typedef struct gs_run gs_run;              // run.h
typedef struct gs_job_sight gs_job_sight;  // what can be seen of it besides: coordinator/observe's, never looked at here

#define GS_JOB_MAX_RESTARTS_KEPT 64

typedef struct gs_job {
    uint64_t id;
    char id_text[GS_JOB_ID_LEN];
    gs_job_spec spec;

    gs_job_state state;
    char reason[48], message[320];  // for people
    int64_t created_ms, started_ms, ended_ms, state_since_ms, waiting_since_ms;  // wall clock, for people; 0: not yet
    int64_t ended_ns;  // of an ended one, on this life's clock, as if coordinators had lived one behind the other
    int64_t spent_ms[GS_NUM_JOB_STATES];  // in each state until it last changed; this life of the coordinator
    uint64_t version;

    bool stop_asked;
    gs_job_state stop_outcome;  // SUCCEEDED, CANCELLED, or FAILED at the deadline
    char stop_reason[48];

    char adopted_from[GS_CLUSTER_NAME_LEN];  // the cluster whose trainers were adopted with it; "": none
    char written_as[GS_CLUSTER_NAME_LEN];    // the one that had started them, where that was another; "": it was not
    int64_t adopted_step;       // that they had come to
    uint32_t least_generation;  // of those that it is given here, where it was adopted: no earlier one can be mixed up with them; 0: any

    uint64_t *last_workers;  // owned; hashes of the names of those that had ranks of its last run which is over
    size_t num_last_workers;

    uint32_t generation;
    uint32_t begun_generation;  // the newest whose ranks all held a step to go on from; earlier than `generation` while they come to that
    int world_size;
    int64_t step;        // largest applied step ever reported
    bool committed;      // some generation committed a step
    int64_t restarts;
    int64_t reached_step;  // of the run that failed last, until the next one has begun; 0: none
    int64_t lost_steps;    // that were taken again after failures, or will be
    int startup_failures;  // in a row, without a committed step
    int64_t begun_step;    // of the checkpoint that its last start went on from; 0: none
    char begun_directory[GS_CHECKPOINT_NAME_LEN];  // "": a record of before does not name it
    // An operator has started it without the disk of its checkpoints: what ranks up to that generation saved behind that step is
    // not looked for any more. Until the new ranks have begun, nothing else tells theirs from it.
    uint32_t left_generation;
    int64_t left_step;
    int64_t go_on_step;    // where an operator has its next generation begin: later checkpoints are none; 0: nobody has

    gs_plan_facts plan;
    gs_param_order ready_order;     // that plans follow
    gs_param_order observed_order;  // the last one that a rank told
    char order_reason[16];          // who made plans follow it: "ready_order", "operator"
    gs_link_report link;            // between its hosts, that plans follow; empty: none
    gs_link_report observed_link;   // the last one that a rank told
    uint32_t link_generation;       // in which; 0: none
    gs_plan_offers offers;          // of hook "auto", as rank 0 told them last; no plan follows them
    int link_doubts;                // in a row, tellings by which another plan would be better

    // Its age counts while a coordinator is there, on a clock that nobody sets: it decides deadlines.
    int64_t age_ns, aged_ns;  // age at the time aged_ns of this process
    int64_t restart_ages_ns[GS_JOB_MAX_RESTARTS_KEPT];  // the newest; forgiven ones removed
    int num_restart_ages;

    // Waiting.
    gs_job_wait wait;
    int slots_needed, slots_free;
    int64_t waiting_since_ns;
    int64_t apart_since_ns;   // since when no free worker sees its checkpoint; 0: one does, or there is none
    int64_t enough_since_ns;  // when world.min slots became free; 0: they are not
    int64_t not_before_ns;    // back-off
    int world_wanted;         // restart with exactly that many; 0: any between min and max
    int64_t failed_ns;        // when the last generation failed; 0: it did not
    gs_complaints complaints;  // of ranks that are gone, about the places of others; this life of the coordinator

    gs_run *run;  // owned; NULL while no trainer belongs to the job
    gs_checkpoints checkpoints;
    gs_job_sight *sight;

    bool dirty;  // must be written
    int64_t dirty_since_ns;
    uint32_t doubted_fence;  // the generation that a fence of its names, which people were told is not believed; 0: none
    bool held_back;  // not scheduled: not durable yet, or being deleted
} gs_job;

// NULL: out of memory.
gs_job *gs_job_create(uint64_t id, const gs_job_spec *spec);
void gs_job_free(gs_job *job);  // its run is gone; gs_job_destroy (job_table.h) sees to both
// Whoever says that it is of `cluster` does not belong to this job, NULL or not: it is neither of ours nor of one that it was
// adopted from.
// Its row may be gone: nothing writes it again, nor any other row of it, unless that fails.
bool gs_job_is_being_deleted(const gs_job *job);
bool gs_job_is_of_other(const gs_job *job, const gs_cluster *ours, const char *cluster);
// The name under which the ranks of that generation were started, and write.
const char *gs_job_cluster_of(const gs_job *job, const gs_cluster *ours, uint32_t generation);
// Whose files are the job's that nobody told of: those of the newest generation that has begun. What older ones saved is in its record, or was
// left behind; until one has begun here, an adopted job has no record, and theirs count up to where its ranks were. What its last start went
// on from is the job's though nobody may have been able to record it.
typedef struct gs_job_savers {
    uint32_t generation;
    int64_t older_to;  // a step; −1: none of theirs
    int64_t begun_step;  // that one counts, too; 0: none
    char begun_directory[GS_CHECKPOINT_NAME_LEN];  // "": any of that step
    uint32_t left_generation;  // what its ranks and earlier ones saved behind left_step was given up; 0: nothing was
    int64_t left_step;
} gs_job_savers;

gs_job_savers gs_job_savers_of(const gs_job *job);
bool gs_job_savers_include(const gs_job_savers *savers, uint32_t generation, int64_t step, const char *directory);  // generation 0: it is not told

// The workers of its last run that is over, one after the other; of an ended job nobody asks.
void gs_job_note_worker(gs_job *job, const char *worker);
void gs_job_forget_workers(gs_job *job);
bool gs_job_had_worker(const gs_job *job, const char *worker);

// It may never come to be: until its first row is durable nobody is told that he belongs to it, and nothing else is written of it.
bool gs_job_is_unrecorded(const gs_job *job);
int64_t gs_job_age_ns(const gs_job *job, int64_t now_ns);

#endif
