// One way in which a collective fails to end, met by all ranks of a communicator, and what each of them must
// know of it afterwards: kind, reporter, accused and place, as values.
//
// What a backend can know differs, and is said in one struct: shared memory knows everything on every rank; NCCL
// knows of itself, and that something is wrong.
#ifndef TESTS_SUPPORT_FAILURE_CASE_H
#define TESTS_SUPPORT_FAILURE_CASE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"

typedef enum failure_way {
    FAILS_LATE = 0,      // the victims do not come in time
    FAILS_LEFT,          // they end their communicator
    FAILS_OTHER_KIND,    // they post something else
    FAILS_OTHER_COUNT,
    FAILS_OTHER_DTYPE,
    FAILS_OTHER_STEP,
    FAILS_OTHER_BUCKET,
    FAILS_BAD_HEADER,    // they damage their control block
    FAILS_BAD_OFFSET,
    FAILS_TOLD,          // they are told to abort, from outside
    FAILS_DEVICE,        // what moves their bytes fails
    FAILS_KILLED,        // before they post
    FAILS_KILLED_AMID    // while they copy
} failure_way;

typedef struct failure_case {
    const char *name;
    failure_way way;
    int world_size;
    uint64_t victims;         // a bit for each rank
    const char *failpoints;   // GRADSYNC_FAILPOINTS of the ranks; NULL: none are needed
} failure_case;

typedef struct failure_backend {
    const char *name;
    int num_lanes;
    bool knows_all;  // else: of itself alone
    // An arena, and a communicator of `generation` over it and self's device; `helped` by a thread that moves, where
    // there is such a thing. (An arena of before would have to wait for the end of all lives in it.)
    gs_status (*connect)(comm_rank *self, const gs_rank_env *env, uint32_t generation, bool helped);
    // FAILS_DEVICE without a failpoint; NULL: there is no such way.
    gs_status (*break_device)(comm_rank *self);
} failure_backend;

#define FAILURE_COUNT 60000  // elements; in the arena they are moved directly
#define FAILURE_ARENA_BYTES ((size_t)FAILURE_COUNT * 4 + 64)

// Makes a communicator, lets it fail, compares what all ranks that live know. A rank that is killed does not
// return. `number` is the case's, for tags and the generation.
gs_status failure_case_run(comm_rank *self, const gs_rank_env *env, const failure_backend *backend,
                           const failure_case *how, int number);
// Of a process that has been killed: until nothing of it runs.
void failure_wait_for_death(pid_t pid);
static inline bool failure_case_kills(const failure_case *how) {
    return how->way == FAILS_KILLED || how->way == FAILS_KILLED_AMID;
}

#endif
