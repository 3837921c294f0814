#include "coordinator/model/transitions.h"

#include <stddef.h>

#define ROWS(list) .rows = (list), .num_rows = (int)(sizeof(list) / sizeof *(list))

static const gs_transition job_rows[] = {
    {GS_JOB_QUEUED, GS_JOB_QUEUED, "accepted, or waits for something else"},
    {GS_JOB_QUEUED, GS_JOB_STARTING, "slots are free, nothing was committed yet"},
    {GS_JOB_QUEUED, GS_JOB_RECOVERING, "slots are free, a step was committed before"},
    {GS_JOB_QUEUED, GS_JOB_SUCCEEDED, "stopped before it ran, as a success"},
    {GS_JOB_QUEUED, GS_JOB_FAILED, "waited too long, or its deadline passed"},
    {GS_JOB_QUEUED, GS_JOB_CANCELLED, "stopped before it ran"},
    {GS_JOB_STARTING, GS_JOB_STARTING, "starts again after a failed start"},
    {GS_JOB_STARTING, GS_JOB_RUNNING, "the first step is committed"},
    {GS_JOB_STARTING, GS_JOB_QUEUED, "slots are gone, or the coordinator restarted"},
    {GS_JOB_STARTING, GS_JOB_STOPPING, "asked to stop"},
    {GS_JOB_STARTING, GS_JOB_SUCCEEDED, "its steps were done already"},
    {GS_JOB_STARTING, GS_JOB_FAILED, "it cannot start"},
    {GS_JOB_STARTING, GS_JOB_CANCELLED, "stopped between two starts"},
    {GS_JOB_RUNNING, GS_JOB_RECOVERING, "a generation ended, or the coordinator restarted"},
    {GS_JOB_RUNNING, GS_JOB_STOPPING, "asked to stop"},
    {GS_JOB_RUNNING, GS_JOB_SUCCEEDED, "the target is reached"},
    {GS_JOB_RUNNING, GS_JOB_FAILED, "its ranks told different ends, and nothing may be restarted"},
    {GS_JOB_RECOVERING, GS_JOB_RECOVERING, "failed again, or starts again"},
    {GS_JOB_RECOVERING, GS_JOB_RUNNING, "a step is committed again"},
    {GS_JOB_RECOVERING, GS_JOB_QUEUED, "slots are gone, or the coordinator restarted"},
    {GS_JOB_RECOVERING, GS_JOB_STOPPING, "asked to stop"},
    {GS_JOB_RECOVERING, GS_JOB_SUCCEEDED, "the last step was settled by survivors"},
    {GS_JOB_RECOVERING, GS_JOB_FAILED, "its restarts are used up"},
    {GS_JOB_RECOVERING, GS_JOB_CANCELLED, "stopped between two generations"},
    {GS_JOB_STOPPING, GS_JOB_SUCCEEDED, "ended, as a success"},
    {GS_JOB_STOPPING, GS_JOB_FAILED, "ended at its deadline"},
    {GS_JOB_STOPPING, GS_JOB_CANCELLED, "ended"},
};

static const gs_transition run_rows[] = {
    {GS_RUN_LAUNCHING, GS_RUN_PREPARING, "all said hello and build the same model"},
    {GS_RUN_LAUNCHING, GS_RUN_SETTLING, "a rank failed, or is late"},
    {GS_RUN_LAUNCHING, GS_RUN_ENDING, "stopped"},
    {GS_RUN_PREPARING, GS_RUN_CONNECTING, "all agree on plan and state"},
    {GS_RUN_PREPARING, GS_RUN_SETTLING, "a rank failed, is late, or differs"},
    {GS_RUN_PREPARING, GS_RUN_ENDING, "stopped"},
    {GS_RUN_CONNECTING, GS_RUN_TRAINING, "all are in the communicator"},
    {GS_RUN_CONNECTING, GS_RUN_SETTLING, "a rank failed, or is late"},
    {GS_RUN_CONNECTING, GS_RUN_ENDING, "stopped"},
    {GS_RUN_TRAINING, GS_RUN_SETTLING, "a rank failed, hangs or is silent"},
    {GS_RUN_TRAINING, GS_RUN_ENDING, "stopped at once, or the drain took too long"},
    {GS_RUN_RELOADING, GS_RUN_TRAINING, "all checked in after the coordinator's restart"},
    {GS_RUN_RELOADING, GS_RUN_SETTLING, "a rank did not come back"},
    {GS_RUN_RELOADING, GS_RUN_ENDING, "stopped at once, or the drain took too long"},
    {GS_RUN_SETTLING, GS_RUN_ENDING, "survivors know what to do with the step in flight"},
    {GS_RUN_ENDING, GS_RUN_ENDING, "stragglers are killed"},
};

static const gs_transition member_rows[] = {
    {GS_MEMBER_LAUNCHED, GS_MEMBER_HERE, "said hello"},
    {GS_MEMBER_LAUNCHED, GS_MEMBER_LEAVING, "said bye instead of hello"},
    {GS_MEMBER_LAUNCHED, GS_MEMBER_EXITED, "its process never spoke"},
    {GS_MEMBER_HERE, GS_MEMBER_READY, "agreed to the plan"},
    {GS_MEMBER_HERE, GS_MEMBER_SETTLING, "saw the generation end before it had agreed"},
    {GS_MEMBER_HERE, GS_MEMBER_LEAVING, "said bye"},
    {GS_MEMBER_HERE, GS_MEMBER_EXITED, "its process is gone"},
    {GS_MEMBER_READY, GS_MEMBER_UP, "is in the communicator"},
    {GS_MEMBER_READY, GS_MEMBER_SETTLING, "could not connect"},
    {GS_MEMBER_READY, GS_MEMBER_LEAVING, "said bye"},
    {GS_MEMBER_READY, GS_MEMBER_EXITED, "its process is gone"},
    {GS_MEMBER_UP, GS_MEMBER_SETTLING, "aborted, and asks how to settle"},
    {GS_MEMBER_UP, GS_MEMBER_LEAVING, "said bye"},
    {GS_MEMBER_UP, GS_MEMBER_EXITED, "its process is gone"},
    {GS_MEMBER_SETTLING, GS_MEMBER_SETTLED, "has its answer"},
    {GS_MEMBER_SETTLING, GS_MEMBER_LEAVING, "said bye without waiting"},
    {GS_MEMBER_SETTLING, GS_MEMBER_EXITED, "died while it asked"},
    {GS_MEMBER_SETTLED, GS_MEMBER_LEAVING, "said bye"},
    {GS_MEMBER_SETTLED, GS_MEMBER_EXITED, "its process is gone"},
    {GS_MEMBER_LEAVING, GS_MEMBER_EXITED, "its process is gone"},
};

static const gs_transition checkpoint_rows[] = {
    {GS_CHECKPOINT_VERIFYING, GS_CHECKPOINT_RECORDING, "its files are as the manifest says"},
    {GS_CHECKPOINT_VERIFYING, GS_CHECKPOINT_DELETING, "its job has gone on from an earlier one, which was named"},
    {GS_CHECKPOINT_RECORDING, GS_CHECKPOINT_GOOD, "its row is durable"},
    {GS_CHECKPOINT_RECORDING, GS_CHECKPOINT_DELETING, "its files are gone before its row is written"},
    {GS_CHECKPOINT_GOOD, GS_CHECKPOINT_DELETING, "newer ones are enough, or its files are gone"},
    {GS_CHECKPOINT_DELETING, GS_CHECKPOINT_GOOD, "that it is to go could not be written"},
};

static const char *job_name(int state) { return gs_job_state_name((gs_job_state)state); }
static const char *run_name(int state) { return gs_run_phase_name((gs_run_phase)state); }
static const char *member_name(int state) { return gs_member_stage_name((gs_member_stage)state); }

static const char *checkpoint_name(int state) {
    static const char *const names[GS_NUM_CHECKPOINT_STATES] = {"verifying", "recording", "good", "deleting"};
    return names[state];
}

static const gs_transition_table tables[GS_NUM_MACHINES] = {
    [GS_MACHINE_JOB] = {"job", ROWS(job_rows), GS_NUM_JOB_STATES, job_name},
    [GS_MACHINE_RUN] = {"run", ROWS(run_rows), GS_NUM_RUN_PHASES, run_name},
    [GS_MACHINE_MEMBER] = {"member", ROWS(member_rows), GS_NUM_MEMBER_STAGES, member_name},
    [GS_MACHINE_CHECKPOINT] = {"checkpoint", ROWS(checkpoint_rows), GS_NUM_CHECKPOINT_STATES, checkpoint_name},
};

const gs_transition_table *gs_transitions_of(gs_machine machine) { return &tables[machine]; }

int gs_transition_find(gs_machine machine, int from, int to) {
    const gs_transition_table *table = &tables[machine];
    for (int i = 0; i < table->num_rows; i++) {
        if (table->rows[i].from == from && table->rows[i].to == to) return i;
    }
    return -1;
}
