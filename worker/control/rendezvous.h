// Where the ranks of a generation meet before they have a communicator: each gives the coordinator
// bytes and gets everybody's.
//
// An answer holds what all ranks gave, and a message no more than a megabyte. What would not fit is squeezed, and
// goes in pieces of one length, a round each, as many as the longest needs: the first has the tag that was asked
// for, the others ".2", ".3" … behind it. So a world of any size meets, and one of 4,096 most often in one round.
#ifndef WORKER_CONTROL_RENDEZVOUS_H
#define WORKER_CONTROL_RENDEZVOUS_H

#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "rpc/client/rpc_client.h"

// A rank's place in a generation.
typedef struct gs_place {
    uint32_t generation;
    int rank, world_size;
} gs_place;

// As gs_exchange (gradsync/comm/comm_options.h).
GS_NODISCARD gs_status gs_rendezvous_exchange(gs_rpc_client *client, const gs_place *place,
                                              const char *tag, const int *ranks, int num_ranks,
                                              const void *mine, size_t bytes, void *all,
                                              gs_deadline deadline);

#endif
