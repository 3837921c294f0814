// Who a message is from: what it shows of its sender (incarnation, job, launch token, key) is compared here. (What it says of others, an
// agent of trainers in its slots, is compared where that is heard.)
// Which of them who may say a message is coordinator/engine/admission.h's.
#ifndef COORDINATOR_ENGINE_BASE_IDENTITY_H
#define COORDINATOR_ENGINE_BASE_IDENTITY_H

#include "coordinator/model/state.h"

// Whose key a message came with. {0}: it came where nobody shows one, and its sender may be anybody.
typedef struct gs_principal {
    bool is_known;
    bool is_pool;      // of workers whose names begin with this one and a hyphen
    const char *name;  // borrowed for the step
} gs_principal;

typedef struct gs_identity {
    gs_principal principal;
    uint64_t incarnation, job;  // as its envelope says; 0: none
    uint64_t token;             // a launch token, as it shows it; 0: none
} gs_identity;

typedef enum gs_identity_verdict {
    GS_IDENTITY_OWN = 0,
    GS_IDENTITY_NOBODYS,   // no trainer of that job that is still there
    GS_IDENTITY_UNSHOWN,   // no launch token, or not this trainer's
    GS_IDENTITY_UNCOVERED  // the key is not its worker's
} gs_identity_verdict;

// Whether the key may speak for this worker, and for trainers there.
bool gs_principal_covers(const gs_principal *principal, const char *worker);
// The first worker that it speaks for and that its key does not cover; NULL: none. It speaks for its sender, and for `member`, which may be
// NULL.
const char *gs_identity_uncovered(const gs_state *state, const gs_identity *identity, const gs_member *member);
// *out: the member that it is; NULL unless the verdict is OWN.
gs_identity_verdict gs_identity_find_member(gs_member **out, const gs_state *state, const gs_identity *identity);
// The agent that it is; NULL: none.
gs_agent *gs_identity_find_agent(const gs_state *state, const gs_identity *identity);

#endif
