// Rounds in which ranks of a run give each other bytes while they have no communicator yet: who gave his is
// held until all that take part have. Plain.
//
// A round is of the ranks that its first member named, or of all; a member that names others ends it for
// everybody. Rounds of different tags are open at the same time.
#ifndef COORDINATOR_MODEL_EXCHANGE_H
#define COORDINATOR_MODEL_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>

#include "coordinator/model/call.h"
#include "core/status.h"

#define GS_EXCHANGE_TAG_BYTES 64
// Of one rank at a time: with what an answer holds, the bound of the memory that a run's rounds take.
#define GS_EXCHANGE_MOST_OPEN 16

typedef struct gs_exchange_entry {
    gs_kept_call held;  // call 0: its caller has gone
    char *bytes;        // owned; base64, passed on as it came; NULL: not here yet
} gs_exchange_entry;

typedef struct gs_exchange_round {
    char tag[GS_EXCHANGE_TAG_BYTES];
    int num_ranks, num_arrived;
    int *ranks;                  // owned; ascending
    gs_exchange_entry *entries;  // owned; one for each of `ranks`
    size_t bytes;                // that its answer would have so far
    gs_status refusal;           // of a round that ended badly: whoever still comes is told
    struct gs_exchange_round *next;
} gs_exchange_round;

// What a rank asks for. `ranks` ascend and have `rank` among them (serve/decode has seen to the first).
typedef struct gs_exchange_request {
    const char *tag;
    const int *ranks;  // NULL: all of the run
    int num_ranks;
    char *bytes;  // taken by a round that it enters
} gs_exchange_request;

// The entry of `rank` in the round of the request, with the bytes in it. *round is set also where the status is an
// error and the round ended by it: whoever is held in it is to be answered with round->refusal.
// INVALID_ARGUMENT: a request that no rank may make. FAILED_PRECONDITION: members disagree about who they
// are. RESOURCE_EXHAUSTED: too many rounds, or more bytes than an answer holds (rpc/schema/messages.h).
GS_NODISCARD gs_status gs_exchange_enter(gs_exchange_round **rounds, gs_exchange_round **round,
                                         gs_exchange_entry **entry, int world_size, int rank,
                                         gs_exchange_request *request);
// Takes the round out of the list; gs_exchange_free is the caller's.
void gs_exchange_unlink(gs_exchange_round **rounds, gs_exchange_round *round);
void gs_exchange_free(gs_exchange_round *round);

#endif
