// The method table: what comes in becomes an event for the engine, or is read from what can be seen.
#ifndef COORDINATOR_SERVE_METHODS_H
#define COORDINATOR_SERVE_METHODS_H

#include "coordinator/observe/hosts/left_mark.h"
#include "coordinator/observe/observer.h"
#include "coordinator/serve/steps.h"
#include "rpc/schema/messages.h"
#include "rpc/schema/step_report.h"
#include "rpc/server/rpc_server.h"

// What handlers get as their ctx.
typedef struct gs_service {
    gs_steps *steps;
    gs_observer *observer;
    const gs_left_mark *mark;  // NULL: it is there
    gs_report_rows rows;  // of the report that is being taken
} gs_service;

extern const gs_rpc_handler gs_coordinator_methods[GS_NUM_METHODS];
extern const gs_rpc_record_handler gs_coordinator_record_methods[GS_NUM_METHODS];

#endif
