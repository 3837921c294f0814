// A peer without our client: raw frames. For tests; what fails ends the test.
#ifndef TESTS_UNIT_RPC_RAW_PEER_H
#define TESTS_UNIT_RPC_RAW_PEER_H

#include <stddef.h>

#include "rpc/wire/frame.h"

typedef struct raw_peer {
    void *context, *socket;
} raw_peer;

raw_peer raw_peer_open(const char *endpoint);
raw_peer raw_peer_open_that_holds(const char *endpoint, int messages);  // at most, unread
void raw_peer_close(raw_peer *raw);
void raw_peer_send(raw_peer *raw, const gs_frame *frame, const char *body);
// body: its text, with a NUL.
gs_frame raw_peer_receive(raw_peer *raw, char *body, size_t body_bytes);

// One that is in order.
extern const gs_frame raw_call;

#endif
