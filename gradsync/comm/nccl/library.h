// NCCL as this process finds it: looked up at run time, so that one binary runs with and without it.
//
// The only door to nccl.h. Each call comes back as a status that names it and says the library's words. The
// library is never unloaded: its threads may outlive a communicator. Calls on a non-blocking communicator
// may go on when they return: gs_nccl_query tells, and until it says that nothing is in progress no
// other call may be made on the communicator, nor its stream be given work.
#ifndef GRADSYNC_COMM_NCCL_LIBRARY_H
#define GRADSYNC_COMM_NCCL_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

#include "core/dtype.h"
#include "core/status.h"
#include "kernels/kernels.h"

#define GS_NCCL_ID_BYTES 128

typedef struct gs_nccl_library gs_nccl_library;
typedef struct ncclComm gs_nccl_handle;  // a communicator of the library

// What ranks meet by. A secret: who has it can join or disturb. Never logged.
typedef struct gs_nccl_id {
    char bytes[GS_NCCL_ID_BYTES];
} gs_nccl_id;

// Finds "libnccl.so.2", or what the variable GRADSYNC_NCCL names. UNAVAILABLE without it or when it is older
// than 2.14; FAILED_PRECONDITION names a variable of the environment that must not be set. Before
// the library's first call its variables get defaults where they are unset.
GS_NODISCARD gs_status gs_nccl_library_open(gs_nccl_library **out);
void gs_nccl_library_close(gs_nccl_library *library);
int gs_nccl_library_version(const gs_nccl_library *library);  // 22809
// One info line: version, what it has, and every NCCL_* variable that is set.
void gs_nccl_library_log(const gs_nccl_library *library);

// Memory of the current device, not zeroed. UNIMPLEMENTED in versions without (before 2.19).
GS_NODISCARD gs_status gs_nccl_alloc(const gs_nccl_library *library, void **memory, size_t bytes);
void gs_nccl_free(const gs_nccl_library *library, void *memory);

GS_NODISCARD gs_status gs_nccl_make_id(const gs_nccl_library *library, gs_nccl_id *id);
// Blocks that a kernel of a communicator has; 0: the library's own limit.
typedef struct gs_nccl_ctas {
    int least, most;
} gs_nccl_ctas;

// Non-blocking, on the current device. *handle is set as soon as the call returns ok.
GS_NODISCARD gs_status gs_nccl_begin_init(const gs_nccl_library *library, gs_nccl_handle **handle,
                                          const gs_nccl_id *id, int rank, int world_size,
                                          gs_nccl_ctas ctas);
// One more of the same ranks, with nothing in common; a call of all of them together, on a `parent` that does
// nothing else. Goes on behind our back in both: `parent` is to be asked first, and *handle, which must stay
// where it is, may be set only when that one has settled. UNIMPLEMENTED in versions without (2.18).
bool gs_nccl_has_split(const gs_nccl_library *library);
GS_NODISCARD gs_status gs_nccl_begin_split(const gs_nccl_library *library, gs_nccl_handle *parent,
                                           gs_nccl_handle **handle, int rank,
                                           gs_nccl_ctas ctas);
// What happened behind our back: an error, or that the last call still goes on.
GS_NODISCARD gs_status gs_nccl_query(const gs_nccl_library *library, gs_nccl_handle *handle,
                                     bool *in_progress);
GS_NODISCARD gs_status gs_nccl_finalize(const gs_nccl_library *library, gs_nccl_handle *handle);
// Both may never return.
GS_NODISCARD gs_status gs_nccl_destroy(const gs_nccl_library *library, gs_nccl_handle *handle);
GS_NODISCARD gs_status gs_nccl_abort(const gs_nccl_library *library, gs_nccl_handle *handle);

// Memory that the communicator may map into its peers. Window: a call of all ranks together; *window stays
// NULL where these ranks cannot have one. UNIMPLEMENTED in versions without (2.27, 2.19).
bool gs_nccl_has_windows(const gs_nccl_library *library);
GS_NODISCARD gs_status gs_nccl_register_window(const gs_nccl_library *library,
                                               gs_nccl_handle *handle, void *memory, size_t bytes,
                                               void **window);
GS_NODISCARD gs_status gs_nccl_deregister_window(const gs_nccl_library *library,
                                                 gs_nccl_handle *handle, void *window);
bool gs_nccl_has_registration(const gs_nccl_library *library);
GS_NODISCARD gs_status gs_nccl_register(const gs_nccl_library *library, gs_nccl_handle *handle,
                                        void *memory, size_t bytes, void **registration);
GS_NODISCARD gs_status gs_nccl_deregister(const gs_nccl_library *library, gs_nccl_handle *handle,
                                          void *registration);

// Where a collective runs.
typedef struct gs_nccl_target {
    const gs_nccl_library *library;
    gs_nccl_handle *handle;
    void *stream;  // gs_stream_native
} gs_nccl_target;

// Calls between begin and end are one launch. All ranks must group alike: the library shares its channels out
// among what is in a group.
GS_NODISCARD gs_status gs_nccl_group_begin(const gs_nccl_target *target);
GS_NODISCARD gs_status gs_nccl_group_end(const gs_nccl_target *target);
GS_NODISCARD gs_status gs_nccl_allreduce(const gs_nccl_target *target, void *recv, const void *send,
                                         size_t count, gs_dtype dtype, gs_reduce_op op);
GS_NODISCARD gs_status gs_nccl_reduce(const gs_nccl_target *target, void *recv, const void *send,
                                      size_t count, gs_dtype dtype, gs_reduce_op op, int root);
GS_NODISCARD gs_status gs_nccl_reduce_scatter(const gs_nccl_target *target, void *recv,
                                              const void *send, size_t count, gs_dtype dtype,
                                              gs_reduce_op op);
GS_NODISCARD gs_status gs_nccl_allgather(const gs_nccl_target *target, void *recv, const void *send,
                                         size_t count, gs_dtype dtype);
GS_NODISCARD gs_status gs_nccl_broadcast(const gs_nccl_target *target, void *recv, const void *send,
                                         size_t count, gs_dtype dtype, int root);
GS_NODISCARD gs_status gs_nccl_send(const gs_nccl_target *target, const void *send, size_t count,
                                    gs_dtype dtype, int peer);
GS_NODISCARD gs_status gs_nccl_recv(const gs_nccl_target *target, void *recv, size_t count,
                                    gs_dtype dtype, int peer);

#endif
