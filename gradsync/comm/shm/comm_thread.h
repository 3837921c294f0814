// A thread that moves posted collectives while their owner computes, where a core is spare for it.
//
// It owns nothing but the waiting: what there is to do, and how, are the backend's four functions,
// all called on this thread.
#ifndef GRADSYNC_COMM_SHM_COMM_THREAD_H
#define GRADSYNC_COMM_SHM_COMM_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>

#include "core/status.h"

typedef struct gs_comm_thread gs_comm_thread;

typedef struct gs_comm_thread_ops {
    gs_status (*enter)(void *ctx);  // first of all; its error is that of start
    bool (*has_work)(void *ctx);
    void (*serve)(void *ctx, const atomic_bool *stopping);  // until there is no work, or stopping
    void (*leave)(void *ctx);                               // last of all, if enter succeeded
} gs_comm_thread_ops;

// Returns when `enter` has. `ops` and `ctx` are borrowed until stop.
GS_NODISCARD gs_status gs_comm_thread_start(gs_comm_thread **out, const gs_comm_thread_ops *ops,
                                            void *ctx);
void gs_comm_thread_kick(gs_comm_thread *thread);  // has_work may have become true; any thread
void gs_comm_thread_stop(gs_comm_thread *thread);  // NULL is fine

#endif
