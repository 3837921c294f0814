// Which state may follow which: of jobs, runs, members and checkpoints. One table each; tests/simulation counts how often
// each row is taken.
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

typedef struct gs_transition {
    int from, to;
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

#endif
