// The coordinator: an engine that decides, a store that keeps, an observer that shows, and the loop in which calls
// become events and effects become calls. No locks: what another thread does comes back as a message
// (store/writer.h) or as a call (rpc/server/rpc_server.h).
#ifndef COORDINATOR_SERVE_COORDINATOR_H
#define COORDINATOR_SERVE_COORDINATOR_H

#include "coordinator/model/state.h"
#include "coordinator/rules/timing.h"
#include "core/status.h"
#include "rpc/keys/audit.h"
#include "rpc/server/key_gate.h"
#include "rpc/wire/rpc_context.h"

typedef struct gs_coordinator gs_coordinator;
typedef struct gs_trace gs_trace;  // store/trace.h

typedef struct gs_coordinator_options {
    const char *data_dir;          // exists and is locked by the caller
    const char *checkpoints_dir;   // absolute; need not be there where it was marked
    const char *checkpoints_given; // as somebody wrote it; NULL: so
    bool checkpoints_are_new;      // an operator says so (store/files/marked_root.h)
    const char *control_endpoint;  // "tcp://127.0.0.1:8471"
    bool control_asks;             // who comes there shows a key
    const char *guarded_endpoint;  // another address, at which everybody shows a key; NULL: none
    gs_key_gate *gate;             // that knows the keys; borrowed until destroy; NULL: nobody shows one
    gs_rpc_context *context;       // borrowed until destroy
    const gs_timing *timing;       // NULL: the default
    gs_retention retention;        // {0}: all is kept
    gs_trace *trace;               // borrowed until destroy; NULL: none
    gs_audit *audit;               // of the control port; borrowed until destroy; NULL: none
} gs_coordinator_options;

#define GS_INPROC_ENDPOINT "inproc://gradsync-control"

GS_NODISCARD gs_status gs_coordinator_create(gs_coordinator **out,
                                             const gs_coordinator_options *options);
// One turn: waits for input at most until the next timer, serves, decides, writes behind.
GS_NODISCARD gs_status gs_coordinator_turn(gs_coordinator *coordinator);
// Async-signal-safe: makes a waiting turn return.
void gs_coordinator_wake(const gs_coordinator *coordinator);
const char *gs_coordinator_control_endpoint(const gs_coordinator *coordinator);
const char *gs_coordinator_guarded_endpoint(const gs_coordinator *coordinator);  // "": there is none besides
// DATA_LOSS: a worker has shown that the database is an old copy. ALREADY_EXISTS: a coordinator on a copy of it lives, and has the
// checkpoints. It is to end: nothing is decided from it.
GS_NODISCARD gs_status gs_coordinator_check_data(const gs_coordinator *coordinator);
// Refuses new jobs from now on.
void gs_coordinator_drain(gs_coordinator *coordinator);
// Says good-bye to streams, writes what is behind, closes. Trainers go on. NULL is fine.
void gs_coordinator_destroy(gs_coordinator *coordinator);

#endif
