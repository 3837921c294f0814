// Which state may follow which: of jobs, runs, members and checkpoints, and what must be so for that. One table each; tests/simulation
// counts how often each row is taken.
//
// coordinator/engine moves all of them through one function each (coordinator/engine/base/moves.h), so that what is not in a table
// cannot happen.
#ifndef COORDINATOR_MODEL_TRANSITIONS_H
#define COORDINATOR_MODEL_TRANSITIONS_H

#include <stdbool.h>

#include "coordinator/model/checkpoint.h"
#include "coordinator/model/job.h"
#include "coordinator/model/run.h"

typedef enum gs_machine {
    GS_MACHINE_JOB = 0,
    GS_MACHINE_RUN,
    GS_MACHINE_MEMBER,
    GS_MACHINE_CHECKPOINT,
    GS_NUM_MACHINES
} gs_machine;

#define GS_MAX_TRANSITIONS 32  // of a table

// What must be so, beside the state, for a row to be taken; it looks at the gs_job, gs_run, gs_member or gs_checkpoint of its table.
typedef struct gs_guard {
    const char *name;  // "has_no_run"; for people
    bool (*holds)(const void *subject);  // NULL: nothing more
} gs_guard;

typedef struct gs_transition {
    int from, to;
    gs_guard guard;
    const char *when;  // what has happened; for people
} gs_transition;

typedef struct gs_transition_table {
    const char *name;  // "job"
    const gs_transition *rows;
    int num_rows, num_states;
    const char *(*state_name)(int state);
} gs_transition_table;

const gs_transition_table *gs_transitions_of(gs_machine machine);
// The row; −1: there is none. Staying is a row of its own where it means something.
int gs_transition_find(gs_machine machine, int from, int to);
// Whether that row's guard lets the subject pass, which is of the machine's kind and still in the state it comes from.
bool gs_transition_may(gs_machine machine, int row, const void *subject);

#endif
