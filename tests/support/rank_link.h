// The socket between a rank of a test and its parent: framed messages, and the rank's side of them.
#ifndef TESTS_SUPPORT_RANK_LINK_H
#define TESTS_SUPPORT_RANK_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"

#define RANK_LINK_FD 3 // of the rank's end
#define RANK_LINK_MAX_BYTES (64u << 20)

typedef enum rank_message_type {
    RANK_MESSAGE_UNSET = 0,
    RANK_MESSAGE_EXCHANGE, // rank → parent: own bytes; parent → rank: everybody's
    RANK_MESSAGE_ERROR,    // parent → rank: the exchange failed; body is a gs_status
    RANK_MESSAGE_NOTE,     // rank → parent: text
    RANK_MESSAGE_STATUS    // rank → parent, the last one: what the body returned
} rank_message_type;

typedef struct rank_message {
    uint32_t type;
    uint32_t bytes;    // of the body that follows
    uint64_t sequence; // of the exchange in this rank, from 1
    uint64_t ranks;    // of the exchange: a bit for each
    char tag[104];
} rank_message;

typedef struct rank_link rank_link;

// NULL when this process is not a rank.
rank_link *rank_link_open(int rank, int world_size);
void rank_link_close(rank_link *link);

gs_status rank_link_send(rank_link *link, rank_message_type type, const void *body, size_t bytes);
// `ranks` as for gs_exchange; NULL: all.
gs_status rank_link_exchange(rank_link *link, const char *tag, const int *ranks, int num_ranks,
                             const void *mine, size_t bytes, void *all, gs_deadline deadline);

#endif
