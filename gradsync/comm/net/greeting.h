// What two ranks say on a new connection before anything else: which communicator each is of, who
// it is, and a proof that it knows the generation's secret. Who does not is hung up on.
//
// The rank that connects says hello; the other answers with its proof over both nonces; the first
// with its own. The secret is drawn anew for each communicator and comes by the exchange that ranks
// meet at, so it is as private as that is. What follows on the connection is neither encrypted nor
// signed: this keeps out whoever can connect, not whoever can change packets on their way.
#ifndef GRADSYNC_COMM_NET_GREETING_H
#define GRADSYNC_COMM_NET_GREETING_H

#include <stdbool.h>
#include <stdint.h>

#include "gradsync/comm/net/secret.h"

// Changes with what ranks say to each other; read as another number where bytes have another order.
#define GS_NET_VERSION UINT64_C(0x0200796e53534701)

typedef struct gs_net_hello {
    uint64_t version;
    uint64_t group;  // digest of the communicator's name
    uint32_t generation;
    int32_t from, to;
    uint32_t zeros;
    gs_net_secret nonce;
} gs_net_hello;

typedef struct gs_net_answer {
    uint64_t version;
    gs_net_secret nonce, proof;
} gs_net_answer;

typedef struct gs_net_greeting {
    gs_net_hello hello;
    gs_net_answer answer;
    gs_net_secret last;  // the proof of who connected
} gs_net_greeting;

// What each side says, in order; false: the other one is not who it should be.
// The answering side, when hello came: fills `answer`.
GS_NODISCARD gs_status gs_net_greeting_answer(gs_net_greeting *greeting, const gs_net_secret *key);
// The connecting side, when the answer came: fills `last`.
bool gs_net_greeting_conclude(gs_net_greeting *greeting, const gs_net_secret *key);
// The answering side, when `last` came.
bool gs_net_greeting_is_proven(const gs_net_greeting *greeting, const gs_net_secret *key);

#endif
