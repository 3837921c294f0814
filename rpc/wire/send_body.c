#include "rpc/wire/send_body.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct gs_send_gauge {
    _Atomic size_t bytes;
    atomic_int num_references;
};

struct gs_send_body {
    gs_send_gauge *all;
    atomic_int num_references;
    size_t bytes;
    char data[];
};

struct gs_send_ticket {
    gs_send_body *body;
    gs_send_gauge *of;
    atomic_bool is_made;  // read first by whoever drops it: libraries that pass it on are not seen by ThreadSanitizer
};

gs_send_gauge *gs_send_gauge_create(void) {
    gs_send_gauge *gauge = calloc(1, sizeof *gauge);
    if (gauge) atomic_init(&gauge->num_references, 1);
    return gauge;
}

void gs_send_gauge_release(gs_send_gauge *gauge) {
    if (gauge && atomic_fetch_sub(&gauge->num_references, 1) == 1) free(gauge);
}

size_t gs_send_gauge_bytes(const gs_send_gauge *gauge) { return atomic_load(&gauge->bytes); }

static void count(gs_send_gauge *gauge, size_t bytes) {
    atomic_fetch_add(&gauge->num_references, 1);
    atomic_fetch_add(&gauge->bytes, bytes);
}

static void discount(gs_send_gauge *gauge, size_t bytes) {
    atomic_fetch_sub(&gauge->bytes, bytes);
    gs_send_gauge_release(gauge);
}

gs_send_body *gs_send_body_create(const void *data, size_t bytes, gs_send_gauge *all) {
    gs_send_body *body = malloc(sizeof *body + bytes);
    if (!body) return NULL;
    body->all = all;
    body->bytes = bytes;
    atomic_init(&body->num_references, 1);
    memcpy(body->data, data, bytes);
    count(all, bytes);
    return body;
}

void gs_send_body_release(gs_send_body *body) {
    if (!body || atomic_fetch_sub(&body->num_references, 1) != 1) return;
    discount(body->all, body->bytes);
    free(body);
}

bool gs_send_body_is(const gs_send_body *body, const void *data, size_t bytes) {
    return body->bytes == bytes && memcmp(body->data, data, bytes) == 0;
}

const void *gs_send_body_data(const gs_send_body *body, size_t *bytes) {
    *bytes = body->bytes;
    return body->data;
}

gs_send_ticket *gs_send_ticket_create(gs_send_body *body, gs_send_gauge *of) {
    gs_send_ticket *ticket = malloc(sizeof *ticket);
    if (!ticket) return NULL;
    ticket->body = body;
    ticket->of = of;
    atomic_fetch_add(&body->num_references, 1);
    count(of, body->bytes);
    atomic_init(&ticket->is_made, false);
    atomic_store(&ticket->is_made, true);
    return ticket;
}

void gs_send_ticket_drop(void *data, void *dropped) {
    (void)data;
    gs_send_ticket *ticket = dropped;
    (void)atomic_load(&ticket->is_made);
    discount(ticket->of, ticket->body->bytes);
    gs_send_body_release(ticket->body);
    free(ticket);
}
