// Averagers, of ffi.h.
#include "gradsync/step/averager.h"

#include <stdlib.h>

#include "gradsync/ffi/object.h"

struct gs_ffi_averager {
    gs_ffi_object object;
    gs_average_level levels[GS_AVERAGER_MAX_LEVELS];
    size_t num_levels;
    int64_t start_step;
    gs_comm *comm;
    gs_tensor_view *tensors;  // owned
    gs_averager *averager;
};

gs_ffi_averager *gs_ffi_averager_new(void) {
    return calloc(1, sizeof(gs_ffi_averager));
}

static gs_status check_closed(const gs_ffi_averager *averager) {
    GS_TRY(gs_ffi_given(averager, "averager"));
    return gs_ffi_expect(!averager->averager, "the averager is open");
}

static gs_status check_open(const gs_ffi_averager *averager) {
    GS_TRY(gs_ffi_given(averager, "averager"));
    return gs_ffi_expect(averager->averager, "the averager is not open");
}

static gs_status add_level(gs_ffi_averager *averager, int64_t period, int num_ranks) {
    GS_TRY(check_closed(averager));
    if (averager->num_levels == GS_AVERAGER_MAX_LEVELS)
        return gs_error(GS_INVALID_ARGUMENT, "an averager has at most %d periods",
                        GS_AVERAGER_MAX_LEVELS);
    averager->levels[averager->num_levels++] = (gs_average_level){period, num_ranks};
    return gs_ok();
}

int gs_ffi_averager_add(gs_ffi_averager *averager, int64_t period, int num_ranks) {
    return gs_ffi_keep(averager, add_level(averager, period, num_ranks));
}

int gs_ffi_averager_set_start(gs_ffi_averager *averager, int64_t step) {
    int code = gs_ffi_keep(averager, check_closed(averager));
    if (!code) averager->start_step = step;
    return code;
}

static gs_status list_tensors(gs_ffi_averager *averager, const gs_ffi_params *params,
                              void *const *values) {
    free(averager->tensors);
    averager->tensors = calloc(params->count + 1, sizeof *averager->tensors);
    if (!averager->tensors) return gs_error(GS_RESOURCE_EXHAUSTED, "averager: out of memory");
    for (size_t i = 0; i < params->count; i++) {
        const gs_param_spec *spec = &params->specs[i];
        const gs_tensor_view tensor = {values[i], gs_param_spec_count(spec), spec->dtype};
        if (!tensor.data && tensor.count)
            return gs_error(GS_INVALID_ARGUMENT, "parameter %zu \"%.100s\" has no values", i,
                            spec->name);
        averager->tensors[i] = tensor;
    }
    return gs_ok();
}

static gs_status check_comm(const gs_ffi_comm *comm) {
    return gs_ffi_expect(comm->comm, "the averager's communicator is not open");
}

static gs_status take_tensors(gs_ffi_averager *averager, const gs_ffi_params *params,
                              void *const *values, const gs_ffi_comm *comm) {
    GS_TRY(check_closed(averager));
    GS_TRY(gs_ffi_given(params, "parameters"));
    GS_TRY(gs_ffi_given(values, "values"));
    GS_TRY(check_comm(comm));
    return list_tensors(averager, params, values);
}

static gs_status open_averager(gs_ffi_averager *averager, const gs_ffi_params *params,
                               void *const *values, const gs_ffi_comm *comm, gs_deadline deadline) {
    GS_TRY(gs_ffi_given(comm, "communicator"));
    GS_TRY(gs_ffi_tell_others(comm->comm, take_tensors(averager, params, values, comm)));
    averager->comm = comm->comm;
    const gs_averager_options options = {.levels = averager->levels,
                                         .num_levels = averager->num_levels,
                                         .start_step = averager->start_step,
                                         .tensors = averager->tensors,
                                         .num_tensors = params->count,
                                         .comm = comm->comm};
    return gs_averager_create(&averager->averager, &options, deadline);
}

int gs_ffi_averager_open(gs_ffi_averager *averager, const gs_ffi_params *params,
                         void *const *values, gs_ffi_comm *comm, int64_t within_ns) {
    return gs_ffi_keep(averager,
                       open_averager(averager, params, values, comm, gs_ffi_deadline(within_ns)));
}

int gs_ffi_averager_run(gs_ffi_averager *averager, int64_t step, const unsigned char *used,
                        int *num_ranks, int64_t within_ns) {
    gs_status status = check_open(averager);
    if (!status.code)
        status = gs_ffi_tell_others(averager->comm,
                                    gs_ffi_given(num_ranks, "room for the number of ranks"));
    if (!status.code)
        status =
            gs_averager_run(averager->averager, step, used, num_ranks, gs_ffi_deadline(within_ns));
    return gs_ffi_keep(averager, status);
}

int gs_ffi_averager_run_all(gs_ffi_averager *averager, int64_t step, const unsigned char *used,
                            int64_t within_ns) {
    gs_status status = check_open(averager);
    if (!status.code)
        status = gs_averager_run_all(averager->averager, step, used, gs_ffi_deadline(within_ns));
    return gs_ffi_keep(averager, status);
}

static gs_status check_reset(const gs_ffi_averager *averager, const gs_ffi_comm *comm,
                             const int64_t *step) {
    GS_TRY(check_open(averager));
    GS_TRY(gs_ffi_given(step, "room for a step"));
    return check_comm(comm);
}

static gs_status reset_to(gs_ffi_averager *averager, const gs_ffi_comm *comm, int64_t *step,
                          gs_deadline deadline) {
    GS_TRY(gs_ffi_given(comm, "communicator"));
    GS_TRY(gs_ffi_tell_others(comm->comm, check_reset(averager, comm, step)));
    averager->comm = comm->comm;
    return gs_averager_reset(averager->averager, comm->comm, step, deadline);
}

int gs_ffi_averager_reset(gs_ffi_averager *averager, gs_ffi_comm *comm, int64_t *step,
                          int64_t within_ns) {
    return gs_ffi_keep(averager, reset_to(averager, comm, step, gs_ffi_deadline(within_ns)));
}

void gs_ffi_averager_free(gs_ffi_averager *averager) {
    if (!averager) return;
    gs_averager_destroy(averager->averager);
    free(averager->tensors);
    free(averager);
}
