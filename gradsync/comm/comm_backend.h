// The contract for authors of communicator backends: create · post · wait · abort · destroy.
//
// To add one: a file in gradsync/comm/, a line in the table of comm.c. comm/self.c is the template.
// gs_comm checks arguments, numbers collectives and keeps the first error; a backend only moves bytes.
#ifndef GRADSYNC_COMM_COMM_BACKEND_H
#define GRADSYNC_COMM_COMM_BACKEND_H

#include "gradsync/comm/collective.h"
#include "gradsync/comm/comm_failure.h"
#include "gradsync/comm/comm_options.h"
#include "gradsync/tensor/arena.h"
#include "kernels/device.h"

typedef struct gs_comm_backend {
    const char *name;
    // `reason` (text of reason_bytes) says in one sentence why this backend fits, or why it does not
    // when UNAVAILABLE is returned; all ranks must come to the same verdict.
    gs_status (*create)(void **out, const gs_comm_options *options, char *reason,
                        size_t reason_bytes, gs_deadline deadline);
    // Collective `sequence` (1, 2, 3 …). Never blocks for other ranks. NULL: progress only. After an abort
    // it is refused, and a wait for it ends like one for the last that was taken.
    gs_status (*post)(void *backend, uint64_t sequence, const gs_collective *collective);
    // Until `sequence` is done. A deadline that has passed means: progress once and tell
    // (DEADLINE_EXCEEDED when not done). After an abort: until nothing here moves any more, which takes
    // no other rank.
    gs_status (*wait)(void *backend, uint64_t sequence, gs_deadline deadline);
    // Any thread, any time between create and destroy.
    void (*abort)(void *backend, const char *reason);
    void (*destroy)(void *backend);
    // Facts, no waiting: all sequences up to the result are done; the times of one.
    uint64_t (*finished)(const void *backend);
    bool (*times)(const void *backend, uint64_t sequence, gs_work_times *times);
    const char *(*algorithm)(const void *backend, const gs_collective *collective);
    gs_stream *(*stream)(const void *backend);  // NULL: there is none
    // As gs_comm_explain; `out` is zero but for its bucket, and stays so where nobody can be missing.
    void (*explain)(void *backend, gs_comm_failure *out);
    const gs_arena_allocator *allocator;  // that it wants arenas of; NULL: any will do
} gs_comm_backend;

extern const gs_comm_backend gs_comm_self;
extern const gs_comm_backend gs_comm_shm;
#ifdef GRADSYNC_CUDA
extern const gs_comm_backend gs_comm_nccl;
#endif

#endif
