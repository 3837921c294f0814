// The stages of a communicator's creation. At each one all members meet by `exchange`: everyone says how it
// fares and gives some bytes. Who fails on the way says so at the next stage, whatever that is for the others:
// so all end with the same status, of the first member that failed, at once instead of at their deadlines.
//
// That works because all stages look alike: GS_STAGE_BYTES, tags "GROUP/1", "GROUP/2" …. A backend's create meets
// where it needs something of the others, returns its own errors, and gs_comm_create does the rest.
//
// Not here: what a member waits for other than by a stage. Whoever does that ends it by itself when the
// others will not come (a closed connection, the deadline, `check` of the options).
#ifndef GRADSYNC_COMM_STAGES_H
#define GRADSYNC_COMM_STAGES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/comm_options.h"

GS_BEGIN_DECLS

#define GS_STAGE_BYTES 640  // of each member: its status, and what it gives
#define GS_STAGE_PAYLOAD_BYTES (GS_STAGE_BYTES - sizeof(gs_status))
// As many members meet without memory being asked for: one that has none left can say so.
#define GS_STAGES_FEW_RANKS 32

typedef struct gs_stages {
    // Private:
    const gs_comm_options *options;
    gs_deadline deadline;
    int number;         // of the last stage
    bool ended;         // with `verdict`, on all members
    bool broken;        // the exchange itself failed, with `verdict`: there is no meeting any more
    gs_status verdict;
    unsigned char *all;  // owned unless it is `few`
    unsigned char few[GS_STAGES_FEW_RANKS * GS_STAGE_BYTES];
} gs_stages;

// The next stage, called `what` in messages. Where `mine` is an error nothing else is looked at.
//   all    world_size · bytes, in order of ranks; NULL where bytes is 0
//   mine   what this member has to say: an error becomes everybody's, "rank 3: …"
// What is longer than GS_STAGE_PAYLOAD_BYTES takes several rounds; `bytes` is the same on all.
GS_NODISCARD gs_status gs_stages_meet(gs_stages *stages, const char *what, gs_status mine, void *all,
                                      const void *payload, size_t bytes);

// Which member this one does not reach: said with its next error, to all.
void gs_stages_blame(gs_stages *stages, int rank);

// What all members found out by comparing what they were given: an error needs no telling.
GS_NODISCARD gs_status gs_stages_conclude(gs_stages *stages, gs_status common);

GS_END_DECLS

// Of gs_comm_create:
// `options` are borrowed until release: exchange, ranks, world_size and group must be good.
void gs_stages_init(gs_stages *stages, const gs_comm_options *options, gs_deadline deadline);
void gs_stages_release(gs_stages *stages);  // forgets what was given, too

// Ends what is one for all or for none (gs_comm_create: an attempt with a backend): the status that all
// members have. Not another meeting where all know already.
GS_NODISCARD gs_status gs_stages_settle(gs_stages *stages, const char *what, gs_status mine);

#endif
