// What of an ended job is on the disk alone, and comes back when somebody asks. Loop thread.
//
// Some minutes after its end a job rests: its state stays, and what lists show of it; its specification, plan and
// workers are in its row, its curves in their file. Whoever asks for them waits for the disk, a moment, and they stay
// for a minute in case he asks again.
#ifndef COORDINATOR_OBSERVE_RECALL_H
#define COORDINATOR_OBSERVE_RECALL_H

#include "coordinator/observe/observer.h"

#define GS_RECALL_MAX_WAITING 256  // calls

typedef struct gs_recalls gs_recalls;

gs_recalls *gs_recalls_create(void);  // NULL: out of memory
void gs_recalls_destroy(gs_recalls *recalls);

// True: the call is kept, and `handler` gets it again when all is there; or it is answered that it cannot be.
bool gs_recall_record(gs_observer *observer, gs_job *job, gs_rpc_handler handler, gs_rpc_call_handle *call,
                      const gs_json *request);
bool gs_recall_curves(gs_observer *observer, gs_job *job, gs_rpc_handler handler, gs_rpc_call_handle *call,
                      const gs_json *request);
// For a list: without a call to keep. True: it is on its way.
bool gs_recall_begin(gs_observer *observer, gs_job *job);

// Calls whose curves have come go on.
void gs_recall_tick(gs_observer *observer);
// The job goes away.
void gs_recall_forget(gs_observer *observer, const gs_job *job);
// The coordinator stops.
void gs_recall_end_all(gs_observer *observer);

#endif
