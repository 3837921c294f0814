// This worker's key for the control port: where it is, what it is called by it.
#ifndef WORKER_OWN_KEY_H
#define WORKER_OWN_KEY_H

#include <limits.h>

#include "core/status.h"
#include "rpc/keys/key_file.h"
#include "rpc/wire/rpc_context.h"

typedef struct gs_own_key {
    char path[PATH_MAX];  // absolute; "": this worker shows none
    char name[64];        // what the worker is called unless it is told otherwise
    gs_key_file key;      // as last read
    int64_t looked_ns;
} gs_own_key;

typedef struct gs_own_key_options {
    const char *path, *enrol;  // as --key and --enrol have them; NULL, "": none
    const char *name, *host;   // of the worker, "" unless it was given; of its host
    const char *coordinator;   // whom it enrols with
    gs_rpc_context *context;
} gs_own_key_options;

// Enrols where there is no key and a token for one, which may take until a coordinator answers. FAILED_PRECONDITION: there is
// no key, or others may read it.
GS_NODISCARD gs_status gs_own_key_settle(gs_own_key *own, const gs_own_key_options *options);
// Each second or so at most: whether another key is in the file by now.
bool gs_own_key_has_changed(gs_own_key *own, int64_t now_ns);

#endif
