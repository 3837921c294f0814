// The coordinator's state, all of it that decides. engine/ changes it; observe/ and serve/ read it.
#ifndef COORDINATOR_MODEL_STATE_H
#define COORDINATOR_MODEL_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/model/agent.h"
#include "coordinator/model/cluster.h"
#include "coordinator/model/job_table.h"
#include "coordinator/model/request_keys.h"
#include "coordinator/rules/timing.h"
#include "core/u64_map.h"

#ifndef GS_GENERATION_BLOCK  // histories of tests/simulation/planted.py use them up
#define GS_GENERATION_BLOCK 1000
#endif

// Numbers are handed out from a block that is durable already; the next block is asked for in time.
typedef struct gs_generation_numbers {
    uint32_t next;         // to be handed out
    uint32_t durable_end;  // numbers below it are reserved on the disk
    uint32_t asked_end;    // the same once the store has answered; equals durable_end while nothing is asked
    uint32_t leapt_from;   // where they were before a fence made them leap, until one above it is given out; 0: nowhere else
} gs_generation_numbers;

// How much is kept. 0: as much as there is.
typedef struct gs_retention {
    size_t ended_jobs;
    int64_t ended_ns;             // of a job, from its end
    size_t live_jobs, keys;       // one more is refused
    size_t ended_above;           // ended_jobs, that cannot be forgotten yet: with so many no job is taken
} gs_retention;

typedef struct gs_state {
    gs_timing timing;
    gs_retention retention;
    char checkpoints_dir[1024];
    gs_cluster cluster;
    gs_generation_numbers generations;
    gs_job_table jobs;
    gs_agent_table agents;
    gs_u64_map members;  // of all runs, by incarnation
    gs_request_keys keys;
    bool draining;          // no new jobs
    bool schedule_needed;   // something ended or became free
    int64_t now_ns, wall_ms;  // of the last event
    int64_t begun_ns;         // when this life of the coordinator did
    uint64_t num_ticks;
    int64_t ticked_ns, swept_ns, sweeps_begun_ns, retained_ns;
    int64_t stood_ns;  // since the last tick this process stood still for so long
    int64_t pace_ns, paced_ns;  // the longest that connections may have been told of late, and when; 0: as always
    size_t forgotten_old, forgotten_many;  // ended jobs, durably; not told yet
} gs_state;

gs_member *gs_state_member(const gs_state *state, uint64_t incarnation);  // NULL: none
gs_cadence gs_state_cadence(const gs_state *state);
// How long a rank or worker may be silent whatever else is known. beat_ns: how often it is heard; 0: as it would be told now.
int64_t gs_state_dead_ns(const gs_state *state, int64_t beat_ns);
// Whether this tick looks at the job's ranks.
bool gs_state_has_turn(const gs_state *state, const gs_job *job);

#endif
