// Rounds in which ranks of a run give each other bytes while they have no communicator yet: who gave his is
// held until all that take part have. Loop thread.
//
// A round is of the ranks that its first member named, or of all; a member that names others ends it for
// everybody. Rounds of different tags are open at the same time.
#ifndef COORDINATOR_EXCHANGE_H
#define COORDINATOR_EXCHANGE_H

#include <stdbool.h>

#include "coordinator/held.h"
#include "rpc/json/json.h"
#include "rpc/server/rpc_server.h"

#define GS_EXCHANGE_TAG_BYTES 64
// Of one rank at a time: what bounds the memory that a run's rounds take.
#define GS_EXCHANGE_MOST_OPEN 16

typedef struct gs_exchange_entry {
    gs_rpc_call_handle *call;  // NULL: its caller has gone
    gs_held held;
    gs_json *bytes;  // owned; a base64 string, passed on as it came; NULL: not here yet
} gs_exchange_entry;

typedef struct gs_exchange_round {
    char tag[GS_EXCHANGE_TAG_BYTES];
    int num_ranks, num_arrived;
    int *ranks;                  // owned; ascending
    gs_exchange_entry *entries;  // owned; one for each of `ranks`
    gs_status refusal;           // of a round that ended badly: whoever still comes is told
    struct gs_exchange_round *next;
} gs_exchange_round;

// Takes the bytes of `rank`; `call` is held until the round is answered (here, where it ends badly).
//   complete  the round, to be answered, when all are here; else NULL
// INVALID_ARGUMENT: a request that no rank may make. FAILED_PRECONDITION: members disagree about who they
// are. RESOURCE_EXHAUSTED: too many rounds. The call is the caller's to answer then.
GS_NODISCARD gs_status gs_exchange_join(gs_exchange_round **rounds, gs_exchange_round **complete, int world_size,
                                        int rank, const gs_json *request, gs_rpc_call_handle *call);
// Gives everybody all bytes and forgets the round.
void gs_exchange_answer(gs_exchange_round **rounds, gs_exchange_round *complete);
// Ends all rounds; who is held gets `status`.
void gs_exchange_drop(gs_exchange_round **rounds, gs_status status);
// Whoever is held will ask again elsewhere: it gets no answer here.
void gs_exchange_part(gs_exchange_round *rounds);

#endif
