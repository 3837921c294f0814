#include "coordinator/model/transitions.h"

#include <stddef.h>

#define ROWS(list) .rows = (list), .num_rows = (int)(sizeof(list) / sizeof *(list))
#define GUARD(function) {#function, function}
#define NO_GUARD {"nothing more", NULL}

// Of jobs. A job's trainers belong to its run: of a job without a run there are none.

static bool has_no_run(const void *job) { return !((const gs_job *)job)->run; }
static bool has_committed(const void *job) { return ((const gs_job *)job)->committed; }
static bool has_committed_nothing(const void *job) { return !has_committed(job); }
static bool has_run_and_no_step(const void *job) { return !has_no_run(job) && !has_committed(job); }
static bool has_run_and_step(const void *job) { return !has_no_run(job) && has_committed(job); }
static bool is_asked_to_stop(const void *job) { return !has_no_run(job) && ((const gs_job *)job)->stop_asked; }

static bool is_to_be_cancelled(const void *subject) {
    const gs_job *job = subject;
    return !job->run && job->stop_asked && job->stop_outcome == GS_JOB_CANCELLED;
}

// Of runs.

static bool all_have(const gs_run *run, gs_member_stage stage) {
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].stage != stage) return false;
    }
    return true;
}

static bool has_cause(const void *run) { return ((const gs_run *)run)->cause.set; }
static bool all_are_here(const void *run) { return ((const gs_run *)run)->generation && all_have(run, GS_MEMBER_HERE); }
static bool all_are_ready(const void *run) { return all_have(run, GS_MEMBER_READY); }
static bool all_are_up(const void *run) { return all_have(run, GS_MEMBER_UP); }

static bool somebody_is_back(const void *subject) {
    const gs_run *run = subject;
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].stream.call && run->members[i].stage < GS_MEMBER_LEAVING) return true;
    }
    return false;
}

// Of a Settle, which asks what to do with the step in flight.
static bool nobody_asks(const void *subject) {
    const gs_run *run = subject;
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].settle.call) return false;
    }
    return true;
}

// Of members.

static bool has_stream(const void *member) { return ((const gs_member *)member)->stream.call != 0; }
static bool asks(const void *member) { return ((const gs_member *)member)->settle.call != 0; }
static bool is_answered(const void *member) { return !asks(member); }
static bool has_said_bye(const void *member) { return is_answered(member) && ((const gs_member *)member)->bye.reason != GS_BYE_NONE; }
static bool is_in(const gs_member *member, gs_run_phase phase) { return member->rank >= 0 && member->job->run->phase == phase; }
static bool is_prepared(const void *member) { return is_in(member, GS_RUN_PREPARING); }
static bool is_connecting(const void *member) { return is_in(member, GS_RUN_CONNECTING); }

// Of checkpoints.

static bool is_there(const void *checkpoint) { return !((const gs_checkpoint *)checkpoint)->is_gone; }
static bool is_recorded(const void *checkpoint) { return is_there(checkpoint) && !((const gs_checkpoint *)checkpoint)->record_again_ns; }

static const gs_transition job_rows[] = {
    {GS_JOB_QUEUED, GS_JOB_QUEUED, GUARD(has_no_run), "accepted, or waits for something else"},
    {GS_JOB_QUEUED, GS_JOB_STARTING, GUARD(has_run_and_no_step), "slots are free, nothing was committed yet"},
    {GS_JOB_QUEUED, GS_JOB_RECOVERING, GUARD(has_run_and_step), "slots are free, a step was committed before"},
    {GS_JOB_QUEUED, GS_JOB_SUCCEEDED, GUARD(has_no_run), "stopped before it ran, as a success"},
    {GS_JOB_QUEUED, GS_JOB_FAILED, GUARD(has_no_run), "waited too long, or its deadline passed"},
    {GS_JOB_QUEUED, GS_JOB_CANCELLED, GUARD(is_to_be_cancelled), "stopped before it ran"},
    {GS_JOB_STARTING, GS_JOB_STARTING, GUARD(has_committed_nothing), "starts again after a failed start"},
    {GS_JOB_STARTING, GS_JOB_RUNNING, GUARD(has_run_and_step), "the first step is committed"},
    {GS_JOB_STARTING, GS_JOB_QUEUED, GUARD(has_no_run), "slots are gone, or the coordinator restarted"},
    {GS_JOB_STARTING, GS_JOB_STOPPING, GUARD(is_asked_to_stop), "asked to stop"},
    {GS_JOB_STARTING, GS_JOB_SUCCEEDED, GUARD(has_no_run), "its steps were done already"},
    {GS_JOB_STARTING, GS_JOB_FAILED, GUARD(has_no_run), "it cannot start"},
    {GS_JOB_STARTING, GS_JOB_CANCELLED, GUARD(is_to_be_cancelled), "stopped between two starts"},
    {GS_JOB_RUNNING, GS_JOB_RECOVERING, GUARD(has_committed), "a generation ended, or the coordinator restarted"},
    {GS_JOB_RUNNING, GS_JOB_STOPPING, GUARD(is_asked_to_stop), "asked to stop"},
    {GS_JOB_RUNNING, GS_JOB_SUCCEEDED, GUARD(has_no_run), "the target is reached"},
    {GS_JOB_RUNNING, GS_JOB_FAILED, GUARD(has_no_run), "its ranks told different ends, and nothing may be restarted"},
    {GS_JOB_RECOVERING, GS_JOB_RECOVERING, GUARD(has_committed), "failed again, or starts again"},
    {GS_JOB_RECOVERING, GS_JOB_RUNNING, GUARD(has_run_and_step), "a step is committed again"},
    {GS_JOB_RECOVERING, GS_JOB_QUEUED, GUARD(has_no_run), "slots are gone, or the coordinator restarted"},
    {GS_JOB_RECOVERING, GS_JOB_STOPPING, GUARD(is_asked_to_stop), "asked to stop"},
    {GS_JOB_RECOVERING, GS_JOB_SUCCEEDED, GUARD(has_no_run), "the last step was settled by survivors"},
    {GS_JOB_RECOVERING, GS_JOB_FAILED, GUARD(has_no_run), "its restarts are used up"},
    {GS_JOB_RECOVERING, GS_JOB_CANCELLED, GUARD(is_to_be_cancelled), "stopped between two generations"},
    {GS_JOB_STOPPING, GS_JOB_SUCCEEDED, GUARD(has_no_run), "ended, as a success"},
    {GS_JOB_STOPPING, GS_JOB_FAILED, GUARD(has_no_run), "ended at its deadline"},
    {GS_JOB_STOPPING, GS_JOB_CANCELLED, GUARD(is_to_be_cancelled), "ended"},
};

static const gs_transition run_rows[] = {
    {GS_RUN_LAUNCHING, GS_RUN_PREPARING, GUARD(all_are_here), "all said hello and build the same model"},
    {GS_RUN_LAUNCHING, GS_RUN_SETTLING, GUARD(has_cause), "a rank failed, or is late"},
    {GS_RUN_LAUNCHING, GS_RUN_ENDING, GUARD(nobody_asks), "stopped"},
    {GS_RUN_PREPARING, GS_RUN_CONNECTING, GUARD(all_are_ready), "all agree on plan and state"},
    {GS_RUN_PREPARING, GS_RUN_SETTLING, GUARD(has_cause), "a rank failed, is late, or differs"},
    {GS_RUN_PREPARING, GS_RUN_ENDING, GUARD(nobody_asks), "stopped"},
    {GS_RUN_CONNECTING, GS_RUN_TRAINING, GUARD(all_are_up), "all are in the communicator"},
    {GS_RUN_CONNECTING, GS_RUN_SETTLING, GUARD(has_cause), "a rank failed, or is late"},
    {GS_RUN_CONNECTING, GS_RUN_ENDING, GUARD(nobody_asks), "stopped"},
    {GS_RUN_TRAINING, GS_RUN_SETTLING, GUARD(has_cause), "a rank failed, hangs or is silent"},
    {GS_RUN_TRAINING, GS_RUN_ENDING, GUARD(nobody_asks), "stopped at once, or the drain took too long"},
    {GS_RUN_RELOADING, GS_RUN_TRAINING, GUARD(somebody_is_back), "all checked in after the coordinator's restart"},
    {GS_RUN_RELOADING, GS_RUN_SETTLING, GUARD(has_cause), "a rank did not come back"},
    {GS_RUN_RELOADING, GS_RUN_ENDING, GUARD(nobody_asks), "stopped at once, or the drain took too long"},
    {GS_RUN_SETTLING, GS_RUN_ENDING, GUARD(nobody_asks), "survivors know what to do with the step in flight"},
    {GS_RUN_ENDING, GS_RUN_ENDING, GUARD(nobody_asks), "stragglers are killed"},
};

static const gs_transition member_rows[] = {
    {GS_MEMBER_LAUNCHED, GS_MEMBER_HERE, GUARD(has_stream), "said hello"},
    {GS_MEMBER_LAUNCHED, GS_MEMBER_LEAVING, GUARD(has_said_bye), "said bye instead of hello"},
    {GS_MEMBER_LAUNCHED, GS_MEMBER_EXITED, GUARD(is_answered), "its process never spoke"},
    {GS_MEMBER_HERE, GS_MEMBER_READY, GUARD(is_prepared), "agreed to the plan"},
    {GS_MEMBER_HERE, GS_MEMBER_SETTLING, GUARD(asks), "saw the generation end before it had agreed"},
    {GS_MEMBER_HERE, GS_MEMBER_LEAVING, GUARD(has_said_bye), "said bye"},
    {GS_MEMBER_HERE, GS_MEMBER_EXITED, GUARD(is_answered), "its process is gone"},
    {GS_MEMBER_READY, GS_MEMBER_UP, GUARD(is_connecting), "is in the communicator"},
    {GS_MEMBER_READY, GS_MEMBER_SETTLING, GUARD(asks), "could not connect"},
    {GS_MEMBER_READY, GS_MEMBER_LEAVING, GUARD(has_said_bye), "said bye"},
    {GS_MEMBER_READY, GS_MEMBER_EXITED, GUARD(is_answered), "its process is gone"},
    {GS_MEMBER_UP, GS_MEMBER_SETTLING, GUARD(asks), "aborted, and asks how to settle"},
    {GS_MEMBER_UP, GS_MEMBER_LEAVING, GUARD(has_said_bye), "said bye"},
    {GS_MEMBER_UP, GS_MEMBER_EXITED, GUARD(is_answered), "its process is gone"},
    {GS_MEMBER_SETTLING, GS_MEMBER_SETTLED, GUARD(is_answered), "has its answer"},
    {GS_MEMBER_SETTLING, GS_MEMBER_LEAVING, GUARD(has_said_bye), "said bye without waiting"},
    {GS_MEMBER_SETTLING, GS_MEMBER_EXITED, GUARD(is_answered), "died while it asked"},
    {GS_MEMBER_SETTLED, GS_MEMBER_LEAVING, GUARD(has_said_bye), "said bye"},
    {GS_MEMBER_SETTLED, GS_MEMBER_EXITED, GUARD(is_answered), "its process is gone"},
    {GS_MEMBER_LEAVING, GS_MEMBER_EXITED, GUARD(is_answered), "its process is gone"},
};

static const gs_transition checkpoint_rows[] = {
    {GS_CHECKPOINT_VERIFYING, GS_CHECKPOINT_RECORDING, GUARD(is_there), "its files are as the manifest says"},
    {GS_CHECKPOINT_VERIFYING, GS_CHECKPOINT_DELETING, NO_GUARD, "its job has gone on from an earlier one, which was named"},
    {GS_CHECKPOINT_RECORDING, GS_CHECKPOINT_GOOD, GUARD(is_recorded), "its row is durable"},
    {GS_CHECKPOINT_RECORDING, GS_CHECKPOINT_DELETING, NO_GUARD, "its files are gone before its row is written"},
    {GS_CHECKPOINT_GOOD, GS_CHECKPOINT_DELETING, NO_GUARD, "newer ones are enough, or its files are gone"},
    {GS_CHECKPOINT_DELETING, GS_CHECKPOINT_GOOD, GUARD(is_there), "that it is to go could not be written"},
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

bool gs_transition_may(gs_machine machine, int row, const void *subject) {
    const gs_guard *guard = &tables[machine].rows[row].guard;
    return !guard->holds || guard->holds(subject);
}
