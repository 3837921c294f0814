// One connection to a peer: messages that wait to be sent, and the one that is coming in.
//
// Urgent messages overtake others that have not begun: what is small keeps ranks going, what is
// large fills the line. Nothing here blocks. All of it belongs to the thread that moves.
#ifndef GRADSYNC_COMM_NET_LINE_H
#define GRADSYNC_COMM_NET_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gradsync/comm/collective.h"
#include "gradsync/comm/net/message.h"

// Looks at its rate of which the median counts.
#define GS_NET_LINE_RATES 15
#define GS_NET_LINE_BUFFER_BYTES ((size_t)16384)

// Who is told what comes in.
typedef struct gs_net_receiver {
    void *ctx;
    // A header has come: where its body of header->bytes goes, which stays until `came`, or the
    // line lets go.
    gs_status (*place)(void *ctx, int peer, const gs_net_header *header, void **body);
    gs_status (*came)(void *ctx, int peer, const gs_net_header *header);  // all of it
    // Nothing comes any more: 0, the peer closed the connection; else an errno, of receiving, or
    // of what could not be sent before.
    gs_status (*closed)(void *ctx, int peer, int error);
} gs_net_receiver;

typedef struct gs_net_parcel gs_net_parcel;

typedef struct gs_net_queue {
    gs_net_parcel *first, *last;
} gs_net_queue;

typedef struct gs_net_line {
    // Private:
    int fd, peer;  // fd -1: closed
    gs_net_queue urgent, bulk;
    gs_net_parcel *current;  // partly sent, or about to be
    size_t current_bytes;    // of it that are sent
    int error;               // an errno: what is sent goes nowhere any more; 0: none
    bool has_let_go;         // what comes is read and forgotten
    uint64_t sent_bytes, received_bytes;
    double best_rate;  // bytes a second, and since when it is the best
    int64_t best_rate_ns;
    double rates[GS_NET_LINE_RATES];  // the last ones
    int num_rates;                    // ever
    uint64_t rated_bytes;             // that were sent until the last one
    gs_net_header header;
    size_t header_bytes;  // of it that have come
    unsigned char *body;
    uint64_t body_bytes;  // likewise
    size_t buffer_first, buffer_end;
    unsigned char buffer[GS_NET_LINE_BUFFER_BYTES];
} gs_net_line;

void gs_net_line_open(gs_net_line *line, int peer, int fd);  // takes the socket
void gs_net_line_close(gs_net_line *line);

// Sends it, or keeps it until the line has room.
//   body     of what is bulk borrowed until it is sent, or dropped; else copied, and urgent
//   pending  greater by 1 until then; NULL: nobody counts
GS_NODISCARD gs_status gs_net_line_send(gs_net_line *line, const gs_net_header *header,
                                        const void *body, uint32_t *pending);
bool gs_net_line_has_more(const gs_net_line *line);  // to send
// As much as goes now. True: something did.
bool gs_net_line_push(gs_net_line *line);
// Reads what is there, but leaves other lines their turn. The first error of the receiver ends it.
// *moved: something came.
GS_NODISCARD gs_status gs_net_line_pull(gs_net_line *line, const gs_net_receiver *receiver,
                                        bool *moved);
// No borrowed memory is touched from here on. A message that is partly sent is finished from a
// copy, so that what is said behind it can be understood; those that have not begun are dropped.
void gs_net_line_let_go(gs_net_line *line);
// What it and the kernel know of the way to the peer.
void gs_net_line_look(gs_net_line *line, gs_comm_link *out);
// All that was said has reached the peer's kernel, or never will.
bool gs_net_line_is_flushed(const gs_net_line *line);

#endif
