// How bytes get to other ranks and back: send, receive, wait, abort. What is said is not its
// business.
//
// These are all that the collectives know of a network: another transport is another file with
// these functions. This one is TCP and poll: what it does cannot be had of a library that blocks,
// retries or resolves names of its own accord (docs/decisions.md).
//
// All calls belong to the moving thread, but wake.
#ifndef GRADSYNC_COMM_NET_TRANSPORT_H
#define GRADSYNC_COMM_NET_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/comm/net/line.h"
#include "gradsync/comm/net/mesh.h"

typedef struct gs_net_transport gs_net_transport;

// Takes the sockets of `mesh`.
GS_NODISCARD gs_status gs_net_transport_create(gs_net_transport **out, gs_net_mesh *mesh);
void gs_net_transport_destroy(gs_net_transport *transport);

// To one peer, in order, but for what is urgent; body and pending as gs_net_line_send. Never
// blocks. What is said to one that has gone is forgotten.
GS_NODISCARD gs_status gs_net_transport_send(gs_net_transport *transport, int peer,
                                             const gs_net_header *header, const void *body,
                                             uint32_t *pending);
// To all peers.
GS_NODISCARD gs_status gs_net_transport_tell(gs_net_transport *transport,
                                             const gs_net_header *header, const void *body);
// Who is told what comes; before the first wait. Its calls come out of wait.
void gs_net_transport_receive(gs_net_transport *transport, const gs_net_receiver *receiver);
// Sends and receives what can be; sleeps at most timeout_ms until something can. Returns behind
// each round with the receiver's first error. *moved: some bytes moved.
GS_NODISCARD gs_status gs_net_transport_wait(gs_net_transport *transport, int timeout_ms,
                                             bool *moved);
// All borrowed memory is the caller's again, and nothing is received any more; what is sent from
// here on still goes out.
void gs_net_transport_abort(gs_net_transport *transport);

void gs_net_transport_wake(
    gs_net_transport *transport);  // ends a sleep of wait, or the next; any thread
bool gs_net_transport_is_flushed(
    const gs_net_transport *transport);  // all has reached the peers' kernels
// What it and the kernel know of the way to a peer; nothing of how long anybody waited.
void gs_net_transport_look(gs_net_transport *transport, int peer, gs_comm_link *out);
void gs_net_transport_hang_up(gs_net_transport *transport, int peer);

#endif
