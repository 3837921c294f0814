// The contract between a trainer and whoever directs it.
//
// A trainer knows no coordinator: it exchanges, reports and settles through six functions. member.c
// implements them as calls to the coordinator; tests as sockets and files. In the other direction
// requests wait in the mailbox, and whoever directs the trainer sees its progress.
#ifndef WORKER_CONTROL_CONTROL_H
#define WORKER_CONTROL_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "rpc/json/json.h"
#include "rpc/schema/fault_kind.h"
#include "rpc/plan/link_message.h"
#include "rpc/plan/offers_message.h"
#include "rpc/schema/step_report.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/control/lead.h"
#include "worker/control/mailbox.h"
#include "worker/telemetry/progress.h"

typedef struct gs_fault {
    uint32_t generation;
    int rank;
    int64_t step;      // the one in flight
    gs_fault_kind kind;
    // What the communicator knows; of a fault of the rank's own its kind is none, and where a delay is its
    // own it accuses itself.
    gs_comm_failure comm;
    gs_status status;
} gs_fault;

// Kind from the communicator's failure, else from the code; never from a text. `comm` NULL: there is none, and `unreached` (NULL:
// nothing) is what is known of why.
gs_fault gs_fault_of(gs_status status, gs_comm *comm, const gs_comm_failure *unreached);

typedef struct gs_settlement {
    uint32_t generation;
    int rank;
    int64_t applied_step;
    bool complete;  // the step in flight is reduced here: it can be applied (rule F2)
    bool apart;     // this rank's state is its own: it has none of the job's to save
} gs_settlement;

typedef struct gs_settle_verdict {
    bool apply, save;
} gs_settle_verdict;

// The order in which gradients became ready, of rank 0.
typedef struct gs_order_report {
    uint32_t generation;
    int64_t step;           // the last one looked at
    bool settled;           // a plan may follow it
    const size_t *order;    // num_params of them; for the call
    size_t num_params;
    const gs_link_report *link;  // what is known of the link between hosts; NULL: nothing
    const gs_plan_offers *offers;  // how hook "auto" sends each bucket; NULL: nothing new
} gs_order_report;

typedef struct gs_control_ops {
    gs_exchange exchange;
    // Takes a step report. Never blocks. False: nobody was there to hear it.
    bool (*report)(void *ctx, const gs_step_report *report);
    // A save that came to an end, well or not: from the thread that wrote it, and of one that did not begin from the
    // loop's, maybe at the same time. Never blocks.
    void (*checkpointed)(void *ctx, const gs_checkpoint_result *result);
    void (*fault)(void *ctx, const gs_fault *fault);
    // Takes down an order of gradients. Never blocks.
    void (*ordered)(void *ctx, const gs_order_report *report);
    // Waits until all survivors have settled. UNAVAILABLE: nobody there who could decide.
    gs_status (*settle)(void *ctx, gs_settle_verdict *verdict, const gs_settlement *settlement);
} gs_control_ops;

typedef struct gs_control {
    const gs_control_ops *ops;
    void *ctx;

    gs_mailbox mailbox;    // owned; any thread's
    gs_lead lead;          // any thread's
    gs_progress progress;  // owned; the compute thread's
} gs_control;

void gs_control_init(gs_control *control, const gs_control_ops *ops, void *ctx);
void gs_control_release(gs_control *control);

#endif
