// What of an ended job is on the disk alone, and comes back when somebody asks. Loop thread.
//
// Some minutes after its end a job rests: its state stays, and what lists show of it; its specification, plan and
// workers are in its row, its curves in their file. Whoever asks for them waits for the disk, a moment, and they stay
// for a minute in case he asks again.
#ifndef COORDINATOR_OBSERVE_RECALL_H
#define COORDINATOR_OBSERVE_RECALL_H

#include "coordinator/observe/observer.h"

#define GS_RECALL_MAX_WAITING 256  // calls
#define GS_RECALL_MAX_KEPT 1000    // jobs; above, who walks through all of them would have them all in memory
#define GS_RECALL_MAX_KEPT_BYTES ((size_t)64 << 20)  // of their rows
#define GS_RECALL_MAX_LISTS 64     // calls that wait for a page of specifications, each at most a page long

typedef struct gs_recalls gs_recalls;

gs_recalls *gs_recalls_create(void);  // NULL: out of memory
void gs_recalls_destroy(gs_recalls *recalls);

// True: the call is kept, and `handler` gets it again when all is there; or it is answered that it cannot be.
bool gs_recall_record(gs_observer *observer, gs_job *job, gs_rpc_handler handler, gs_rpc_call_handle *call,
                      const gs_json *request);
bool gs_recall_curves(gs_observer *observer, gs_job *job, gs_rpc_handler handler, gs_rpc_call_handle *call,
                      const gs_json *request);
// The same for a list: specifications of these jobs, read for one answer and not kept. They end where a page does.
bool gs_recall_specs(gs_observer *observer, const uint64_t *jobs, size_t num_jobs, gs_rpc_handler handler,
                     gs_rpc_call_handle *call, const gs_json *request);

typedef enum gs_recalled {
    GS_RECALLED_NOTHING = 0,  // nobody asked for it
    GS_RECALLED_BEYOND,       // the page ends before it
    GS_RECALLED_UNREADABLE,
    GS_RECALLED_SPEC
} gs_recalled;

// While `handler` has such a call again. *spec is borrowed, and can only be encoded.
gs_recalled gs_recalled_spec(gs_json **spec, const gs_observer *observer, const gs_job *job);
bool gs_recalls_have_specs(const gs_observer *observer);

// Calls whose curves have come go on.
void gs_recall_tick(gs_observer *observer);
// The job goes away.
void gs_recall_forget(gs_observer *observer, const gs_job *job);
// The coordinator stops.
void gs_recall_end_all(gs_observer *observer);

#endif
