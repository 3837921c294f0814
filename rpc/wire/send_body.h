// What ZeroMQ holds until others have read it, counted in bytes: its queues are bounded by messages alone. A body is kept once for all
// messages that it goes out in. Any thread: what is done with is let go by ZeroMQ's own, or by who reads it in this process.
#ifndef RPC_WIRE_SEND_BODY_H
#define RPC_WIRE_SEND_BODY_H

#include <stdbool.h>
#include <stddef.h>

// Of a connection, or of all of them.
typedef struct gs_send_gauge gs_send_gauge;

gs_send_gauge *gs_send_gauge_create(void);  // NULL: out of memory
// Whoever made it needs it no more; it lasts as long as something is counted by it. NULL is fine.
void gs_send_gauge_release(gs_send_gauge *gauge);
size_t gs_send_gauge_bytes(const gs_send_gauge *gauge);

typedef struct gs_send_body gs_send_body;

// A copy, which `all` counts as long as somebody has it. NULL: out of memory.
gs_send_body *gs_send_body_create(const void *data, size_t bytes, gs_send_gauge *all);
void gs_send_body_release(gs_send_body *body);  // NULL is fine
bool gs_send_body_is(const gs_send_body *body, const void *data, size_t bytes);
const void *gs_send_body_data(const gs_send_body *body, size_t *bytes);

// The body in one message, which `of` counts until it is dropped. NULL: out of memory.
typedef struct gs_send_ticket gs_send_ticket;
gs_send_ticket *gs_send_ticket_create(gs_send_body *body, gs_send_gauge *of);
void gs_send_ticket_drop(void *data, void *ticket);  // as ZeroMQ calls it

#endif
