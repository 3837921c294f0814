// The method table: what comes in becomes an event for the engine, or is read from what can be seen.
#ifndef COORDINATOR_SERVE_METHODS_H
#define COORDINATOR_SERVE_METHODS_H

#include "coordinator/observe/hosts/left_mark.h"
#include "coordinator/observe/observer.h"
#include "coordinator/serve/steps.h"
#include "rpc/schema/messages.h"
#include "rpc/schema/step_report.h"
#include "rpc/server/rpc_server.h"

// At the disk of the data directory, which may take its time: nobody waits for it.
typedef struct gs_space_look {
    gs_write base;
    const char *data_dir;  // borrowed
    bool is_on_its_way;
    int64_t found_bytes;  // of the thread that looks
    int64_t free_bytes;   // as last found
    int64_t looked_ns;    // then; 0: it could not be found
    int64_t asked_ns;
} gs_space_look;

// What handlers get as their ctx.
typedef struct gs_service {
    gs_steps *steps;
    gs_observer *observer;
    const gs_left_mark *mark;  // NULL: it is there
    gs_key_gate *gate;         // borrowed; NULL: nobody shows a key
    gs_report_rows rows;  // of the report that is being taken
    gs_space_look space;
} gs_service;

// It stays where it is until the writer has stopped.
void gs_service_begin(gs_service *service, gs_steps *steps, gs_observer *observer);
void gs_service_tick(gs_service *service, int64_t now_ns);

extern const gs_rpc_handler gs_coordinator_methods[GS_NUM_METHODS];
extern const gs_rpc_record_handler gs_coordinator_record_methods[GS_NUM_METHODS];

#endif
