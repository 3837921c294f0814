// One collective on its way, as one rank lives it: posted, claimed by all, moved, finished. Its
// steps are functions; when to take them is the lane's business.
//
// Result and inputs: a result goes where it belongs as it comes, over the own input too, whose
// elements are put aside when they are sent: they are read then anyway. So a collective that fails
// leaves the own inputs as they were, once they are put back.
//
// All of it belongs to the moving thread.
#ifndef GRADSYNC_COMM_NET_WORK_H
#define GRADSYNC_COMM_NET_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "gradsync/comm/collective.h"
#include "gradsync/comm/comm_failure.h"
#include "gradsync/comm/net/course.h"
#include "gradsync/comm/net/debts.h"
#include "gradsync/comm/net/message.h"
#include "gradsync/comm/net/store.h"
#include "gradsync/comm/net/transport.h"
#include "kernels/device.h"

// What all collectives of a communicator share.
typedef struct gs_net_party {
    int rank, world_size;
    uint32_t generation;
    gs_net_transport *transport;
    gs_device *device;  // the moving thread's
    gs_net_store store;
} gs_net_party;

// How it stands with a peer.
typedef struct gs_net_side {
    bool has_claimed;
    gs_collective_claim claim;
    unsigned char *said;  // owned: a claim's body, with what is small behind it
    uint64_t said_bytes;
    uint32_t granted, given;  // segments of its slice: that may be sent there, that are
    uint32_t num_inputs;      // messages of inputs that came from it
    uint32_t num_placed;      // results of its slice that came or are coming
    uint32_t num_results;     // that came
    uint32_t num_kept;        // segments of its slice of which what recv held is put aside
    uint32_t pending;         // messages on their way to it: its claim, and what is borrowed
} gs_net_side;

typedef struct gs_net_work {
    gs_net_party *party;
    int lane;
    uint64_t sequence;
    bool is_posted, has_started;
    gs_collective collective;  // once posted
    gs_net_course course;
    gs_net_block
        wire;  // where there is a wire dtype: the row in 16 bits, own inputs first, then the result
    int num_claims;  // of peers
    // Once started. The result of element e of the row is at result + (e - result_first) ·
    // result_bytes.
    gs_net_block hold, stage;  // hold: the result where there is no recv; stage: peers' inputs
    gs_net_block kept;         // what recv held, where that was an input
    unsigned char *result;
    size_t result_first, result_bytes;
    uint32_t num_reduced;             // segments of the own slice
    uint32_t arrived[GS_NET_WINDOW];  // peers' inputs of segment k mod GS_NET_WINDOW
    uint32_t num_foreign;             // inputs of a segment that come from peers
    uint32_t num_segments;            // of the own slice
    gs_net_side sides[];              // by rank
} gs_net_work;

// Before it is posted here peers may have claimed it. NULL: out of memory.
gs_net_work *gs_net_work_create(gs_net_party *party, int lane, uint64_t sequence);
void gs_net_work_destroy(gs_net_work *work);

// Posts it: tells all peers.
//   shares  borrowed until it is destroyed; NULL: equal ones
GS_NODISCARD gs_status gs_net_work_post(gs_net_work *work, const gs_collective *collective,
                                        const gs_net_shares *shares);
static inline bool gs_net_work_is_claimed(const gs_net_work *work) {
    return work->is_posted && work->num_claims == work->party->world_size - 1;
}
// Once all have claimed it. FAILED_PRECONDITION, with `cause`: not all mean the same.
GS_NODISCARD gs_status gs_net_work_start(gs_net_work *work, gs_comm_failure *cause);
// Adds what is there to be added. *moved: something was.
GS_NODISCARD gs_status gs_net_work_advance(gs_net_work *work, bool *moved);
bool gs_net_work_is_complete(const gs_net_work *work);
// Complete: stores the result. Of what is small it is added here, behind all that came before it.
void gs_net_work_finish(gs_net_work *work);
// Not complete, and it never will be: nothing is on its way any more. Puts the own inputs back.
void gs_net_work_restore(gs_net_work *work);

// As gs_net_receiver, of one of its messages. DATA_LOSS: that cannot be.
GS_NODISCARD gs_status gs_net_work_place(gs_net_work *work, int peer, const gs_net_header *header,
                                         void **body);
GS_NODISCARD gs_status gs_net_work_came(gs_net_work *work, int peer, const gs_net_header *header);

// Who has still to send something, or to take it, before it can be finished.
gs_net_debts gs_net_work_debts(const gs_net_work *work);
// With nobody accused.
gs_comm_failure gs_net_work_failure(const gs_net_work *work, gs_comm_failure_kind kind);

#endif
