// What every handle of ffi.h begins with: its last error, and the objects behind handles that
// others need.
#ifndef GRADSYNC_FFI_OBJECT_H
#define GRADSYNC_FFI_OBJECT_H

#include <stdbool.h>

#include "core/clock.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "gradsync/ffi/ffi.h"
#include "gradsync/hooks/comm_hook.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/sharded/shards.h"
#include "gradsync/tensor/arena.h"
#include "kernels/device.h"

typedef struct gs_ffi_object {
    gs_status last;
} gs_ffi_object;

// The first member of each handle, so that a handle is an object. NULL: nothing is kept.
int gs_ffi_keep(void *handle, gs_status status);
// INVALID_ARGUMENT where a caller gave nothing; `name` of what is missing.
gs_status gs_ffi_given(const void *what, const char *name);
// FAILED_PRECONDITION unless a handle is open, or not yet.
gs_status gs_ffi_expect(bool is_so, const char *what);
gs_deadline gs_ffi_deadline(int64_t within_ns);
// Of a call that all ranks make: what is wrong here alone the others hear of, too, for they wait. NULL: nobody.
gs_status gs_ffi_tell_others(gs_comm *comm, gs_status status);
// What a callback returned; `what` names it.
gs_status gs_ffi_returned(int code, const char *what);

struct gs_ffi_device {
    gs_ffi_object object;
    gs_device_options options;
    gs_device *device;
};

struct gs_ffi_arena {
    gs_ffi_object object;
    gs_arena *arena;
};

struct gs_ffi_params {
    gs_ffi_object object;
    gs_param_spec *specs;
    size_t count, room;
};

// One for each parameter.
typedef struct gs_ffi_numbers {
    int *list;  // owned; NULL: none given
    size_t count;
} gs_ffi_numbers;  // {0} is none

GS_NODISCARD gs_status gs_ffi_numbers_copy(gs_ffi_numbers *numbers, const int *list, size_t count);
// INVALID_ARGUMENT when some are given, and not as many as parameters.
GS_NODISCARD gs_status gs_ffi_numbers_check(const gs_ffi_numbers *numbers, size_t num_params,
                                            const char *what);

// Flags as C has them: the caller's (free()). NULL: none given.
GS_NODISCARD gs_status gs_ffi_flags_copy(bool **out, const unsigned char *flags, size_t count);

struct gs_ffi_plan {
    gs_ffi_object object;
    gs_ffi_numbers owners;
    gs_bucket_plan plan;
};

struct gs_ffi_shards {
    gs_ffi_object object;
    gs_ffi_numbers owners, optimizers;
    gs_shards *shards;
};

struct gs_ffi_comm {
    gs_ffi_object object;
    gs_comm_options options;
    char backend[32];
    gs_ffi_exchange exchange;
    void *exchange_ctx;
    gs_comm *comm;
};

#define GS_FFI_HOOK_NUMBERS 16

struct gs_ffi_reducer {
    gs_ffi_object object;
    gs_reducer_options options;
    gs_param_spec *specs;
    gs_bucket_plan plan;
    gs_comm *comm;  // while it is open
    gs_reducer *reducer;
    gs_reducer_pass pass;
    gs_reduce_result result;
    gs_hook_choice choice, wrapper;  // the second around the first
    // A hook of the library's: its options that were given.
    gs_hook_number numbers[GS_FFI_HOOK_NUMBERS];
    // A hook of the host's.
    gs_comm_hook hook;
    char hook_name[GS_HOOK_NAME_LEN];
    gs_ffi_hook_run hook_run;
    gs_ffi_hook_finish hook_finish;
    void (*hook_cancel)(void *ctx);
    void *hook_ctx;
};

// foreign_hook.c: the hook whose functions are those of the handle.
void gs_ffi_use_hook(gs_ffi_reducer *reducer);

#endif
