// The contract for authors of communicator backends: create · post · wait · abort · destroy.
//
// To add one: a file in gradsync/comm/, a line in the table of comm.c; or, in a program of one's own, a pointer in
// gs_comm_options. comm/self.c is the template. All slots are filled but those that say otherwise.
// gs_comm checks arguments, numbers the collectives of each lane and keeps the first error; a backend only
// moves bytes. Lanes are 0 … options.num_lanes - 1, of which create is told at least one.
#ifndef GRADSYNC_COMM_COMM_BACKEND_H
#define GRADSYNC_COMM_COMM_BACKEND_H

#include "core/abi.h"
#include "gradsync/comm/collective.h"
#include "gradsync/comm/comm_failure.h"
#include "gradsync/comm/comm_options.h"
#include "gradsync/comm/futex_event.h"
#include "gradsync/comm/interrupt.h"
#include "gradsync/comm/stages.h"
#include "gradsync/tensor/arena.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

#define GS_COMM_BACKEND_NAME_LEN 31

// What a backend makes of a wire dtype.
typedef enum gs_wire_memory {
    GS_WIRE_REFUSED = 0,
    GS_WIRE_NONE,  // rounds while it reduces
    GS_WIRE_COPY   // sends 16 bits, which it keeps in gs_collective.wire
} gs_wire_memory;

typedef struct gs_comm_backend {
    const char *name;  // at most GS_COMM_BACKEND_NAME_LEN characters; compared between ranks
    gs_wire_memory wire;
    // Ranks meet at `stages`, which belong to the call; an error that this rank returns by itself is told to
    // the others at their next one, and where create succeeded here but not there, destroy follows.
    // `reason` (text of reason_bytes) says in one sentence why this backend fits, or why it does not
    // when UNAVAILABLE is returned. `options` has at least one lane; it is for the call.
    gs_status (*create)(void **out, const gs_comm_options *options, gs_stages *stages, char *reason,
                        size_t reason_bytes, gs_deadline deadline);
    // Collective `sequence` (1, 2, 3 …) of a lane. Never blocks for other ranks, nor one lane for another.
    // NULL: progress only, of all lanes; where a lane waits for ranks, with a look every few milliseconds at
    // whether they still live. After an abort it is refused, and a wait for it ends like one for the last
    // that was taken.
    gs_status (*post)(void *backend, int lane, uint64_t sequence, const gs_collective *collective);
    // Until `sequence` of the lane is done, while all lanes move. A deadline that has passed means:
    // progress once and tell (DEADLINE_EXCEEDED when not done). After an abort: until nothing of
    // the lane moves here any more, which takes no other rank; before one, CANCELLED when the
    // options' interrupt says so (gs_interrupt_check).
    gs_status (*wait)(void *backend, int lane, uint64_t sequence, gs_deadline deadline);
    // Any thread, any time between create and destroy.
    void (*abort)(void *backend, const char *reason);
    // Nothing is in flight, or it was aborted. Leaves the communicator, which is only good for destroy then;
    // returns when no other rank can write into this rank's memory any more. DEADLINE_EXCEEDED: `lingering`
    // gets those that can (it comes as a timeout that names nobody), and it may be asked again; so after CANCELLED.
    gs_status (*wait_ended)(void *backend, gs_comm_failure *lingering, gs_deadline deadline);
    void (*destroy)(void *backend);
    // Facts, no waiting: all sequences of the lane up to the result are done; the times of one.
    uint64_t (*finished)(const void *backend, int lane);
    bool (*times)(const void *backend, int lane, uint64_t sequence, gs_work_times *times);
    const char *(*algorithm)(const void *backend, const gs_collective *collective);
    gs_stream *(*stream)(const void *backend);  // NULL: there is none
    // As gs_comm_explain; `out` is of kind none, without reporter and bucket.
    void (*explain)(void *backend, gs_comm_failure *out);
    const gs_arena_allocator *allocator;  // that it wants arenas of; NULL: any will do
    // What is notified when something may have moved here, in memory that stays until destroy: stores at
    // most `max` and returns how many there are. NULL or 0: whoever waits polls.
    int (*events)(void *backend, gs_futex_event **events, int max);
    // As gs_comm_peer_arena. NULL: ranks do not see each other's memory.
    void *(*peer_arena)(const void *backend, int rank, size_t *bytes);
    // As gs_comm_moves_alone. NULL: where it has a stream.
    bool (*moves_alone)(const void *backend);
} gs_comm_backend;

GS_END_DECLS

// INVALID_ARGUMENT says what one of an embedder's own lacks.
GS_NODISCARD gs_status gs_comm_backend_check(const gs_comm_backend *backend);

// Where a collective is posted.
typedef struct gs_collective_site {
    const gs_comm_backend *backend;
    int rank, world_size, num_lanes;
} gs_collective_site;

// What backends need not look at: INVALID_ARGUMENT says what is wrong with it.
GS_NODISCARD gs_status gs_collective_check(const gs_collective *collective,
                                           const gs_collective_site *site);

#endif
