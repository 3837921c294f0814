// A rank that knows nothing of the library but its interface for other languages: handles, and steps of three small
// parameters.
#ifndef TESTS_MULTIPROCESS_FFI_CALLER_H
#define TESTS_MULTIPROCESS_FFI_CALLER_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/ffi/ffi.h"
#include "tests/support/ranks.h"

#define SECOND INT64_C(1000000000)

enum { FFI_PARAMS = 3, FFI_COUNT = 5, FFI_FP32 = 1, FFI_FP64 = 2 };

typedef struct ffi_caller {
    const gs_rank_env *env;
    gs_ffi_device *device;
    gs_ffi_arena *arena;
    gs_ffi_params *params;
    gs_ffi_plan *plan;
    gs_ffi_comm *comm;
    gs_ffi_reducer *reducer;
    int num_lanes;  // that the reducer asked for
} ffi_caller;

// A handle's last error as a status.
gs_status ffi_say(int code, const void *handle);
// Fits gs_ffi_exchange; ctx: the ffi_caller.
int ffi_exchange(void *ctx, const char *tag, const int *ranks, int num_ranks, const void *mine,
                 size_t bytes, void *all, int64_t left_ns);

// New handles, none of them open but the device.
gs_status ffi_caller_begin(ffi_caller *self, const gs_rank_env *env);
// `count` parameters p0, p1 … of so many elements, fp32.
gs_status ffi_caller_add_params(ffi_caller *self, int num_params, int64_t count);
gs_status ffi_caller_open_comm(ffi_caller *self, int num_lanes);
gs_status ffi_caller_open_reducer(ffi_caller *self);
void ffi_caller_close(ffi_caller *self);

// All of it, with a bucket for each of the three parameters. `set` (may be NULL): what a test wants of the reducer,
// before it is measured.
gs_status ffi_caller_open_all(ffi_caller *self, int (*set)(ffi_caller *self));
// begin and open_all.
gs_status ffi_caller_open(ffi_caller *self, const gs_rank_env *env, int (*set)(ffi_caller *self));

float *ffi_caller_grad(const ffi_caller *self, size_t param);
// A step of two ranks: parameter 0 in its place, 1 from doubles elsewhere, 2 is used by rank 0 alone.
gs_status ffi_caller_reduce(ffi_caller *self, int64_t step);
// And its result is the mean.
gs_status ffi_caller_step(ffi_caller *self, int64_t step);

#endif
