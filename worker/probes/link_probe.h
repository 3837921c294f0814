// What a network gives between two hosts, tried out: one listens at its data address, the other greets it as ranks greet each
// other (gradsync/comm/net/greeting.h) and sends bytes there and back.
//
// Nothing listens but while an examination goes on. Who does not know its secret is hung up on.
#ifndef WORKER_PROBES_LINK_PROBE_H
#define WORKER_PROBES_LINK_PROBE_H

#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/net/secret.h"

#define GS_LINK_NUM_SIZES 4
extern const size_t gs_link_sizes[GS_LINK_NUM_SIZES];  // bytes that go there and come back

// The listening side, on a thread of its own.
typedef struct gs_link_door gs_link_door;

// At `address`, numbers, at a port that the kernel picks. UNAVAILABLE says why it cannot be listened there.
GS_NODISCARD gs_status gs_link_door_open(gs_link_door **out, uint32_t *port, const char *address,
                                         const gs_net_secret *secret);
void gs_link_door_close(gs_link_door *door);  // NULL is fine

typedef struct gs_link_place {
    const char *own, *address;  // from, to: numbers
    uint32_t port;
    const gs_net_secret *secret;
} gs_link_place;

typedef struct gs_link_facts {
    double round_trip_seconds, least_round_trip_seconds;  // of a few bytes: median and least of several
    // Of a measurement alone:
    double size_seconds[GS_LINK_NUM_SIZES];  // one way: half of the median
    double bytes_per_sec;
} gs_link_facts;

// Whether it is reached, and how fast a word comes back; `thoroughly`: what larger ones take, for half a second.
// UNAVAILABLE: "10.0.0.1 cannot reach 10.0.0.2:40123: Connection refused".
GS_NODISCARD gs_status gs_link_try(gs_link_facts *out, const gs_link_place *place, bool thoroughly, gs_deadline deadline);

#endif
